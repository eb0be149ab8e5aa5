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
use std::collections::VecDeque;

/// Updates that wait to be published, at most: the oldest go first.
const OUTBOX: usize = 65_536;
/// Entries that one look for live leases passes at most.
const LOOK: u32 = 4096;

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

/// What is to be published.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    updates: VecDeque<Update>,
    /// Where the walk that tells of live leases stands, and when the next step is due.
    cursor: u32,
    due: Time,
}

impl Table {
    pub(super) fn publish(&mut self, used: Time, key: SessionKey, version: Version, what: What) {
        if !self.rules.shared {
            return;
        }
        if self.outbox.updates.len() >= OUTBOX {
            self.outbox.updates.pop_front();
            self.counters.unpublished += 1;
        }
        self.outbox.updates.push_back(Update { key, version, what, used });
    }

    /// A version that was written elsewhere, which later ones of ours must surpass.
    pub(crate) fn saw(&mut self, now: Time, version: Version) {
        // One that can't be true is passed over.
        let _ = self.clock.saw(now, version);
    }

    /// The version of what is about to be written.
    pub(crate) fn next_version(&mut self, now: Time) -> Version {
        self.clock.next(now)
    }

    /// The next update for other routers.
    pub fn poll_update(&mut self) -> Option<Update> {
        self.outbox.updates.pop_front()
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

    /// Somebody has missed what came later than what it tells, and would go on with that for as long as
    /// its sessions come: it hears it once more.
    fn tell_again(&mut self, now: Time, slot: u32) {
        let entry = &self.entries[slot];
        let what = entry.bound().map_or(What::Removed, What::Bound);
        let used = if entry.pinned() { now } else { entry.idle_since };
        // What is about to go is told when it goes.
        if !entry.is(flag::LAST) {
            self.publish(used, entry.key(), entry.version(), what);
        }
    }

    /// Tells other routers of the bindings in use, a third of the time-to-live after the last time, a
    /// part of the table at each call.
    pub fn tell(&mut self, now: Time) {
        if !self.rules.shared || now < self.outbox.due {
            return;
        }
        let end = self.entries.end();
        let to = end.min(self.outbox.cursor.saturating_add(LOOK));
        for slot in self.outbox.cursor..to {
            let Some(entry) = self.entries.get(slot) else { continue };
            let Some(target) = entry.bound() else { continue };
            if entry.leases > 0 && !entry.is(flag::LAST) {
                let (key, version) = (entry.key(), entry.version());
                self.publish(now, key, version, What::Bound(target));
            }
        }
        self.outbox.cursor = to;
        if to == end {
            (self.outbox.cursor, self.outbox.due) = (0, now + self.rules.ttl / 3);
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

    /// When [`Self::tell`] has something to do next.
    #[must_use]
    pub fn next_tell(&self) -> Option<Time> {
        (self.rules.shared && self.leases > 0).then_some(self.outbox.due)
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
