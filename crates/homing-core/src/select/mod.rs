//! Choosing a target: filter, pin, score, pick.
//!
//! The filter and the pin rule are one for all policies (R21); a policy only says what a candidate
//! costs. Near-ties are broken at random, so that routers don't herd (F15).
//!
//! * `policy`: the costs.

pub(crate) mod policy;

use crate::dice::Dice;
use crate::ids::{DpRank, Target, WorkerId};
use crate::load::Load;
use policy::Policy;
use smallvec::SmallVec;

/// One target that may be picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerId,
    /// One of its ranks.
    pub rank: DpRank,
    /// Its row in the partition.
    pub row: usize,
    /// What it has to do.
    pub load: Load,
    /// Leading blocks of the prompt that it holds.
    pub overlap: u32,
    /// Sessions that live at its worker.
    pub homes: u32,
}

impl Candidate {
    /// As a target.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { worker: self.worker, rank: Some(self.rank) }
    }
}

/// The candidates of one request; no allocation for usual fleets.
pub(crate) type Candidates = SmallVec<[Candidate; 16]>;

/// What a request demands of its target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Prompt tokens.
    pub(crate) tokens: u32,
    /// Tokens per block; 0 where unknown.
    pub(crate) block_size: u32,
}

impl Demand {
    /// Prompt tokens that a target with `overlap` leading blocks must compute.
    #[must_use]
    pub(crate) fn uncached(&self, overlap: u32) -> u32 {
        self.tokens.saturating_sub(overlap.saturating_mul(self.block_size))
    }
}

/// Costs this close are equal: a difference below a block is noise.
const NEAR: f64 = 1e-9;

/// Picks one of `candidates`; `None` if there are none.
pub(crate) fn pick(
    policy: &mut Policy,
    demand: &Demand,
    candidates: &[Candidate],
    dice: &mut impl Dice,
) -> Option<usize> {
    let picked = match policy {
        Policy::RoundRobin { last } => round_robin(*last, candidates),
        Policy::Random => Some(dice.below(candidates.len())).filter(|_| !candidates.is_empty()),
        Policy::Kv(_) | Policy::LeastLoaded => {
            let mut best = f64::INFINITY;
            let mut tied: SmallVec<[usize; 16]> = SmallVec::new();
            for (i, c) in candidates.iter().enumerate() {
                let cost = policy.cost(demand, c);
                if tied.is_empty() || cost < best - NEAR {
                    tied.clear();
                    best = cost;
                }
                if cost <= best + NEAR {
                    tied.push(i);
                }
            }
            match tied.as_slice() {
                [] => None,
                [one] => Some(*one),
                many => many.get(dice.below(many.len())).copied(),
            }
        }
    };
    if let (Policy::RoundRobin { last }, Some(i)) = (policy, picked) {
        *last = Some((candidates[i].worker, candidates[i].rank));
    }
    picked
}

/// The first candidate behind the last one picked, in the order of ids.
fn round_robin(last: Option<(WorkerId, DpRank)>, candidates: &[Candidate]) -> Option<usize> {
    let id = |c: &Candidate| (c.worker, c.rank);
    let all = || candidates.iter().enumerate();
    let behind = all().filter(|(_, c)| last.is_none_or(|l| id(c) > l)).min_by_key(|(_, c)| id(c));
    behind.or_else(|| all().min_by_key(|(_, c)| id(c))).map(|(i, _)| i)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
