//! The production index: one node a distinct prefix, whoever holds it.
//!
//! It says exactly what [`super::NaiveIndex`] says, which is kept as its oracle, and differs in where the
//! work is. The naive one asks for each target in turn how far a prompt goes; here the prompt is walked
//! once, for all targets: from one block to the next who holds it rarely changes, and where it doesn't, a
//! step is a comparison of two numbers. Prefixes that several hold are stored once, and most of their names
//! too.
//!
//! * `nodes`: the prefixes;
//! * `sets`: who holds them;
//! * `target`: what each target says in its own words;
//! * `overlaps`: how far a prompt goes;
//! * `check`: what must always be true.

mod check;
mod nodes;
mod overlaps;
mod sets;
mod target;

use super::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use super::naive::{
    Applied, MAX_BLOCK_SIZE, MAX_BLOCKS, MAX_GROUPS, MAX_WAITING, MAX_WAITING_TOKENS,
};
use crate::hash::{ChainHash, EngineHash, HashSpace};
use crate::ids::{DpRank, WorkerId};
use nodes::{Nodes, Slot};
use sets::{SetId, Sets, TargetNo};
use std::collections::BTreeMap;
use std::ops::Range;
use target::{Map, Names, Orphan, Target};

/// Hash spaces of one index, at most: adapters and salts. Of those beyond, a block's children must say
/// their own, or they wait.
const MAX_SPACES: usize = u16::MAX as usize;

/// The exact index of one partition.
///
/// Not yet here: a bound on its memory besides those of each target, and readers that don't wait for the
/// writer's slice.
#[derive(Debug, Default)]
pub struct ChainIndex {
    nodes: Nodes,
    sets: Sets,
    /// In the order of ids: same seed, same run.
    numbers: BTreeMap<(WorkerId, DpRank), TargetNo>,
    targets: Vec<Option<((WorkerId, DpRank), Target)>>,
    spaces: Vec<HashSpace>,
    space_numbers: Map<HashSpace, u16>,
    block_size: Option<u32>,
}

/// Where a block goes.
#[derive(Clone, Copy)]
enum Parent {
    /// The sequence starts with it.
    None,
    Stands(Slot),
    Unknown(EngineHash),
}

impl ChainIndex {
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
            KvEvent::Stored(stored) => self.store((worker, rank), stored, blocks),
            KvEvent::Removed(removed) => self.remove((worker, rank), removed, blocks),
            KvEvent::Cleared => {
                self.clear((worker, rank));
                self.forget_block_size_if_empty();
                Applied::Yes
            }
        }
    }

    /// Forgets everything about a worker.
    pub fn forget(&mut self, worker: WorkerId) {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let gone: Vec<_> = self.numbers.range(ranks).map(|(k, _)| *k).collect();
        gone.into_iter().for_each(|key| self.clear(key));
        self.forget_block_size_if_empty();
    }

    /// How many blocks a worker holds, over all its ranks (each once, whatever its copies).
    #[must_use]
    pub fn blocks(&self, worker: WorkerId) -> usize {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let targets = self.numbers.range(ranks).filter_map(|(_, n)| self.target(*n));
        targets.map(Target::len).sum()
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let targets = self.targets.iter().flatten().map(|(_, t)| t.bytes()).sum::<usize>();
        self.nodes.bytes() + self.sets.bytes() + targets
    }

    fn target(&self, number: TargetNo) -> Option<&Target> {
        self.targets.get(number as usize)?.as_ref().map(|(_, t)| t)
    }

    fn target_mut(&mut self, number: TargetNo) -> Option<&mut Target> {
        self.targets.get_mut(number as usize)?.as_mut().map(|(_, t)| t)
    }

    /// The number of a target, which gets one if need be. `None`: there are too many.
    fn number(&mut self, key: (WorkerId, DpRank)) -> Option<TargetNo> {
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let free = self.targets.iter().position(Option::is_none).unwrap_or(self.targets.len());
        let number = TargetNo::try_from(free).ok()?;
        if free == self.targets.len() {
            self.targets.push(None);
        }
        self.targets[free] = Some((key, Target::default()));
        self.numbers.insert(key, number);
        Some(number)
    }

    fn store(
        &mut self,
        key: (WorkerId, DpRank),
        stored: &BlockStored,
        blocks: Range<usize>,
    ) -> Applied {
        if !stored.full_attention {
            let Some(group) = stored.group else { return Applied::Ignored };
            let number = self.number(key);
            let Some(target) = number.and_then(|n| self.target_mut(n)) else {
                return Applied::TooMany;
            };
            let groups = &mut target.other_groups;
            if groups.len() >= MAX_GROUPS && !groups.contains(&group) {
                return Applied::TooMany;
            }
            groups.insert(group);
            return Applied::Ignored;
        }
        if stored.medium != Medium::Device || stored.opaque || stored.block_hashes.is_empty() {
            return Applied::Ignored;
        }
        let size = stored.block_size as usize;
        if !(1..=MAX_BLOCK_SIZE).contains(&stored.block_size)
            || stored.token_ids.len() != size * stored.block_hashes.len()
        {
            return Applied::CountMismatch;
        }
        match self.block_size {
            Some(known) if known != stored.block_size => {
                return Applied::BlockSizeMismatch { known, got: stored.block_size };
            }
            _ => self.block_size = Some(stored.block_size),
        }
        let told = stored.parent.is_none() || !stored.cache_salt.is_empty();
        let own = told.then(|| HashSpace::new(&stored.lora_name, &stored.cache_salt));
        let Some(number) = self.number(key) else { return Applied::TooMany };
        let first = blocks.start.checked_sub(1).and_then(|i| stored.block_hashes.get(i));
        let mut parent = match first.copied().or(stored.parent) {
            None => Parent::None,
            Some(name) => self.parent(number, name),
        };
        let all = stored.block_hashes.iter().zip(stored.token_ids.chunks_exact(size));
        let left = stored.block_hashes.len();
        for (i, (&hash, tokens)) in all.enumerate().take(blocks.end).skip(blocks.start) {
            match self.add(number, hash, parent, tokens, own, left - i) {
                Some(next) => parent = next,
                None => return Applied::TooMany,
            }
        }
        Applied::Yes
    }

    fn parent(&self, number: TargetNo, name: EngineHash) -> Parent {
        self.standing(number, name, None).map_or(Parent::Unknown(name), Parent::Stands)
    }

    /// Where the target's block of this name stands.
    fn standing(&self, number: TargetNo, name: EngineHash, before: Option<Slot>) -> Option<Slot> {
        match &self.target(number)?.names {
            Names::Common { .. } => {
                let slot = self.nodes.called(name, before)?;
                self.sets.has(self.nodes.get(slot)?.set, number).then_some(slot)
            }
            Names::Own { blocks, .. } => blocks.get(&name).map(|(slot, _)| *slot),
        }
    }

    /// One more copy of a block; what it is to the next one. `None`: there is no room for it. `own`: its
    /// hash space, where the event tells it.
    fn add(
        &mut self,
        number: TargetNo,
        hash: EngineHash,
        parent: Parent,
        tokens: &[u32],
        own: Option<HashSpace>,
        follow: usize,
    ) -> Option<Parent> {
        let before = if let Parent::Stands(slot) = parent { Some(slot) } else { None };
        if let Some(slot) = self.standing(number, hash, before) {
            // Same name, same content: an engine's hash covers the whole prefix.
            self.copy(number, hash);
            return Some(Parent::Stands(slot));
        }
        let target = self.target_mut(number)?;
        if let Some(orphan) = target.orphans.get_mut(&hash) {
            orphan.copies = orphan.copies.saturating_add(1);
            return Some(Parent::Unknown(hash));
        }
        if target.len() >= MAX_BLOCKS {
            return None;
        }
        match parent {
            Parent::Unknown(parent) => {
                let kept = target.waiting_tokens + tokens.len();
                if target.orphans.len() >= MAX_WAITING || kept > MAX_WAITING_TOKENS {
                    return None;
                }
                target.wait(hash, Orphan { parent, tokens: tokens.into(), own, copies: 1 });
                Some(Parent::Unknown(hash))
            }
            Parent::None => {
                let space = own.unwrap_or_default();
                let chain = ChainHash::root(space.local(tokens));
                let slot = self.stand(number, hash, chain, space, None, follow)?;
                Some(Parent::Stands(slot))
            }
            Parent::Stands(parent) => {
                let node = *self.nodes.get(parent)?;
                let space = own.unwrap_or(self.spaces[node.space as usize]);
                let chain = node.chain.then(space.local(tokens));
                let slot = self.stand(number, hash, chain, space, Some(parent), follow)?;
                Some(Parent::Stands(slot))
            }
        }
    }

    /// One more copy of a block that stands.
    fn copy(&mut self, number: TargetNo, hash: EngineHash) {
        match self.target_mut(number).map(|t| &mut t.names) {
            Some(Names::Common { copies }) => {
                let more = copies.entry(hash).or_insert(0);
                *more = more.saturating_add(1);
            }
            Some(Names::Own { blocks, .. }) => {
                if let Some((_, copies)) = blocks.get_mut(&hash) {
                    *copies = copies.saturating_add(1);
                }
            }
            None => {}
        }
    }

    /// A block has its place; so have all that waited for it, and so on (a worklist: chains of orphans can be
    /// as long as a conversation).
    fn stand(
        &mut self,
        number: TargetNo,
        hash: EngineHash,
        chain: ChainHash,
        space: HashSpace,
        before: Option<Slot>,
        follow: usize,
    ) -> Option<Slot> {
        let first = self.hold(number, hash, chain, space, before, follow, 1)?;
        if self.target(number).is_some_and(|t| t.orphans.is_empty()) {
            return Some(first);
        }
        let mut todo = vec![(hash, first)];
        while let Some((parent, slot)) = todo.pop() {
            while let Some(child) = self.target(number).and_then(|t| t.child(parent)) {
                let orphan = self.target_mut(number).and_then(|t| t.stop_waiting(child));
                let Some((orphan, node)) = orphan.zip(self.nodes.get(slot).copied()) else { break };
                let space = orphan.own.unwrap_or(self.spaces[node.space as usize]);
                let chain = node.chain.then(space.local(&orphan.tokens));
                let held = self.hold(number, child, chain, space, Some(slot), 0, orphan.copies);
                todo.extend(held.map(|slot| (child, slot)));
            }
        }
        Some(first)
    }

    /// The target holds the prefix under this name, which it didn't hold before.
    #[expect(clippy::too_many_arguments, reason = "what a block is, one by one")]
    fn hold(
        &mut self,
        number: TargetNo,
        hash: EngineHash,
        chain: ChainHash,
        space: HashSpace,
        before: Option<Slot>,
        follow: usize,
        copies: u32,
    ) -> Option<Slot> {
        let space = self.space(space)?;
        let slot = match self.nodes.find(chain, before) {
            Some(slot) => slot,
            None => self.nodes.insert(chain, hash, space, before, follow)?,
        };
        let node = *self.nodes.get(slot)?;
        if !(node.named && node.engine == hash) {
            self.rename(number);
        }
        let held = self.sets.has(node.set, number);
        let target = self.target_mut(number)?;
        target.standing += 1;
        match &mut target.names {
            Names::Common { copies: more } if copies > 1 => _ = more.insert(hash, copies - 1),
            Names::Common { .. } => {}
            Names::Own { blocks, more } => {
                blocks.insert(hash, (slot, copies));
                if held {
                    *more.entry(slot).or_insert(1) += 1;
                }
            }
        }
        if !held {
            let set = self.sets.flip(node.set, number);
            self.nodes.get_mut(slot)?.set = set;
        }
        Some(slot)
    }

    /// The target has names of its own from now on: what it holds so far is called as its nodes are.
    fn rename(&mut self, number: TargetNo) {
        let Some(target) = self.target_mut(number) else { return };
        let Names::Common { copies } = &mut target.names else { return };
        let copies = std::mem::take(copies);
        let mut blocks = Map::default();
        if target.standing > 0 {
            // Once in a target's life, most often with its first block: all nodes are looked at.
            for (slot, node) in self.nodes.iter().filter(|(_, n)| self.sets.has(n.set, number)) {
                let more = copies.get(&node.engine).copied().unwrap_or(0);
                blocks.insert(node.engine, (slot, more.saturating_add(1)));
            }
        }
        if let Some(target) = self.target_mut(number) {
            target.names = Names::Own { blocks, more: Map::default() };
        }
    }

    fn space(&mut self, space: HashSpace) -> Option<u16> {
        if let Some(number) = self.space_numbers.get(&space) {
            return Some(*number);
        }
        if self.spaces.len() >= MAX_SPACES {
            return None;
        }
        let number = self.spaces.len() as u16;
        self.spaces.push(space);
        self.space_numbers.insert(space, number);
        Some(number)
    }

    fn remove(
        &mut self,
        key: (WorkerId, DpRank),
        removed: &BlockRemoved,
        blocks: Range<usize>,
    ) -> Applied {
        if removed.medium != Medium::Device {
            return Applied::Ignored;
        }
        let Some(&number) = self.numbers.get(&key) else { return Applied::Ignored };
        let Some(target) = self.target(number) else { return Applied::Ignored };
        if removed.group.is_some_and(|g| target.other_groups.contains(&g)) {
            return Applied::Ignored;
        }
        for &hash in removed.block_hashes.iter().take(blocks.end).skip(blocks.start) {
            self.remove_one(number, hash);
        }
        Applied::Yes
    }

    /// One copy of a block less.
    fn remove_one(&mut self, number: TargetNo, hash: EngineHash) {
        let Some(slot) = self.standing(number, hash, None) else {
            let Some(target) = self.target_mut(number) else { return };
            if let Some(orphan) = target.orphans.get_mut(&hash) {
                orphan.copies -= 1;
                if orphan.copies == 0 {
                    target.stop_waiting(hash);
                }
            }
            return;
        };
        let Some(target) = self.target_mut(number) else { return };
        match &mut target.names {
            Names::Common { copies } => {
                if let Some(more) = copies.get_mut(&hash) {
                    *more -= 1;
                    if *more == 0 {
                        copies.remove(&hash);
                    }
                    return;
                }
            }
            Names::Own { blocks, more } => {
                if let Some((_, copies)) = blocks.get_mut(&hash).filter(|(_, n)| *n > 1) {
                    *copies -= 1;
                    return;
                }
                blocks.remove(&hash);
                target.standing -= 1;
                if let Some(n) = more.get_mut(&slot) {
                    *n -= 1;
                    if *n == 1 {
                        more.remove(&slot);
                    }
                    return;
                }
                target.standing += 1;
            }
        }
        target.standing -= 1;
        self.leave(number, slot);
    }

    /// The target holds the prefix no longer.
    fn leave(&mut self, number: TargetNo, slot: Slot) {
        let Some(node) = self.nodes.get_mut(slot) else { return };
        node.set = self.sets.flip(node.set, number);
        if node.set == SetId::EMPTY {
            self.nodes.remove(slot);
        }
    }

    fn clear(&mut self, key: (WorkerId, DpRank)) {
        let Some(number) = self.numbers.remove(&key) else { return };
        let gone = self.targets[number as usize].take();
        while let Some(None) = self.targets.last() {
            self.targets.pop();
        }
        let held: Vec<Slot> = match gone.map(|(_, t)| t) {
            None => Vec::new(),
            Some(t) if t.standing == 0 => Vec::new(),
            Some(_) => {
                let its = |node: &nodes::Node| self.sets.has(node.set, number);
                self.nodes.iter().filter(|(_, n)| its(n)).map(|(slot, _)| slot).collect()
            }
        };
        held.into_iter().for_each(|slot| self.leave(number, slot));
        if self.nodes.len() == 0 {
            (self.spaces, self.space_numbers) = Default::default();
        }
    }

    /// An empty index has no opinion: the engines may come back with another block size.
    fn forget_block_size_if_empty(&mut self) {
        if self.targets.iter().flatten().all(|(_, t)| t.len() == 0) {
            self.block_size = None;
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
