//! What must always be true of an index, looked at by tests and debug builds.

use super::ChainIndex;
use super::nodes::Slot;
use super::sets::SetId;
use super::target::Names;
use crate::hash::EngineHash;
use std::collections::BTreeMap;

impl ChainIndex {
    /// Invariants, for tests and debug builds.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        self.nodes.check();
        self.sets.check(|set| self.nodes.iter().filter(|(_, n)| n.set == set).count());
        for (slot, node) in self.nodes.iter() {
            assert_ne!(node.set, SetId::EMPTY, "node {slot} is nobody's");
            assert!((node.space as usize) < self.spaces.len(), "a space that is not known");
        }
        for (key, number) in &self.numbers {
            let (whose, target) = self.targets[*number as usize].as_ref().expect("a numbered one");
            assert_eq!(whose, key, "another target's number");
            target.check();
            let held = self.nodes.iter().filter(|(_, n)| self.sets.has(n.set, *number));
            let held: BTreeMap<Slot, EngineHash> = held.map(|(s, n)| (s, n.engine)).collect();
            match &target.names {
                Names::Common { copies } => {
                    assert_eq!(held.len(), target.standing, "blocks that stand");
                    assert!(copies.values().all(|n| *n > 0));
                    for hash in held.values() {
                        assert!(self.standing(*number, *hash, None).is_some(), "a name of its own");
                    }
                }
                Names::Own { blocks, more } => {
                    let mut count: BTreeMap<Slot, u32> = BTreeMap::new();
                    blocks.values().for_each(|(slot, _)| *count.entry(*slot).or_default() += 1);
                    assert_eq!(blocks.len(), target.standing, "blocks that stand");
                    assert!(count.keys().eq(held.keys()), "names and prefixes");
                    let several: BTreeMap<_, _> = count.into_iter().filter(|c| c.1 > 1).collect();
                    assert_eq!(several, more.iter().map(|(s, n)| (*s, *n)).collect());
                }
            }
        }
        assert_eq!(self.numbers.len(), self.targets.iter().flatten().count(), "numbers");
    }
}
