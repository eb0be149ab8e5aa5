//! What metrics and people see of a partition: read when it is asked for, so that nothing is counted twice.

use super::{Ailment, Overload, Partition};
use crate::affinity::outcome::Counters;
use crate::affinity::{Outcome, Table};
use crate::ids::WorkerId;
use crate::load::Load;
use crate::load::report::Reported;
use crate::time::Time;

/// What a partition counts, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions bound.
    pub bindings: usize,
    /// Leases and bound holds.
    pub leases: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests placed and not ended.
    pub bookings: usize,
    /// What happened in the table.
    pub table: Counters,
    /// Requests by what happened to their session, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::COUNT],
}

/// One worker's part in a partition, as the admin API shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoad {
    /// What it has to do.
    pub load: Load,
    /// What other routers have, as they say.
    pub peers: Load,
    /// Sessions that live there.
    pub bindings: u32,
    /// It counts as overloaded, as of the last time that the partition was told.
    pub shed: bool,
    /// Until when, where it has said so itself.
    pub shed_until: Option<Time>,
    /// Why, where it has too much to do.
    pub overload: Overload,
    /// What comes back from it, where that is not what should.
    pub ailment: Option<Ailment>,
    /// What its engine has reported lately.
    pub reported: Option<Reported>,
}

impl Partition {
    /// A worker's part.
    #[must_use]
    pub fn worker_load(&self, worker: WorkerId) -> WorkerLoad {
        let ranks = self.row(worker).map(|row| row.ranks).unwrap_or_default();
        WorkerLoad {
            load: ranks.iter().map(|rank| self.ledger.of(worker, rank)).sum(),
            peers: ranks.iter().map(|rank| self.peers.of(worker, rank)).sum(),
            bindings: self.table.as_ref().map_or(0, |t| t.bindings_of(worker)),
            shed: self.shed_until(Some(worker)).is_some() || !self.detector.of(worker).is_none(),
            shed_until: self.shed_until(Some(worker)),
            overload: self.detector.of(worker),
            ailment: self.vitals.of(worker),
            reported: self.reports.of(worker),
        }
    }

    /// The sessions, if sessions are kept at all.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// What it counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let table = self.table.as_ref();
        Stats {
            bindings: table.map_or(0, Table::bindings),
            leases: table.map_or(0, Table::leases),
            waiting: self.lines.len(),
            bookings: self.ledger.bookings(),
            table: table.map(Table::counters).unwrap_or_default(),
            outcomes: self.outcomes,
        }
    }
}
