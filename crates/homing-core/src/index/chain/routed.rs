//! Blocks that nobody has announced, and that so have no engine's name: of an index that is told from outside
//! what a rank holds ([`crate::index::RecencyIndex`]; its block size is given), and of predictions.

use super::ChainIndex;
use super::lanes::Lane;
use super::nodes::Slot;
use super::sets::TargetNo;
use crate::hash::{ChainHash, Prompt};
use crate::ids::{DpRank, WorkerId};

impl ChainIndex {
    /// An index without names, of blocks of so many tokens.
    #[must_use]
    pub(in crate::index) fn nameless(block_size: u32) -> Self {
        let mut index = Self { nameless: true, block_size: Some(block_size), ..Self::default() };
        index.show();
        index
    }

    /// The rank holds all blocks of the prompt. False: there is no room for some of them.
    pub(in crate::index) fn put(&mut self, key: (WorkerId, DpRank), prompt: &Prompt) -> bool {
        let Some((_, number)) = self.lanes(key, Lane::Device) else { return false };
        let all = self.hold_unnamed(number, None, prompt, 0, |_| {});
        self.show();
        all
    }

    /// The rank holds this block no longer.
    pub(in crate::index) fn take(&mut self, key: (WorkerId, DpRank), chain: ChainHash) {
        if let Some(number) = self.numbers.get(&key).and_then(|lanes| lanes.of(Lane::Device)) {
            self.let_go(number, chain, None);
            self.show();
        }
    }

    /// The target holds the prompt's blocks from `from` on, under no name, but for those that `other` holds;
    /// `new` is told of each that it didn't. False: there is no room for some of them.
    pub(super) fn hold_unnamed(
        &mut self,
        number: TargetNo,
        other: Option<TargetNo>,
        prompt: &Prompt,
        from: usize,
        mut new: impl FnMut(ChainHash),
    ) -> bool {
        let Some(space) = self.space(prompt.space) else { return false };
        let mut before =
            from.checked_sub(1).and_then(|i| self.nodes.find(*prompt.chain.get(i)?, None));
        for (i, chain) in prompt.chain.iter().enumerate().skip(from) {
            let left = prompt.chain.len() - i;
            let slot = match self.nodes.find_or_gap(*chain, before) {
                Ok(slot) => Some(slot),
                Err(gap) => self.nodes.insert(*chain, gap, space, before, left),
            };
            let Some((slot, node)) = slot.and_then(|s| Some((s, self.nodes.get(s)?))) else {
                return false;
            };
            before = Some(slot);
            let held = |n| self.sets.has(node.set, n);
            if held(number) || other.is_some_and(held) {
                continue;
            }
            let set = self.sets.flip(node.set, number);
            self.nodes.hold(slot, set, false);
            if let Some(target) = self.target_mut(number) {
                target.standing += 1;
            }
            new(*chain);
        }
        true
    }

    /// The target holds a block without a name no longer. Where the block is; most often it lies behind
    /// `before`.
    pub(super) fn let_go(
        &mut self,
        number: TargetNo,
        chain: ChainHash,
        before: Option<Slot>,
    ) -> Option<Slot> {
        let slot = self.nodes.find(chain, before)?;
        if self.nodes.get(slot).is_some_and(|n| self.sets.has(n.set, number)) {
            if let Some(target) = self.target_mut(number) {
                target.standing -= 1;
            }
            self.leave(number, slot);
        }
        Some(slot)
    }
}
