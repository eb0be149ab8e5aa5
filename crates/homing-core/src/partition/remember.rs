//! What is kept of a decision, for who asks later why.

use super::Partition;
use super::board::Board;
use super::decide::Decision;
use super::place::NOT_ELIGIBLE;
use crate::affinity::Steer;
use crate::ask::Ask;
use crate::explain::Record;
use crate::explain::recall::{Recalled, recall};
use crate::explain::records::{Records, Weighing};
use crate::explain::stands::Rows;
use crate::ids::WorkerId;
use crate::select::Demand;

impl Partition {
    /// Keeps what the decision was made of.
    pub(super) fn remember(
        &mut self,
        demand: &Demand,
        ask: &mut Ask,
        steer: Steer,
        board: &mut Board,
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
        let (field, seen, stamps) = board.seen();
        let home = steer.target().map_or(0..0, |home| field.at(home));
        let weighing = Weighing {
            policy: &*self.policy,
            demand,
            seen,
            kept: &field.kept,
            costs: &field.costs,
            pick,
            home,
            weighed: field.weighed,
            ineligible: NOT_ELIGIBLE,
        };
        self.records.decided(demand.now, ask, steer, waits, weighing, stamps);
    }

    /// The records of what was decided.
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// The records of one page, the newest first, each with what is to be known of it for who asks; `None`: it has gone.
    pub(crate) fn recall(
        &self,
        page: u64,
    ) -> Option<impl Iterator<Item = (&Record, impl FnOnce() -> Recalled)>> {
        let all = self.records.ring().page(page)?;
        let recalled = |record, rows: Rows<'_>| recall(record, &rows, &*self.policy, NOT_ELIGIBLE);
        Some(all.map(move |(record, rows)| (record, move || recalled(record, rows))))
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
