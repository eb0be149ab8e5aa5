//! Looking ahead along an event. A new block's name and prefix are looked up in tables that fit no cache, and
//! one after the other each look-up would wait for memory. So where blocks turn out to be new, those behind
//! them are hashed in advance, and what will be read of the tables is asked for at once.

use super::nodes::Nodes;
use crate::hash::{ChainHash, HashSpace};
use crate::index::event::BlockStored;
use std::hint::black_box;
use std::ops::Range;

/// So many blocks at a time: what they touch stays in the nearest cache until it is needed.
const BLOCKS: usize = 32;

/// Prefixes that were hashed in advance.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Which blocks of the event.
    range: Range<usize>,
    /// The prefix before the first of them, the space that they were hashed in, and what came out.
    before: Option<ChainHash>,
    space: HashSpace,
    chains: [ChainHash; BLOCKS],
}

impl Ahead {
    pub(super) fn new() -> Self {
        let (range, before, space) = Default::default();
        Self { range, before, space, chains: [ChainHash(0); BLOCKS] }
    }

    /// Block `i`, which has no place yet, and those behind it, as far as `end`. `before`: the prefix before it.
    pub(super) fn look(
        &mut self,
        nodes: &Nodes,
        stored: &BlockStored,
        i: usize,
        end: usize,
        (before, space): (Option<ChainHash>, HashSpace),
    ) {
        if self.range.contains(&i) {
            return;
        }
        self.range = i..end.min(i + BLOCKS).min(stored.block_hashes.len());
        (self.before, self.space) = (before, space);
        let names = &stored.block_hashes[self.range.clone()];
        let tokens = stored.token_ids.chunks_exact(stored.block_size as usize).skip(i);
        let (mut last, mut seen) = (before, 0);
        for ((name, tokens), chain) in names.iter().zip(tokens).zip(&mut self.chains) {
            seen ^= nodes.touch(*name);
            *chain = ChainHash::after(last, space.local(tokens));
            seen ^= nodes.touch_chain(*chain);
            last = Some(*chain);
        }
        black_box(seen);
    }

    /// The prefix that ends with block `i`, if it was hashed behind `before` in this space.
    pub(super) fn chain(
        &self,
        i: usize,
        before: Option<ChainHash>,
        space: HashSpace,
    ) -> Option<ChainHash> {
        let at = i.checked_sub(self.range.start).filter(|_| self.range.contains(&i))?;
        let was = at.checked_sub(1).map_or(self.before, |last| Some(self.chains[last]));
        (was == before && space == self.space).then(|| self.chains[at])
    }
}
