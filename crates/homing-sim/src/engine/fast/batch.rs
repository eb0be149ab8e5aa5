//! Continuous batching by blocks: the rules of `engine/batch`, which says why they are so.

use super::cache::{BlockId, FastCache, Table};
use crate::engine::batch::BatchConfig;
use crate::engine::cost::Work;
use std::collections::VecDeque;

/// A request inside the engine.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: u32,
    /// Its full blocks so far.
    pub(super) blocks: Vec<BlockId>,
    /// Prompt and answer so far, in tokens.
    pub(super) len: u64,
    /// Tokens of the answer: in all, so far, and of these those that the caller was told of.
    pub(super) output: u64,
    pub(super) generated: u64,
    pub(super) told: u64,
    /// Prompt tokens reused at its first admission.
    pub(super) cached: Option<u64>,
    table: Option<Table>,
    computed: u64,
    scheduled: u64,
}

impl Job {
    pub(super) fn new(request: u32, blocks: Vec<BlockId>, prompt: u64, output: u64) -> Self {
        Self {
            request,
            blocks,
            len: prompt,
            output,
            generated: 0,
            told: 0,
            cached: None,
            table: None,
            computed: 0,
            scheduled: 0,
        }
    }

    fn decodes(&self) -> bool {
        self.generated > 0 && self.len - self.computed == 1
    }
}

/// What planning a step decided.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) work: Work,
    /// Prompt tokens, and tokens reused, of requests admitted for the first time.
    pub(super) queried: u64,
    pub(super) hit: u64,
    pub(super) preempted: u64,
    /// Steps like this one that can follow at once, this one included: until a sequence ends, or fills a
    /// block.
    pub(super) alike: u64,
}

/// The queue and the running batch.
#[derive(Debug)]
pub(super) struct Batch {
    config: BatchConfig,
    block_size: u64,
    /// Gives the blocks that decoding fills their numbers.
    answers: u32,
    running: Vec<Job>,
    waiting: VecDeque<Job>,
}

impl Batch {
    pub(super) fn new(config: BatchConfig, block_size: u32) -> Self {
        Self {
            config,
            block_size: u64::from(block_size.max(1)),
            answers: 0,
            running: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn inside(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Queues a request; false if there are too many already.
    pub(super) fn enqueue(&mut self, job: Job) -> bool {
        if self.inside() >= self.config.max_queued {
            return false;
        }
        self.waiting.push_back(job);
        true
    }

    /// All that are inside, running ones first.
    pub(super) fn requests(&self) -> impl Iterator<Item = u32> {
        self.running.iter().chain(&self.waiting).map(|job| job.request)
    }

    /// Decides the next step and takes the blocks it needs. `grown` hears of each request that got another
    /// block to decode into.
    pub(super) fn plan(&mut self, cache: &mut FastCache, mut grown: impl FnMut(&mut Job)) -> Plan {
        let mut plan = Plan::default();
        let mut budget = self.config.max_tokens.max(1) as u64;
        let mut next = 0;
        while next < self.running.len() && budget > 0 {
            if self.make_room(cache, next, budget, &mut plan, &mut grown) {
                budget -= self.schedule(cache, next, budget, &mut plan.work);
                next += 1;
            }
        }
        let all = next == self.running.len();
        if plan.preempted == 0 {
            self.admit(cache, budget, &mut plan);
        }
        let still = all && plan.preempted == 0 && plan.work.prefill_tokens == 0;
        plan.alike = if still { self.alike() } else { 1 };
        plan
    }

    /// How many decode steps of all that run are alike.
    fn alike(&self) -> u64 {
        let steps = |job: &Job| {
            let room = job.table.as_ref().map_or(0, Table::len) as u64 * self.block_size;
            room.saturating_sub(job.len).min(job.output - job.generated)
        };
        self.running.iter().map(steps).min().unwrap_or(0).max(1)
    }

    /// Ends `steps` steps that were alike, or one: `each` is called for every request that got tokens, in
    /// the order of the batch, with whether its answer is complete.
    pub(super) fn complete(
        &mut self,
        cache: &mut FastCache,
        steps: u64,
        mut each: impl FnMut(&mut Job, bool),
    ) {
        let mut ended = false;
        for job in &mut self.running {
            job.computed += std::mem::take(&mut job.scheduled);
            if job.computed < job.len {
                continue;
            }
            job.computed += steps - 1;
            job.len += steps;
            job.generated += steps;
            let last = job.generated >= job.output;
            each(job, last);
            if last && let Some(table) = job.table.take() {
                cache.release(table);
                ended = true;
            }
        }
        if ended {
            self.running.retain(|job| job.table.is_some());
        }
    }

    /// Gets `running[at]` the blocks for its next tokens, by preempting the youngest where needed. False if
    /// that was itself.
    fn make_room(
        &mut self,
        cache: &mut FastCache,
        at: usize,
        budget: u64,
        plan: &mut Plan,
        grown: &mut impl FnMut(&mut Job),
    ) -> bool {
        loop {
            let job = &mut self.running[at];
            let upto = job.computed + (job.len - job.computed).min(budget);
            let all = upto.div_ceil(self.block_size) as usize;
            if let Some(table) = &mut job.table {
                if all <= table.len() {
                    return true;
                }
                if cache.extend(table, all) {
                    grown(job);
                    return true;
                }
            }
            let Some(mut youngest) = self.running.pop() else { return false };
            youngest.scheduled = 0;
            if let Some(table) = youngest.table.take() {
                cache.release(table);
            }
            plan.preempted += 1;
            self.waiting.push_front(youngest);
            if self.running.len() == at {
                return false;
            }
        }
    }

    fn admit(&mut self, cache: &mut FastCache, mut budget: u64, plan: &mut Plan) {
        while budget > 0 && self.running.len() < self.config.max_requests.max(1) {
            let Some(job) = self.waiting.front() else { break };
            let most = (job.len.saturating_sub(1) / self.block_size) as usize;
            let all = job.len.div_ceil(self.block_size) as usize;
            let Some((table, cached)) = cache.admit(&job.blocks, most, all) else { break };
            let Some(mut job) = self.waiting.pop_front() else { break };
            job.table = Some(table);
            job.computed = cached as u64 * self.block_size;
            if job.cached.is_none() {
                job.cached = Some(job.computed);
                plan.queried += job.len;
                plan.hit += job.computed;
            }
            self.running.push(job);
            budget -= self.schedule(cache, self.running.len() - 1, budget, &mut plan.work);
        }
    }

    /// Gives a request its share of the step; how many tokens that is.
    fn schedule(&mut self, cache: &mut FastCache, at: usize, budget: u64, work: &mut Work) -> u64 {
        let job = &mut self.running[at];
        let tokens = (job.len - job.computed).min(budget);
        if job.decodes() {
            work.decode(job.computed);
        } else {
            work.prefill(tokens, job.computed);
        }
        job.scheduled = tokens;
        let full = ((job.computed + tokens) / self.block_size) as usize;
        while job.blocks.len() < full {
            job.blocks.push(BlockId(BlockId::ANSWER + self.answers));
            // One less than there are: the last number means none.
            self.answers = (self.answers + 1) % (BlockId::ANSWER - 1);
        }
        if let Some(table) = &mut job.table {
            cache.store(table, &job.blocks, full);
        }
        tokens
    }
}
