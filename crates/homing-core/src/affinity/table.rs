//! The affinity table: bindings, the claims on them, and their expiry.
//!
//! One entry per session that is bound or about to be. Every live binding is on one list in the order
//! in which it will expire: the idle time-to-live is the same for all, so a binding that starts to
//! idle goes to the end and nothing is ever sorted. A binding that is in use stays where it stood; the
//! sweep takes it off when it meets it there, and its last lease puts it back at the end. So expiry
//! costs O(1) for each binding that idles, and no more at once than the caller allows (R14).

use super::version::{Clock, Version};
use crate::ids::{SessionKey, Target, WorkerId};
use crate::time::Time;
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::HashMap;
use std::time::Duration;

const NONE: usize = usize::MAX;

/// Entries that a full table looks at for one that is due, before it says that it is full.
const SWEEP_WHEN_FULL: usize = 64;

/// Where a session lives.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) target: Target,
    pub(super) version: Version,
    /// Unique for every binding ever made, so that a lease of a dropped or replaced one can't count
    /// for its successor (R13).
    pub(super) epoch: u64,
    /// Leases and bound holds.
    pub(super) pins: u32,
    /// Since when it idles; of a pinned one, when it last began to.
    pub(super) idle_since: Time,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: SessionKey,
    pub(super) binding: Option<Binding>,
    /// What an initializer has selected and not yet committed; it goes with the last hold, since the
    /// entry does.
    pub(super) tentative: Option<Target>,
    /// A departure took its binding, and nothing was bound since: whoever binds it now moves it (R07).
    pub(super) lost: bool,
    /// Uncommitted claims of every kind; they keep the entry.
    pub(super) holds: u32,
    linked: bool,
    before: usize,
    after: usize,
}

/// Why a session was bound elsewhere than before, for `affinity_moves_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveReason {
    /// The bound worker has departed.
    Departed,
    /// The bound worker failed the very request.
    Failed,
    /// A soft session went elsewhere.
    Soft,
}

impl MoveReason {
    /// Every reason, in the order of [`Counters::moves`].
    pub const ALL: [Self; 3] = [Self::Departed, Self::Failed, Self::Soft];

    /// The metric's label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Departed => "departed",
            Self::Failed => "failed",
            Self::Soft => "soft",
        }
    }
}

/// What happened in the table so far; only counted up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Sessions that found no room.
    pub full: u64,
    /// Bindings that idled out.
    pub expired: u64,
    /// Moves, by [`MoveReason`].
    pub moves: [u64; 3],
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
}

/// The table of one partition.
#[derive(Debug)]
pub struct Table {
    pub(super) entries: Slab<Entry>,
    by_key: HashMap<SessionKey, usize, FixedState>,
    /// Bindings per worker; looked up, never walked.
    per_worker: HashMap<WorkerId, usize, FixedState>,
    first: usize,
    last: usize,
    bound: usize,
    /// Leases and bound holds, those of dropped and replaced bindings included.
    pub(super) leases: usize,
    pub(super) ttl: Duration,
    pub(super) max_sessions: usize,
    next_epoch: u64,
    /// When the last binding began to idle.
    latest: Time,
    clock: Clock,
    pub(super) counters: Counters,
}

impl Table {
    /// An empty table with room for `max_sessions`.
    #[must_use]
    pub fn new(ttl: Duration, max_sessions: usize, writer: u32) -> Self {
        Self {
            entries: Slab::new(),
            by_key: HashMap::default(),
            per_worker: HashMap::default(),
            first: NONE,
            last: NONE,
            bound: 0,
            leases: 0,
            ttl,
            max_sessions,
            next_epoch: 0,
            latest: Time::ZERO,
            clock: Clock::new(writer),
            counters: Counters::default(),
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
    pub fn bindings_of(&self, worker: WorkerId) -> usize {
        self.per_worker.get(&worker).copied().unwrap_or(0)
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// One session, if it is bound and not yet past its idle time.
    #[must_use]
    pub fn get(&self, now: Time, key: SessionKey) -> Option<SessionView> {
        let entry = self.entries.get(*self.by_key.get(&key)?)?;
        self.view(now, entry)
    }

    /// Where the first turn of an unbound session is about to run.
    #[must_use]
    pub fn tentative(&self, key: SessionKey) -> Option<Target> {
        self.entries.get(self.find(key)?)?.tentative
    }

    /// The bound sessions, in the table's own order.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = SessionView> + use<'_> {
        self.entries.iter().filter_map(move |(_, e)| self.view(now, e))
    }

    fn view(&self, now: Time, entry: &Entry) -> Option<SessionView> {
        let b = entry.binding.as_ref()?;
        (!self.expired(now, b)).then(|| SessionView {
            key: entry.key,
            target: b.target,
            leases: b.pins,
            idle: if b.pins > 0 { Duration::ZERO } else { now.since(b.idle_since) },
            version: b.version,
        })
    }

    /// Removes a binding at once; running requests keep their streams. False if it wasn't bound.
    pub fn unbind(&mut self, now: Time, key: SessionKey) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.drop_if_expired(now, slot);
        let bound = self.drop_binding(slot);
        self.drop_entry_if_unused(slot);
        bound
    }

    /// Drops bindings that are past their idle time, at most `most` of them (R14).
    pub fn expire(&mut self, now: Time, most: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..most {
            let slot = self.first;
            let Some(b) = self.entries.get(slot).and_then(|e| e.binding.as_ref()) else { break };
            if now < b.idle_since + self.ttl {
                break;
            }
            if b.pins > 0 {
                self.unlink(slot);
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
        let b = self.entries.get(self.first)?.binding.as_ref()?;
        Some(b.idle_since + self.ttl)
    }

    pub(super) fn expired(&self, now: Time, b: &Binding) -> bool {
        b.pins == 0 && now >= b.idle_since + self.ttl
    }

    pub(super) fn find(&self, key: SessionKey) -> Option<usize> {
        self.by_key.get(&key).copied()
    }

    /// A new entry without a binding; `None` when the table is full.
    pub(super) fn create(&mut self, now: Time, key: SessionKey) -> Option<usize> {
        if self.entries.len() >= self.max_sessions {
            // What is due may stand behind what is in use.
            self.expire(now, SWEEP_WHEN_FULL);
        }
        if self.entries.len() >= self.max_sessions {
            return None;
        }
        let slot = self.entries.insert(Entry {
            key,
            binding: None,
            tentative: None,
            lost: false,
            holds: 0,
            linked: false,
            before: NONE,
            after: NONE,
        });
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// Binds an entry to `target`, replacing what it was bound to; it has one pin.
    pub(super) fn bind(&mut self, now: Time, slot: usize, target: Target) -> u64 {
        self.drop_binding(slot);
        let version = self.clock.next(now);
        self.next_epoch += 1;
        let epoch = self.next_epoch;
        let entry = &mut self.entries[slot];
        (entry.tentative, entry.lost) = (None, false);
        entry.binding = Some(Binding { target, version, epoch, pins: 1, idle_since: now });
        self.bound += 1;
        *self.per_worker.entry(target.worker).or_default() += 1;
        self.leases += 1;
        epoch
    }

    /// False if there was none.
    pub(super) fn drop_binding(&mut self, slot: usize) -> bool {
        self.unlink(slot);
        let Some(b) = self.entries[slot].binding.take() else { return false };
        self.bound -= 1;
        if let Some(n) = self.per_worker.get_mut(&b.target.worker) {
            *n -= 1;
            if *n == 0 {
                self.per_worker.remove(&b.target.worker);
            }
        }
        true
    }

    /// A binding past its idle time is gone for whoever looks at it, swept or not (R14).
    pub(super) fn drop_if_expired(&mut self, now: Time, slot: usize) {
        if self.entries[slot].binding.as_ref().is_some_and(|b| self.expired(now, b)) {
            self.drop_binding(slot);
            self.counters.expired += 1;
        }
    }

    pub(super) fn drop_entry_if_unused(&mut self, slot: usize) {
        let entry = &self.entries[slot];
        if entry.holds == 0 && entry.binding.is_none() {
            let key = entry.key;
            self.entries.remove(slot);
            self.by_key.remove(&key);
        }
    }

    /// One more lease or bound hold on the entry's binding.
    pub(super) fn pin(&mut self, slot: usize) -> Option<u64> {
        let b = self.entries[slot].binding.as_mut()?;
        b.pins += 1;
        let epoch = b.epoch;
        self.leases += 1;
        Some(epoch)
    }

    /// One lease or bound hold less. With `refresh` the idle time starts anew when it was the last.
    pub(super) fn unpin(&mut self, now: Time, slot: usize, epoch: u64, refresh: bool) {
        self.leases -= 1;
        // The slot may have been given to another session since: the epoch tells.
        let Some(b) = self.entries.get_mut(slot).and_then(|e| e.binding.as_mut()) else { return };
        if b.epoch != epoch {
            return;
        }
        b.pins -= 1;
        let idle = b.pins == 0;
        if refresh {
            // Even while others still hold it: should they end without a refresh, this end counts.
            // Callers read the clock before they have the lock: a step back must not disorder the list.
            self.latest = self.latest.max(now);
            b.idle_since = self.latest;
            self.unlink(slot);
            self.link_last(slot);
        } else if idle && !self.entries[slot].linked {
            // Its idle time passed while it was pinned, and the sweep has met it: it is due.
            self.drop_binding(slot);
            self.counters.expired += 1;
            self.drop_entry_if_unused(slot);
        }
    }

    fn link_last(&mut self, slot: usize) {
        let last = self.last;
        let entry = &mut self.entries[slot];
        (entry.linked, entry.before, entry.after) = (true, last, NONE);
        match self.entries.get_mut(last) {
            Some(before) => before.after = slot,
            None => self.first = slot,
        }
        self.last = slot;
    }

    fn unlink(&mut self, slot: usize) {
        let entry = &mut self.entries[slot];
        if !entry.linked {
            return;
        }
        entry.linked = false;
        let (before, after) = (entry.before, entry.after);
        match self.entries.get_mut(before) {
            Some(e) => e.after = after,
            None => self.first = after,
        }
        match self.entries.get_mut(after) {
            Some(e) => e.before = before,
            None => self.last = before,
        }
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        assert!(self.entries.len() <= self.max_sessions, "the table has outgrown its bound");
        assert_eq!(self.entries.len(), self.by_key.len(), "keys and entries disagree");
        let (mut bound, mut pins, mut linked) = (0, 0, 0);
        for (slot, e) in &self.entries {
            assert_eq!(self.by_key.get(&e.key), Some(&slot), "a key leads elsewhere");
            assert!(e.holds > 0 || e.binding.is_some(), "an entry that nobody needs");
            assert!(e.binding.is_some() || !e.linked, "an unbound entry on the idle list");
            assert!(e.binding.is_none() || e.tentative.is_none(), "bound and tentative at once");
            if let Some(b) = &e.binding {
                bound += 1;
                pins += b.pins as usize;
                assert!(b.pins > 0 || e.linked, "an idle binding that would never expire");
            }
            linked += usize::from(e.linked);
        }
        assert_eq!(bound, self.bound, "count of bindings");
        assert!(pins <= self.leases, "more pins than leases");
        let (mut at, mut before, mut seen, mut since) = (self.first, NONE, 0, Time::ZERO);
        while at != NONE {
            let e = &self.entries[at];
            assert!(e.linked && e.before == before, "the idle list is torn");
            let idle = e.binding.as_ref().map_or(Time::ZERO, |b| b.idle_since);
            assert!(idle >= since, "the idle list is out of order");
            (before, since, at) = (at, idle, e.after);
            seen += 1;
        }
        assert_eq!((seen, before), (linked, self.last), "the idle list's length and end");
    }
}
