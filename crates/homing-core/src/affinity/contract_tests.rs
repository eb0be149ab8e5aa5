//! The table against the contract, written down once more as plainly as it can be: random histories of
//! claims on a few sessions, in a table that is often full, under workers that come and go.
//!
//! The model forgets nothing cleverly: it has a map of sessions, expires all that is due at each step,
//! and walks whatever it must. What the table does lazily is compared after a full sweep.

use super::*;
use crate::affinity::Steer;
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
    sessions: BTreeMap<u8, Session>,
    leases: usize,
    serial: u64,
    full: u64,
    expired: u64,
    moves: [u64; 3],
}

#[derive(Default)]
struct Session {
    bound: Option<Bound>,
    tentative: Option<Target>,
    /// A departure took its binding, and nothing was bound since.
    lost: bool,
    holds: u32,
}

#[derive(Clone, Copy)]
struct Bound {
    target: Target,
    serial: u64,
    pins: u32,
    since: Time,
}

/// The model's hold: which binding it saw and keeps alive, or whom it joins.
#[derive(Clone, Copy)]
struct Claim {
    key: u8,
    mode: Mode,
    home: Option<(u64, Target)>,
    joins: Option<Target>,
    lost: bool,
}

type World<'a> = &'a dyn Fn(Target) -> Standing;

impl Model {
    /// R14: what has idled for the whole TTL is gone; what nobody needs leaves no entry.
    fn tidy(&mut self, now: Time) {
        for s in self.sessions.values_mut() {
            if s.bound.is_some_and(|b| b.pins == 0 && now >= b.since + TTL) {
                s.bound = None;
                self.expired += 1;
            }
        }
        self.sessions.retain(|_, s| s.holds > 0 || s.bound.is_some());
    }

    fn resolve(&mut self, key: u8, mode: Mode, lost: bool, world: World<'_>) -> Option<Claim> {
        if !self.sessions.contains_key(&key) && self.sessions.len() >= self.max {
            self.full += 1;
            return None;
        }
        let s = self.sessions.entry(key).or_default();
        match s.bound.map(|b| world(b.target)) {
            Some(Standing::Departed) => (s.bound, s.lost) = (None, true),
            Some(Standing::Unavailable) if mode == Mode::Hard => return None,
            _ => {}
        }
        s.holds += 1;
        if let Some(b) = &mut s.bound {
            b.pins += 1;
            self.leases += 1;
        }
        let home = s.bound.map(|b| (b.serial, b.target));
        Some(Claim { key, mode, home, joins: s.tentative, lost: lost || s.lost })
    }

    fn selected(&mut self, c: &Claim, target: Target) {
        let s = self.sessions.get_mut(&c.key).unwrap();
        if s.bound.is_none() && c.home.is_none() {
            s.tentative = Some(target);
        }
    }

    fn check(&self, c: &Claim, target: Target, world: World<'_>) -> Check {
        match self.sessions[&c.key].bound {
            Some(b)
                if c.mode == Mode::Hard
                    && !b.target.admits(target)
                    && c.home.map(|h| h.0) != Some(b.serial)
                    && world(b.target) != Standing::Departed =>
            {
                Check::Again
            }
            _ => Check::Go,
        }
    }

    /// The outcome, and the serial of the binding that the lease is on.
    fn commit(&mut self, now: Time, c: Claim, t: Target, world: World<'_>) -> (Outcome, u64) {
        let was_elsewhere = c.home.is_some_and(|h| !h.1.admits(t));
        let s = self.sessions.get_mut(&c.key).unwrap();
        let (outcome, moved) = match s.bound {
            None if c.lost || was_elsewhere => (Outcome::Rebound, Some(MoveReason::Departed)),
            None => (Outcome::New, None),
            Some(b) if b.target.admits(t) && c.home.is_some() => (Outcome::Hit, None),
            Some(b) if b.target.admits(t) => (Outcome::Joined, None),
            Some(b) if world(b.target) == Standing::Departed => {
                (Outcome::Rebound, Some(MoveReason::Departed))
            }
            Some(_) if c.mode == Mode::Soft => (Outcome::Rebound, Some(MoveReason::Soft)),
            Some(b) if c.home.is_some_and(|h| h.0 == b.serial) => {
                (Outcome::Rebound, Some(MoveReason::Failed))
            }
            Some(_) => (Outcome::Conflict, None),
        };
        if let Some(why) = moved {
            self.moves[why as usize] += 1;
        }
        if matches!(outcome, Outcome::New | Outcome::Rebound) {
            self.serial += 1;
            s.bound = Some(Bound { target: t, serial: self.serial, pins: 0, since: now });
            (s.tentative, s.lost) = (None, false);
        }
        let b = s.bound.as_mut().unwrap();
        let serial = b.serial;
        if outcome != Outcome::Conflict {
            b.pins += 1;
            self.leases += 1;
        }
        self.release(now, c, true);
        (outcome, serial)
    }

    fn release(&mut self, now: Time, c: Claim, refresh: bool) {
        let s = self.sessions.get_mut(&c.key).unwrap();
        s.holds -= 1;
        if let Some((serial, _)) = c.home {
            self.unpin(now, c.key, serial, refresh);
        }
    }

    /// R13: a lease whose binding was dropped or replaced releases into nothing.
    fn unpin(&mut self, now: Time, key: u8, serial: u64, refresh: bool) {
        self.leases -= 1;
        let bound = self.sessions.get_mut(&key).and_then(|s| s.bound.as_mut());
        if let Some(b) = bound.filter(|b| b.serial == serial) {
            b.pins -= 1;
            if refresh {
                b.since = now;
            }
        }
    }

    fn unbind(&mut self, key: u8) -> bool {
        self.sessions.get_mut(&key).and_then(|s| s.bound.take()).is_some()
    }
}

// === what happens ===

#[derive(Clone, Debug)]
enum Op {
    /// And selects in the same breath, if it finds anything: a target of its own choice, or (`None`)
    /// where it is steered. So do the others choose theirs.
    Resolve {
        key: u8,
        mode: Mode,
        lost: bool,
        finds: bool,
        at: Option<Target>,
    },
    Check(usize, Option<Target>),
    Commit(usize, Option<Target>),
    Release(usize, bool),
    End(usize),
    Unbind(u8),
    Expire(usize),
    Pass(u64),
    /// To the very moment at which the next binding is due, or so much beyond it.
    PassToExpiry(u64),
    Stand(u32, Standing),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let mode = || prop_oneof![3 => Just(Mode::Hard), 1 => Just(Mode::Soft)];
    let rank = prop_oneof![3 => Just(Some(DpRank(0))), 1 => Just(Some(DpRank(1))), 1 => Just(None)];
    let target =
        (0..WORKERS, rank).prop_map(|(w, rank)| Some(Target { worker: WorkerId(w), rank }));
    let target = || prop_oneof![1 => Just(None), 1 => target.clone()];
    let i = || any::<usize>();
    let standing = prop_oneof![
        2 => Just(Standing::Live), 2 => Just(Standing::Departed), 1 => Just(Standing::Unavailable)
    ];
    let ttl = TTL.as_micros() as u64;
    let op = prop_oneof![
        8 => (0..KEYS, mode(), prop::bool::weighted(0.1), prop::bool::weighted(0.9), target())
            .prop_map(|(key, mode, lost, finds, at)| Op::Resolve { key, mode, lost, finds, at }),
        2 => (i(), target()).prop_map(|(i, t)| Op::Check(i, t)),
        7 => (i(), target()).prop_map(|(i, t)| Op::Commit(i, t)),
        3 => (i(), any::<bool>()).prop_map(|(i, refresh)| Op::Release(i, refresh)),
        5 => i().prop_map(Op::End),
        1 => (0..KEYS).prop_map(Op::Unbind),
        1 => prop_oneof![Just(1), Just(2), Just(usize::MAX)].prop_map(Op::Expire),
        2 => prop_oneof![1..10u64, Just(ttl - 1), Just(ttl), ttl..2 * ttl].prop_map(Op::Pass),
        2 => (0..2u64).prop_map(Op::PassToExpiry),
        2 => (0..WORKERS, standing).prop_map(|(w, s)| Op::Stand(w, s)),
    ];
    prop::collection::vec(op, 1..100)
}

// === both, side by side ===

struct Both {
    table: Table,
    model: Model,
    now: Time,
    standings: [Standing; WORKERS as usize],
    claims: Vec<(Hold, Claim)>,
    leases: Vec<(Lease, u8, u64)>,
}

fn key(k: u8) -> SessionKey {
    SessionKey(u128::from(k))
}

impl Both {
    fn new(max: usize) -> Self {
        Self {
            table: Table::new(TTL, max, 0),
            model: Model { max, ..Model::default() },
            now: Time::from_micros(1000),
            standings: [Standing::Live; WORKERS as usize],
            claims: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// A claim, and the target that the op names or the claim is steered to.
    fn pick(&self, i: usize, named: Option<Target>) -> Option<(usize, Target)> {
        let i = i.checked_rem(self.claims.len())?;
        let steered = match self.claims[i].0.steer() {
            Steer::Free => None,
            Steer::Pin(t) | Steer::Prefer(t) | Steer::Tentative(t) => Some(t),
        };
        let free = Target { worker: WorkerId(0), rank: Some(DpRank(0)) };
        Some((i, named.or(steered).unwrap_or(free)))
    }

    fn step(&mut self, op: Op) {
        let (now, standings) = (self.now, self.standings);
        let world = move |t: Target| standings[t.worker.0 as usize];
        self.model.tidy(now);
        match op {
            Op::Resolve { key: k, mode, lost, finds, at } => {
                let full = self.model.full;
                let claim = self.model.resolve(k, mode, lost, &world);
                match (self.table.resolve(now, key(k), mode, lost, world), claim) {
                    (Resolved::Hold(hold), Some(claim)) => {
                        let steer = match (claim.home, claim.joins, mode) {
                            (Some((_, t)), _, Mode::Hard) => Steer::Pin(t),
                            (Some((_, t)), _, Mode::Soft) => Steer::Prefer(t),
                            (None, Some(t), _) => Steer::Tentative(t),
                            (None, None, _) => Steer::Free,
                        };
                        assert_eq!(hold.steer(), steer);
                        self.claims.push((hold, claim));
                        if let Some((i, t)) = self.pick(self.claims.len() - 1, at)
                            && finds
                        {
                            self.table.selected(&self.claims[i].0, t);
                            self.model.selected(&self.claims[i].1, t);
                        }
                    }
                    (Resolved::Full, None) => assert_eq!(self.model.full, full + 1),
                    (Resolved::Unavailable(t), None) => {
                        assert_eq!(self.model.full, full);
                        assert_eq!(self.model.sessions[&k].bound.unwrap().target, t);
                    }
                    (got, claim) => panic!("{got:?}, the model claims: {}", claim.is_some()),
                }
            }
            Op::Check(i, t) => {
                if let Some((i, t)) = self.pick(i, t) {
                    let (hold, claim) = &self.claims[i];
                    let got = self.table.check_dispatch(now, hold, t, world);
                    assert_eq!(got, self.model.check(claim, t, &world));
                }
            }
            Op::Commit(i, t) => {
                if let Some((i, t)) = self.pick(i, t) {
                    let (hold, claim) = self.claims.swap_remove(i);
                    let got = self.table.commit(now, hold, t, world);
                    let (outcome, serial) = self.model.commit(now, claim, t, &world);
                    assert_eq!(got.outcome, outcome);
                    assert_eq!(got.lease.is_some(), outcome != Outcome::Conflict);
                    self.leases.extend(got.lease.map(|l| (l, claim.key, serial)));
                }
            }
            Op::Release(i, refresh) => {
                if let Some(i) = i.checked_rem(self.claims.len()) {
                    let (hold, claim) = self.claims.swap_remove(i);
                    self.table.release(now, hold, refresh);
                    self.model.release(now, claim, refresh);
                }
            }
            Op::End(i) => {
                if let Some(i) = i.checked_rem(self.leases.len()) {
                    let (lease, k, serial) = self.leases.swap_remove(i);
                    self.table.end(now, lease);
                    self.model.unpin(now, k, serial, true);
                }
            }
            Op::Unbind(k) => {
                assert_eq!(self.table.unbind(now, key(k)), self.model.unbind(k));
            }
            Op::Expire(most) => {
                assert!(self.table.expire(now, most) <= most);
            }
            Op::Pass(us) => self.now = now + Duration::from_micros(us),
            Op::PassToExpiry(us) => {
                let next = self.table.next_expiry().unwrap_or(now);
                self.now = now.max(next + Duration::from_micros(us));
            }
            Op::Stand(w, standing) => self.standings[w as usize] = standing,
        }
        self.compare();
    }

    fn compare(&mut self) {
        let (table, now) = (&self.table, self.now);
        table.check();
        self.model.tidy(now);
        assert_eq!(table.leases(), self.model.leases, "leases");
        for k in 0..KEYS {
            let want = self.model.sessions.get(&k).and_then(|s| s.bound);
            let got = table.get(now, key(k));
            assert_eq!(got.map(|v| (v.target, v.leases)), want.map(|b| (b.target, b.pins)));
            let idle = |b: Bound| if b.pins > 0 { Duration::ZERO } else { now.since(b.since) };
            assert_eq!(got.map(|v| v.idle), want.map(idle));
        }
        let bound = self.model.sessions.values().filter(|s| s.bound.is_some()).count();
        assert_eq!(table.iter(now).count(), bound);
        // What is due and not swept yet still takes room, and no more than that.
        assert!(table.bindings() >= bound && table.entries.len() >= self.model.sessions.len());
        let everywhere: usize = (0..WORKERS).map(|w| table.bindings_of(WorkerId(w))).sum();
        assert_eq!(everywhere, table.bindings());
        let counters = table.counters();
        assert_eq!((counters.full, counters.moves), (self.model.full, self.model.moves));
        assert!(counters.expired <= self.model.expired);
    }

    fn compare_swept(&mut self) {
        self.table.expire(self.now, usize::MAX);
        self.compare();
        let sessions = &self.model.sessions;
        assert_eq!(self.table.entries.len(), sessions.len(), "entries");
        assert_eq!(self.table.counters().expired, self.model.expired, "expired");
        for w in 0..WORKERS {
            let here = |s: &&Session| s.bound.is_some_and(|b| b.target.worker == WorkerId(w));
            let homes = sessions.values().filter(here).count();
            assert_eq!(self.table.bindings_of(WorkerId(w)), homes, "bindings of worker {w}");
        }
    }

    /// R13, R14: when all have left, no lease is; a TTL later nothing is.
    fn quiesce(mut self) {
        while !self.claims.is_empty() {
            self.step(Op::Release(self.claims.len() / 2, self.claims.len().is_multiple_of(2)));
        }
        while !self.leases.is_empty() {
            self.step(Op::End(self.leases.len() / 2));
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
    #![proptest_config(ProptestConfig { cases: 16_384, ..ProptestConfig::default() })]

    #[test]
    fn the_table_equals_the_contract(max in 1..=6usize, ops in ops()) {
        let mut both = Both::new(max);
        for op in ops {
            let sweep = matches!(op, Op::Expire(usize::MAX));
            both.step(op);
            if sweep {
                both.compare_swept();
            }
        }
        both.quiesce();
    }
}

#[test]
fn r14_a_clock_that_was_read_before_the_lock_was_taken_disorders_nothing() {
    let mut both = Both::new(2);
    let world = |_| Standing::Live;
    let target = Target { worker: WorkerId(1), rank: Some(DpRank(0)) };
    let t = both.now;
    let mut leases = Vec::new();
    for k in 0..2 {
        let Resolved::Hold(hold) = both.table.resolve(t, key(k), Mode::Hard, false, world) else {
            panic!("no hold");
        };
        leases.extend(both.table.commit(t, hold, target, world).lease);
    }
    // The later reading comes first.
    both.table.end(t + Duration::from_micros(2), leases.remove(0));
    both.table.end(t + Duration::from_micros(1), leases.remove(0));
    both.table.check();
    assert_eq!(both.table.expire(t + Duration::from_micros(2) + TTL, 2), 2);
}
