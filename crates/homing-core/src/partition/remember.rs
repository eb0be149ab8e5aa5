//! What is kept of a decision, for who asks later why.

use super::Partition;
use super::decide::Decision;
use super::place::NOT_ELIGIBLE;
use crate::affinity::Steer;
use crate::ask::Ask;
use crate::explain::records::{Records, Weighing};
use crate::ids::WorkerId;
use crate::select::{Candidate, Candidates, Demand};

impl Partition {
    /// Keeps what the decision was made of.
    pub(super) fn remember(
        &mut self,
        demand: &Demand,
        ask: &mut Ask,
        steer: Steer,
        all: &Candidates,
        decision: &Decision,
    ) {
        if self.records.off() {
            return;
        }
        let (pick, waits) = match decision {
            Decision::Go { picked, .. } => (Some(picked.target()), None),
            Decision::Wait(line) => (None, Some(*line)),
            Decision::Refuse(_) => (None, None),
        };
        let policy = &*self.policy;
        let eligible = |c: &Candidate| !c.fit.any(NOT_ELIGIBLE);
        let weighing = Weighing { policy, demand, all, pick, eligible };
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
