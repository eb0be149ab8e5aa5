//! A worker's side: its registration under a lease, kept alive for as long as somebody says that it is well.
//!
//! The key is made, never written over: an id that another URL holds stays its. Where the same URL holds it, from an
//! earlier run of whoever registers, what becomes of that is the caller's to say ([`Claim`]).

use super::generated::request_op::Request;
use super::generated::{DeleteRangeRequest, KeyValue, PutRequest, TxnRequest};
use super::lease::{RENEWALS, TTL, grant, renew, revoke};
use super::store::{found, get, is_at, op, transact};
use super::wire::{Fault, Wire};
use bytes::Bytes;
use homing_runtime::replication::port::{PortError, Reach};
use serde_json::Value;
use std::time::Duration;
use thiserror::Error;
use tonic::Code;

/// What a registration of the same worker is, that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// This worker's: it goes on (a side-car was started again, its engine was not).
    Continue,
    /// One of an earlier life: it ends, and another begins (the worker itself was started again).
    Anew,
}

/// Why a worker is not registered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// etcd.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The id is another's.
    #[error(
        "the id `{id}` is registered for {url}: give this worker another one, or wait until that one has gone"
    )]
    InUse {
        /// Which id.
        id: String,
        /// Whose.
        url: String,
    },
}

impl From<Fault> for RegisterError {
    fn from(fault: Fault) -> Self {
        Self::Port(fault.error)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Registrar {
    wire: Wire,
    id: String,
    key: Bytes,
    url: String,
    value: Bytes,
    claim: Claim,
    ttl: Duration,
    lease: Option<i64>,
}

impl Registrar {
    /// For one worker, by the keys of `[[workers]]`, `id` and `url` among them. `every`: how often [`Registrar::keep`]
    /// will be called; a registration outlives three calls that are missing, and 15 s at least. Nothing is said yet.
    ///
    /// # Errors
    /// [`PortError::Setting`].
    pub fn new(
        reach: Reach,
        group: &str,
        worker: &Value,
        every: Duration,
        claim: Claim,
    ) -> Result<Self, PortError> {
        let text = |key: &str| worker[key].as_str().unwrap_or_default().to_owned();
        let (id, url) = (text("id"), text("url"));
        Ok(Self {
            wire: Wire::new(reach)?,
            key: format!("{}{id}", super::prefix(group, "workers")).into(),
            value: worker.to_string().into(),
            ttl: TTL.max(every * RENEWALS),
            lease: None,
            id,
            url,
            claim,
        })
    }

    /// Connects, to know whether we are let in.
    ///
    /// # Errors
    /// As every call; [`PortError::Unreachable`] is no reason to give up.
    pub async fn try_out(&self) -> Result<(), PortError> {
        self.wire.connect().await
    }

    /// Says that the worker is well: registers it, or keeps that alive. True: it was registered by this call.
    ///
    /// # Errors
    /// [`RegisterError`]; the next call tries again.
    pub async fn keep(&mut self) -> Result<bool, RegisterError> {
        let lease = match self.lease {
            Some(lease) if renew(&self.wire, lease).await? => lease,
            _ => {
                self.lease = None;
                let lease = grant(&self.wire, self.ttl).await?;
                self.lease = Some(lease);
                lease
            }
        };
        match self.register(lease).await {
            Err(fault) if fault.code == Code::NotFound => {
                self.lease = None;
                Err(RegisterError::from(fault))
            }
            Err(fault) => Err(fault.into()),
            Ok(Written::Ours) => Ok(false),
            Ok(Written::Now) => {
                // From here on what is there is this life's.
                self.claim = Claim::Continue;
                Ok(true)
            }
            Ok(Written::Theirs(there)) => {
                let url = url_of(&there);
                Err(RegisterError::InUse { id: self.id.clone(), url })
            }
        }
    }

    async fn register(&self, lease: i64) -> Result<Written, Fault> {
        let put = PutRequest { key: self.key.clone(), value: self.value.clone(), lease };
        let put = || op(Request::RequestPut(put.clone()));
        let make = TxnRequest {
            compare: vec![is_at(self.key.clone(), None)],
            success: vec![put()],
            failure: vec![get(self.key.clone())],
        };
        let Some(there) = self.unless_done(make.clone()).await? else { return Ok(Written::Now) };
        if there.lease == lease {
            return Ok(Written::Ours);
        }
        if url_of(&there) != self.url {
            return Ok(Written::Theirs(there));
        }
        let revision = Some(there.mod_revision.unsigned_abs());
        let still = is_at(self.key.clone(), revision);
        let step = match self.claim {
            Claim::Continue => put(),
            Claim::Anew => {
                let delete = DeleteRangeRequest { key: self.key.clone() };
                op(Request::RequestDeleteRange(delete))
            }
        };
        let step = TxnRequest {
            compare: vec![still],
            success: vec![step],
            failure: vec![get(self.key.clone())],
        };
        // Whoever was quicker is asked about the next time.
        if let Some(there) = self.unless_done(step).await? {
            return Ok(Written::Theirs(there));
        }
        if self.claim == Claim::Continue {
            return Ok(Written::Now);
        }
        let there = self.unless_done(make).await?;
        Ok(there.map_or(Written::Now, Written::Theirs))
    }

    /// One step; what is there where it was not done. A key that has gone meanwhile counts as one without a value.
    async fn unless_done(&self, txn: TxnRequest) -> Result<Option<KeyValue>, Fault> {
        let answer = transact(&self.wire, txn).await?;
        if answer.succeeded {
            return Ok(None);
        }
        Ok(Some(found(answer).unwrap_or_default()))
    }

    /// Takes it back, at once.
    ///
    /// # Errors
    /// Where that can't be said: it ends when its time is over.
    pub async fn withdraw(&mut self) -> Result<(), PortError> {
        match self.lease.take() {
            Some(lease) => revoke(&self.wire, lease).await.map_err(|fault| fault.error),
            None => Ok(()),
        }
    }
}

/// What became of it.
enum Written {
    Now,
    Ours,
    Theirs(KeyValue),
}

/// The URL in a registration.
fn url_of(there: &KeyValue) -> String {
    let value: Option<Value> = serde_json::from_slice(&there.value).ok();
    let url = value.as_ref().and_then(|value| value["url"].as_str());
    url.unwrap_or("something else").chars().take(256).collect()
}
