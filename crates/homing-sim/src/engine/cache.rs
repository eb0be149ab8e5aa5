//! The paged KV cache: blocks with reference counts, reuse by prefix, least recently used eviction.
//!
//! It behaves as vLLM's block pool does where a router can see it:
//!
//! * An unreferenced block keeps its content and waits in a free list; a hit takes it out again.
//! * A finished request gives its blocks back *last one first*, so tails are evicted before heads.
//! * The last token of a prompt is never reused: a hit covers at most `(n - 1) / block_size` blocks.
//! * Two requests that compute the same block make two copies, each with a `Stored` and, in its
//!   time, a `Removed` of its own: consumers must count.
//! * One `Stored` names consecutive blocks; a `Removed` names one block.
//!
//! Each request holds a [`BlockTable`]; the cache takes it back by value.

use super::free_list::FreeList;
use super::sequence::{Namer, Sequence};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use std::collections::BTreeSet;

/// Size and identity of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens per block; vLLM's default is 16. At least 1.
    pub block_size: u32,
    /// Capacity in blocks. At least 1.
    pub blocks: u32,
    /// Makes the block names of this engine its own.
    pub seed: u64,
}

impl Default for CacheConfig {
    /// 16-token blocks; 4,096 of them hold 65,536 tokens, a few long agent sessions.
    fn default() -> Self {
        Self { block_size: 16, blocks: 4096, seed: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    name: Option<EngineHash>,
    refs: u32,
}

/// The blocks that one request holds. Hand it back with [`KvCache::release`].
#[derive(Debug)]
#[must_use = "blocks are leaked unless the table is released"]
pub struct BlockTable {
    slots: Vec<u32>,
    /// How many of them, from the first on, have a name.
    named: usize,
}

/// A paged cache of `config.blocks` blocks.
#[derive(Clone, Debug)]
pub struct KvCache {
    namer: Namer,
    block_size: usize,
    slots: Vec<Slot>,
    free: FreeList,
    /// Every copy of every named block. Ordered, so a lookup finds the same copy in every run.
    named: BTreeSet<(EngineHash, u32)>,
    events: Vec<KvEvent>,
}

impl KvCache {
    /// An empty cache.
    #[must_use]
    pub fn new(config: CacheConfig) -> Self {
        let blocks = config.blocks.max(1);
        Self {
            namer: Namer::new(config.block_size, config.seed),
            block_size: config.block_size.max(1) as usize,
            slots: vec![Slot::default(); blocks as usize],
            free: FreeList::full(blocks),
            named: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// Takes what is cached of `sequence`, and free blocks for the rest of it. `None`, with nothing
    /// changed, if there are not enough. Also returns how many tokens the hit covers.
    pub fn admit(&mut self, sequence: &Sequence) -> Option<(BlockTable, usize)> {
        let hit = self.hit(sequence);
        let needed = sequence.len().div_ceil(self.block_size) - hit.len();
        let idle = hit.iter().filter(|slot| self.slots[**slot as usize].refs == 0).count();
        if needed > self.free.len() as usize - idle {
            return None;
        }
        for slot in &hit {
            let it = &mut self.slots[*slot as usize];
            if it.refs == 0 {
                self.free.remove(*slot);
            }
            it.refs += 1;
        }
        let cached = hit.len();
        let mut table = BlockTable { slots: hit, named: cached };
        let took = self.extend(&mut table, sequence.len());
        debug_assert!(took, "the check above counted the blocks");
        Some((table, cached * self.block_size))
    }

    /// Makes room for `tokens` in all. False, with nothing changed, if there are not enough blocks.
    pub fn extend(&mut self, table: &mut BlockTable, tokens: usize) -> bool {
        let missing = tokens.div_ceil(self.block_size).saturating_sub(table.slots.len());
        if missing > self.free.len() as usize {
            return false;
        }
        for _ in 0..missing {
            let Some(slot) = self.free.pop_front() else { break };
            self.evict(slot);
            self.slots[slot as usize].refs = 1;
            table.slots.push(slot);
        }
        true
    }

    /// Says that the first `computed` tokens of `sequence` are in `table`: its full blocks become
    /// reusable, and one `Stored` names those that were not before.
    pub fn store(&mut self, table: &mut BlockTable, sequence: &Sequence, computed: usize) {
        let from = table.named;
        let to = (computed / self.block_size).min(table.slots.len()).min(sequence.names().len());
        if to <= from {
            return;
        }
        let names = &sequence.names()[from..to];
        for (slot, name) in table.slots[from..to].iter().zip(names) {
            self.slots[*slot as usize].name = Some(*name);
            self.named.insert((*name, *slot));
        }
        table.named = to;
        let parent = from.checked_sub(1).map(|i| sequence.names()[i]);
        let namespace = sequence.namespace();
        self.events.push(KvEvent::Stored(BlockStored {
            block_hashes: names.to_vec(),
            parent,
            token_ids: sequence.tokens()[from * self.block_size..to * self.block_size].to_vec(),
            block_size: u32::try_from(self.block_size).unwrap_or(u32::MAX),
            lora_name: namespace.adapter.clone(),
            // vLLM puts the salt into the keys of a sequence's first block only.
            cache_salt: if parent.is_none() { namespace.salt.clone() } else { String::new() },
            opaque: false,
            medium: Medium::Device,
            group: Some(0),
            full_attention: true,
        }));
    }

    /// Takes a request's blocks back, last one first. What has a name stays reusable.
    pub fn release(&mut self, table: BlockTable) {
        for slot in table.slots.into_iter().rev() {
            let it = &mut self.slots[slot as usize];
            it.refs = it.refs.saturating_sub(1);
            if it.refs == 0 {
                self.free.push_back(slot);
            }
        }
    }

    /// Forgets all content, and one `Cleared` says so. False, with nothing changed, while a request holds
    /// blocks.
    pub fn clear(&mut self) -> bool {
        if self.held() > 0 {
            return false;
        }
        for (_, slot) in std::mem::take(&mut self.named) {
            self.slots[slot as usize].name = None;
        }
        self.events.push(KvEvent::Cleared);
        true
    }

    /// The events since the last call, in order.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    /// How many tokens of `sequence` would be reused now.
    #[must_use]
    pub fn cached_tokens(&self, sequence: &Sequence) -> usize {
        self.hit(sequence).len() * self.block_size
    }

    /// The maker of this cache's block names.
    #[must_use]
    pub const fn namer(&self) -> Namer {
        self.namer
    }

    /// Capacity in blocks.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Blocks that some request holds now.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.slots.len() - self.free.len() as usize
    }

    /// The reusable blocks, one entry per copy, in the order of their names.
    pub fn content(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.named.iter().map(|(name, _)| *name)
    }

    fn hit(&self, sequence: &Sequence) -> Vec<u32> {
        let most = sequence.len().saturating_sub(1) / self.block_size;
        sequence.names().iter().take(most).map_while(|name| self.find(*name)).collect()
    }

    fn find(&self, name: EngineHash) -> Option<u32> {
        let first = self.named.range((name, 0)..=(name, u32::MAX)).next();
        first.map(|(_, slot)| *slot)
    }

    fn evict(&mut self, slot: u32) {
        if let Some(name) = self.slots[slot as usize].name.take() {
            self.named.remove(&(name, slot));
            self.events.push(KvEvent::Removed(BlockRemoved {
                block_hashes: vec![name],
                medium: Medium::Device,
                group: Some(0),
            }));
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
