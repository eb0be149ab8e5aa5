//! Policies: what a candidate costs, and which are ruled out. Sessions, constraints, health and load
//! limits are no policy's business: they have been looked at before it is asked (R21).

use super::{Candidate, Demand, cheapest};
use crate::dice::Dice;
use crate::ids::{DpRank, WorkerId};
use crate::settings::PolicyKind;
use std::fmt::Debug;

/// Chooses among candidates that may all be used.
pub trait Policy: Debug + Send {
    /// Whether the candidate may be used at all. Where a Hard session's home may not, the session is
    /// given up, or each of its turns would fail alike (R07).
    fn admits(&self, _demand: &Demand, _candidate: &Candidate) -> bool {
        true
    }

    /// What it costs to place the request there; lower is better, always finite. Policies that don't
    /// weigh say 0.
    fn cost(&self, demand: &Demand, candidate: &Candidate) -> f64;

    /// Picks one: the cheapest, unless the policy knows better. `None` only if there are none.
    fn pick(
        &self,
        demand: &Demand,
        candidates: &[Candidate],
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        cheapest(candidates, dice, |c| self.cost(demand, c))
    }

    /// That one was picked, and the request goes there.
    fn picked(&mut self, _candidate: &Candidate) {}
}

/// The built-in policy of this kind, fresh.
#[must_use]
pub fn built_in(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Kv => Box::new(Kv::default()),
        PolicyKind::LeastLoaded => Box::new(LeastLoaded),
        PolicyKind::PowerOfTwo => Box::new(PowerOfTwo),
        PolicyKind::RoundRobin => Box::new(RoundRobin::default()),
        PolicyKind::Random => Box::new(Random),
    }
}

/// Blocks are a measure here even where the engines' block size is unknown.
const USUAL_BLOCK: f64 = 16.0;

/// Fewest blocks to compute and to decode; the field's usual formula, and homes. Weights in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kv {
    /// What one block of prefill costs against one block that is being decoded.
    pub prefill: f64,
    /// What one active request costs besides its blocks: its share of every step.
    pub request: f64,
    /// What one session at home costs: it will come again and wants its blocks kept. Without this, an
    /// idle moment makes every worker look alike, and shared openers draw all sessions to one cache.
    pub home: f64,
    /// What a block in host memory costs, against one that must be computed: it has to be copied.
    pub host: f64,
    /// What one costs that is farther away: it has to be read first.
    pub disk: f64,
}

impl Default for Kv {
    fn default() -> Self {
        Self { prefill: 1.0, request: 4.0, home: 16.0, host: 0.1, disk: 0.3 }
    }
}

impl Policy for Kv {
    /// `prefill * (waiting prefill + this prompt's uncached part + host * blocks there + disk * blocks there)
    /// + decode + request * active + home * homes`, in blocks.
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        let block = if demand.unit == 0 { USUAL_BLOCK } else { f64::from(demand.unit) };
        let uncached = f64::from(demand.uncached(c.believed()));
        let far = self.host * f64::from(c.host) + self.disk * f64::from(c.disk);
        let prefill = (c.load.prefill_tokens as f64 + uncached) / block + far;
        self.prefill * prefill
            + c.load.blocks as f64
            + self.request * f64::from(c.load.active_requests)
            + self.home * f64::from(c.homes)
    }
}

/// Fewest active requests, then fewest prompt tokens to compute.
#[derive(Clone, Copy, Debug)]
pub struct LeastLoaded;

impl Policy for LeastLoaded {
    fn cost(&self, _: &Demand, c: &Candidate) -> f64 {
        // Tokens only break ties between equal counts of requests: scaled below one request.
        let tokens = c.load.prefill_tokens as f64;
        f64::from(c.load.active_requests) + tokens / (tokens + 1e6)
    }
}

/// The less loaded of two at random: nearly as even as looking at all (Mitzenmacher, "The power of two
/// choices in randomized load balancing", 2001), and routers that know of each other late don't herd.
#[derive(Clone, Copy, Debug)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        LeastLoaded.cost(demand, c)
    }

    fn pick(
        &self,
        demand: &Demand,
        candidates: &[Candidate],
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        let n = candidates.len();
        if n < 2 {
            return n.checked_sub(1);
        }
        let a = dice.below(n);
        // Another one: the last takes the place of the first choice.
        let b = Some(dice.below(n - 1)).filter(|b| *b != a).unwrap_or(n - 1);
        let pair = [candidates[a], candidates[b]];
        let picked = cheapest(&pair, dice, |c| self.cost(demand, c))?;
        Some(if picked == 0 { a } else { b })
    }
}

/// One after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    /// Whose turn it was.
    last: Option<(WorkerId, DpRank)>,
}

impl Policy for RoundRobin {
    fn cost(&self, _: &Demand, _: &Candidate) -> f64 {
        0.0
    }

    /// The first candidate behind the last one picked, in the order of ids.
    fn pick(&self, _: &Demand, candidates: &[Candidate], _: &mut dyn Dice) -> Option<usize> {
        let id = |c: &Candidate| (c.worker, c.rank);
        let all = || candidates.iter().enumerate();
        let behind =
            all().filter(|(_, c)| self.last.is_none_or(|l| id(c) > l)).min_by_key(|(_, c)| id(c));
        behind.or_else(|| all().min_by_key(|(_, c)| id(c))).map(|(i, _)| i)
    }

    fn picked(&mut self, c: &Candidate) {
        self.last = Some((c.worker, c.rank));
    }
}

/// Any.
#[derive(Clone, Copy, Debug)]
pub struct Random;

impl Policy for Random {
    fn cost(&self, _: &Demand, _: &Candidate) -> f64 {
        0.0
    }

    fn pick(&self, _: &Demand, candidates: &[Candidate], dice: &mut dyn Dice) -> Option<usize> {
        Some(dice.below(candidates.len())).filter(|_| !candidates.is_empty())
    }
}
