//! The affinity table: bindings, the claims on them, and their expiry.
//!
//! One entry per session that is bound or about to be. Every idle binding is on one list in the order
//! in which it will expire: the idle time-to-live is the same for all, so a binding that starts to
//! idle goes to the end and nothing is ever sorted. A binding that is in use stays where it stood; the
//! sweep takes it off when it meets it there, and its last lease puts it back at the end. So expiry
//! costs O(1) for each binding that idles, and no more at once than the caller allows (R14); and the
//! longest-idle binding is the first that is not in use (R15).

use super::entry::{Entry, NONE, Slab, flag};
use super::merge::What;
use super::outbox::Outbox;
use super::outcome::Counters;
use super::quota::{NOBODY, Seats};
use super::version::{Clock, Version};
use crate::ids::{SessionKey, Target, WorkerId};
use crate::keys::Keys;
use crate::settings::OnFull;
use crate::time::Time;
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::time::Duration;

/// Entries that a full table looks at for one that is due, before it says that it is full.
pub(super) const SWEEP_WHEN_FULL: usize = 64;
/// Entries in use that the search for the longest-idle one steps over at most. They leave the list, so
/// the next search goes on behind them.
const SEARCH: usize = 1024;
/// Claims on one session at once that can be counted, whatever `max_parallel` says.
pub const CLAIMS_MOST: u32 = 60_000;

/// Workers at which the number of sessions has changed that are remembered one by one.
const CHANGED: usize = 31;

/// What one partition's table goes by.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Idle time-to-live of a binding.
    pub ttl: Duration,
    /// Bindings at most.
    pub max_sessions: usize,
    /// What happens to a new session then (R15).
    pub on_full: OnFull,
    /// Holds and leases on one session at most; 0: [`CLAIMS_MOST`] (R27).
    pub max_parallel: u32,
    /// Whether other routers hear of its bindings (R23).
    pub shared: bool,
}

/// One binding as the admin API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session.
    pub key: SessionKey,
    /// Where it lives.
    pub target: Target,
    /// Leases and bound holds.
    pub leases: u32,
    /// How long it has been idle; zero while it is in use.
    pub idle: Duration,
    /// Its version.
    pub version: Version,
    /// Its final turn has been committed: it goes with its last lease (R19).
    pub last: bool,
}

/// The table of one partition.
#[derive(Debug)]
pub struct Table {
    pub(super) rules: Rules,
    pub(super) entries: Slab,
    pub(super) keys: Keys,
    /// Bindings per worker; looked up, never walked.
    pub(super) per_worker: HashMap<WorkerId, u32, FixedState>,
    /// Workers of whom that has changed; more than [`CHANGED`]: it may be any.
    changed: SmallVec<[WorkerId; CHANGED + 1]>,
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) bound: usize,
    pub(super) removed: usize,
    /// Bindings per tenant that has a quota.
    pub(super) seats: Seats,
    /// Leases and bound holds, those of dropped and replaced bindings included.
    pub(super) leases: usize,
    /// When the last binding began to idle.
    pub(super) latest: Time,
    pub(super) clock: Clock,
    pub(super) counters: Counters,
    pub(super) outbox: Outbox,
    /// Restored and not yet on the list.
    pub(super) restored: Vec<(Time, u32)>,
}

impl Table {
    /// An empty table of router number `writer`.
    #[must_use]
    pub fn new(rules: Rules, writer: u32) -> Self {
        Self {
            rules,
            entries: Slab::default(),
            keys: Keys::new(),
            per_worker: HashMap::default(),
            changed: SmallVec::new(),
            first: NONE,
            last: NONE,
            bound: 0,
            removed: 0,
            seats: Seats::default(),
            leases: 0,
            latest: Time::ZERO,
            clock: Clock::new(writer),
            counters: Counters::default(),
            outbox: Outbox::default(),
            restored: Vec::new(),
        }
    }

    /// Sessions that are bound.
    #[must_use]
    pub fn bindings(&self) -> usize {
        self.bound
    }

    /// Leases and bound holds, whether or not their binding still stands.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.leases
    }

    /// How many sessions live at `worker`.
    #[must_use]
    pub fn bindings_of(&self, worker: WorkerId) -> u32 {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }

    /// The workers at which more or fewer sessions live than when [`Self::counted`] was called last; `None`: it may be
    /// any.
    pub(crate) fn changed(&self) -> Option<&[WorkerId]> {
        (self.changed.len() <= CHANGED).then_some(&self.changed)
    }

    /// Whoever wants to know how many sessions live where has seen it.
    pub(crate) fn counted(&mut self) {
        self.changed.clear();
    }

    fn note_changed(&mut self, worker: WorkerId) {
        if self.changed.len() <= CHANGED && self.changed.last() != Some(&worker) {
            self.changed.push(worker);
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.bytes() + self.keys.bytes() + self.seats.bytes()
    }

    /// One session, if it is bound and not yet past its idle time.
    #[must_use]
    pub fn get(&self, now: Time, key: SessionKey) -> Option<SessionView> {
        self.view(now, self.entries.get(self.find(key)?)?)
    }

    /// Where the first turn of an unbound session is about to run.
    #[must_use]
    pub fn tentative(&self, key: SessionKey) -> Option<Target> {
        self.entries.get(self.find(key)?)?.tentative()
    }

    /// Holds and leases on a session.
    #[must_use]
    pub fn claims(&self, key: SessionKey) -> u32 {
        self.find(key).and_then(|slot| self.entries.get(slot)).map_or(0, Entry::claims)
    }

    /// Whether one more claim on `key` would be one too many (R27). `departed`: its binding has departed,
    /// and leases on that don't count.
    #[must_use]
    pub fn is_hot(&self, key: SessionKey, departed: bool) -> bool {
        let entry = self.find(key).and_then(|slot| self.entries.get(slot));
        let counts = |e: &Entry| e.claims() - if departed { u32::from(e.leases) } else { 0 };
        entry.map_or(0, counts) >= self.most_claims()
    }

    /// Whether a new session would find room (R15).
    pub(super) fn would_have_room(&self, now: Time) -> bool {
        self.rules.on_full == OnFull::EvictIdle
            || self.is_below_most()
            || self.due_of(now, |_| true) > 0
    }

    pub(super) fn most_claims(&self) -> u32 {
        match self.rules.max_parallel {
            0 => CLAIMS_MOST,
            most => most.min(CLAIMS_MOST),
        }
    }

    /// The bound sessions among the next `most` entries from `*cursor` on, in the table's own order,
    /// into `out`. False: there are no more. Entries never move: what is bound throughout a walk is met
    /// once.
    pub fn walk(
        &self,
        now: Time,
        cursor: &mut u32,
        most: u32,
        mut out: impl FnMut(SessionView),
    ) -> bool {
        let end = self.entries.end().min(cursor.saturating_add(most));
        for slot in *cursor..end {
            if let Some(view) = self.entries.get(slot).and_then(|e| self.view(now, e)) {
                out(view);
            }
        }
        *cursor = end;
        end < self.entries.end()
    }

    fn view(&self, now: Time, entry: &Entry) -> Option<SessionView> {
        let target = entry.bound()?;
        let idle = if entry.pinned() { Duration::ZERO } else { now.since(entry.idle_since) };
        (!self.expired(now, entry)).then(|| SessionView {
            key: entry.key(),
            target,
            leases: u32::from(entry.leases) + u32::from(entry.bound_holds),
            idle,
            version: entry.version(),
            last: entry.is(flag::LAST),
        })
    }

    /// Removes a binding at once; running requests keep their streams. False if it wasn't bound.
    pub fn unbind(&mut self, now: Time, key: SessionKey) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.drop_if_expired(now, slot);
        let bound = self.remove_binding(now, slot);
        self.drop_entry_if_unused(slot);
        bound
    }

    /// Drops bindings that are past their idle time, at most `most` of them (R14).
    pub fn expire(&mut self, now: Time, most: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..most {
            let slot = self.first;
            let Some(entry) = self.entries.get(slot) else { break };
            if now < entry.idle_since + self.rules.ttl {
                break;
            }
            if entry.pinned() {
                self.unlink(slot);
                continue;
            }
            if self.forget_removed(slot) {
                self.drop_entry_if_unused(slot);
                continue;
            }
            self.drop_binding(slot);
            self.drop_entry_if_unused(slot);
            self.counters.expired += 1;
            dropped += 1;
        }
        dropped
    }

    /// When [`Self::expire`] has something to do next.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Time> {
        Some(self.entries.get(self.first)?.idle_since + self.rules.ttl)
    }

    /// Whether a binding is past its idle time.
    pub(super) fn expired(&self, now: Time, entry: &Entry) -> bool {
        !entry.pinned() && now >= entry.idle_since + self.rules.ttl
    }

    pub(super) fn find(&self, key: SessionKey) -> Option<u32> {
        self.keys.find(key.0, |slot| self.entries[slot].key() == key)
    }

    /// A new entry without a binding; `None` when there can't be one.
    pub(super) fn create(&mut self, key: SessionKey) -> Option<u32> {
        let slot = self.entries.insert(key)?;
        if self.keys.insert(key.0, slot) {
            return Some(slot);
        }
        self.entries.remove(slot);
        None
    }

    /// Whether there is room for one more binding, now or by what is due.
    pub(super) fn has_room(&mut self, now: Time) -> bool {
        if self.bound >= self.rules.max_sessions {
            // What is due may stand behind what is in use.
            self.expire(now, SWEEP_WHEN_FULL);
        }
        self.is_below_most()
    }

    /// Whether there is room for one more binding as it is.
    pub(super) fn is_below_most(&self) -> bool {
        self.bound < self.rules.max_sessions
    }

    /// Makes room for one more binding, if need be and if the rules allow (R15).
    pub(super) fn make_room(&mut self, now: Time) -> bool {
        self.has_room(now) || (self.rules.on_full == OnFull::EvictIdle && self.evict_idle())
    }

    /// Drops the longest-idle binding that has no lease.
    fn evict_idle(&mut self) -> bool {
        for _ in 0..SEARCH {
            let slot = self.first;
            let Some(entry) = self.entries.get(slot) else { return false };
            if entry.pinned() {
                self.unlink(slot);
            } else if self.forget_removed(slot) {
                self.drop_entry_if_unused(slot);
            } else {
                self.drop_binding(slot);
                self.drop_entry_if_unused(slot);
                self.counters.evicted += 1;
                return true;
            }
        }
        false
    }

    /// Binds an entry to `target`, replacing what it was bound to, without any claim on it and not on
    /// the list; gives the binding's epoch.
    pub(super) fn bind(&mut self, now: Time, slot: u32, target: Target, version: Version) -> u32 {
        self.drop_binding(slot);
        self.forget_removed(slot);
        let entry = &mut self.entries[slot];
        entry.set(flag::TENTATIVE | flag::LOST | flag::LAST, false);
        entry.set(flag::BOUND, true);
        entry.set_target(target);
        entry.set_version(version);
        (entry.idle_since, entry.spills) = (now, 0);
        entry.epoch = entry.epoch.wrapping_add(1);
        let epoch = entry.epoch;
        self.bound += 1;
        *self.per_worker.entry(target.worker).or_default() += 1;
        self.note_changed(target.worker);
        epoch
    }

    /// Whoever holds or leases it goes on without it. False if there was none.
    pub(super) fn drop_binding(&mut self, slot: u32) -> bool {
        let Some(target) = self.entries[slot].bound() else { return false };
        self.unlink(slot);
        let entry = &mut self.entries[slot];
        entry.set(flag::BOUND | flag::LAST, false);
        entry.other_holds += entry.bound_holds;
        (entry.bound_holds, entry.leases, entry.spills) = (0, 0, 0);
        let tenant = std::mem::replace(&mut entry.tenant, NOBODY);
        // Whatever named it names nothing from now on.
        entry.epoch = entry.epoch.wrapping_add(1);
        self.bound -= 1;
        self.seats.take_off(tenant);
        self.note_changed(target.worker);
        if let Some(n) = self.per_worker.get_mut(&target.worker) {
            *n -= 1;
            if *n == 0 {
                self.per_worker.remove(&target.worker);
            }
        }
        true
    }

    /// Drops a binding for good: its removal is a version too (R23). False if there was none.
    pub(super) fn remove_binding(&mut self, now: Time, slot: u32) -> bool {
        if !self.drop_binding(slot) {
            return false;
        }
        if self.rules.shared {
            let version = self.clock.next(now);
            self.publish(now, self.entries[slot].key(), version, What::Removed);
            self.keep_removed(now, slot, version);
        }
        true
    }

    /// Keeps the version of a removal for a time-to-live, as long as there is room for that.
    pub(super) fn keep_removed(&mut self, now: Time, slot: u32, version: Version) {
        if self.removed < self.rules.max_sessions {
            self.removed += 1;
            self.latest = self.latest.max(now);
            let entry = &mut self.entries[slot];
            entry.set(flag::REMOVED, true);
            entry.set_version(version);
            entry.idle_since = self.latest;
            self.link_last(slot);
        }
    }

    fn forget_removed(&mut self, slot: u32) -> bool {
        let removed = self.entries[slot].is(flag::REMOVED);
        if removed {
            self.entries[slot].set(flag::REMOVED, false);
            self.unlink(slot);
            self.removed -= 1;
        }
        removed
    }

    /// A binding past its idle time is gone for whoever looks at it, swept or not (R14).
    pub(super) fn drop_if_expired(&mut self, now: Time, slot: u32) {
        let entry = &self.entries[slot];
        if entry.is(flag::BOUND) && self.expired(now, entry) {
            self.drop_binding(slot);
            self.counters.expired += 1;
        }
    }

    /// The same; true if nothing is left of its entry.
    pub(super) fn idled_out(&mut self, now: Time, slot: u32) -> bool {
        self.drop_if_expired(now, slot);
        self.drop_entry_if_unused(slot);
        self.entries.get(slot).is_none()
    }

    pub(super) fn drop_entry_if_unused(&mut self, slot: u32) {
        let entry = &self.entries[slot];
        if !entry.needed() {
            let key = entry.key();
            self.keys.remove(key.0, slot);
            self.entries.remove(slot);
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
