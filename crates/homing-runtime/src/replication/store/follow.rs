//! What others write, and what the store should hold and doesn't.
//!
//! A store may come back without what it held: it was wiped, or is another one. Whoever follows it anew is told all that
//! is there, and whatever of its own sessions was not among that is written again: first what it has written itself,
//! which others need not, then what nobody has. Sessions that go one by one while they are in use here are a sign of the
//! same: then it is followed anew.

use super::super::counts::Over;
use super::super::port::Seen;
use super::super::{ALONE_PATIENCE, JOIN_PATIENCE, take_over};
use super::{Store, key_of, pool_of};
use homing_core::core::{Cursor, Publication};
use homing_core::ids::{Role, SessionKey};
use homing_core::time::Time;
use homing_wire::replica::RecordKind;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What others have not written again by then is written by us.
const OTHERS_FIRST: Duration = Duration::from_secs(3);
/// Registers of a store that has lost them that wait to be written: what happens meanwhile comes in between.
const AT_ONCE: usize = 2048;
/// Between two looks whether there is room for more.
const PAUSE: Duration = Duration::from_millis(10);
/// The store is followed anew so long after the first sign that it has lost something, and no sooner after the last time.
const SETTLE: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);

/// The sessions that the store has told of; `None`: nobody needs to know.
#[derive(Debug, Default)]
pub(super) struct Listed(Mutex<Option<Those>>);

/// A list while they come, and sorted once it is looked at: a set would take four times as much, of a million.
#[derive(Debug, Default)]
struct Those {
    /// Digests. Keys are digests themselves: two that are the same in half of them won't be met.
    all: Vec<u64>,
    /// So many of them are in order, the first ones; the others are few.
    sorted: usize,
    later: HashSet<u64>,
}

impl Listed {
    fn begin(&self) {
        *self.0.lock() = Some(Those::default());
    }

    fn note(&self, role: Role, key: SessionKey) {
        if let Some(those) = &mut *self.0.lock() {
            match those.sorted {
                0 => those.all.push(digest(role, key)),
                _ => _ = those.later.insert(digest(role, key)),
            }
        }
    }

    fn lacks(&self, p: &Publication) -> bool {
        self.0.lock().as_mut().is_some_and(|those| {
            if those.sorted < those.all.len() {
                those.all.sort_unstable();
                those.all.dedup();
                those.sorted = those.all.len();
            }
            let it = digest(p.role, p.key);
            those.all.binary_search(&it).is_err() && !those.later.contains(&it)
        })
    }

    fn end(&self) {
        *self.0.lock() = None;
    }
}

fn digest(role: Role, SessionKey(key): SessionKey) -> u64 {
    // Half of the key, and another one for each role.
    (key as u64) ^ (role as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Store {
    /// Follows the store. Runs until `over`; `joined` hears once all that was there has been taken over.
    pub(in super::super) async fn follow(
        self: Arc<Self>,
        joined: oneshot::Sender<()>,
        over: CancellationToken,
    ) {
        let mut joined = Some(joined);
        // What it holds would lead nowhere yet, and this router can't be ready before it has a worker.
        while self.shell.core().knows_nothing() {
            if over.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                return;
            }
        }
        let mut following = self.store.follow();
        let began = Instant::now();
        let patience = tokio::time::sleep_until(began + ALONE_PATIENCE);
        tokio::pin!(patience);
        let mut refill = JoinSet::new();
        // When it is followed anew since it seems to have lost something, and when it was last.
        let mut anew: Option<Instant> = None;
        let mut last: Option<Instant> = None;
        self.listed.begin();
        loop {
            let seen = tokio::select! {
                biased;
                () = over.cancelled() => break,
                () = tokio::time::sleep_until(anew.unwrap_or_else(Instant::now)), if anew.is_some() => {
                    (anew, last) = (None, Some(Instant::now()));
                    tracing::warn!("the shared store has lost sessions that are in use: it is looked through");
                    self.begin_anew(&mut refill);
                    following = self.store.follow();
                    continue;
                }
                seen = following.recv() => seen,
                () = &mut patience, if joined.is_some() => {
                    tracing::warn!("this router begins without what the store holds: it learns as it hears of it");
                    self.joined(joined.take());
                    continue;
                }
            };
            match seen {
                Some(Seen::Put { key, value, .. }) => {
                    if joined.is_some() && patience.deadline() < began + JOIN_PATIENCE {
                        // It can be reached, and has things to say.
                        patience.as_mut().reset(began + JOIN_PATIENCE);
                    }
                    self.take(&key, &value, joined.is_some());
                }
                Some(Seen::Gone { key }) => {
                    if anew.is_none() && self.should_be_there(&key) {
                        let soon = Instant::now() + SETTLE;
                        anew = Some(last.map_or(soon, |last| soon.max(last + SELDOM)));
                    }
                }
                Some(Seen::InStep) => {
                    self.reached();
                    self.counts.in_step(Over::Store, true);
                    self.joined(joined.take());
                    if refill.is_empty() {
                        refill.spawn(self.clone().refill());
                    }
                }
                Some(Seen::Lost) => {
                    // It is asked at once whether it is away altogether, or goes on with what changes only.
                    self.doubted.store(true, std::sync::atomic::Ordering::Relaxed);
                    self.bell.notify_one();
                    self.counts.in_step(Over::Store, false);
                    self.begin_anew(&mut refill);
                }
                None => {
                    tracing::error!("the store of sessions can't be followed any more");
                    self.joined(joined.take());
                    break;
                }
            }
            while refill.try_join_next().is_some() {}
        }
    }

    /// All that is there is about to be told, of this store or of another one in its place.
    fn begin_anew(&self, refill: &mut JoinSet<()>) {
        *refill = JoinSet::new();
        self.revisions.lock().forget();
        self.listed.begin();
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
        self.listed.note(p.role, p.key);
        if record.kind == RecordKind::Tentative {
            return;
        }
        let received = take_over(self.shell.core(), self.shell.now(), p, joining);
        self.counts.received(received);
    }

    /// Whether a key that is gone is of a session that has not idled for as long as the store keeps one: nobody removes
    /// what is bound.
    fn should_be_there(&self, key: &str) -> bool {
        let (core, now) = (self.shell.core(), self.shell.now());
        let mut parts = key.splitn(3, '.');
        let mut part = || parts.next().unwrap_or_default();
        let (role, pool, session) = (part(), part(), part());
        let Ok(session) = u128::from_str_radix(session, 16).map(SessionKey) else { return false };
        let is_it = |r: Role, p: &str| r.to_string() == role && pool_of(p) == pool;
        core.idle(now, session, is_it).is_some_and(|idle| idle < self.rules.ttl / 2)
    }

    /// Writes what the store has not told of.
    async fn refill(self: Arc<Self>) {
        let ours = self.shell.core().writer();
        let mut written = self.refill_those(|p| p.version.writer == ours).await;
        tokio::time::sleep(OTHERS_FIRST).await;
        written += self.refill_those(|_| true).await;
        self.listed.end();
        if written > 0 {
            tracing::warn!(
                sessions = written,
                "sessions that the shared store didn't hold were written into it again"
            );
        }
    }

    async fn refill_those(&self, which: impl Fn(&Publication) -> bool) -> usize {
        let mut cursor = Cursor::default();
        let mut written = 0;
        loop {
            while self.left.lock().len() > AT_ONCE {
                tokio::time::sleep(PAUSE).await;
            }
            let some = self.shell.core().registers(self.shell.now(), &mut cursor, Time::ZERO);
            let Some(some) = some else { return written };
            for p in some.into_iter().filter(|p| p.home.is_some() && which(p)) {
                if self.listed.lacks(&p) {
                    self.listed.note(p.role, p.key);
                    written += 1;
                    let key = key_of(&p.pool, p.role, p.key);
                    // Unless its session has been used since.
                    self.left.lock().entry(key).or_insert(p);
                    self.bell.notify_one();
                }
            }
            tokio::task::yield_now().await;
        }
    }
}
