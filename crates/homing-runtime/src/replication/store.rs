//! Bindings in a store that all routers share (R24): each session is one register there, written by compare-and-set.
//!
//! A first turn is made known before its dispatch ([`Store::claim`]); whatever is bound, used or removed follows behind
//! the requests; what others write is followed. A bound turn waits for nothing here.

use super::counts::Counts;
use super::port::{BindingStore, Following, PortError, Seen, Set, Stay};
use super::take_over;
use crate::shell::Shell;
use bytes::Bytes;
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
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often what has happened is written.
const TICK: Duration = Duration::from_millis(10);
/// Writes that are under way at once.
const AT_ONCE: usize = 64;
/// Registers that wait to be written, at most; what is beyond is written when its session is used next.
const PENDING_MAX: usize = 65_536;
/// How often one write is tried against others' before it is left for later.
const TRIES: usize = 8;
/// Where the store can't be reached: when it is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// Where a store has no leases a claim holds for so long, and is renewed before.
const CLAIM_LIFE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);
/// A claim that nobody has confirmed or withdrawn by then never will be.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// Revisions of late writes that are kept: a write that knows its register's needs one round trip.
const REVISIONS: usize = 32_768;
/// For so long who is new waits for what the store holds.
const JOIN_PATIENCE: Duration = Duration::from_secs(15);

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    shell: Arc<Shell>,
    store: Arc<dyn BindingStore>,
    counts: Arc<Counts>,
    /// Whether a first turn fails while the store can't be reached.
    strict: bool,
    /// It has failed, and has not been reached since.
    down: AtomicBool,
    /// Claims of ours that nobody has confirmed yet.
    open: Mutex<HashMap<String, Open>>,
    revisions: Mutex<Revisions>,
    writing: Arc<Semaphore>,
    /// Registers that could not be written.
    left: Mutex<BTreeMap<String, Publication>>,
}

#[derive(Clone, Debug)]
struct Open {
    revision: u64,
    record: Record,
    since: Time,
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

    fn get(&self, key: &str) -> Option<u64> {
        self.0.iter().find_map(|some| some.get(key)).copied()
    }
}

/// A session's key in a store.
fn key_of(pool: &str, role: Role, key: SessionKey) -> String {
    // Pools' names may hold anything: what tells two apart is their hash, and their sessions' keys are apart anyway.
    let pool = xxhash_rust::xxh3::xxh3_64(pool.as_bytes());
    format!("{role}.{pool:016x}.{:032x}", key.0)
}

impl Store {
    pub(super) fn new(
        shell: Arc<Shell>,
        store: Arc<dyn BindingStore>,
        counts: Arc<Counts>,
        strict: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            shell,
            store,
            counts,
            strict,
            down: AtomicBool::new(false),
            open: Mutex::default(),
            revisions: Mutex::default(),
            writing: Arc::new(Semaphore::new(AT_ONCE)),
            left: Mutex::default(),
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
        if self.strict { Claimed::Unreachable } else { Claimed::Without }
    }

    async fn write_claim(
        &self,
        key: &str,
        publication: Publication,
        expected: Option<u64>,
    ) -> Claimed {
        let now = self.shell.now();
        let until = (!self.store.leases()).then(|| now + CLAIM_LIFE);
        let record = Record { kind: RecordKind::Tentative, publication, until };
        let value = Bytes::from(record.encode());
        match self.store.compare_and_set(key, value, expected, Stay::WithUs).await {
            Ok(Set::Done(revision)) => {
                self.counts.claimed("ours");
                self.open.lock().insert(key.to_owned(), Open { revision, record, since: now });
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

    async fn take_back(&self, key: &str) {
        let open = self.open.lock().remove(key);
        let Some(open) = open else { return };
        if let Err(error) = self.store.compare_and_remove(key, open.revision).await {
            // It idles out, or ends with us.
            tracing::debug!(%error, "a claim could not be taken back");
        }
    }

    fn read(&self, value: &[u8]) -> Option<Record> {
        match Record::decode(value) {
            Ok(record) => Some(record),
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
            self.counts.up(false);
        }
    }

    fn reached(&self) {
        if self.down.swap(false, Ordering::Relaxed) {
            self.counts.up(true);
        }
    }

    // === what follows behind requests ===

    /// Writes what happens here. Runs until `over`, then writes the rest.
    pub(super) async fn write(self: Arc<Self>, over: CancellationToken) {
        let mut tasks = JoinSet::new();
        let mut renewed = self.shell.now();
        let mut again = tokio::time::Instant::now();
        loop {
            let is_over = over.run_until_cancelled(tokio::time::sleep(TICK)).await.is_none();
            for publication in self.shell.core().publications(PENDING_MAX) {
                let key = key_of(&publication.pool, publication.role, publication.key);
                let mut left = self.left.lock();
                if left.len() < PENDING_MAX || left.contains_key(&key) {
                    left.insert(key, publication);
                } else {
                    self.counts.unsent("too many registers wait for the store");
                }
            }
            for (pool, role, session) in self.shell.core().withdrawals() {
                let (this, key) = (self.clone(), key_of(&pool, role, session));
                tasks.spawn(async move { this.take_back(&key).await });
            }
            let waits = self.down.load(Ordering::Relaxed) && tokio::time::Instant::now() < again;
            if !waits || is_over {
                again = tokio::time::Instant::now() + AGAIN;
                self.write_those(&mut tasks).await;
            }
            let now = self.shell.now();
            if now >= renewed + RENEW {
                renewed = now;
                self.renew(now).await;
            }
            while tasks.try_join_next().is_some() {}
            if is_over {
                break;
            }
        }
        // The rest, as long as it goes: who waits for us has patience for some seconds.
        loop {
            self.write_those(&mut tasks).await;
            let wrote = tasks.join_next().await.is_some();
            if !wrote && self.left.lock().is_empty() || self.down.load(Ordering::Relaxed) {
                break;
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn write_those(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        // Of a store that is down one write finds out that it is back.
        let is_down = self.down.load(Ordering::Relaxed);
        let most = if is_down { 1 } else { self.left.lock().len().min(AT_ONCE) };
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
        let record = Record { kind, publication: publication.clone(), until: None };
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
        self.counts.unsent("a register changed too often to be written");
        Ok(())
    }

    /// Claims that nobody has confirmed: those of a store without leases hold for a while only, and those that are
    /// forgotten go.
    async fn renew(&self, now: Time) {
        let open: Vec<(String, Open)> =
            self.open.lock().iter().map(|(key, open)| (key.clone(), open.clone())).collect();
        for (key, open) in open {
            if now >= open.since + FORGOTTEN {
                self.take_back(&key).await;
                continue;
            }
            if self.store.leases() {
                continue;
            }
            let record = Record { until: Some(now + CLAIM_LIFE), ..open.record };
            let value = Bytes::from(record.encode());
            let set =
                self.store.compare_and_set(&key, value, Some(open.revision), Stay::WithUs).await;
            let mut all = self.open.lock();
            match set {
                Ok(Set::Done(revision)) => {
                    if let Some(known) = all.get_mut(&key).filter(|o| o.revision == open.revision) {
                        known.revision = revision;
                    }
                }
                // Somebody has bound it meanwhile.
                Ok(Set::Was(_)) => {
                    if all.get(&key).is_some_and(|o| o.revision == open.revision) {
                        all.remove(&key);
                    }
                }
                Err(_) => {}
            }
        }
    }

    // === what others write ===

    /// Follows the store. Runs until `over`; `joined` hears once all that was there has been taken over.
    pub(super) async fn follow(
        self: Arc<Self>,
        mut following: Following,
        joined: oneshot::Sender<()>,
        over: CancellationToken,
    ) {
        let mut joined = Some(joined);
        let patience = tokio::time::sleep(JOIN_PATIENCE);
        tokio::pin!(patience);
        loop {
            let seen = tokio::select! {
                biased;
                () = over.cancelled() => break,
                seen = following.recv() => seen,
                () = &mut patience, if joined.is_some() => {
                    tracing::warn!("this router begins without what the store holds: it learns as it hears of it");
                    self.joined(joined.take());
                    continue;
                }
            };
            match seen {
                Some(Seen::Put { key, value, .. }) => self.take(&key, &value, joined.is_some()),
                // It has idled out everywhere, or was taken back.
                Some(Seen::Gone { .. }) => {}
                Some(Seen::InStep) => {
                    self.reached();
                    self.counts.up(true);
                    self.counts.peers(0, true);
                    self.joined(joined.take());
                }
                Some(Seen::Lost) => {
                    self.counts.up(false);
                    self.counts.peers(0, false);
                }
                None => {
                    tracing::error!("the store of sessions can't be followed any more");
                    self.joined(joined.take());
                    break;
                }
            }
        }
    }

    fn joined(&self, joined: Option<oneshot::Sender<()>>) {
        if let Some(joined) = joined {
            self.shell.core().restored();
            // Whoever waited may be gone.
            let _ = joined.send(());
        }
    }

    fn take(&self, key: &str, value: &[u8], joining: bool) {
        let Some(record) = self.read(value) else { return };
        let p = record.publication;
        if key_of(&p.pool, p.role, p.key) != key {
            return self
                .counts
                .refused("forged", "a register of the shared store is not that of its key");
        }
        if record.kind == RecordKind::Tentative {
            return;
        }
        let received = take_over(self.shell.core(), self.shell.now(), p, joining);
        self.counts.received(received);
    }
}
