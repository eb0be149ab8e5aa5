//! `random`: chance alone, the measure of all others.

use super::policy::Policy;
use super::{Among, Candidate, Costs, Demand};
use crate::dice::Dice;

/// Any.
#[derive(Clone, Copy, Debug)]
pub struct Random;

impl Policy for Random {
    fn cost(&self, _: &Demand, _: &Candidate) -> f64 {
        0.0
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn pick(
        &self,
        _: &Demand,
        among: Among<'_>,
        _: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        Some(dice.below(among.len())).filter(|_| !among.is_empty())
    }
}
