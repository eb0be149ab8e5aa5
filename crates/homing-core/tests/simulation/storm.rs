//! The storm: weighted random actions on a core, and what must be true after each.
//!
//! * [`weather`]: what befalls the fleet;
//! * [`asks`]: the requests that come, and what previews say of them;
//! * [`hosts`]: what hosts do with them;
//! * [`laws`]: what must come of it;
//! * [`records`]: what is kept of each request;
//! * [`loads`]: what workers have to do, and who is overloaded;
//! * [`people`]: sessions removed, kept and brought back.

mod asks;
mod hosts;
mod laws;
mod loads;
mod people;
mod records;
mod weather;

use super::engine::Engine;
use super::shadow::Shadow;
use homing_core::SelectionCore;
use homing_core::affinity::{MoveReason, Outcome, Plan};
use homing_core::ask::{
    Cause, Checked, Constraints, Explicit, Failure, Grant, Live, Session, Ticket, TicketId,
};
use homing_core::dice::{Dice, SplitMix};
use homing_core::fleet::Probe;
use homing_core::ids::{PartitionId, SessionKey, Target, WorkerId};
use homing_core::select::LeastLoaded;
use homing_core::select::policy::Policy;
use homing_core::select::{Candidate, Demand};
use homing_core::settings::{
    CoreSettings, OnDown, OnFailure, OnFull, OnOverload, PolicyKind, QueueSettings, VitalSettings,
};
use homing_core::time::Time;
use laws::{Claim, Verdict};
use loads::Loads;
use people::Walk;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

const POOLS: [&str; 2] = ["alpha", "beta"];
const NAMES: [&str; 6] = ["alpha", "alpha-too", "alpha-lora", "beta", "beta-too", "beta-lora"];
/// Each is a session, and the group of some other one.
const SESSIONS: u128 = 5;
const WORKERS: usize = 7;
/// A policy that takes so many requests at each rank at most, and otherwise the least loaded.
const PICKY: u32 = 3;
/// Requests that may wait for single workers where there is no queue.
const TIED_MOST: usize = 1024;

/// What a request is, and what has become of it so far.
#[derive(Clone)]
struct Meta {
    serial: u64,
    pool: usize,
    name: &'static str,
    session: Option<Session>,
    explicit: Option<Explicit>,
    constraints: Option<Arc<Constraints>>,
    /// When its client gives up.
    client: Option<Time>,
    /// The life that its explicit target's name meant when it came.
    named: Option<WorkerId>,
    /// Workers that failed it.
    failed: Vec<WorkerId>,
    /// How often it was tried in vain, and how it failed last.
    attempts: u32,
    failure: Option<Failure>,
    /// A worker broke off that may have begun with it.
    may_have_run: bool,
    /// An overloaded worker has sent it elsewhere.
    sent_on: bool,
    /// It lost its binding to a departure.
    had: bool,
    /// It has selected a second time after the last look.
    rechecked: bool,
    /// While it is granted: what it has of its session, and where it goes, seen from home.
    claim: Claim,
    plan: Plan,
    /// While it waits: for what, and until when.
    line: Line,
    deadline: Time,
    /// What it saw of its session when it lay down.
    seen: Seen,
}

/// What a request waits for (R08).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Anybody.
    Any,
    /// The worker that it names.
    Named(WorkerId),
    /// Its home, while that is overloaded, or all are busy.
    Home(WorkerId),
}

/// Whether it has a hold, no room or too many beside it; where its session lives; where it is about to.
type Seen = (std::mem::Discriminant<Claim>, Option<Target>, Option<Target>);

/// See [`PICKY`].
#[derive(Debug)]
struct Picky;

impl Policy for Picky {
    fn admits(&self, _: &Demand, candidate: &Candidate) -> bool {
        candidate.load.active_requests < PICKY
    }

    fn cost(&self, demand: &Demand, candidate: &Candidate) -> f64 {
        LeastLoaded.cost(demand, candidate)
    }
}

struct Running {
    live: Live,
    pool: usize,
    target: Target,
    /// Its session, and the binding that its lease is on.
    lease: Option<(SessionKey, u64)>,
}

/// What happened.
pub(crate) struct Trace {
    pub(crate) lines: Vec<String>,
    /// How often what happened.
    pub(crate) seen: BTreeMap<String, u64>,
}

impl Trace {
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.lines.hash(&mut hasher);
        hasher.finish()
    }
}

pub(crate) struct Storm {
    seed: u64,
    dice: SplitMix,
    /// What engines say of their caches follows from its own, so that it changes nothing else by itself.
    engine_dice: SplitMix,
    settings: CoreSettings,
    core: SelectionCore,
    now: Time,
    engines: Vec<Engine>,
    partitions: [Option<PartitionId>; 2],
    shadows: [Shadow; 2],
    loads: [Loads; 2],
    /// Until when workers count as overloaded that have said so.
    shed: [BTreeMap<WorkerId, Time>; 2],
    grants: Vec<(Meta, Grant)>,
    checked: Vec<(Meta, Checked)>,
    running: Vec<Running>,
    tickets: BTreeMap<TicketId, (Meta, Ticket)>,
    /// Wakes that the host has seen and not acted upon.
    woken: VecDeque<TicketId>,
    ever_waited: BTreeSet<TicketId>,
    /// When time was told last.
    ticked: Time,
    /// Whose port refuses the request that is being looked at.
    refusing: Option<WorkerId>,
    /// Lives that have ended.
    ghosts: Vec<WorkerId>,
    /// A snapshot that is being made.
    walk: Option<Walk>,
    /// Its policy is [`Picky`], whatever the settings say.
    picky: bool,
    /// How readily workers answer that they are overloaded.
    busy_day: usize,
    requests: u64,
    lines: Vec<String>,
    seen: BTreeMap<String, u64>,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = self.lines.len().saturating_sub(40);
            eprintln!("{}", self.lines[0]);
            self.lines[last..].iter().for_each(|l| eprintln!("{l}"));
            eprintln!("to replay: HOMING_SIM_SEED={}", self.seed);
        }
    }
}

fn any<T>(dice: &mut SplitMix, of: &[T]) -> Option<usize> {
    (!of.is_empty()).then(|| dice.below(of.len()))
}

fn one<T: Copy>(dice: &mut SplitMix, of: &[T]) -> T {
    of[dice.below(of.len())]
}

fn settings(dice: &mut SplitMix) -> CoreSettings {
    use PolicyKind::{Kv, LeastLoaded, PowerOfTwo, Random, RoundRobin};
    let policy = one(dice, &[Kv, LeastLoaded, PowerOfTwo, RoundRobin, Random]);
    // What the laws say of each call is by probes alone.
    let (vitals, retry_budget) = (VitalSettings::OFF, 1.0);
    let mut s = CoreSettings { policy, vitals, retry_budget, ..CoreSettings::default() };
    let a = &mut s.affinity;
    let ttl = one(dice, &[50, 50, 50, 10_000, 10_000, 10_000, 10_000, 10_000, 0]);
    a.ttl = (ttl > 0).then_some(Duration::from_millis(ttl));
    a.max_sessions = one(dice, &[1_000, 1_000, 1_000, 4, 2]);
    a.on_full = one(dice, &[OnFull::RouteUnbound, OnFull::EvictIdle]);
    a.on_down = one(dice, &[OnDown::Rebind, OnDown::Reject]);
    a.on_failure = one(dice, &[OnFailure::Rebind, OnFailure::Reject]);
    use OnOverload::{Dispatch, Reject, Spill, Wait};
    a.on_overload = one(dice, &[Spill, Spill, Reject, Wait, Dispatch]);
    if dice.below(6) == 0 {
        // The strict set.
        (a.on_down, a.on_failure, a.on_overload) = (OnDown::Reject, OnFailure::Reject, Reject);
    }
    a.max_parallel = one(dice, &[32, 32, 32, 1, 2, 3, 0]);
    if dice.below(2) > 0 {
        s.queue = QueueSettings {
            // Where it is 0, only those who wait for one worker do.
            max_requests: dice.below(9),
            max_wait: Duration::from_millis(20),
            busy_active_requests: one(dice, &[0, 1, 1, 2, 3]),
            busy_prefill_tokens: 0,
        };
    }
    s.retry_attempts = dice.below(4) as u32;
    (s.health_failures, s.health_successes) = (1 + dice.below(3) as u32, 1 + dice.below(2) as u32);
    s
}

impl Storm {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = SplitMix::new(seed);
        let mut settings = settings(&mut dice);
        let mut engine_dice = SplitMix::new(!seed);
        settings.predict = Duration::from_millis(one(&mut engine_dice, &[0, 0, 10, 5_000]));
        settings.index_memory = one(&mut engine_dice, &[2 << 30, 2 << 30, 100_000]);
        settings.overload = loads::settings(&mut engine_dice);
        settings.report_life = Duration::from_millis(one(&mut engine_dice, &[5, 30, 2_000]));
        let picky = dice.below(6) == 0;
        let core = if picky {
            SelectionCore::with_policy(settings.clone(), dice.roll(), || Box::new(Picky))
        } else {
            SelectionCore::new(settings.clone(), dice.roll())
        };
        let ttl = settings.affinity.ttl.unwrap_or_default();
        let mut storm = Self {
            seed,
            core,
            now: Time::from_micros(1_000_000),
            engines: (0..WORKERS).map(|i| Engine::new(format!("w{i}"))).collect(),
            partitions: [None; 2],
            shadows: [(); 2].map(|()| Shadow::new(ttl)),
            loads: Default::default(),
            shed: Default::default(),
            grants: Vec::new(),
            checked: Vec::new(),
            running: Vec::new(),
            tickets: BTreeMap::new(),
            woken: VecDeque::new(),
            ever_waited: BTreeSet::new(),
            ticked: Time::ZERO,
            refusing: None,
            ghosts: Vec::new(),
            walk: None,
            picky,
            busy_day: one(&mut dice, &[0, 1, 4]),
            requests: 0,
            lines: vec![format!("{settings:?}")],
            seen: BTreeMap::new(),
            engine_dice,
            dice,
            settings,
        };
        for i in 0..WORKERS - 1 {
            storm.engines[i].placed = Some(i % 3 / 2);
            storm.register(i);
            storm.serve(i);
            storm.probe(i, Probe::Good);
            storm.probe(i, Probe::Good);
        }
        storm
    }

    fn log(&mut self, what: impl Display) {
        self.lines.push(format!("{} {what}", self.now));
    }

    fn saw(&mut self, what: impl ToString) {
        *self.seen.entry(what.to_string()).or_default() += 1;
    }

    /// One action, and everything that must be true after it.
    pub(crate) fn step(&mut self) {
        match self.dice.below(100) {
            0..=24 => self.admit(),
            25..=42 => self.look(),
            43..=58 => self.begin(),
            59..=63 => self.fail(),
            64..=66 => self.give_up(),
            67..=68 => self.progress(),
            69..=77 => self.finish(),
            78..=81 => self.claim(),
            82 => self.cancel(),
            83..=84 => self.cache(),
            85 => self.report(),
            86..=92 => self.fleet(),
            93 => self.unbind(),
            94 => self.preview(),
            95 => self.snapshot(),
            96 => self.tick(),
            _ => self.pass(),
        }
        if self.dice.below(4) > 0 {
            self.drain();
            self.check_waiting();
        }
        self.check();
    }

    /// The indexes may have less than they were told.
    fn cramped(&self) -> bool {
        self.settings.index_memory < 1 << 20
    }

    /// Nobody sleeps who could go, or waits in vain, while nobody in its line is awake (F43). Of what only
    /// time has changed the core knows with the next tick; sessions are read when one is granted (R08); and
    /// to be refused since home is overloaded by now is not urgent. Who waits for
    /// anybody is woken when somebody takes new work, even if he could go home before that.
    fn check_waiting(&self) {
        if self.ticked < self.now {
            return;
        }
        let awake = |pool, line| {
            let of = |id: &TicketId| self.tickets.get(id).map(|(m, _)| (m.pool, m.line));
            self.woken.iter().any(|id| of(id) == Some((pool, line)))
        };
        for (meta, _) in self.tickets.values() {
            let due = self.due(meta, Some(meta.line));
            let waits = match &due.verdict {
                // It looks for another line when its own has something for it.
                Verdict::Wait(_) => true,
                Verdict::GiveUp => false,
                Verdict::Refuse(cause, _) => self.picky || *cause == Cause::TargetOverloaded,
                Verdict::Go(..) => meta.line == Line::Any && !self.is_anybody_free(meta),
            };
            assert!(
                waits || self.seen(meta, &due.claim) != meta.seen || awake(meta.pool, meta.line),
                "#{} waits in {:?}, and due is {due:?}",
                meta.serial,
                meta.line
            );
        }
    }

    /// Requests that are booked on a target.
    fn active(&self, pool: usize, target: Target) -> usize {
        let here = |m: &Meta, at: Target| m.pool == pool && at == target;
        self.grants.iter().filter(|(m, g)| here(m, g.target())).count()
            + self.checked.iter().filter(|(m, c)| here(m, c.grant().target())).count()
            + self.running.iter().filter(|r| r.pool == pool && r.target == target).count()
    }

    fn seen(&self, meta: &Meta, claim: &Claim) -> Seen {
        let shadow = &self.shadows[meta.pool];
        let key = meta.session.map(|s| s.key);
        let home = key.and_then(|key| shadow.get(self.now, key)).map(|b| b.target);
        let other = key.and_then(|key| shadow.tentative.get(&key)).copied();
        (std::mem::discriminant(claim), home, other)
    }

    fn check(&mut self) {
        let now = self.now;
        self.shadows.iter_mut().for_each(|s| s.sweep(now));
        self.core.check();
        let keys: Vec<_> = (0..SESSIONS).map(SessionKey).collect();
        let partitions = self.core.partitions();
        for (pool, p) in self.partitions.iter().enumerate() {
            let Some(p) = *p else { continue };
            let Some(view) = partitions.get(p.0 as usize) else { continue };
            let (s, shadow) = (view.stats, &self.shadows[pool]);
            let granted = self.grants.iter().map(|g| &g.0);
            let held = granted.chain(self.checked.iter().map(|c| &c.0));
            let held: Vec<_> = held.filter(|m| m.pool == pool).collect();
            let running = || self.running.iter().filter(|r| r.pool == pool);
            assert_eq!(s.bookings, held.len() + running().count(), "bookings");
            let bound = |m: &&&Meta| matches!(m.claim, Claim::Held(hold) if hold.on.is_some());
            let leases = running().filter(|r| r.lease.is_some()).count();
            assert_eq!(s.leases, held.iter().filter(bound).count() + leases, "leases");
            assert_eq!(s.waiting, self.tickets.values().filter(|t| t.0.pool == pool).count());
            let t = s.table;
            assert_eq!((s.outcomes, t.moves), (shadow.outcomes, shadow.moves));
            assert_eq!((t.full, t.evicted), (shadow.full, shadow.evicted));
            assert!(s.bindings <= self.settings.affinity.max_sessions, "R15");
            assert!(s.bindings >= shadow.bound.len());
            shadow.agree(&self.core, now, p, &keys);
        }
        let views = self.core.workers();
        let mut active = 0;
        for v in &views {
            active += v.part.load.active_requests as usize;
            let e = self.engines.iter().find(|e| e.id == Some(v.info.id)).unwrap();
            let told = e.held.iter().sum::<u32>() as usize;
            assert!(v.cached_blocks <= told, "{:?}", v.info.id);
            assert!(v.cached_blocks == told || self.cramped(), "{:?}", v.info.id);
            assert_eq!((v.ranks, v.drain), (e.ranks, e.drain), "{:?}", v.info.id);
        }
        let held = self.grants.len() + self.checked.len() + self.running.len();
        assert!(active <= held, "load of nobody");
        self.check_loads();
        assert_eq!(views.len(), self.engines.iter().filter(|e| e.id.is_some()).count());
    }

    /// The storm is over: everything ends, everybody who waits is served or refused without a tick of
    /// the clock, unless it is for a worker that is overloaded; and a TTL later nothing is left.
    pub(crate) fn calm(mut self) -> Trace {
        if self.seed.is_multiple_of(2) {
            self.restart();
        }
        for round in 0.. {
            let held = self.grants.len() + self.checked.len() + self.running.len();
            if held + self.tickets.len() == 0 {
                break;
            }
            self.drain();
            if held == 0 && self.woken.is_empty() {
                let waits = |pool: &usize| self.tickets.values().any(|(m, _)| m.pool == *pool);
                let mut waited = (0..2).filter(waits);
                let later = |pool: usize| self.shed[pool].values().any(|t| *t > self.now);
                let shed = waited.all(|pool: usize| later(pool) || self.anything_reported(pool));
                // Or that is over, and the core has not been told of the time since.
                let due = self.core.poll_timeout().is_some_and(|due| due <= self.now);
                assert!(shed || due, "nobody wakes {:?}", self.tickets.keys());
                self.now = self.now.max(self.core.poll_timeout().unwrap());
                self.tick();
            }
            assert!(round < 10_000, "they turn in circles");
            self.look();
            self.begin();
            self.give_up();
            self.finish();
            self.claim();
            self.check();
        }
        while let Some(due) = self.core.poll_timeout() {
            self.now = self.now.max(due);
            self.tick();
            self.check();
        }
        for view in self.core.partitions() {
            let s = view.stats;
            assert_eq!((s.leases, s.bookings, s.waiting, s.bindings), (0, 0, 0, 0));
        }
        self.all_recorded();
        let outcomes = self.shadows.iter().flat_map(|shadow| shadow.outcomes);
        assert_eq!(outcomes.sum::<u64>(), self.requests, "each request has one outcome");
        for (n, outcome) in
            self.shadows.iter().flat_map(|s| s.outcomes.into_iter().zip(Outcome::ALL))
        {
            *self.seen.entry(outcome.to_string()).or_default() += n;
        }
        for (n, why) in self.shadows.iter().flat_map(|s| s.moves.into_iter().zip(MoveReason::ALL)) {
            *self.seen.entry(format!("moved: {}", why.word())).or_default() += n;
        }
        let evicted = self.shadows.iter().map(|s| s.evicted).sum();
        self.seen.insert("evicted".into(), evicted);
        Trace { lines: std::mem::take(&mut self.lines), seen: std::mem::take(&mut self.seen) }
    }
}
