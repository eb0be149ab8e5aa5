//! What becomes of a request that its worker has begun to answer: its load goes down as it comes on, and
//! what its engine says of it is held against what was predicted.

use super::Partition;
use crate::affinity::Lease;
use crate::ask::{Live, Step};
use crate::blame::Reuse;
use crate::ids::{DpRank, NameId, WorkerId};
use crate::load::pace::Learned;
use crate::load::{Booking, Pace};
use crate::time::Time;
use crate::trust::{Counters, Forecast, Shape, TrustView, Turn};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a longer answer counts as: one that never ends says nothing about others.
const LONG_ANSWER: f64 = 4096.0;

impl Partition {
    pub(super) fn begin(
        &mut self,
        booking: Booking,
        lease: Option<Lease>,
        forecast: Forecast,
    ) -> Live {
        self.trust.began(&forecast);
        Live { partition: self.id, booking, lease, forecast, told: AtomicBool::new(false) }
    }

    /// A running request has come further. `Some`: its worker's index is not believed any more, or is again.
    pub fn progress(&mut self, now: Time, live: &Live, step: Step) -> Option<Turn> {
        match step {
            Step::FirstToken => {
                if let Some((worker, seen)) = self.ledger.first_token(now, &live.booking, true) {
                    self.learn(worker, |it| it.prefilled(&seen));
                }
                self.eased(live.forecast.worker);
            }
            Step::Answered => {
                let _ = self.ledger.first_token(now, &live.booking, false);
                self.eased(live.forecast.worker);
            }
            Step::Output(n) => self.ledger.output(now, &live.booking, n),
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
        let (worker, decoded) = self.free(now, live.booking, live.forecast.rank);
        if let Some(seen) = decoded {
            self.learn(worker, |it| it.decoded(&seen));
            let tokens = seen.tokens.min(LONG_ANSWER) as f32;
            self.answer += (tokens - self.answer) / 64.0;
        }
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

    /// A worker has shown how fast it is: for itself, and for those of whom less is known.
    fn learn(&mut self, worker: WorkerId, learn: impl Fn(&mut Learned)) {
        learn(&mut self.pool_pace);
        let pool = self.pool_pace.pace();
        let at = match self.paces.binary_search_by_key(&worker, |(w, _)| *w) {
            Ok(at) => at,
            // Whoever has departed is nobody's business any more.
            Err(_) if self.row(worker).is_none() => return,
            Err(at) => {
                self.paces.insert(at, (worker, Learned::from(pool)));
                at
            }
        };
        learn(&mut self.paces[at].1);
    }

    /// How fast a worker is, as far as that is known.
    #[must_use]
    pub fn pace_of(&self, worker: WorkerId) -> Pace {
        let known = self.paces.binary_search_by_key(&worker, |(w, _)| *w);
        known.map_or(self.pool_pace.pace(), |at| self.paces[at].1.pace())
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
