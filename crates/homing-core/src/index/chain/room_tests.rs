//! Whatever is dropped, what remains is true, and the books balance.

use super::tests::{SIZE, Say, both, prompts, sequence, who};
use super::*;
use crate::hash::{EngineHash, HashSpace, Prompt};
use crate::index::event::{BlockRemoved, BlockStored};
use crate::index::{NaiveIndex, Overlaps};
use crate::time::Time;
use proptest::prelude::*;

/// What engines say: names follow from content, of a seed that all share or of their own.
pub(super) fn honest() -> impl Strategy<Value = Say> {
    let contents = || prop::collection::vec(0u8..3, 1..6);
    let blocks = |who: u8, seeded: bool, contents: &[u8]| -> Vec<(u64, u8)> {
        let mut hash = if seeded { (u64::from(who) + 1) << 32 } else { 0 };
        let name = |c: &u8| {
            hash = hash.wrapping_mul(31).wrapping_add(u64::from(*c) + 1);
            (hash, *c)
        };
        contents.iter().map(name).collect()
    };
    let stored = (0u8..5, contents(), any::<bool>(), 0usize..3, 0u8..3).prop_map(
        move |(who, contents, seeded, skip, tier)| {
            let all = blocks(who, seeded, &contents);
            let skip = skip.min(all.len() - 1);
            let parent = skip.checked_sub(1).map(|i| all[i].0);
            Say::Stored { who, parent, blocks: all[skip..].to_vec(), salt: 0, tier }
        },
    );
    let removed = (0u8..5, contents(), any::<bool>(), 0u8..3).prop_map(
        move |(who, contents, seeded, tier)| {
            let hashes = blocks(who, seeded, &contents).into_iter().map(|(h, _)| h).collect();
            Say::Removed { who, hashes, tier }
        },
    );
    let predict = (0u8..5, contents()).prop_map(|(who, contents)| Say::Predict {
        who,
        contents,
        from: 0,
        salt: false,
    });
    prop_oneof![
        6 => stored, 3 => removed, 2 => predict, 1 => (0u64..4).prop_map(Say::Later),
        2 => Just(Say::Sweep), 1 => (0u8..5).prop_map(Say::Cleared)
    ]
}

fn depth(found: &Overlaps, n: u8, of: impl Fn(&crate::index::Overlap) -> u32) -> u32 {
    found.iter().find(|o| (o.worker, o.rank) == who(n)).map_or(0, of)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn f22_what_is_left_of_a_cramped_index_is_true(
        says in prop::collection::vec((honest(), 0u8..4), 1..60),
    ) {
        let (mut fast, mut plain, mut now) = (ChainIndex::default(), NaiveIndex::default(), 0);
        for (say, squeeze) in &says {
            both(&mut fast, &mut plain, &mut now, say);
            // Two steps, a round of them, or none: ghosts and purges are met in each state.
            for _ in 0..[0, 0, 2, 70][usize::from(*squeeze)] {
                fast.make_room(0);
                fast.check();
            }
        }
        for prompt in prompts() {
            let (ours, all) = (fast.overlaps(&prompt), plain.overlaps(&prompt));
            for n in 0..5 {
                prop_assert!(depth(&ours, n, |o| o.blocks) <= depth(&all, n, |o| o.blocks));
                let total = |o: &crate::index::Overlap| o.total();
                prop_assert!(depth(&ours, n, total) <= depth(&all, n, total));
            }
        }
        while fast.make_room(0) {}
        fast.check();
        prop_assert_eq!(fast.block_size(), None, "all of it is gone");
        prop_assert!((0..4).all(|w| fast.held(WorkerId(w)) == [0; 3]));
    }
}

/// `sequence`, under names that only this worker gives.
pub(super) fn own(seed: u32, worker: u32, blocks: u32) -> KvEvent {
    let KvEvent::Stored(mut stored) = sequence(seed, blocks) else { unreachable!() };
    stored.block_hashes.iter_mut().for_each(|h| h.0 = h.0.wrapping_mul(u64::from(worker) * 2 + 3));
    KvEvent::Stored(stored)
}

pub(super) fn prompt(seed: u32, blocks: u32) -> Prompt {
    let tokens: Vec<u32> = (0..=blocks * SIZE).map(|i| seed.wrapping_mul(1000) + i).collect();
    Prompt::from_tokens(&tokens, SIZE, HashSpace::default())
}

#[test]
fn f22_a_budget_holds_and_the_cold_goes_first() {
    for own_names in [false, true] {
        let say =
            |seed, worker| if own_names { own(seed, worker, 640) } else { sequence(seed, 640) };
        let mut index = ChainIndex::default();
        // Two workers a sequence, so that there are names of a target's own at all.
        let store = |index: &mut ChainIndex, seed: u32| {
            for worker in [seed % 8, seed % 8 + 8] {
                index.apply(WorkerId(worker), DpRank(0), &say(seed, worker));
            }
        };
        (0..100).for_each(|seed| store(&mut index, seed));
        let full = index.bytes();
        let budget = full / 4;
        for seed in 100..400 {
            // Somebody asks for the first five all the time.
            for hot in 0..5 {
                assert_eq!(index.overlaps(&prompt(hot, 640)).len(), 2, "{hot} at {seed}");
            }
            store(&mut index, seed);
            while index.make_room(budget) {}
            assert!(index.bytes() <= budget, "{} of {budget}", index.bytes());
        }
        index.check();
        for hot in 0..5 {
            assert_eq!(index.overlaps(&prompt(hot, 640))[0].blocks, 640);
        }
        assert!(index.overlaps(&prompt(50, 640)).is_empty(), "nobody asked");
        assert!(index.dropped() > 300 * 640);
        // What engines say later of what was dropped does no harm.
        for seed in 0..100 {
            let worker = seed % 8;
            let KvEvent::Stored(stored) = say(seed, worker) else { unreachable!() };
            let block_hashes = stored.block_hashes.iter().rev().copied().collect();
            let gone = BlockRemoved { block_hashes, ..BlockRemoved::default() };
            index.apply(WorkerId(worker), DpRank(0), &KvEvent::Removed(gone));
        }
        index.check();
    }
}

/// Found by a breaker: a salt a user, or a session, is usual, and one index outlives them all.
#[test]
fn f22_salts_come_and_go_without_end() {
    let salted = |i: u64| BlockStored {
        block_hashes: vec![EngineHash(i)],
        token_ids: vec![7; SIZE as usize],
        block_size: SIZE,
        cache_salt: format!("user {i}"),
        full_attention: true,
        ..BlockStored::default()
    };
    let mut index = ChainIndex::default();
    for i in 0..150_000 {
        let stored = KvEvent::Stored(salted(i));
        assert_eq!(index.apply(WorkerId(0), DpRank(0), &stored), Applied::Yes, "{i}");
        if let Some(old) = u64::checked_sub(i, 100) {
            let block_hashes = vec![EngineHash(old)];
            let gone = BlockRemoved { block_hashes, ..BlockRemoved::default() };
            index.apply(WorkerId(0), DpRank(0), &KvEvent::Removed(gone));
        }
    }
    index.check();
    let space = HashSpace::new("", "user 149999");
    let prompt = Prompt::from_tokens(&[7, 7, 0], SIZE, space);
    assert_eq!(index.overlaps(&prompt)[0].blocks, 1);
    assert!(index.bytes() < 8 << 20, "{}", index.bytes());
}

#[test]
fn f22_clears_without_end_take_no_numbers() {
    let mut index = ChainIndex::default();
    index.apply(WorkerId(1), DpRank(0), &sequence(1, 100));
    for _ in 0..100_000 {
        assert_eq!(index.apply(WorkerId(0), DpRank(0), &sequence(2, 1)), Applied::Yes);
        index.apply(WorkerId(0), DpRank(0), &KvEvent::Cleared);
        index.sweep(32);
    }
    index.check();
    assert!(index.bytes() < 1 << 20, "{}", index.bytes());
}

#[test]
fn f22_orphans_are_the_first_to_go() {
    let mut index = ChainIndex::default();
    index.apply(WorkerId(0), DpRank(0), &sequence(1, 1000));
    let before = index.bytes();
    let orphan = KvEvent::Stored(BlockStored {
        block_hashes: (0..5_000).map(|i| EngineHash(1 << 60 | i)).collect(),
        parent: Some(EngineHash(1 << 61)),
        token_ids: vec![7; 10_000],
        block_size: SIZE,
        full_attention: true,
        ..BlockStored::default()
    });
    index.apply(WorkerId(0), DpRank(0), &orphan);
    assert!(index.bytes() > before + 100_000);
    while index.make_room(before + 1000) {}
    assert_eq!((index.blocks(WorkerId(0)), index.dropped()), (1000, 5_000));
    assert_eq!(index.overlaps(&prompt(1, 1000))[0].blocks, 1000);
    index.check();
}

/// Engines tell each block once: an index that is too small for all conversations keeps the beginnings of as
/// many as it can, and loses none of them whole while others come round.
#[test]
fn f22_where_not_all_fits_beginnings_stay() {
    const LONG: u32 = 2_000;
    let mut index = ChainIndex::default();
    let store = |index: &mut ChainIndex, seed: u32| {
        index.apply(WorkerId(0), DpRank(0), &sequence(seed, LONG));
    };
    (0..10).for_each(|seed| store(&mut index, seed));
    let budget = index.bytes();
    (10..20).for_each(|seed| store(&mut index, seed));
    // All come round, one after the other, each with a little more.
    for turn in 0..10 {
        for seed in 0..20 {
            let _ = index.overlaps(&prompt(seed, LONG));
            index.apply(WorkerId(0), DpRank(0), &sequence(100 + turn * 20 + seed, LONG / 10));
            while index.make_room(budget) {}
        }
    }
    let held: Vec<u32> = (0..20)
        .map(|seed| index.overlaps(&prompt(seed, LONG)).first().map_or(0, |o| o.blocks))
        .collect();
    assert!(held.iter().filter(|n| **n > 0).count() >= 10, "{held:?}");
    assert!(held.iter().filter(|n| **n < LONG).count() >= 10, "there is no room for all");
    index.check();
}

#[test]
fn predictions_leave_room_for_what_is_there() {
    let mut index = ChainIndex::default();
    index.bound_predictions(1 << 20);
    index.apply(WorkerId(0), DpRank(0), &sequence(0, 1));
    for seed in 1..100 {
        let until = Time::from_micros(5);
        index.predict(WorkerId(0), DpRank(0), &prompt(seed, 200), 0, until);
    }
    assert!(index.bytes() < 300_000, "{}", index.bytes());
    assert_eq!(index.overlaps(&prompt(99, 200))[0].blocks, 200);
    assert!(index.overlaps(&prompt(1, 200)).is_empty());
    index.check();
}

#[test]
fn predictions_are_bounded_and_go_with_their_worker() {
    let mut index = ChainIndex::default();
    index.apply(WorkerId(0), DpRank(0), &sequence(0, 1));
    let until = Time::from_micros(5);
    let predict = |index: &mut ChainIndex, seed, n| {
        index.predict(WorkerId(0), DpRank(0), &prompt(seed, n), 0, until);
    };
    for seed in 1..40 {
        predict(&mut index, seed, 50_000);
    }
    assert!(index.overlaps(&prompt(1, 9)).is_empty(), "the oldest made room");
    assert_eq!(index.overlaps(&prompt(39, 9))[0].blocks, 9);
    let most = (1 << 20) * (24 + 8 + 24) + (8 << 20);
    assert!(index.bytes() < most, "{} of {most}", index.bytes());
    index.forget(WorkerId(0));
    while index.sweep(64) {}
    assert!(index.overlaps(&prompt(39, 9)).is_empty());
    // Its number is another's by now, whose blocks outlive the predictions.
    index.apply(WorkerId(1), DpRank(0), &sequence(39, 9));
    index.predict(WorkerId(1), DpRank(0), &prompt(38, 9), 0, Time::from_micros(9));
    while index.expire(until) {}
    assert_eq!(index.overlaps(&prompt(39, 9))[0].blocks, 9);
    assert_eq!(index.overlaps(&prompt(38, 9))[0].blocks, 9);
    while index.expire(Time::from_micros(9)) {}
    assert!(index.overlaps(&prompt(38, 9)).is_empty());
    index.check();
}
