//! What must be true of the core, kept beside it in the plainest form: what the storm holds in its own
//! hands, and where it saw each session bound.

use homing_core::SelectionCore;
use homing_core::affinity::Outcome;
use homing_core::ids::{PartitionId, SessionKey, Target};
use homing_core::time::Time;
use std::collections::BTreeMap;

/// Of one partition.
#[derive(Default)]
pub(super) struct Shadow {
    /// Where each session was bound last, and which binding that was.
    pub(super) bound: BTreeMap<SessionKey, (Target, u64)>,
    /// Leases on a binding that still stands for all we know.
    pub(super) live: BTreeMap<u64, u32>,
    pub(super) outcomes: [u64; 9],
    /// How often a request found the table full.
    pub(super) full: u64,
    next: u64,
}

impl Shadow {
    /// A commit: gives the binding that its lease, if it has one, is on.
    pub(super) fn committed(
        &mut self,
        key: SessionKey,
        target: Target,
        outcome: Outcome,
    ) -> Option<u64> {
        match outcome {
            Outcome::New | Outcome::Rebound => {
                self.next += 1;
                self.bound.insert(key, (target, self.next));
            }
            Outcome::Hit | Outcome::Joined => {
                assert!(self.bound[&key].0.admits(target), "{outcome} elsewhere than bound");
            }
            Outcome::Conflict => {
                assert!(!self.bound[&key].0.admits(target), "a conflict with itself");
                return None;
            }
            _ => return None,
        }
        let binding = self.bound[&key].1;
        *self.live.entry(binding).or_default() += 1;
        Some(binding)
    }

    pub(super) fn ended(&mut self, binding: Option<u64>) {
        if let Some(n) = binding.and_then(|b| self.live.get_mut(&b)) {
            *n -= 1;
        }
    }

    /// The sessions that the core shows are where they were bound last, and a leased one is shown.
    pub(super) fn agree(
        &self,
        core: &SelectionCore,
        now: Time,
        p: PartitionId,
        keys: &[SessionKey],
    ) {
        for key in keys {
            let shown = core.session(now, p, *key);
            let bound = self.bound.get(key);
            if let Some(view) = shown {
                assert_eq!(Some(view.target), bound.map(|b| b.0), "bound elsewhere: {key:?}");
            }
            let leases = bound.and_then(|b| self.live.get(&b.1)).copied().unwrap_or(0);
            assert!(
                shown.map_or(0, |v| v.leases) >= leases,
                "{key:?} has {leases} leases, and shows {shown:?}"
            );
        }
    }
}
