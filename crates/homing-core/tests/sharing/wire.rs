//! The wire between two routers, and what must come of an update that arrives: the reference.

use super::router::{Router, TTL};
use homing_core::affinity::merge::Merged;
use homing_core::affinity::table::SessionView;
use homing_core::affinity::version::Version;
use homing_core::core::{Publication, Received};
use homing_core::dice::{Dice, SplitMix};
use homing_core::ids::Target;
use homing_core::time::Time;
use std::collections::BTreeMap;

/// Updates on their way to one router.
#[derive(Default)]
pub(crate) struct Wire {
    flying: Vec<Publication>,
    /// Removals that its router has heard of or made, until it may forget them.
    removed: BTreeMap<u128, (Version, Time)>,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Came {
    Applied,
    Same,
    Stale,
    /// To what had been removed later than it was bound.
    Undone,
    Expired,
    SetAside,
}

impl Wire {
    /// Sends an update: it may be lost, or doubled.
    pub(crate) fn send(&mut self, p: Publication, dice: &mut SplitMix, loses: bool) {
        let copies = if loses { [0, 1, 1, 1, 2, 3][dice.below(6)] } else { 1 };
        self.flying.extend(std::iter::repeat_n(p, copies));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// Its router has made this write, or heard of it: a removal stands until a later binding takes its
    /// place, or until it may be forgotten.
    pub(crate) fn note(&mut self, now: Time, p: &Publication) {
        let known = self.removed.get(&p.key.0).map_or(Version::default(), |(version, _)| *version);
        if p.version > known {
            match p.home {
                None => _ = self.removed.insert(p.key.0, (p.version, now)),
                Some(_) => _ = self.removed.remove(&p.key.0),
            }
        }
    }

    /// Its router has bound a session anew.
    pub(crate) fn bound(&mut self, k: u32) {
        self.removed.remove(&u128::from(k));
    }

    /// Any of those that fly arrives: it must do what a register does, and nothing else.
    pub(crate) fn deliver(&mut self, to: &mut Router, dice: &mut SplitMix) -> Option<Came> {
        if self.flying.is_empty() {
            return None;
        }
        let p = self.flying.swap_remove(dice.below(self.flying.len()));
        let k = p.key.0 as u32;
        let before = to.view(k);
        let removed = self.removed.get(&p.key.0).copied();
        let known = p.home.as_ref().is_none_or(|home| to.core.worker_named(&home.worker).is_some());
        let got = to.hear(p.clone());
        let after = to.view(k);
        if !known {
            assert_eq!((got, after), (Received::SetAside, before));
            return Some(Came::SetAside);
        }
        let Received::Merged(merged) = got else { panic!("{got:?}") };
        if to.now >= p.used + TTL {
            assert_eq!((merged, after), (Merged::Expired, before));
            return Some(Came::Expired);
        }
        // What its home is called here by now: a worker that has been away is another life.
        let target = p.home.as_ref().map(|home| {
            let worker = to.core.worker_named(&home.worker).unwrap();
            Target { worker, rank: home.rank }
        });
        let reborn = |b: &SessionView| target.is_some_and(|t| t != b.target) && !b.last;
        let came = match before {
            Some(b) if b.version > p.version => {
                assert_eq!((merged, after), (Merged::Stale, before), "{p:?}");
                Came::Stale
            }
            Some(b) if b.version == p.version && !reborn(&b) => {
                let after = after.unwrap();
                assert_eq!(merged, Merged::Same, "{p:?}");
                assert_eq!(
                    (after.target, after.last, after.version),
                    (b.target, b.last, b.version)
                );
                assert!(after.idle <= b.idle);
                Came::Same
            }
            Some(b) if p.home.is_none() => {
                assert_eq!(merged, Merged::Applied, "{p:?}");
                match after {
                    None => assert_eq!(b.leases, 0),
                    Some(a) => {
                        let want = (b.target, b.leases, true, p.version);
                        assert_eq!((a.target, a.leases, a.last, a.version), want);
                        assert!(a.leases > 0);
                    }
                }
                Came::Applied
            }
            None if merged == Merged::Stale => {
                assert!(removed.is_some_and(|(version, _)| version > p.version), "{p:?}");
                assert_eq!(after, None);
                Came::Undone
            }
            None if merged == Merged::Same => {
                assert_eq!(removed.map(|(version, _)| version), Some(p.version), "{p:?}");
                assert_eq!(after, None);
                Came::Same
            }
            _ => {
                assert_eq!(merged, Merged::Applied, "{p:?}");
                let kept = |(_, at): (_, Time)| to.now < at + TTL;
                let later = removed.filter(|r| kept(*r) && r.0 > p.version);
                assert!(before.is_some() || later.is_none(), "{p:?} undid {later:?}");
                let is = after.map(|a| (a.target, a.version, a.last));
                assert_eq!(is, target.map(|t| (t, p.version, false)), "{p:?}");
                Came::Applied
            }
        };
        if merged != Merged::Stale {
            self.note(to.now, &p);
        }
        Some(came)
    }
}
