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
        home: false,
        pace: Pace::default(),
        name: u64::from(worker),
        fit: Fit::default(),
    }
}

fn demand(tokens: u32) -> Demand {
    Demand { tokens, block_size: 16, unit: 16, answer: 200.0, ..Demand::default() }
}

/// As a partition does it: picks, and tells the policy what came of it.
fn pick(
    policy: &mut Box<dyn Policy>,
    demand: &Demand,
    candidates: &[Candidate],
    dice: &mut SplitMix,
) -> Option<usize> {
    let i = policy.pick(demand, candidates.into(), &mut Costs::default(), dice)?;
    policy.picked(demand, &candidates[i]);
    Some(i)
}

fn pick_alone(policy: &dyn Policy, demand: &Demand, all: &[Candidate], seed: u64) -> Option<usize> {
    policy.pick(demand, all.into(), &mut Costs::default(), &mut SplitMix::new(seed))
}

const ALL: [PolicyKind; 6] = [
    PolicyKind::Kv,
    PolicyKind::Latency,
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
    busy.load = Load { active_requests: 3, prefill_tokens: 4000, blocks: 600, ..Load::default() };
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
    warm.load = Load { active_requests: 1, prefill_tokens: 0, blocks: 200, ..Load::default() };
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
    let warm = Candidate { overlap: 18, ..home };
    assert_eq!(pick(&mut policy, &demand(18 * 16), &[warm, candidate(1)], &mut dice), Some(0));
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

fn any_load() -> impl Strategy<Value = Load> {
    (any::<[u32; 2]>(), any::<[u64; 7]>()).prop_map(|([active, decoding], n)| Load {
        active_requests: active,
        decoding,
        prefill_tokens: n[0],
        blocks: n[1],
        context: n[2],
        prefill_pairs: n[3],
        first_prefill: n[4],
        first_pairs: n[5],
        since: Time::from_micros(n[6]),
    })
}

fn any_pace() -> impl Strategy<Value = Pace> {
    any::<[u32; 7]>().prop_map(|n| {
        let [base, token, pair, step, sequence, context, stall] = n.map(|n| n as f32 / 1e4);
        Pace { base, token, pair, step, sequence, context, stall }
    })
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    (any::<[u32; 5]>(), any_load(), any_pace()).prop_map(|(n, load, pace)| Candidate {
        load,
        pace,
        overlap: n[0],
        host: n[1] / 2,
        disk: n[2] / 2,
        homes: n[3],
        ..candidate(n[4] % 8)
    })
}

proptest! {
    #[test]
    fn f57_costs_are_finite_and_more_overlap_never_costs_more(
        tokens in any::<u32>(), block in any::<u32>(), more in any::<u32>(), c in any_candidate(), now in any::<u64>(),
    ) {
        let now = Time::from_micros(now);
        let demand = Demand { now, answer: 4096.0, block_size: block, unit: block, ..demand(tokens) };
        for kind in ALL {
            let policy = built_in(kind);
            let less = policy.cost(&demand, &c);
            let better = Candidate { overlap: c.overlap.saturating_add(more), ..c };
            let cost = policy.cost(&demand, &better);
            prop_assert!(cost.is_finite() && less.is_finite());
            prop_assert!(cost <= less + less.abs() * 1e-12, "{kind:?}: {cost} {less}");
            let sum: f64 = policy.terms(&demand, &c).iter().map(|(_, part)| part).sum();
            prop_assert!((sum - less).abs() <= less.abs() * 1e-9 + 1e-9, "{kind:?}: {sum} {less}");
            prop_assert!(policy.price_of_moving(&demand, less) >= 0.0);
        }
    }

    /// Whatever the candidates are: one of them is picked, and none that costs more than the best and what is near.
    #[test]
    fn what_is_picked_is_one_of_the_cheapest(
        tokens in any::<u32>(), all in prop::collection::vec(any_candidate(), 1..9), seed in any::<u64>(),
        session in any::<u128>(), first in any::<bool>(),
    ) {
        let newcomer = first.then_some(SessionKey(session));
        let demand = Demand { newcomer, ..demand(tokens) };
        for kind in [PolicyKind::Kv, PolicyKind::Latency, PolicyKind::LeastLoaded] {
            let policy = built_in(kind);
            let i = pick_alone(&*policy, &demand, &all, seed).unwrap();
            let best = all.iter().map(|c| policy.cost(&demand, c)).fold(f64::INFINITY, f64::min);
            prop_assert!(policy.cost(&demand, &all[i]) <= best + policy.near().max(1e-6));
        }
    }
}

#[test]
fn first_turns_go_to_the_same_place_at_all_routers_and_to_all_places() {
    for kind in [PolicyKind::Kv, PolicyKind::Latency, PolicyKind::LeastLoaded] {
        let policy = built_in(kind);
        let all: Vec<_> = (0..4).map(candidate).collect();
        // Another router: other numbers of its own, another order, other dice.
        let mut others: Vec<_> =
            all.iter().map(|c| Candidate { worker: WorkerId(c.worker.0 + 9), ..*c }).collect();
        others.reverse();
        let mut seen = [0u32; 4];
        for key in 0..4000u128 {
            let newcomer = Some(SessionKey(key * 7919));
            let demand = Demand { newcomer, ..demand(100) };
            let a = pick_alone(&*policy, &demand, &all, 1).unwrap();
            let b = pick_alone(&*policy, &demand, &others, 2).unwrap();
            assert_eq!(all[a].name, others[b].name, "{kind:?}");
            seen[a] += 1;
        }
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{kind:?}: {seen:?}");
    }
}

#[test]
fn latency_weighs_a_prefix_against_the_wait_for_it_in_time() {
    let policy = Latency::default();
    let mut dice = SplitMix::new(3);
    let mut warm = candidate(0);
    warm.overlap = 100;
    let cold = candidate(1);
    let mut pick = |demand: &Demand, all: &[Candidate]| {
        policy.pick(demand, all.into(), &mut Costs::default(), &mut dice)
    };
    let demand = Demand { now: Time::from_micros(9_000_000), ..demand(2000) };
    assert_eq!(pick(&demand, &[cold, warm]), Some(1));
    // A long prompt stands before it there.
    warm.load = Load {
        active_requests: 1,
        prefill_tokens: 9000,
        first_prefill: 9000,
        since: demand.now,
        ..Load::default()
    };
    assert_eq!(pick(&demand, &[cold, warm]), Some(0));
    // Most of which is done by now.
    warm.load.since = Time::from_micros(8_500_000);
    assert_eq!(pick(&demand, &[cold, warm]), Some(1));
    // A slow worker needs more of a head start.
    warm.pace = Pace { token: 0.6, ..Pace::default() };
    assert_eq!(pick(&demand, &[cold, warm]), Some(0));
}
