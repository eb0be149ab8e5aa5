//! What a policy is. Sessions, constraints, health and load limits are no policy's business: they have been looked
//! at before it is asked (R21).

use super::{
    Among, Candidate, Demand, Kv, Latency, LeastLoaded, PowerOfTwo, Random, RoundRobin, cheapest_of,
};
use crate::dice::Dice;
use crate::settings::PolicyKind;
use smallvec::SmallVec;
use std::fmt::Debug;

/// What a cost is made of, each part with its name. At most [`TERMS`].
pub type Terms = SmallVec<[(&'static str, f64); TERMS]>;
/// Parts of a cost that records keep.
pub const TERMS: usize = 6;

/// They without their names; 0 where there are fewer.
pub type Parts = [f32; TERMS];

/// A candidate's cost with what a record keeps of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weight {
    /// What it costs.
    pub cost: f64,
    /// The parts of it.
    pub parts: Parts,
    /// After how many milliseconds its first token would come; shown where the policy costs in milliseconds.
    pub first_ms: f32,
}

impl Weight {
    /// The sum of these parts.
    pub(super) fn of<const N: usize>(parts: [f64; N], first_ms: f64) -> Self {
        let mut kept = Parts::default();
        kept.iter_mut().zip(parts).for_each(|(kept, part)| *kept = part as f32);
        Self { cost: parts.iter().sum(), parts: kept, first_ms: first_ms as f32 }
    }
}

/// What candidates cost, as a policy says it when it picks: in their order, once for the choice and for its record. No
/// allocation for usual fleets.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    costs: SmallVec<[f64; 64]>,
    weights: Vec<Weight>,
    whole: bool,
}

impl Costs {
    /// Nothing is said. `whole`: the record keeps what is said of each of them.
    pub(crate) fn clear(&mut self, whole: bool) {
        self.costs.clear();
        self.weights.clear();
        self.whole = whole;
    }

    /// Asks what all of these cost.
    pub fn ask(&mut self, policy: &(impl Policy + ?Sized), demand: &Demand, among: Among<'_>) {
        if self.whole {
            self.weights.extend(among.iter().map(|c| policy.weigh(demand, c)));
            self.costs.extend(self.weights.iter().map(|weight| weight.cost));
        } else {
            self.costs.extend(among.iter().map(|c| policy.cost(demand, c)));
        }
    }

    /// What they cost; empty, if that was not asked.
    #[must_use]
    pub fn costs(&self) -> &[f64] {
        &self.costs
    }

    /// They with their parts; empty, if that was not asked.
    pub(crate) fn weights(&self) -> &[Weight] {
        &self.weights
    }
}

/// These parts.
pub fn terms<const N: usize>(parts: [(&'static str, f64); N]) -> Terms {
    parts.into_iter().collect()
}

/// Chooses among candidates that may all be used.
///
/// A policy may live anywhere: `examples/custom-policy` has one in a crate of its own.
pub trait Policy: Debug + Send {
    /// Whether the candidate may be used at all. Where a Hard session's home may not, the session is
    /// given up, or each of its turns would fail alike (R07).
    fn admits(&self, _demand: &Demand, _candidate: &Candidate) -> bool {
        true
    }

    /// What it costs to place the request there; lower is better, always finite. Policies that don't
    /// weigh say 0.
    fn cost(&self, demand: &Demand, candidate: &Candidate) -> f64;

    /// What the cost is made of, for people: the parts add up to it.
    fn terms(&self, demand: &Demand, candidate: &Candidate) -> Terms {
        terms([("cost", self.cost(demand, candidate))])
    }

    /// Whether it says the same of the same demand and candidate for as long as it lives. Then records don't keep what
    /// it said of each candidate, which takes time with each decision: it is asked again when somebody reads one.
    fn is_constant(&self) -> bool {
        false
    }

    /// [`Self::cost`] with the parts of [`Self::terms`] as numbers alone, in the same order, which never changes: that
    /// is what records show. Worth writing where it is cheaper than the two, unless [`Self::is_constant`].
    fn weigh(&self, demand: &Demand, candidate: &Candidate) -> Weight {
        let mut parts = Parts::default();
        let terms = self.terms(demand, candidate);
        parts.iter_mut().zip(terms).for_each(|(part, (_, cost))| *part = cost as f32);
        let cost = self.cost(demand, candidate);
        Weight { cost, parts, first_ms: candidate.ttft_ms(demand) as f32 }
    }

    /// Costs that are no farther apart than this are equal.
    fn near(&self) -> f64 {
        0.0
    }

    /// Picks one: the cheapest, unless the policy knows better. Gives its place in `among`; `None` only if there are
    /// none. What each of them costs may be left in `costs` ([`Costs::ask`]), which comes empty: the decision's
    /// record wants it, and asks for it again unless it is there.
    fn pick(
        &self,
        demand: &Demand,
        among: Among<'_>,
        costs: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        costs.ask(self, demand, among);
        cheapest_of(among, costs.costs(), demand, self.near(), dice)
    }

    /// Calls `veto` with the place of each that [`Self::admits`] says no to: one call for all of them.
    fn vetoes(&self, demand: &Demand, all: &[Candidate], veto: &mut dyn FnMut(usize)) {
        for (i, candidate) in all.iter().enumerate() {
            if !self.admits(demand, candidate) {
                veto(i);
            }
        }
    }

    /// Whether it decides by itself whether a Soft session stays, whatever `affinity.soft` says: it is then given
    /// all candidates, the session's home among them marked as such ([`Candidate::home`]).
    fn weighs_homes(&self) -> bool {
        false
    }

    /// By how much another must be cheaper than home for a Soft session to leave it, with `affinity.soft = "weigh"`:
    /// what moving costs besides the request itself, and enough that a session doesn't go back and forth.
    fn price_of_moving(&self, _demand: &Demand, home_cost: f64) -> f64 {
        home_cost.abs() / 10.0
    }

    /// That one was picked, and the request goes there.
    fn picked(&mut self, _demand: &Demand, _candidate: &Candidate) {}
}

/// The built-in policy of this kind, fresh.
#[must_use]
pub fn built_in(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Kv => Box::new(Kv::default()),
        PolicyKind::Latency => Box::new(Latency::default()),
        PolicyKind::LeastLoaded => Box::new(LeastLoaded),
        PolicyKind::PowerOfTwo => Box::new(PowerOfTwo),
        PolicyKind::RoundRobin => Box::new(RoundRobin::default()),
        PolicyKind::Random => Box::new(Random),
    }
}
