//! What becomes of a request that its worker has begun to answer: its load goes down as it comes on, and
//! what its engine says of it is held against what was predicted.

use super::Partition;
use super::vitals::Vitals;
use crate::affinity::Lease;
use crate::ask::{Grant, Live, Step};
use crate::blame::Reuse;
use crate::explain::record::{Report, Stage};
use crate::explain::ring::Slot;
use crate::ids::{DpRank, NameId, WorkerId};
use crate::load::{Booking, Pace};
use crate::time::Time;
use crate::trust::{Counters, Forecast, Shape, TrustView, Turn};
use std::sync::atomic::{AtomicBool, Ordering};

impl Partition {
    pub(super) fn begin(
        &mut self,
        booking: Booking,
        lease: Option<Lease>,
        forecast: Forecast,
        record: Option<Slot>,
    ) -> Live {
        self.trust.began(&forecast);
        let (told, report) = (AtomicBool::new(false), Report::default());
        Live { partition: self.id, booking, lease, forecast, told, record, report }
    }

    /// A dispatch goes out: how long it, and those before it, may take to answer.
    pub(super) fn sent(&mut self, now: Time, grant: &Grant) {
        let (worker, pace) = (grant.worker.id, self.paces.of(grant.worker.id));
        let load = self.load_of(worker, grant.rank);
        let expected = f64::from(pace.base) + pace.queue_ms(now, &load);
        let token = grant.ask.whole.then(|| pace.step_ms(&load, 0));
        self.vitals.sent(now, worker, Vitals::patience(expected, token));
    }

    /// A dispatch came to nothing, by a fault of its worker.
    pub(super) fn came_to_nothing(&mut self, now: Time, worker: WorkerId, tries: bool) {
        if tries {
            self.vitals.tried(now, worker);
        }
        if self.vitals.fault(now, worker, false) {
            self.is_unwell();
        }
    }

    /// It has answered, in whichever way.
    pub(super) fn is_alive(&mut self, now: Time, worker: WorkerId) {
        if self.vitals.answered(now, worker) {
            self.is_well(worker);
        }
    }

    /// Looks for those of whom nothing comes.
    pub(super) fn look_for_stalls(&mut self, now: Time) {
        if !self.vitals.look(now).is_empty() {
            self.is_unwell();
        }
    }

    /// Somebody counts as Down from now on: who waits for it may wait in vain.
    fn is_unwell(&mut self) {
        self.worker_lost = true;
        self.shake_homes();
        self.wake_all(None);
    }

    pub(super) fn is_well(&mut self, worker: WorkerId) {
        self.wake_all(Some(worker));
    }

    /// A running request has come further. `Some`: its worker's index is not believed any more, or is again.
    pub fn progress(&mut self, now: Time, live: &Live, step: Step) -> Option<Turn> {
        if self.vitals.heard(now, live.forecast.worker) {
            self.is_well(live.forecast.worker);
        }
        match step {
            Step::FirstToken => {
                self.records.first_token(now, live.record);
                let (worker, settled) = self.ledger.first_token(now, &live.booking, true);
                self.loads_changed = true;
                self.note_load(worker, live.forecast.rank);
                self.learn(worker, &settled, None);
                self.eased(worker);
            }
            Step::Answered => {
                let (worker, _) = self.ledger.first_token(now, &live.booking, false);
                self.loads_changed = true;
                self.note_load(worker, live.forecast.rank);
                self.eased(worker);
            }
            Step::Output(n) => {
                let (worker, rank) = (live.forecast.worker, live.forecast.rank);
                let first = self.ledger.output(now, &live.booking, n);
                self.note_load(worker, rank);
                self.learn(worker, first.as_slice(), None);
            }
            Step::Usage(usage) => {
                let forecast = &live.forecast;
                if live.told.swap(true, Ordering::Relaxed) {
                    return None;
                }
                let reuse = self.reuse.entry(forecast.name).or_default();
                *reuse += Reuse::of(forecast, Some(&usage));
                // Whoever has departed is nobody's business any more.
                let known = self.row(forecast.worker).is_some();
                return if known { self.trust.usage(forecast, &usage) } else { None };
            }
        }
        None
    }

    /// A stream has ended, however: frees the booking, releases the lease (R13).
    pub fn finish(&mut self, now: Time, live: Live) {
        // Where the host doesn't say how it ended, nothing speaks against it.
        let well = matches!(live.report.stage, None | Some(Stage::Complete | Stage::Ended));
        let worker = self.end(now, live.booking, live.forecast.rank, well);
        match live.report.stage {
            Some(Stage::WorkerBroke) if self.vitals.fault(now, worker, true) => self.is_unwell(),
            Some(Stage::Complete) if self.vitals.completed(now, worker) => self.is_well(worker),
            _ => {}
        }
        self.vitals.ended(now, worker);
        self.records.finished(now, live.record, live.report);
        if let (Some(table), Some(lease)) = (&mut self.table, live.lease) {
            table.end(now, lease);
        }
        if !live.told.into_inner() {
            *self.reuse.entry(live.forecast.name).or_default() += Reuse::of(&live.forecast, None);
            if self.row(worker).is_some() {
                self.trust.silent(&live.forecast);
            }
        }
        self.wake_all(Some(worker));
        self.debug_check();
    }

    /// How fast a worker is, as far as that is known.
    #[must_use]
    pub fn pace_of(&self, worker: WorkerId) -> Pace {
        self.paces.of(worker)
    }

    /// See [`crate::SelectionCore::wants_counters`].
    #[must_use]
    pub fn wants_counters(&self, worker: WorkerId) -> bool {
        self.trust.wants_counters(worker)
    }

    /// See [`crate::SelectionCore::counted`].
    pub fn counted(&mut self, worker: WorkerId, counters: Counters) -> Vec<Turn> {
        self.trust.counted(worker, counters)
    }

    /// See [`crate::SelectionCore::tokenized`].
    pub fn tokenized(&mut self, worker: WorkerId, shape: Shape, same: bool) {
        if self.row(worker).is_some() {
            self.trust.probed(worker, shape, same);
        }
    }

    /// See [`crate::SelectionCore::uncertain`].
    pub fn uncertain(&mut self, worker: WorkerId, rank: DpRank, uncertain: bool) {
        if self.row(worker).is_some() {
            self.trust.uncertain(worker, rank, uncertain);
        }
    }

    /// How far a worker's part of the index is believed, for each shape of which something is known.
    #[must_use]
    pub fn trust_in(&self, worker: WorkerId) -> Vec<TrustView> {
        self.trust.view(worker)
    }

    /// Prompt tokens by what became of them, and the name that they came under.
    pub fn reuse(&self) -> impl Iterator<Item = (NameId, Reuse)> + '_ {
        self.reuse.iter().map(|(name, reuse)| (*name, *reuse))
    }
}
