//! Blocks that nobody announces: somebody outside says what a rank holds ([`crate::index::RecencyIndex`]).
//! They have no engine's names, and the block size is given.

use super::ChainIndex;
use super::lanes::Lane;
use crate::hash::{ChainHash, Prompt};
use crate::ids::{DpRank, WorkerId};

impl ChainIndex {
    /// An index without names, of blocks of so many tokens.
    #[must_use]
    pub(in crate::index) fn nameless(block_size: u32) -> Self {
        Self { nameless: true, block_size: Some(block_size), ..Self::default() }
    }

    /// The rank holds all blocks of the prompt. False: there is no room for some of them.
    pub(in crate::index) fn put(&mut self, key: (WorkerId, DpRank), prompt: &Prompt) -> bool {
        let Some((_, number)) = self.lanes(key, Lane::Device) else { return false };
        let Some(space) = self.space(prompt.space) else { return false };
        let mut before = None;
        for (i, chain) in prompt.chain.iter().enumerate() {
            let left = prompt.chain.len() - i;
            let known = self.nodes.find(*chain, before);
            let slot = known.or_else(|| self.nodes.insert(*chain, space, before, left));
            let Some((slot, node)) = slot.and_then(|s| Some((s, *self.nodes.get(s)?))) else {
                return false;
            };
            before = Some(slot);
            if self.sets.has(node.set, number) {
                continue;
            }
            let set = self.sets.flip(node.set, number);
            if let Some(node) = self.nodes.get_mut(slot) {
                node.set = set;
            }
            if let Some(target) = self.target_mut(number) {
                target.standing += 1;
            }
        }
        true
    }

    /// The rank holds this block no longer.
    pub(in crate::index) fn take(&mut self, key: (WorkerId, DpRank), chain: ChainHash) {
        let number = self.numbers.get(&key).and_then(|lanes| lanes.of(Lane::Device));
        let Some((number, slot)) = number.zip(self.nodes.find(chain, None)) else { return };
        if self.nodes.get(slot).is_some_and(|n| self.sets.has(n.set, number)) {
            if let Some(target) = self.target_mut(number) {
                target.standing -= 1;
            }
            self.leave(number, slot);
        }
    }
}
