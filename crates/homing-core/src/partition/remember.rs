//! What is kept of a decision, for who asks later why.

use super::Partition;
use super::board::Field;
use super::decide::Decision;
use super::place::NOT_ELIGIBLE;
use crate::affinity::Steer;
use crate::ask::Ask;
use crate::explain::records::{Records, Weighing};
use crate::ids::WorkerId;
use crate::select::Demand;

impl Partition {
    /// Keeps what the decision was made of.
    pub(super) fn remember(
        &mut self,
        demand: &Demand,
        ask: &mut Ask,
        steer: Steer,
        field: &Field,
        decision: &Decision,
    ) {
        if self.records.off() {
            return;
        }
        let (pick, waits) = match decision {
            Decision::Go { at, .. } => (Some(*at), None),
            Decision::Wait(line) => (None, Some(*line)),
            Decision::Refuse(_) => (None, None),
        };
        let home = steer.target().map_or(0..0, |home| field.at(home));
        let (all, fits) = (field.all(), field.fits());
        let weighing = Weighing {
            policy: &*self.policy,
            demand,
            all,
            fits,
            kept: &field.kept,
            costs: &field.costs,
            pick,
            home,
            ineligible: NOT_ELIGIBLE,
        };
        self.records.decided(demand.now, ask, steer, waits, weighing);
    }

    /// The records of what was decided.
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// There are so many partitions now, which share the room for records.
    pub(crate) fn share_records(&mut self, partitions: usize) {
        self.records.share(partitions);
    }

    /// A worker departs, and is still to be called by its name.
    pub(super) fn remember_name(&mut self, worker: WorkerId) {
        if let Some(name) = self.row(worker).map(|row| row.info.spec.name.clone()) {
            self.records.departed(worker, name);
        }
    }
}
