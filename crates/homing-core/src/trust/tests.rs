//! Who is believed, after which requests, and that trust always heals.

use super::*;
use proptest::prelude::*;

const W: WorkerId = WorkerId(7);
const RANK: DpRank = DpRank(0);
const BLOCK: u32 = 16;

/// 1,000 tokens of which so many are predicted to be reused.
fn forecast(cached: u32) -> Forecast {
    Forecast {
        worker: W,
        rank: RANK,
        name: NameId(0),
        shape: Shape::Chat,
        exact: true,
        block_size: BLOCK,
        tokens: 1000,
        cached,
        told: cached,
        best: cached,
        seen: cached,
    }
}

fn usage(cached: u64) -> Usage {
    Usage { prompt_tokens: 1000, cached_tokens: Some(cached) }
}

const SILENT: Usage = Usage { prompt_tokens: 1000, cached_tokens: None };

fn trust(book: &Book) -> f64 {
    book.of(W, Shape::Chat).factor()
}

fn view(book: &Book) -> TrustView {
    book.view(W).into_iter().find(|v| v.shape == Shape::Chat).unwrap()
}

/// So many requests, all predicted and answered alike.
fn times(book: &mut Book, n: usize, predicted: u32, usage: Usage) -> Vec<Turn> {
    (0..n).filter_map(|_| book.usage(&forecast(predicted), &usage)).collect()
}

#[test]
fn f28_agreement_keeps_trust_at_one() {
    let mut book = Book::default();
    // A block more or less is agreement: the last one is a matter of taste.
    for reported in [800, 784, 816, 800] {
        assert_eq!(times(&mut book, 50, 800, usage(reported)), []);
        assert_eq!(trust(&book), 1.0);
    }
    assert_eq!((view(&book).error, view(&book).likely_cause), (0.0, None));
    assert_eq!(view(&book).checks, Checks { agreed: 200, ..Checks::default() });
}

#[test]
fn f28_a_constant_liar_loses_nearly_all_and_it_is_said_once() {
    let mut book = Book::default();
    let turns = times(&mut book, 20, 800, usage(0));
    assert!(trust(&book) < 0.07, "{}", trust(&book));
    let [turn] = turns[..] else { panic!("{turns:?}") };
    assert!(turn.lost && turn.worker == W && turn.shape == Shape::Chat);
    times(&mut book, 1000, 800, usage(0));
    assert_eq!(trust(&book), FLOOR, "and never less");
    assert!(view(&book).error > 0.7);
    assert_eq!(view(&book).likely_cause, Some(LikelyCause::Unknown));
}

#[test]
fn f28_trust_comes_back_with_the_truth() {
    let mut book = Book::default();
    times(&mut book, 1000, 800, usage(0));
    let turns = times(&mut book, 12, 800, usage(800));
    let [turn] = turns[..] else { panic!("{turns:?}") };
    assert!(!turn.lost);
    times(&mut book, 20, 800, usage(800));
    assert_eq!(trust(&book), 1.0);
    assert_eq!(view(&book).likely_cause, None);
}

#[test]
fn f28_outliers_do_not_matter() {
    let mut book = Book::default();
    for _ in 0..10 {
        times(&mut book, 2, 800, usage(0));
        times(&mut book, 3, 800, usage(800));
        assert_eq!(trust(&book), 1.0, "two of five");
    }
}

#[test]
fn f28_half_a_lie_costs_half() {
    let mut book = Book::default();
    times(&mut book, 50, 800, usage(400));
    assert_eq!(trust(&book), 0.5);
}

#[test]
fn f28_unknown_is_not_zero() {
    let mut book = Book::default();
    times(&mut book, 100, 800, SILENT);
    assert_eq!(trust(&book), 1.0);
    assert_eq!(view(&book).checks, Checks { unknown: 100, ..Checks::default() });
    times(&mut book, 100, 800, usage(0));
    let before = trust(&book);
    times(&mut book, 100, 800, SILENT);
    assert_eq!(trust(&book), before, "nor is it agreement");
}

#[test]
fn f28_what_was_not_predicted_proves_nothing_but_is_an_error() {
    let mut book = Book::default();
    // Of a block at most nothing can be told.
    times(&mut book, 50, 16, usage(0));
    assert_eq!((trust(&book), view(&book).error), (1.0, 0.0));
    times(&mut book, 50, 0, usage(960));
    assert_eq!(trust(&book), 1.0);
    assert_eq!(view(&book).checks.under, 50);
    assert!(view(&book).error > 0.9);
    // Nor does it heal: who is predicted nothing can't prove itself.
    let mut book = Book::default();
    times(&mut book, 50, 800, usage(0));
    let before = trust(&book);
    times(&mut book, 50, 0, usage(0));
    assert_eq!(trust(&book), before);
}

#[test]
fn f28_shapes_are_judged_apart() {
    let mut book = Book::default();
    times(&mut book, 50, 800, usage(0));
    assert_eq!(book.of(W, Shape::Completions), Trust::FULL);
    let completion = Forecast { shape: Shape::Completions, ..forecast(800) };
    book.usage(&completion, &usage(800));
    assert_eq!(book.of(W, Shape::Completions), Trust::FULL);
    assert!(trust(&book) < 0.1);
}

#[test]
fn f28_a_guess_is_not_judged() {
    let mut book = Book::default();
    let guess = Forecast { exact: false, block_size: 0, cached: 0, told: 0, ..forecast(0) };
    book.usage(&guess, &Usage { prompt_tokens: 1, cached_tokens: Some(500) });
    book.silent(&guess);
    assert!(book.view(W).is_empty() && !book.wants_counters(W));
}

/// What is only on its way is no promise of the index: it must not make an index look true that knows nothing.
#[test]
fn f28_what_was_only_on_its_way_heals_nothing_and_hurts_nothing() {
    let on_its_way = Forecast { told: 0, ..forecast(800) };
    let mut book = Book::default();
    book.probed(W, Shape::Chat, false);
    let before = trust(&book);
    for cached in [800, 0, 400, 800] {
        (0..20).for_each(|_| _ = book.usage(&on_its_way, &usage(cached)));
    }
    assert_eq!(trust(&book), before, "neither what came of it nor what didn't");
    let checks = view(&book).checks;
    assert_eq!((checks.agreed, checks.over), (0, 0), "{checks:?}");
    // More than was on its way is more than we knew.
    book.usage(&on_its_way, &usage(950));
    assert_eq!(view(&book).checks.under, 1);
    // What was there and is not, is a lie still.
    let part = Forecast { told: 400, ..forecast(800) };
    (0..20).for_each(|_| _ = book.usage(&part, &usage(100)));
    assert!(view(&book).checks.over == 20 && trust(&book) <= before);
    (0..40).for_each(|_| _ = book.usage(&part, &usage(600)));
    assert_eq!(trust(&book), 1.0);
}

#[test]
fn f28_guesses_are_held_against_counters_too() {
    let guess = || Forecast {
        exact: false,
        shape: Shape::Text,
        block_size: 128,
        tokens: 2000,
        ..forecast(1500)
    };
    let mut book = Book::default();
    let mut at = counters(0, 0);
    let mut span = |book: &mut Book, hits: u64| {
        for _ in 0..10 {
            book.began(&guess());
            book.silent(&guess());
        }
        at = counters(at.hits + hits, at.queries + 14_000);
        book.counted(W, at)
    };
    span(&mut book, 0);
    (0..30).for_each(|_| _ = span(&mut book, 10_000));
    assert_eq!(book.of(W, Shape::Text).factor(), 1.0);
    (0..30).for_each(|_| _ = span(&mut book, 0));
    assert!(book.of(W, Shape::Text).factor() < 0.2);
}

#[test]
fn f28_a_guess_by_text_is_judged_by_its_part_of_the_prompt() {
    let guess = |cached| {
        let (exact, shape, block_size) = (false, Shape::Text, 128);
        Forecast { exact, shape, block_size, tokens: 2000, ..forecast(cached) }
    };
    let text = |book: &Book| book.of(W, Shape::Text).factor();
    let mut book = Book::default();
    // Half of what the text seemed to be long, and so is the part of it that is cached.
    (0..50).for_each(|_| _ = book.usage(&guess(1600), &usage(750)));
    assert_eq!(text(&book), 1.0);
    assert!(book.view(W).iter().all(|v| v.likely_cause.is_none()), "lengths say nothing");
    (0..50).for_each(|_| _ = book.usage(&guess(1600), &usage(0)));
    assert!(text(&book) < 0.1);
    assert_eq!(trust(&book), 1.0, "what is known in tokens is believed as before");
    let most = Usage { prompt_tokens: u64::MAX, cached_tokens: Some(0) };
    book.usage(&guess(u32::MAX), &most);
}

#[test]
fn f21_trust_goes_with_the_worker() {
    let mut book = Book::default();
    times(&mut book, 50, 800, usage(0));
    book.check(|w| w == W);
    book.forget(W);
    book.check(|_| false);
    assert_eq!(trust(&book), 1.0);
    assert!(book.view(W).is_empty());
}

#[test]
fn f28_the_cause_is_what_most_signs_point_at() {
    use Sign::{Agrees, BlockSize, Eviction, Gap, Silent, Template, Unknown};
    let cases: [(&[Sign], Option<LikelyCause>); 8] = [
        (&[], None),
        (&[Agrees, Agrees, Unknown, Template, Silent], None),
        (&[Eviction, Eviction, Eviction, Agrees, Agrees], Some(LikelyCause::Eviction)),
        (&[Eviction, Eviction, Gap], Some(LikelyCause::Eviction)),
        (&[Unknown, Unknown, Template, Template], Some(LikelyCause::Template)),
        (&[BlockSize, Gap, Unknown], Some(LikelyCause::BlockSize)),
        (&[Gap; 8], Some(LikelyCause::Gap)),
        (&[Unknown; 3], Some(LikelyCause::Unknown)),
    ];
    for (signs, want) in cases {
        assert_eq!(likely_cause(signs), want, "{signs:?}");
    }
}

#[test]
fn f28_each_kind_of_error_leaves_its_sign() {
    let at = |predicted, tokens, cached, uncertain| {
        let usage = Usage { prompt_tokens: tokens, cached_tokens: cached };
        forecast(predicted).verdict(&usage, uncertain).sign
    };
    assert_eq!(at(800, 1000, Some(800), false), Sign::Agrees);
    assert_eq!(at(800, 1000, Some(800), true), Sign::Agrees);
    assert_eq!(at(800, 1000, None, false), Sign::Silent);
    assert_eq!(at(800, 1007, None, false), Sign::Template, "lengths are told though hits are not");
    assert_eq!(at(0, 1007, Some(960), false), Sign::Template);
    assert_eq!(at(800, 1000, Some(410), false), Sign::BlockSize);
    assert_eq!(at(800, 1000, Some(400), false), Sign::Eviction);
    assert_eq!(at(800, 1000, Some(400), true), Sign::Gap);
    assert_eq!(at(0, 1000, Some(400), true), Sign::Gap);
    assert_eq!(at(0, 1000, Some(400), false), Sign::Unknown);
    assert_eq!(at(800, 1000, Some(0), false), Sign::Unknown);
}

#[test]
fn f28_a_gap_is_named_while_the_rank_is_uncertain() {
    let mut book = Book::default();
    book.uncertain(W, RANK, true);
    book.uncertain(W, DpRank(1), true);
    times(&mut book, 8, 0, usage(400));
    assert_eq!(view(&book).likely_cause, Some(LikelyCause::Gap));
    book.uncertain(W, RANK, false);
    times(&mut book, 8, 0, usage(400));
    assert_eq!(view(&book).likely_cause, Some(LikelyCause::Unknown), "another rank is");
}

#[test]
fn f28_who_tokenizes_otherwise_begins_with_little_and_can_heal() {
    let mut book = Book::default();
    book.probed(W, Shape::Chat, false);
    assert_eq!(trust(&book), SUSPECT);
    assert_eq!(view(&book).likely_cause, Some(LikelyCause::Template));
    let turns = times(&mut book, 30, 800, usage(800));
    assert_eq!((trust(&book), turns.len()), (1.0, 1));
    assert_eq!(view(&book).likely_cause, None);
    book.probed(W, Shape::Chat, true);
    assert_eq!(trust(&book), 1.0);
}

// === the engine's counters ===

fn counters(hits: u64, queries: u64) -> Counters {
    Counters { hits, queries }
}

/// So many spans in which five requests were predicted to reuse 800 of 1,000 tokens each, and the engine's
/// counters grew by so much.
fn spans(book: &mut Book, n: usize, hits: u64, queries: u64) {
    book.silent(&forecast(0));
    let mut now = counters(1_000_000, 9_000_000);
    book.counted(W, now);
    for _ in 0..n {
        assert!(!book.wants_counters(W));
        for _ in 0..5 {
            book.began(&forecast(800));
            book.usage(&forecast(800), &SILENT);
        }
        assert!(book.wants_counters(W));
        now = counters(now.hits + hits, now.queries + queries);
        book.counted(W, now);
    }
}

#[test]
fn f28_where_usage_is_silent_the_counters_speak() {
    let mut honest = Book::default();
    spans(&mut honest, 20, 3950, 5000);
    assert_eq!(trust(&honest), 1.0);
    let mut liar = Book::default();
    spans(&mut liar, 20, 0, 5000);
    assert!(trust(&liar) < 0.07 && view(&liar).error > 0.5);
}

#[test]
fn f28_counters_of_other_traffic_prove_nothing() {
    for (hits, queries) in [(0, 50_000), (0, 2_000), (0, 0)] {
        let mut book = Book::default();
        spans(&mut book, 20, hits, queries);
        assert_eq!(trust(&book), 1.0, "{queries} queries");
    }
}

#[test]
fn f28_an_engine_that_begins_anew_proves_nothing() {
    let mut book = Book::default();
    book.silent(&forecast(0));
    book.counted(W, counters(500_000, 600_000));
    book.began(&forecast(800));
    book.silent(&forecast(800));
    assert_eq!(book.counted(W, counters(10, 1000)), []);
    assert_eq!(trust(&book), 1.0);
}

#[test]
fn f28_counters_are_not_asked_for_where_usage_tells() {
    let mut book = Book::default();
    book.silent(&forecast(800));
    assert!(book.wants_counters(W));
    book.usage(&forecast(800), &usage(800));
    assert!(!book.wants_counters(W));
    assert_eq!(book.counted(W, counters(0, 0)), []);
}

#[test]
fn f28_prompts_of_which_nothing_is_known_end_a_span() {
    let mut book = Book::default();
    for round in 0..20u64 {
        book.silent(&forecast(800));
        book.counted(W, counters(0, round * 2000));
        book.began(&forecast(800));
        book.began(&Forecast { exact: false, block_size: 0, ..forecast(0) });
    }
    assert_eq!(trust(&book), 1.0);
}

// === whatever comes ===

#[derive(Clone, Debug)]
enum Step {
    Usage(u32, u64, Option<u64>, bool),
    Silent(u32),
    Counted(u64, u64),
    Probed(bool),
    Uncertain(bool),
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..=1000, 0u64..2000, proptest::option::of(any::<u64>()), any::<bool>())
            .prop_map(|(p, t, c, e)| Step::Usage(p, t, c, e)),
        4 => (0u32..=1000, 0u64..=1000).prop_map(|(p, c)| Step::Usage(p, 1000, Some(c), true)),
        1 => (0u32..=1000).prop_map(Step::Silent),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(h, q)| Step::Counted(h, q)),
        1 => any::<bool>().prop_map(Step::Probed),
        1 => any::<bool>().prop_map(Step::Uncertain),
        1 => Just(Step::Forget),
    ]
}

proptest! {
    #[test]
    fn trust_stays_in_bounds_and_always_heals(steps in prop::collection::vec(step(), 0..200)) {
        let mut book = Book::default();
        for s in steps {
            match s {
                Step::Usage(predicted, prompt_tokens, cached_tokens, exact) => {
                    let forecast = Forecast { exact, ..forecast(predicted) };
                    book.began(&forecast);
                    book.usage(&forecast, &Usage { prompt_tokens, cached_tokens });
                }
                Step::Silent(p) => book.silent(&forecast(p)),
                Step::Counted(hits, queries) => _ = book.counted(W, counters(hits, queries)),
                Step::Probed(same) => book.probed(W, Shape::Chat, same),
                Step::Uncertain(yes) => book.uncertain(W, RANK, yes),
                Step::Forget => book.forget(W),
            }
            book.check(|_| true);
            for v in book.view(W) {
                prop_assert!((0.0..=1.0).contains(&v.error));
            }
        }
        // It may be lost before the truth outweighs what came before it, and then it is back.
        prop_assert!(times(&mut book, 40, 800, usage(800)).len() <= 2);
        prop_assert_eq!(trust(&book), 1.0);
        prop_assert_eq!(view(&book).likely_cause, None);
    }

    /// The more an engine reuses, the more it is believed.
    #[test]
    fn trust_is_monotonic_in_what_came_true(
        predicted in 17u32..=1000,
        shares in prop::collection::vec(0u64..=1000, 1..40),
        more in 0u64..200,
    ) {
        let (mut less_book, mut more_book) = (Book::default(), Book::default());
        for share in shares {
            less_book.usage(&forecast(predicted), &usage(share));
            more_book.usage(&forecast(predicted), &usage(share + more));
            // What is near its goal is there at once, and a factor is in thousandths.
            prop_assert!(trust(&less_book) <= trust(&more_book) + 2.0 * NEAR);
        }
    }

    #[test]
    fn a_factor_weighs_blocks(factor in 0.0f64..=1.0, blocks: u32) {
        let trust = Trust::new(factor);
        prop_assert!(trust.of(blocks) <= blocks);
        prop_assert_eq!(Trust::FULL.of(blocks), blocks);
        prop_assert!((f64::from(trust.of(blocks)) - trust.factor() * f64::from(blocks)).abs() <= 0.5 + 1e-6);
    }
}
