//! A routing policy of one's own: few workers at a time.
//!
//! [`Frugal`] fills the first workers before it touches the next, so that at night the others idle and may be
//! turned off. It is told everything that the built-in policies are, and obeys the same rules (R21): it can't move a
//! Hard session; a Soft one it moves where that lets a worker rest.

use homing_core::select::policy::{Policy, Terms, terms};
use homing_core::select::{Candidate, Demand};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Frugal {
    /// Active requests that a worker is filled up to.
    pub full: u32,
}

impl Default for Frugal {
    fn default() -> Self {
        Self { full: 8 }
    }
}

impl Policy for Frugal {
    /// No worker gets twice of what fills it.
    fn admits(&self, _: &Demand, c: &Candidate) -> bool {
        c.load.active_requests < 2 * self.full
    }

    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        self.terms(demand, c).iter().map(|(_, part)| part).sum()
    }

    fn terms(&self, demand: &Demand, c: &Candidate) -> Terms {
        let active = c.load.active_requests;
        // The fuller the better, as long as it is not full.
        let fill = if active < self.full {
            f64::from(self.full - active)
        } else {
            1e3 + f64::from(active)
        };
        // Between two that are alike: where the prompt is. Less than one request in all.
        let uncached = f64::from(demand.uncached(c.believed()));
        terms([("fill", fill), ("uncached", uncached / (uncached + 1e6))])
    }

    /// It remembers nothing.
    fn is_constant(&self) -> bool {
        true
    }

    /// It is shown where Soft sessions live, and sends them where it sends everybody.
    fn weighs_homes(&self) -> bool {
        true
    }
}
