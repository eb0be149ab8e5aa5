//! What no router can exceed: one cache for the whole fleet, as large as all together or endless. Prompts come in
//! the order in which the trace has them, and nothing else takes room.

use super::outcome::ratio;
use crate::trace::Trace;

/// The hit rate of one cache that never evicts.
#[must_use]
pub fn best_hit_rate(trace: &Trace) -> f64 {
    pooled_hit_rate(trace, usize::MAX)
}

/// The hit rate of one cache of `blocks`, least recently used first to go, tails before heads.
#[must_use]
pub fn pooled_hit_rate(trace: &Trace, blocks: usize) -> f64 {
    let size = u64::from(trace.block_size());
    let mut cache = Lru::new(trace.blocks().len(), blocks);
    let mut hit = 0;
    for request in &trace.requests {
        let reusable = (request.prompt_tokens - 1) / trace.block_size();
        let runs = trace.runs(request);
        let prompt = || runs.iter().flat_map(Clone::clone);
        let found = prompt().take(reusable as usize).take_while(|b| cache.has(*b)).count();
        hit += found as u64 * size;
        // The last block first, so that the first is the last to go.
        runs.iter().rev().flat_map(|run| run.clone().rev()).for_each(|block| cache.touch(block));
        cache.shrink();
    }
    ratio(hit, trace.prompt_tokens())
}

/// A cache of numbered blocks.
struct Lru {
    /// Of each block, those that were used next before and after it; of the last one, all blocks.
    links: Vec<[u32; 2]>,
    len: usize,
    most: usize,
    ends: u32,
}

const OUT: u32 = u32::MAX;

impl Lru {
    fn new(blocks: usize, most: usize) -> Self {
        let ends = u32::try_from(blocks).unwrap_or(OUT - 1);
        let mut links = vec![[OUT; 2]; blocks + 1];
        links[ends as usize] = [ends; 2];
        Self { links, len: 0, most, ends }
    }

    fn has(&self, block: u32) -> bool {
        self.links[block as usize][0] != OUT
    }

    fn touch(&mut self, block: u32) {
        if self.has(block) {
            self.unlink(block);
        }
        let newest = self.links[self.ends as usize][0];
        self.links[block as usize] = [newest, self.ends];
        self.links[newest as usize][1] = block;
        self.links[self.ends as usize][0] = block;
        self.len += 1;
    }

    fn unlink(&mut self, block: u32) {
        let [before, after] = std::mem::replace(&mut self.links[block as usize], [OUT; 2]);
        self.links[before as usize][1] = after;
        self.links[after as usize][0] = before;
        self.len -= 1;
    }

    fn shrink(&mut self) {
        while self.len > self.most {
            self.unlink(self.links[self.ends as usize][1]);
        }
    }
}
