//! What engines say of their own load, and what that shows beyond our bookings: requests of other routers,
//! of clients that ask engines directly, and of clients of ours that have left before their engine noticed.
//!
//! Apart from the ledger, whose sums are of bookings alone: a report adds to the load that a target shows and
//! never takes from it, since our own bookings are newer and better known. It counts for a while and then not
//! any more: an engine that falls silent is judged by our bookings, as if it had never spoken.
//!
//! A page of metrics takes its time to come, and requests of ours may end meanwhile that are still on it. So
//! what ends after the question counts as ours, too.

use super::Load;
use crate::fleet::Ranks;
use crate::ids::{DpRank, WorkerId};
use crate::time::Time;
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What an engine says of one rank, or of all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Requests that it computes.
    pub running: u32,
    /// Requests that it has accepted and not begun.
    pub waiting: u32,
    /// Share of its KV memory that requests occupy, from 0 to 1; `None`: it doesn't say.
    pub kv_usage: Option<f64>,
}

/// What a worker has reported last, over all its ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reported {
    /// What it said. The usage is the mean of its ranks'.
    pub report: Report,
    /// When, for the oldest part of it.
    pub at: Time,
    /// Requests in it that are not ours.
    pub foreign: u32,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    report: Report,
    at: Time,
}

/// What a request weighs of which only a report tells: as the mean of ours, past its first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usual {
    /// Tokens of its prompt,
    pub(crate) tokens: u64,
    /// and KV blocks.
    pub(crate) blocks: u64,
}

impl Usual {
    /// Another one has been placed: the mean follows the last few; the first one is all that is known.
    pub(crate) fn add(&mut self, tokens: u64, blocks: u64) {
        if self.tokens == 0 {
            *self = Self { tokens, blocks };
        } else {
            self.tokens = (self.tokens * 7 + tokens) / 8;
            self.blocks = (self.blocks * 7 + blocks) / 8;
        }
    }

    fn times(self, n: u32) -> Load {
        Load {
            active_requests: n,
            decoding: n,
            blocks: self.blocks.saturating_mul(u64::from(n)),
            context: self.tokens.saturating_mul(u64::from(n)),
            ..Load::default()
        }
    }
}

/// The reports of one partition's workers.
#[derive(Debug)]
pub(crate) struct Reports {
    /// For how long one counts.
    life: Duration,
    known: BTreeMap<(WorkerId, DpRank), Known>,
    /// What they show beyond our bookings, where that is anything: every candidate of every request is looked up
    /// here.
    foreign: HashMap<(WorkerId, DpRank), Load, FixedState>,
    /// Requests of ours that have ended since their worker was asked.
    asked: BTreeMap<(WorkerId, DpRank), u32>,
    /// No report ends before that.
    first_end: Option<Time>,
}

impl Reports {
    pub(crate) fn new(life: Duration) -> Self {
        let (known, foreign, asked) = Default::default();
        Self { life, known, foreign, asked, first_end: None }
    }

    /// Its engine is about to be asked.
    pub(crate) fn ask(&mut self, worker: WorkerId, ranks: Ranks) {
        self.asked.extend(ranks.iter().map(|rank| ((worker, rank), 0)));
    }

    /// A request of ours has ended there.
    pub(crate) fn ended(&mut self, worker: WorkerId, rank: DpRank) {
        if let Some(n) = self.asked.get_mut(&(worker, rank)) {
            *n = n.saturating_add(1);
        }
    }

    /// An engine's report of these ranks: each has its part of it. `ours` says what is booked on one, and a
    /// request that is not ours weighs as a `usual` one. True if a target shows less load than before.
    pub(crate) fn hear(
        &mut self,
        now: Time,
        worker: WorkerId,
        ranks: &[DpRank],
        report: Report,
        usual: Usual,
        ours: impl Fn(DpRank) -> u32,
    ) -> bool {
        let n = u32::try_from(ranks.len()).unwrap_or(u32::MAX).max(1);
        // What can't be divided goes to the first ones.
        let part = |all: u32, i: u32| all / n + u32::from(i < all % n);
        let own = ranks.iter().fold(0u32, |own, rank| {
            let ended = self.asked.remove(&(worker, *rank)).unwrap_or(0);
            own.saturating_add(ours(*rank)).saturating_add(ended)
        });
        let foreign = report.running.saturating_add(report.waiting).saturating_sub(own);
        let kv_usage = report.kv_usage.filter(|usage| usage.is_finite()).map(|u| u.clamp(0.0, 1.0));
        let mut eased = false;
        for (i, rank) in (0..).zip(ranks) {
            let at = (worker, *rank);
            let active_requests = part(foreign, i);
            eased |= self.foreign(worker, *rank).active_requests > active_requests;
            if active_requests > 0 {
                self.foreign.insert(at, usual.times(active_requests));
            } else {
                self.foreign.remove(&at);
            }
            let (running, waiting) = (part(report.running, i), part(report.waiting, i));
            let report = Report { running, waiting, kv_usage };
            self.known.insert(at, Known { report, at: now });
        }
        let end = now + self.life;
        self.first_end = Some(self.first_end.map_or(end, |first| first.min(end)));
        eased
    }

    /// What a target has to do besides our bookings, as far as it is known.
    pub(crate) fn foreign(&self, worker: WorkerId, rank: DpRank) -> Load {
        if self.foreign.is_empty() {
            return Load::default();
        }
        self.foreign.get(&(worker, rank)).copied().unwrap_or_default()
    }

    /// What a worker has reported, where that still counts.
    pub(crate) fn of(&self, worker: WorkerId) -> Option<Reported> {
        let mut all: Option<Reported> = None;
        let (mut usage, mut told) = (0.0, 0.0);
        for (at, known) in self.known.range((worker, DpRank(0))..=(worker, DpRank(u16::MAX))) {
            let report = known.report;
            let foreign = self.foreign(at.0, at.1).active_requests;
            let sum =
                all.get_or_insert(Reported { report: Report::default(), at: known.at, foreign: 0 });
            sum.report.running = sum.report.running.saturating_add(report.running);
            sum.report.waiting = sum.report.waiting.saturating_add(report.waiting);
            sum.foreign = sum.foreign.saturating_add(foreign);
            sum.at = sum.at.min(known.at);
            if let Some(u) = known.report.kv_usage {
                (usage, told) = (usage + u, told + 1.0);
            }
        }
        let mut all = all?;
        all.report.kv_usage = (told > 0.0).then(|| usage / told);
        Some(all)
    }

    /// When the first report ends, or earlier.
    pub(crate) fn first_end(&self) -> Option<Time> {
        self.first_end
    }

    /// Reports end; whose.
    pub(crate) fn expire(&mut self, now: Time) -> SmallVec<[WorkerId; 4]> {
        let mut whose = SmallVec::new();
        if self.first_end.is_none_or(|end| now < end) {
            return whose;
        }
        let (life, foreign) = (self.life, &mut self.foreign);
        self.known.retain(|at, known| {
            let counts = now < known.at + life;
            if !counts {
                foreign.remove(at);
                if whose.last() != Some(&at.0) {
                    whose.push(at.0);
                }
            }
            counts
        });
        self.first_end = self.known.values().map(|known| known.at + life).min();
        whose
    }

    /// A worker has these ranks now, or none.
    pub(crate) fn keep(&mut self, worker: WorkerId, ranks: Option<Ranks>) {
        let stays =
            |at: &(WorkerId, DpRank)| at.0 != worker || ranks.is_some_and(|ranks| ranks.has(at.1));
        self.known.retain(|at, _| stays(at));
        self.foreign.retain(|at, _| stays(at));
        self.asked.retain(|at, _| stays(at));
        if self.known.is_empty() {
            self.first_end = None;
        }
    }

    /// Invariants, given who has which ranks.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self, has: impl Fn(WorkerId, DpRank) -> bool) {
        let all = self.known.keys().chain(self.asked.keys());
        all.for_each(|(worker, rank)| assert!(has(*worker, *rank), "a report of nobody"));
        assert!(self.foreign.keys().all(|at| self.known.contains_key(at)), "load without a report");
        assert!(self.foreign.values().all(|load| load.active_requests > 0), "load that is none");
        let ends = self.known.values().map(|known| known.at + self.life).min();
        assert_eq!(ends.is_some(), self.first_end.is_some(), "reports without an end");
        assert!(ends >= self.first_end, "a report that has ended and counts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId(3);
    const LIFE: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn said(running: u32, waiting: u32) -> Report {
        Report { running, waiting, kv_usage: Some(0.5) }
    }

    fn of(blocks: u64) -> Usual {
        Usual { tokens: 16 * blocks, blocks }
    }

    fn ranks(n: u16) -> Vec<DpRank> {
        (0..n).map(DpRank).collect()
    }

    fn active(reports: &Reports, n: u16) -> Vec<u32> {
        ranks(n).iter().map(|rank| reports.foreign(W, *rank).active_requests).collect()
    }

    #[test]
    fn only_what_is_beyond_our_bookings_counts_and_never_less_than_nothing() {
        let mut reports = Reports::new(LIFE);
        for (ours, foreign) in [(0, 5), (2, 3), (5, 0), (9, 0)] {
            reports.hear(at(1), W, &ranks(1), said(4, 1), of(7), |_| ours);
            let load = reports.foreign(W, DpRank(0));
            assert_eq!((load.active_requests, load.blocks), (foreign, 7 * u64::from(foreign)));
            assert_eq!((load.decoding, load.context), (foreign, 16 * load.blocks));
            assert_eq!(load.prefill_tokens, 0);
        }
        let other = reports.foreign(WorkerId(4), DpRank(0));
        assert_eq!(other, Load::default());
    }

    #[test]
    fn what_ended_since_the_question_may_still_be_on_the_page() {
        let mut reports = Reports::new(LIFE);
        reports.ended(W, DpRank(0));
        reports.ask(W, Ranks::new(0, 1));
        (0..3).for_each(|_| reports.ended(W, DpRank(0)));
        reports.hear(at(1), W, &ranks(1), said(5, 0), of(0), |_| 1);
        assert_eq!(active(&reports, 1), [1]);
        // The next page comes by itself.
        reports.hear(at(2), W, &ranks(1), said(5, 0), of(0), |_| 1);
        assert_eq!(active(&reports, 1), [4]);
    }

    #[test]
    fn a_report_of_all_ranks_is_shared_among_them() {
        let mut reports = Reports::new(LIFE);
        reports.hear(at(1), W, &ranks(3), said(6, 5), of(1), |rank| u32::from(rank.0));
        assert_eq!(active(&reports, 3), [3, 3, 2]);
        let all = reports.of(W).unwrap();
        assert_eq!((all.report, all.at, all.foreign), (said(6, 5), at(1), 8));
        // One by one, it is the sum, as of the oldest, and the mean of what they use.
        let full = Report { kv_usage: Some(1.0), ..said(1, 0) };
        reports.hear(at(2), W, &[DpRank(2)], full, of(1), |_| 0);
        let all = reports.of(W).unwrap();
        assert_eq!((all.report.running, all.report.waiting, all.at), (5, 4, at(1)));
        assert!((all.report.kv_usage.unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn f35_a_report_ends() {
        let mut reports = Reports::new(LIFE);
        assert_eq!((reports.first_end(), reports.expire(at(99)).len()), (None, 0));
        reports.hear(at(1), W, &[DpRank(0)], said(2, 0), of(0), |_| 0);
        reports.hear(at(5), W, &[DpRank(1)], said(2, 0), of(0), |_| 0);
        assert_eq!(reports.first_end(), Some(at(16)));
        assert!(reports.expire(at(15)).is_empty());
        assert_eq!(reports.expire(at(16)).as_slice(), [W]);
        assert_eq!(active(&reports, 2), [0, 2]);
        reports.check(|_, rank| rank == DpRank(1));
        assert_eq!((reports.expire(at(99)).as_slice(), reports.first_end()), (&[W][..], None));
        assert_eq!(reports.of(W), None);
    }

    #[test]
    fn what_has_departed_has_no_report() {
        let mut reports = Reports::new(LIFE);
        reports.ask(W, Ranks::new(0, 3));
        reports.hear(at(1), W, &ranks(2), said(2, 0), of(0), |_| 0);
        reports.keep(W, Some(Ranks::new(1, 1)));
        reports.check(|_, rank| rank == DpRank(1));
        assert_eq!(active(&reports, 3), [0, 1, 0]);
        reports.keep(W, None);
        reports.check(|_, _| false);
    }

    #[test]
    fn f57_usage_that_is_no_share_is_none() {
        let mut reports = Reports::new(LIFE);
        for (said, is) in
            [(f64::NAN, None), (f64::INFINITY, None), (-3.0, Some(0.0)), (1e9, Some(1.0))]
        {
            let report = Report { kv_usage: Some(said), ..Report::default() };
            reports.hear(at(1), W, &ranks(1), report, of(0), |_| 0);
            assert_eq!(reports.of(W).unwrap().report.kv_usage, is, "{said}");
        }
    }

    #[test]
    fn it_says_whether_there_is_less_to_do_than_before() {
        let mut reports = Reports::new(LIFE);
        let mut hear = |n| reports.hear(at(1), W, &ranks(1), said(n, 0), of(0), |_| 0);
        let _first = hear(3);
        assert_eq!([hear(3), hear(4), hear(2)], [false, false, true]);
    }
}
