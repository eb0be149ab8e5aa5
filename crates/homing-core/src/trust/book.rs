//! The trust of one partition's workers: a record for each worker and shape that was ever checked, gone
//! with the worker.

use super::span::{Counters, Span};
use super::{Forecast, LikelyCause, Record, Shape, Sign, Trust};
use crate::ask::Usage;
use crate::ids::{DpRank, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// How predictions have fared so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Within a block of the truth.
    pub agreed: u64,
    /// The engine had less than predicted.
    pub over: u64,
    /// It had more.
    pub under: u64,
    /// It didn't say.
    pub unknown: u64,
    /// Its prompt had another length than ours, whatever it had.
    pub lengths: u64,
}

/// A worker's trust in one shape, as people see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrustView {
    /// Which one.
    pub shape: Shape,
    /// How far its predictions are believed.
    pub trust: Trust,
    /// How far prediction and truth are apart lately, in parts of the prompt, 0 to 1.
    pub error: f64,
    /// Why, likely; `None` where little is off.
    pub likely_cause: Option<LikelyCause>,
    /// What was compared.
    pub checks: Checks,
}

/// Trust is lost, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// In whom.
    pub worker: WorkerId,
    /// In which shape.
    pub shape: Shape,
    /// Lost; else it is back.
    pub lost: bool,
    /// Why, likely.
    pub likely_cause: Option<LikelyCause>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Book {
    workers: BTreeMap<WorkerId, Page>,
    /// Records that are not trusted in full: while there is none, nobody is looked up.
    doubted: usize,
}

#[derive(Debug, Default)]
struct Page {
    records: [Option<Record>; Shape::COUNT],
    /// Ranks whose index is being learned anew.
    uncertain: BTreeSet<DpRank>,
    /// Requests have ended of which the engine didn't say what it reused.
    silent: bool,
    span: Option<Span>,
}

impl Book {
    /// Whether somebody is not trusted in full.
    pub(crate) fn doubts(&self) -> bool {
        self.doubted > 0
    }

    /// How far what the index says of a worker counts for a request of this shape.
    pub(crate) fn of(&self, worker: WorkerId, shape: Shape) -> Trust {
        if self.doubted == 0 {
            return Trust::FULL;
        }
        let record = self.workers.get(&worker).and_then(|w| w.records[shape as usize].as_ref());
        record.map_or(Trust::FULL, |r| Trust::new(r.trust))
    }

    /// A request has begun.
    pub(crate) fn began(&mut self, forecast: &Forecast) {
        if let Some(Page { span: Some(span), .. }) = self.workers.get_mut(&forecast.worker) {
            span.add(forecast);
        }
    }

    /// The engine has said what a request cost.
    pub(crate) fn usage(&mut self, forecast: &Forecast, usage: &Usage) -> Option<Turn> {
        let page = self.workers.entry(forecast.worker).or_default();
        if usage.cached_tokens.is_some() {
            // Better than any counter.
            (page.silent, page.span) = (false, None);
        } else {
            page.silent |= forecast.block_size > 0;
        }
        if forecast.block_size == 0 {
            // Nothing was predicted.
            return None;
        }
        let uncertain = page.uncertain.contains(&forecast.rank);
        let verdict = forecast.verdict(usage, uncertain);
        self.change(forecast.worker, forecast.shape, |record| {
            let checks = &mut record.checks;
            let counts = match (usage.cached_tokens, verdict.error) {
                (None, _) => &mut checks.unknown,
                // Nothing but what was on its way: whatever came of it agrees.
                (_, Some(0.0)) if verdict.share.is_none() && forecast.cached > forecast.told => {
                    &mut checks.unknown
                }
                (_, Some(0.0)) => &mut checks.agreed,
                (Some(theirs), _) if theirs < u64::from(forecast.told) => &mut checks.over,
                (Some(_), _) => &mut checks.under,
            };
            *counts += 1;
            checks.lengths += u64::from(verdict.sign == Sign::Template);
            record.take(verdict)
        })
    }

    /// A request has ended of which the engine said nothing.
    pub(crate) fn silent(&mut self, forecast: &Forecast) {
        if forecast.block_size > 0 {
            self.workers.entry(forecast.worker).or_default().silent = true;
        }
    }

    /// Whether the worker's counters would tell something that its answers don't.
    pub(crate) fn wants_counters(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|page| page.silent)
    }

    /// What an engine counts now.
    pub(crate) fn counted(&mut self, worker: WorkerId, counters: Counters) -> Vec<Turn> {
        let Some(page) = self.workers.get_mut(&worker) else { return Vec::new() };
        if !std::mem::take(&mut page.silent) {
            return Vec::new();
        }
        let Some(span) = page.span.replace(Span::new(counters)) else { return Vec::new() };
        let uncertain = !page.uncertain.is_empty();
        let Some(verdict) = span.verdict(counters, uncertain) else { return Vec::new() };
        let take = |shape| self.change(worker, shape, |record| record.take(verdict));
        span.shapes().filter_map(take).collect()
    }

    /// The engine has tokenized a probe of this shape as we did, or not.
    pub(crate) fn probed(&mut self, worker: WorkerId, shape: Shape, same: bool) {
        self.change(worker, shape, |record| {
            if same {
                record.differs = false;
            } else {
                record.suspect();
            }
            None
        });
    }

    /// A rank's index is being learned anew, or has been.
    pub(crate) fn uncertain(&mut self, worker: WorkerId, rank: DpRank, uncertain: bool) {
        let ranks = &mut self.workers.entry(worker).or_default().uncertain;
        if uncertain {
            ranks.insert(rank);
        } else {
            ranks.remove(&rank);
        }
    }

    /// The worker has departed.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if let Some(page) = self.workers.remove(&worker) {
            self.doubted -= page.records.iter().flatten().filter(|r| r.trust < 1.0).count();
        }
    }

    /// What people see of a worker.
    pub(crate) fn view(&self, worker: WorkerId) -> Vec<TrustView> {
        let Some(page) = self.workers.get(&worker) else { return Vec::new() };
        let records = Shape::ALL.into_iter().zip(&page.records);
        records
            .filter_map(|(shape, record)| record.as_ref().map(|r| (shape, r)))
            .map(|(shape, r)| TrustView {
                shape,
                trust: Trust::new(r.trust),
                error: r.error,
                likely_cause: r.cause(),
                checks: r.checks,
            })
            .collect()
    }

    fn change(
        &mut self,
        worker: WorkerId,
        shape: Shape,
        change: impl FnOnce(&mut Record) -> Option<bool>,
    ) -> Option<Turn> {
        let page = self.workers.entry(worker).or_default();
        let record = page.records[shape as usize].get_or_insert_default();
        let before = record.trust < 1.0;
        let lost = change(record);
        let after = record.trust < 1.0;
        let likely_cause = record.cause();
        self.doubted = self.doubted + usize::from(after) - usize::from(before);
        lost.map(|lost| Turn { worker, shape, lost, likely_cause })
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self, known: impl Fn(WorkerId) -> bool) {
        assert!(self.workers.keys().all(|w| known(*w)), "trust in a worker that is gone");
        let records = || self.workers.values().flat_map(|page| page.records.iter().flatten());
        let doubted = records().filter(|r| r.trust < 1.0).count();
        assert_eq!(doubted, self.doubted, "records that are not trusted in full");
        assert!(records().all(|r| (super::FLOOR..=1.0).contains(&r.trust)), "trust out of bounds");
    }
}
