//! Costs, ties and turns: what each policy picks, without a core around it.

use super::policy::{Policy, built_in};
use super::*;
use crate::dice::SplitMix;
use crate::settings::PolicyKind;
use proptest::prelude::*;

fn candidate(worker: u32) -> Candidate {
    Candidate {
        worker: WorkerId(worker),
        rank: DpRank(0),
        row: worker as usize,
        load: Load::default(),
        overlap: 0,
        told: 0,
        host: 0,
        disk: 0,
        trust: Trust::FULL,
        homes: 0,
        fit: Fit::default(),
    }
}

fn demand(tokens: u32) -> Demand {
    Demand { tokens, block_size: 16, unit: 16 }
}

/// As a partition does it: picks, and tells the policy what came of it.
fn pick(
    policy: &mut Box<dyn Policy>,
    demand: &Demand,
    candidates: &[Candidate],
    dice: &mut SplitMix,
) -> Option<usize> {
    let i = policy.pick(demand, candidates, dice)?;
    policy.picked(&candidates[i]);
    Some(i)
}

const ALL: [PolicyKind; 5] = [
    PolicyKind::Kv,
    PolicyKind::LeastLoaded,
    PolicyKind::PowerOfTwo,
    PolicyKind::RoundRobin,
    PolicyKind::Random,
];

#[test]
fn round_robin_takes_turns_whoever_is_missing() {
    let mut policy = built_in(PolicyKind::RoundRobin);
    let mut dice = SplitMix::new(1);
    let all: Vec<_> = [7, 3, 5].map(candidate).into();
    let mut turn =
        |c: &[Candidate]| c[pick(&mut policy, &demand(1), c, &mut dice).unwrap()].worker.0;
    assert_eq!([turn(&all), turn(&all), turn(&all), turn(&all)], [3, 5, 7, 3]);
    assert_eq!(turn(&all[..1]), 7);
    assert_eq!(turn(&all), 3);
}

#[test]
fn f13_a_miss_follows_load_and_not_the_size_of_the_cache() {
    let mut busy = candidate(0);
    busy.load = Load { active_requests: 3, prefill_tokens: 4000, blocks: 600 };
    let idle = candidate(1);
    for kind in [PolicyKind::Kv, PolicyKind::LeastLoaded] {
        let mut policy = built_in(kind);
        let mut dice = SplitMix::new(2);
        assert_eq!(pick(&mut policy, &demand(2000), &[busy, idle], &mut dice), Some(1));
    }
}

#[test]
fn kv_goes_where_the_prefix_is_unless_that_costs_more_than_it_saves() {
    let mut warm = candidate(0);
    warm.overlap = 100;
    let cold = candidate(1);
    let mut policy = built_in(PolicyKind::Kv);
    let mut dice = SplitMix::new(3);
    assert_eq!(pick(&mut policy, &demand(2000), &[cold, warm], &mut dice), Some(1));
    warm.load = Load { active_requests: 1, prefill_tokens: 0, blocks: 200 };
    assert_eq!(pick(&mut policy, &demand(2000), &[cold, warm], &mut dice), Some(0));
}

fn loaded(worker: u32, active_requests: u32) -> Candidate {
    Candidate { load: Load { active_requests, ..Load::default() }, ..candidate(worker) }
}

#[test]
fn power_of_two_takes_the_less_loaded_of_any_two() {
    let mut policy = built_in(PolicyKind::PowerOfTwo);
    // Each stands for how many are worse than it: of two at random the less loaded is the i-th of n
    // in 2 * (n - 1 - i) of n * (n - 1) cases, and the worst never.
    const N: usize = 5;
    let all: Vec<_> = (0..N as u32).map(|i| loaded(i, i)).collect();
    for turn in 0..N {
        // Whatever the order in which they come.
        let mut turned = all.clone();
        turned.rotate_left(turn);
        let (mut seen, mut dice) = ([0i64; N], SplitMix::new(turn as u64));
        const ROUNDS: i64 = 20_000;
        for _ in 0..ROUNDS {
            let i = pick(&mut policy, &demand(1), &turned, &mut dice).unwrap();
            seen[turned[i].worker.0 as usize] += 1;
        }
        for (i, n) in seen.into_iter().enumerate() {
            let want = ROUNDS * 2 * (N - 1 - i) as i64 / (N * (N - 1)) as i64;
            assert!((n - want).abs() <= want / 10, "turned by {turn}: {seen:?}, {i} wants {want}");
        }
    }
}

#[test]
fn power_of_two_of_two_is_the_better_and_of_one_is_that_one() {
    let mut policy = built_in(PolicyKind::PowerOfTwo);
    let mut dice = SplitMix::new(5);
    let (idle, busy) = (loaded(0, 1), loaded(1, 2));
    for _ in 0..100 {
        assert_eq!(pick(&mut policy, &demand(1), &[idle, busy], &mut dice), Some(0));
        assert_eq!(pick(&mut policy, &demand(1), &[busy, idle], &mut dice), Some(1));
        assert_eq!(pick(&mut policy, &demand(1), &[busy], &mut dice), Some(0));
    }
}

#[test]
fn least_loaded_counts_requests_first_and_tokens_between_equals() {
    let mut policy = built_in(PolicyKind::LeastLoaded);
    let mut dice = SplitMix::new(6);
    let mut few = loaded(0, 2);
    few.load.prefill_tokens = u64::from(u32::MAX);
    let many = loaded(1, 3);
    assert_eq!(pick(&mut policy, &demand(1), &[many, few], &mut dice), Some(1));
    let same = loaded(2, 2);
    assert_eq!(pick(&mut policy, &demand(1), &[few, same], &mut dice), Some(1));
}

#[test]
fn kv_counts_a_home_as_load() {
    let mut policy = built_in(PolicyKind::Kv);
    let mut dice = SplitMix::new(7);
    let home = Candidate { homes: 1, ..candidate(0) };
    assert_eq!(pick(&mut policy, &demand(0), &[home, candidate(1)], &mut dice), Some(1));
    // Until the prefix that is there is worth more.
    let warm = Candidate { overlap: 17, ..home };
    assert_eq!(pick(&mut policy, &demand(17 * 16), &[warm, candidate(1)], &mut dice), Some(0));
}

#[test]
fn kv_takes_what_is_near_before_what_is_far_and_that_before_nothing() {
    let mut policy = built_in(PolicyKind::Kv);
    let mut dice = SplitMix::new(8);
    let near = Candidate { overlap: 50, ..candidate(0) };
    let host = Candidate { host: 40, ..near };
    let disk = Candidate { disk: 40, ..near };
    let cold = Candidate { overlap: 0, ..near };
    let demand = demand(100 * 16);
    let order = [near, host, disk, cold];
    for (i, better) in order.iter().enumerate() {
        for worse in &order[i + 1..] {
            assert_eq!(pick(&mut policy, &demand, &[*worse, *better], &mut dice), Some(1));
        }
    }
}

#[test]
fn reasons_are_words_and_add_up() {
    let mut fit = Fit::default();
    assert_eq!(fit.words().count(), 0);
    fit.add(Fit::BUSY, true);
    fit.add(Fit::FAILED, false);
    fit.add(Fit::NOT_READY, true);
    assert_eq!(fit.words().collect::<Vec<_>>(), ["not_ready", "busy"]);
    assert!(fit.any(Fit::BUSY.and(Fit::FAILED)) && !fit.any(Fit::FAILED));
}

#[test]
fn nothing_to_pick_from_is_no_pick() {
    for kind in ALL {
        let mut policy = built_in(kind);
        assert_eq!(pick(&mut policy, &demand(1), &[], &mut SplitMix::new(0)), None);
    }
}

#[test]
fn f15_equal_candidates_come_out_uniform() {
    for kind in ALL.into_iter().filter(|kind| *kind != PolicyKind::RoundRobin) {
        let mut policy = built_in(kind);
        let mut dice = SplitMix::new(9);
        let all: Vec<_> = (0..4).map(candidate).collect();
        let mut seen = [0u32; 4];
        for _ in 0..4000 {
            seen[pick(&mut policy, &demand(100), &all, &mut dice).unwrap()] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{kind:?}: {seen:?}");
    }
}

proptest! {
    #[test]
    fn f57_costs_are_finite_and_more_overlap_never_costs_more(
        tokens in any::<u32>(), block in any::<u32>(), overlap in any::<u32>(), more in any::<u32>(),
        active in any::<u32>(), prefill in any::<u64>(), blocks in any::<u64>(), homes in any::<u32>(),
    ) {
        let demand = Demand { tokens, block_size: block, unit: block };
        for kind in ALL {
            let policy = built_in(kind);
            let mut c = candidate(0);
            c.load = Load { active_requests: active, prefill_tokens: prefill, blocks };
            (c.overlap, c.homes) = (overlap, homes);
            let less = policy.cost(&demand, &c);
            c.overlap = overlap.saturating_add(more);
            let cost = policy.cost(&demand, &c);
            prop_assert!(cost.is_finite() && less.is_finite());
            prop_assert!(cost <= less);
        }
    }
}
