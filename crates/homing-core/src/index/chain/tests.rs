//! The production index against its oracle: whatever engines say, in whatever order, both answer alike.

use super::*;
use crate::hash::Prompt;
use crate::index::NaiveIndex;
use proptest::prelude::*;

const SIZE: u32 = 2;

/// What may be said. Few names and few contents, so that they meet: equal prefixes under different names,
/// one name for different prefixes, copies, orphans, holes, salts.
#[derive(Clone, Debug)]
enum Say {
    Stored { who: u8, parent: Option<u64>, blocks: Vec<(u64, u8)>, salt: u8 },
    Removed { who: u8, hashes: Vec<u64> },
    Cleared(u8),
    Forget(u8),
}

fn name() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..12, 100u64..112]
}

fn say() -> impl Strategy<Value = Say> {
    let blocks = prop::collection::vec((name(), 0u8..3), 1..5);
    let stored = (0u8..5, prop::option::of(name()), blocks, 0u8..6)
        .prop_map(|(who, parent, blocks, salt)| Say::Stored { who, parent, blocks, salt });
    // As engines say it: names that follow from the content, of one seed or of its own.
    let sequence = (0u8..5, prop::collection::vec(0u8..3, 1..6), any::<bool>()).prop_map(
        |(who, contents, seeded)| {
            let seed = if seeded { u64::from(who) + 1 } else { 0 };
            let mut hash = seed << 32;
            let blocks = contents.into_iter().map(|c| {
                hash = hash.wrapping_mul(31).wrapping_add(u64::from(c) + 1);
                (hash, c)
            });
            Say::Stored { who, parent: None, blocks: blocks.collect(), salt: 0 }
        },
    );
    let removed = (0u8..5, prop::collection::vec(name(), 1..4))
        .prop_map(|(who, hashes)| Say::Removed { who, hashes });
    prop_oneof![
        4 => stored, 4 => sequence, 3 => removed,
        1 => (0u8..5).prop_map(Say::Cleared), 1 => (0u8..5).prop_map(Say::Forget)
    ]
}

fn who(n: u8) -> (WorkerId, DpRank) {
    // The last two are ranks of one worker.
    (WorkerId(u32::from(n.min(3))), DpRank(u16::from(n > 3)))
}

fn event(say: &Say) -> Option<((WorkerId, DpRank), KvEvent)> {
    let hashes = |h: &[u64]| h.iter().copied().map(EngineHash).collect();
    Some(match say {
        Say::Stored { who: n, parent, blocks, salt } => {
            let token_ids = blocks.iter().flat_map(|(_, c)| [u32::from(*c); SIZE as usize]);
            let stored = BlockStored {
                block_hashes: blocks.iter().map(|(h, _)| EngineHash(*h)).collect(),
                parent: parent.map(EngineHash),
                token_ids: token_ids.collect(),
                block_size: SIZE,
                cache_salt: if *salt == 5 { "salt".to_owned() } else { String::new() },
                full_attention: true,
                ..BlockStored::default()
            };
            (who(*n), KvEvent::Stored(stored))
        }
        Say::Removed { who: n, hashes: gone } => {
            let removed = BlockRemoved { block_hashes: hashes(gone), ..BlockRemoved::default() };
            (who(*n), KvEvent::Removed(removed))
        }
        Say::Cleared(n) => (who(*n), KvEvent::Cleared),
        Say::Forget(_) => return None,
    })
}

/// Every prompt of up to five blocks.
fn prompts() -> Vec<Prompt> {
    let mut all = Vec::new();
    for salt in ["", "salt"] {
        for n in 0..3u32.pow(5) {
            let tokens: Vec<u32> =
                (0..5).flat_map(|i| [n / 3u32.pow(i) % 3; SIZE as usize]).chain([9]).collect();
            all.push(Prompt::from_tokens(&tokens, SIZE, HashSpace::new("", salt)));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn it_says_what_the_plain_one_says(says in prop::collection::vec(say(), 1..40)) {
        let (mut fast, mut plain) = (ChainIndex::default(), NaiveIndex::default());
        for say in &says {
            match (event(say), say) {
                (Some(((worker, rank), event)), _) => {
                    let results = (fast.apply(worker, rank, &event), plain.apply(worker, rank, &event));
                    prop_assert_eq!(results.0, results.1);
                }
                (None, Say::Forget(n)) => {
                    fast.forget(who(*n).0);
                    plain.forget(who(*n).0);
                }
                _ => {}
            }
            fast.check();
            prop_assert_eq!(fast.block_size(), plain.block_size());
            for worker in (0..4).map(WorkerId) {
                prop_assert_eq!(fast.blocks(worker), plain.blocks(worker), "{:?}", worker);
            }
        }
        for prompt in prompts() {
            prop_assert_eq!(fast.overlaps(&prompt), plain.overlaps(&prompt));
        }
    }

    /// In parts, it is the same.
    #[test]
    fn parts_are_as_good_as_the_whole(cut in 0usize..6, contents in prop::collection::vec(0u8..3, 5)) {
        let blocks = contents.iter().enumerate().map(|(i, c)| (i as u64, *c)).collect();
        let say = Say::Stored { who: 0, parent: None, blocks, salt: 0 };
        let ((worker, rank), event) = event(&say).unwrap();
        let (mut whole, mut parts) = (ChainIndex::default(), ChainIndex::default());
        whole.apply(worker, rank, &event);
        parts.apply_part(worker, rank, &event, 0..cut.min(5));
        parts.apply_part(worker, rank, &event, cut.min(5)..5);
        parts.check();
        for prompt in prompts() {
            prop_assert_eq!(whole.overlaps(&prompt), parts.overlaps(&prompt));
        }
    }
}

fn sequence(seed: u32, blocks: u32) -> KvEvent {
    let hash = |i: u32| EngineHash(u64::from(seed) << 32 | u64::from(i));
    KvEvent::Stored(BlockStored {
        block_hashes: (0..blocks).map(hash).collect(),
        token_ids: (0..blocks * SIZE).map(|i| seed.wrapping_mul(1000) + i).collect(),
        block_size: SIZE,
        full_attention: true,
        ..BlockStored::default()
    })
}

#[test]
fn f22_what_is_held_by_many_is_stored_once_and_what_is_gone_takes_no_room() {
    let mut index = ChainIndex::default();
    let event = sequence(1, 50_000);
    index.apply(WorkerId(0), DpRank(0), &event);
    let one = index.bytes();
    for worker in 1..64 {
        index.apply(WorkerId(worker), DpRank(0), &event);
    }
    assert!(index.bytes() < one * 11 / 10, "{} after {one}", index.bytes());
    for worker in 0..64 {
        let mut other = sequence(worker + 2, 2_000);
        index.apply(WorkerId(worker), DpRank(0), &other);
        // Leaves go first, as engines evict them.
        if let KvEvent::Stored(stored) = &mut other {
            let mut gone = std::mem::take(&mut stored.block_hashes);
            gone.reverse();
            let removed = BlockRemoved { block_hashes: gone, ..BlockRemoved::default() };
            index.apply(WorkerId(worker), DpRank(0), &KvEvent::Removed(removed));
        }
    }
    index.check();
    assert!(index.bytes() < one * 12 / 10, "{} after {one}", index.bytes());
    for worker in 0..64 {
        index.forget(WorkerId(worker));
    }
    index.check();
    assert!(index.bytes() * 20 < one, "{} after {one}", index.bytes());
}
