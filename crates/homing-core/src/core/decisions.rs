//! The records of decisions, as people read them: with names, and page by page, so that no request waits for
//! more than one of them.

use super::{Cell, SelectionCore};
use crate::explain::Record;
use crate::explain::record::{Awaited, Names, Weighed};
use crate::ids::{Role, WorkerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A record, and whom and what it is about.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What was kept.
    pub record: Record,
    /// The targets that were looked at, in the order of ids: all of them unless [`Record::left_out`] says
    /// otherwise.
    pub candidates: Vec<Weighed>,
    /// What a cost is made of, by name.
    pub terms: Names,
    /// Where these are milliseconds: when the pick's first token was to come,
    pub predicted_ttft_ms: Option<f32>,
    /// and when the first of all who could have served it and are kept.
    pub least_ttft_ms: Option<f32>,
    /// The served name that the request used.
    pub model: Arc<str>,
    /// Its pool,
    pub pool: Arc<str>,
    /// and the role that was asked for.
    pub role: Role,
    /// What the workers in it are called, as far as that is still known.
    pub workers: BTreeMap<WorkerId, Arc<str>>,
}

impl Decision {
    /// What a worker is called.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<&str> {
        self.workers.get(&id).map(|name| &**name)
    }

    /// What a target would have cost, part by part.
    pub fn parts(&self, of: &Weighed) -> impl Iterator<Item = (&'static str, f32)> {
        let known = of.cost().is_some();
        let all = self.terms.into_iter().zip(of.parts);
        all.take_while(move |(name, _)| known && !name.is_empty())
    }

    /// The time to the first token beyond the least that the policy predicted of anybody who could have served
    /// it, where its costs are milliseconds.
    #[must_use]
    pub fn regret_ms(&self) -> Option<f64> {
        let took = self.record.ttft()?.as_secs_f64() * 1e3;
        Some((took - f64::from(self.least_ttft_ms?)).max(0.0))
    }

    fn ids(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let record = &self.record;
        let awaited = match record.awaited {
            Some(Awaited::Named(id) | Awaited::Home(id)) => Some(id),
            Some(Awaited::Anyone) | None => None,
        };
        let candidates = self.candidates.iter().map(|c| c.worker);
        let tries = record.attempts_kept().map(|a| a.target.worker);
        let pick = record.pick.map(|t| t.worker);
        let steered = record.steer.target().map(|t| t.worker);
        candidates.chain(tries).chain(pick).chain(steered).chain(awaited)
    }
}

/// What the records take, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordUse {
    /// Records that are there.
    pub kept: usize,
    /// Records that were dropped to make room for later ones.
    pub dropped: u64,
    /// Bytes, of all of them.
    pub bytes: usize,
}

impl SelectionCore {
    /// The latest decisions, the newest first.
    #[must_use]
    pub fn decisions(&self, limit: usize) -> Vec<Decision> {
        let mut all = Vec::new();
        for cell in self.cells.read().iter() {
            self.find(cell, |_| true, limit, &mut all);
        }
        all.sort_by_key(|d: &Decision| std::cmp::Reverse(d.record.times.asked));
        all.truncate(limit);
        self.named(all)
    }

    /// The latest decision about a request with this id, if its record is still there.
    #[must_use]
    pub fn decision(&self, id: &str) -> Option<Decision> {
        let mut all = Vec::new();
        for cell in self.cells.read().iter() {
            self.find(cell, |record| record.id.as_deref() == Some(id), 1, &mut all);
        }
        all.sort_by_key(|d: &Decision| std::cmp::Reverse(d.record.times.asked));
        all.truncate(1);
        self.named(all).pop()
    }

    /// What the records take.
    #[must_use]
    pub fn record_use(&self) -> RecordUse {
        let mut sum = RecordUse::default();
        for cell in self.cells.read().iter() {
            let state = cell.state.lock();
            let ring = state.records().ring();
            sum.kept += ring.len();
            sum.dropped += ring.dropped();
            sum.bytes += ring.bytes();
        }
        sum
    }

    /// A partition's records that are wanted, the newest first, up to `most` of them.
    fn find(
        &self,
        cell: &Cell,
        wanted: impl Fn(&Record) -> bool,
        most: usize,
        all: &mut Vec<Decision>,
    ) {
        let mut left = most;
        let mut next = cell.state.lock().records().ring().last_page();
        while let Some(number) = next.filter(|_| left > 0) {
            let state = cell.state.lock();
            // Older ones have gone, too.
            let Some(page) = state.recall(number) else { break };
            for (record, recall) in page.filter(|(record, _)| wanted(record)).take(left) {
                left -= 1;
                let recalled = recall();
                let mut decision = Decision {
                    record: record.clone(),
                    candidates: recalled.candidates,
                    terms: recalled.names,
                    predicted_ttft_ms: recalled.predicted_ttft_ms,
                    least_ttft_ms: recalled.least_ttft_ms,
                    model: cell.pool.clone(),
                    pool: cell.pool.clone(),
                    role: cell.role,
                    workers: BTreeMap::new(),
                };
                let gone = |id: WorkerId| Some((id, state.records().gone(id)?.clone()));
                decision.workers = decision.ids().filter_map(gone).collect();
                all.push(decision);
            }
            drop(state);
            next = number.checked_sub(1);
        }
    }

    /// With the names that the registry has.
    fn named(&self, mut all: Vec<Decision>) -> Vec<Decision> {
        let registry = self.registry.read();
        for decision in &mut all {
            decision.model = registry.name(decision.record.name);
            let known = |id: WorkerId| Some((id, registry.info(id)?.spec.name.clone()));
            let names: Vec<_> = decision.ids().filter_map(known).collect();
            decision.workers.extend(names);
        }
        all
    }
}
