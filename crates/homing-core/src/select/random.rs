//! `random`: chance alone, the measure of all others.

use super::policy::Policy;
use super::{Candidate, Demand};
use crate::dice::Dice;

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
