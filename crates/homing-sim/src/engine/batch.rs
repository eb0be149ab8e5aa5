//! Continuous batching: who computes how many tokens in the next step.
//!
//! As vLLM's v1 scheduler decides it, step by step:
//!
//! 1. Running requests first, oldest first: one token each while decoding, a chunk while prefilling,
//!    until the token budget is spent. One that finds no block for its next token preempts the
//!    *youngest* running request: it loses its blocks, goes to the head of the queue and computes
//!    anew (mostly from its own cached blocks) when it is admitted again.
//! 2. Then waiting requests in order of arrival, if nothing was preempted. One is admitted when its
//!    whole prompt fits into free blocks, and takes them all at once; the first that doesn't fit
//!    stops the queue, so nothing overtakes.
//!
//! Blocks become reusable when the step that fills them is planned, as in vLLM: a request admitted to
//! the same step may already share them.

use super::cache::{BlockTable, KvCache};
use super::cost::Work;
use super::model::{FinishReason, RequestId};
use super::sequence::Sequence;
use homing_core::time::Time;
use std::collections::VecDeque;

/// The scheduler's limits, named and set as vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// Tokens computed in one step at most (`max_num_batched_tokens`). At least 1.
    pub max_tokens: usize,
    /// Requests in the batch at most (`max_num_seqs`). At least 1.
    pub max_requests: usize,
    /// Requests inside at most, waiting ones and running ones (`max_num_queued_reqs`); more are refused.
    pub max_queued: usize,
}

impl Default for BatchConfig {
    /// vLLM's own defaults for a server on a large GPU. It has no bound for its queue by default; 4,096
    /// is ours, far above what any simulated fleet should queue.
    fn default() -> Self {
        Self { max_tokens: 8192, max_requests: 256, max_queued: 4096 }
    }
}

/// A request inside the engine.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) sequence: Sequence,
    pub(super) prompt_tokens: usize,
    /// What it will generate, and how that ends.
    pub(super) output: Vec<u32>,
    pub(super) ending: FinishReason,
    /// Output tokens that it has generated.
    pub(super) generated: usize,
    pub(super) arrived: Time,
    pub(super) last_token: Time,
    /// Prompt tokens reused at its *first* admission; a resumption after preemption doesn't count.
    pub(super) cached: Option<usize>,
    table: Option<BlockTable>,
    computed: usize,
    scheduled: usize,
}

impl Job {
    pub(super) fn new(
        id: RequestId,
        sequence: Sequence,
        output: Vec<u32>,
        ending: FinishReason,
        arrived: Time,
    ) -> Self {
        Self {
            id,
            prompt_tokens: sequence.len(),
            sequence,
            output,
            ending,
            generated: 0,
            arrived,
            last_token: arrived,
            cached: None,
            table: None,
            computed: 0,
            scheduled: 0,
        }
    }

    /// Whether all but the last sampled token is computed.
    fn decodes(&self) -> bool {
        self.generated > 0 && self.sequence.len() - self.computed == 1
    }
}

/// What planning a step decided.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) work: Work,
    /// (prompt tokens, tokens reused, arrival) of each request admitted for the first time.
    pub(super) admitted: Vec<(usize, usize, Time)>,
    pub(super) preempted: u64,
}

/// The queue and the running batch.
#[derive(Debug)]
pub(super) struct Batch {
    config: BatchConfig,
    running: Vec<Job>,
    waiting: VecDeque<Job>,
}

impl Batch {
    pub(super) const fn new(config: BatchConfig) -> Self {
        Self { config, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// Queues a request; false if there are too many already.
    pub(super) fn enqueue(&mut self, job: Job) -> bool {
        if self.waiting.len() + self.running.len() >= self.config.max_queued {
            return false;
        }
        self.waiting.push_back(job);
        true
    }

    /// Takes a request out, wherever it is; its blocks go back. False if it is not here.
    pub(super) fn remove(&mut self, cache: &mut KvCache, id: RequestId) -> bool {
        if let Some(at) = self.waiting.iter().position(|job| job.id == id) {
            self.waiting.remove(at);
            return true;
        }
        let Some(at) = self.running.iter().position(|job| job.id == id) else { return false };
        give_back(cache, &mut self.running.remove(at));
        true
    }

    /// Decides the next step and takes the blocks it needs. A plan without work: nothing to do.
    pub(super) fn plan(&mut self, cache: &mut KvCache) -> Plan {
        let mut plan = Plan::default();
        let mut budget = self.config.max_tokens.max(1);
        let mut next = 0;
        while next < self.running.len() && budget > 0 {
            if self.make_room(cache, next, budget, &mut plan) {
                budget -= schedule(cache, &mut self.running[next], budget, &mut plan.work);
                next += 1;
            }
        }
        if plan.preempted == 0 {
            self.admit(cache, budget, &mut plan);
        }
        plan
    }

    /// Ends the step: `each` is called for every request that got a token, in the order of the batch,
    /// with the job and whether that was its last one.
    pub(super) fn complete(&mut self, cache: &mut KvCache, mut each: impl FnMut(&mut Job, bool)) {
        for job in &mut self.running {
            job.computed += std::mem::take(&mut job.scheduled);
            if job.computed < job.sequence.len() {
                continue;
            }
            if let Some(token) = job.output.get(job.generated) {
                job.sequence.push(*token);
                job.generated += 1;
                let last = job.generated == job.output.len();
                each(job, last);
                if last {
                    give_back(cache, job);
                }
            }
        }
        self.running.retain(|job| job.table.is_some());
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Gets `running[at]` the blocks for its next tokens, by preempting the youngest where needed.
    /// False if that was itself.
    fn make_room(
        &mut self,
        cache: &mut KvCache,
        at: usize,
        budget: usize,
        plan: &mut Plan,
    ) -> bool {
        loop {
            let job = &mut self.running[at];
            let upto = job.computed + (job.sequence.len() - job.computed).min(budget);
            if job.table.as_mut().is_some_and(|table| cache.extend(table, upto)) {
                return true;
            }
            let Some(mut youngest) = self.running.pop() else { return false };
            give_back(cache, &mut youngest);
            plan.preempted += 1;
            self.waiting.push_front(youngest);
            if self.running.len() == at {
                return false;
            }
        }
    }

    fn admit(&mut self, cache: &mut KvCache, mut budget: usize, plan: &mut Plan) {
        while budget > 0 && self.running.len() < self.config.max_requests.max(1) {
            let Some(job) = self.waiting.front() else { break };
            let Some((table, cached)) = cache.admit(&job.sequence) else { break };
            let Some(mut job) = self.waiting.pop_front() else { break };
            job.table = Some(table);
            job.computed = cached;
            if job.cached.is_none() {
                job.cached = Some(cached);
                plan.admitted.push((job.prompt_tokens, cached, job.arrived));
            }
            budget -= schedule(cache, &mut job, budget, &mut plan.work);
            self.running.push(job);
        }
    }
}

/// Gives a job its share of the step; returns how many tokens that is.
fn schedule(cache: &mut KvCache, job: &mut Job, budget: usize, work: &mut Work) -> usize {
    let tokens = (job.sequence.len() - job.computed).min(budget);
    if job.decodes() {
        work.decode(job.computed as u64);
    } else {
        work.prefill(tokens as u64, job.computed as u64);
    }
    job.scheduled = tokens;
    if let Some(table) = &mut job.table {
        cache.store(table, &job.sequence, job.computed + tokens);
    }
    tokens
}

fn give_back(cache: &mut KvCache, job: &mut Job) {
    job.scheduled = 0;
    if let Some(table) = job.table.take() {
        cache.release(table);
    }
}
