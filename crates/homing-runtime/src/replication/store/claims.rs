//! First turns that the store knows of, and nobody has confirmed yet: each is held as long as its request is on its way.
//!
//! Beside everything else, and many at a time: of a store that is far away, or of a router with many slow first turns,
//! none may run out because another one is being renewed.

use super::super::port::{Set, Stay};
use super::Store;
use bytes::Bytes;
use homing_core::time::Time;
use homing_wire::replica::{Record, RecordKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Where a store has no leases a claim holds for so long,
pub(super) const LIFE: Duration = Duration::from_secs(15);
/// and is renewed before: twice may fail.
pub(super) const RENEW: Duration = Duration::from_secs(5);
/// A claim that nobody has confirmed or withdrawn by then never will be.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// How often it is looked which are due.
const LOOK: Duration = Duration::from_millis(250);
/// Renewals that are under way at once.
const AT_ONCE: usize = 512;

/// A claim of ours that nobody has confirmed yet.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) revision: u64,
    record: Record,
    since: Time,
    /// When something is to be done about it, and whether it is being done.
    next: Time,
    busy: bool,
}

impl Open {
    pub(super) fn new(revision: u64, record: Record, now: Time) -> Self {
        let next = now + if record.until.is_some() { RENEW } else { FORGOTTEN };
        Self { revision, record, since: now, next, busy: false }
    }

    /// Whether the other is the same claim, renewed or not.
    fn is(&self, other: &Record) -> bool {
        other.kind == RecordKind::Tentative
            && other.publication.version == self.record.publication.version
    }
}

impl Store {
    /// Renews claims as long as this router lives.
    pub(in super::super) async fn hold_claims(self: Arc<Self>, over: CancellationToken) {
        let mut tasks = JoinSet::new();
        while over.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            while tasks.try_join_next().is_some() {}
            self.renew(self.shell.now(), &mut tasks);
        }
    }

    /// Begins to renew those that are due, who waits for longest first.
    pub(in super::super) fn renew(self: &Arc<Self>, now: Time, tasks: &mut JoinSet<()>) {
        let mut all = self.open.lock();
        let mut due: Vec<(Time, String)> = all
            .iter()
            .filter(|(_, open)| !open.busy && now >= open.next)
            .map(|(key, open)| (open.next, key.clone()))
            .collect();
        due.sort_unstable();
        for (_, key) in due.into_iter().take(AT_ONCE.saturating_sub(tasks.len())) {
            let Some(open) = all.get_mut(&key) else { continue };
            open.busy = true;
            let (this, open) = (self.clone(), open.clone());
            tasks.spawn(async move { this.renew_one(now, &key, open).await });
        }
    }

    async fn renew_one(&self, now: Time, key: &str, open: Open) {
        if now >= open.since + FORGOTTEN {
            return self.take_back(key).await;
        }
        let record = Record { until: Some(now + LIFE), ..open.record.clone() };
        let value = Bytes::from(record.encode());
        let mut expected = open.revision;
        let renewed = loop {
            match self.store.compare_and_set(key, value.clone(), Some(expected), Stay::WithUs).await
            {
                Ok(Set::Done(revision)) => break Some(revision),
                // Ours all the same: it was written, and the answer was lost.
                Ok(Set::Was(Some((revision, there))))
                    if revision != expected && self.read(&there).is_some_and(|it| open.is(&it)) =>
                {
                    expected = revision;
                }
                // Somebody has bound it meanwhile.
                Ok(Set::Was(_)) => break None,
                Err(error) => {
                    tracing::debug!(%error, "a claim could not be renewed: it is tried again");
                    if let Some(known) = self.open.lock().get_mut(key) {
                        known.busy = false;
                    }
                    return;
                }
            }
        };
        let ended = {
            let mut all = self.open.lock();
            let known = all.get_mut(key).filter(|known| open.is(&known.record));
            match (known, renewed) {
                (Some(known), Some(revision)) => {
                    (known.revision, known.next, known.busy) = (revision, now + RENEW, false);
                    None
                }
                (Some(_), None) => {
                    all.remove(key);
                    None
                }
                (None, renewed) => renewed,
            }
        };
        // It was taken back meanwhile, or is being bound, by what was known of it then.
        if let Some(revision) = ended {
            self.remove(key, revision).await;
        }
    }

    /// A claim of ours comes to nothing.
    pub(super) async fn take_back(&self, key: &str) {
        let open = self.open.lock().remove(key);
        if let Some(open) = open {
            self.remove(key, open.revision).await;
        }
    }

    async fn remove(&self, key: &str, revision: u64) {
        if let Err(error) = self.store.compare_and_remove(key, revision).await {
            // It idles out, or ends with us.
            tracing::debug!(%error, "a claim could not be taken back");
        }
    }
}
