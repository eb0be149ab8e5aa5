//! Names are written down by and by, and nobody can tell by the answers how far that is.

use super::super::room_tests::{own, prompt};
use super::super::tests::sequence;
use super::*;
use crate::dice::{Dice, SplitMix};
use crate::ids::{DpRank, WorkerId};
use crate::index::NaiveIndex;
use crate::index::event::{BlockRemoved, KvEvent};

const LONG: u32 = 300;
const RANK: DpRank = DpRank(0);

fn gone(event: &KvEvent, from: usize, most: usize) -> KvEvent {
    let KvEvent::Stored(stored) = event else { unreachable!() };
    let block_hashes = stored.block_hashes[from..].iter().take(most).copied().collect();
    KvEvent::Removed(BlockRemoved { block_hashes, ..BlockRemoved::default() })
}

#[test]
fn no_call_looks_at_all_nodes() {
    let mut index = ChainIndex::default();
    for seed in 0..20 {
        index.apply(WorkerId(0), RANK, &sequence(seed, LONG));
        index.apply(WorkerId(1), RANK, &sequence(seed, LONG));
    }
    // One name of its own, and it has thousands to be written down.
    index.apply(WorkerId(1), RANK, &own(3, 100, LONG));
    let left = |index: &ChainIndex| match &index.target(1).unwrap().names {
        Names::Own { old, .. } => old.as_ref().map_or(0, |old| old.left()),
        Names::Common { .. } => panic!("it has names of its own"),
    };
    let mut before = left(&index);
    assert_eq!(before, 20 * LONG as usize);
    while index.sweep(2) {
        let after = left(&index);
        assert!(before - after <= 2 * PAGE as usize, "two pages at a time");
        before = after;
        index.check();
    }
    assert_eq!(left(&index), 0);
    assert_eq!(index.blocks(WorkerId(1)), 21 * LONG as usize);
}

#[test]
fn in_the_midst_of_it_all_is_as_ever() {
    for seed in 0..40 {
        let mut dice = SplitMix::new(seed);
        let (mut fast, mut plain) = (ChainIndex::default(), NaiveIndex::default());
        for step in 0..60 {
            let (worker, which) = (dice.below(3) as u32, dice.below(3) as u32);
            // At first most engines seem to share a seed.
            let named = dice.below(20) < step / 4;
            let event = if named { own(which, worker, LONG) } else { sequence(which, LONG) };
            let from = dice.below(LONG as usize);
            let event = match dice.below(8) {
                0..4 => event,
                4..6 => gone(&event, from, LONG as usize),
                6 => gone(&event, from, 20),
                _ => KvEvent::Cleared,
            };
            let event = if step < 4 || !matches!(event, KvEvent::Cleared) {
                event
            } else {
                sequence(which, LONG)
            };
            let said = [
                fast.apply(WorkerId(worker), RANK, &event),
                plain.apply(WorkerId(worker), RANK, &event),
            ];
            assert_eq!(said[0], said[1]);
            if dice.below(2) == 0 {
                fast.sweep(1);
            }
            fast.check();
            for n in 0..3 {
                assert_eq!(
                    fast.held(WorkerId(n)),
                    plain.held(WorkerId(n)),
                    "seed {seed}, step {step}"
                );
                assert_eq!(fast.overlaps(&prompt(n, LONG)), plain.overlaps(&prompt(n, LONG)));
            }
        }
        // Nor does it hinder making room.
        for _ in 0..20 {
            fast.make_room(0);
            fast.sweep(1);
            fast.check();
        }
        while fast.make_room(0) || fast.sweep(9) {}
        fast.check();
        assert!((0..3).all(|n| fast.held(WorkerId(n)) == [0; 3]));
    }
}
