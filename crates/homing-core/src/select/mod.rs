//! Choosing a target: filter, pin, score, pick.
//!
//! The filter and the pin rule are one for all policies (R21, `partition::decide`); a policy only says
//! what a candidate costs, and may rule one out. Near-ties are broken at random, so that routers don't
//! herd (F15).
//!
//! * [`policy`]: what a policy is, and the built-in ones.

pub mod policy;

use crate::dice::Dice;
use crate::ids::{DpRank, Target, WorkerId};
use crate::load::Load;
use crate::trust::Trust;
use smallvec::SmallVec;

/// Why a candidate can't be used, or not by everybody; several reasons may hold at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit(u16);

impl Fit {
    /// Its worker is not up.
    pub const NOT_READY: Self = Self(1);
    /// The request's own constraints exclude it.
    pub const FORBIDDEN: Self = Self(2);
    /// It failed this very request.
    pub const FAILED: Self = Self(4);
    /// It is draining: only for sessions that live there.
    pub const DRAINING: Self = Self(8);
    /// It is overloaded.
    pub const SHED: Self = Self(16);
    /// It has as much to do as it may.
    pub const BUSY: Self = Self(32);
    /// Requests that name its worker wait for it.
    pub const AWAITED: Self = Self(64);
    /// The policy rules it out.
    pub const VETOED: Self = Self(128);

    const WORDS: [(Self, &'static str); 8] = [
        (Self::NOT_READY, "not_ready"),
        (Self::FORBIDDEN, "forbidden"),
        (Self::FAILED, "failed"),
        (Self::DRAINING, "draining"),
        (Self::SHED, "overloaded"),
        (Self::BUSY, "busy"),
        (Self::AWAITED, "awaited"),
        (Self::VETOED, "vetoed"),
    ];

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of `reasons` holds.
    #[must_use]
    pub const fn any(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    pub(crate) fn add(&mut self, reason: Self, holds: bool) {
        self.0 |= if holds { reason.0 } else { 0 };
    }

    /// The reasons that hold, as people read them.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().filter(move |(reason, _)| self.any(*reason)).map(|(_, word)| word)
    }
}

/// One target that serves the request's model.
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
    /// Leading blocks of the prompt that it holds, in whichever tier.
    pub overlap: u32,
    /// Those of them that are there already, and not only on their way.
    pub told: u32,
    /// Those of them that it must bring from host memory,
    pub host: u32,
    /// and from farther away.
    pub disk: u32,
    /// How far that is believed.
    pub trust: Trust,
    /// Sessions that live at its worker.
    pub homes: u32,
    /// What speaks against it.
    pub fit: Fit,
}

impl Candidate {
    /// As a target.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { worker: self.worker, rank: Some(self.rank) }
    }

    /// Leading blocks of the prompt that it counts as holding.
    #[must_use]
    pub fn believed(&self) -> u32 {
        self.trust.of(self.overlap)
    }
}

/// The candidates of one request; no allocation for usual fleets.
pub type Candidates = SmallVec<[Candidate; 16]>;

/// What a request demands of its target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Prompt tokens.
    pub tokens: u32,
    /// Tokens per block; 0 where unknown.
    pub block_size: u32,
    /// Tokens of what costs are counted in: the same, unless the prompt is only known by its text. 0: the usual.
    pub unit: u32,
}

impl Demand {
    /// Prompt tokens that a target with `overlap` leading blocks must compute.
    #[must_use]
    pub fn uncached(&self, overlap: u32) -> u32 {
        self.tokens.saturating_sub(overlap.saturating_mul(self.block_size))
    }
}

/// Costs this close are equal: a difference below a block is noise.
const NEAR: f64 = 1e-9;

/// The candidate that costs least; among equal ones, any. `None` if there are none.
pub fn cheapest(
    candidates: &[Candidate],
    dice: &mut dyn Dice,
    cost: impl Fn(&Candidate) -> f64,
) -> Option<usize> {
    let mut best = f64::INFINITY;
    let mut tied: SmallVec<[usize; 16]> = SmallVec::new();
    for (i, c) in candidates.iter().enumerate() {
        let cost = cost(c);
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

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
