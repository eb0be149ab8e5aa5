//! An engine has evicted blocks.

use super::lanes::Lane;
use super::nodes::Slot;
use super::sets::{SetId, TargetNo};
use super::target::Names;
use super::{Applied, ChainIndex};
use crate::hash::EngineHash;
use crate::ids::{DpRank, WorkerId};
use crate::index::event::BlockRemoved;
use std::hint::black_box;
use std::ops::Range;

/// A map that is so much larger than what it holds gives its room back.
const SPARSE: usize = 8;
/// Blocks whose places are asked for at once.
const AHEAD: usize = 32;

impl ChainIndex {
    pub(super) fn remove(
        &mut self,
        key: (WorkerId, DpRank),
        removed: &BlockRemoved,
        blocks: Range<usize>,
    ) -> Applied {
        let Some(tier) = removed.medium.tier() else { return Applied::Ignored };
        let Some(lanes) = self.numbers.get(&key).copied() else { return Applied::Ignored };
        let device = lanes.of(Lane::Device).and_then(|n| self.target(n));
        let Some(device) = device else { return Applied::Ignored };
        if device.groups.is_other(removed.group) {
            return Applied::Ignored;
        }
        let Some(number) = lanes.of(tier.into()) else { return Applied::Yes };
        let all = &removed.block_hashes;
        let blocks = blocks.start..blocks.end.min(all.len());
        for names in all.get(blocks).unwrap_or_default().chunks(AHEAD) {
            self.touch(number, names);
            names.iter().for_each(|hash| self.remove_one(number, *hash));
        }
        Applied::Yes
    }

    /// Brings near the processor what will be read to remove blocks of these names: all of it at once, instead
    /// of one after the other.
    fn touch(&self, number: TargetNo, names: &[EngineHash]) {
        let common = matches!(self.target(number).map(|t| &t.names), Some(Names::Common { .. }));
        if !common || names.len() < 2 {
            return;
        }
        let names = || names.iter().copied();
        let mut seen = names().fold(0, |seen, name| seen ^ self.nodes.touch(name));
        for slot in names().filter_map(|name| self.nodes.called(name)) {
            let chain = self.nodes.get(slot).map(|node| node.chain);
            seen ^= chain.map_or(0, |chain| self.nodes.touch_chain(chain));
        }
        black_box(seen);
    }

    /// One copy of a block less.
    fn remove_one(&mut self, number: TargetNo, hash: EngineHash) {
        let Some(slot) = self.standing(number, hash, self.nodes.called(hash)) else {
            let Some(target) = self.target_mut(number) else { return };
            if let Some(orphan) = target.orphans.get_mut(&hash) {
                orphan.copies -= 1;
                if orphan.copies == 0 {
                    target.stop_waiting(hash);
                }
            } else if let Names::Own { blocks, .. } = &mut target.names {
                // What it led to was dropped.
                blocks.remove(hash);
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
                        if copies.len() * SPARSE < copies.capacity() {
                            copies.shrink_to_fit();
                        }
                    }
                    return;
                }
            }
            Names::Own { blocks, more, old } => {
                let own = blocks.get_mut(hash).map(|(_, copies)| copies);
                // Its node calls it so, and the target's own names don't tell yet.
                let mut old = old.as_deref_mut();
                let by_old = own.is_none();
                let copies =
                    own.or_else(|| old.as_mut()?.copies.get_mut(&hash).filter(|n| **n > 0));
                if let Some(copies) = copies.filter(|n| by_old || **n > 1) {
                    *copies -= 1;
                    return;
                }
                blocks.remove(hash);
                if let Some(n) = more.get_mut(&slot) {
                    *n -= 1;
                    if *n == 1 {
                        more.remove(&slot);
                    }
                    if let Some(old) = old.filter(|_| by_old) {
                        old.lose_name(slot);
                    }
                    target.standing -= 1;
                    return;
                }
                if let Some(old) = old {
                    old.gone(slot, hash);
                }
            }
        }
        target.standing -= 1;
        self.leave(number, slot);
    }

    /// The target holds the prefix no longer.
    pub(super) fn leave(&mut self, number: TargetNo, slot: Slot) {
        let Some(node) = self.nodes.get(slot) else { return };
        let set = self.sets.flip(node.set, number);
        self.nodes.hold(slot, set, true);
        if set == SetId::EMPTY {
            self.nodes.remove(slot);
            self.tidy();
        }
    }
}
