//! The production index against its oracle: whatever engines say, in whatever order, both answer alike.

use super::*;
use crate::hash::{EngineHash, HashSpace, Prompt};
use crate::index::NaiveIndex;
use crate::index::event::{BlockRemoved, BlockStored, Medium};
use crate::time::Time;
use proptest::prelude::*;

pub(super) const SIZE: u32 = 2;

/// What may be said. Few names and few contents, so that they meet: equal prefixes under different names,
/// one name for different prefixes, copies, orphans, holes, salts.
#[derive(Clone, Debug)]
pub(super) enum Say {
    Stored {
        who: u8,
        parent: Option<u64>,
        blocks: Vec<(u64, u8)>,
        salt: u8,
        tier: u8,
    },
    /// In one of two groups, and whether it looks like full attention.
    Grouped {
        who: u8,
        group: u8,
        blocks: Vec<(u64, u8)>,
        full: bool,
    },
    /// Blocks of a lower tier that are only named.
    Named {
        who: u8,
        hashes: Vec<u64>,
        tier: u8,
    },
    Removed {
        who: u8,
        hashes: Vec<u64>,
        tier: u8,
    },
    Cleared(u8),
    Forget(u8),
    /// A prompt goes there, and is believed for so long.
    Predict {
        who: u8,
        contents: Vec<u8>,
        from: usize,
        salt: bool,
    },
    /// Time goes on.
    Later(u64),
    /// A step of the sweep.
    Sweep,
}

/// Most of what is said is of device memory.
fn tier() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(0u8), 1 => 1u8..5]
}

fn medium(tier: u8) -> Medium {
    [Medium::Device, Medium::Host, Medium::Disk, Medium::Shared, Medium::Unknown][usize::from(tier)]
}

fn name() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..12, 100u64..112]
}

pub(super) fn say() -> impl Strategy<Value = Say> {
    let blocks = prop::collection::vec((name(), 0u8..3), 1..5);
    let stored = (0u8..5, prop::option::of(name()), blocks, 0u8..6, tier()).prop_map(
        |(who, parent, blocks, salt, tier)| Say::Stored { who, parent, blocks, salt, tier },
    );
    // As engines say it: names that follow from the content, of one seed or of its own.
    let contents = || prop::collection::vec(0u8..3, 1..6);
    let sequence =
        (0u8..5, contents(), any::<bool>(), tier()).prop_map(|(who, contents, seeded, tier)| {
            let seed = if seeded { u64::from(who) + 1 } else { 0 };
            let mut hash = seed << 32;
            let blocks = contents.into_iter().map(|c| {
                hash = hash.wrapping_mul(31).wrapping_add(u64::from(c) + 1);
                (hash, c)
            });
            Say::Stored { who, parent: None, blocks: blocks.collect(), salt: 0, tier }
        });
    let grouped = (0u8..5, 0u8..2, prop::collection::vec((name(), 0u8..3), 1..5), 0u8..4)
        .prop_map(|(who, group, blocks, full)| Say::Grouped { who, group, blocks, full: full > 0 });
    let hashes = || prop::collection::vec(name(), 1..4);
    let removed = (0u8..5, hashes(), tier()).prop_map(|(who, hashes, tier)| Say::Removed {
        who,
        hashes,
        tier,
    });
    let named =
        (0u8..5, hashes(), 1u8..4).prop_map(|(who, hashes, tier)| Say::Named { who, hashes, tier });
    let predict = (0u8..5, contents(), 0usize..4, prop::bool::weighted(0.2))
        .prop_map(|(who, contents, from, salt)| Say::Predict { who, contents, from, salt });
    prop_oneof![
        8 => stored, 8 => sequence, 4 => grouped, 6 => removed, 3 => named, 5 => predict,
        2 => (0u64..4).prop_map(Say::Later), 2 => Just(Say::Sweep),
        1 => (0u8..5).prop_map(Say::Cleared), 1 => (0u8..5).prop_map(Say::Forget)
    ]
}

pub(super) fn who(n: u8) -> (WorkerId, DpRank) {
    // The last two are ranks of one worker.
    (WorkerId(u32::from(n.min(3))), DpRank(u16::from(n > 3)))
}

fn event(say: &Say) -> Option<((WorkerId, DpRank), KvEvent)> {
    let hashes = |h: &[u64]| h.iter().copied().map(EngineHash).collect();
    Some(match say {
        Say::Stored { who: n, parent, blocks, salt, tier } => {
            let token_ids = blocks.iter().flat_map(|(_, c)| [u32::from(*c); SIZE as usize]);
            let stored = BlockStored {
                block_hashes: blocks.iter().map(|(h, _)| EngineHash(*h)).collect(),
                parent: parent.map(EngineHash),
                token_ids: token_ids.collect(),
                block_size: SIZE,
                cache_salt: if *salt == 5 { "salt".to_owned() } else { String::new() },
                full_attention: true,
                medium: medium(*tier),
                ..BlockStored::default()
            };
            (who(*n), KvEvent::Stored(stored))
        }
        Say::Grouped { who: n, group, blocks, full } => {
            let (salt, tier) = (0, 0);
            let plain = Say::Stored { who: *n, parent: None, blocks: blocks.clone(), salt, tier };
            let (who, KvEvent::Stored(stored)) = event(&plain)? else { return None };
            let group = Some(u32::from(*group));
            (who, KvEvent::Stored(BlockStored { group, full_attention: *full, ..stored }))
        }
        Say::Named { who: n, hashes: named, tier } => {
            let (block_hashes, medium) = (hashes(named), medium(*tier));
            let full_attention = true;
            let stored =
                BlockStored { block_hashes, medium, full_attention, ..BlockStored::default() };
            (who(*n), KvEvent::Stored(stored))
        }
        Say::Removed { who: n, hashes: gone, tier } => {
            let (block_hashes, medium) = (hashes(gone), medium(*tier));
            // Half of them name a group.
            let group =
                gone.first().filter(|hash| **hash % 2 == 0).map(|hash| (*hash / 2 % 2) as u32);
            let removed = BlockRemoved { block_hashes, medium, group };
            (who(*n), KvEvent::Removed(removed))
        }
        Say::Cleared(n) => (who(*n), KvEvent::Cleared),
        _ => return None,
    })
}

/// The same done to both; whether they said the same.
pub(super) fn both(
    fast: &mut ChainIndex,
    plain: &mut NaiveIndex,
    now: &mut u64,
    say: &Say,
) -> bool {
    if let Some(((worker, rank), event)) = event(say) {
        return fast.apply(worker, rank, &event) == plain.apply(worker, rank, &event);
    }
    match say {
        Say::Forget(n) => {
            fast.forget(who(*n).0);
            plain.forget(who(*n).0);
        }
        Say::Predict { who: n, contents, from, salt } => {
            let tokens: Vec<u32> =
                contents.iter().flat_map(|c| [u32::from(*c); SIZE as usize]).collect();
            let space = HashSpace::new("", if *salt { "salt" } else { "" });
            let prompt = Prompt::from_tokens(&tokens, SIZE, space);
            let ((worker, rank), until) = (who(*n), Time::from_micros(*now + 3));
            fast.predict(worker, rank, &prompt, *from, until);
            plain.predict(worker, rank, &prompt, *from, until);
        }
        Say::Later(by) => {
            *now += by;
            while fast.expire(Time::from_micros(*now)) {}
            plain.expire(Time::from_micros(*now));
        }
        Say::Sweep => _ = fast.sweep(1),
        _ => {}
    }
    true
}

/// Every prompt of up to five blocks.
pub(super) fn prompts() -> Vec<Prompt> {
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
        let (mut fast, mut plain, mut now) = (ChainIndex::default(), NaiveIndex::default(), 0);
        for say in &says {
            prop_assert!(both(&mut fast, &mut plain, &mut now, say), "{:?}", say);
            fast.check();
            prop_assert_eq!(fast.block_size(), plain.block_size());
            for worker in (0..4).map(WorkerId) {
                prop_assert_eq!(fast.held(worker), plain.held(worker), "{:?}", worker);
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
        let say = Say::Stored { who: 0, parent: None, blocks, salt: 0, tier: 0 };
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

/// Blocks of a long prompt, over several pages.
const LONG: usize = 160;

/// A long prompt's contents: all alike up to `cut`, and then of a kind of its own.
fn contents(cut: usize, kind: u8) -> Vec<u8> {
    (0..LONG).map(|i| if i < cut { 0 } else { kind }).collect()
}

/// What is said of parts of long prompts: they part in the middle of pages, and holes come to be in them.
fn say_long() -> impl Strategy<Value = Say> {
    let part = (0..LONG, 1..=LONG);
    (0u8..5, 0..LONG, 1u8..4, part, 0u8..8, prop_oneof![6 => Just(0u8), 1 => Just(1)]).prop_map(
        |(who, cut, kind, (from, many), what, tier)| {
            let mut hash = 0u64;
            let blocks = contents(cut, kind).into_iter().map(|c| {
                hash = hash.wrapping_mul(31).wrapping_add(u64::from(c) + 1);
                (hash, c)
            });
            let blocks: Vec<(u64, u8)> = blocks.collect();
            let part = from..(from + many).min(LONG);
            let names =
                |part: Range<usize>| blocks[part].iter().rev().map(|(hash, _)| *hash).collect();
            match what {
                0..3 => Say::Stored { who, parent: None, blocks, salt: 0, tier },
                3 => {
                    let parent = from.checked_sub(1).map(|i| blocks[i].0);
                    Say::Stored { who, parent, blocks: blocks[part].to_vec(), salt: 0, tier }
                }
                // A hole, as none makes; the end, as all do.
                4 => Say::Removed { who, hashes: names(part), tier },
                5 => Say::Removed { who, hashes: names(from..LONG), tier },
                6 => Say::Predict { who, contents: contents(cut, kind), from, salt: false },
                _ => Say::Sweep,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn of_long_prompts_it_says_what_the_plain_one_says(says in prop::collection::vec(say_long(), 1..25)) {
        let (mut fast, mut plain, mut now) = (ChainIndex::default(), NaiveIndex::default(), 0);
        for say in &says {
            prop_assert!(both(&mut fast, &mut plain, &mut now, say), "{:?}", say);
        }
        fast.check();
        for (cut, kind) in (0..LONG).flat_map(|cut| (0u8..4).map(move |kind| (cut, kind))) {
            let blocks = contents(cut, kind);
            let tokens: Vec<u32> = blocks.iter().flat_map(|c| [u32::from(*c); SIZE as usize]).collect();
            let prompt = Prompt::from_tokens(&tokens, SIZE, HashSpace::default());
            prop_assert_eq!(fast.overlaps(&prompt), plain.overlaps(&prompt), "{} {}", cut, kind);
        }
    }
}

pub(super) fn sequence(seed: u32, blocks: u32) -> KvEvent {
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
    while index.sweep(16) {
        index.check();
    }
    assert!(index.bytes() * 20 < one, "{} after {one}", index.bytes());
}
