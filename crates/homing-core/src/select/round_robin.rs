//! `round_robin`: everybody's turn comes.

use super::policy::Policy;
use super::{Among, Candidate, Costs, Demand};
use crate::dice::Dice;
use crate::ids::{DpRank, WorkerId};

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

    fn is_constant(&self) -> bool {
        true
    }

    /// The first candidate behind the last one picked, in the order of ids.
    fn pick(&self, _: &Demand, among: Among<'_>, _: &mut Costs, _: &mut dyn Dice) -> Option<usize> {
        let id = |c: &Candidate| (c.worker, c.rank);
        let all = || among.iter().enumerate();
        let behind =
            all().filter(|(_, c)| self.last.is_none_or(|l| id(c) > l)).min_by_key(|(_, c)| id(c));
        behind.or_else(|| all().min_by_key(|(_, c)| id(c))).map(|(i, _)| i)
    }

    fn picked(&mut self, _: &Demand, c: &Candidate) {
        self.last = Some((c.worker, c.rank));
    }
}
