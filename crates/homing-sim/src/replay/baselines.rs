//! What others do: policies to compare with, which no router of ours offers.

use homing_core::dice::Dice;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::select::policy::Policy;
use homing_core::select::{Among, Candidate, Costs, Demand, Kv, cheapest};
use std::collections::BTreeMap;

/// A policy that only replays know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The field's usual formula: blocks to compute, and blocks that are decoded. Told of the engines' caches.
    UsualFormula,
    /// A tree of texts that the router has sent, as others use it. Told nothing by engines.
    TextTree,
}

impl Baseline {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 2] =
        [("usual_formula", Self::UsualFormula), ("text_tree", Self::TextTree)];

    /// The one of that name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| *name == word).map(|(_, it)| it)
    }

    /// A fresh policy.
    #[must_use]
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::UsualFormula => Box::new(Kv { request: 0.0, home: 0.0, ..Kv::default() }),
            Self::TextTree => Box::new(TextTree::default()),
        }
    }
}

/// Cache-aware routing by what was routed before: where most of the prompt went before, if that is much of it; else
/// where least was ever sent; and by load alone while that is uneven. The thresholds are the defaults of the routers that
/// do so: half of a prompt, 64 requests, and one and a half times.
#[derive(Debug, Default)]
struct TextTree {
    /// Tokens that were new where they were sent: the size of each tree.
    sent: BTreeMap<(WorkerId, DpRank), u64>,
}

const MUCH: f64 = 0.5;
const UNEVEN_BY: u32 = 64;
const UNEVEN_TIMES: f64 = 1.5;

impl Policy for TextTree {
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        f64::from(demand.uncached(c.overlap))
    }

    fn pick(
        &self,
        demand: &Demand,
        all: Among<'_>,
        _: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        let active = |c: &Candidate| c.load.active_requests;
        let most = all.iter().map(active).max()?;
        let least = all.iter().map(active).min()?;
        let uneven = most - least > UNEVEN_BY && f64::from(most) > UNEVEN_TIMES * f64::from(least);
        if uneven {
            return cheapest(all, demand, 0.0, dice, |c| f64::from(active(c)));
        }
        let best = cheapest(all, demand, 0.0, dice, |c| self.cost(demand, c))?;
        let matched = f64::from(demand.tokens) - self.cost(demand, all.get(best)?);
        if matched > MUCH * f64::from(demand.tokens) {
            return Some(best);
        }
        let size = |c: &Candidate| self.sent.get(&(c.worker, c.rank)).copied().unwrap_or(0);
        cheapest(all, demand, 0.0, dice, |c| size(c) as f64)
    }

    fn picked(&mut self, demand: &Demand, c: &Candidate) {
        *self.sent.entry((c.worker, c.rank)).or_default() += u64::from(demand.uncached(c.overlap));
    }
}
