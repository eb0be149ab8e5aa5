//! All workers, their incarnations, and the pools that they form.
//!
//! A pool is the workers of one base model. What a worker serves under (`/v1/models`) are *names of the
//! pool*: its first base name finds or founds the pool, the others join it. Names are never forgotten:
//! a model that was ever served is a 503 when its last worker is gone, not a 404.

use super::worker::{Health, Probe, ServedName, State, WorkerInfo, WorkerSpec};
use crate::ids::{NameId, PartitionId, WorkerId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// Names in all. An engine that invents names must not fill our memory.
pub const MAX_NAMES: usize = 65_536;
/// Workers at once.
pub const MAX_WORKERS: usize = 65_536;

/// What the world says about the fleet.
#[derive(Clone, Debug)]
pub enum FleetChange {
    /// A worker is discovered; under a name in use it replaces the old registration.
    Register(WorkerSpec),
    /// It is gone.
    Remove(WorkerId),
    /// It told what it serves.
    Serves(WorkerId, Vec<ServedName>),
    /// A probe, or a request's connection, went well or badly.
    Probed(WorkerId, Probe),
    /// It lives another life: its events or its start time say so.
    Restarted(WorkerId),
}

/// What became of a change, in order: for logs, metrics and whoever keeps ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetEvent {
    /// There is a new worker.
    Registered(WorkerId),
    /// A worker has departed.
    Removed(WorkerId),
    /// One worker, another life.
    Reborn {
        /// The life that ended.
        old: WorkerId,
        /// The one that began.
        new: WorkerId,
    },
    /// Its state changed.
    State(WorkerId, State),
    /// It serves a pool from now on.
    Placed(WorkerId, PartitionId),
    /// A name that it serves already belongs to another pool, and was left there.
    NameTaken(WorkerId, Arc<str>),
}

/// Why a change was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FleetError {
    /// The id is of nobody, or of a life that has ended.
    #[error("no such worker")]
    UnknownWorker,
    /// Bounded.
    #[error("more than {MAX_WORKERS} workers")]
    TooManyWorkers,
    /// It named no base model.
    #[error("the worker serves no base model")]
    NoModel,
    /// Bounded.
    #[error("more than {MAX_NAMES} model names")]
    TooManyNames,
}

/// Where the requests for a model name go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The pool's partition.
    pub partition: PartitionId,
    /// The name.
    pub name: NameId,
    /// The name as clients and workers spell it.
    pub model: Arc<str>,
    /// The adapter that it means; "" for the base model and its aliases.
    pub adapter: Arc<str>,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RouteError {
    /// No worker ever served the name, and every worker has told what it serves.
    #[error("no worker serves this model")]
    Unknown,
    /// Nobody serves it yet; some worker has not told what it serves.
    #[error("no worker has told yet that it serves this model")]
    NotYet,
    /// The configuration names it, and nobody ever served it.
    #[error("the model is configured, but no worker serves it")]
    NoWorker,
}

/// What a partition must know of one of its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Who.
    pub info: Arc<WorkerInfo>,
    /// How it is.
    pub state: State,
    /// What it serves.
    pub serves: SmallVec<[NameId; 4]>,
}

#[derive(Debug)]
struct Worker {
    info: Arc<WorkerInfo>,
    health: Health,
    partition: Option<PartitionId>,
    serves: SmallVec<[NameId; 4]>,
    state: State,
}

#[derive(Debug)]
struct Name {
    text: Arc<str>,
    /// `None`: only the configuration knows it.
    partition: Option<PartitionId>,
    adapter: bool,
}

/// Every worker and every name. Ordered maps: same seed, same run.
#[derive(Debug, Default)]
pub struct Registry {
    workers: BTreeMap<WorkerId, Worker>,
    by_name: BTreeMap<Arc<str>, WorkerId>,
    names: Vec<Name>,
    name_ids: BTreeMap<Arc<str>, NameId>,
    pools: Vec<Arc<str>>,
    /// The adapter of names that mean none: one for all, so that a route allocates nothing.
    no_adapter: Arc<str>,
    next_worker: u32,
    failures: u32,
    successes: u32,
}

impl Registry {
    /// An empty one. `failures` bad probes in a row make a worker Down, `successes` bring it back.
    #[must_use]
    pub fn new(failures: u32, successes: u32) -> Self {
        Self { failures: failures.max(1), successes: successes.max(1), ..Self::default() }
    }

    /// A name that the configuration promises.
    pub fn declare(&mut self, name: &str) {
        if !self.name_ids.contains_key(name) && self.names.len() < MAX_NAMES {
            self.add_name(name, None, false);
        }
    }

    /// Takes in a change.
    ///
    /// # Errors
    /// [`FleetError`]; nothing has changed then.
    pub fn apply(&mut self, change: FleetChange) -> Result<Vec<FleetEvent>, FleetError> {
        let mut events = Vec::new();
        match change {
            FleetChange::Register(spec) => {
                if self.workers.len() >= MAX_WORKERS {
                    return Err(FleetError::TooManyWorkers);
                }
                if let Some(old) = self.by_name.get(&spec.name).copied() {
                    self.workers.remove(&old);
                    events.push(FleetEvent::Removed(old));
                }
                let id = self.insert(spec, Health::default(), None, SmallVec::new());
                events.push(FleetEvent::Registered(id));
            }
            FleetChange::Remove(id) => {
                let gone = self.workers.remove(&id).ok_or(FleetError::UnknownWorker)?;
                self.by_name.remove(&gone.info.spec.name);
                events.push(FleetEvent::Removed(id));
            }
            FleetChange::Serves(id, served) => self.serves(id, &served, &mut events)?,
            FleetChange::Probed(id, probe) => {
                let (failures, successes) = (self.failures, self.successes);
                let w = self.workers.get_mut(&id).ok_or(FleetError::UnknownWorker)?;
                w.health.probe(probe, failures, successes);
                let back = w.health.is_up() && w.health.refused;
                let id = if back { self.reborn(id, &mut events)? } else { id };
                self.note_state(id, &mut events);
            }
            FleetChange::Restarted(id) => {
                let id = self.reborn(id, &mut events)?;
                self.note_state(id, &mut events);
            }
        }
        Ok(events)
    }

    fn insert(
        &mut self,
        spec: WorkerSpec,
        health: Health,
        partition: Option<PartitionId>,
        serves: SmallVec<[NameId; 4]>,
    ) -> WorkerId {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        self.by_name.insert(spec.name.clone(), id);
        let info = Arc::new(WorkerInfo { id, spec });
        let state = health.state(partition.is_some());
        self.workers.insert(id, Worker { info, health, partition, serves, state });
        id
    }

    /// Ends one life of a worker and begins the next, at the same place.
    fn reborn(
        &mut self,
        old: WorkerId,
        events: &mut Vec<FleetEvent>,
    ) -> Result<WorkerId, FleetError> {
        let mut w = self.workers.remove(&old).ok_or(FleetError::UnknownWorker)?;
        w.health.refused = false;
        let new = self.insert(w.info.spec.clone(), w.health, w.partition, w.serves);
        if let Some(next) = self.workers.get_mut(&new) {
            // A change of state is the caller's to note.
            next.state = w.state;
        }
        events.push(FleetEvent::Reborn { old, new });
        Ok(new)
    }

    fn note_state(&mut self, id: WorkerId, events: &mut Vec<FleetEvent>) {
        if let Some(w) = self.workers.get_mut(&id) {
            let state = w.health.state(w.partition.is_some());
            if state != w.state {
                w.state = state;
                events.push(FleetEvent::State(id, state));
            }
        }
    }

    fn serves(
        &mut self,
        id: WorkerId,
        served: &[ServedName],
        events: &mut Vec<FleetEvent>,
    ) -> Result<(), FleetError> {
        let placed = self.workers.get(&id).ok_or(FleetError::UnknownWorker)?.partition;
        let first = served.iter().find(|s| !s.adapter).ok_or(FleetError::NoModel)?;
        if self.names.len() + served.len() > MAX_NAMES {
            return Err(FleetError::TooManyNames);
        }
        let known: SmallVec<[PartitionId; 4]> = served
            .iter()
            .filter(|s| !s.adapter)
            .filter_map(|s| self.names[self.name_ids.get(s.name.as_str())?.0 as usize].partition)
            .collect();
        // It stays where it is as long as one name holds it there; it may have come back with another model.
        let stays = placed.filter(|p| known.contains(p));
        let partition = stays.or(known.first().copied()).unwrap_or_else(|| {
            self.pools.push(Arc::from(first.name.as_str()));
            PartitionId(u32::try_from(self.pools.len() - 1).unwrap_or(u32::MAX))
        });
        let mut serves = SmallVec::new();
        for s in served {
            match self.name_ids.get(s.name.as_str()).copied() {
                None => serves.push(self.add_name(&s.name, Some(partition), s.adapter)),
                Some(n) => {
                    let name = &mut self.names[n.0 as usize];
                    if name.partition.is_none() {
                        (name.partition, name.adapter) = (Some(partition), s.adapter);
                    }
                    if name.partition == Some(partition) {
                        serves.push(n);
                    } else {
                        events.push(FleetEvent::NameTaken(id, name.text.clone()));
                    }
                }
            }
        }
        if let Some(w) = self.workers.get_mut(&id) {
            (w.partition, w.serves) = (Some(partition), serves);
        }
        if placed != Some(partition) {
            events.push(FleetEvent::Placed(id, partition));
        }
        self.note_state(id, events);
        Ok(())
    }

    fn add_name(&mut self, text: &str, partition: Option<PartitionId>, adapter: bool) -> NameId {
        let id = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        let text: Arc<str> = Arc::from(text);
        self.names.push(Name { text: text.clone(), partition, adapter });
        self.name_ids.insert(text, id);
        id
    }

    /// Where requests for `model` go.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn route(&self, model: &str) -> Result<Route, RouteError> {
        let Some(id) = self.name_ids.get(model) else {
            let unsure =
                self.workers.is_empty() || self.workers.values().any(|w| w.partition.is_none());
            return Err(if unsure { RouteError::NotYet } else { RouteError::Unknown });
        };
        let name = &self.names[id.0 as usize];
        let partition = name.partition.ok_or(RouteError::NoWorker)?;
        let adapter = if name.adapter { &name.text } else { &self.no_adapter };
        Ok(Route { partition, name: *id, model: name.text.clone(), adapter: adapter.clone() })
    }

    /// The names that somebody serves who is up, in order of appearance, each with its adapter's mark.
    pub fn served_names(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        self.names.iter().enumerate().filter_map(|(i, n)| {
            let id = NameId(u32::try_from(i).ok()?);
            let served = |w: &Worker| w.state == State::Ready && w.serves.contains(&id);
            self.workers.values().any(served).then_some((&n.text, n.adapter))
        })
    }

    /// What a worker's partition must know of it; `None` for one that serves nothing known yet.
    #[must_use]
    pub fn row(&self, id: WorkerId) -> Option<(PartitionId, Row)> {
        let w = self.workers.get(&id)?;
        let row = Row { info: w.info.clone(), state: w.state, serves: w.serves.clone() };
        Some((w.partition?, row))
    }

    /// The partition of a worker; `None` while it serves nothing known.
    #[must_use]
    pub fn place(&self, id: WorkerId) -> Option<PartitionId> {
        self.workers.get(&id)?.partition
    }

    /// The name of a pool.
    #[must_use]
    pub fn pool(&self, id: PartitionId) -> Option<&Arc<str>> {
        self.pools.get(id.0 as usize)
    }

    /// Who goes by this name now.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<WorkerId> {
        self.by_name.get(name).copied()
    }

    /// Every worker: description, state, partition and the names that it serves.
    pub fn workers(
        &self,
    ) -> impl Iterator<Item = (&Arc<WorkerInfo>, State, Option<PartitionId>, Vec<Arc<str>>)> {
        self.workers.values().map(|w| {
            let names = w.serves.iter().map(|n| self.names[n.0 as usize].text.clone()).collect();
            (&w.info, w.state, w.partition, names)
        })
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
