//! The way of one request through the world, which is the gateway's: look up, admit, check, send; commit with the
//! first token, finish with the last. What an engine refuses is retried as the core says.

use super::router::prompt;
use super::world::{Due, World, micros};
use crate::engine::SubmitError;
use crate::engine::fast::FastRequest;
use homing_core::ask::{
    Abandon, Admission, Checked, Dispatch, Failure, Live, Output, Step, Ticket, Usage,
};
use homing_core::time::Time;

/// A request on its way.
pub(super) struct Flight {
    pub(super) router: usize,
    pub(super) arrived: Time,
    pub(super) first: Option<Time>,
    pub(super) cached: u64,
    /// Where it runs.
    pub(super) worker: usize,
    pub(super) state: State,
}

pub(super) enum State {
    /// Being placed.
    Moving,
    Waiting(Ticket),
    Sent(Checked),
    Running(Live),
}

impl World<'_> {
    pub(super) fn arrive(&mut self, now: Time, number: u32) {
        let (trace, config) = (self.trace, self.config);
        let request = &trace.requests[number as usize];
        let at = number as usize % self.routers.len();
        let router = &self.routers[at];
        // Where nobody asks for them, blocks need not be named.
        let named = config.index || config.baseline == Some(super::Baseline::TextTree);
        let runs = if named { trace.runs(request) } else { &[] };
        let prompt = prompt(trace.blocks(), runs, request.prompt_tokens);
        let ask = router.ask(config, prompt, request.session);
        let admission = router.core.admit(now, ask);
        let state = State::Moving;
        let flight = Flight { router: at, arrived: now, first: None, cached: 0, worker: 0, state };
        self.flights[number as usize] = Some(flight);
        self.place(now, number, admission);
    }

    /// Does what the core says of a request, until it is somewhere or over.
    pub(super) fn place(&mut self, now: Time, number: u32, mut admission: Admission) {
        let Some(flight) = &mut self.flights[number as usize] else { return };
        let at = flight.router;
        loop {
            let router = &self.routers[at];
            let checked = match admission {
                Admission::Granted(grant) => match router.core.check_dispatch(now, grant) {
                    Dispatch::Go(checked) => checked,
                    Dispatch::Again(mut ask) => {
                        router.core.look_up(&mut ask);
                        admission = router.core.admit(now, ask);
                        continue;
                    }
                    // No shared store is played here: nothing is claimed, and so nothing refused.
                    Dispatch::Claim(claiming) => {
                        let _ = router.core.abandon(now, claiming, Abandon::NotDispatched);
                        self.outcome.refused += 1;
                        self.over(now, number);
                        break;
                    }
                    Dispatch::Refused(_) => {
                        self.outcome.refused += 1;
                        self.over(now, number);
                        break;
                    }
                },
                Admission::Waiting(ticket) => {
                    self.waiting.insert((at, ticket.id()), number);
                    flight.state = State::Waiting(ticket);
                    break;
                }
                Admission::Refused(_) => {
                    self.outcome.refused += 1;
                    self.over(now, number);
                    break;
                }
            };
            let worker = router.place(checked.grant().worker().id);
            let failure = match worker.filter(|w| self.lives[*w].is_some()) {
                None => Failure::Refused,
                Some(worker) => {
                    let request = &self.trace.requests[number as usize];
                    let request = FastRequest {
                        request: number,
                        blocks: self.trace.runs(request),
                        prompt_tokens: u64::from(request.prompt_tokens),
                        output_tokens: u64::from(request.output_tokens),
                    };
                    match self.engines[worker].submit(now, &request) {
                        Ok(()) => {
                            (flight.worker, flight.state) = (worker, State::Sent(checked));
                            self.outcome.placed[worker] += 1;
                            self.promise(worker);
                            break;
                        }
                        Err(SubmitError::QueueFull { .. }) => Failure::Overloaded(None),
                        // It fits nowhere: the engines are alike.
                        Err(_) => {
                            router.core.abandon(now, checked, Abandon::Failed);
                            self.outcome.refused += 1;
                            self.over(now, number);
                            break;
                        }
                    }
                }
            };
            admission = router.core.retry(now, checked, failure).0;
        }
        self.set_timer(now, at);
        self.touched(now, at);
    }

    /// Whoever may try again does.
    pub(super) fn wake(&mut self, now: Time) {
        for at in 0..self.routers.len() {
            while let Some(Output::Wake(id)) = self.routers[at].core.poll_output() {
                let Some(number) = self.waiting.remove(&(at, id)) else { continue };
                let Some(flight) = &mut self.flights[number as usize] else { continue };
                match std::mem::replace(&mut flight.state, State::Moving) {
                    State::Waiting(ticket) => {
                        let admission = self.routers[at].core.claim(now, ticket);
                        self.place(now, number, admission);
                    }
                    other => flight.state = other,
                }
            }
        }
    }

    pub(super) fn first_token(&mut self, now: Time, request: u32, cached: u64) {
        let Some(flight) = &mut self.flights[request as usize] else { return };
        let core = &self.routers[flight.router].core;
        match std::mem::replace(&mut flight.state, State::Moving) {
            State::Sent(checked) => {
                let (live, _) = core.commit(now, checked);
                core.progress(now, &live, Step::FirstToken);
                flight.state = State::Running(live);
                (flight.first, flight.cached) = (Some(now), cached);
                self.outcome.ttft_us.add(micros(now.since(flight.arrived)));
                let router = flight.router;
                self.touched(now, router);
            }
            other => flight.state = other,
        }
    }

    pub(super) fn done(&mut self, now: Time, number: u32) {
        let Some(flight) = &mut self.flights[number as usize] else { return };
        let request = &self.trace.requests[number as usize];
        let core = &self.routers[flight.router].core;
        if let State::Running(live) = std::mem::replace(&mut flight.state, State::Moving) {
            let prompt_tokens = u64::from(request.prompt_tokens);
            let cached_tokens = Some(flight.cached);
            core.progress(now, &live, Step::Usage(Usage { prompt_tokens, cached_tokens }));
            core.finish(now, live);
        }
        if let Some(first) = flight.first
            && request.output_tokens > 1
        {
            let more = u64::from(request.output_tokens - 1);
            self.outcome.tpot_ns.add(micros(now.since(first)) * 1000 / more);
        }
        let router = flight.router;
        self.outcome.answered += 1;
        self.touched(now, router);
        self.over(now, number);
    }

    /// A request has ended, well or not: those that waited for that are due.
    pub(super) fn over(&mut self, now: Time, number: u32) {
        self.flights[number as usize] = None;
        self.ended += 1;
        self.end = self.end.max(now);
        let mut next = self.followers[number as usize][0].take();
        while let Some(follower) = next {
            let request = &self.trace.requests[follower as usize];
            let at = match request.think {
                Some(think) => now + think,
                None => now.max(self.recorded(request.at)),
            };
            self.schedule(at, Due::Arrival(follower));
            next = self.followers[follower as usize][1].take();
        }
    }
}
