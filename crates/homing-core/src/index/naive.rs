//! The plain prefix index: for each target, the chains it holds and how often.
//!
//! An engine names blocks by hashes of its own; what matters for a match is the chain of *our* hashes.
//! So each stored block is translated once: parent's chain, then its own tokens. Blocks whose parent
//! was never seen are kept as orphans under that parent's name and get their place when it appears;
//! no position is invented. A block is in its parent's hash space: engines tell the salt with the first
//! block of a sequence only. Copies are counted, since an engine reports each copy's end.

use super::event::{BlockRemoved, BlockStored, KvEvent, Tier};
use super::groups::{Group, Groups};
use super::said::{Said, said};
use super::{Overlap, Overlaps};
use crate::hash::{ChainHash, EngineHash, HashSpace, Prompt};
use crate::ids::{DpRank, WorkerId};
use crate::time::Time;
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

type Map<K, V> = HashMap<K, V, FixedState>;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The index reflects it.
    Yes,
    /// It says nothing about reuse of a prefix (an unknown medium, another group, an image).
    Ignored,
    /// Its block size is not the one of this partition: it can't be matched, and is refused.
    BlockSizeMismatch {
        /// The partition's, learned first.
        known: u32,
        /// The event's.
        got: u32,
    },
    /// Token and hash counts don't fit each other, or a block has more than [`MAX_BLOCK_SIZE`] tokens, or
    /// none.
    CountMismatch,
    /// The rank has announced more blocks, more without parents, or more groups, than an engine has: what
    /// goes beyond is left out.
    TooMany,
}

/// Blocks of one rank, at most: 4 Mi of them are 64 Mi tokens at 16 a block, more than any engine holds. A
/// feed that announces more is wrong or hostile, and must not fill our memory.
pub(super) const MAX_BLOCKS: usize = 4 << 20;
/// Blocks of one rank that wait for their parents, at most.
pub(super) const MAX_WAITING: usize = 1 << 16;
/// Tokens of these blocks, at most, since they are kept: 64 for each of them, 16 MiB in all.
pub(super) const MAX_WAITING_TOKENS: usize = MAX_WAITING * 64;
/// Groups of one rank, at most. Hybrid models have a handful.
pub(super) const MAX_GROUPS: usize = 64;
/// Tokens per block, at most. Most engines use 16 to 256; vLLM raises it for hybrid models until an
/// attention page is as large as a mamba page ("Setting attention block size to ..."), to 528, 1056, 1600
/// and, seen once, 7808.
pub const MAX_BLOCK_SIZE: u32 = 16_384;

#[derive(Debug)]
struct Block {
    place: Place,
    copies: u32,
}

#[derive(Debug)]
enum Place {
    /// Its whole prefix is known.
    Stands { chain: ChainHash, space: HashSpace },
    /// Its parent was never seen. The tokens are kept, since their hash depends on the parent's space.
    Waits { parent: EngineHash, tokens: Box<[u32]>, own: Option<HashSpace> },
}

/// What one tier of a rank holds.
#[derive(Debug, Default)]
struct Held {
    blocks: Map<EngineHash, Block>,
    /// How many of these blocks stand at a chain (two engine hashes may mean the same prefix).
    chains: Map<ChainHash, u32>,
    /// Orphans, behind the parent that they wait for.
    waiting: BTreeSet<(EngineHash, EngineHash)>,
    /// Tokens that they keep.
    waiting_tokens: usize,
}

/// What a rank holds.
#[derive(Debug, Default)]
struct Rank {
    /// By [`Tier`].
    tiers: [Held; 3],
    /// What it is about to compute, and until when that is believed.
    predicted: BTreeMap<ChainHash, Time>,
    groups: Groups,
}

/// The exact index of one partition. Its memory is bounded by what the engines hold.
#[derive(Debug, Default)]
pub struct NaiveIndex {
    // Ordered, since lookups walk it: same seed, same run.
    targets: BTreeMap<(WorkerId, DpRank), Rank>,
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
        self.apply_part(worker, rank, event, 0..event.blocks())
    }

    /// Applies some blocks of an event. One part after the other, until one is not [`Applied::Yes`], does
    /// what [`Self::apply`] does at once: a long event need not hold a lock all the while.
    pub fn apply_part(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        event: &KvEvent,
        blocks: Range<usize>,
    ) -> Applied {
        match event {
            KvEvent::Stored(stored) => self.store(worker, rank, stored, blocks),
            KvEvent::Removed(removed) => self.remove(worker, rank, removed, blocks),
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

    /// A prompt goes to a target: what that doesn't hold of it, from block `from` on, counts as held until
    /// then.
    pub fn predict(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        prompt: &Prompt,
        from: usize,
        until: Time,
    ) {
        if self.block_size != Some(prompt.block_size) || prompt.chain.len() <= from {
            return;
        }
        let rank = self.targets.entry((worker, rank)).or_default();
        for chain in prompt.chain.iter().skip(from) {
            if !rank.tiers[0].chains.contains_key(chain) {
                rank.predicted.entry(*chain).or_insert(until);
            }
        }
    }

    /// Predictions that have not come true by now are believed no longer.
    pub fn expire(&mut self, now: Time) {
        for rank in self.targets.values_mut() {
            rank.predicted.retain(|_, until| *until > now);
        }
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
            let run = |deepest: usize, foreseen: bool| {
                let holds = |c: &&ChainHash| {
                    foreseen && held.predicted.contains_key(c)
                        || held.tiers[..=deepest].iter().any(|t| t.chains.contains_key(c))
                };
                prompt.chain[..most].iter().take_while(holds).count() as u32
            };
            let told = run(0, false);
            let [blocks, host, disk] = [0, 1, 2].map(|deepest| run(deepest, true));
            if disk > 0 {
                let (host, disk) = (host - blocks, disk - host);
                found.push(Overlap { worker, rank, blocks, told, host, disk });
            }
        }
        found
    }

    /// How many blocks a worker holds in device memory, over all its ranks (each once, whatever its
    /// copies).
    #[must_use]
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.held(worker)[0]
    }

    /// How many blocks a worker holds in each [`Tier`].
    #[must_use]
    pub fn held(&self, worker: WorkerId) -> [usize; 3] {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let all: Vec<_> = self.targets.range(ranks).map(|(_, rank)| rank).collect();
        [0, 1, 2].map(|t| all.iter().map(|rank| rank.tiers[t].blocks.len()).sum())
    }

    fn store(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        stored: &BlockStored,
        blocks: Range<usize>,
    ) -> Applied {
        let key = (worker, rank);
        let known = self.targets.get(&key).is_some_and(|rank| rank.groups.is_other(stored.group));
        if known || !stored.full_attention {
            let Some(group) = stored.group else { return Applied::Ignored };
            let rank = self.targets.entry(key).or_default();
            match rank.groups.hear(group, false) {
                Group::TooMany => return Applied::TooMany,
                // Which blocks are known from which group was not kept: none of them can be believed.
                Group::Turned => {
                    *rank = Rank { groups: std::mem::take(&mut rank.groups), ..Rank::default() };
                    self.forget_block_size_if_empty();
                }
                Group::Full | Group::Other => {}
            }
            return Applied::Ignored;
        }
        let tier = match said(stored, self.block_size) {
            Err(refused) => return refused,
            Ok(Said::Named(tier)) => {
                let rank = self.targets.entry(key).or_default();
                for &hash in stored.block_hashes.iter().take(blocks.end).skip(blocks.start) {
                    rank.add_named(tier, hash);
                }
                return Applied::Yes;
            }
            Ok(Said::Described(tier)) => tier,
        };
        self.block_size = Some(stored.block_size);
        let size = stored.block_size as usize;
        let told = stored.parent.is_none() || !stored.cache_salt.is_empty();
        let own = told.then(|| HashSpace::new(&stored.lora_name, &stored.cache_salt));
        let rank = self.targets.entry(key).or_default();
        if stored.group.is_some_and(|group| rank.groups.hear(group, true) == Group::TooMany) {
            return Applied::TooMany;
        }
        let before = blocks.start.checked_sub(1).and_then(|i| stored.block_hashes.get(i));
        let mut parent = before.copied().or(stored.parent);
        let all = stored.block_hashes.iter().zip(stored.token_ids.chunks_exact(size));
        for (&hash, tokens) in all.take(blocks.end).skip(blocks.start) {
            if !rank.add(tier, hash, parent, tokens, own) {
                return Applied::TooMany;
            }
            parent = Some(hash);
        }
        Applied::Yes
    }

    fn remove(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        removed: &BlockRemoved,
        blocks: Range<usize>,
    ) -> Applied {
        let Some(tier) = removed.medium.tier() else { return Applied::Ignored };
        let Some(rank) = self.targets.get_mut(&(worker, rank)) else { return Applied::Ignored };
        if rank.groups.is_other(removed.group) {
            return Applied::Ignored;
        }
        for &hash in removed.block_hashes.iter().take(blocks.end).skip(blocks.start) {
            rank.tiers[tier as usize].remove(hash);
        }
        Applied::Yes
    }

    /// An empty index has no opinion: the engines may come back with another block size.
    fn forget_block_size_if_empty(&mut self) {
        let empty = |rank: &Rank| rank.tiers.iter().all(|held| held.blocks.is_empty());
        if self.targets.values().all(empty) {
            self.block_size = None;
        }
    }

    /// Invariants, for tests and debug builds.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        for held in self.targets.values().flat_map(|rank| &rank.tiers) {
            let (mut stand, mut wait, mut kept) = (0, 0, 0);
            let mut keys: Vec<_> = held.blocks.iter().collect();
            keys.sort_by_key(|(k, _)| **k);
            for (hash, block) in keys {
                assert!(block.copies > 0, "a block without a copy");
                match &block.place {
                    Place::Stands { chain, .. } => {
                        stand += 1;
                        assert!(held.chains.contains_key(chain), "a chain that nobody counts");
                    }
                    Place::Waits { parent, tokens, .. } => {
                        wait += 1;
                        kept += tokens.len();
                        let waits = held.waiting.contains(&(*parent, *hash));
                        assert!(waits, "an orphan that waits for nobody");
                    }
                }
            }
            let mut counts: Vec<_> = held.chains.values().copied().collect();
            counts.sort_unstable();
            assert_eq!(stand, counts.iter().sum::<u32>(), "chains and blocks disagree");
            let orphans = (held.waiting.len(), held.waiting_tokens);
            assert_eq!((wait, kept), orphans, "the orphans and their tokens");
            assert!(wait <= MAX_WAITING && kept <= MAX_WAITING_TOKENS, "too many orphans");
        }
    }
}

/// Where a block stands, and the hash space of its children.
type Standing = (ChainHash, HashSpace);

impl Rank {
    /// Where the block of this name stands: in this tier, or else in the nearest that has it.
    fn standing(&self, tier: Tier, hash: EngineHash) -> Option<Standing> {
        let others = Tier::ALL.into_iter().filter(|other| *other != tier);
        std::iter::once(tier).chain(others).find_map(|t| self.tiers[t as usize].standing(hash))
    }

    /// One more copy of a block; false if there is no room for it. `own`: its hash space, where the event
    /// tells it.
    fn add(
        &mut self,
        tier: Tier,
        hash: EngineHash,
        parent: Option<EngineHash>,
        tokens: &[u32],
        own: Option<HashSpace>,
    ) -> bool {
        // Same name, same content, in whichever tier: an engine's hash covers the whole prefix.
        let known = self.standing(tier, hash);
        let place = parent.map(|parent| self.standing(tier, parent));
        let held = &mut self.tiers[tier as usize];
        if let Some(block) = held.blocks.get_mut(&hash) {
            block.copies = block.copies.saturating_add(1);
            return true;
        }
        if held.blocks.len() >= MAX_BLOCKS {
            return false;
        }
        match (known, parent, place.flatten()) {
            (Some(place), ..) => self.stand(tier, hash, place),
            (None, None, _) => {
                let space = own.unwrap_or_default();
                self.stand(tier, hash, (ChainHash::root(space.local(tokens)), space));
            }
            (None, Some(_), Some((before, space))) => {
                let space = own.unwrap_or(space);
                self.stand(tier, hash, (before.then(space.local(tokens)), space));
            }
            (None, Some(parent), None) => {
                let kept = held.waiting_tokens + tokens.len();
                if held.waiting.len() >= MAX_WAITING || kept > MAX_WAITING_TOKENS {
                    return false;
                }
                held.waiting_tokens = kept;
                let place = Place::Waits { parent, tokens: tokens.into(), own };
                held.blocks.insert(hash, Block { place, copies: 1 });
                held.waiting.insert((parent, hash));
            }
        }
        true
    }

    /// One more copy of a block that is only named: known from another tier, or left out.
    fn add_named(&mut self, tier: Tier, hash: EngineHash) {
        let known = self.standing(tier, hash);
        let held = &mut self.tiers[tier as usize];
        if let Some(block) = held.blocks.get_mut(&hash) {
            block.copies = block.copies.saturating_add(1);
        } else if let Some(place) = known.filter(|_| held.blocks.len() < MAX_BLOCKS) {
            self.stand(tier, hash, place);
        }
    }

    /// `hash` has its place; so have its namesakes in other tiers, all that waited for it, and so on (a
    /// worklist: chains of orphans can be as long as a conversation).
    fn stand(&mut self, tier: Tier, hash: EngineHash, place: Standing) {
        self.tiers[tier as usize].stand(hash, place);
        let mut todo = vec![(hash, place)];
        while let Some((hash, (before, space))) = todo.pop() {
            for held in &mut self.tiers {
                if held.stop_waiting(hash).is_some() {
                    held.stand(hash, (before, space));
                }
                while let Some(child) = held.child(hash) {
                    let Some((tokens, own)) = held.stop_waiting(child) else { break };
                    let space = own.unwrap_or(space);
                    let place = (before.then(space.local(&tokens)), space);
                    held.stand(child, place);
                    todo.push((child, place));
                }
            }
        }
    }
}

impl Held {
    fn standing(&self, hash: EngineHash) -> Option<Standing> {
        match self.blocks.get(&hash)?.place {
            Place::Stands { chain, space } => Some((chain, space)),
            Place::Waits { .. } => None,
        }
    }

    /// A block has its place, a new one or one that waited.
    fn stand(&mut self, hash: EngineHash, (chain, space): Standing) {
        let place = Place::Stands { chain, space };
        let block = self.blocks.entry(hash).or_insert(Block { place, copies: 1 });
        block.place = Place::Stands { chain, space };
        *self.chains.entry(chain).or_default() += 1;
    }

    /// A block waits no longer; what it kept. It has no place until it is given one.
    fn stop_waiting(&mut self, hash: EngineHash) -> Option<(Box<[u32]>, Option<HashSpace>)> {
        let Place::Waits { parent, tokens, own } = &mut self.blocks.get_mut(&hash)?.place else {
            return None;
        };
        let kept = (std::mem::take(tokens), *own);
        self.waiting.remove(&(*parent, hash));
        self.waiting_tokens -= kept.0.len();
        Some(kept)
    }

    /// Somebody who waits for `parent`.
    fn child(&self, parent: EngineHash) -> Option<EngineHash> {
        let children = (parent, EngineHash(0))..=(parent, EngineHash(u64::MAX));
        self.waiting.range(children).next().map(|(_, child)| *child)
    }

    fn remove(&mut self, hash: EngineHash) {
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        block.copies -= 1;
        if block.copies > 0 {
            return;
        }
        match self.blocks.remove(&hash).map(|b| b.place) {
            Some(Place::Stands { chain, .. }) => {
                if let Some(n) = self.chains.get_mut(&chain) {
                    *n -= 1;
                    if *n == 0 {
                        self.chains.remove(&chain);
                    }
                }
            }
            Some(Place::Waits { parent, tokens, .. }) => {
                self.waiting_tokens -= tokens.len();
                self.waiting.remove(&(parent, hash));
            }
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "naive_tests.rs"]
mod tests;
