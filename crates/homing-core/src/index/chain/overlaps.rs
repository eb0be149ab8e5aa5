//! How far a prompt goes at each target. It is walked once for all of them: who is still in is a bit each,
//! and a target's answer is where it falls out.

use super::ChainIndex;
use super::sets::SetId;
use crate::hash::Prompt;
use crate::index::{Overlap, Overlaps};
use smallvec::SmallVec;

impl ChainIndex {
    /// Each target's overlap with `prompt`.
    #[must_use]
    pub fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        let mut found = Overlaps::new();
        if self.block_size != Some(prompt.block_size) {
            return found;
        }
        let most = (prompt.reusable_blocks() as usize).min(prompt.chain.len());
        // Who holds all blocks up to here, and whose last one was before.
        let mut alive: SmallVec<[u64; 4]> = SmallVec::new();
        let (mut before, mut set) = (None, SetId::EMPTY);
        let mut depth = 0;
        for chain in &prompt.chain[..most] {
            let Some(slot) = self.nodes.find(*chain, before) else { break };
            let Some(node) = self.nodes.get(slot) else { break };
            if node.set != set {
                set = node.set;
                let words = self.sets.words(set);
                if before.is_none() {
                    alive = words.into();
                } else {
                    self.fall(&mut alive, words, depth, &mut found);
                }
                if alive.iter().all(|w| *w == 0) {
                    break;
                }
            }
            before = Some(slot);
            depth += 1;
        }
        self.fall(&mut alive, &[], depth, &mut found);
        found.sort_unstable_by_key(|o| (o.worker, o.rank));
        found
    }

    /// Those of `alive` who are not in `words` hold `depth` blocks and no more.
    fn fall(&self, alive: &mut [u64], words: &[u64], depth: u32, found: &mut Overlaps) {
        for (i, word) in alive.iter_mut().enumerate() {
            let stay = words.get(i).copied().unwrap_or(0);
            let mut fallen = *word & !stay;
            *word &= stay;
            while fallen != 0 {
                let number = i * 64 + fallen.trailing_zeros() as usize;
                fallen &= fallen - 1;
                if let (Some(Some(((worker, rank), _))), 1..) = (self.targets.get(number), depth) {
                    found.push(Overlap { worker: *worker, rank: *rank, blocks: depth });
                }
            }
        }
    }
}
