//! What one tier of one rank (a target) says of itself: the names of its blocks where they are its own, and
//! blocks whose parents were never seen.

use super::super::groups::Groups;
use super::nodes::Slot;
use super::rename::Old;
use crate::hash::{EngineHash, HashSpace};
use foldhash::fast::FixedState;
use std::collections::{BTreeSet, HashMap};

pub(super) type Map<K, V> = HashMap<K, V, FixedState>;

/// A block that waits for its parent. The tokens are kept, since their hash depends on the parent's space.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) parent: EngineHash,
    pub(super) tokens: Box<[u32]>,
    pub(super) own: Option<HashSpace>,
    pub(super) copies: u32,
}

/// How a target's blocks are called.
///
/// Engines that hash with the same seed give equal prefixes equal names, and the nodes' own names do for
/// all of them. One with a seed of its own, which is what engines draw unless they are told, has a list.
#[derive(Debug)]
pub(super) enum Names {
    /// As the nodes are; the copies beyond the first.
    Common { copies: Map<EngineHash, u32> },
    /// Its own: where each leads, and its copies; how many lead to a node, where that is more than one; and
    /// what it held before it had them.
    Own { blocks: Shards, more: Map<Slot, u32>, old: Option<Box<Old>> },
}

/// Shards of a target's own names.
const SHARDS: usize = 64;

/// A target's own names, in many small maps: when room must be made, one is looked through at a time.
#[derive(Debug)]
pub(super) struct Shards {
    maps: Box<[Map<EngineHash, (Slot, u32)>; SHARDS]>,
    /// Their capacities in all.
    capacity: usize,
}

impl Default for Shards {
    fn default() -> Self {
        Self { maps: Box::new(std::array::from_fn(|_| Map::default())), capacity: 0 }
    }
}

impl Shards {
    /// Names may be small numbers, or differ in a few of their bits: mixed.
    fn of(hash: EngineHash) -> usize {
        (hash.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize
    }

    pub(super) fn get(&self, hash: EngineHash) -> Option<&(Slot, u32)> {
        self.maps[Self::of(hash)].get(&hash)
    }

    pub(super) fn get_mut(&mut self, hash: EngineHash) -> Option<&mut (Slot, u32)> {
        self.maps[Self::of(hash)].get_mut(&hash)
    }

    pub(super) fn insert(&mut self, hash: EngineHash, at: (Slot, u32)) {
        let map = &mut self.maps[Self::of(hash)];
        let before = map.capacity();
        map.insert(hash, at);
        self.capacity += map.capacity() - before;
    }

    pub(super) fn remove(&mut self, hash: EngineHash) {
        self.maps[Self::of(hash)].remove(&hash);
    }

    /// Every name, and where it leads.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&EngineHash, &(Slot, u32))> {
        self.maps.iter().flatten()
    }

    /// Of one shard, only the names that lead where `lives`. False: there is none of that number.
    pub(super) fn purge(&mut self, shard: usize, lives: impl Fn(Slot) -> bool) -> bool {
        let Some(map) = self.maps.get_mut(shard) else { return false };
        let before = map.capacity();
        map.retain(|_, (slot, _)| lives(*slot));
        if map.len() * 4 < before {
            map.shrink_to_fit();
        }
        self.capacity -= before.saturating_sub(map.capacity());
        true
    }

    fn bytes(&self) -> usize {
        self.capacity * (size_of::<(EngineHash, (Slot, u32))>() + 1)
            + SHARDS * size_of::<Map<EngineHash, (Slot, u32)>>()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) names: Names,
    /// Blocks that stand, by name.
    pub(super) standing: usize,
    pub(super) orphans: Map<EngineHash, Orphan>,
    /// Orphans, behind the parent that they wait for.
    waiting: BTreeSet<(EngineHash, EngineHash)>,
    /// Tokens that they keep.
    pub(super) waiting_tokens: usize,
    pub(super) groups: Groups,
}

impl Default for Target {
    fn default() -> Self {
        Self {
            names: Names::Common { copies: Map::default() },
            standing: 0,
            orphans: Map::default(),
            waiting: BTreeSet::new(),
            waiting_tokens: 0,
            groups: Groups::default(),
        }
    }
}

impl Target {
    /// One more copy of a block that stands.
    pub(super) fn copy(&mut self, hash: EngineHash) {
        match &mut self.names {
            Names::Common { copies } => {
                let more = copies.entry(hash).or_insert(0);
                *more = more.saturating_add(1);
            }
            Names::Own { blocks, old, .. } => {
                let old = old.as_mut().map(|old| &mut old.copies);
                if let Some((_, copies)) = blocks.get_mut(hash) {
                    *copies = copies.saturating_add(1);
                } else if let Some(more) = old.map(|copies| copies.entry(hash).or_insert(0)) {
                    *more = more.saturating_add(1);
                }
            }
        }
    }

    /// Blocks of every kind, each once.
    pub(super) fn len(&self) -> usize {
        self.standing + self.orphans.len()
    }

    /// A block waits for its parent.
    pub(super) fn wait(&mut self, hash: EngineHash, orphan: Orphan) {
        self.waiting_tokens += orphan.tokens.len();
        self.waiting.insert((orphan.parent, hash));
        self.orphans.insert(hash, orphan);
    }

    /// It waits no longer.
    pub(super) fn stop_waiting(&mut self, hash: EngineHash) -> Option<Orphan> {
        let orphan = self.orphans.remove(&hash)?;
        self.waiting_tokens -= orphan.tokens.len();
        self.waiting.remove(&(orphan.parent, hash));
        Some(orphan)
    }

    /// Somebody who waits.
    pub(super) fn any_orphan(&self) -> Option<EngineHash> {
        self.waiting.first().map(|(_, hash)| *hash)
    }

    /// Somebody who waits for `parent`.
    pub(super) fn child(&self, parent: EngineHash) -> Option<EngineHash> {
        let children = (parent, EngineHash(0))..=(parent, EngineHash(u64::MAX));
        self.waiting.range(children).next().map(|(_, child)| *child)
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let names = match &self.names {
            Names::Common { copies } => copies.capacity() * size_of::<(EngineHash, u32)>(),
            Names::Own { blocks, more, old } => {
                let old = old.as_ref().map_or(0, |old| old.bytes());
                blocks.bytes() + more.capacity() * size_of::<(Slot, u32)>() + old
            }
        };
        names
            + self.orphans.capacity() * size_of::<(EngineHash, Orphan)>()
            + self.waiting.len() * 2 * size_of::<(EngineHash, EngineHash)>()
            + self.waiting_tokens * size_of::<u32>()
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self) {
        assert_eq!(self.waiting.len(), self.orphans.len(), "orphans that wait for nobody");
        let kept: usize = self.orphans.values().map(|o| o.tokens.len()).sum();
        assert_eq!(kept, self.waiting_tokens, "the orphans' tokens");
    }
}
