//! What a hybrid model's engine says of its cache: two groups for each block, as captured from gemma3.
//!
//! Group 0 is a sliding window, group 1 is full attention, and a block has the same hash in both. Of what a
//! prompt fills the window's group keeps the last blocks, of what decoding fills none: its events name fewer
//! blocks than their tokens fill, down to none. The engine model knows full attention only; so this is about
//! what readers of the events meet, and not about what such an engine could reuse.

use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent};
use std::collections::BTreeMap;

/// Blocks that the window is long.
pub(super) const WINDOW_BLOCKS: usize = 3;

const SLIDING: Option<u32> = Some(0);
const FULL: Option<u32> = Some(1);

/// Which KV-cache groups an engine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Groups {
    /// One, of full attention.
    #[default]
    Single,
    /// A sliding window as group 0, full attention as group 1.
    Hybrid,
}

/// The two groups of one rank.
#[derive(Debug, Default)]
pub(super) struct Hybrid {
    /// What the window's group holds, and how many copies.
    window: BTreeMap<EngineHash, u32>,
}

impl Hybrid {
    /// The events of one group as those of two.
    pub(super) fn split(&mut self, events: Vec<KvEvent>) -> Vec<KvEvent> {
        let mut told = Vec::with_capacity(events.len() * 2);
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    told.push(KvEvent::Stored(self.store(&stored)));
                    told.push(KvEvent::Stored(BlockStored { group: FULL, ..stored }));
                }
                KvEvent::Removed(removed) => {
                    let block_hashes = self.remove(&removed.block_hashes);
                    if !block_hashes.is_empty() {
                        let sliding = BlockRemoved { block_hashes, group: SLIDING, ..removed };
                        told.push(KvEvent::Removed(sliding));
                    }
                    told.push(KvEvent::Removed(BlockRemoved { group: FULL, ..removed }));
                }
                KvEvent::Cleared => {
                    self.window.clear();
                    told.push(KvEvent::Cleared);
                }
            }
        }
        told
    }

    fn store(&mut self, stored: &BlockStored) -> BlockStored {
        let all = &stored.block_hashes;
        // A single block behind others is what decoding filled.
        let decoded = all.len() == 1 && stored.parent.is_some();
        let kept = if decoded { 0 } else { all.len().min(WINDOW_BLOCKS) };
        let block_hashes = all[all.len() - kept..].to_vec();
        for hash in &block_hashes {
            *self.window.entry(*hash).or_insert(0) += 1;
        }
        BlockStored { block_hashes, group: SLIDING, full_attention: false, ..stored.clone() }
    }

    /// Which of these the window's group loses.
    fn remove(&mut self, gone: &[EngineHash]) -> Vec<EngineHash> {
        let mut lost = vec![];
        for hash in gone {
            if let Some(copies) = self.window.get_mut(hash) {
                lost.push(*hash);
                *copies -= 1;
                if *copies == 0 {
                    self.window.remove(hash);
                }
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parent: Option<u64>, hashes: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Stored(BlockStored {
            token_ids: hashes.clone().flat_map(|_| [1, 2]).collect(),
            block_hashes: hashes.map(EngineHash).collect(),
            parent: parent.map(EngineHash),
            block_size: 2,
            full_attention: true,
            group: Some(0),
            ..BlockStored::default()
        })
    }

    fn removed(hash: u64) -> KvEvent {
        let block_hashes = vec![EngineHash(hash)];
        KvEvent::Removed(BlockRemoved { block_hashes, group: Some(0), ..BlockRemoved::default() })
    }

    /// Group, hashes, tokens and kind of each event.
    fn shapes(events: &[KvEvent]) -> Vec<(Option<u32>, Vec<u64>, usize, bool)> {
        let names = |hashes: &[EngineHash]| hashes.iter().map(|hash| hash.0).collect();
        let of = |event: &KvEvent| match event {
            KvEvent::Stored(s) => {
                (s.group, names(&s.block_hashes), s.token_ids.len(), s.full_attention)
            }
            KvEvent::Removed(r) => (r.group, names(&r.block_hashes), 0, true),
            KvEvent::Cleared => (None, vec![], 0, true),
        };
        events.iter().map(of).collect()
    }

    #[test]
    fn the_window_keeps_the_end_of_a_prompt_and_nothing_decoded() {
        let mut groups = Hybrid::default();
        let told = groups.split(vec![stored(None, 1..6), stored(Some(5), 6..7)]);
        let expected = [
            (Some(0), vec![3, 4, 5], 10, false),
            (Some(1), vec![1, 2, 3, 4, 5], 10, true),
            (Some(0), vec![], 2, false),
            (Some(1), vec![6], 2, true),
        ];
        assert_eq!(shapes(&told), expected);
    }

    #[test]
    fn each_group_loses_what_it_held_and_no_more() {
        let mut groups = Hybrid::default();
        groups.split(vec![stored(None, 1..6), stored(None, 5..6)]);
        let told = groups.split(Vec::from([6, 5, 5, 5, 2].map(removed)));
        let expected: Vec<_> = [(1, 6), (0, 5), (1, 5), (0, 5), (1, 5), (1, 5), (1, 2)]
            .map(|(group, hash)| (Some(group), vec![hash], 0, true))
            .to_vec();
        assert_eq!(shapes(&told), expected);
        assert_eq!(groups.split(vec![KvEvent::Cleared]), [KvEvent::Cleared]);
        let told = groups.split(vec![removed(4)]);
        assert_eq!(shapes(&told), [(Some(1), vec![4], 0, true)], "cleared means both");
    }
}
