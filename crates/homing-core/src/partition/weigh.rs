//! A Soft session's home among others: whether it is cheaper to stay (R06).

use super::Partition;
use super::decide::{Decision, Seat, UNUSABLE};
use crate::affinity::{MoveReason, Plan};
use crate::dice::SplitMix;
use crate::ids::Target;
use crate::select::{Candidate, Candidates, Demand, Fit};
use crate::settings::Soft;

impl Partition {
    /// Whether Soft homes are weighed against others.
    pub(super) fn weighs(&self) -> bool {
        self.settings.affinity.soft == Soft::Weigh || self.policy.weighs_homes()
    }

    /// Home, or wherever else is cheaper by more than moving costs (R06).
    pub(super) fn weighed(
        &self,
        demand: &Demand,
        seat: &Seat,
        home: Target,
        all: &Candidates,
        dice: &mut SplitMix,
    ) -> Decision {
        let mut all = all.clone();
        for c in &mut all {
            c.home = home.admits(c.target());
            // It would live anywhere else just as well.
            c.homes -= u32::from(c.home && c.homes > 0);
            // Its sessions may finish where a worker drains.
            c.fit.remove(Fit::DRAINING, c.home);
        }
        let moves = Plan::Move(MoveReason::Soft);
        let plan = |c: &Candidate| if c.home { Plan::Home } else { moves };
        match self.anywhere(demand, seat, &all, moves, dice) {
            Decision::Go { picked, considered, .. } if self.policy.weighs_homes() => {
                Decision::Go { picked, considered, plan: plan(&picked) }
            }
            Decision::Go { picked, considered, .. } => {
                let usable =
                    |c: &&Candidate| c.home && !c.fit.any(UNUSABLE.and(Fit::VETOED).and(Fit::SHED));
                let there: Candidates = all.iter().filter(usable).copied().collect();
                let at_home = self.policy.pick(demand, &there, dice).and_then(|i| there.get(i));
                let stays = at_home.filter(|c| {
                    let (here, away) =
                        (self.policy.cost(demand, c), self.policy.cost(demand, &picked));
                    // Also where one of them is no number.
                    here.partial_cmp(&(away + self.policy.price_of_moving(demand, here)))
                        .is_none_or(std::cmp::Ordering::is_le)
                });
                let picked = stays.copied().unwrap_or(picked);
                Decision::Go { picked, considered, plan: plan(&picked) }
            }
            other => other,
        }
    }
}
