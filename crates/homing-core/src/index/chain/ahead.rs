//! Looking ahead along an event. A new block's name and prefix are looked up in tables that fit no cache, and
//! one after the other each look-up would wait for memory. So where blocks turn out to be new, those behind
//! them are hashed in advance, and what will be read of the tables is asked for at once.

use super::nodes::Nodes;
use super::target::Names;
use crate::hash::{ChainHash, HashSpace};
use crate::index::event::BlockStored;
use smallvec::SmallVec;
use std::hint::black_box;
use std::ops::Range;

/// So many blocks at a time: what they touch stays in the nearest cache until it is needed.
const BLOCKS: usize = 64;

/// Prefixes that were hashed in advance.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Which blocks of the event.
    range: Range<usize>,
    /// The prefix before the first of them, the space that they were hashed in, and what came out.
    before: Option<ChainHash>,
    space: HashSpace,
    chains: SmallVec<[ChainHash; BLOCKS]>,
}

impl Ahead {
    pub(super) fn new() -> Self {
        let (range, before, space) = Default::default();
        Self { range, before, space, chains: SmallVec::new() }
    }

    /// The first of these blocks is to be looked up, by its name and its prefix, and so may be those behind
    /// it. `names`: whose event it is calls its blocks like that; `before`: the prefix before them, and the
    /// space that they are in.
    pub(super) fn look(
        &mut self,
        nodes: &Nodes,
        names: Option<&Names>,
        stored: &BlockStored,
        blocks: Range<usize>,
        before: Option<(Option<ChainHash>, HashSpace)>,
    ) {
        let Some((before, space)) = before.filter(|_| !self.range.contains(&blocks.start)) else {
            return;
        };
        self.range =
            blocks.start..blocks.end.min(blocks.start + BLOCKS).min(stored.block_hashes.len());
        (self.before, self.space) = (before, space);
        let hashes = &stored.block_hashes[self.range.clone()];
        let tokens = stored.token_ids.chunks_exact(stored.block_size as usize);
        let mut last = before;
        self.chains.clear();
        self.chains.extend(tokens.skip(blocks.start).take(hashes.len()).map(|tokens| {
            let chain = ChainHash::after(last, space.local(tokens));
            last = Some(chain);
            chain
        }));
        // Apart from that: in so short a loop the processor is many blocks ahead of what memory brings.
        let mut seen = 0;
        for (hash, chain) in hashes.iter().zip(&self.chains) {
            seen ^= nodes.touch_chain(*chain);
            seen ^= match names {
                Some(Names::Own { blocks, .. }) => u64::from(blocks.get(*hash).is_some()),
                _ => nodes.touch(*hash),
            };
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
        let chain = self.chains.get(at).copied();
        chain.filter(|_| was == before && space == self.space)
    }
}
