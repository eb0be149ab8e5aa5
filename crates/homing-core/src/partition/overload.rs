//! The overload detector: which workers have so much to do that new work had better go elsewhere.
//!
//! Three rules, each by itself and each with two bounds: a worker is overloaded from the upper one on, and no
//! longer at the lower one (`recover` times the upper), so that the verdict doesn't flap. It is looked at
//! whenever something has changed that it depends on: a booking, a report, time, the fleet. So it is always
//! cleared again (F35): a worker that gets no new work has less to do with each request that ends, and a report
//! that nobody renews ends by itself.
//!
//! Load against the pool's mean says nothing while there is little of it: one request is more than none
//! (F17). So it must be [`GAP`] requests beyond the mean, too.

use super::Partition;
use crate::fleet::{Row, State};
use crate::ids::WorkerId;
use crate::settings::OverloadSettings;
use smallvec::SmallVec;

/// How many requests a rank a worker must be beyond the pool's mean, however many times that is.
pub const GAP: f64 = 4.0;

/// Why a worker is overloaded; several reasons may hold at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overload(u8);

impl Overload {
    /// It has too many active requests.
    pub const REQUESTS: Self = Self(1);
    /// Its KV memory is too full.
    pub const KV_USAGE: Self = Self(2);
    /// It has far more to do than the others.
    pub const FACTOR: Self = Self(4);

    const WORDS: [(Self, &'static str); 3] = [
        (Self::REQUESTS, "active_requests"),
        (Self::KV_USAGE, "kv_usage"),
        (Self::FACTOR, "factor"),
    ];

    /// Whether there is none.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    fn has(self, reason: Self) -> bool {
        self.0 & reason.0 != 0
    }

    fn add(&mut self, reason: Self, holds: bool) {
        self.0 |= if holds { reason.0 } else { 0 };
    }

    /// The reasons, as the settings call them.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().filter(move |(reason, _)| self.has(*reason)).map(|(_, word)| word)
    }
}

/// Who is overloaded, and why.
#[derive(Debug)]
pub(super) struct Detector {
    settings: OverloadSettings,
    /// In the order of ids; none of them without a reason.
    over: Vec<(WorkerId, Overload)>,
}

impl Detector {
    pub(super) fn new(settings: OverloadSettings) -> Self {
        Self { settings, over: Vec::new() }
    }

    /// Other rules hold from now on; with none, nobody is overloaded.
    pub(super) fn set_rules(&mut self, settings: OverloadSettings) {
        self.settings = settings;
        if self.is_off() {
            self.over.clear();
        }
    }

    fn is_off(&self) -> bool {
        let s = &self.settings;
        s.active_requests == 0 && s.kv_usage <= 0.0 && s.factor <= 0.0
    }

    pub(super) fn any(&self) -> bool {
        !self.over.is_empty()
    }

    pub(super) fn of(&self, worker: WorkerId) -> Overload {
        let found = self.over.binary_search_by_key(&worker, |(w, _)| *w);
        found.map_or(Overload::default(), |i| self.over[i].1)
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> {
        self.over.iter().map(|(worker, _)| *worker)
    }

    fn set(&mut self, worker: WorkerId, now: Overload) {
        match self.over.binary_search_by_key(&worker, |(w, _)| *w) {
            Ok(i) if now.is_none() => _ = self.over.remove(i),
            Ok(i) => self.over[i].1 = now,
            Err(i) if !now.is_none() => self.over.insert(i, (worker, now)),
            Err(_) => {}
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.set(worker, Overload::default());
    }

    /// How a worker stands with so much to do, in a pool with this mean.
    fn judge(&self, was: Overload, has: Has, mean: Option<f64>) -> Overload {
        let s = &self.settings;
        let mut is = Overload::default();
        let beyond = |reason, value: f64, bound: f64| match was.has(reason) {
            true => value > s.recover * bound || value >= bound,
            false => value >= bound,
        };
        if s.active_requests > 0 {
            let bound = f64::from(s.active_requests);
            is.add(Overload::REQUESTS, beyond(Overload::REQUESTS, has.active, bound));
        }
        if let Some(usage) = has.kv_usage.filter(|_| s.kv_usage > 0.0) {
            is.add(Overload::KV_USAGE, beyond(Overload::KV_USAGE, usage, s.kv_usage));
        }
        if let Some(mean) = mean {
            let bound = self.relative(mean);
            let lower = self.relative_recovered(mean);
            let holds = has.active > if was.has(Overload::FACTOR) { lower } else { bound };
            is.add(Overload::FACTOR, holds);
        }
        is
    }

    /// More active requests than so many are too many in a pool with this mean.
    fn relative(&self, mean: f64) -> f64 {
        (self.settings.factor * mean).max(mean + GAP)
    }

    /// And so many are no longer: whoever has as much to do as all the others never is overloaded.
    fn relative_recovered(&self, mean: f64) -> f64 {
        (self.settings.recover * self.relative(mean)).max(mean)
    }

    /// How many requests a rank must end before an overloaded worker is so no longer; `None` where that is
    /// not a matter of requests.
    fn excess(&self, over: Overload, active: f64, mean: Option<f64>) -> Option<f64> {
        let s = &self.settings;
        let requests =
            over.has(Overload::REQUESTS).then(|| s.recover * f64::from(s.active_requests));
        let factor =
            mean.filter(|_| over.has(Overload::FACTOR)).map(|m| self.relative_recovered(m));
        let bounds = requests.into_iter().chain(factor);
        bounds.map(|bound| active - bound).reduce(f64::max)
    }
}

/// What the rules look at.
#[derive(Clone, Copy, Debug)]
struct Has {
    /// Active requests, the mean of its ranks.
    active: f64,
    kv_usage: Option<f64>,
}

impl Partition {
    /// What changes a verdict has changed: at this worker, or everywhere. Wakes those who waited for what is
    /// over.
    pub(super) fn reassess(&mut self, worker: Option<WorkerId>) {
        if self.detector.is_off() {
            return;
        }
        let mean = self.mean();
        let mut changed: SmallVec<[(WorkerId, Overload); 4]> = SmallVec::new();
        let mut recovered: SmallVec<[WorkerId; 4]> = SmallVec::new();
        // Who is measured against the mean may change with anybody's load.
        let one = worker.filter(|_| self.detector.settings.factor <= 0.0);
        for row in self.rows.iter().filter(|row| one.is_none_or(|one| one == row.info.id)) {
            let id = row.info.id;
            let was = self.detector.of(id);
            let is = self.detector.judge(was, self.has(row), mean);
            if was != is {
                changed.push((id, is));
                recovered.extend(Some(id).filter(|_| is.is_none()));
            }
        }
        changed.into_iter().for_each(|(id, is)| self.detector.set(id, is));
        recovered.into_iter().for_each(|id| self.wake_all(Some(id)));
    }

    fn has(&self, row: &Row) -> Has {
        let id = row.info.id;
        let active = row.ranks.iter().map(|rank| u64::from(self.load_of(id, rank).active_requests));
        let asks = self.detector.settings.kv_usage > 0.0;
        let said = if asks { self.reports.of(id) } else { None };
        let kv_usage = said.and_then(|said| said.report.kv_usage);
        Has { active: active.sum::<u64>() as f64 / f64::from(row.ranks.count()), kv_usage }
    }

    /// Active requests of a rank, the mean of those that take new work; `None` where nobody is measured
    /// against it.
    fn mean(&self) -> Option<f64> {
        if self.detector.settings.factor <= 0.0 {
            return None;
        }
        let (mut sum, mut ranks) = (0u64, 0u32);
        for row in self.rows.iter().filter(|r| r.state == State::Ready && r.drain.is_none()) {
            let id = row.info.id;
            ranks += u32::from(row.ranks.count());
            let active = |rank| u64::from(self.load_of(id, rank).active_requests);
            sum += row.ranks.iter().map(active).sum::<u64>();
        }
        (ranks > 0).then(|| sum as f64 / f64::from(ranks))
    }

    /// How many requests of the whole pool end until this worker has recovered, if all go on alike.
    pub(super) fn ends_before_recovery(&self, worker: WorkerId) -> Option<f64> {
        let over = self.detector.of(worker);
        let row = self.row(worker).filter(|_| !over.is_none())?;
        let excess = self.detector.excess(over, self.has(row).active, self.mean())?;
        let busy = self.rows.iter().filter(|row| row.state == State::Ready);
        let ranks: u32 = busy.map(|row| u32::from(row.ranks.count())).sum();
        Some(excess.max(0.0).ceil().max(1.0) * f64::from(ranks.max(1)))
    }

    /// Every verdict is what the rules say, or would be kept by them.
    ///
    /// # Panics
    /// When one is not.
    pub(super) fn check_overload(&self) {
        let over = &self.detector.over;
        assert!(over.is_sorted_by_key(|(worker, _)| *worker), "overloaded out of order");
        assert!(over.iter().all(|(w, _)| self.row(*w).is_some()), "nobody is overloaded");
        let mean = self.mean();
        for row in &self.rows {
            let was = self.detector.of(row.info.id);
            let is = self.detector.judge(was, self.has(row), mean);
            assert_eq!(was, is, "a verdict that nobody has looked at since: {:?}", row.info.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector(settings: OverloadSettings) -> Detector {
        Detector::new(settings)
    }

    /// The verdicts on one worker, one after the other.
    fn verdicts(d: &Detector, course: &[(f64, Option<f64>, Option<f64>)]) -> Vec<u8> {
        let mut was = Overload::default();
        let mut all = Vec::new();
        for (active, kv_usage, mean) in course {
            was = d.judge(was, Has { active: *active, kv_usage: *kv_usage }, *mean);
            all.push(was.0);
        }
        all
    }

    #[test]
    fn f35_each_rule_has_two_bounds() {
        let d = detector(OverloadSettings { active_requests: 10, ..OverloadSettings::default() });
        let course = [9.0, 10.0, 9.0, 8.5, 8.0, 9.0, 10.0, 0.0].map(|n| (n, None, None));
        assert_eq!(verdicts(&d, &course), [0, 1, 1, 1, 0, 0, 1, 0]);

        let d = detector(OverloadSettings { kv_usage: 0.9, ..OverloadSettings::default() });
        let usage = [Some(0.89), Some(0.9), Some(0.8), Some(0.72), Some(1.0), None, Some(0.8)];
        assert_eq!(verdicts(&d, &usage.map(|u| (0.0, u, None))), [0, 2, 2, 0, 2, 0, 0]);
    }

    #[test]
    fn each_rule_recovers_by_itself() {
        let both = OverloadSettings { active_requests: 10, kv_usage: 0.9, ..Default::default() };
        // Nine requests are nothing of which it has to recover.
        let course = [(9.0, Some(0.95), None), (9.0, Some(0.5), None), (10.0, Some(0.95), None)];
        assert_eq!(verdicts(&detector(both), &course), [2, 0, 3]);
    }

    #[test]
    fn whatever_recover_is_nothing_to_do_is_no_overload() {
        for recover in [0.0, 0.5, 1.0] {
            let all = OverloadSettings { active_requests: 1, kv_usage: 1e-9, factor: 0.1, recover };
            let d = detector(all);
            let course = [(9.0, Some(1.0), Some(1.0)), (0.0, Some(0.0), Some(0.0))];
            assert_eq!(verdicts(&d, &course), [7, 0], "{recover}");
            let steady = [(1.0, Some(1e-9), Some(0.0)); 2];
            assert_eq!(verdicts(&d, &steady)[1] & 3, 3, "at a bound it is overloaded");
        }
    }

    #[test]
    fn f17_against_the_mean_only_beyond_a_gap() {
        let d = detector(OverloadSettings { factor: 2.0, ..OverloadSettings::default() });
        let course = [
            // One against none, and as many as the gap.
            (1.0, None, Some(0.5)),
            (GAP, None, Some(0.0)),
            (GAP + 1.0, None, Some(0.0)),
            // From here on the mean decides: up to twice as much, and 0.8 of that.
            (40.0, None, Some(20.0)),
            (33.0, None, Some(20.0)),
            (32.0, None, Some(20.0)),
            (40.0, None, Some(20.0)),
            (41.0, None, Some(20.0)),
        ];
        assert_eq!(verdicts(&d, &course), [0, 0, 4, 4, 4, 0, 0, 4]);
    }

    #[test]
    fn f16_who_has_as_much_to_do_as_all_the_others_is_not_overloaded() {
        let d = detector(OverloadSettings { factor: 1.1, recover: 0.5, ..Default::default() });
        let course =
            [(200.0, None, Some(100.0)), (101.0, None, Some(100.0)), (100.0, None, Some(100.0))];
        assert_eq!(verdicts(&d, &course), [4, 4, 0]);
    }

    #[test]
    fn reasons_are_the_settings_words() {
        let mut all = Overload::default();
        assert_eq!(all.words().count(), 0);
        for reason in [Overload::FACTOR, Overload::REQUESTS, Overload::KV_USAGE] {
            all.add(reason, true);
        }
        assert_eq!(all.words().collect::<Vec<_>>(), ["active_requests", "kv_usage", "factor"]);
    }
}
