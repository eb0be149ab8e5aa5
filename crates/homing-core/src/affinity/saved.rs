//! Bindings over a restart (R25): what of a binding is kept in a file, and how it comes back.
//!
//! A walk reads a part of the table at a time, while requests go on in between: each binding is read as
//! a whole, and one that lives throughout is read once. Bindings come back in the walk's order, which is
//! not the order in which they idle, so the list is made once all are there.

use super::entry::flag;
use super::table::{SessionView, Table};
use super::version::Version;
use crate::ids::{SessionKey, Target};
use crate::time::Time;

/// One binding as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The session.
    pub key: SessionKey,
    /// Where it lives.
    pub target: Target,
    /// Its version.
    pub version: Version,
    /// Since when it idles; of one in use: when it was kept.
    pub idle_since: Time,
    /// Its final turn has been committed: with the router that held its leases it has ended.
    pub last: bool,
}

impl Kept {
    /// What is kept at `now` of a binding that is shown as `view`.
    #[must_use]
    pub fn of(now: Time, view: &SessionView) -> Self {
        let idle_since = now - view.idle;
        let SessionView { key, target, version, last, .. } = *view;
        Self { key, target, version, idle_since, last }
    }
}

impl Table {
    /// Brings a binding back, with what is left of its idle time. False: it has idled out, its session
    /// has ended, there is no room, or there is a newer one. [`Self::restored`] must follow.
    pub fn restore(&mut self, now: Time, kept: &Kept) -> bool {
        // Written by a clock that was far ahead, it would never be surpassed: it begins anew.
        let version = match self.clock.saw(now, kept.version) {
            true => kept.version,
            false => self.clock.next(now),
        };
        // A clock that was ahead when it was kept must not make it live for longer.
        let idle_since = kept.idle_since.min(now);
        let gone = kept.last || now >= idle_since + self.rules.ttl;
        let slot = match self.find(kept.key) {
            _ if gone => None,
            // Removed and bound again while it was kept, it was kept twice: the later one counts.
            Some(slot) => {
                let entry = &self.entries[slot];
                let before = entry.is(flag::BOUND) && !entry.is(flag::LINKED) && !entry.pinned();
                Some(slot).filter(|_| before && entry.version() < version)
            }
            None if self.bindings() >= self.rules.max_sessions => None,
            None => self.create(kept.key),
        };
        let Some(slot) = slot else { return false };
        self.bind(idle_since, slot, kept.target, version);
        self.restored.push((idle_since, slot));
        true
    }

    /// All that was kept is back: it begins to idle out. What was used meanwhile stands in the list already.
    pub fn restored(&mut self) {
        let mut slots = std::mem::take(&mut self.restored);
        slots.sort_unstable();
        let mut behind = self.first;
        for (since, slot) in slots {
            let entry = &self.entries[slot];
            if entry.is(flag::BOUND) && entry.idle_since == since && !entry.is(flag::LINKED) {
                while let Some(entry) = self.entries.get(behind).filter(|e| e.idle_since < since) {
                    behind = entry.after;
                }
                self.link_before(slot, behind);
                self.latest = self.latest.max(since);
            }
        }
    }
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
