//! The sessions of one partition in the plainest form: what the storm holds in its own hands, and what
//! the contract says that is worth. A binding that has idled out is simply not there.

use homing_core::SelectionCore;
use homing_core::affinity::version::Version;
use homing_core::affinity::{MoveReason, Outcome};
use homing_core::ids::{PartitionId, SessionKey, Target};
use homing_core::settings::OnFull;
use homing_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One binding, as long as it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) target: Target,
    /// As the core showed it right after it was made.
    pub(super) version: Version,
    /// Which one: no two have the same.
    pub(super) number: u64,
    pub(super) leases: u32,
    /// Claims on it that are not leases yet.
    pub(super) holds: u32,
    /// When it was used last.
    pub(super) since: Time,
    /// Its final turn has been committed (R19).
    pub(super) last: bool,
    /// Turns in a row that were served elsewhere (R07).
    pub(super) spills: u8,
}

impl Binding {
    pub(super) fn idle(&self) -> bool {
        self.leases + self.holds == 0
    }
}

/// A request's claim on a session, before its worker has begun to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// The binding that it is on.
    pub(super) on: Option<Binding>,
    /// Its session was bound when the request came, and that binding is gone.
    pub(super) had: bool,
}

#[derive(Default)]
pub(super) struct Shadow {
    ttl: Duration,
    pub(super) bound: BTreeMap<SessionKey, Binding>,
    /// Holds of each session, of whatever kind.
    pub(super) holds: BTreeMap<SessionKey, u32>,
    /// Where a first turn has selected (R04).
    pub(super) tentative: BTreeMap<SessionKey, Target>,
    /// A departure took their binding, and requests of that time are under way.
    pub(super) lost: BTreeSet<SessionKey>,
    /// When something began to idle last: clocks of different threads differ a little.
    latest: Time,
    numbers: u64,
    pub(super) outcomes: [u64; Outcome::COUNT],
    pub(super) moves: [u64; MoveReason::COUNT],
    /// How often a request found the table full.
    pub(super) full: u64,
    pub(super) evicted: u64,
}

impl Shadow {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// What has idled out by now is gone (R14).
    pub(super) fn sweep(&mut self, now: Time) {
        let ttl = self.ttl;
        self.bound.retain(|_, b| !b.idle() || now < b.since + ttl);
        let keys: Vec<_> = self.holds.keys().copied().collect();
        keys.into_iter().for_each(|key| self.tidy(key));
    }

    pub(super) fn get(&self, now: Time, key: SessionKey) -> Option<Binding> {
        self.bound.get(&key).filter(|b| !b.idle() || now < b.since + self.ttl).copied()
    }

    /// Holds and leases, which R27 bounds.
    pub(super) fn claims(&self, key: SessionKey) -> u32 {
        let leases = self.bound.get(&key).map_or(0, |b| b.leases);
        leases + self.holds.get(&key).copied().unwrap_or(0)
    }

    /// Leases and holds of bindings that stand.
    pub(super) fn on(&mut self, key: SessionKey, number: u64) -> Option<&mut Binding> {
        self.bound.get_mut(&key).filter(|b| b.number == number)
    }

    /// A request finds that its session's home has departed (R07).
    pub(super) fn depart(&mut self, key: SessionKey) {
        self.bound.remove(&key);
        self.lost.insert(key);
    }

    /// A request is granted `target`, with a hold.
    pub(super) fn hold(&mut self, key: SessionKey, hold: &Hold, target: Target) {
        *self.holds.entry(key).or_default() += 1;
        match hold.on {
            Some(binding) => self.on(key, binding.number).unwrap().holds += 1,
            None => _ = self.tentative.insert(key, target),
        }
    }

    /// What is only of holds goes with the last of them.
    pub(super) fn tidy(&mut self, key: SessionKey) {
        if self.holds.get(&key).is_none_or(|n| *n == 0) {
            self.holds.remove(&key);
            self.tentative.remove(&key);
            self.lost.remove(&key);
        }
    }

    /// The claim ends and becomes nothing of its own.
    fn let_go(&mut self, key: SessionKey, hold: &Hold) {
        *self.holds.get_mut(&key).unwrap() -= 1;
        if let Some(b) = hold.on.and_then(|on| self.on(key, on.number)) {
            b.holds -= 1;
        }
    }

    /// A hold ends without a lease. `dispatched`: its session's idle time starts anew (R12).
    pub(super) fn release(&mut self, now: Time, key: SessionKey, hold: &Hold, dispatched: bool) {
        self.let_go(key, hold);
        if let Some(on) = hold.on {
            self.used(now, key, on.number, dispatched);
        }
        self.tidy(key);
    }

    /// One claim on a binding less: the last of a session that has ended takes it along (R13, R19).
    fn used(&mut self, now: Time, key: SessionKey, number: u64, refresh: bool) {
        let latest = self.latest.max(now);
        let Some(b) = self.on(key, number) else { return };
        if b.idle() && b.last {
            self.bound.remove(&key);
        } else if refresh {
            b.since = latest;
            self.latest = latest;
        }
    }

    /// A hold becomes a lease on the binding that stands; which one.
    pub(super) fn lease(&mut self, key: SessionKey, hold: &Hold, last: bool) -> u64 {
        self.let_go(key, hold);
        let b = self.bound.get_mut(&key).unwrap();
        b.leases += 1;
        b.last |= last;
        b.number
    }

    /// A session is bound, anew or elsewhere.
    pub(super) fn bind(&mut self, now: Time, key: SessionKey, target: Target, version: Version) {
        self.numbers += 1;
        let number = self.numbers;
        let (leases, holds, spills) = (0, 0, 0);
        // A later turn doesn't clear the mark, wherever it runs (R19).
        let last = self.bound.get(&key).is_some_and(|b| b.last);
        let b = Binding { target, version, number, leases, holds, since: now, last, spills };
        self.bound.insert(key, b);
        self.tentative.remove(&key);
        self.lost.remove(&key);
    }

    /// A stream has ended.
    pub(super) fn end(&mut self, now: Time, key: SessionKey, number: u64) {
        if let Some(b) = self.on(key, number) {
            b.leases -= 1;
            self.used(now, key, number, true);
        }
    }

    /// A group ends with its parent's session (R19).
    pub(super) fn end_group(&mut self, key: SessionKey) {
        match self.bound.get_mut(&key) {
            Some(b) if b.idle() => _ = self.bound.remove(&key),
            Some(b) => b.last = true,
            None => {}
        }
    }

    /// Whether one more binding finds room (R15).
    pub(super) fn has_room(&self, max_sessions: usize, on_full: OnFull) -> bool {
        let evictable = || self.bound.values().any(Binding::idle);
        self.bound.len() < max_sessions || (on_full == OnFull::EvictIdle && evictable())
    }

    /// One binding made room: the longest-idle one, which is not there any more. Nor may the group be
    /// that ended with the same turn.
    pub(super) fn evict(
        &mut self,
        core: &SelectionCore,
        now: Time,
        p: PartitionId,
        ends: Option<SessionKey>,
    ) {
        let idle = || self.bound.iter().filter(|(_, b)| b.idle());
        let mut gone: Vec<_> =
            idle().filter(|(key, _)| core.session(now, p, **key).is_none()).collect();
        if gone.len() > 1 {
            gone.retain(|(key, _)| Some(**key) != ends);
        }
        let [(key, evicted)] = gone[..] else { panic!("{} made room for one", gone.len()) };
        assert!(idle().all(|(_, b)| b.since >= evicted.since), "R15: not the longest-idle one");
        let key = *key;
        self.bound.remove(&key);
        self.evicted += 1;
    }

    /// The core shows each session as it must be.
    pub(super) fn agree(
        &self,
        core: &SelectionCore,
        now: Time,
        p: PartitionId,
        keys: &[SessionKey],
    ) {
        for key in keys {
            let shown = core.session(now, p, *key);
            let bound = self.get(now, *key);
            let want = bound.map(|b| {
                let idle = if b.idle() { now.since(b.since) } else { Duration::ZERO };
                (b.target, b.version, b.leases + b.holds, idle, b.last)
            });
            let shown = shown.map(|v| (v.target, v.version, v.leases, v.idle, v.last));
            assert_eq!(shown, want, "{key:?}");
        }
    }
}
