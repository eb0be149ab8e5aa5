//! The engine on its time line: one step after another, each as long as the cost model says.
//!
//! The caller owns the clock. It tells the engine what time it is with every call, and comes back at
//! [`Engine::poll_timeout`]; coming back late changes nothing, because steps that ended in the past are
//! replayed at the instants at which they ended. So a mock server with a coarse timer and a simulation
//! in virtual time see the same modelled latencies.

use super::batch::{Batch, BatchConfig, Job};
use super::cache::{CacheConfig, KvCache};
use super::cost::CostModel;
use super::metrics::EngineMetrics;
use super::sequence::{Namespace, Sequence};
use homing_core::hash::EngineHash;
use homing_core::index::event::KvEvent;
use homing_core::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The caller's name for a request; unique among those inside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Everything that makes one engine differ from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The KV cache.
    pub cache: CacheConfig,
    /// The scheduler's limits.
    pub batch: BatchConfig,
    /// How long steps take.
    pub cost: CostModel,
    /// Tokens of prompt and output together (`max_model_len`). The cache's size bounds it further.
    pub max_model_len: usize,
}

impl Default for EngineConfig {
    /// The parts' defaults, and a context of 32,768 tokens.
    fn default() -> Self {
        Self {
            cache: CacheConfig::default(),
            batch: BatchConfig::default(),
            cost: CostModel::default(),
            max_model_len: 32_768,
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// The caller's name for it.
    pub id: RequestId,
    /// The prompt; at least one token.
    pub tokens: Vec<u32>,
    /// What the model will generate; at least one token. The caller supplies it so that the text can
    /// come back in the next turn as the same tokens, and hit the blocks that decoding filled.
    pub output: Vec<u32>,
    /// How the output ends, if the context doesn't end it before.
    pub ending: FinishReason,
    /// Adapter and salt.
    pub namespace: Namespace,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model had said all it wanted to.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

/// What the engine has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineOutput {
    /// Prefill is done, and output token 0 with it.
    FirstToken {
        /// Which request.
        id: RequestId,
        /// Prompt tokens that came from the cache.
        cached_tokens: usize,
        /// Time since its submission.
        ttft: Duration,
    },
    /// Another output token.
    Token {
        /// Which request.
        id: RequestId,
        /// Its place in the output; the second token is 1.
        index: usize,
    },
    /// The token just reported was the last one.
    Done {
        /// Which request.
        id: RequestId,
        /// Why it ended.
        reason: FinishReason,
    },
    /// The KV events of one step: one batch on the wire.
    Kv(Vec<KvEvent>),
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is nothing to compute.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// Nothing would be generated.
    #[error("no output tokens were asked for; ask for at least one")]
    EmptyOutput,
    /// No room for a single output token.
    #[error("the prompt has {prompt} tokens, and the context ends at {limit}; shorten the prompt")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of prompt and output together at most.
        limit: usize,
    },
    /// As many requests as may be are inside already.
    #[error("{inside} requests run or wait already, and that is the limit; try again later")]
    QueueFull {
        /// Requests that run or wait.
        inside: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing to do.
    Idle,
    /// A step begins at this instant.
    Begin(Time),
    /// A step runs until this instant.
    Step(Time),
}

/// A simulated engine. See the module for who owns the clock.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    cache: KvCache,
    batch: Batch,
    phase: Phase,
    outputs: VecDeque<(Time, EngineOutput)>,
    metrics: EngineMetrics,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            config,
            cache: KvCache::new(config.cache),
            batch: Batch::new(config.batch),
            phase: Phase::Idle,
            outputs: VecDeque::new(),
            metrics: EngineMetrics::default(),
        }
    }

    /// Takes a request that arrives at `now`. Output beyond the end of the context is cut off, and the
    /// request then ends with [`FinishReason::Length`].
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has changed then.
    pub fn submit(&mut self, now: Time, request: EngineRequest) -> Result<(), SubmitError> {
        self.catch_up(now);
        let EngineRequest { id, tokens, mut output, mut ending, namespace } = request;
        let limit = self.max_model_len();
        if tokens.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if output.is_empty() {
            return Err(SubmitError::EmptyOutput);
        }
        if tokens.len() >= limit {
            return Err(SubmitError::TooLong { prompt: tokens.len(), limit });
        }
        if output.len() > limit - tokens.len() {
            output.truncate(limit - tokens.len());
            ending = FinishReason::Length;
        }
        let sequence = Sequence::new(self.cache.namer(), namespace, tokens);
        if !self.batch.enqueue(Job::new(id, sequence, output, ending, now)) {
            let inside = self.batch.running() + self.batch.waiting();
            return Err(SubmitError::QueueFull { inside });
        }
        if matches!(self.phase, Phase::Idle) {
            self.phase = Phase::Begin(now);
        }
        Ok(())
    }

    /// Drops a request whose client has gone; its blocks are free at once. False if it is not here.
    pub fn abort(&mut self, now: Time, id: RequestId) -> bool {
        self.catch_up(now);
        let found = self.batch.remove(&mut self.cache, id);
        if found {
            self.metrics.aborted += 1;
        }
        found
    }

    /// Forgets what is cached; false while requests hold blocks. Its event leaves with the next step that
    /// runs, as vLLM's does.
    pub fn clear_cache(&mut self, now: Time) -> bool {
        self.catch_up(now);
        self.cache.clear()
    }

    /// Does what is due at `now` or before.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(at) = self.poll_timeout().filter(|at| *at <= now) {
            self.turn(at);
        }
    }

    /// When to call [`Self::handle_timeout`] next; `None`: not before the next request.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Idle => None,
            Phase::Begin(at) | Phase::Step(at) => Some(at),
        }
    }

    /// The next thing that happened, and when.
    pub fn poll_output(&mut self) -> Option<(Time, EngineOutput)> {
        self.outputs.pop_front()
    }

    /// Tokens of prompt and output together at most: `max_model_len`, or less if the cache is smaller.
    #[must_use]
    pub fn max_model_len(&self) -> usize {
        let cache = self.cache.capacity() * self.config.cache.block_size.max(1) as usize;
        self.config.max_model_len.min(cache)
    }

    /// How it was made.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What it measured so far.
    #[must_use]
    pub const fn metrics(&self) -> &EngineMetrics {
        &self.metrics
    }

    /// Requests in the batch.
    #[must_use]
    pub fn running(&self) -> usize {
        self.batch.running()
    }

    /// Requests in the queue.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.batch.waiting()
    }

    /// The share of the cache that requests hold now, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        self.cache.held() as f64 / self.cache.capacity() as f64
    }

    /// How many tokens of a prompt would be reused now.
    #[must_use]
    pub fn cached_tokens(&self, tokens: Vec<u32>, namespace: Namespace) -> usize {
        self.cache.cached_tokens(&Sequence::new(self.cache.namer(), namespace, tokens))
    }

    /// The reusable blocks, one entry per copy, in the order of their names.
    pub fn cached_blocks(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.cache.content()
    }

    /// Like `handle_timeout`, but leaves what is due exactly now: more requests may arrive at this very
    /// instant, and belong into the same step.
    fn catch_up(&mut self, now: Time) {
        while let Some(at) = self.poll_timeout().filter(|at| *at < now) {
            self.turn(at);
        }
    }

    /// Ends the running step if there is one, and begins the next if there is work.
    fn turn(&mut self, at: Time) {
        if matches!(self.phase, Phase::Step(_)) {
            self.end_step(at);
        }
        let plan = self.batch.plan(&mut self.cache);
        self.metrics.preemptions += plan.preempted;
        for (prompt, cached, arrived) in plan.admitted {
            self.metrics.admitted(prompt, cached, at.since(arrived));
        }
        self.phase = if plan.work.tokens() == 0 {
            Phase::Idle
        } else {
            Phase::Step(at + self.config.cost.step(&plan.work))
        };
    }

    fn end_step(&mut self, at: Time) {
        let Self { outputs, metrics, batch, cache, .. } = self;
        batch.complete(cache, |job, last| {
            let id = job.id;
            if job.generated == 1 {
                let ttft = at.since(job.arrived);
                metrics.first_token(job.prompt_tokens, ttft);
                let cached_tokens = job.cached.unwrap_or(0);
                outputs.push_back((at, EngineOutput::FirstToken { id, cached_tokens, ttft }));
            } else {
                metrics.token(at.since(job.last_token));
                outputs.push_back((at, EngineOutput::Token { id, index: job.generated - 1 }));
            }
            job.last_token = at;
            if last {
                metrics.done(job.ending, at.since(job.arrived));
                outputs.push_back((at, EngineOutput::Done { id, reason: job.ending }));
            }
        });
        let events = cache.take_events();
        if !events.is_empty() {
            outputs.push_back((at, EngineOutput::Kv(events)));
        }
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
