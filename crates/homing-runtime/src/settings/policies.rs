//! Policies that a program brings along, by name: what `routing.policy` may say besides the built-in words.

use homing_core::select::policy::Policy;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

type Make = Arc<dyn Fn() -> Box<dyn Policy> + Send + Sync>;

/// Policies of one's own. Empty by default.
#[derive(Clone, Default)]
pub struct Policies(BTreeMap<&'static str, Make>);

impl Policies {
    /// With one more. It is made anew for each pool of workers. A built-in name keeps its meaning.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name, Arc::new(make));
        self
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    pub(super) fn get(&self, name: &str) -> Option<CustomPolicy> {
        let (name, make) = self.0.get_key_value(name)?;
        Some(CustomPolicy { name, make: make.clone() })
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// One of them, chosen.
#[derive(Clone)]
pub struct CustomPolicy {
    name: &'static str,
    make: Make,
}

impl CustomPolicy {
    /// As `routing.policy` calls it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A fresh one.
    #[must_use]
    pub fn make(&self) -> Box<dyn Policy> {
        (self.make)()
    }
}

impl fmt::Debug for CustomPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for CustomPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.make, &other.make)
    }
}

impl Eq for CustomPolicy {}
