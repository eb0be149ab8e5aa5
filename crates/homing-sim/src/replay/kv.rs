//! What an engine's cache does, in the words of its KV events. A trace has no tokens, so each block has some that
//! stand for it; and an engine's names of blocks follow from content, as those of a fleet with one hash seed do.

use crate::engine::fast::{BlockId, Change};
use crate::trace::blocks::{Blocks, put_tokens};
use homing_core::dice::{Dice, SplitMix};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};

/// The events of one step of the engine whose life has this number.
pub(super) fn events(blocks: &Blocks, life: u32, changes: &[Change]) -> Vec<KvEvent> {
    let name = |block: &BlockId| match blocks.chain(block.0) {
        Some(chain) if !block.is_answer() => EngineHash(chain.0),
        _ => EngineHash(SplitMix::new(own(life, *block)).roll()),
    };
    let size = blocks.size() as usize;
    let event = |change: &Change| match change {
        Change::Removed(gone) => KvEvent::Removed(BlockRemoved {
            block_hashes: gone.iter().map(name).collect(),
            medium: Medium::Device,
            group: Some(0),
        }),
        Change::Stored { parent, blocks: stored } => {
            let mut token_ids = vec![0; stored.len() * size];
            for (block, tokens) in stored.iter().zip(token_ids.chunks_exact_mut(size)) {
                let number = if block.is_answer() { own(life, *block) } else { u64::from(block.0) };
                put_tokens(number, tokens);
            }
            KvEvent::Stored(BlockStored {
                block_hashes: stored.iter().map(name).collect(),
                parent: parent.as_ref().map(name),
                token_ids,
                block_size: blocks.size(),
                medium: Medium::Device,
                group: Some(0),
                full_attention: true,
                ..BlockStored::default()
            })
        }
    };
    changes.iter().map(event).collect()
}

/// A number for an answer's block that no other life's answers have, nor a prompt's block.
fn own(life: u32, block: BlockId) -> u64 {
    (u64::from(life) + 1) << 32 | u64::from(block.0)
}
