//! [`FastEngine`]: one engine on the caller's time line, as [`crate::engine::Engine`] is, on blocks.

use super::batch::{Batch, Job};
use super::cache::{Change, FastCache, run};
use super::strides::Stride;
use crate::engine::model::{EngineConfig, SubmitError};
use homing_core::time::Time;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// One request. What follows its full blocks, and its answer, is nobody else's.
#[derive(Clone, Copy, Debug)]
pub struct FastRequest<'a> {
    /// The caller's name for it; unique among those inside.
    pub request: u32,
    /// Its full blocks, as runs of numbers.
    pub blocks: &'a [Range<u32>],
    /// Length of the prompt; at least 1.
    pub prompt_tokens: u64,
    /// Length of the answer; at least 1.
    pub output_tokens: u64,
}

/// What the engine has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastOutput {
    /// Prefill is done, and the first output token with it.
    FirstToken {
        /// Which request.
        request: u32,
        /// Prompt tokens that came from the cache.
        cached_tokens: u64,
    },
    /// The answer has grown into another block, by so many tokens since that was told last.
    Output {
        /// Which request.
        request: u32,
        /// How many.
        tokens: u64,
    },
    /// The answer is complete.
    Done {
        /// Which request.
        request: u32,
    },
    /// What changed in the cache, of one step.
    Cache(Vec<Change>),
}

/// What an engine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastMetrics {
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of these, reused.
    pub cached_tokens: u64,
    /// Times that a request lost its blocks while running.
    pub preemptions: u64,
    /// Time in steps.
    pub busy: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    Begin(Time),
    /// Steps that are alike.
    Steps {
        began: Time,
        steps: u64,
        /// Where there is more than one.
        stride: Option<Stride>,
        ends: Time,
    },
}

/// A simulated engine on blocks.
#[derive(Debug)]
pub struct FastEngine {
    config: EngineConfig,
    cache: FastCache,
    batch: Batch,
    phase: Phase,
    outputs: VecDeque<(Time, FastOutput)>,
    metrics: FastMetrics,
}

impl FastEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            config,
            cache: FastCache::new(config.cache.blocks),
            batch: Batch::new(config.batch, config.cache.block_size),
            phase: Phase::Idle,
            outputs: VecDeque::new(),
            metrics: FastMetrics::default(),
        }
    }

    /// Takes a request that arrives at `now`; an answer is cut off at the end of the context.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has changed then.
    pub fn submit(&mut self, now: Time, request: &FastRequest<'_>) -> Result<(), SubmitError> {
        self.catch_up(now);
        let (prompt, limit) = (request.prompt_tokens, self.max_model_len());
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.output_tokens == 0 {
            return Err(SubmitError::EmptyOutput);
        }
        if prompt >= limit {
            let tokens = |n| usize::try_from(n).unwrap_or(usize::MAX);
            return Err(SubmitError::TooLong { prompt: tokens(prompt), limit: tokens(limit) });
        }
        let output = request.output_tokens.min(limit - prompt);
        let size = u64::from(self.config.cache.block_size.max(1));
        let full = usize::try_from(prompt / size).unwrap_or(usize::MAX);
        let blocks = request.blocks.iter().flat_map(run).take(full).collect();
        if !self.batch.enqueue(Job::new(request.request, blocks, prompt, output)) {
            return Err(SubmitError::QueueFull { inside: self.batch.inside() });
        }
        match &mut self.phase {
            Phase::Idle => self.phase = Phase::Begin(now),
            // The newcomer is planned with when the step that runs now ends.
            Phase::Steps { began, steps, stride: Some(stride), ends } => {
                let since = u64::try_from(now.since(*began).as_micros()).unwrap_or(u64::MAX);
                *steps = stride.steps_until(since, *steps);
                *ends = *began + Duration::from_micros(stride.micros(*steps));
            }
            Phase::Begin(_) | Phase::Steps { .. } => {}
        }
        Ok(())
    }

    /// The process ends: who was inside, and nothing is left.
    pub fn kill(&mut self, now: Time) -> Vec<u32> {
        self.catch_up(now);
        if let Phase::Steps { began, .. } = self.phase {
            self.metrics.busy += now.since(began);
        }
        let inside = self.batch.requests().collect();
        self.cache = FastCache::new(self.config.cache.blocks);
        self.batch = Batch::new(self.config.batch, self.config.cache.block_size);
        self.phase = Phase::Idle;
        inside
    }

    /// Does what is due at `now` or before.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(at) = self.poll_timeout().filter(|at| *at <= now) {
            self.turn(at);
        }
    }

    /// When to call [`Self::handle_timeout`] next. A request that is submitted meanwhile may bring it forward.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle => None,
            Phase::Begin(at) | Phase::Steps { ends: at, .. } => Some(at),
        }
    }

    /// The next thing that happened, and when.
    pub fn poll_output(&mut self) -> Option<(Time, FastOutput)> {
        self.outputs.pop_front()
    }

    /// What it counted so far.
    #[must_use]
    pub const fn metrics(&self) -> &FastMetrics {
        &self.metrics
    }

    /// Tokens of prompt and answer together at most.
    #[must_use]
    pub fn max_model_len(&self) -> u64 {
        let cache = self.cache.capacity() as u64 * u64::from(self.config.cache.block_size.max(1));
        cache.min(self.config.max_model_len as u64)
    }

    fn catch_up(&mut self, now: Time) {
        while let Some(at) = self.poll_timeout().filter(|at| *at < now) {
            self.turn(at);
        }
    }

    fn turn(&mut self, at: Time) {
        if let Phase::Steps { began, steps, .. } = self.phase {
            self.metrics.busy += at.since(began);
            self.end_steps(at, steps);
        }
        let Self { batch, cache, outputs, .. } = self;
        let plan = batch.plan(cache, |job| {
            let tokens = job.generated - job.told;
            job.told = job.generated;
            if tokens > 0 {
                outputs.push_back((at, FastOutput::Output { request: job.request, tokens }));
            }
        });
        self.metrics.preemptions += plan.preempted;
        self.metrics.prompt_tokens += plan.queried;
        self.metrics.cached_tokens += plan.hit;
        if plan.work.tokens() == 0 {
            self.phase = Phase::Idle;
            return;
        }
        // What changed in the cache is told at the end of the very step.
        let stride = Some(plan.alike).filter(|n| *n > 1 && !cache.has_changes());
        let stride = stride.and_then(|_| Stride::after(&self.config.cost, &plan.work));
        let (steps, length) = match &stride {
            Some(stride) => (plan.alike, Duration::from_micros(stride.micros(plan.alike))),
            None => (1, self.config.cost.step(&plan.work)),
        };
        self.phase = Phase::Steps { began: at, steps, stride, ends: at + length };
    }

    fn end_steps(&mut self, at: Time, steps: u64) {
        let Self { outputs, batch, cache, .. } = self;
        batch.complete(cache, steps, |job, last| {
            let request = job.request;
            if job.generated == steps {
                let cached_tokens = job.cached.unwrap_or(0);
                job.told = job.generated;
                outputs.push_back((at, FastOutput::FirstToken { request, cached_tokens }));
            }
            if last {
                outputs.push_back((at, FastOutput::Done { request }));
            }
        });
        let changes = cache.take_changes();
        if !changes.is_empty() {
            outputs.push_back((at, FastOutput::Cache(changes)));
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
