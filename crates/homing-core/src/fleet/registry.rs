//! All workers, their incarnations, and the pools that they form.
//!
//! A pool is the workers of one base model. What a worker serves under (`/v1/models`) are *names of the
//! pool*: its first base name finds or founds the pool, the others join it. Names are never forgotten:
//! a model that was ever served is a 503 when its last worker is gone, not a 404.

use super::change::{
    FleetChange, FleetError, FleetEvent, MAX_NAMES, MAX_WORKERS, Route, RouteError,
};
use super::worker::{Cache, Drain, Health, Ranks, ServedName, State, WorkerInfo};
use crate::ids::{NameId, PartitionId, Role, WorkerId};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a partition must know of one of its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Who.
    pub info: Arc<WorkerInfo>,
    /// How it is.
    pub state: State,
    /// It is Down by silence: nothing has refused.
    pub silent: bool,
    /// What it serves.
    pub serves: SmallVec<[NameId; 4]>,
    /// Its ranks.
    pub ranks: Ranks,
    /// It gets no new sessions.
    pub drain: Option<Drain>,
    /// How its cache is known.
    pub cache: Cache,
    /// Its name, hashed.
    pub name: u64,
}

#[derive(Debug)]
struct Worker {
    info: Arc<WorkerInfo>,
    health: Health,
    pool: Option<usize>,
    serves: SmallVec<[NameId; 4]>,
    state: State,
    ranks: Ranks,
    drain: Option<Drain>,
    cache: Cache,
    started: Option<u64>,
}

impl Worker {
    fn row(&self) -> Row {
        Row {
            name: self.info.name_hash(),
            info: self.info.clone(),
            state: self.state,
            silent: self.state == State::Down && self.health.is_silent(),
            serves: self.serves.clone(),
            ranks: self.ranks,
            drain: self.drain,
            cache: self.cache,
        }
    }
}

#[derive(Debug)]
struct Name {
    text: Arc<str>,
    /// `None`: only the configuration knows it.
    pool: Option<usize>,
    adapter: bool,
}

/// The workers of one base model, whatever they do.
#[derive(Debug)]
struct Pool {
    name: Arc<str>,
    /// By [`Role`].
    partitions: [Option<PartitionId>; 3],
    /// Somebody has served it in this process; before that it is only what an earlier one knew.
    founded: bool,
}

/// One life of a worker, as it is known over a restart of the router (R25).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its identity in this process.
    pub id: WorkerId,
    /// What people call the worker.
    pub name: Arc<str>,
    /// When its process began (Unix milliseconds), where that is known.
    pub started: Option<u64>,
}

/// Every worker and every name. Ordered maps: same seed, same run.
#[derive(Debug, Default)]
pub struct Registry {
    workers: BTreeMap<WorkerId, Worker>,
    by_name: BTreeMap<Arc<str>, WorkerId>,
    names: Vec<Name>,
    name_ids: BTreeMap<Arc<str>, NameId>,
    pools: Vec<Pool>,
    /// Pool and role of each partition.
    partitions: Vec<(usize, Role)>,
    /// Lives that bindings of an earlier process name: whoever registers under the name is it.
    promised: BTreeMap<Arc<str>, (WorkerId, Option<u64>)>,
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

    /// How many bad probes in a row make a worker Down, and how many good ones bring it back.
    pub fn set_patience(&mut self, failures: u32, successes: u32) {
        (self.failures, self.successes) = (failures.max(1), successes.max(1));
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
                let old = self.by_name.get(&spec.name).copied();
                if let Some(w) = old.and_then(|id| self.workers.get_mut(&id))
                    && w.info.spec.is_again(&spec)
                {
                    w.ranks = if w.info.spec.ranks == spec.ranks { w.ranks } else { spec.ranks };
                    let id = w.info.id;
                    w.info = Arc::new(WorkerInfo { id, spec });
                    return Ok(events);
                }
                if self.workers.len() >= MAX_WORKERS && old.is_none() {
                    return Err(FleetError::TooManyWorkers);
                }
                if let Some(old) = old {
                    self.workers.remove(&old);
                    events.push(FleetEvent::Removed(old));
                }
                let ranks = spec.ranks;
                let promised = self.promised.remove(&spec.name);
                let (id, started) = promised.unwrap_or_else(|| (self.next_id(), None));
                let promised = promised.is_some();
                let worker = Worker {
                    info: Arc::new(WorkerInfo { id, spec }),
                    health: Health::of_life(promised),
                    pool: None,
                    serves: SmallVec::new(),
                    state: Health::default().state(false),
                    ranks,
                    drain: None,
                    cache: Cache::default(),
                    started,
                };
                self.insert(worker);
                events.push(FleetEvent::Registered(id));
            }
            FleetChange::Unsure(id) => {
                self.worker(id)?.health.unsure();
                self.note_state(id, &mut events);
            }
            FleetChange::Started(id, at) => {
                let w = self.worker(id)?;
                if w.started.replace(at).is_some_and(|before| before != at) {
                    let id = self.reborn(id, &mut events)?;
                    self.worker(id)?.started = Some(at);
                    self.note_state(id, &mut events);
                }
            }
            FleetChange::Barred(id, barred) => {
                self.worker(id)?.health.bar(barred);
                self.note_state(id, &mut events);
            }
            FleetChange::Ranks(id, ranks) => self.worker(id)?.ranks = ranks,
            FleetChange::Cache(id, cache) => self.worker(id)?.cache = cache,
            FleetChange::Drain(id, drain) => self.worker(id)?.drain = drain,
            FleetChange::Remove(id) => {
                let gone = self.workers.remove(&id).ok_or(FleetError::UnknownWorker)?;
                self.by_name.remove(&gone.info.spec.name);
                events.push(FleetEvent::Removed(id));
            }
            FleetChange::Serves(id, served) => self.serves(id, &served, &mut events)?,
            FleetChange::Probed(id, probe) => {
                let (failures, successes) = (self.failures, self.successes);
                let w = self.worker(id)?;
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

    fn worker(&mut self, id: WorkerId) -> Result<&mut Worker, FleetError> {
        self.workers.get_mut(&id).ok_or(FleetError::UnknownWorker)
    }

    fn next_id(&mut self) -> WorkerId {
        self.next_worker += 1;
        WorkerId(self.next_worker - 1)
    }

    fn insert(&mut self, worker: Worker) {
        let id = worker.info.id;
        self.by_name.insert(worker.info.spec.name.clone(), id);
        self.workers.insert(id, worker);
    }

    /// Ends one life of a worker and begins the next, at the same place. That it is draining is its
    /// operator's word, and stands. A change of state is the caller's to note.
    fn reborn(
        &mut self,
        old: WorkerId,
        events: &mut Vec<FleetEvent>,
    ) -> Result<WorkerId, FleetError> {
        let mut w = self.workers.remove(&old).ok_or(FleetError::UnknownWorker)?;
        let new = self.next_id();
        w.health.refused = false;
        w.started = None;
        w.info = Arc::new(WorkerInfo { id: new, spec: w.info.spec.clone() });
        self.insert(w);
        events.push(FleetEvent::Reborn { old, new });
        Ok(new)
    }

    fn note_state(&mut self, id: WorkerId, events: &mut Vec<FleetEvent>) {
        if let Some(w) = self.workers.get_mut(&id) {
            let state = w.health.state(w.pool.is_some());
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
        let worker = self.worker(id)?;
        let (placed, role) = (worker.pool, worker.info.spec.role);
        let first = served.iter().find(|s| !s.adapter).ok_or(FleetError::NoModel)?;
        if self.names.len() + served.len() > MAX_NAMES {
            return Err(FleetError::TooManyNames);
        }
        let known: SmallVec<[usize; 4]> = served
            .iter()
            .filter(|s| !s.adapter)
            .filter_map(|s| self.names[self.name_ids.get(s.name.as_str())?.0 as usize].pool)
            .collect();
        // It stays where it is as long as one name holds it there; it may have come back with another model.
        let stays = placed.filter(|p| known.contains(p));
        // One that somebody serves comes before what only an earlier process knew.
        let of_pool = known.iter().find(|p| self.pools[**p].founded).or(known.first());
        let pool = stays
            .or(of_pool.copied())
            .unwrap_or_else(|| self.add_pool(Arc::from(first.name.as_str())));
        self.pools[pool].founded = true;
        let partition = self.add_partition(pool, role);
        let mut serves = SmallVec::new();
        for s in served {
            match self.name_ids.get(s.name.as_str()).copied() {
                None => serves.push(self.add_name(&s.name, Some(pool), s.adapter)),
                Some(n) => {
                    let name = &mut self.names[n.0 as usize];
                    // What only an earlier process knew has no claim to the name.
                    if name.pool.is_none_or(|other| !self.pools[other].founded) {
                        (name.pool, name.adapter) = (Some(pool), s.adapter);
                    }
                    if name.pool == Some(pool) {
                        serves.push(n);
                    } else {
                        events.push(FleetEvent::NameTaken(id, name.text.clone()));
                    }
                }
            }
        }
        if let Some(w) = self.workers.get_mut(&id) {
            (w.pool, w.serves) = (Some(pool), serves);
        }
        if placed != Some(pool) {
            events.push(FleetEvent::Placed(id, partition));
        }
        self.note_state(id, events);
        Ok(())
    }

    fn add_pool(&mut self, name: Arc<str>) -> usize {
        self.pools.push(Pool { name, partitions: [None; 3], founded: false });
        self.pools.len() - 1
    }

    /// The pool's partition of this role, which is made if need be.
    fn add_partition(&mut self, pool: usize, role: Role) -> PartitionId {
        let next = PartitionId(u32::try_from(self.partitions.len()).unwrap_or(u32::MAX));
        let id = *self.pools[pool].partitions[role as usize].get_or_insert(next);
        if id == next {
            self.partitions.push((pool, role));
        }
        id
    }

    /// The partition that is called so, for bindings of an earlier process: its workers will find it by
    /// the pool's name. `None`: the name means something else by now, or there are too many.
    pub fn promise_partition(&mut self, pool: &str, role: Role) -> Option<PartitionId> {
        let name = match self.name_ids.get(pool).copied() {
            Some(id) => id,
            None if self.names.len() >= MAX_NAMES => return None,
            None => self.add_name(pool, None, false),
        };
        let name = &self.names[name.0 as usize];
        if name.adapter {
            return None;
        }
        let (text, number) = (name.text.clone(), name.pool);
        let number = number.unwrap_or_else(|| self.add_pool(text));
        if let Some(id) = self.name_ids.get(pool) {
            self.names[id.0 as usize].pool = Some(number);
        }
        Some(self.add_partition(number, role))
    }

    /// The life that a binding of an earlier process names: who is registered so, or will be.
    pub fn promise_worker(&mut self, name: &str, started: Option<u64>) -> WorkerId {
        if let Some(id) = self.by_name.get(name).copied() {
            if let Some(w) = self.workers.get_mut(&id) {
                match (w.started, started) {
                    // Another life: what is bound to it has departed.
                    (Some(known), Some(started)) if known != started => return self.next_id(),
                    // Whether it is another, it will tell.
                    (None, Some(_)) => w.started = started,
                    _ => {}
                }
                w.health.has_lived();
            }
            return id;
        }
        if let Some((id, _)) = self.promised.get(name) {
            return *id;
        }
        let id = self.next_id();
        if self.promised.len() < MAX_WORKERS {
            self.promised.insert(name.into(), (id, started));
        }
        id
    }

    /// Every life that bindings may name.
    pub fn lives(&self) -> impl Iterator<Item = Life> {
        let known = self.workers.values().map(|w| Life {
            id: w.info.id,
            name: w.info.spec.name.clone(),
            started: w.started,
        });
        let promised = self.promised.iter();
        known.chain(promised.map(|(name, (id, started))| Life {
            id: *id,
            name: name.clone(),
            started: *started,
        }))
    }

    fn add_name(&mut self, text: &str, pool: Option<usize>, adapter: bool) -> NameId {
        let id = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        let text: Arc<str> = Arc::from(text);
        self.names.push(Name { text: text.clone(), pool, adapter });
        self.name_ids.insert(text, id);
        id
    }

    /// Where requests for `model` go, as far as they are work of this role.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn route(&self, model: &str, role: Role) -> Result<Route, RouteError> {
        let Some(id) = self.name_ids.get(model) else {
            let unsure = self.workers.is_empty() || self.workers.values().any(|w| w.pool.is_none());
            return Err(if unsure { RouteError::NotYet } else { RouteError::Unknown });
        };
        let name = &self.names[id.0 as usize];
        let pool = name.pool.ok_or(RouteError::NoWorker)?;
        if !self.pools[pool].founded && self.workers.values().any(|w| w.pool.is_none()) {
            return Err(RouteError::NotYet);
        }
        let partition = self.pools[pool].partitions[role as usize].ok_or(RouteError::NoWorker)?;
        let adapter = if name.adapter { &name.text } else { &self.no_adapter };
        Ok(Route { partition, name: *id, model: name.text.clone(), adapter: adapter.clone() })
    }

    /// What a name is spelled like; "" for one that was never given out.
    #[must_use]
    pub fn name(&self, id: NameId) -> Arc<str> {
        self.names.get(id.0 as usize).map_or_else(|| self.no_adapter.clone(), |n| n.text.clone())
    }

    /// The names that somebody serves who is up, in order of appearance, each with its adapter's mark.
    pub fn served_names(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        self.names.iter().enumerate().filter_map(|(i, n)| {
            let id = NameId(u32::try_from(i).ok()?);
            let served = |w: &Worker| w.state == State::Ready && w.serves.contains(&id);
            self.workers.values().any(served).then_some((&n.text, n.adapter))
        })
    }

    /// Every name that was ever served, in order of appearance.
    pub fn known_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.names.iter().filter(|n| n.pool.is_some()).map(|n| &n.text)
    }

    /// What a worker's partition must know of it; `None` for one that serves nothing known yet.
    #[must_use]
    pub fn row(&self, id: WorkerId) -> Option<(PartitionId, Row)> {
        Some((self.place(id)?, self.workers.get(&id)?.row()))
    }

    /// The partition of a worker; `None` while it serves nothing known.
    #[must_use]
    pub fn place(&self, id: WorkerId) -> Option<PartitionId> {
        let w = self.workers.get(&id)?;
        self.pools[w.pool?].partitions[w.info.spec.role as usize]
    }

    /// Those that serve nothing known yet.
    pub fn unplaced(&self) -> impl Iterator<Item = Row> {
        self.workers.values().filter(|w| w.pool.is_none()).map(Worker::row)
    }

    /// A worker's description.
    #[must_use]
    pub fn info(&self, id: WorkerId) -> Option<&Arc<WorkerInfo>> {
        self.workers.get(&id).map(|w| &w.info)
    }

    /// When a worker's process began, where that is known.
    #[must_use]
    pub fn started(&self, id: WorkerId) -> Option<u64> {
        self.workers.get(&id)?.started
    }

    /// Its ranks.
    #[must_use]
    pub fn ranks(&self, id: WorkerId) -> Option<Ranks> {
        self.workers.get(&id).map(|w| w.ranks)
    }

    /// The pool's name and the role of a partition.
    #[must_use]
    pub fn partition(&self, id: PartitionId) -> Option<(&Arc<str>, Role)> {
        let (pool, role) = self.partitions.get(id.0 as usize)?;
        Some((&self.pools[*pool].name, *role))
    }

    /// The partition of that pool's name and role.
    #[must_use]
    pub fn partition_of(&self, pool: &str, role: Role) -> Option<PartitionId> {
        let at =
            self.partitions.iter().position(|(p, r)| *r == role && *self.pools[*p].name == *pool);
        at.and_then(|at| u32::try_from(at).ok()).map(PartitionId)
    }

    /// Who goes by this name now.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<WorkerId> {
        self.by_name.get(name).copied()
    }

    /// Every worker, with what its partition must know of it, its partition and the names it serves.
    pub fn workers(&self) -> impl Iterator<Item = (Row, Option<PartitionId>, Vec<Arc<str>>)> {
        self.workers.iter().map(|(id, w)| {
            let names = w.serves.iter().map(|n| self.names[n.0 as usize].text.clone()).collect();
            (w.row(), self.place(*id), names)
        })
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
