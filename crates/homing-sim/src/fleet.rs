//! Several engines and a router in virtual time: the same engine code as behind the mock server, driven
//! by a heap of events instead of a clock.
//!
//! Sessions are closed loops, as real clients are: a turn is sent when the turn before has ended and its
//! think time is over. Equal inputs give equal runs: events of one instant happen in the order in which
//! they were scheduled.

use crate::engine::{
    Engine, EngineConfig, EngineOutput, EngineRequest, FinishReason, RequestId, SubmitError,
};
use crate::plan::Plan;
use homing_core::dice::Dice;
use homing_core::hash::{HashSpace, Prompt};
use homing_core::index::event::KvEvent;
use homing_core::time::Time;
use homing_wire::engine::Histogram;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// How many engines, and which.
#[derive(Clone, Copy, Debug)]
pub struct FleetConfig {
    /// At least 1.
    pub engines: usize,
    /// Each is made like this; their seeds count up from this one's.
    pub engine: EngineConfig,
}

/// A turn that wants an engine.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Counts turns from 0, in the order of their arrival.
    pub request: RequestId,
    /// Index of the session in the plan.
    pub session: usize,
    /// Its name.
    pub session_id: &'a str,
    /// Index of the turn in the session.
    pub turn: usize,
    /// The prompt in blocks of the engines' size, in the default hash space.
    pub prompt: &'a Prompt,
    /// The prompt's tokens.
    pub tokens: &'a [u32],
    /// How long the answer will be; what a client's `max_tokens` says.
    pub output_tokens: usize,
}

/// Decides where turns go, and hears what became of them. Only [`Router::route`] must be written.
pub trait Router {
    /// The index of the engine that gets this turn.
    fn route(&mut self, now: Time, ask: &Ask<'_>) -> usize;

    /// An engine published what changed in its cache.
    fn on_kv(&mut self, now: Time, engine: usize, events: Vec<KvEvent>) {
        let _ = (now, engine, events);
    }

    /// A turn's prefill is over; `cached_tokens` of its prompt were reused.
    fn on_first_token(&mut self, now: Time, request: RequestId, cached_tokens: usize) {
        let _ = (now, request, cached_tokens);
    }

    /// Another token of the answer, by its place; the second token is 1.
    fn on_token(&mut self, now: Time, request: RequestId, index: usize) {
        let _ = (now, request, index);
    }

    /// A turn has ended.
    fn on_done(&mut self, now: Time, request: RequestId) {
        let _ = (now, request);
    }
}

/// Sends every turn to an engine picked evenly at random: the baseline.
#[derive(Clone, Debug)]
pub struct RandomRouter<D> {
    dice: D,
    engines: usize,
}

impl<D: Dice> RandomRouter<D> {
    /// A router over `engines` engines.
    #[must_use]
    pub const fn new(engines: usize, dice: D) -> Self {
        Self { dice, engines }
    }
}

impl<D: Dice> Router for RandomRouter<D> {
    fn route(&mut self, _now: Time, _ask: &Ask<'_>) -> usize {
        self.dice.below(self.engines)
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sessions played.
    pub sessions: usize,
    /// Turns played.
    pub turns: u64,
    /// Prompt tokens reused over prompt tokens, as the engines counted them.
    pub hit_rate: f64,
    /// What one infinite cache would have reached with the same turns.
    pub best_hit_rate: f64,
    /// Time to the first token, in seconds, as a reader of the engines' `/metrics` would add it up.
    pub ttft: Histogram,
    /// Turns that each engine served.
    pub turns_per_worker: Vec<u64>,
    /// Times that a request lost its blocks while running.
    pub preemptions: u64,
    /// Virtual time from the first turn to the end of the last.
    pub lasted: Duration,
}

/// Why a run stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// There is nowhere to go.
    #[error("a fleet needs at least one engine")]
    NoEngines,
    /// The router named an engine that is not there.
    #[error("the router sent turn {turn} of {session} to engine {engine} of {engines}")]
    NoSuchEngine {
        /// The session's name.
        session: String,
        /// Index of the turn.
        turn: usize,
        /// What the router said.
        engine: usize,
        /// How many there are.
        engines: usize,
    },
    /// The engine did not take the turn.
    #[error("engine {engine} refused turn {turn} of {session}: {why}")]
    Refused {
        /// The session's name.
        session: String,
        /// Index of the turn.
        turn: usize,
        /// Which engine.
        engine: usize,
        /// Its reason.
        why: SubmitError,
    },
}

/// Plays `plan` over a fleet, from [`Time::ZERO`] on.
///
/// # Errors
/// [`FleetError`]: the run can't go on, because a closed loop would never end without that turn.
pub fn run(
    config: &FleetConfig,
    plan: &Plan,
    router: &mut dyn Router,
) -> Result<Report, FleetError> {
    if config.engines == 0 {
        return Err(FleetError::NoEngines);
    }
    let mut fleet = Fleet::new(config, plan);
    while let Some(Reverse((now, _, what))) = fleet.due.pop() {
        let engine = match what {
            Due::Turn { session } => fleet.send(now, session, router)?,
            Due::Engine(engine) => {
                fleet.engines[engine].handle_timeout(now);
                engine
            }
        };
        fleet.hear(engine, router);
    }
    Ok(fleet.report(config.engine.cache.block_size))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The next turn of a session.
    Turn { session: usize },
    /// An engine asked to be called.
    Engine(usize),
}

struct Fleet<'a> {
    plan: &'a Plan,
    block_size: u32,
    engines: Vec<Engine>,
    /// What each engine was last promised to be called at.
    promised: Vec<Option<Time>>,
    /// The number makes the order of one instant that of scheduling.
    due: BinaryHeap<Reverse<(Time, u64, Due)>>,
    scheduled: u64,
    /// Per session, its next turn.
    next_turn: Vec<usize>,
    /// Per request, its session.
    session_of: Vec<usize>,
    turns_per_worker: Vec<u64>,
    end: Time,
}

impl<'a> Fleet<'a> {
    fn new(config: &FleetConfig, plan: &'a Plan) -> Self {
        let engine = |i: usize| {
            let mut engine = config.engine;
            engine.cache.seed = engine.cache.seed.wrapping_add(i as u64);
            Engine::new(engine)
        };
        let mut it = Self {
            plan,
            block_size: config.engine.cache.block_size,
            engines: (0..config.engines).map(engine).collect(),
            promised: vec![None; config.engines],
            due: BinaryHeap::new(),
            scheduled: 0,
            next_turn: vec![0; plan.sessions.len()],
            session_of: Vec::new(),
            turns_per_worker: vec![0; config.engines],
            end: Time::ZERO,
        };
        for (session, planned) in plan.sessions.iter().enumerate() {
            if !planned.turns.is_empty() {
                it.schedule(Time::ZERO + planned.start, Due::Turn { session });
            }
        }
        it
    }

    fn schedule(&mut self, at: Time, what: Due) {
        self.due.push(Reverse((at, self.scheduled, what)));
        self.scheduled += 1;
    }

    /// Routes and submits the next turn of a session; returns the engine.
    fn send(
        &mut self,
        now: Time,
        session: usize,
        router: &mut dyn Router,
    ) -> Result<usize, FleetError> {
        let planned = &self.plan.sessions[session];
        let turn = self.next_turn[session];
        let what = &planned.turns[turn];
        let request = RequestId(self.session_of.len() as u64);
        let prompt = Prompt::from_tokens(&what.prompt, self.block_size, HashSpace::default());
        let ask = Ask {
            request,
            session,
            session_id: &planned.id,
            turn,
            prompt: &prompt,
            tokens: &what.prompt,
            output_tokens: what.output.len(),
        };
        let engine = router.route(now, &ask);
        let engines = self.engines.len();
        let Some(chosen) = self.engines.get_mut(engine) else {
            return Err(FleetError::NoSuchEngine {
                session: planned.id.clone(),
                turn,
                engine,
                engines,
            });
        };
        self.session_of.push(session);
        self.next_turn[session] += 1;
        self.turns_per_worker[engine] += 1;
        let submission = EngineRequest {
            id: request,
            tokens: what.prompt.to_vec(),
            output: what.output.clone(),
            ending: FinishReason::Length,
            namespace: Default::default(),
        };
        chosen.submit(now, submission).map_err(|why| FleetError::Refused {
            session: planned.id.clone(),
            turn,
            engine,
            why,
        })?;
        Ok(engine)
    }

    /// Passes on what an engine has to tell, and sees to its next call.
    fn hear(&mut self, engine: usize, router: &mut dyn Router) {
        while let Some((at, output)) = self.engines[engine].poll_output() {
            match output {
                EngineOutput::FirstToken { id, cached_tokens, .. } => {
                    router.on_first_token(at, id, cached_tokens);
                }
                EngineOutput::Token { id, index } => router.on_token(at, id, index),
                EngineOutput::Done { id, .. } => {
                    router.on_done(at, id);
                    self.end = self.end.max(at);
                    let session = self.session_of[id.0 as usize];
                    let turns = &self.plan.sessions[session].turns;
                    if let Some(next) = turns.get(self.next_turn[session]) {
                        self.schedule(at + next.think, Due::Turn { session });
                    }
                }
                EngineOutput::Kv(events) => router.on_kv(at, engine, events),
            }
        }
        let wants = self.engines[engine].poll_timeout();
        if wants != self.promised[engine] {
            self.promised[engine] = wants;
            if let Some(at) = wants {
                self.schedule(at, Due::Engine(engine));
            }
        }
    }

    fn report(self, block_size: u32) -> Report {
        let first = self.plan.sessions.iter().map(|s| s.start).min().unwrap_or_default();
        let mut report = Report {
            sessions: self.plan.sessions.len(),
            turns: self.turns_per_worker.iter().sum(),
            best_hit_rate: self.plan.best_hit_rate(block_size),
            turns_per_worker: self.turns_per_worker,
            lasted: self.end.since(Time::ZERO + first),
            ..Report::default()
        };
        let (mut hits, mut queries) = (0, 0);
        for engine in &self.engines {
            let m = engine.metrics();
            hits += m.prefix_cache_hits;
            queries += m.prefix_cache_queries;
            report.preemptions += m.preemptions;
            report.ttft.merge(&m.ttft.snapshot());
        }
        report.hit_rate = if queries == 0 { 0.0 } else { hits as f64 / queries as f64 };
        report
    }
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
