//! What must always be true of a table. Tests look after each step; debug builds after each call at first, and at one
//! in 64 later.

use super::entry::{NONE, flag};
use super::quota::NOBODY;
use super::table::Table;
use crate::time::Time;

impl Table {
    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        assert!(self.bound <= self.rules.max_sessions, "the table has outgrown its bound");
        assert!(self.removed <= self.rules.max_sessions, "more removals than bindings may be");
        assert_eq!(self.entries.len(), self.keys.len(), "keys and entries disagree");
        self.keys.check(|slot| self.entries.get(slot).map(|e| e.key().0));
        let (mut bound, mut removed, mut pins, mut linked) = (0, 0, 0, 0);
        for e in (0..self.entries.end()).filter_map(|slot| self.entries.get(slot)) {
            assert!(e.needed(), "an entry that nobody needs");
            let kinds = [flag::BOUND, flag::TENTATIVE, flag::REMOVED].map(|f| e.is(f));
            assert!(!(kinds[0] && (kinds[1] || kinds[2])), "bound and something else at once");
            assert!(kinds[0] || kinds[2] || !e.is(flag::LINKED), "listed, with nothing to expire");
            assert!(kinds[0] || !e.is(flag::LAST), "the last turn of nothing");
            bound += usize::from(kinds[0]);
            removed += usize::from(kinds[2]);
            linked += usize::from(e.is(flag::LINKED));
            pins += usize::from(e.leases) + usize::from(e.bound_holds);
            if kinds[0] {
                let listed = e.pinned() || e.is(flag::LINKED) || !self.restored.is_empty();
                assert!(listed, "an idle binding that would never expire");
                assert!(e.pinned() || !e.is(flag::LAST), "a binding that should have gone");
            } else {
                assert!(!e.pinned(), "a lease on nothing");
                assert_eq!(e.tenant, NOBODY, "somebody's binding that isn't there");
            }
        }
        assert_eq!((bound, removed), (self.bound, self.removed), "bindings and removals");
        assert_eq!(
            bound,
            self.per_worker.values().map(|n| *n as usize).sum::<usize>(),
            "bindings by worker"
        );
        let all = (0..self.entries.end()).filter_map(|slot| self.entries.get(slot));
        self.seats.check(all.map(|e| e.tenant));
        assert!(pins <= self.leases, "more pins than leases");
        let (mut at, mut before, mut seen, mut since) = (self.first, NONE, 0, Time::ZERO);
        while at != NONE {
            let e = &self.entries[at];
            assert!(e.is(flag::LINKED) && e.before == before, "the idle list is torn");
            assert!(e.idle_since >= since, "the idle list is out of order");
            (before, since, at) = (at, e.idle_since, e.after);
            seen += 1;
        }
        assert_eq!((seen, before), (linked, self.last), "the idle list's length and end");
    }
}
