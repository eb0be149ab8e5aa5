//! Bindings shared between routers (R23): what others bound comes in, what was bound here goes out.
//!
//! A binding is a last-writer-wins register: the higher version wins, and a removal is a version too.
//! So merging is idempotent and commutative, and a lost, late, doubled or reordered update does no
//! harm: once updates flow, all routers hold what was written last. Only the idle time is no part of
//! that: it starts anew when an update tells of a later use.

use super::entry::flag;
use super::table::Table;
use super::version::Version;
use crate::ids::{SessionKey, Target};
use crate::time::Time;

/// What a session's register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It lives there.
    Bound(Target),
    /// It lives nowhere.
    Removed,
}

/// One update of one session's register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The session.
    pub key: SessionKey,
    /// Of the write.
    pub version: Version,
    /// What was written.
    pub what: What,
    /// When the session was used last, by the sender's clock.
    pub used: Time,
}

/// What became of another router's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It is what the table holds now.
    Applied,
    /// The table held that already; its idle time may have started anew.
    Same,
    /// The table holds something later.
    Stale,
    /// Its version can't be true: no clock has got so far.
    Untrue,
    /// It has idled out on its way.
    Expired,
    /// No room (R15): nobody waits for it, so nothing is evicted either.
    Full,
}

impl Table {
    /// A version that was written elsewhere, which later ones of ours must surpass.
    pub(crate) fn saw(&mut self, now: Time, version: Version) {
        // One that can't be true is passed over.
        let _ = self.clock.saw(now, version);
    }

    /// The version of what is about to be written.
    pub(crate) fn next_version(&mut self, now: Time) -> Version {
        self.clock.next(now)
    }

    /// Takes in another router's update. Whether its target is known is the caller's to know.
    pub fn merge(&mut self, now: Time, update: Update) -> Merged {
        let Update { key, version, what, used } = update;
        if !self.clock.saw(now, version) {
            return Merged::Untrue;
        }
        if now >= used + self.rules.ttl {
            return Merged::Expired;
        }
        // What is due goes before anything is looked for: the sweep may take this very entry.
        let _ = matches!(what, What::Bound(_)) && self.has_room(now);
        let slot = match (self.find(key), what) {
            (Some(slot), _) => slot,
            (None, What::Bound(_)) if !self.is_below_most() => return Merged::Full,
            (None, _) => match self.create(key) {
                Some(slot) => slot,
                None => return Merged::Full,
            },
        };
        self.drop_if_expired(now, slot);
        let merged = self.merge_into(now, slot, version, what, used);
        self.drop_entry_if_unused(slot);
        merged
    }

    fn merge_into(
        &mut self,
        now: Time,
        slot: u32,
        version: Version,
        what: What,
        used: Time,
    ) -> Merged {
        let entry = &mut self.entries[slot];
        let holds = entry.is(flag::BOUND) || entry.is(flag::REMOVED);
        if holds && version < entry.version() {
            self.tell_again(now, slot);
            return Merged::Stale;
        }
        let same = holds && version == entry.version();
        match what {
            // Its removal came first, and stands while leases live.
            What::Bound(_) if same && (entry.is(flag::LAST) || entry.is(flag::REMOVED)) => {
                Merged::Same
            }
            What::Bound(target) if entry.bound() == Some(target) => {
                if !same {
                    // Written again elsewhere: it goes on.
                    entry.set(flag::LAST, false);
                    entry.set_version(version);
                }
                if used > entry.idle_since {
                    self.refresh(now, slot);
                }
                if same { Merged::Same } else { Merged::Applied }
            }
            What::Bound(target) => {
                if !entry.is(flag::BOUND) && !self.is_below_most() {
                    return Merged::Full;
                }
                self.bind(now, slot, target, version);
                self.refresh(now, slot);
                Merged::Applied
            }
            What::Removed if same => Merged::Same,
            What::Removed if entry.is(flag::BOUND) && entry.pinned() => {
                entry.set(flag::LAST, true);
                entry.set_version(version);
                Merged::Applied
            }
            What::Removed => {
                self.drop_binding(slot);
                if self.entries[slot].is(flag::REMOVED) {
                    self.entries[slot].set_version(version);
                    self.refresh(now, slot);
                } else {
                    self.keep_removed(now, slot, version);
                }
                Merged::Applied
            }
        }
    }

    /// The registers among the next `most` entries from `*cursor` on that were written or used since, as updates, into
    /// `out`. False: there are no more.
    pub fn registers(
        &self,
        now: Time,
        cursor: &mut u32,
        most: u32,
        since: Time,
        mut out: impl FnMut(Update),
    ) -> bool {
        let end = self.entries.end().min(cursor.saturating_add(most));
        for entry in (*cursor..end).filter_map(|slot| self.entries.get(slot)) {
            let what = match entry.bound() {
                // What is about to go is told when it goes.
                Some(target) if !entry.is(flag::LAST) => What::Bound(target),
                None if entry.is(flag::REMOVED) => What::Removed,
                _ => continue,
            };
            let used = if entry.pinned() { now } else { entry.idle_since };
            let version = entry.version();
            let lately = used >= since || version.sequence >= since.as_micros();
            if lately {
                out(Update { key: entry.key(), version, what, used });
            }
        }
        *cursor = end;
        end < self.entries.end()
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
