//! `power_of_two`: the less loaded of two.

use super::policy::{Policy, Terms};
use super::{Among, Candidate, Costs, Demand, LeastLoaded, cheapest};
use crate::dice::Dice;

/// The less loaded of two at random: nearly as even as looking at all (Mitzenmacher, "The power of two
/// choices in randomized load balancing", 2001), and routers that know of each other late don't herd.
#[derive(Clone, Copy, Debug)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        LeastLoaded.cost(demand, c)
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn terms(&self, demand: &Demand, c: &Candidate) -> Terms {
        LeastLoaded.terms(demand, c)
    }

    fn pick(
        &self,
        demand: &Demand,
        among: Among<'_>,
        _: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        let n = among.len();
        if n < 2 {
            return n.checked_sub(1);
        }
        let a = dice.below(n);
        // Another one: the last takes the place of the first choice.
        let b = Some(dice.below(n - 1)).filter(|b| *b != a).unwrap_or(n - 1);
        let pair = [*among.get(a)?, *among.get(b)?];
        let pair = Among::from(&pair[..]);
        let picked = cheapest(pair, demand, self.near(), dice, |c| self.cost(demand, c))?;
        Some(if picked == 0 { a } else { b })
    }
}
