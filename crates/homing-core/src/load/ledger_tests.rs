//! The ledger beside a list of what is booked.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    /// Target, tokens, uncached, block size, and which of some chains.
    Book(u8, u32, u32, u32, u8),
    First(usize),
    Output(usize, u32),
    Free(usize),
    Pass(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..4, any::<u32>(), any::<u32>(), 0u32..300, any::<u8>())
            .prop_map(|(w, t, u, b, c)| Step::Book(w, t, u, b, c)),
        2 => any::<usize>().prop_map(Step::First),
        2 => (any::<usize>(), any::<u32>()).prop_map(|(i, n)| Step::Output(i, n)),
        2 => any::<usize>().prop_map(Step::Free),
        1 => any::<u32>().prop_map(Step::Pass),
    ]
}

/// Some of what follows the same opener: two of three kinds, of lengths up to 15.
fn chain(which: u8) -> Vec<ChainHash> {
    let (kind, length) = (u64::from(which % 3), u64::from(which >> 4));
    (0..length).map(|i| ChainHash(if i < 4 { i } else { kind * 100 + i })).collect()
}

#[derive(Debug)]
struct Listed {
    at: u8,
    prefill: Prefill,
    decoding: bool,
    tokens: u64,
    unit: u64,
    chain: Vec<ChainHash>,
}

/// The model: a target's load is the sum over what is listed, and over the set of its blocks.
fn sum(listed: &[&Listed]) -> Load {
    let mut shared: BTreeSet<ChainHash> = BTreeSet::new();
    let mut sum = Load::default();
    for it in listed {
        sum.active_requests += 1;
        sum.decoding += u32::from(it.decoding);
        sum.context += if it.decoding { it.tokens } else { 0 };
        sum.prefill_tokens += it.prefill.tokens;
        sum.prefill_pairs += it.prefill.pairs;
        sum.blocks += it.tokens.div_ceil(it.unit).saturating_sub(it.chain.len() as u64);
        shared.extend(it.chain.iter().copied());
    }
    sum.blocks += shared.len() as u64;
    sum
}

proptest! {
    #[test]
    fn the_ledger_equals_a_list(steps in prop::collection::vec(step(), 0..80)) {
        let mut ledger = Ledger::default();
        let mut model: BTreeMap<usize, Listed> = BTreeMap::new();
        let mut held: Vec<(usize, Booking)> = Vec::new();
        let mut now = Time::from_micros(1 << 50);
        for (name, s) in steps.into_iter().enumerate() {
            let at = |i: usize, n: usize| i.checked_rem(n);
            match s {
                Step::Book(w, tokens, uncached, unit, which) => {
                    let chain = chain(which);
                    let it = Claimed { tokens, uncached, unit, chain: chain.clone().into(), chain_unit: if unit == 0 { 16 } else { unit } };
                    held.push((name, ledger.book(now, WorkerId(u32::from(w)), DpRank(0), it)));
                    let unit = if unit == 0 { 16 } else { u64::from(unit) };
                    let prefill = Prefill::of(uncached, tokens);
                    model.insert(name, Listed { at: w, prefill, decoding: false, tokens: u64::from(tokens), unit, chain });
                }
                Step::First(i) => if let Some(i) = at(i, held.len()) {
                    let it = model.get_mut(&held[i].0).unwrap();
                    let (worker, settled) = ledger.first_token(now, &held[i].1, true);
                    prop_assert_eq!(worker, WorkerId(u32::from(it.at)));
                    prop_assert!(settled.is_empty() || !it.decoding, "each is told once");
                    (it.decoding, it.prefill) = (true, Prefill::default());
                },
                Step::Output(i, n) => if let Some(i) = at(i, held.len()) {
                    ledger.output(now, &held[i].1, n);
                    model.get_mut(&held[i].0).unwrap().tokens += u64::from(n);
                },
                Step::Free(i) => if let Some(i) = at(i, held.len()) {
                    let (name, b) = held.swap_remove(i);
                    let Freed { worker, .. } = ledger.free(now, b, i % 2 == 0);
                    prop_assert_eq!(worker.0, u32::from(model.remove(&name).unwrap().at));
                },
                Step::Pass(us) => now = now + Duration::from_micros(u64::from(us)),
            }
            ledger.check();
            for w in 0..4u8 {
                let mine: Vec<_> = model.values().filter(|m| m.at == w).collect();
                let got = ledger.of(WorkerId(u32::from(w)), DpRank(0));
                let first = model.values().find(|m| m.at == w && !m.decoding);
                let first = first.map(|m| m.prefill).unwrap_or_default();
                prop_assert_eq!((got.first_prefill, got.first_pairs), (first.tokens, first.pairs));
                let want = Load { first_prefill: first.tokens, first_pairs: first.pairs, since: got.since, ..sum(&mine) };
                prop_assert_eq!(got, want);
            }
        }
        for (_, b) in held {
            ledger.free(now, b, true);
        }
        prop_assert!(ledger.gauges.is_empty() && ledger.bookings() == 0);
    }
}

fn claimed(tokens: u32, uncached: u32) -> Claimed {
    Claimed { tokens, uncached, ..Claimed::default() }
}

#[test]
fn what_a_stream_took_is_told_beside_what_went_on() {
    let mut ledger = Ledger::default();
    let (worker, rank) = (WorkerId(7), DpRank(0));
    let ms = |n: u64| Time::from_micros(5_000_000 + n * 1000);
    let a = ledger.book(ms(0), worker, rank, claimed(1000, 400));
    let b = ledger.book(ms(10), worker, rank, claimed(500, 500));
    assert!(ledger.first_token(ms(50), &a, true).1.is_empty(), "who knows what comes with it");
    let load = ledger.of(worker, rank);
    assert_eq!((load.first_prefill, load.since, load.context), (500, ms(50), 1000));
    let pairs = 400.0 * 600.0 + 400.0 * 399.0 / 2.0;
    let (who, settled) = ledger.first_token(ms(90), &b, true);
    assert_eq!((who, settled.len()), (worker, 0), "nobody vouches for the first one yet");
    assert!(ledger.first_token(ms(91), &b, true).1.is_empty(), "once");
    // What stood before it is part of what it took, since that began.
    let c = ledger.book(ms(95), worker, rank, claimed(100, 100));
    assert!(ledger.first_token(ms(100), &c, true).1.is_empty());
    assert!(ledger.free(ms(100), c, true).settled.is_empty(), "something may come with it still");
    // It goes on, so it is a stream.
    let first = ledger.output(ms(250), &a, 20);
    assert_eq!(first, Some(Prefilled { ms: 50.0, tokens: 400.0, pairs }));
    let it = ledger.free(ms(9000), a, true).decoded.unwrap();
    // 200 ms of 20 tokens: 40 ms alone, 160 ms in company. The end of its stream is not its last token.
    assert_eq!((it.tokens, it.ms, it.prefilled), (20.0, 10.0, 30.0));
    assert_eq!(it.sequences, (40.0 + 160.0 * 2.0) / 200.0);
    assert_eq!(it.context, (40.0 * 1000.0 + 160.0 * 1500.0) / 200.0);
    let freed = ledger.free(ms(9000), b, true);
    assert!(freed.decoded.is_none(), "no token was told");
    let told: Vec<_> = freed.settled.iter().map(|it| (it.ms, it.tokens)).collect();
    // Itself, since it ended well; and nothing can come with the last one any more.
    assert_eq!(told[0], (90.0, 900.0));
    assert_eq!(told.len(), 2);
}

#[test]
fn what_is_computed_in_one_step_took_as_long_for_each() {
    let mut ledger = Ledger::default();
    let (worker, rank) = (WorkerId(7), DpRank(0));
    let us = |n: u64| Time::from_micros(5_000_000 + n);
    let all: Vec<_> =
        [100, 200, 300].map(|n| ledger.book(us(0), worker, rank, claimed(n, n))).into();
    for (i, booking) in all.iter().enumerate() {
        assert!(ledger.first_token(us(60_000 + i as u64 * 100), booking, true).1.is_empty());
    }
    for booking in &all {
        assert_eq!(ledger.output(us(65_000), booking, 10), None, "who knows what came with it");
    }
    let last = ledger.book(us(70_000), worker, rank, claimed(50, 50));
    let (_, settled) = ledger.first_token(us(80_000), &last, true);
    let told: Vec<_> = settled.iter().map(|it| (it.ms.round(), it.tokens)).collect();
    assert_eq!(told, [(60.0, 600.0); 3], "and not a hundred tokens in the time of six hundred");
    all.into_iter().chain([last]).for_each(|booking| drop(ledger.free(us(90_000), booking, true)));
}

#[test]
fn an_answer_that_comes_whole_tells_no_times() {
    let mut ledger = Ledger::default();
    let ms = |n: u64| Time::from_micros(n * 1000);
    let a = ledger.book(ms(0), WorkerId(1), DpRank(0), claimed(100, 100));
    assert!(ledger.first_token(ms(5000), &a, false).1.is_empty());
    assert_eq!(ledger.of(WorkerId(1), DpRank(0)).prefill_tokens, 0);
    ledger.output(ms(5001), &a, 100);
    let freed = ledger.free(ms(6000), a, true);
    assert!(freed.decoded.is_none() && freed.settled.is_empty());
}

#[test]
fn f61_what_breaks_off_at_once_teaches_nothing() {
    let mut ledger = Ledger::default();
    let (worker, rank) = (WorkerId(1), DpRank(0));
    let ms = |n: u64| Time::from_micros(n * 1000);
    let honest = ledger.book(ms(0), worker, rank, claimed(9000, 9000));
    for i in 0..20 {
        let it = ledger.book(ms(i * 10), worker, rank, claimed(9000, 9000));
        assert!(ledger.first_token(ms(i * 10 + 1), &it, true).1.is_empty());
        assert_eq!(ledger.output(ms(i * 10 + 2), &it, 3), None);
        let freed = ledger.free(ms(i * 10 + 2), it, false);
        assert!(freed.settled.is_empty() && freed.decoded.is_none());
    }
    // Many tokens, and then it breaks off: that prompt was computed, and the tokens tell nothing.
    let it = ledger.book(ms(1000), worker, rank, claimed(9000, 9000));
    let _ = ledger.first_token(ms(1500), &it, true);
    assert_eq!(ledger.output(ms(1600), &it, 30), None);
    assert!(ledger.free(ms(1700), it, false).decoded.is_none());
    let freed = ledger.free(ms(2000), honest, false);
    assert_eq!(freed.settled.len(), 1, "the one that went on");
}
