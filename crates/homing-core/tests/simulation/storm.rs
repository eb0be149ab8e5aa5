//! The storm: weighted random actions on a core, and what must be true after each.
//!
//! * [`weather`]: what befalls the fleet;
//! * [`hosts`]: what hosts do.

mod hosts;
mod weather;

use super::engine::Engine;
use super::shadow::Shadow;
use homing_core::SelectionCore;
use homing_core::affinity::version::Version;
use homing_core::ask::{Checked, Grant, Live, Ticket, TicketId};
use homing_core::dice::{Dice, SplitMix};
use homing_core::fleet::Probe;
use homing_core::ids::{PartitionId, SessionKey, WorkerId};
use homing_core::settings::{CoreSettings, Mode, OnDown, PolicyKind};
use homing_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

const POOLS: [&str; 2] = ["alpha", "beta"];
const NAMES: [&str; 6] = ["alpha", "alpha-too", "alpha-lora", "beta", "beta-too", "beta-lora"];
const SESSIONS: u128 = 4;
const WORKERS: usize = 5;

/// What a request is, as far as the storm must remember it.
#[derive(Clone)]
struct Meta {
    serial: u64,
    pool: usize,
    name: &'static str,
    session: Option<(SessionKey, Mode)>,
    /// Workers that failed it.
    excluded: Vec<WorkerId>,
    /// The binding that it saw when it selected; its hold counts as a lease.
    seen: Option<Version>,
    /// It found no room in the table.
    full: bool,
    /// It has selected a second time after the last look.
    rechecked: bool,
    /// When its client gives up.
    client: Option<Time>,
    /// When it must have left the queue, if it is there.
    deadline: Time,
}

struct Running {
    live: Live,
    pool: usize,
    lease: bool,
    binding: Option<u64>,
}

/// What happened.
pub(crate) struct Trace {
    pub(crate) lines: Vec<String>,
    pub(crate) outcomes: [u64; 9],
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
    settings: CoreSettings,
    core: SelectionCore,
    now: Time,
    engines: Vec<Engine>,
    partitions: [Option<PartitionId>; 2],
    shadows: [Shadow; 2],
    grants: Vec<(Meta, Grant)>,
    checked: Vec<(Meta, Checked)>,
    running: Vec<Running>,
    tickets: BTreeMap<TicketId, (Meta, Ticket)>,
    /// Wakes that the host has seen and not acted upon.
    woken: VecDeque<TicketId>,
    ever_waited: BTreeSet<TicketId>,
    /// Lives that have ended.
    ghosts: Vec<WorkerId>,
    requests: u64,
    lines: Vec<String>,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = self.lines.len().saturating_sub(40);
            self.lines[last..].iter().for_each(|l| eprintln!("{l}"));
            eprintln!("to replay: HOMING_SIM_SEED={}", self.seed);
        }
    }
}

fn any<T>(dice: &mut SplitMix, of: &[T]) -> Option<usize> {
    (!of.is_empty()).then(|| dice.below(of.len()))
}

fn settings(dice: &mut SplitMix) -> CoreSettings {
    let kinds =
        [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::RoundRobin, PolicyKind::Random];
    let mut s = CoreSettings { policy: kinds[dice.below(4)], ..CoreSettings::default() };
    s.affinity.ttl = (dice.below(8) > 0).then_some(Duration::from_millis(50));
    s.affinity.max_sessions = [1_000, 1_000, 4, 2][dice.below(4)];
    s.affinity.on_down = [OnDown::Rebind, OnDown::Reject][dice.below(2)];
    if dice.below(2) > 0 {
        s.queue.max_requests = 1 + dice.below(8);
        s.queue.busy_active_requests = 1 + dice.below(3) as u32;
        s.queue.max_wait = Duration::from_millis(20);
    }
    s.retry_attempts = dice.below(4) as u32;
    (s.health_failures, s.health_successes) = (1 + dice.below(3) as u32, 1 + dice.below(2) as u32);
    s
}

impl Storm {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = SplitMix::new(seed);
        let settings = settings(&mut dice);
        let core = SelectionCore::new(settings.clone(), dice.roll());
        let mut storm = Self {
            seed,
            core,
            now: Time::from_micros(1_000_000),
            engines: (0..WORKERS).map(|i| Engine::new(format!("w{i}"))).collect(),
            partitions: [None; 2],
            shadows: Default::default(),
            grants: Vec::new(),
            checked: Vec::new(),
            running: Vec::new(),
            tickets: BTreeMap::new(),
            woken: VecDeque::new(),
            ever_waited: BTreeSet::new(),
            ghosts: Vec::new(),
            requests: 0,
            lines: vec![format!("{settings:?}")],
            dice,
            settings,
        };
        for i in 0..WORKERS - 1 {
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

    /// One action, and everything that must be true after it.
    pub(crate) fn step(&mut self) {
        match self.dice.below(100) {
            0..=29 => self.admit(),
            30..=44 => self.look(),
            45..=56 => self.begin(),
            57..=61 => self.fail(),
            62..=65 => self.give_up(),
            66..=71 => self.progress(),
            72..=79 => self.finish(),
            80..=83 => self.claim(),
            84 => self.cancel(),
            85..=88 => self.cache(),
            89..=94 => self.fleet(),
            95 => self.unbind(),
            96 => self.preview(),
            97 => self.tick(),
            _ => self.pass(),
        }
        if self.dice.below(4) > 0 {
            self.drain();
        }
        self.check();
    }

    fn check(&self) {
        self.core.check();
        let keys: Vec<_> = (0..SESSIONS).map(SessionKey).collect();
        for (pool, p) in self.partitions.iter().enumerate() {
            let Some(p) = *p else { continue };
            let Some(view) = self.core.partitions().into_iter().nth(p.0 as usize) else { continue };
            let (s, shadow) = (view.stats, &self.shadows[pool]);
            let here = |m: &&Meta| m.pool == pool;
            let granted = || self.grants.iter().map(|g| &g.0).filter(here);
            let checked = || self.checked.iter().map(|c| &c.0).filter(here);
            let running = || self.running.iter().filter(|r| r.pool == pool);
            let held = granted().count() + checked().count();
            assert_eq!(s.bookings, held + running().count(), "bookings");
            let holds = granted().chain(checked()).filter(|m| m.seen.is_some()).count();
            assert_eq!(s.leases, holds + running().filter(|r| r.lease).count(), "leases");
            assert_eq!(s.waiting, self.tickets.values().filter(|t| t.0.pool == pool).count());
            assert_eq!((s.outcomes, s.full_table), (shadow.outcomes, shadow.full));
            assert!(s.bindings <= self.settings.affinity.max_sessions);
            shadow.agree(&self.core, self.now, p, &keys);
        }
        let views = self.core.workers();
        let mut active = 0;
        for v in &views {
            active += v.part.load.active_requests as usize;
            let e = self.engines.iter().find(|e| e.id == Some(v.info.id)).unwrap();
            assert_eq!(v.cached_blocks, e.held.iter().sum::<u32>() as usize, "{:?}", v.info.id);
        }
        let held = self.grants.len() + self.checked.len() + self.running.len();
        assert!(active <= held, "load of nobody");
        assert_eq!(views.len(), self.engines.iter().filter(|e| e.id.is_some()).count());
    }

    /// The storm is over: everything ends, everybody who waits is served or refused without a tick of
    /// the clock, and a TTL later nothing is left.
    pub(crate) fn calm(mut self) -> Trace {
        for round in 0.. {
            let held = self.grants.len() + self.checked.len() + self.running.len();
            if held + self.tickets.len() == 0 {
                break;
            }
            self.drain();
            assert!(held > 0 || !self.woken.is_empty(), "nobody wakes {:?}", self.tickets.keys());
            assert!(round < 10_000, "they turn in circles");
            self.look();
            self.begin();
            self.give_up();
            self.finish();
            self.claim();
            self.check();
        }
        while self.core.poll_timeout().is_some() {
            self.now = self.now.max(self.core.poll_timeout().unwrap());
            self.tick();
            self.check();
        }
        for view in self.core.partitions() {
            let s = view.stats;
            assert_eq!((s.leases, s.bookings, s.waiting, s.bindings), (0, 0, 0, 0));
        }
        let mut outcomes = [0; 9];
        for shadow in &self.shadows {
            outcomes.iter_mut().zip(shadow.outcomes).for_each(|(all, n)| *all += n);
        }
        assert_eq!(outcomes.iter().sum::<u64>(), self.requests, "each request has one outcome");
        Trace { lines: std::mem::take(&mut self.lines), outcomes }
    }
}
