//! What the world says about the fleet, what becomes of it, and where requests go: the registry's words.

use super::worker::{Cache, Drain, Probe, Ranks, ServedName, State, WorkerSpec};
use crate::ids::{NameId, PartitionId, WorkerId};
use std::sync::Arc;
use thiserror::Error;

/// Names in all. An engine that invents names must not fill our memory.
pub const MAX_NAMES: usize = 65_536;
/// Workers at once.
pub const MAX_WORKERS: usize = 65_536;

/// What the world says about the fleet.
#[derive(Clone, Debug)]
pub enum FleetChange {
    /// A worker is discovered; under a name in use it replaces the old registration, unless it is that
    /// very registration, seen again.
    Register(WorkerSpec),
    /// Discovery is not sure of it at the moment (a gap in its watch): it is still known, and not to be
    /// used until it answers a probe.
    Unsure(WorkerId),
    /// It is gone.
    Remove(WorkerId),
    /// It told what it serves.
    Serves(WorkerId, Vec<ServedName>),
    /// A probe, or a request's connection, went well or badly.
    Probed(WorkerId, Probe),
    /// It lives another life: its events say so.
    Restarted(WorkerId),
    /// Its process began at this time (Unix milliseconds); another one than before is another life.
    Started(WorkerId, u64),
    /// It wants a key that we don't have; or, with `false`, it does not any more.
    Barred(WorkerId, bool),
    /// It has these ranks from now on.
    Ranks(WorkerId, Ranks),
    /// How its cache is known, and how large it is.
    Cache(WorkerId, Cache),
    /// It gets no new sessions; or, with `None`, it does again.
    Drain(WorkerId, Option<Drain>),
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
