//! Readers beside a writer: whatever it does, and wherever they meet it, each answer was true at one moment.

use super::room_tests::{honest, own, prompt};
use super::tests::{SIZE, Say, both, prompts, say, sequence};
use super::*;
use crate::dice::{Dice, SplitMix};
use crate::hash::Prompt;
use crate::index::event::BlockRemoved;
use crate::index::{NaiveIndex, Overlap, Overlaps};
use crate::time::Time;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

const READERS: usize = 3;
/// Answers that a reader keeps.
const KEPT: usize = 300_000;

/// What a reader was told, and in which states of the index that may have been true.
struct Told {
    prompt: usize,
    states: (usize, usize),
    quiet: bool,
    answer: Overlaps,
}

/// Does one step after the other while others read, and holds what they are told against what was true
/// before and after each step.
fn beside_readers<S>(
    steps: impl IntoIterator<Item = S>,
    asked: &[Prompt],
    mut step: impl FnMut(&mut ChainIndex, S),
) {
    let mut index = ChainIndex::default();
    let truth = |index: &ChainIndex| asked.iter().map(|p| index.overlaps(p)).collect::<Vec<_>>();
    let mut states = vec![truth(&index)];
    // 2n in state n, 2n + 1 on the way to the next.
    let (at, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for first in 0..READERS {
            let (reader, at, over, all) = (index.reader(), &at, &over, &all);
            scope.spawn(move || {
                let (mut heard, mut prompt) = (Vec::new(), first % asked.len());
                while heard.len() < KEPT {
                    let (last, from) = (over.load(SeqCst), at.load(SeqCst));
                    let answer = reader.overlaps(&asked[prompt]);
                    let to = at.load(SeqCst);
                    let quiet = from == to && from % 2 == 0;
                    heard.push(Told { prompt, states: (from / 2, to.div_ceil(2)), quiet, answer });
                    prompt = (prompt + 1) % asked.len();
                    if last {
                        break;
                    }
                }
                all.lock().unwrap().extend(heard);
            });
        }
        for next in steps {
            at.fetch_add(1, SeqCst);
            step(&mut index, next);
            at.fetch_add(1, SeqCst);
            states.push(truth(&index));
        }
        over.store(true, SeqCst);
    });
    index.check();
    for told in all.into_inner().unwrap() {
        let true_in = |n: usize| covers(&states[n][told.prompt], &told.answer);
        let (first, last) = told.states;
        assert!(
            (first..=last).any(true_in),
            "prompt {} in states {first} to {last}: {:?} of {:?}",
            told.prompt,
            told.answer,
            (first..=last).map(|n| &states[n][told.prompt]).collect::<Vec<_>>()
        );
        if told.quiet {
            assert_eq!(told.answer, states[first][told.prompt], "nothing went on in {first}");
        }
    }
}

/// No more is said of anybody than is true.
fn covers(truth: &Overlaps, said: &Overlaps) -> bool {
    let sums = |o: &Overlap| [o.told, o.blocks, o.blocks + o.host, o.total()];
    said.iter().all(|said| {
        let true_of = truth.iter().find(|t| (t.worker, t.rank) == (said.worker, said.rank));
        true_of.is_some_and(|t| sums(said).iter().zip(sums(t)).all(|(said, t)| *said <= t))
    })
}

#[test]
fn whatever_engines_say_readers_are_told_what_was_true_at_one_moment() {
    let mut runner = TestRunner::deterministic();
    let asked: Vec<Prompt> = prompts().into_iter().step_by(13).collect();
    for round in 0..12 {
        let saying = if round % 2 == 0 { say().boxed() } else { honest().boxed() };
        let says = vec(saying, 500).new_tree(&mut runner).unwrap().current();
        let (mut plain, mut now) = (NaiveIndex::default(), 0);
        beside_readers(says, &asked, |index, say: Say| {
            both(index, &mut plain, &mut now, &say);
        });
    }
}

/// Long prompts, over several pages; pages that are dropped and used anew; numbers that go from one to another.
#[test]
fn whatever_goes_readers_are_told_what_was_true_at_one_moment() {
    const LONG: u32 = 200;
    let asked: Vec<Prompt> = (0..4).map(|seed| prompt(seed, LONG)).collect();
    for seed in 0..6 {
        let mut dice = SplitMix::new(seed);
        let mut now = 0;
        beside_readers(0..1_500, &asked, |index, _| {
            let (worker, which) = (dice.below(4) as u32, dice.below(4) as u32);
            let named = dice.below(3) == 0;
            let event = if named { own(which, worker, LONG) } else { sequence(which, LONG) };
            let from = dice.below(LONG as usize);
            match dice.below(20) {
                0..8 => _ = index.apply(WorkerId(worker), DpRank(0), &event),
                8..12 => {
                    // From the end, as engines do.
                    let KvEvent::Stored(stored) = event else { return };
                    let block_hashes = stored.block_hashes[from..].iter().rev().copied().collect();
                    let gone = BlockRemoved { block_hashes, ..BlockRemoved::default() };
                    index.apply(WorkerId(worker), DpRank(0), &KvEvent::Removed(gone));
                }
                12 => {
                    // From the middle, which none does.
                    let KvEvent::Stored(stored) = event else { return };
                    let block_hashes =
                        stored.block_hashes[from..].iter().take(9).copied().collect();
                    let gone = BlockRemoved { block_hashes, ..BlockRemoved::default() };
                    index.apply(WorkerId(worker), DpRank(0), &KvEvent::Removed(gone));
                }
                13 => _ = index.apply(WorkerId(worker), DpRank(0), &KvEvent::Cleared),
                14 => index.forget(WorkerId(worker)),
                15 => _ = index.make_room(0),
                16 => {
                    let until = Time::from_micros(now + 9);
                    index.predict(WorkerId(worker), DpRank(0), &asked[which as usize], from, until);
                }
                17 => {
                    now += 3;
                    index.expire(Time::from_micros(now));
                }
                _ => _ = index.sweep(2),
            }
        });
    }
}

/// A reader that the writer overtakes again and again in the same page says less, and comes to an end.
#[test]
fn a_reader_amid_a_change_sees_what_is_whole() {
    let mut index = ChainIndex::default();
    let reader = index.reader();
    let event = sequence(1, 300);
    for part in 0..30 {
        assert_eq!(
            index.apply_part(WorkerId(0), DpRank(0), &event, part * 10..part * 10 + 10),
            Applied::Yes
        );
        assert_eq!(reader.overlaps(&prompt(1, 300))[0].blocks as usize, part * 10 + 10);
    }
    index.forget(WorkerId(0));
    assert!(reader.overlaps(&prompt(1, 300)).is_empty(), "before anything is swept");
    while index.sweep(1) {
        assert!(reader.overlaps(&prompt(1, 300)).is_empty());
    }
    // Emptied, the index begins anew, and its readers with it.
    index.apply(WorkerId(1), DpRank(0), &sequence(2, 10));
    assert_eq!(reader.overlaps(&prompt(2, 10))[0].blocks, 10);
    assert_eq!(prompt(2, 10).block_size, SIZE);
}

/// The writer takes its turn in the middle of a walk, again and again: nobody is ever said to hold a prompt as
/// far as nobody held it at any time.
#[test]
fn what_goes_away_behind_a_reader_is_not_added_to_what_comes_before_it() {
    const LONG: usize = 200;
    let (event, asked) = (sequence(1, LONG as u32), prompt(1, LONG as u32));
    let gone = |range: Range<usize>| {
        let KvEvent::Stored(stored) = &event else { unreachable!() };
        let block_hashes = stored.block_hashes[range].iter().rev().copied().collect();
        KvEvent::Removed(BlockRemoved { block_hashes, ..BlockRemoved::default() })
    };
    let (mut torn, mut whole) = (0, 0);
    for seed in 0..2_000 {
        let mut dice = SplitMix::new(seed);
        let mut index = ChainIndex::default();
        index.apply_part(WorkerId(0), DpRank(0), &event, 0..150);
        // Others hold beginnings of it, so that sets change on the way.
        for worker in 1..20_u32 {
            index.apply_part(WorkerId(worker), DpRank(0), &event, 0..worker as usize * 10);
        }
        let view = index.reader.shared.view.load_full();
        let truth = |index: &ChainIndex| {
            index
                .overlaps(&asked)
                .first()
                .map_or(0, |o| if o.worker == WorkerId(0) { o.blocks } else { 0 })
        };
        let mut truths = vec![truth(&index)];
        let mut turns = dice.below(12);
        let (fell, walked) = view.walk(
            &asked,
            || None,
            |fell: &mut Option<u32>, words, depth| {
                if words.first().is_none_or(|word| word & 1 == 0) {
                    fell.get_or_insert(depth);
                }
                if turns > 0 && dice.below(3) == 0 {
                    turns -= 1;
                    let (worker, rank) = (WorkerId(0), DpRank(0));
                    match dice.below(4) {
                        0 => _ = index.apply(worker, rank, &gone(0..dice.below(70))),
                        1 => _ = index.apply_part(worker, rank, &event, 150..LONG),
                        2 => _ = index.apply(worker, rank, &gone(150..LONG)),
                        _ => _ = index.apply_part(worker, rank, &event, 0..150),
                    }
                    truths.push(truth(&index));
                }
                true
            },
        );
        let said = fell.unwrap_or(walked.depth).min(walked.believed);
        assert!(truths.iter().any(|t| said <= *t), "{said} of {truths:?}, seed {seed}");
        torn += usize::from(walked.believed < walked.depth);
        whole += usize::from(said == *truths.last().unwrap() && truths.len() > 1);
    }
    assert!(torn > 0 && whole > 100, "{torn} torn, {whole} whole");
}
