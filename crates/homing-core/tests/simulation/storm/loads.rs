//! What workers have to do as the storm knows it: who is booked where, what engines have reported besides, and
//! who is overloaded by that. Plain on purpose: all of it is worked out anew after each thing that happens.

use super::{Storm, one};
use homing_core::dice::{Dice, SplitMix};
use homing_core::fleet::State;
use homing_core::ids::{DpRank, Target, WorkerId};
use homing_core::load::report::Report;
use homing_core::partition::GAP;
use homing_core::settings::OverloadSettings;
use homing_core::time::Time;
use std::collections::BTreeMap;

/// One pool's.
#[derive(Default)]
pub(super) struct Loads {
    /// The latest time that the pool was told.
    told: Time,
    reports: BTreeMap<Target, Said>,
    /// Who is overloaded, by each of the three rules.
    over: BTreeMap<WorkerId, [bool; 3]>,
}

struct Said {
    ends: Time,
    /// Requests that are not ours.
    foreign: u32,
    kv_usage: Option<f64>,
}

/// A worker of the pool.
struct Row {
    id: WorkerId,
    takes_work: bool,
    targets: Vec<Target>,
}

pub(super) fn settings(dice: &mut SplitMix) -> OverloadSettings {
    let mut s = OverloadSettings::default();
    if dice.below(2) > 0 {
        s.active_requests = one(dice, &[0, 0, 1, 2, 4]);
        s.kv_usage = one(dice, &[0.0, 0.0, 0.5, 0.9]);
        s.factor = one(dice, &[0.0, 0.0, 0.5, 1.5, 3.0]);
        s.recover = one(dice, &[0.8, 0.8, 0.0, 0.5, 1.0]);
    }
    s
}

impl Storm {
    /// Requests that are known to be at a target.
    pub(super) fn load(&self, pool: usize, target: Target) -> usize {
        let foreign = self.loads[pool].reports.get(&target).map_or(0, |said| said.foreign);
        self.active(pool, target) + foreign as usize
    }

    pub(super) fn is_over(&self, pool: usize, worker: WorkerId) -> bool {
        self.loads[pool].over.contains_key(&worker)
    }

    pub(super) fn anybody_over(&self, pool: usize) -> bool {
        !self.loads[pool].over.is_empty()
    }

    /// Whether reports still come to their end.
    pub(super) fn anything_reported(&self, pool: usize) -> bool {
        !self.loads[pool].reports.is_empty()
    }

    /// A pool is told what time it is.
    pub(super) fn time_told(&mut self, pool: usize, now: Time) {
        let loads = &mut self.loads[pool];
        loads.told = loads.told.max(now);
        let before = loads.reports.len();
        loads.reports.retain(|_, said| loads.told < said.ends);
        if loads.reports.len() < before {
            // One worker at a time, in order, as it is with whatever else changes.
            self.weigh(pool, None);
        }
    }

    fn rows_without(&self, pool: usize, without: Option<WorkerId>) -> Vec<Row> {
        let mut rows = Vec::new();
        for v in self.core.workers() {
            let here = v.models.first().is_some_and(|m| m.starts_with(super::POOLS[pool]));
            if !here || without == Some(v.info.id) {
                continue;
            }
            let id = v.info.id;
            let down = self.refusing == Some(id);
            let targets = v.ranks.iter().map(|rank| Target { worker: id, rank: Some(rank) });
            let takes_work = v.state == State::Ready && v.drain.is_none() && !down;
            rows.push(Row { id, takes_work, targets: targets.collect() });
        }
        rows
    }

    /// Something has changed there. `without`: as long as that worker was not known yet.
    pub(super) fn weigh(&mut self, pool: usize, without: Option<WorkerId>) {
        let s = self.settings.overload;
        let rows = self.rows_without(pool, without);
        let all: Vec<Target> = rows.iter().flat_map(|r| r.targets.clone()).collect();
        self.loads[pool].reports.retain(|target, _| all.contains(target));
        let sum = |targets: &[Target]| {
            targets.iter().map(|t| self.load(pool, *t)).sum::<usize>() as f64 / targets.len() as f64
        };
        let working: Vec<Target> =
            rows.iter().filter(|r| r.takes_work).flat_map(|r| r.targets.clone()).collect();
        let mean = (s.factor > 0.0 && !working.is_empty()).then(|| sum(&working));
        let mut over = BTreeMap::new();
        for row in &rows {
            let was = self.loads[pool].over.get(&row.id).copied().unwrap_or_default();
            let active = sum(&row.targets);
            let said = |t: &Target| self.loads[pool].reports.get(t)?.kv_usage;
            let usages: Vec<f64> = row.targets.iter().filter_map(said).collect();
            let usage = usages.iter().sum::<f64>() / usages.len() as f64;
            let beyond =
                |was, value: f64, bound: f64| value >= bound || (was && value > s.recover * bound);
            let is = [
                s.active_requests > 0 && beyond(was[0], active, f64::from(s.active_requests)),
                s.kv_usage > 0.0 && !usages.is_empty() && beyond(was[1], usage, s.kv_usage),
                mean.is_some_and(|mean| {
                    let bound = (s.factor * mean).max(mean + GAP);
                    active > bound || (was[2] && active > (s.recover * bound).max(mean))
                }),
            ];
            if is.contains(&true) {
                over.insert(row.id, is);
            }
        }
        self.loads[pool].over = over;
    }

    /// The core has the same verdicts, for the same reasons, and shows the same reports.
    pub(super) fn check_loads(&mut self) {
        let mut seen = Vec::new();
        for v in self.core.workers() {
            let pool =
                usize::from(v.models.first().is_some_and(|m| m.starts_with(super::POOLS[1])));
            let is = self.loads[pool].over.get(&v.info.id).copied().unwrap_or_default();
            let words = ["active_requests", "kv_usage", "factor"];
            let due: Vec<_> = words.into_iter().zip(is).filter(|w| w.1).map(|w| w.0).collect();
            let got: Vec<_> = v.part.overload.words().collect();
            assert_eq!(got, due, "{:?} with {:?}", v.info.id, v.part);
            seen.extend(due);
            let targets = v.ranks.iter().map(|rank| Target { worker: v.info.id, rank: Some(rank) });
            let said = targets.filter_map(|t| self.loads[pool].reports.get(&t));
            let foreign = said.map(|s| s.foreign).reduce(|a, b| a + b);
            assert_eq!(v.part.reported.map(|r| r.foreign), foreign, "{:?}", v.info.id);
        }
        seen.into_iter().for_each(|why| self.saw(format_args!("overloaded: {why}")));
    }

    /// An engine tells what it has to do: anything, of one rank or of all, now and then of none that it has.
    pub(super) fn report(&mut self) {
        let views = self.core.workers();
        let i = self.dice.below(views.len().max(1));
        let Some(v) = views.get(i) else { return };
        let rank = match self.dice.below(3) {
            0 => None,
            _ => Some(DpRank(self.dice.below(4) as u16)),
        };
        let kv_usage = one(&mut self.dice, &[None, Some(0.2), Some(0.6), Some(0.95), Some(7.0)]);
        let [running, waiting] = [0; 2].map(|_| self.dice.below(5) as u32);
        let report = Report { running, waiting, kv_usage };
        let pool = POOLS_OF
            .into_iter()
            .find(|pool| v.models.first().is_some_and(|m| m.starts_with(super::POOLS[*pool])));
        self.log(format_args!("{:?} {rank:?} reports {report:?}", v.info.id));
        self.core.expect_report(v.info.id);
        self.core.handle_report(self.now, v.info.id, rank, report);
        let Some(pool) = pool else { return };
        self.time_told(pool, self.now);
        let here = v.ranks.iter().filter(|r| rank.is_none_or(|rank| rank == *r));
        let here: Vec<_> = here.map(|r| Target { worker: v.info.id, rank: Some(r) }).collect();
        let ours: usize = here.iter().map(|t| self.active(pool, *t)).sum();
        let foreign = (running + waiting).saturating_sub(ours as u32);
        let ends = self.now + self.settings.report_life;
        for (i, target) in (0..).zip(&here) {
            let n = here.len() as u32;
            let foreign = foreign / n + u32::from(i < foreign % n);
            let kv_usage = kv_usage.map(|usage| f64::min(usage, 1.0));
            self.loads[pool].reports.insert(*target, Said { ends, foreign, kv_usage });
        }
        self.weigh(pool, None);
        if foreign > 0 {
            self.saw("reported: others' requests");
        }
    }
}

const POOLS_OF: [usize; 2] = [0, 1];
