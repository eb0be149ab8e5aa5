//! The registers that routers share: a transaction each, which says what is there where it has not happened.

use super::follow::{Heard, follow};
use super::generated::compare::{CompareResult, CompareTarget, TargetUnion};
use super::generated::kv_client::KvClient;
use super::generated::request_op::Request;
use super::generated::response_op::Response;
use super::generated::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
    TxnResponse,
};
use super::lease::{Leases, RENEWALS, TTL};
use super::wire::{Fault, Wire};
use bytes::Bytes;
use homing_runtime::replication::port::{
    BindingStore, Call, Following, MESSAGE_MAX, PortError, Reach, STORE_PATIENCE, Seen, Set, Stay,
};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Code;

/// What a follower may be behind; then etcd waits.
const BEHIND: usize = 1024;
/// Longest key, in characters.
const KEY_MAX: usize = 128;
/// How often leases are looked after.
const LOOK: Duration = Duration::from_secs(1);

/// A group's bindings in etcd. Clones are the same.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    wire: Wire,
    leases: Leases,
    prefix: String,
    home: tokio::runtime::Handle,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("wire", &self.inner.wire).finish_non_exhaustive()
    }
}

impl Store {
    /// The bindings of a group; `idle`: how long one stays that nobody writes. Call it on the runtime that shall carry
    /// the connection. Where etcd can't be reached it is there all the same, and tries again with each call.
    ///
    /// # Errors
    /// Where time cures nothing: etcd refuses us, or a setting can't be used.
    pub async fn open(reach: Reach, group: &str, idle: Duration) -> Result<Self, PortError> {
        let wire = Wire::new(reach)?;
        match wire.connect().await {
            Ok(()) => {}
            Err(error @ PortError::Unreachable { .. }) => {
                tracing::warn!(%error, "bindings can't be shared until it answers");
            }
            Err(error) => return Err(error),
        }
        let (leases, prefix) = (Leases::new(idle), super::prefix(group, "bindings"));
        let home = tokio::runtime::Handle::current();
        let inner = Arc::new(Inner { wire, leases, prefix, home });
        tokio::spawn(tend(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Ends our lease, and what hangs on it, now and not when its time is over.
    pub async fn close(&self) {
        if let Err(fault) = self.inner.leases.give_back(&self.inner.wire).await {
            tracing::debug!(error = %fault.error, "the lease could not be given back: it will run out");
        }
    }
}

/// Renews our lease, and has the next one for idle values ready, as long as the store is there.
async fn tend(store: Weak<Inner>) {
    let renewed_every = TTL / RENEWALS;
    let mut since_renewal = Duration::ZERO;
    loop {
        tokio::time::sleep(LOOK).await;
        since_renewal += LOOK;
        let Some(inner) = store.upgrade() else { return };
        // What fails here fails there, where somebody waits for it; or is tried again.
        if since_renewal >= renewed_every {
            since_renewal = Duration::ZERO;
            if let Err(fault) = inner.leases.renew(&inner.wire).await {
                tracing::debug!(error = %fault.error, "the lease could not be renewed");
                since_renewal = renewed_every;
            }
        }
        if let Err(fault) = inner.leases.prepare(&inner.wire).await {
            tracing::debug!(error = %fault.error, "no lease yet for what will be written next");
        }
    }
}

impl Inner {
    fn key(&self, key: &str) -> Result<Bytes, PortError> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
        if key.is_empty() || key.len() > KEY_MAX || !key.bytes().all(fits) {
            let shown: String = key.chars().take(KEY_MAX).collect();
            return Err(PortError::Setting(format!("{shown:?} is no key of a binding")));
        }
        Ok(format!("{}{key}", self.prefix).into())
    }

    async fn compare_and_set(
        &self,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
        stay: Stay,
    ) -> Result<Set, PortError> {
        if value.len() > MESSAGE_MAX {
            return Err(PortError::TooLarge(value.len()));
        }
        let key = self.key(key)?;
        let mut again = true;
        loop {
            let lease = self.leases.of(&self.wire, stay).await.map_err(|fault| fault.error)?;
            let put = PutRequest { key: key.clone(), value: value.clone(), lease };
            let txn = TxnRequest {
                compare: vec![is_at(key.clone(), expected)],
                success: vec![op(Request::RequestPut(put))],
                failure: vec![get(key.clone())],
            };
            match transact(&self.wire, txn).await {
                Ok(answer) if answer.succeeded => {
                    let revision = answer.header.unwrap_or_default().revision;
                    return Ok(Set::Done(revision.unsigned_abs()));
                }
                Ok(answer) => {
                    let there = found(answer);
                    return Ok(Set::Was(
                        there.map(|kv| (kv.mod_revision.unsigned_abs(), kv.value)),
                    ));
                }
                // The lease is gone: nothing has been written.
                Err(fault) if fault.code == Code::NotFound && again => {
                    again = false;
                    self.leases.forget(lease).await;
                }
                Err(fault) => return Err(fault.error),
            }
        }
    }

    async fn compare_and_remove(&self, key: &str, expected: u64) -> Result<bool, PortError> {
        let key = self.key(key)?;
        let txn = TxnRequest {
            compare: vec![is_at(key.clone(), Some(expected))],
            success: vec![op(Request::RequestDeleteRange(DeleteRangeRequest { key }))],
            failure: Vec::new(),
        };
        transact(&self.wire, txn).await.map(|done| done.succeeded).map_err(|fault| fault.error)
    }

    /// The whole call in the patience of one.
    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, PortError>>,
    ) -> Result<T, PortError> {
        let late = |_| super::wire::unreachable(&self.wire.all(), "it didn't answer in time");
        tokio::time::timeout(STORE_PATIENCE, call).await.map_err(late)?
    }
}

impl BindingStore for Store {
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        stay: Stay,
    ) -> Call<'a, Set> {
        let inner = &*self.inner;
        Box::pin(inner.in_time(inner.compare_and_set(key, value, expected, stay)))
    }

    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool> {
        let inner = &*self.inner;
        Box::pin(inner.in_time(inner.compare_and_remove(key, expected)))
    }

    fn follow(&self) -> Following {
        let (seen, following) = mpsc::channel(BEHIND);
        let (say, mut heard) = mpsc::channel(BEHIND);
        let inner = self.inner.clone();
        self.inner.home.spawn(async move {
            let prefix = inner.prefix.as_bytes();
            let tell = async {
                let mut has_said = false;
                while let Some(what) = heard.recv().await {
                    let Some(what) = as_seen(what, &inner.prefix) else { continue };
                    if what == Seen::Lost && !has_said {
                        // Nothing was said that could be lost.
                        continue;
                    }
                    has_said = true;
                    if seen.send(what).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = follow(&inner.wire, prefix, say) => {}
                () = tell => {}
                () = seen.closed() => {}
            }
        });
        following
    }

    fn leases(&self) -> bool {
        true
    }
}

/// As followers see it; `None`: no key of ours.
fn as_seen(what: Heard, prefix: &str) -> Option<Seen> {
    let short = |key: &[u8]| {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
        Some(key.to_owned())
    };
    Some(match what {
        Heard::Put(kv) => Seen::Put {
            key: short(&kv.key)?,
            revision: kv.mod_revision.unsigned_abs(),
            value: kv.value,
        },
        Heard::Gone(key) => Seen::Gone { key: short(&key)? },
        Heard::InStep => Seen::InStep,
        Heard::Lost { why, .. } => {
            tracing::debug!(why, "bindings can't be followed");
            Seen::Lost
        }
    })
}

/// One transaction.
pub(super) async fn transact(wire: &Wire, txn: TxnRequest) -> Result<TxnResponse, Fault> {
    wire.ask(|channel| {
        let txn = txn.clone();
        async move { KvClient::with_origin(channel.clone(), channel.origin.clone()).txn(txn).await }
    })
    .await
}

/// Whether a key was last written at a revision; `None`: whether it has no value.
pub(super) fn is_at(key: Bytes, expected: Option<u64>) -> Compare {
    let (target, union) = match expected {
        None => (CompareTarget::Create, TargetUnion::CreateRevision(0)),
        Some(revision) => {
            // Beyond what etcd counts to it equals none.
            let revision = i64::try_from(revision).unwrap_or(i64::MAX);
            (CompareTarget::Mod, TargetUnion::ModRevision(revision))
        }
    };
    Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key,
        target_union: Some(union),
    }
}

/// A step of a transaction.
pub(super) const fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Reads one key.
pub(super) fn get(key: Bytes) -> RequestOp {
    op(Request::RequestRange(RangeRequest { key, ..RangeRequest::default() }))
}

/// What [`get`] has read.
pub(super) fn found(answer: TxnResponse) -> Option<KeyValue> {
    answer.responses.into_iter().find_map(|done| match done.response {
        Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    })
}
