//! Bindings in a store that all routers share (R24): each session is one register there, written by compare-and-set.
//!
//! A first turn is made known before its dispatch ([`Store::claim`]); whatever is bound, used or removed follows behind
//! the requests; what others write is followed. A bound turn waits for nothing here. Who writes sleeps until the core, or
//! one of the others here, has something for it.

mod claims;
mod follow;

use super::Rules;
use super::counts::{Counts, Over};
use super::port::{BindingStore, PortError, Set, Stay};
use crate::shell::Shell;
use bytes::Bytes;
use claims::Open;
use follow::Listed;
use homing_core::ask::Claimed;
use homing_core::core::Publication;
use homing_core::ids::{Role, SessionKey};
use homing_core::time::Time;
use homing_wire::replica::{Record, RecordKind, ReplicaError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often what has happened is written at most.
const TICK: Duration = Duration::from_millis(10);
/// Writes that are under way at once.
const AT_ONCE: usize = 64;
/// Registers that wait to be written, at most; what is beyond is written when its session is used next.
const PENDING_MAX: usize = 65_536;
/// How often one write is tried against others' before it is left for later.
const TRIES: usize = 8;
/// Where the store can't be reached: how often it is asked whether it is there again. Nothing else would find out: a
/// router that refuses first turns meanwhile has nothing to write.
const AGAIN: Duration = Duration::from_millis(250);
/// It is looked whether there is something to write so often though nobody calls.
const LOOK: Duration = Duration::from_secs(1);
/// Revisions of late writes that are kept: a write that knows its register's needs one round trip.
const REVISIONS: usize = 32_768;

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    shell: Arc<Shell>,
    /// A digest of our session secret: what is written with another one means nothing here.
    group: u64,
    store: Arc<dyn BindingStore>,
    counts: Arc<Counts>,
    rules: Rules,
    /// It has failed, and has not been reached since.
    down: AtomicBool,
    /// It has not been reached yet, or may have gone: it is to be asked.
    doubted: AtomicBool,
    /// It is being asked whether it is there.
    probing: AtomicBool,
    /// Claims of ours that nobody has confirmed yet.
    open: Mutex<HashMap<String, Open>>,
    revisions: Mutex<Revisions>,
    writing: Arc<Semaphore>,
    /// What the store has said of itself since it is followed anew.
    listed: Listed,
    /// Registers that could not be written.
    left: Mutex<BTreeMap<String, Publication>>,
    /// Rung by the core, and by whoever leaves something to be written.
    bell: Arc<Notify>,
}

/// The last of two generations: when one is full, the one before goes.
#[derive(Debug, Default)]
struct Revisions([HashMap<String, u64>; 2]);

impl Revisions {
    fn note(&mut self, key: &str, revision: u64) {
        if self.0[0].len() >= REVISIONS {
            self.0.swap(0, 1);
            self.0[0].clear();
        }
        self.0[0].insert(key.to_owned(), revision);
    }

    /// The store may be another one, whose revisions mean something else.
    fn forget(&mut self) {
        *self = Self::default();
    }

    fn get(&self, key: &str) -> Option<u64> {
        self.0.iter().find_map(|some| some.get(key)).copied()
    }
}

/// A session's key in a store.
pub(super) fn key_of(pool: &str, role: Role, key: SessionKey) -> String {
    format!("{role}.{}.{:032x}", pool_of(pool), key.0)
}

/// Pools' names may hold anything: what tells two apart is their hash, and their sessions' keys are apart anyway.
fn pool_of(pool: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(pool.as_bytes()))
}

impl Store {
    pub(super) fn new(
        shell: Arc<Shell>,
        store: Arc<dyn BindingStore>,
        counts: Arc<Counts>,
        rules: Rules,
        group: u64,
        bell: Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shell,
            group,
            store,
            counts,
            rules,
            down: AtomicBool::new(false),
            doubted: AtomicBool::new(true),
            probing: AtomicBool::new(false),
            open: Mutex::default(),
            revisions: Mutex::default(),
            writing: Arc::new(Semaphore::new(AT_ONCE)),
            listed: Listed::default(),
            left: Mutex::default(),
            bell,
        })
    }

    // === first turns ===

    /// Asks the store to make a first turn known. What is written though nobody waits for the answer any more is taken
    /// back.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        publication: Publication,
        expected: Option<u64>,
    ) -> Claimed {
        if self.down.load(Ordering::Relaxed) {
            return self.without();
        }
        let (answer, answered) = oneshot::channel();
        let this = self.clone();
        tokio::spawn(async move {
            let key = key_of(&publication.pool, publication.role, publication.key);
            let claimed = this.write_claim(&key, publication, expected).await;
            if let Err(Claimed::Ours(_)) = answer.send(claimed) {
                this.take_back(&key).await;
            }
        });
        // A task that is gone has not written anything that it knows of.
        answered.await.unwrap_or_else(|_| self.without())
    }

    fn without(&self) -> Claimed {
        self.counts.claimed("unreachable");
        if self.rules.strict { Claimed::Unreachable } else { Claimed::Without }
    }

    async fn write_claim(
        &self,
        key: &str,
        publication: Publication,
        expected: Option<u64>,
    ) -> Claimed {
        let now = self.shell.now();
        let until = (!self.store.leases()).then(|| now + claims::LIFE);
        let record =
            Record { kind: RecordKind::Tentative, publication, until, group: Some(self.group) };
        let value = Bytes::from(record.encode());
        match self.store.compare_and_set(key, value, expected, Stay::WithUs).await {
            Ok(Set::Done(revision)) => {
                self.counts.claimed("ours");
                self.open.lock().insert(key.to_owned(), Open::new(revision, record, now));
                Claimed::Ours(revision)
            }
            Ok(Set::Was(None)) => Claimed::Theirs { revision: None, says: None, bound: false },
            Ok(Set::Was(Some((revision, value)))) => {
                self.counts.claimed("theirs");
                let there = self.read(&value);
                let holds = |record: &Record| {
                    record.kind != RecordKind::Removed
                        && record.until.is_none_or(|until| now < until)
                };
                let there = there.filter(holds);
                let bound = there.as_ref().is_some_and(|record| record.kind == RecordKind::Bound);
                Claimed::Theirs {
                    revision: Some(revision),
                    says: there.map(|r| r.publication),
                    bound,
                }
            }
            Err(error) => {
                self.failed(&error);
                self.without()
            }
        }
    }

    /// What a value says; `None`: nothing that is believed, and it may be written over.
    fn read(&self, value: &[u8]) -> Option<Record> {
        match Record::decode(value) {
            Ok(record) if record.group.is_some_and(|group| group != self.group) => {
                self.counts.other_secret();
                None
            }
            Ok(record) if record.publication.version.is_credible(self.shell.now()) => Some(record),
            Ok(_) => {
                self.counts.untrue();
                None
            }
            Err(error @ ReplicaError::Version(_)) => {
                self.counts.refused("newer", &error.to_string());
                None
            }
            Err(error) => {
                self.counts.refused("unreadable", &error.to_string());
                None
            }
        }
    }

    fn failed(&self, error: &PortError) {
        if !self.down.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the shared store of sessions can't be used");
            // It is to be asked from now on whether it is there again.
            self.bell.notify_one();
        }
        self.counts.up(Over::Store, false);
    }

    fn reached(&self) {
        self.down.store(false, Ordering::Relaxed);
        self.counts.up(Over::Store, true);
    }

    // === what follows behind requests ===

    /// Writes what happens here. Runs until `over`, then writes the rest.
    pub(super) async fn write(self: Arc<Self>, over: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut again = tokio::time::Instant::now();
        loop {
            let is_over = over.run_until_cancelled(self.wait()).await.is_none();
            self.shell.core().hears_news();
            let by = if is_over { Time::FAR } else { self.shell.now() };
            for publication in self.shell.core().publications(by, PENDING_MAX) {
                let key = key_of(&publication.pool, publication.role, publication.key);
                let mut left = self.left.lock();
                if left.len() < PENDING_MAX || left.contains_key(&key) {
                    left.insert(key, publication);
                } else {
                    self.counts.unsent(1, "too many registers wait for the store");
                }
            }
            for (pool, role, session) in self.shell.core().withdrawals() {
                let (this, key) = (self.clone(), key_of(&pool, role, session));
                tasks.spawn(async move { this.take_back(&key).await });
            }
            let down = self.down.load(Ordering::Relaxed);
            if !down || is_over {
                self.write_those(&mut tasks);
            }
            let asks = down || self.doubted.load(Ordering::Relaxed);
            if asks && tokio::time::Instant::now() >= again {
                again = tokio::time::Instant::now() + AGAIN;
                self.probe(&mut tasks);
            }
            while tasks.try_join_next().is_some() {}
            if is_over {
                break;
            }
        }
        // The rest, as long as it goes: who waits for us has patience for some seconds.
        loop {
            self.write_those(&mut tasks);
            let wrote = tasks.join_next().await.is_some();
            if !wrote && self.left.lock().is_empty() || self.down.load(Ordering::Relaxed) {
                break;
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Until there is something to do: not at once, so that what happens together is written together.
    async fn wait(&self) {
        let busy = self.down.load(Ordering::Relaxed)
            || self.doubted.load(Ordering::Relaxed)
            || !self.left.lock().is_empty();
        if !busy {
            let now = self.shell.now();
            let due = self.shell.core().next_publication().map_or(LOOK, |due| due.since(now));
            // Either way there is something to do.
            let _ = tokio::time::timeout(due.min(LOOK), self.bell.notified()).await;
        }
        tokio::time::sleep(TICK).await;
    }

    /// Asks a store that is down whether it is there again.
    fn probe(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        if self.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = self.clone();
        tasks.spawn(async move {
            match this.store.probe().await {
                Ok(()) => this.reached(),
                Err(error) => this.failed(&error),
            }
            this.doubted.store(false, Ordering::Relaxed);
            this.probing.store(false, Ordering::Relaxed);
        });
    }

    fn write_those(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let most = self.left.lock().len().min(AT_ONCE);
        for _ in 0..most {
            let Ok(permit) = self.writing.clone().try_acquire_owned() else { return };
            let this = self.clone();
            tasks.spawn(async move {
                // One after the other, so that what is written a second has nothing to do with ticks.
                while this.write_next().await {}
                drop(permit);
            });
        }
    }

    /// False: none is left, or the store has failed.
    async fn write_next(&self) -> bool {
        let Some((key, publication)) = self.left.lock().pop_first() else { return false };
        if let Err(error) = self.write_register(&key, &publication).await {
            self.failed(&error);
            // Unless its session has been used since.
            self.left.lock().entry(key).or_insert(publication);
            return false;
        }
        self.reached();
        true
    }

    /// Writes a register unless a later one is there.
    async fn write_register(&self, key: &str, publication: &Publication) -> Result<(), PortError> {
        let open = self.open.lock().remove(key);
        let known = || self.revisions.lock().get(key);
        let mut expected = open.map(|open| open.revision).or_else(known);
        let kind = if publication.home.is_some() { RecordKind::Bound } else { RecordKind::Removed };
        let group = Some(self.group);
        let record = Record { kind, publication: publication.clone(), until: None, group };
        let value = Bytes::from(record.encode());
        for _ in 0..TRIES {
            match self.store.compare_and_set(key, value.clone(), expected, Stay::Idle).await? {
                Set::Done(revision) => {
                    self.revisions.lock().note(key, revision);
                    self.counts.sent(1);
                    return Ok(());
                }
                Set::Was(None) => expected = None,
                Set::Was(Some((revision, there))) => {
                    let there = self.read(&there);
                    if there.as_ref().is_some_and(|t| says_the_same(t, &record)) {
                        self.revisions.lock().note(key, revision);
                        return Ok(());
                    }
                    let later = |t: &Record| t.publication.version > publication.version;
                    if let Some(there) = there.filter(later) {
                        // Another's first turn that came later binds what we have missed.
                        if there.kind != RecordKind::Tentative {
                            let now = self.shell.now();
                            let core = self.shell.core();
                            self.counts.received(core.handle_publication(now, there.publication));
                        }
                        return Ok(());
                    }
                    expected = Some(revision);
                }
            }
        }
        self.counts.unsent(1, "a register changed too often to be written");
        Ok(())
    }
}

/// Whether what is there needs no writing: another router has written the same, of this use or a later one.
fn says_the_same(there: &Record, ours: &Record) -> bool {
    let of = |record: &Record| (record.kind, record.publication.version);
    of(there) == of(ours) && there.publication.used >= ours.publication.used
}
