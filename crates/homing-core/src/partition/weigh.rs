//! A Soft session's home among others: whether it is cheaper to stay (R06).

use super::Partition;
use super::board::Field;
use super::decide::{Decision, Seat};
use crate::affinity::{MoveReason, Plan};
use crate::dice::SplitMix;
use crate::ids::Target;
use crate::select::{Among, Candidate, Costs, Demand, Fit};
use crate::settings::Soft;
use smallvec::SmallVec;

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
        all: &mut Field,
        dice: &mut SplitMix,
    ) -> Decision {
        let there = all.at(home);
        let as_others_see: SmallVec<[Candidate; 2]> = all.all()[there.clone()].into();
        for (i, c) in there.clone().zip(&as_others_see) {
            all.set(i, c.as_home());
        }
        all.weighed = true;
        let decision = self.home_or_away(demand, seat, home, all, dice);
        there.zip(as_others_see).for_each(|(i, c)| all.set(i, c));
        decision
    }

    fn home_or_away(
        &self,
        demand: &Demand,
        seat: &Seat,
        home: Target,
        all: &mut Field,
        dice: &mut SplitMix,
    ) -> Decision {
        let moves = Plan::Move(MoveReason::Soft);
        let plan = |c: &Candidate| if c.home { Plan::Home } else { moves };
        match self.anywhere(demand, seat, all, moves, dice) {
            Decision::Go { picked, at, .. } if self.policy.weighs_homes() => {
                Decision::Go { picked, at, plan: plan(&picked) }
            }
            Decision::Go { picked, at, .. } => {
                let never = Fit::UNUSABLE.and(Fit::VETOED).and(Fit::SHED);
                // Beside those that are left, whose costs the record wants.
                let usable = all.at(home).filter(|i| !all.fits()[*i].any(never));
                let there: SmallVec<[u32; 8]> = usable.map(|i| i as u32).collect();
                let among = Among::some(all.all(), &there);
                let at_home = self.policy.pick(demand, among, &mut Costs::default(), dice);
                let at_home = at_home.and_then(|i| there.get(i)).map(|i| *i as usize);
                let stays = at_home.filter(|i| {
                    let (here, away) = (
                        self.policy.cost(demand, &all.all()[*i]),
                        self.policy.cost(demand, &picked),
                    );
                    // Also where one of them is no number.
                    here.partial_cmp(&(away + self.policy.price_of_moving(demand, here)))
                        .is_none_or(std::cmp::Ordering::is_le)
                });
                let at = stays.unwrap_or(at);
                let picked = all.all()[at];
                Decision::Go { picked, at, plan: plan(&picked) }
            }
            other => other,
        }
    }
}
