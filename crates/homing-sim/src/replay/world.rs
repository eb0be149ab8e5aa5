//! What happens when: arrivals, engines' steps, events on their way, timers, and failures, on one heap. What
//! becomes of a request is `flight`'s.

use super::flight::{Flight, State};
use super::outcome::{Outcome, SAMPLES, Sample};
use super::router::Router;
use super::share::{Message, Telling};
use super::{Config, ReplayError, kv};
use crate::engine::fast::{FastEngine, FastMetrics, FastOutput};
use crate::trace::Trace;
use homing_core::ask::{Failure, Live, Step, TicketId};
use homing_core::index::event::KvEvent;
use homing_core::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Runs begin then: a day like any other, since zero may mean "never" somewhere.
const START: Time = Time::from_micros(1_700_000_000_000_000);
/// How often workers are probed: so long a failure may go unnoticed.
const PROBE: Duration = Duration::from_secs(5);

/// Replays `trace`. `ended` is called with how many requests have ended, now and then.
///
/// # Errors
/// [`ReplayError`].
pub fn run(
    trace: &Trace,
    config: &Config,
    ended: &mut dyn FnMut(u64),
) -> Result<Outcome, ReplayError> {
    let mut config = config.clone();
    config.engine.cache.block_size = trace.block_size();
    let mut world = World::new(trace, &config)?;
    while let Some(Reverse((now, _, what))) = world.due.pop() {
        world.happen(now, what)?;
        world.wake(now);
        ended(world.ended);
        if world.ended == trace.requests.len() as u64 {
            break;
        }
    }
    Ok(world.outcome())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Arrival(u32),
    Engine(usize),
    /// KV events of a worker's life reach the routers.
    Kv(u64),
    Timer(usize),
    Fails(usize),
    /// The failure of a worker is noticed, if it is the same still.
    Probed(usize, u32),
    Returns(usize),
    /// A router tells the others what there is to tell,
    Tell(usize),
    /// and a message of it arrives.
    Told(u64),
    Sample,
}

pub(super) struct World<'a> {
    pub(super) trace: &'a Trace,
    pub(super) config: &'a Config,
    pub(super) engines: Vec<FastEngine>,
    /// Which process it is, over all workers; `None`: there is none.
    pub(super) lives: Vec<Option<u32>>,
    next_life: u32,
    /// When each engine was last promised to be called.
    promised: Vec<Option<Time>>,
    pub(super) routers: Vec<Router>,
    pub(super) tellers: Vec<Telling>,
    /// The next one's number, and those on their way.
    pub(super) messages: (u64, BTreeMap<u64, Message>),
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) waiting: BTreeMap<(usize, TicketId), u32>,
    /// By request: the first that waits for its end, and the next that waits for the same.
    pub(super) followers: Vec<[Option<u32>; 2]>,
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    scheduled: u64,
    on_the_way: BTreeMap<u64, (usize, u32, Vec<KvEvent>)>,
    pub(super) ended: u64,
    pub(super) end: Time,
    sampled: Vec<FastMetrics>,
    pub(super) outcome: Outcome,
}

impl<'a> World<'a> {
    fn new(trace: &'a Trace, config: &'a Config) -> Result<Self, ReplayError> {
        let workers = config.workers;
        if workers == 0 || config.replicas == 0 {
            return Err(ReplayError::Nobody);
        }
        if !(config.rate_scale.is_finite() && config.rate_scale > 0.0) {
            return Err(ReplayError::Rate);
        }
        let seed = |i: usize| config.seed.wrapping_add(i as u64);
        let routers: Result<_, _> =
            (0..config.replicas).map(|i| Router::new(config, seed(i), START)).collect();
        let last = trace.requests.last().map_or(Duration::ZERO, |r| scaled(config, r.at));
        let width = (last / SAMPLES as u32).max(Duration::from_millis(100));
        let mut it = Self {
            trace,
            config,
            engines: (0..workers).map(|_| FastEngine::new(config.engine)).collect(),
            lives: (0..workers as u32).map(Some).collect(),
            next_life: workers as u32,
            promised: vec![None; workers],
            routers: routers?,
            tellers: (0..config.replicas).map(|_| Telling::default()).collect(),
            messages: Default::default(),
            flights: trace.requests.iter().map(|_| None).collect(),
            waiting: BTreeMap::new(),
            followers: vec![[None; 2]; trace.requests.len()],
            due: BinaryHeap::new(),
            scheduled: 0,
            on_the_way: BTreeMap::new(),
            ended: 0,
            end: START,
            sampled: vec![FastMetrics::default(); workers],
            outcome: Outcome { width, placed: vec![0; workers], ..Outcome::default() },
        };
        for (i, request) in (0..).zip(&trace.requests) {
            match request.after {
                Some(before) => {
                    let first = it.followers[before as usize][0].replace(i);
                    it.followers[i as usize][1] = first;
                }
                None => it.schedule(START + scaled(config, request.at), Due::Arrival(i)),
            }
        }
        for outage in &config.outages {
            let super::Outage { worker, from, until } = *outage;
            if worker >= workers || until <= from {
                return Err(ReplayError::Outage { worker, from, until, workers });
            }
            it.schedule(START + from, Due::Fails(worker));
            it.schedule(START + until, Due::Returns(worker));
        }
        it.schedule(START + width, Due::Sample);
        Ok(it)
    }

    /// When what was recorded at this time happens.
    pub(super) fn recorded(&self, at: Duration) -> Time {
        START + scaled(self.config, at)
    }

    pub(super) fn schedule(&mut self, at: Time, what: Due) {
        self.due.push(Reverse((at, self.scheduled, what)));
        self.scheduled += 1;
    }

    fn happen(&mut self, now: Time, what: Due) -> Result<(), ReplayError> {
        match what {
            Due::Arrival(request) => self.arrive(now, request),
            Due::Engine(worker) => {
                self.engines[worker].handle_timeout(now);
                self.hear(worker);
            }
            Due::Kv(number) => {
                if let Some((worker, life, events)) = self.on_the_way.remove(&number)
                    && self.lives[worker] == Some(life)
                {
                    self.routers.iter().for_each(|r| r.hear(now, worker, &events));
                }
            }
            Due::Timer(at) => {
                let router = &mut self.routers[at];
                if router.timer.is_some_and(|at| at <= now) {
                    router.timer = None;
                    while router.core.poll_timeout().is_some_and(|at| at <= now) {
                        router.core.handle_timeout(now);
                    }
                    self.set_timer(now, at);
                    self.touched(now, at);
                }
            }
            Due::Tell(at) => self.tell(now, at),
            Due::Told(number) => self.told(now, number),
            Due::Fails(worker) => self.fail(now, worker),
            Due::Probed(worker, life) => {
                if self.lives[worker].is_none() && self.next_life == life {
                    for router in &self.routers {
                        router.away(now, worker)?;
                    }
                }
            }
            Due::Returns(worker) => {
                if self.lives[worker].is_none() {
                    self.lives[worker] = Some(self.next_life);
                    self.next_life += 1;
                    for router in &mut self.routers {
                        router.back(now, worker)?;
                    }
                }
            }
            Due::Sample => {
                self.sample();
                self.schedule(now + self.outcome.width, Due::Sample);
            }
        }
        Ok(())
    }

    /// Passes on what an engine has to tell, and sees to its next call.
    fn hear(&mut self, worker: usize) {
        while let Some((at, output)) = self.engines[worker].poll_output() {
            match output {
                FastOutput::FirstToken { request, cached_tokens } => {
                    self.first_token(at, request, cached_tokens);
                }
                FastOutput::Output { request, tokens } => {
                    if let Some((router, live)) = self.live(request) {
                        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                        self.routers[router].core.progress(at, live, Step::Output(tokens));
                        self.touched(at, router);
                    }
                }
                FastOutput::Done { request } => self.done(at, request),
                FastOutput::Cache(changes) => {
                    let life = self.lives[worker].filter(|_| self.config.index);
                    let Some(life) = life else { continue };
                    let events = kv::events(self.trace.blocks(), life, &changes);
                    if self.config.event_delay.is_zero() {
                        self.routers.iter().for_each(|r| r.hear(at, worker, &events));
                    } else {
                        let number = self.scheduled;
                        self.on_the_way.insert(number, (worker, life, events));
                        self.schedule(at + self.config.event_delay, Due::Kv(number));
                    }
                }
            }
        }
        self.promise(worker);
    }

    pub(super) fn promise(&mut self, worker: usize) {
        let wants = self.engines[worker].poll_timeout();
        if wants != self.promised[worker] {
            self.promised[worker] = wants;
            if let Some(at) = wants {
                self.schedule(at, Due::Engine(worker));
            }
        }
    }

    fn live(&self, request: u32) -> Option<(usize, &Live)> {
        let flight = self.flights[request as usize].as_ref()?;
        match &flight.state {
            State::Running(live) => Some((flight.router, live)),
            _ => None,
        }
    }

    fn fail(&mut self, now: Time, worker: usize) {
        if self.lives[worker].take().is_none() {
            return;
        }
        let inside = self.engines[worker].kill(now);
        // What it had to tell before, it did.
        self.hear(worker);
        self.schedule(now + PROBE, Due::Probed(worker, self.next_life));
        for number in inside {
            let Some(flight) = &mut self.flights[number as usize] else { continue };
            let core = &self.routers[flight.router].core;
            match std::mem::replace(&mut flight.state, State::Moving) {
                State::Sent(checked) => {
                    let (admission, _) = core.retry(now, checked, Failure::Broken);
                    self.place(now, number, admission);
                }
                State::Running(live) => {
                    core.finish(now, live);
                    let router = flight.router;
                    self.touched(now, router);
                    self.outcome.broken += 1;
                    self.over(now, number);
                }
                other => flight.state = other,
            }
        }
    }

    pub(super) fn set_timer(&mut self, now: Time, at: usize) {
        let router = &mut self.routers[at];
        let Some(due) = router.core.poll_timeout() else { return };
        // What a core would have done long ago is due now: time doesn't go back.
        let due = due.max(now);
        if router.timer.is_none_or(|set| due < set) {
            router.timer = Some(due);
            self.schedule(due, Due::Timer(at));
        }
    }

    fn sample(&mut self) {
        let mut sample = Sample::default();
        for (engine, before) in self.engines.iter().zip(&mut self.sampled) {
            let now = *engine.metrics();
            let before = std::mem::replace(before, now);
            sample.prompt_tokens.push(now.prompt_tokens - before.prompt_tokens);
            sample.cached_tokens.push(now.cached_tokens - before.cached_tokens);
            sample.busy.push(now.busy - before.busy);
        }
        self.outcome.sample(sample);
    }

    fn outcome(mut self) -> Outcome {
        self.sample();
        let mut it = self.outcome;
        for metrics in self.engines.iter().map(FastEngine::metrics) {
            it.prompt_tokens += metrics.prompt_tokens;
            it.cached_tokens += metrics.cached_tokens;
            it.preemptions += metrics.preemptions;
            it.busy.push(metrics.busy);
        }
        it.ttft_us.sort();
        it.tpot_ns.sort();
        it.lasted = self.end.since(START);
        it
    }
}

fn scaled(config: &Config, at: Duration) -> Duration {
    at.div_f64(config.rate_scale)
}

pub(super) fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}
