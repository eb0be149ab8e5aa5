//! [`SelectionCore`]: the partitions, and the calls that hosts make. No others exist.
//!
//! Each partition has two locks: that of its prefix index, for who writes it, and the rest. A call
//! takes one at a time, for microseconds, and never waits inside: what engines say about their caches
//! can be long, and is taken in by slices. Who looks a prompt up takes none of the index. Order: registry, then a partition. What every request asks
//! (a block size, whether somebody is to be woken) is kept beside the locks, in atomics.
//!
//! * `fleet`: what the world says of workers;
//! * `known`: what workers are known to have cached;
//! * `kv`: the slices;
//! * `reload`: settings that change at run time;
//! * `trust`: what engines say of predictions;
//! * `decisions`: the records of what was decided;
//! * `views`: what people see of workers and partitions;
//! * `sessions`: what people ask of sessions, and what is kept of them;
//! * `replicas`: what is shared with other routers;
//! * `news`: who is called when there is something to tell them.

mod decisions;
mod fleet;
mod known;
mod kv;
mod news;
mod reload;
mod replicas;
mod sessions;
mod trust;
mod views;

pub use decisions::{Decision, RecordUse};
pub use known::IndexUse;
pub use replicas::{Home, Publication, Received};
pub use sessions::{Cursor, WALK_AT_ONCE};
pub use views::{PartitionView, WorkerView};

use crate::affinity::Outcome;
use crate::ask::{
    Abandon, Admission, Ask, Checked, Claimed, Claiming, Dispatch, Failure, Grant, Held, Live,
    Output, Step, Ticket,
};
use crate::explain::Preview;
use crate::fleet::{FleetChange, FleetEvent, Probe, Registry, Route, RouteError};
use crate::hash::Prompt;
use crate::ids::{PartitionId, Role, WorkerId};
use crate::index::chain::ChainReader;
use crate::index::seen::Seen;
use crate::index::{ChainIndex, Overlaps, RecencyIndex, TextReader};
use crate::partition::Partition;
use crate::select::policy::{Policy, built_in};
use crate::settings::CoreSettings;
use crate::time::Time;
use crate::trust::Turn;
use news::News;
use parking_lot::{Mutex, MutexGuard, RwLock};
use replicas::Aside;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Steps towards more room that the timer takes at a time.
const ROOM_AT_ONCE: usize = 256;

#[derive(Debug)]
struct Cell {
    pool: Arc<str>,
    role: Role,
    /// What workers say that they have, for the one who writes it.
    index: Mutex<ChainIndex>,
    /// The same, for those who look prompts up: they never wait for it.
    reader: ChainReader,
    /// What was sent to them, for the one who writes it,
    text: Mutex<RecencyIndex>,
    /// and for those who look up.
    text_reader: TextReader,
    /// Whether somebody is known by nothing else.
    wants_text: AtomicBool,
    /// Changes of it.
    changes: AtomicU64,
    /// When the first prediction ends, in Unix microseconds; the largest number where there is none.
    expiry: AtomicU64,
    /// What both took when they were last measured.
    bytes: AtomicUsize,
    /// The index's block size as of its last change; 0: unknown.
    block_size: AtomicU32,
    /// Prefixes that came by, apart from the state: it is walked block by block.
    seen: RwLock<Seen>,
    state: Mutex<Partition>,
}

impl Cell {
    fn new(pool: Arc<str>, role: Role, state: Partition, index_memory: usize) -> Self {
        let (mut index, mut text) = (ChainIndex::default(), RecencyIndex::default());
        index.bound_predictions(index_memory);
        text.bound_predictions(index_memory);
        let reader = index.reader();
        let text_reader = text.reader();
        let (index, text) = (Mutex::new(index), Mutex::new(text));
        let (wants_text, changes, bytes, block_size, seen) = Default::default();
        let (state, expiry) = (Mutex::new(state), AtomicU64::new(u64::MAX));
        Self {
            pool,
            role,
            index,
            reader,
            text,
            text_reader,
            wants_text,
            changes,
            expiry,
            bytes,
            block_size,
            seen,
            state,
        }
    }

    /// Changes the index. Whoever waits for it is let in afterwards, before the next change.
    fn index<T>(&self, change: impl FnOnce(&mut ChainIndex) -> T) -> T {
        let mut index = self.index.lock();
        let changed = change(&mut index);
        self.block_size.store(index.block_size().unwrap_or(0), Ordering::Relaxed);
        MutexGuard::unlock_fair(index);
        changed
    }

    /// Changes the index of texts; likewise.
    fn text<T>(&self, change: impl FnOnce(&mut RecencyIndex) -> T) -> T {
        let mut texts = self.text.lock();
        let changed = change(&mut texts);
        MutexGuard::unlock_fair(texts);
        changed
    }
}

/// The selection core. Shared by every host of a process; all methods take `&self`.
#[derive(Debug)]
pub struct SelectionCore {
    /// Those that new partitions get, with what has been changed since.
    settings: RwLock<CoreSettings>,
    /// What never changes of them, for the hot path.
    predict: Duration,
    index_memory: usize,
    shared: bool,
    seed: u64,
    registry: RwLock<Registry>,
    cells: RwLock<Vec<Arc<Cell>>>,
    /// Outputs of all partitions. Changed under the lock of the one whose outputs change, so that a
    /// caller sees at least what its own calls have put there.
    pending: AtomicUsize,
    /// What all indexes take.
    index_bytes: AtomicUsize,
    policies: Policies,
    /// Other routers' bindings to workers that are not known here yet (R23).
    aside: Mutex<Aside>,
    news: News,
    writer: u32,
}

/// Makes each partition its policy.
struct Policies(Box<dyn Fn() -> Box<dyn Policy> + Send + Sync>);

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Policies")
    }
}

impl SelectionCore {
    /// A core without workers. Every random choice follows from `seed`.
    #[must_use]
    pub fn new(settings: CoreSettings, seed: u64) -> Self {
        let kind = settings.policy;
        Self::with_policy(settings, seed, move || built_in(kind))
    }

    /// A core whose partitions choose by a policy of the caller's; `settings.policy` has no effect.
    #[must_use]
    pub fn with_policy(
        settings: CoreSettings,
        seed: u64,
        policy: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        let registry = Registry::new(settings.health_failures, settings.health_successes);
        Self {
            predict: settings.predict,
            index_memory: settings.index_memory,
            shared: settings.affinity.shared,
            settings: RwLock::new(settings),
            seed,
            registry: RwLock::new(registry),
            cells: RwLock::default(),
            pending: AtomicUsize::new(0),
            index_bytes: AtomicUsize::new(0),
            policies: Policies(Box::new(policy)),
            aside: Mutex::default(),
            news: News::default(),
            // Tells this router's versions from another's: as random as its choices.
            writer: (seed >> 32) as u32 ^ seed as u32,
        }
    }

    /// Changes a partition, and keeps count of its outputs.
    fn with<T>(&self, cell: &Cell, change: impl FnOnce(&mut Partition) -> T) -> T {
        let mut state = cell.state.lock();
        let before = state.pending();
        let changed = change(&mut state);
        // Fewer are more by a wrapped number; adding wraps too.
        let more = state.pending().wrapping_sub(before);
        if more != 0 {
            self.pending.fetch_add(more, Ordering::Relaxed);
        }
        let news = self.shared && state.take_news();
        drop(state);
        if news {
            self.news.ring();
        }
        changed
    }

    /// Does what is due in every partition, up to a bound: while [`Self::poll_timeout`] says a time that
    /// has passed, more is due at once.
    pub fn handle_timeout(&self, now: Time) {
        for cell in self.cells.read().iter() {
            self.with(cell, |state| state.handle_timeout(now));
            self.expire_predictions(now, cell);
        }
        self.make_room(ROOM_AT_ONCE);
    }

    /// When [`Self::handle_timeout`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let cells = self.cells.read();
        let ends = cells.iter().map(|c| c.expiry.load(Ordering::Relaxed)).min();
        let ends = ends.filter(|at| *at < u64::MAX).map(Time::from_micros);
        cells.iter().filter_map(|c| c.state.lock().poll_timeout()).chain(ends).min()
    }

    /// What to do next. Costs nothing while there is nothing.
    #[must_use]
    pub fn poll_output(&self) -> Option<Output> {
        if self.pending.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.cells.read().iter().find_map(|cell| self.with(cell, Partition::poll_output))
    }

    // === the way of a request ===

    /// Where requests for `model` go.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn route(&self, model: &str) -> Result<Route, RouteError> {
        self.route_as(model, Role::Aggregated)
    }

    /// Where the part of requests for `model` goes that is work of this role (R17).
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn route_as(&self, model: &str, role: Role) -> Result<Route, RouteError> {
        self.registry.read().route(model, role)
    }

    /// Tokens per block in a partition, once its engines have told.
    #[must_use]
    pub fn block_size(&self, partition: PartitionId) -> Option<u32> {
        let size = self.cell(partition)?.block_size.load(Ordering::Relaxed);
        (size > 0).then_some(size)
    }

    /// Who holds how much of a prompt of known tokens, as far as engines have said so. Requests are looked
    /// up by [`Self::look_up`].
    #[must_use]
    pub fn overlaps(&self, partition: PartitionId, prompt: &Prompt) -> Overlaps {
        if prompt.chain.is_empty() {
            return Overlaps::new();
        }
        self.cell(partition).map(|c| c.reader.overlaps(prompt)).unwrap_or_default()
    }

    /// Resolves the session and selects a target, in one critical section. An ask is large, and moved often until its
    /// request has begun: in a box.
    pub fn admit(&self, now: Time, ask: impl Into<Box<Ask>>) -> Admission {
        let mut ask = ask.into();
        match self.cell(ask.partition) {
            Some(cell) => {
                ask.past.seen = cell.seen_of(&ask);
                self.with(&cell, |state| state.admit(now, ask))
            }
            None => no_partition(),
        }
    }

    /// A woken ticket tries its luck.
    pub fn claim(&self, now: Time, ticket: Ticket) -> Admission {
        match self.cell(ticket.partition) {
            Some(cell) => self.with(&cell, |state| state.claim(now, ticket)),
            None => no_partition(),
        }
    }

    /// A waiting request leaves.
    pub fn cancel(&self, now: Time, ticket: Ticket) {
        if let Some(cell) = self.cell(ticket.partition) {
            self.with(&cell, |state| state.cancel(now, ticket));
        }
    }

    /// A dispatch failed before the worker had begun to answer. A refused connection marks it Down.
    /// Gives the admission, and what became of the fleet.
    pub fn retry(
        &self,
        now: Time,
        checked: Checked,
        failure: Failure,
    ) -> (Admission, Vec<FleetEvent>) {
        let worker = checked.0.worker.id;
        let events = match failure {
            // An unknown worker has departed meanwhile, and needs no mark.
            Failure::Refused => self
                .handle_fleet(now, FleetChange::Probed(worker, Probe::Refused))
                .unwrap_or_default(),
            Failure::Unreachable | Failure::Broken | Failure::Overloaded(_) => Vec::new(),
        };
        let admission = match self.cell(checked.0.ask.partition) {
            Some(cell) => self.with(&cell, |state| state.retry(now, checked, failure)),
            None => no_partition(),
        };
        (admission, events)
    }

    /// The last look before dispatch (R10).
    pub fn check_dispatch(&self, now: Time, grant: Grant) -> Dispatch {
        match self.cell(grant.ask.partition) {
            Some(cell) => {
                let dispatch = self.with(&cell, |state| state.check_dispatch(now, grant));
                self.looked(now, &cell, dispatch)
            }
            None => Dispatch::Go(Checked(grant)),
        }
    }

    /// The shared store has answered (R24): the same as [`Self::check_dispatch`] gives.
    pub fn claimed(&self, now: Time, claiming: Claiming, answer: Claimed) -> Dispatch {
        let Some(cell) = self.cell(claiming.grant.ask.partition) else {
            return Dispatch::Go(Checked(claiming.grant));
        };
        let answer = self.understood(answer);
        let dispatch = self.with(&cell, |state| state.claimed(now, claiming.grant, answer));
        self.looked(now, &cell, dispatch)
    }

    /// The worker has begun to answer (R11).
    ///
    /// # Panics
    /// Never: a grant comes from a partition, and partitions are never removed.
    pub fn commit(&self, now: Time, checked: Checked) -> (Live, Outcome) {
        let cell = self.cell(checked.0.ask.partition).expect("partitions are never removed");
        self.note_routed(&cell, &checked.0);
        cell.note_seen(&checked.0.ask.prompt);
        self.with(&cell, |state| state.commit(now, checked))
    }

    /// A grant comes to nothing (R12).
    pub fn abandon(&self, now: Time, held: impl Into<Held>, why: Abandon) -> Outcome {
        let held = held.into();
        let (Held::Grant(grant) | Held::Checked(Checked(grant))) = &held;
        match self.cell(grant.ask.partition) {
            Some(cell) => self.with(&cell, |state| state.abandon(now, held, why)),
            None => Outcome::None,
        }
    }

    /// A running request has come further. `Some`: its worker's index is not believed any more, or is
    /// again, which is worth a line in the log.
    pub fn progress(&self, now: Time, live: &Live, step: Step) -> Option<Turn> {
        let cell = self.cell(live.partition)?;
        self.with(&cell, |state| state.progress(now, live, step))
    }

    /// A stream has ended.
    pub fn finish(&self, now: Time, live: Live) {
        if let Some(cell) = self.cell(live.partition) {
            self.with(&cell, |state| state.finish(now, live));
        }
    }

    /// The decision, without acting (R16).
    #[must_use]
    pub fn preview(&self, now: Time, ask: &Ask) -> Option<Preview> {
        Some(self.cell(ask.partition)?.state.lock().preview(now, ask))
    }

    // === what people ask ===

    /// Who goes by this name now.
    #[must_use]
    pub fn worker_named(&self, name: &str) -> Option<WorkerId> {
        self.registry.read().by_name(name)
    }

    /// The model names that a ready worker serves, each with its adapter's mark.
    #[must_use]
    pub fn served_models(&self) -> Vec<(Arc<str>, bool)> {
        self.registry.read().served_names().map(|(n, a)| (n.clone(), a)).collect()
    }

    /// Every model name that was ever served.
    #[must_use]
    pub fn known_models(&self) -> Vec<Arc<str>> {
        self.registry.read().known_names().cloned().collect()
    }

    /// Invariants of every partition and index.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        let cells = self.cells.read();
        // All at once, as the outputs of all are counted together. Nobody else takes two of them.
        let states: Vec<_> = cells.iter().map(|cell| cell.state.lock()).collect();
        states.iter().for_each(|state| state.check());
        let pending: usize = states.iter().map(|state| state.pending()).sum();
        assert_eq!(pending, self.pending.load(Ordering::Relaxed), "outputs and their count");
        drop(states);
        for cell in cells.iter() {
            let index = cell.index.lock();
            index.check();
            cell.text.lock().check();
            let size = cell.block_size.load(Ordering::Relaxed);
            assert_eq!(size, index.block_size().unwrap_or(0), "the block size beside the index");
        }
    }

    fn cell(&self, id: PartitionId) -> Option<Arc<Cell>> {
        self.cells.read().get(id.0 as usize).cloned()
    }
}

/// A partition id that this core never gave out.
fn no_partition() -> Admission {
    Admission::Refused(crate::ask::Refusal {
        cause: crate::ask::Cause::NoWorker,
        outcome: Outcome::None,
        bound: false,
        retry_after: None,
    })
}
