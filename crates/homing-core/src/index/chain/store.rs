//! An engine has stored blocks: each gets its place, by its parent's, or waits for that.

use super::ahead::Ahead;
use super::lanes::{Lane, Lanes};
use super::nodes::Slot;
use super::sets::TargetNo;
use super::target::{Names, Orphan};
use super::{Applied, ChainIndex};
use crate::hash::{ChainHash, EngineHash, HashSpace};
use crate::ids::{DpRank, WorkerId};
use crate::index::event::BlockStored;
use crate::index::groups::Group;
use crate::index::naive::{MAX_BLOCKS, MAX_WAITING, MAX_WAITING_TOKENS};
use crate::index::said::{Said, said};
use crate::keys::Gap;
use std::ops::Range;

/// Where a block goes.
#[derive(Clone, Copy)]
enum Parent {
    /// The sequence starts with it.
    None,
    Stands(Slot),
    Unknown(EngineHash),
}

/// The tier that speaks.
#[derive(Clone, Copy)]
struct Here {
    lanes: Lanes,
    number: TargetNo,
}

/// A block of an event.
#[derive(Clone, Copy)]
struct Block<'a> {
    hash: EngineHash,
    tokens: &'a [u32],
    /// Its hash space, where the event tells it.
    own: Option<HashSpace>,
    /// About so many will follow.
    follow: usize,
    /// The node behind its parent's, if it is called so.
    behind: Option<Slot>,
}

/// A prefix, and what is known of where it lies.
#[derive(Clone, Copy)]
struct Place {
    chain: ChainHash,
    space: HashSpace,
    /// The node of the block before it.
    before: Option<Slot>,
    /// About so many blocks will follow.
    follow: usize,
}

impl ChainIndex {
    pub(super) fn store(
        &mut self,
        key: (WorkerId, DpRank),
        stored: &BlockStored,
        blocks: Range<usize>,
    ) -> Applied {
        let lanes = self.numbers.get(&key).copied();
        let device = lanes.and_then(|lanes| self.target(lanes.of(Lane::Device)?));
        let known = device.is_some_and(|t| t.groups.is_other(stored.group));
        if known || !stored.full_attention {
            return stored.group.map_or(Applied::Ignored, |group| self.other_group(key, group));
        }
        let said = match said(stored, self.block_size) {
            Ok(said) => said,
            Err(refused) => return refused,
        };
        let (Said::Named(tier) | Said::Described(tier)) = said;
        let there = lanes.and_then(|lanes| Some((lanes, lanes.of(tier.into())?)));
        let Some((lanes, number)) = there.or_else(|| self.lanes(key, tier.into())) else {
            return Applied::TooMany;
        };
        let here = Here { lanes, number };
        if let Said::Named(_) = said {
            for &hash in stored.block_hashes.iter().take(blocks.end).skip(blocks.start) {
                self.add_named(here, hash);
            }
            return Applied::Yes;
        }
        self.block_size = Some(stored.block_size);
        let size = stored.block_size as usize;
        let device = lanes.of(Lane::Device).and_then(|n| self.target_mut(n));
        let group = device.zip(stored.group).map(|(t, group)| t.groups.hear(group, true));
        if group == Some(Group::TooMany) {
            return Applied::TooMany;
        }
        let told = stored.parent.is_none() || !stored.cache_salt.is_empty();
        let own = told.then(|| HashSpace::new(&stored.lora_name, &stored.cache_salt));
        let first = blocks.start.checked_sub(1).and_then(|i| stored.block_hashes.get(i));
        let mut parent = match first.copied().or(stored.parent) {
            None => Parent::None,
            Some(name) => {
                let slot = self.anywhere(here, name, self.nodes.called(name));
                slot.map_or(Parent::Unknown(name), Parent::Stands)
            }
        };
        let all = stored.block_hashes.iter().zip(stored.token_ids.chunks_exact(size));
        let left = stored.block_hashes.len();
        let mut ahead = Ahead::new();
        for (i, (&hash, tokens)) in all.enumerate().take(blocks.end).skip(blocks.start) {
            let behind = match parent {
                Parent::Stands(slot) => self.nodes.called_behind(hash, slot),
                Parent::None | Parent::Unknown(_) => None,
            };
            if behind.is_none() {
                let before = self.before(parent, own);
                let names = self.target(number).map(|t| &t.names);
                ahead.look(&self.nodes, names, stored, i..blocks.end, before);
            }
            let block = Block { hash, tokens, own, follow: left - i, behind };
            let hashed = |before, space| ahead.chain(i, before, space);
            match self.add(here, parent, block, hashed) {
                Some(next) => parent = next,
                None => return Applied::TooMany,
            }
        }
        Applied::Yes
    }

    /// A group of a rank is one without full attention.
    fn other_group(&mut self, key: (WorkerId, DpRank), group: u32) -> Applied {
        let device = self.lanes(key, Lane::Device);
        let Some(target) = device.and_then(|(_, n)| self.target_mut(n)) else {
            return Applied::TooMany;
        };
        match target.groups.hear(group, false) {
            Group::TooMany => return Applied::TooMany,
            // Which blocks are known from which group was not kept: none of them can be believed.
            Group::Turned => {
                let groups = std::mem::take(&mut target.groups);
                self.clear(key);
                let device = self.lanes(key, Lane::Device);
                if let Some(target) = device.and_then(|(_, n)| self.target_mut(n)) {
                    target.groups = groups;
                }
                self.forget_block_size_if_empty();
            }
            Group::Full | Group::Other => {}
        }
        Applied::Ignored
    }

    /// Where the target's block of this name stands; `called` is the node that is called so.
    pub(super) fn standing(
        &self,
        number: TargetNo,
        name: EngineHash,
        called: Option<Slot>,
    ) -> Option<Slot> {
        match &self.target(number)?.names {
            Names::Common { .. } => called.filter(|s| self.holds(number, *s)),
            Names::Own { blocks, old, .. } => {
                // It may lead to what was dropped to make room.
                let own = blocks.get(name).map(|(slot, _)| *slot).filter(|s| self.nodes.lives(*s));
                let old = old.as_ref();
                let old = || called.filter(|s| old.is_some_and(|old| old.covers(*s)));
                own.or_else(|| old().filter(|s| self.holds(number, *s)))
            }
        }
    }

    fn holds(&self, number: TargetNo, slot: Slot) -> bool {
        self.nodes.holders(slot).is_some_and(|set| self.sets.has(set, number))
    }

    /// Where a block of this name stands: in this tier, or else in the nearest that has it.
    fn anywhere(&self, here: Here, name: EngineHash, called: Option<Slot>) -> Option<Slot> {
        self.standing(here.number, name, called).or_else(|| self.elsewhere(here, name, called))
    }

    /// The same, in another tier.
    fn elsewhere(&self, here: Here, name: EngineHash, called: Option<Slot>) -> Option<Slot> {
        let mut others = here.lanes.tiers().filter(|n| *n != here.number);
        others.find_map(|n| self.standing(n, name, called))
    }

    /// What a block behind `parent` is hashed from: the prefix before it, and its space.
    fn before(
        &self,
        parent: Parent,
        own: Option<HashSpace>,
    ) -> Option<(Option<ChainHash>, HashSpace)> {
        match parent {
            Parent::None => Some((None, own.unwrap_or_default())),
            Parent::Stands(slot) => {
                let node = self.nodes.get(slot)?;
                Some((Some(node.chain), own.unwrap_or(self.spaces.of(&node))))
            }
            Parent::Unknown(_) => None,
        }
    }

    /// One more copy of a block; what it is to the next one. `None`: there is no room for it. `hashed`: its
    /// chain, where it is known already.
    fn add(
        &mut self,
        here: Here,
        parent: Parent,
        Block { hash, tokens, own, follow, behind }: Block<'_>,
        hashed: impl Fn(Option<ChainHash>, HashSpace) -> Option<ChainHash>,
    ) -> Option<Parent> {
        let own_names = matches!(self.target(here.number)?.names, Names::Own { old: None, .. });
        // Where it has names of its own, those of nodes say nothing of it.
        let called = match behind {
            None if own_names && here.lanes.tiers().count() == 1 => None,
            _ => Some(behind.map_or_else(|| self.nodes.called_or_gap(hash), Ok)),
        };
        let node = called.and_then(Result::ok);
        // Same name, same content: an engine's hash covers the whole prefix.
        if let Some(slot) = self.standing(here.number, hash, node) {
            self.target_mut(here.number)?.copy(hash);
            return Some(Parent::Stands(slot));
        }
        if let Some(slot) = self.elsewhere(here, hash, node) {
            return self.join(here, hash, slot).map(Parent::Stands);
        }
        let target = self.target_mut(here.number)?;
        if let Some(orphan) = target.orphans.get_mut(&hash) {
            orphan.copies = orphan.copies.saturating_add(1);
            return Some(Parent::Unknown(hash));
        }
        if target.len() >= MAX_BLOCKS {
            return None;
        }
        if let Parent::Unknown(parent) = parent {
            let kept = target.waiting_tokens + tokens.len();
            if target.orphans.len() >= MAX_WAITING || kept > MAX_WAITING_TOKENS {
                return None;
            }
            target.wait(hash, Orphan { parent, tokens: tokens.into(), own, copies: 1 });
            return Some(Parent::Unknown(hash));
        }
        let (last, space) = self.before(parent, own)?;
        let chain =
            hashed(last, space).unwrap_or_else(|| ChainHash::after(last, space.local(tokens)));
        let before = if let Parent::Stands(slot) = parent { Some(slot) } else { None };
        let place = Place { chain, space, before, follow };
        let slot = self.hold(here.number, hash, place, 1, called)?;
        self.wake(here.lanes, hash, slot);
        Some(Parent::Stands(slot))
    }

    /// One more copy of a block that is only named: known from another tier, or left out.
    fn add_named(&mut self, here: Here, hash: EngineHash) {
        let called = self.nodes.called(hash);
        if self.standing(here.number, hash, called).is_some() {
            if let Some(target) = self.target_mut(here.number) {
                target.copy(hash);
            }
        } else if let Some(slot) = self.anywhere(here, hash, called) {
            self.join(here, hash, slot);
        } else if let Some(target) = self.target_mut(here.number)
            && let Some(orphan) = target.orphans.get_mut(&hash)
        {
            orphan.copies = orphan.copies.saturating_add(1);
        }
    }

    /// The tier holds from now on what another one of its rank does.
    fn join(&mut self, here: Here, hash: EngineHash, slot: Slot) -> Option<Slot> {
        if self.target(here.number)?.len() >= MAX_BLOCKS {
            return None;
        }
        let slot = self.hold(here.number, hash, self.place_of(slot)?, 1, None)?;
        self.wake(here.lanes, hash, slot);
        Some(slot)
    }

    fn place_of(&self, slot: Slot) -> Option<Place> {
        let node = self.nodes.get(slot)?;
        let space = self.spaces.of(&node);
        Some(Place { chain: node.chain, space, before: slot.checked_sub(1), follow: 0 })
    }

    /// A block has its place; so have its namesakes in other tiers, all that waited for it, and so on (a
    /// worklist: chains of orphans can be as long as a conversation).
    fn wake(&mut self, lanes: Lanes, hash: EngineHash, slot: Slot) {
        let waiting = |n| self.target(n).is_some_and(|t| !t.orphans.is_empty());
        if !lanes.tiers().any(waiting) {
            return;
        }
        let mut todo = vec![(hash, slot)];
        while let Some((parent, slot)) = todo.pop() {
            for number in lanes.tiers() {
                let namesake = self.target_mut(number).and_then(|t| t.stop_waiting(parent));
                if let Some((orphan, place)) = namesake.zip(self.place_of(slot)) {
                    self.hold(number, parent, place, orphan.copies, None);
                }
                while let Some(child) = self.target(number).and_then(|t| t.child(parent)) {
                    let orphan = self.target_mut(number).and_then(|t| t.stop_waiting(child));
                    let Some((orphan, node)) = orphan.zip(self.nodes.get(slot)) else {
                        break;
                    };
                    let space = orphan.own.unwrap_or(self.spaces.of(&node));
                    let chain = node.chain.then(space.local(&orphan.tokens));
                    let place = Place { chain, space, before: Some(slot), follow: 0 };
                    let held = self.hold(number, child, place, orphan.copies, None);
                    todo.extend(held.map(|slot| (child, slot)));
                }
            }
        }
    }

    /// The target holds the prefix under this name, which it didn't hold before. `called`: the node that is
    /// called so, or where the name goes; `None` where that has not been looked up.
    fn hold(
        &mut self,
        number: TargetNo,
        hash: EngineHash,
        place: Place,
        copies: u32,
        called: Option<Result<Slot, Gap>>,
    ) -> Option<Slot> {
        let slot = match self.nodes.find_or_gap(place.chain, place.before) {
            Ok(slot) => slot,
            Err(gap) => {
                let space = self.space(place.space)?;
                self.nodes.insert(place.chain, gap, space, place.before, place.follow)?
            }
        };
        let node = self.nodes.get(slot)?;
        let its = match node.named {
            true => node.engine == hash,
            false => match called.unwrap_or_else(|| self.nodes.called_or_gap(hash)) {
                Ok(_) => false,
                Err(gap) => self.nodes.name(slot, hash, gap),
            },
        };
        if !its {
            self.rename(number);
        }
        let held = self.sets.has(node.set, number);
        let target = self.target_mut(number)?;
        target.standing += 1;
        match &mut target.names {
            Names::Common { copies: more } if copies > 1 => _ = more.insert(hash, copies - 1),
            Names::Common { .. } => {}
            Names::Own { blocks, more, old } => {
                blocks.insert(hash, (slot, copies));
                if held {
                    *more.entry(slot).or_insert(1) += 1;
                } else if let Some(old) = old {
                    old.held(slot);
                }
            }
        }
        if !held {
            let set = self.sets.flip(node.set, number);
            self.nodes.hold(slot, set, false);
        }
        Some(slot)
    }
}
