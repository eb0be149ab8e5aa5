//! Leases: how long what is written stays.
//!
//! * *Idle*: etcd knows no time-to-live of a key but by leases, and a lease a key is dear. So keys share one: for an
//!   eighth of the idle time all that is written hangs on the same lease, whose time is the idle time and that eighth,
//!   and which nobody renews. A key that is written again moves to the lease of then; one that isn't goes with its own,
//!   at most an eighth late. A lease takes a bounded number of keys, since etcd removes all of them in one step.
//! * *With us*: one lease, renewed while this process lives.

use super::generated::lease_client::LeaseClient;
use super::generated::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest};
use super::wire::{Fault, Wire, unreachable};
use homing_runtime::replication::port::Stay;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tonic::Code;
use tonic::codegen::tokio_stream;

/// The time of what stays with us, and of registrations.
pub(super) const TTL: Duration = Duration::from_secs(15);
/// A lease is renewed so often in its time.
pub(super) const RENEWALS: u32 = 3;
/// The idle time is cut into so many parts.
const PARTS: u32 = 8;
/// Shortest part.
const PART_LEAST: Duration = Duration::from_secs(1);
/// Most writes of a lease: so many keys go at once at most.
const WRITES: u32 = 10_000;
/// The next lease is there before the last one is used up: from this part of it on, in quarters.
const EARLY: u32 = 3;

/// A new lease.
pub(super) async fn grant(wire: &Wire, time: Duration) -> Result<i64, Fault> {
    let ttl = i64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    let answer = wire
        .ask(async |channel| {
            let mut client = LeaseClient::with_origin(channel.clone(), channel.origin.clone());
            client.lease_grant(LeaseGrantRequest { ttl }).await
        })
        .await?;
    if answer.error.is_empty() {
        Ok(answer.id)
    } else {
        Err(unreachable("lease", &answer.error).into())
    }
}

/// Renews a lease; false: it is no more.
pub(super) async fn renew(wire: &Wire, id: i64) -> Result<bool, Fault> {
    let answer = wire
        .ask(async |channel| {
            let mut client = LeaseClient::with_origin(channel.clone(), channel.origin.clone());
            let once = tokio_stream::once(LeaseKeepAliveRequest { id });
            let answers = client.lease_keep_alive(once).await?;
            let (head, mut answers, extensions) = answers.into_parts();
            let first = answers.message().await?;
            Ok(tonic::Response::from_parts(head, first, extensions))
        })
        .await?;
    Ok(answer.is_some_and(|answer| answer.ttl > 0))
}

/// Ends a lease, and what hangs on it.
pub(super) async fn revoke(wire: &Wire, id: i64) -> Result<(), Fault> {
    let ended = wire
        .ask(async |channel| {
            let mut client = LeaseClient::with_origin(channel.clone(), channel.origin.clone());
            client.lease_revoke(LeaseRevokeRequest { id }).await
        })
        .await;
    match ended {
        Ok(_) => Ok(()),
        Err(fault) if fault.code == Code::NotFound => Ok(()),
        Err(fault) => Err(fault),
    }
}

struct Bucket {
    id: i64,
    granted: Instant,
    writes: u32,
}

/// The leases of a store.
#[derive(Default)]
pub(super) struct Leases {
    idle: Duration,
    bucket: Mutex<Option<Bucket>>,
    own: Mutex<Option<i64>>,
}

impl Leases {
    /// For values that stay so long after they were written.
    pub(super) fn new(idle: Duration) -> Self {
        Self { idle, ..Self::default() }
    }

    fn part(&self) -> Duration {
        (self.idle / PARTS).max(PART_LEAST)
    }

    /// What a write hangs on.
    pub(super) async fn of(&self, wire: &Wire, stay: Stay) -> Result<i64, Fault> {
        match stay {
            Stay::Idle => {
                // One at a time asks for a lease; the others want the same.
                let mut bucket = self.bucket.lock().await;
                if let Some(bucket) = bucket.as_mut()
                    && bucket.writes < WRITES
                    && bucket.granted.elapsed() < self.part()
                {
                    bucket.writes += 1;
                    return Ok(bucket.id);
                }
                let new = self.grant(wire).await?;
                let id = new.id;
                *bucket = Some(Bucket { writes: 1, ..new });
                Ok(id)
            }
            Stay::WithUs => {
                let mut own = self.own.lock().await;
                if let Some(id) = *own {
                    return Ok(id);
                }
                let id = grant(wire, TTL).await?;
                *own = Some(id);
                Ok(id)
            }
        }
    }

    async fn grant(&self, wire: &Wire) -> Result<Bucket, Fault> {
        let granted = Instant::now();
        let id = grant(wire, self.idle + self.part()).await?;
        Ok(Bucket { id, granted, writes: 0 })
    }

    /// That one is no more.
    pub(super) async fn forget(&self, id: i64) {
        let mut bucket = self.bucket.lock().await;
        if bucket.as_ref().is_some_and(|bucket| bucket.id == id) {
            *bucket = None;
        }
        drop(bucket);
        let mut own = self.own.lock().await;
        if *own == Some(id) {
            *own = None;
        }
    }

    /// Asks for the next bucket's lease before a write has to wait for it.
    pub(super) async fn prepare(&self, wire: &Wire) -> Result<(), Fault> {
        let is_fresh = self.bucket.lock().await.as_ref().is_some_and(|bucket| {
            bucket.writes < WRITES / 4 * EARLY && bucket.granted.elapsed() < self.part() / 4 * EARLY
        });
        if !is_fresh {
            let new = self.grant(wire).await?;
            *self.bucket.lock().await = Some(new);
        }
        Ok(())
    }

    /// Renews our own, if there is one.
    pub(super) async fn renew(&self, wire: &Wire) -> Result<(), Fault> {
        let own = *self.own.lock().await;
        let Some(id) = own else { return Ok(()) };
        if !renew(wire, id).await? {
            tracing::warn!(
                "etcd has let this router's lease go: what hung on it is gone, and is written again"
            );
            self.forget(id).await;
        }
        Ok(())
    }

    /// Gives our own back.
    pub(super) async fn give_back(&self, wire: &Wire) -> Result<(), Fault> {
        let own = self.own.lock().await.take();
        match own {
            Some(id) => revoke(wire, id).await,
            None => Ok(()),
        }
    }
}
