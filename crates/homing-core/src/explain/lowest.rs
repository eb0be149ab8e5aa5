//! The few lowest of many costs, in little more than one look at each.

use super::BEST;
use smallvec::SmallVec;

/// Costs that are looked at together: their lowest is found without a branch.
const BLOCK: usize = 8;

/// The places of the [`BEST`] lowest, the lowest first, and of equal ones those that come first; of fewer, all. None of them is
/// NaN.
pub(super) fn lowest(costs: &[f64]) -> SmallVec<[u32; BEST]> {
    let blocks = || costs.chunks(BLOCK);
    let lows: SmallVec<[f64; 128]> =
        blocks().map(|block| block.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    // Of so many blocks each has one that is no higher: none of those wanted is, either.
    let bound = match lows.len() > BEST {
        true => *lows.clone().select_nth_unstable_by(BEST - 1, f64::total_cmp).1,
        false => f64::INFINITY,
    };
    let mut found: SmallVec<[(f64, u32); 256]> = SmallVec::new();
    let mut equal = 0;
    for (at, (block, low)) in blocks().zip(&lows).enumerate() {
        if *low > bound {
            continue;
        }
        for (i, cost) in block.iter().enumerate() {
            equal += usize::from(*cost == bound);
            // Of those at the bound more may come than are wanted: where all cost the same, all of them.
            if *cost < bound || (*cost == bound && equal <= BEST) {
                found.push((*cost, (at * BLOCK + i) as u32));
            }
        }
    }
    found.sort_unstable_by(|(a, i), (b, j)| a.total_cmp(b).then(i.cmp(j)));
    found.into_iter().take(BEST).map(|(_, i)| i).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_those_that_sorting_finds(
            costs in prop::collection::vec(
                prop_oneof![0..5_i32, -1000..1000_i32, Just(i32::MAX)].prop_map(f64::from), 0..1500),
            infinite in any::<bool>(),
        ) {
            let mut costs = costs;
            if infinite {
                costs.iter_mut().skip(20).step_by(2).for_each(|cost| *cost = f64::INFINITY);
            }
            let mut all: Vec<u32> = (0..costs.len() as u32).collect();
            all.sort_by(|a, b| costs[*a as usize].total_cmp(&costs[*b as usize]));
            all.truncate(BEST);
            prop_assert_eq!(lowest(&costs).to_vec(), all);
        }
    }
}
