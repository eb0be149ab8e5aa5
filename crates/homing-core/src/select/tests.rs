//! Costs, ties and turns: what each policy picks, without a core around it.

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
        homes: 0,
    }
}

fn demand(tokens: u32) -> Demand {
    Demand { tokens, block_size: 16 }
}

#[test]
fn round_robin_takes_turns_whoever_is_missing() {
    let mut policy = Policy::new(PolicyKind::RoundRobin);
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
        let mut policy = Policy::new(kind);
        let mut dice = SplitMix::new(2);
        assert_eq!(pick(&mut policy, &demand(2000), &[busy, idle], &mut dice), Some(1));
    }
}

#[test]
fn kv_goes_where_the_prefix_is_unless_that_costs_more_than_it_saves() {
    let mut warm = candidate(0);
    warm.overlap = 100;
    let cold = candidate(1);
    let mut policy = Policy::new(PolicyKind::Kv);
    let mut dice = SplitMix::new(3);
    assert_eq!(pick(&mut policy, &demand(2000), &[cold, warm], &mut dice), Some(1));
    warm.load = Load { active_requests: 1, prefill_tokens: 0, blocks: 200 };
    assert_eq!(pick(&mut policy, &demand(2000), &[cold, warm], &mut dice), Some(0));
}

#[test]
fn nothing_to_pick_from_is_no_pick() {
    for kind in
        [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::RoundRobin, PolicyKind::Random]
    {
        let mut policy = Policy::new(kind);
        assert_eq!(pick(&mut policy, &demand(1), &[], &mut SplitMix::new(0)), None);
    }
}

#[test]
fn f15_equal_candidates_come_out_uniform() {
    for kind in [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::Random] {
        let mut policy = Policy::new(kind);
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
        let demand = Demand { tokens, block_size: block };
        for kind in [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::RoundRobin, PolicyKind::Random] {
            let policy = Policy::new(kind);
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
