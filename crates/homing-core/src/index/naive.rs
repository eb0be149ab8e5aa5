//! The plain prefix index: for each target, the chains it holds and how often.
//!
//! An engine names blocks by hashes of its own; what matters for a match is the chain of *our* hashes.
//! So each stored block is translated once: parent's chain, then its own tokens. Blocks whose parent
//! was never seen are kept as orphans under that parent's name and get their place when it appears;
//! no position is invented. Copies are counted, since an engine reports each copy's end.

use super::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use super::{Overlap, Overlaps};
use crate::hash::{ChainHash, EngineHash, HashSpace, LocalHash, Prompt};
use crate::ids::{DpRank, WorkerId};
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, HashMap, HashSet};

type Map<K, V> = HashMap<K, V, FixedState>;
type Set<K> = HashSet<K, FixedState>;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The index reflects it.
    Yes,
    /// It says nothing about reuse of a prefix in device memory (another medium, another group).
    Ignored,
    /// Its block size is not the one of this partition: it can't be matched, and is refused.
    BlockSizeMismatch {
        /// The partition's, learned first.
        known: u32,
        /// The event's.
        got: u32,
    },
    /// Token and hash counts don't fit each other.
    CountMismatch,
}

#[derive(Debug)]
struct Block {
    /// Where it stands; `None` while its parent is unknown.
    chain: Option<ChainHash>,
    parent: Option<EngineHash>,
    local: LocalHash,
    copies: u32,
}

#[derive(Debug, Default)]
struct Held {
    blocks: Map<EngineHash, Block>,
    /// How many blocks of this target stand at a chain (two engine hashes may mean the same prefix).
    chains: Map<ChainHash, u32>,
    /// Orphans by the parent that they wait for.
    waiting: Map<EngineHash, Vec<EngineHash>>,
    /// Groups that were announced as something else than full attention.
    other_groups: Set<u32>,
}

/// The exact index of one partition. Its memory is bounded by what the engines hold.
#[derive(Debug, Default)]
pub struct NaiveIndex {
    // Ordered, since lookups walk it: same seed, same run.
    targets: BTreeMap<(WorkerId, DpRank), Held>,
    block_size: Option<u32>,
}

impl NaiveIndex {
    /// Tokens per block, once an event has told.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// Applies one event of a target.
    pub fn apply(&mut self, worker: WorkerId, rank: DpRank, event: &KvEvent) -> Applied {
        match event {
            KvEvent::Stored(stored) => self.store(worker, rank, stored),
            KvEvent::Removed(removed) => self.remove(worker, rank, removed),
            KvEvent::Cleared => {
                self.targets.remove(&(worker, rank));
                self.forget_block_size_if_empty();
                Applied::Yes
            }
        }
    }

    /// Forgets everything about a worker.
    pub fn forget(&mut self, worker: WorkerId) {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let gone: Vec<_> = self.targets.range(ranks).map(|(k, _)| *k).collect();
        for key in gone {
            self.targets.remove(&key);
        }
        self.forget_block_size_if_empty();
    }

    /// Each target's overlap with `prompt`.
    #[must_use]
    pub fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        let mut found = Overlaps::new();
        if self.block_size != Some(prompt.block_size) {
            return found;
        }
        let most = (prompt.reusable_blocks() as usize).min(prompt.chain.len());
        for (&(worker, rank), held) in &self.targets {
            let run =
                prompt.chain[..most].iter().take_while(|c| held.chains.contains_key(c)).count();
            if let (1.., Ok(blocks)) = (run, u32::try_from(run)) {
                found.push(Overlap { worker, rank, blocks });
            }
        }
        found
    }

    /// How many blocks a worker holds, over all its ranks (each once, whatever its copies).
    #[must_use]
    pub fn blocks(&self, worker: WorkerId) -> usize {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        self.targets.range(ranks).map(|(_, held)| held.blocks.len()).sum()
    }

    fn store(&mut self, worker: WorkerId, rank: DpRank, stored: &BlockStored) -> Applied {
        let key = (worker, rank);
        if !stored.full_attention {
            if let Some(group) = stored.group {
                self.targets.entry(key).or_default().other_groups.insert(group);
            }
            return Applied::Ignored;
        }
        if stored.medium != Medium::Device || stored.opaque || stored.block_hashes.is_empty() {
            return Applied::Ignored;
        }
        let size = stored.block_size as usize;
        if size == 0 || stored.token_ids.len() != size * stored.block_hashes.len() {
            return Applied::CountMismatch;
        }
        match self.block_size {
            Some(known) if known != stored.block_size => {
                return Applied::BlockSizeMismatch { known, got: stored.block_size };
            }
            _ => self.block_size = Some(stored.block_size),
        }
        let space = HashSpace::new(&stored.lora_name, &stored.cache_salt);
        let held = self.targets.entry(key).or_default();
        let mut parent = stored.parent;
        for (&hash, local) in
            stored.block_hashes.iter().zip(space.locals(&stored.token_ids, stored.block_size))
        {
            held.add(hash, parent, local);
            parent = Some(hash);
        }
        Applied::Yes
    }

    fn remove(&mut self, worker: WorkerId, rank: DpRank, removed: &BlockRemoved) -> Applied {
        if removed.medium != Medium::Device {
            return Applied::Ignored;
        }
        let Some(held) = self.targets.get_mut(&(worker, rank)) else { return Applied::Ignored };
        if removed.group.is_some_and(|g| held.other_groups.contains(&g)) {
            return Applied::Ignored;
        }
        for &hash in &removed.block_hashes {
            held.remove(hash);
        }
        Applied::Yes
    }

    /// An empty index has no opinion: the engines may come back with another block size.
    fn forget_block_size_if_empty(&mut self) {
        if self.targets.values().all(|held| held.blocks.is_empty()) {
            self.block_size = None;
        }
    }

    /// Invariants, for tests and debug builds.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        for held in self.targets.values() {
            let mut stand = 0;
            let mut keys: Vec<_> = held.blocks.iter().collect();
            keys.sort_by_key(|(k, _)| **k);
            for (hash, block) in keys {
                assert!(block.copies > 0, "a block without a copy");
                if let Some(chain) = block.chain {
                    stand += 1;
                    assert!(held.chains.contains_key(&chain), "a chain that nobody counts");
                } else {
                    let parent = block.parent.expect("only a parent can be missing");
                    assert!(
                        held.waiting[&parent].contains(hash),
                        "an orphan that waits for nobody"
                    );
                }
            }
            let mut counts: Vec<_> = held.chains.values().copied().collect();
            counts.sort_unstable();
            assert_eq!(stand, counts.iter().sum::<u32>(), "chains and blocks disagree");
        }
    }
}

impl Held {
    fn add(&mut self, hash: EngineHash, parent: Option<EngineHash>, local: LocalHash) {
        if let Some(block) = self.blocks.get_mut(&hash) {
            // Another copy. Same name, same content: an engine's hash covers the whole prefix.
            block.copies = block.copies.saturating_add(1);
            return;
        }
        let chain = match parent {
            None => Some(ChainHash::root(local)),
            Some(p) => self.blocks.get(&p).and_then(|b| b.chain).map(|before| before.then(local)),
        };
        self.blocks.insert(hash, Block { chain, parent, local, copies: 1 });
        match chain {
            Some(chain) => self.stand(hash, chain),
            None => {
                let parent = parent.unwrap_or(hash);
                self.waiting.entry(parent).or_default().push(hash);
            }
        }
    }

    /// `hash` has got its place; so have all that waited for it, and so on (a worklist: chains of
    /// orphans can be as long as a conversation).
    fn stand(&mut self, hash: EngineHash, chain: ChainHash) {
        let mut todo = vec![(hash, chain)];
        while let Some((hash, chain)) = todo.pop() {
            *self.chains.entry(chain).or_default() += 1;
            for child in self.waiting.remove(&hash).unwrap_or_default() {
                if let Some(block) = self.blocks.get_mut(&child) {
                    let own = chain.then(block.local);
                    block.chain = Some(own);
                    todo.push((child, own));
                }
            }
        }
    }

    fn remove(&mut self, hash: EngineHash) {
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        block.copies -= 1;
        if block.copies > 0 {
            return;
        }
        let Some(block) = self.blocks.remove(&hash) else { return };
        match (block.chain, block.parent) {
            (Some(chain), _) => {
                if let Some(n) = self.chains.get_mut(&chain) {
                    *n -= 1;
                    if *n == 0 {
                        self.chains.remove(&chain);
                    }
                }
            }
            (None, Some(parent)) => {
                if let Some(siblings) = self.waiting.get_mut(&parent) {
                    siblings.retain(|s| *s != hash);
                    if siblings.is_empty() {
                        self.waiting.remove(&parent);
                    }
                }
            }
            (None, None) => {}
        }
    }
}

#[cfg(test)]
#[path = "naive_tests.rs"]
mod tests;
