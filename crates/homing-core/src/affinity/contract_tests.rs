//! The table against the contract, written down once more as plainly as it can be: random histories of
//! claims on a few sessions, in a table that is often full, under workers that come and go.
//!
//! The model forgets nothing cleverly: it has a map of sessions, expires all that is due at each step,
//! and walks whatever it must. What the table does lazily is compared after a full sweep.

use super::*;
use crate::affinity::outcome::Counters;
use crate::affinity::quota::Quota;
use crate::affinity::version::Version;
use crate::affinity::{Rules, Steer};
use crate::ids::{DpRank, WorkerId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const TTL: Duration = Duration::from_micros(100);
const KEYS: u8 = 5;
const WORKERS: u32 = 4;

// === the model ===

#[derive(Default)]
struct Model {
    max: usize,
    evicts: bool,
    max_parallel: u32,
    /// What each tenant may have; sessions are of one or the other, by their number.
    quotas: [Option<u32>; 2],
    sessions: BTreeMap<u8, Session>,
    /// When a binding began to idle last, by the latest clock that was read.
    latest: Time,
    serial: u64,
    counters: Counters,
}

#[derive(Default)]
struct Session {
    bound: Option<Bound>,
    tentative: Option<Target>,
    /// A departure took its binding, and nothing was bound since.
    lost: bool,
    /// All uncommitted claims, whatever they saw.
    holds: u32,
}

#[derive(Clone, Copy)]
struct Bound {
    target: Target,
    /// Which binding it is, of all there ever were.
    serial: u64,
    leases: u32,
    /// Uncommitted claims on this very binding.
    holds: u32,
    since: Time,
    spills: u8,
    last: bool,
    /// It counts for its tenant.
    counts: bool,
}

impl Bound {
    fn idles(&self) -> bool {
        self.leases == 0 && self.holds == 0
    }
}

/// The model's hold: which binding it saw and keeps alive, or whom it joins.
#[derive(Clone, Copy)]
struct Claim {
    key: u8,
    mode: Mode,
    plan: Plan,
    home: Option<(u64, Target)>,
    joins: Option<Target>,
    had_binding: bool,
    /// The departed binding that goes when it selects.
    leaves: Option<u64>,
    quota: Option<Quota>,
}

#[derive(Debug, PartialEq, Eq)]
enum Without {
    Full,
    Surplus,
}

type World<'a> = &'a dyn Fn(Target) -> Standing;

impl Model {
    /// R14: what has idled for the whole TTL is gone; what nobody needs leaves no entry.
    fn tidy(&mut self, now: Time) {
        for s in self.sessions.values_mut() {
            if s.bound.is_some_and(|b| b.idles() && now >= b.since + TTL) {
                s.bound = None;
                self.counters.expired += 1;
            }
        }
        self.sessions.retain(|_, s| s.holds > 0 || s.bound.is_some());
    }

    fn session(&mut self, key: u8) -> &mut Session {
        self.sessions.get_mut(&key).unwrap()
    }

    fn binding(&self, key: u8) -> Option<Bound> {
        self.sessions.get(&key)?.bound
    }

    fn bindings(&self) -> usize {
        self.sessions.values().filter(|s| s.bound.is_some()).count()
    }

    /// What R27 counts.
    fn claims(&self, key: u8) -> u32 {
        let of = |s: &Session| s.holds + s.bound.map_or(0, |b| b.leases);
        self.sessions.get(&key).map_or(0, of)
    }

    fn is_hot(&self, key: u8) -> bool {
        self.max_parallel > 0 && self.claims(key) >= self.max_parallel
    }

    fn is_full(&self, key: u8) -> bool {
        let full = !self.evicts && self.bindings() >= self.max;
        (full || self.is_exhausted(self.quota(key))) && !self.sessions.contains_key(&key)
    }

    fn quota(&self, key: u8) -> Option<Quota> {
        let tenant = key % 2;
        let most = self.quotas[usize::from(tenant)]?;
        Some(Quota { tenant: u64::from(tenant), most })
    }

    /// Bindings that count for whoever this session is of.
    fn counted(&self, tenant: u64) -> usize {
        let its = self.sessions.iter().filter(|(k, _)| u64::from(*k % 2) == tenant);
        its.filter(|(_, s)| s.bound.is_some_and(|b| b.counts)).count()
    }

    fn is_exhausted(&self, quota: Option<Quota>) -> bool {
        quota.is_some_and(|quota| self.counted(quota.tenant) >= quota.most as usize)
    }

    fn resolve(
        &mut self,
        key: u8,
        mode: Mode,
        had: bool,
        world: World<'_>,
    ) -> Result<Claim, Without> {
        if self.is_full(key) {
            return Err(Without::Full);
        }
        let departed = self.binding(key).filter(|b| world(b.target) == Standing::Departed);
        let on_departed = departed.map_or(0, |b| b.leases);
        if self.max_parallel > 0 && self.claims(key) - on_departed >= self.max_parallel {
            return Err(Without::Surplus);
        }
        let s = self.sessions.entry(key).or_default();
        s.holds += 1;
        let mut home = None;
        if let Some(b) = s.bound.as_mut().filter(|_| departed.is_none()) {
            b.holds += 1;
            home = Some((b.serial, b.target));
        }
        let (joins, had_binding) = (s.tentative, had || s.lost);
        let (leaves, quota) = (departed.map(|b| b.serial), self.quota(key));
        Ok(Claim { key, mode, plan: Plan::Home, home, joins, had_binding, leaves, quota })
    }

    fn selected(&mut self, c: &mut Claim, target: Target, plan: Plan) {
        c.plan = plan;
        let s = self.session(c.key);
        if c.leaves.is_some() && s.bound.map(|b| b.serial) == c.leaves {
            (s.bound, s.lost, c.had_binding) = (None, true, true);
        }
        if s.bound.is_none() && c.home.is_none() {
            s.tentative = Some(target);
        }
    }

    /// R10.
    fn check(&self, c: &Claim, target: Target, world: World<'_>) -> Check {
        let unbound_or_elsewhere = |b: &Bound| {
            c.mode == Mode::Hard
                && !b.target.admits(target)
                && c.home.map(|h| h.0) != Some(b.serial)
                && world(b.target) != Standing::Departed
        };
        match self.sessions[&c.key].bound.filter(unbound_or_elsewhere) {
            Some(_) => Check::Again,
            None => Check::Go,
        }
    }

    /// R11, R07: the outcome, and the serial of the binding that the lease is on. Of bindings that have
    /// idled equally long any may make room: `gone` tells which did.
    fn commit(
        &mut self,
        now: Time,
        c: Claim,
        t: Target,
        last: bool,
        world: World<'_>,
        gone: &dyn Fn(u8) -> bool,
    ) -> (Outcome, u64) {
        use Outcome::{Conflict, Hit, Joined, New, Rebound, Spilled, UnboundFull};
        let away = c.home.is_some_and(|h| !h.1.admits(t));
        let s = self.session(c.key);
        let same = s.bound.is_some_and(|b| c.home.is_some_and(|h| h.0 == b.serial));
        let (outcome, moved) = match &mut s.bound {
            None if c.had_binding || away => (Rebound, Some(MoveReason::Departed)),
            None => (New, None),
            Some(b) if b.target.admits(t) => {
                b.spills = 0;
                (if c.home.is_some() { Hit } else { Joined }, None)
            }
            Some(b) if world(b.target) == Standing::Departed => {
                (Rebound, Some(MoveReason::Departed))
            }
            Some(b) => match (c.plan, c.mode) {
                (Plan::Move(reason), _) if same => (Rebound, Some(reason)),
                (_, Mode::Soft) => (Rebound, Some(MoveReason::Soft)),
                (Plan::Spill, _) if same && b.spills < 2 => {
                    b.spills += 1;
                    (Spilled, None)
                }
                (Plan::Spill, _) if same => (Rebound, Some(MoveReason::Overloaded)),
                _ => (Conflict, None),
            },
        };
        let binds = matches!(outcome, New | Rebound);
        let is_new = s.bound.is_none() && binds;
        let no_room = |m: &mut Self| m.bindings() >= m.max && !m.evict(gone);
        if is_new && (self.is_exhausted(c.quota) || no_room(self)) {
            self.counters.full += 1;
            self.release(now, c, true);
            return (UnboundFull, 0);
        }
        if outcome == Conflict {
            self.release(now, c, true);
            return (Conflict, 0);
        }
        if let Some(reason) = moved {
            self.counters.moves[reason as usize] += 1;
        }
        let serial = self.serial + 1;
        let s = self.session(c.key);
        s.holds -= 1;
        if binds {
            // A later turn doesn't clear the mark, wherever it runs.
            let (since, last) = (now, s.bound.is_some_and(|b| b.last));
            let (leases, holds, spills) = (0, 0, 0);
            let fresh =
                Bound { target: t, serial, leases, holds, since, spills, last, counts: false };
            (s.bound, s.tentative, s.lost) = (Some(fresh), None, false);
        }
        let b = s.bound.as_mut().unwrap();
        if c.home.is_some_and(|h| h.0 == b.serial) {
            b.holds -= 1;
        }
        b.leases += 1;
        b.counts |= c.quota.is_some();
        b.last |= last;
        let serial = b.serial;
        self.serial = self.serial.max(serial);
        (outcome, serial)
    }

    /// R15: the longest-idle binding that has no lease makes room.
    fn evict(&mut self, gone: &dyn Fn(u8) -> bool) -> bool {
        let idle = |s: &Session| s.bound.filter(Bound::idles).map(|b| b.since);
        let oldest = self.sessions.values().filter_map(idle).min();
        if oldest.is_none() || !self.evicts {
            return false;
        }
        let victim = self
            .sessions
            .iter_mut()
            .find(|(k, s)| s.bound.is_some() && idle(s) == oldest && gone(**k));
        victim.expect("the longest-idle binding makes room").1.bound = None;
        self.counters.evicted += 1;
        true
    }

    /// R12: a hold ends without a lease.
    fn release(&mut self, now: Time, c: Claim, refresh: bool) {
        self.session(c.key).holds -= 1;
        if let Some((serial, _)) = c.home {
            self.leave(now, c.key, serial, refresh, |b| &mut b.holds);
        }
    }

    /// R13: one claim less on a binding, which it releases into nothing if that was dropped or replaced.
    fn leave(
        &mut self,
        now: Time,
        key: u8,
        serial: u64,
        refresh: bool,
        of: impl Fn(&mut Bound) -> &mut u32,
    ) {
        let Some(s) = self.sessions.get_mut(&key) else { return };
        let Some(b) = s.bound.as_mut().filter(|b| b.serial == serial) else { return };
        *of(b) -= 1;
        if b.idles() && b.last {
            self.remove(key);
        } else if refresh {
            self.latest = self.latest.max(now);
            b.since = self.latest;
        }
    }

    /// At once; whoever holds or leases it goes on without.
    fn remove(&mut self, key: u8) -> bool {
        self.sessions.get_mut(&key).and_then(|s| s.bound.take()).is_some()
    }

    /// R19: the parent's final turn.
    fn end_group(&mut self, key: u8) {
        match self.sessions.get_mut(&key).and_then(|s| s.bound.as_mut()) {
            Some(b) if !b.idles() => b.last = true,
            _ => _ = self.remove(key),
        }
    }
}

// === what happens ===

#[derive(Clone, Copy, Debug)]
enum Op {
    Resolve {
        key: u8,
        mode: Mode,
        had_binding: bool,
        then: Then,
    },
    Check(usize, Option<Target>),
    Commit {
        claim: usize,
        at: Option<Target>,
        last: bool,
    },
    /// By a clock that was read so long ago.
    Release {
        claim: usize,
        refresh: bool,
        ago: u64,
    },
    End {
        lease: usize,
        ago: u64,
    },
    EndGroup(u8),
    Unbind(u8),
    Expire(usize),
    Pass(u64),
    /// To the moment before the next binding is due, or so much beyond that.
    PassToExpiry(u64),
    /// A tenant may have so many from now on.
    Allow(u8, Option<u32>),
    Stand(u32, Standing),
}

/// What follows in the critical section in which a session resolved.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// A target of the request's own choice, or (`None`) where it is steered. There it commits, or where
    /// the op says.
    Selects(Option<Target>, Plan),
    /// It finds nothing and leaves, to wait or refused.
    Leaves,
    /// It can be used nowhere (R07's last row).
    GivesUp,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let mode = || prop_oneof![3 => Just(Mode::Hard), 1 => Just(Mode::Soft)];
    let rank = prop_oneof![3 => Just(Some(DpRank(0))), 1 => Just(Some(DpRank(1))), 1 => Just(None)];
    let target =
        (0..WORKERS, rank).prop_map(|(w, rank)| Some(Target { worker: WorkerId(w), rank }));
    let elsewhere = target.clone();
    let elsewhere = move || prop_oneof![4 => Just(None), 1 => elsewhere.clone()];
    let target = || prop_oneof![1 => Just(None), 1 => target.clone()];
    let plan = prop_oneof![
        4 => Just(Plan::Home),
        3 => Just(Plan::Spill),
        1 => prop::sample::select(&MoveReason::ALL[..]).prop_map(Plan::Move),
    ];
    let then = prop_oneof![
        16 => (target(), plan).prop_map(|(t, plan)| Then::Selects(t, plan)),
        2 => Just(Then::Leaves),
        1 => Just(Then::GivesUp),
    ];
    let rarely = || prop::bool::weighted(0.15);
    let i = || any::<usize>();
    let ago = || prop_oneof![4 => Just(0), 1 => 1..20u64];
    let standing = prop_oneof![
        3 => Just(Standing::Live), 2 => Just(Standing::Departed), 1 => Just(Standing::Unavailable)
    ];
    let ttl = TTL.as_micros() as u64;
    let op = prop_oneof![
        8 => (0..KEYS, mode(), rarely(), then).prop_map(|(key, mode, had_binding, then)| {
            Op::Resolve { key, mode, had_binding, then }
        }),
        2 => (i(), elsewhere()).prop_map(|(i, t)| Op::Check(i, t)),
        7 => (i(), elsewhere(), rarely()).prop_map(|(claim, at, last)| Op::Commit { claim, at, last }),
        3 => (i(), any::<bool>(), ago())
            .prop_map(|(claim, refresh, ago)| Op::Release { claim, refresh, ago }),
        5 => (i(), ago()).prop_map(|(lease, ago)| Op::End { lease, ago }),
        1 => (0..KEYS).prop_map(Op::EndGroup),
        1 => (0..KEYS).prop_map(Op::Unbind),
        1 => prop_oneof![Just(1), Just(2), Just(usize::MAX)].prop_map(Op::Expire),
        2 => prop_oneof![1..10u64, Just(ttl - 1), Just(ttl), ttl..2 * ttl].prop_map(Op::Pass),
        2 => (0..3u64).prop_map(Op::PassToExpiry),
        1 => (0..2u8, prop::option::of(0..4u32)).prop_map(|(who, most)| Op::Allow(who, most)),
        2 => (0..WORKERS, standing).prop_map(|(w, s)| Op::Stand(w, s)),
    ];
    prop::collection::vec(op, 1..100)
}

fn rules() -> impl Strategy<Value = Rules> {
    let on_full = prop_oneof![Just(OnFull::RouteUnbound), Just(OnFull::EvictIdle)];
    (1..=6usize, on_full, 0..5u32, any::<bool>()).prop_map(
        |(max, on_full, max_parallel, shared)| {
            // A removal that is kept for other routers lets a session in where it would find no room: that
            // is told at its commit then. Here it always finds room.
            let roomy = shared && on_full == OnFull::RouteUnbound;
            let max_sessions = if roomy { 64 } else { max };
            Rules { ttl: TTL, max_sessions, on_full, max_parallel, shared }
        },
    )
}

// === both, side by side ===

struct Both {
    table: Table,
    model: Model,
    now: Time,
    standings: [Standing; WORKERS as usize],
    /// And where each has selected to run.
    claims: Vec<(Hold, Claim, Target)>,
    leases: Vec<(Lease, u8, u64)>,
    /// Of each binding by its serial number.
    versions: BTreeMap<u64, Version>,
}

fn key(k: u8) -> SessionKey {
    SessionKey(u128::from(k))
}

impl Both {
    fn new(rules: Rules) -> Self {
        Self {
            table: Table::new(rules, 0),
            model: Model {
                max: rules.max_sessions,
                evicts: rules.on_full == OnFull::EvictIdle,
                max_parallel: rules.max_parallel,
                ..Model::default()
            },
            now: Time::from_micros(1000),
            standings: [Standing::Live; WORKERS as usize],
            claims: Vec::new(),
            leases: Vec::new(),
            versions: BTreeMap::new(),
        }
    }

    /// A clock that was read so long ago. Removals that are kept for other routers stand in one line
    /// with the bindings, and would count for the latest reading.
    fn read(&self, ago: u64) -> Time {
        let ago = if self.table.rules.shared { 0 } else { ago };
        self.now - Duration::from_micros(ago)
    }

    /// Where a hold's request runs: as named, or as it is steered.
    fn target(hold: &Hold, named: Option<Target>) -> Target {
        let steered = match hold.steer() {
            Steer::Free => Target { worker: WorkerId(0), rank: Some(DpRank(0)) },
            Steer::Pin(t) | Steer::Prefer(t) | Steer::Tentative(t) => t,
        };
        named.unwrap_or(steered)
    }

    fn step(&mut self, op: Op) {
        let (now, standings) = (self.now, self.standings);
        let world = move |t: Target| standings[t.worker.0 as usize];
        self.model.tidy(now);
        match op {
            Op::Resolve { key: k, mode, had_binding, then } => {
                self.resolve(k, mode, had_binding, then, &world);
            }
            Op::Check(i, at) => {
                if let Some(i) = i.checked_rem(self.claims.len()) {
                    let (hold, claim, selected) = &self.claims[i];
                    let t = at.unwrap_or(*selected);
                    let got = self.table.check_dispatch(now, hold, t, world);
                    assert_eq!(got, self.model.check(claim, t, &world));
                }
            }
            Op::Commit { claim, at, last } => {
                if let Some(i) = claim.checked_rem(self.claims.len()) {
                    let (hold, claim, selected) = self.claims.swap_remove(i);
                    let t = at.unwrap_or(selected);
                    let got = self.table.commit(now, hold, t, last, world);
                    let gone = |k| self.table.get(now, key(k)).is_none();
                    let (outcome, serial) = self.model.commit(now, claim, t, last, &world, &gone);
                    assert_eq!(got.outcome, outcome);
                    assert_eq!(got.lease.is_some(), serial > 0);
                    self.leases.extend(got.lease.map(|l| (l, claim.key, serial)));
                }
            }
            Op::Release { claim, refresh, ago } => {
                if let Some(i) = claim.checked_rem(self.claims.len()) {
                    let (hold, claim, _) = self.claims.swap_remove(i);
                    let then = self.read(ago);
                    self.table.release(then, hold, refresh);
                    self.model.release(then, claim, refresh);
                }
            }
            Op::End { lease, ago } => {
                if let Some(i) = lease.checked_rem(self.leases.len()) {
                    let (lease, k, serial) = self.leases.swap_remove(i);
                    let then = self.read(ago);
                    self.table.end(then, lease);
                    self.model.leave(then, k, serial, true, |b| &mut b.leases);
                }
            }
            Op::EndGroup(k) => {
                self.table.end_group(now, key(k));
                self.model.end_group(k);
            }
            Op::Unbind(k) => {
                assert_eq!(self.table.unbind(now, key(k)), self.model.remove(k));
            }
            Op::Expire(most) => {
                assert!(self.table.expire(now, most) <= most);
            }
            Op::Pass(us) => self.now = now + Duration::from_micros(us),
            Op::PassToExpiry(us) => {
                let next = self.table.next_expiry().unwrap_or(now);
                self.now = now.max(next + Duration::from_micros(us) - Duration::from_micros(1));
            }
            // Removals that are kept let a session in that is told at its commit that it finds no room.
            Op::Allow(_, Some(_)) if self.table.rules.shared => {}
            Op::Allow(who, most) => self.model.quotas[usize::from(who)] = most,
            Op::Stand(w, standing) => self.standings[w as usize] = standing,
        }
        self.compare();
    }

    fn resolve(&mut self, k: u8, mode: Mode, had: bool, then: Then, world: World<'_>) {
        let now = self.now;
        let claim = self.model.resolve(k, mode, had, world);
        let quota = self.model.quota(k);
        let resolved = self.table.resolve(now, key(k), mode, had, quota, world);
        let (mut hold, mut claim) = match (resolved, claim) {
            (Resolved::Hold(hold), Ok(claim)) => (hold, claim),
            (Resolved::Full, Err(Without::Full)) | (Resolved::Surplus, Err(Without::Surplus)) => {
                return;
            }
            (got, claim) => panic!("{got:?}, and the model: {:?}", claim.err()),
        };
        let steer = match (claim.home, claim.joins, mode) {
            (Some((_, t)), _, Mode::Hard) => Steer::Pin(t),
            (Some((_, t)), _, Mode::Soft) => Steer::Prefer(t),
            (None, Some(t), _) => Steer::Tentative(t),
            (None, None, _) => Steer::Free,
        };
        assert_eq!(hold.steer(), steer);
        assert_eq!((hold.home(), hold.key()), (claim.home.map(|h| h.1), key(k)));
        assert_eq!(hold.had_binding(), claim.had_binding);
        match then {
            Then::Selects(at, plan) => {
                let t = Self::target(&hold, at);
                self.table.selected(now, &mut hold, t, plan);
                self.model.selected(&mut claim, t, plan);
                self.claims.push((hold, claim, t));
            }
            Then::Leaves | Then::GivesUp => {
                if matches!(then, Then::GivesUp) {
                    self.table.give_up(now, &hold);
                    self.model.remove(k);
                }
                self.table.release(now, hold, false);
                self.model.release(now, claim, false);
            }
        }
    }

    fn compare(&mut self) {
        let (table, now) = (&self.table, self.now);
        table.check();
        self.model.tidy(now);
        let held = self.claims.iter().filter(|(_, claim, _)| claim.home.is_some()).count();
        assert_eq!(table.leases(), self.leases.len() + held, "leases and bound holds");
        let mut views = Vec::new();
        for k in 0..KEYS {
            let want = self.model.binding(k);
            let got = table.get(now, key(k));
            assert_eq!(got.map(|v| (v.key, v.target)), want.map(|b| (key(k), b.target)));
            let idle = |b: Bound| if b.idles() { now.since(b.since) } else { Duration::ZERO };
            let use_of = |b: Bound| (b.leases + b.holds, idle(b), b.last);
            assert_eq!(got.map(|v| (v.leases, v.idle, v.last)), want.map(use_of), "session {k}");
            if let (Some(v), Some(b)) = (got, want) {
                // A binding keeps its version, a later one has a higher one.
                let version = *self.versions.entry(b.serial).or_insert(v.version);
                assert_eq!(version, v.version);
                assert!(self.versions.range(..b.serial).all(|(_, earlier)| *earlier < version));
                assert!(self.versions.range(b.serial + 1..).all(|(_, later)| *later > version));
                if b.idles() {
                    assert!(table.next_expiry().is_some_and(|next| next <= b.since + TTL));
                }
            }
            let session = self.model.sessions.get(&k);
            assert_eq!(table.tentative(key(k)), session.and_then(|s| s.tentative), "session {k}");
            assert_eq!(table.claims(key(k)), self.model.claims(k), "claims on session {k}");
            assert_eq!(table.is_hot(key(k), false), self.model.is_hot(k));
            let full = table.would_be_full(now, key(k), self.model.quota(k));
            assert_eq!(full, self.model.is_full(k), "session {k}");
            views.extend(got);
        }
        let (mut walked, mut cursor) = (Vec::new(), 0);
        while table.walk(now, &mut cursor, 2, |view| walked.push(view)) {}
        walked.sort_by_key(|v| v.key);
        assert_eq!(walked, views, "all that a walk meets");
        // What is due and not swept yet still takes room, and no more than that.
        assert!(table.bindings() >= views.len() && table.bindings() <= self.model.max);
        let everywhere: u32 = (0..WORKERS).map(|w| table.bindings_of(WorkerId(w))).sum();
        assert_eq!(everywhere as usize, table.bindings());
        let expired = self.model.counters.expired;
        assert!(table.counters().expired <= expired);
        assert_eq!(Counters { expired, ..table.counters() }, self.model.counters);
    }

    fn compare_swept(&mut self) {
        self.table.expire(self.now, usize::MAX);
        self.compare();
        let sessions = &self.model.sessions;
        if !self.table.rules.shared {
            assert_eq!(self.table.entries.len(), sessions.len(), "entries");
        }
        assert_eq!(self.table.counters(), self.model.counters);
        for tenant in 0..2 {
            let counted = self.table.bindings_for(tenant) as usize;
            assert_eq!(counted, self.model.counted(tenant), "bindings of tenant {tenant}");
        }
        for w in 0..WORKERS {
            let here = |s: &&Session| s.bound.is_some_and(|b| b.target.worker == WorkerId(w));
            let homes = sessions.values().filter(here).count();
            let got = self.table.bindings_of(WorkerId(w)) as usize;
            assert_eq!(got, homes, "bindings of worker {w}");
        }
    }

    /// R13, R14: when all have left, no lease is; a TTL later nothing is.
    fn quiesce(mut self) {
        while !self.claims.is_empty() {
            let n = self.claims.len();
            self.step(Op::Release { claim: n / 2, refresh: n.is_multiple_of(2), ago: 0 });
        }
        while !self.leases.is_empty() {
            self.step(Op::End { lease: self.leases.len() / 2, ago: 0 });
        }
        assert_eq!(self.table.leases(), 0);
        self.compare_swept();
        self.now = self.now + TTL;
        self.compare_swept();
        assert_eq!((self.table.bindings(), self.table.entries.len()), (0, 0));
        assert_eq!(self.table.next_expiry(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8192, ..ProptestConfig::default() })]

    #[test]
    fn the_table_equals_the_contract(rules in rules(), ops in ops()) {
        let mut both = Both::new(rules);
        for op in ops {
            both.step(op);
            if matches!(op, Op::Expire(usize::MAX)) {
                both.compare_swept();
            }
        }
        both.quiesce();
    }
}

#[test]
fn r14_a_clock_that_was_read_before_the_lock_was_taken_disorders_nothing() {
    let on_full = OnFull::RouteUnbound;
    let rules = Rules { ttl: TTL, max_sessions: 2, on_full, max_parallel: 0, shared: false };
    let mut table = Table::new(rules, 0);
    let world = |_| Standing::Live;
    let target = Target { worker: WorkerId(1), rank: Some(DpRank(0)) };
    let t = Time::from_micros(1000);
    let mut leases = Vec::new();
    for k in 0..2 {
        let Resolved::Hold(hold) = table.resolve(t, key(k), Mode::Hard, false, None, world) else {
            panic!("no hold");
        };
        leases.extend(table.commit(t, hold, target, false, world).lease);
    }
    // The later reading comes first.
    table.end(t + Duration::from_micros(2), leases.remove(0));
    table.end(t + Duration::from_micros(1), leases.remove(0));
    table.check();
    assert_eq!(table.expire(t + Duration::from_micros(2) + TTL, 2), 2);
}
