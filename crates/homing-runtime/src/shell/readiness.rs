//! Whether the router takes requests, and what it waits for before it does.

use super::Shell;
use homing_core::fleet::State;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Reasons for not taking requests yet, by a number each.
type Held = Mutex<BTreeMap<usize, &'static str>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// It latches: losing the last worker doesn't unready the router.
    was_ready: AtomicBool,
    held: Arc<Held>,
}

/// As long as it lives the router is not ready.
#[derive(Debug)]
pub struct NotReady {
    of: Arc<Held>,
    number: usize,
}

impl Drop for NotReady {
    fn drop(&mut self) {
        self.of.lock().remove(&self.number);
    }
}

impl Readiness {
    /// Some worker is ready, or none.
    pub(super) fn latch(&self, ready: bool) {
        self.was_ready.fetch_or(ready, Ordering::Relaxed);
    }
}

impl Shell {
    /// Whether some worker was ever ready, and nothing else is waited for.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.readiness.was_ready.load(Ordering::Relaxed) && self.readiness.held.lock().is_empty()
    }

    /// Holds readiness back; `why` is for people.
    #[must_use]
    pub fn hold_readiness(&self, why: &'static str) -> NotReady {
        let mut held = self.readiness.held.lock();
        let number = held.last_key_value().map_or(0, |(last, _)| last + 1);
        held.insert(number, why);
        NotReady { of: self.readiness.held.clone(), number }
    }

    /// What is waited for before requests are taken, besides a worker.
    #[must_use]
    pub fn waits_for(&self) -> Vec<&'static str> {
        self.readiness.held.lock().values().copied().collect()
    }

    /// Returns once it is ready.
    pub async fn until_ready(&self) {
        while !self.ready() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Holds readiness back until every worker has been heard of, or found Down, for at most `most`: the
    /// sessions that were restored to a worker which has not told yet what it serves can only be refused.
    pub async fn warm_up(self: Arc<Self>, most: Duration) {
        let _hold = self.hold_readiness("word of every worker that restored sessions may live at");
        let heard = async {
            let starting = |w: &homing_core::core::WorkerView| w.state == State::Starting;
            while self.core.workers().iter().any(starting) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(most, heard).await;
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::shell;

    #[test]
    fn it_is_ready_when_nothing_is_waited_for_any_more() {
        let shell = shell("", &["a"]);
        assert!(!shell.ready(), "no worker is");
        shell.readiness.latch(true);
        shell.readiness.latch(false);
        assert!(shell.ready(), "one was");
        let first = shell.hold_readiness("one thing");
        let second = shell.hold_readiness("another");
        assert!(!shell.ready());
        assert_eq!(shell.waits_for(), ["one thing", "another"]);
        drop(first);
        let third = shell.hold_readiness("a third");
        assert_eq!(shell.waits_for(), ["another", "a third"]);
        drop((second, third));
        assert!(shell.ready() && shell.waits_for().is_empty());
    }
}
