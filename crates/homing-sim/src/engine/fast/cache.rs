//! The paged cache of `engine/cache` with numbers in the place of names: reference counts, reuse by prefix,
//! least recently used eviction, tails before heads, and copies that count.
//!
//! A block's number stands for its whole prefix, and the numbers of one prompt mostly follow each other; so
//! where a block is, is looked up in pages that neighbours share.

use crate::engine::free_list::FreeList;
use std::collections::BTreeSet;
use std::ops::Range;

/// A block and all before it. Below [`BlockId::ANSWER`] the caller's; from there on one that decoding filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The first number of blocks that decoding fills.
    pub const ANSWER: u32 = 1 << 31;
    const NONE: Self = Self(u32::MAX);

    /// Whether decoding filled it.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        self.0 >= Self::ANSWER
    }
}

/// What changed in a cache; what an engine would publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Consecutive blocks of one sequence are reusable now.
    Stored {
        /// The block before the first.
        parent: Option<BlockId>,
        /// At least one.
        blocks: Vec<BlockId>,
    },
    /// These were evicted, one copy each.
    Removed(Vec<BlockId>),
}

/// The blocks that one request holds. Hand it back with [`FastCache::release`].
#[derive(Debug, Default)]
#[must_use = "blocks are leaked unless the table is released"]
pub(super) struct Table {
    slots: Vec<u32>,
    named: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// A cache of a fixed number of blocks.
#[derive(Debug)]
pub(super) struct FastCache {
    /// What each slot holds.
    content: Vec<BlockId>,
    refs: Vec<u32>,
    free: FreeList,
    prompts: Pages,
    answers: Pages,
    /// Copies besides the one that the pages know, which is in the lowest slot.
    copies: BTreeSet<(BlockId, u32)>,
    changes: Vec<Change>,
}

impl FastCache {
    pub(super) fn new(blocks: u32) -> Self {
        let blocks = blocks.max(1);
        Self {
            content: vec![BlockId::NONE; blocks as usize],
            refs: vec![0; blocks as usize],
            free: FreeList::full(blocks),
            prompts: Pages::default(),
            answers: Pages::default(),
            copies: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.content.len()
    }

    /// Takes what is cached of `blocks`, `most` of them at most, and free ones up to `all`. `None`, with
    /// nothing changed, if there are not enough. Also says how many were cached.
    pub(super) fn admit(
        &mut self,
        blocks: &[BlockId],
        most: usize,
        all: usize,
    ) -> Option<(Table, usize)> {
        let mut slots = Vec::with_capacity(all);
        let mut idle = 0;
        for block in blocks.iter().take(most) {
            let Some(slot) = self.pages(*block).get(*block) else { break };
            idle += usize::from(self.refs[slot as usize] == 0);
            slots.push(slot);
        }
        let cached = slots.len();
        if all.saturating_sub(cached) > self.free.len() as usize - idle {
            return None;
        }
        for slot in &slots {
            let refs = &mut self.refs[*slot as usize];
            if *refs == 0 {
                self.free.remove(*slot);
            }
            *refs += 1;
        }
        let mut table = Table { slots, named: cached };
        let took = self.extend(&mut table, all);
        debug_assert!(took, "the check above counted the blocks");
        Some((table, cached))
    }

    /// Makes room for `all` blocks. False, with nothing changed, if there are not enough.
    pub(super) fn extend(&mut self, table: &mut Table, all: usize) -> bool {
        let missing = all.saturating_sub(table.slots.len());
        if missing > self.free.len() as usize {
            return false;
        }
        for _ in 0..missing {
            let Some(slot) = self.free.pop_front() else { break };
            self.evict(slot);
            self.refs[slot as usize] = 1;
            table.slots.push(slot);
        }
        true
    }

    /// The first `full` of the table's blocks are computed: those that were not before are reusable now.
    pub(super) fn store(&mut self, table: &mut Table, blocks: &[BlockId], full: usize) {
        let range = table.named..full.min(table.slots.len()).min(blocks.len());
        if range.is_empty() {
            return;
        }
        for (slot, block) in table.slots[range.clone()].iter().zip(&blocks[range.clone()]) {
            self.content[*slot as usize] = *block;
            if let Some(more) = self.pages_mut(*block).add(*block, *slot) {
                self.copies.insert((*block, more));
            }
        }
        table.named = range.end;
        let parent = range.start.checked_sub(1).map(|i| blocks[i]);
        self.changes.push(Change::Stored { parent, blocks: blocks[range].to_vec() });
    }

    /// Takes a request's blocks back, last one first.
    pub(super) fn release(&mut self, table: Table) {
        for slot in table.slots.into_iter().rev() {
            let refs = &mut self.refs[slot as usize];
            *refs = refs.saturating_sub(1);
            if *refs == 0 {
                self.free.push_back(slot);
            }
        }
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    fn evict(&mut self, slot: u32) {
        let block = std::mem::replace(&mut self.content[slot as usize], BlockId::NONE);
        if block == BlockId::NONE {
            return;
        }
        if self.copies.is_empty() || !self.copies.remove(&(block, slot)) {
            let next = self.copies.range((block, 0)..=(block, u32::MAX)).next().copied();
            if let Some(next) = next {
                self.copies.remove(&next);
            }
            self.pages_mut(block).set(block, next.map(|(_, slot)| slot));
        }
        match self.changes.last_mut() {
            Some(Change::Removed(blocks)) => blocks.push(block),
            _ => self.changes.push(Change::Removed(vec![block])),
        }
    }

    fn pages(&self, block: BlockId) -> &Pages {
        if block.is_answer() { &self.answers } else { &self.prompts }
    }

    fn pages_mut(&mut self, block: BlockId) -> &mut Pages {
        if block.is_answer() { &mut self.answers } else { &mut self.prompts }
    }
}

/// Blocks that share a page.
const PAGE: usize = 256;
/// A slot that is none: stored slots are one more than they are.
const EMPTY: u32 = 0;

#[derive(Debug)]
struct Page {
    slots: [u32; PAGE],
    used: usize,
}

/// Which slot has a block.
#[derive(Debug, Default)]
struct Pages(Vec<Option<Box<Page>>>);

impl Pages {
    fn place(block: BlockId) -> (usize, usize) {
        let at = (block.0 & (BlockId::ANSWER - 1)) as usize;
        (at / PAGE, at % PAGE)
    }

    fn get(&self, block: BlockId) -> Option<u32> {
        let (page, at) = Self::place(block);
        self.0.get(page)?.as_ref()?.slots[at].checked_sub(1)
    }

    /// One more slot has it. The higher one of two comes back: pages know the lowest.
    fn add(&mut self, block: BlockId, slot: u32) -> Option<u32> {
        match self.get(block) {
            None => {
                self.set(block, Some(slot));
                None
            }
            Some(known) => {
                self.set(block, Some(known.min(slot)));
                Some(known.max(slot))
            }
        }
    }

    fn set(&mut self, block: BlockId, slot: Option<u32>) {
        let (number, at) = Self::place(block);
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        let place = &mut self.0[number];
        let page = place.get_or_insert_with(|| Box::new(Page { slots: [EMPTY; PAGE], used: 0 }));
        let now = slot.map_or(EMPTY, |s| s + 1);
        let before = std::mem::replace(&mut page.slots[at], now);
        page.used = page.used + usize::from(now != EMPTY) - usize::from(before != EMPTY);
        if page.used == 0 {
            *place = None;
        }
    }
}

/// The blocks of a run of numbers.
pub(super) fn run(numbers: &Range<u32>) -> impl Iterator<Item = BlockId> + use<> {
    numbers.clone().map(BlockId)
}
