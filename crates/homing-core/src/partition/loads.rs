//! What targets have to do: our bookings, those of other routers, and what engines report beyond them. Whatever changes it goes through
//! here, so that verdicts on overload, the turnover and those who wait hear of it.

use super::Partition;
use crate::ask::Cause;
use crate::ids::{DpRank, WorkerId};
use crate::load::pace::{Decoded, Prefilled};
use crate::load::report::Report;
use crate::load::{Booking, Freed, Load, PeerLoad, block_of};
use crate::select::Demand;
use crate::time::Time;
use smallvec::SmallVec;
use std::time::Duration;

/// When to come again where nobody says.
const USUAL_RETRY: Duration = Duration::from_secs(1);
/// When to come again at the latest, where it is a guess: a quarter more is a minute, and hosts spread clients
/// over that.
const LONGEST_GUESS: Duration = Duration::from_secs(48);

impl Partition {
    /// What a target has to do: never less than is booked on it.
    pub(super) fn load_of(&self, worker: WorkerId, rank: DpRank) -> Load {
        let (ours, peers) = (self.ledger.of(worker, rank), self.peers.of(worker, rank));
        [ours, peers, self.reports.foreign(worker, rank)].into_iter().sum()
    }

    /// A request has been booked.
    pub(super) fn booked(&mut self, worker: WorkerId, demand: &Demand) {
        let blocks = demand.tokens.div_ceil(block_of(demand.unit));
        self.usual.add(u64::from(demand.tokens), u64::from(blocks));
        self.loads_changed = true;
        self.reassess(Some(worker));
    }

    /// A booking ends before its request was answered; whom it was on.
    pub(super) fn free(&mut self, now: Time, booking: Booking, rank: DpRank) -> WorkerId {
        self.end(now, booking, rank, false)
    }

    /// A booking ends, for whatever reason; whom it was on. `well`: what it took says how fast its worker is.
    pub(super) fn end(
        &mut self,
        now: Time,
        booking: Booking,
        rank: DpRank,
        well: bool,
    ) -> WorkerId {
        self.note_time(now);
        let Freed { worker, decoded, settled } = self.ledger.free(now, booking, well);
        self.loads_changed = true;
        self.note_load(worker, rank);
        self.learn(worker, &settled, decoded.as_ref());
        self.reports.ended(worker, rank);
        self.turnover
            .ended(now, self.lines.len() > 0 || self.detector.any() || !self.shed.is_empty());
        self.reassess(Some(worker));
        worker
    }

    /// How long things took at a worker.
    pub(super) fn learn(&mut self, worker: WorkerId, first: &[Prefilled], each: Option<&Decoded>) {
        if first.is_empty() && each.is_none() {
            return;
        }
        let (known, faded) = (self.row(worker).is_some(), self.paces.faded());
        first.iter().for_each(|seen| self.paces.prefilled(worker, known, seen));
        each.into_iter().for_each(|seen| self.paces.decoded(worker, known, seen));
        if known {
            self.board.set_pace(worker, self.paces.of(worker));
        }
        if faded != self.paces.faded() {
            self.board.set_paces(|worker| self.paces.of(worker));
        }
    }

    /// A prompt has been computed: where that makes a worker busy, it may be so no longer.
    pub(super) fn eased(&mut self, worker: WorkerId) {
        if self.settings.queue.busy_prefill_tokens > 0 {
            self.wake_all(Some(worker));
        }
    }

    /// See [`crate::SelectionCore::expect_report`].
    pub fn expect_report(&mut self, worker: WorkerId) {
        if let Some(ranks) = self.row(worker).map(|row| row.ranks) {
            self.reports.ask(worker, ranks);
        }
    }

    /// See [`crate::SelectionCore::handle_report`].
    pub fn report(&mut self, now: Time, worker: WorkerId, rank: Option<DpRank>, report: Report) {
        self.note_time(now);
        let Some(row) = self.row(worker) else { return };
        let there = row.ranks.iter().filter(|r| rank.is_none_or(|rank| rank == *r));
        let there: SmallVec<[DpRank; 8]> = there.collect();
        if there.is_empty() {
            return;
        }
        let (ledger, peers, usual) = (&self.ledger, &self.peers, self.usual);
        let ours = |rank| {
            let booked = ledger.of(worker, rank).active_requests;
            booked.saturating_add(peers.of(worker, rank).active_requests)
        };
        let eased = self.reports.hear(self.latest, worker, &there, report, usual, ours);
        self.note_loads(worker);
        self.reassess(Some(worker));
        if eased {
            self.wake_all(Some(worker));
        }
        self.debug_check();
    }

    /// See [`crate::SelectionCore::handle_peer_load`].
    pub fn hear_peer(
        &mut self,
        writer: u32,
        worker: WorkerId,
        rank: DpRank,
        load: PeerLoad,
    ) -> bool {
        if !self.row(worker).is_some_and(|row| row.ranks.has(rank)) {
            return false;
        }
        let eased = self.peers.hear(writer, worker, rank, load);
        self.note_load(worker, rank);
        self.reassess(Some(worker));
        if eased {
            self.wake_all(Some(worker));
        }
        self.debug_check();
        true
    }

    /// See [`crate::SelectionCore::forget_peer`].
    pub fn forget_peer(&mut self, writer: u32) {
        for worker in self.peers.forget(writer) {
            self.note_loads(worker);
            self.reassess(Some(worker));
            self.wake_all(Some(worker));
        }
        self.debug_check();
    }

    /// What is booked here on each target that has something to do.
    pub fn own_loads(&self, mut out: impl FnMut(WorkerId, DpRank, PeerLoad)) {
        for row in &self.rows {
            for rank in row.ranks.iter() {
                let load = PeerLoad::from(self.ledger.of(row.info.id, rank));
                if load != PeerLoad::default() {
                    out(row.info.id, rank, load);
                }
            }
        }
    }

    /// When a refused client may come again; `None`: that is no matter of time, or nobody can say.
    pub(super) fn retry_after(
        &self,
        now: Time,
        cause: Cause,
        at: Option<WorkerId>,
    ) -> Option<Duration> {
        match cause {
            // Whoever waits stands before a newcomer.
            Cause::QueueFull => self.guess(now, self.lines.len() as f64),
            Cause::Overloaded | Cause::TargetOverloaded => {
                let said = self.shed.iter().map(|(worker, _)| *worker);
                let those = said.chain(self.detector.workers());
                let those = those.filter(|worker| at.is_none_or(|at| at == *worker));
                let first = those.map(|worker| self.recovers_after(now, worker)).min();
                Some(first.unwrap_or(USUAL_RETRY))
            }
            _ => None,
        }
    }

    /// How long it may take until so many more have ended.
    fn guess(&self, now: Time, ends: f64) -> Option<Duration> {
        self.turnover.takes(now, ends).map(|takes| takes.min(LONGEST_GUESS))
    }

    /// How long an overloaded worker is likely to stay so.
    fn recovers_after(&self, now: Time, worker: WorkerId) -> Duration {
        let said = self.shed_until(Some(worker)).map(|until| until.since(now));
        let ends = self.ends_before_recovery(worker);
        let works = ends.and_then(|ends| self.guess(now, ends));
        // Of memory that is too full only the next reports tell.
        let works = works.or_else(|| (!self.detector.of(worker).is_none()).then_some(USUAL_RETRY));
        said.max(works).unwrap_or(USUAL_RETRY)
    }
}
