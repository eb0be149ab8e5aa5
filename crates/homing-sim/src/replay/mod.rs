//! A trace through the selection core and a fleet of engines, in virtual time.
//!
//! The core is the one that serves, with everything that it is told in production: sessions, holds and leases, KV
//! events, what engines say of their usage, workers that go and come back. The engines are [`engine::fast`], and
//! nothing waits for a clock. Equal inputs give equal outcomes: events of one instant happen in the order in which
//! they were scheduled.
//!
//! * [`world`]: what happens when; `flight`: what becomes of a request;
//! * `router`: one core, and what it knows of the fleet;
//! * [`baselines`]: what others do, to compare with;
//! * `kv`: what engines publish;
//! * `share`: what routers tell each other;
//! * [`outcome`]: what came of it;
//! * [`bounds`]: what no router can exceed.
//!
//! [`engine::fast`]: crate::engine::fast

pub mod baselines;
pub mod bounds;
pub mod outcome;
pub mod world;

mod flight;
mod kv;
mod router;
mod share;

use crate::engine::EngineConfig;
use homing_core::settings::{CoreSettings, Mode};
use std::time::Duration;

pub use baselines::Baseline;
pub use outcome::{Outcome, Quantiles, Sample};
pub use share::Sharing;
pub use world::run;

/// A worker that is away for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Which one, from 0 on.
    pub worker: usize,
    /// Its process ends so long after the start, with all that it ran and held.
    pub from: Duration,
    /// Another one is ready in its place by then.
    pub until: Duration,
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct Config {
    /// Engines; at least one.
    pub workers: usize,
    /// Each of them; in blocks of the trace's size, whatever this says.
    pub engine: EngineConfig,
    /// Routers; requests go to them in turn. At least one.
    pub replicas: usize,
    /// What they tell each other.
    pub sharing: Sharing,
    /// Each of them.
    pub core: CoreSettings,
    /// A policy that takes the place of theirs.
    pub baseline: Option<Baseline>,
    /// How requests regard their sessions; `None`: they name none.
    pub affinity: Option<Mode>,
    /// Requests, or sessions that are closed loops, come so many times as often. Positive.
    pub rate_scale: f64,
    /// Whether routers are told of the engines' caches. Without that they book whole prompts, and a policy that
    /// weighs caches finds them empty.
    pub index: bool,
    /// How long KV events take.
    pub event_delay: Duration,
    /// Who fails when.
    pub outages: Vec<Outage>,
    /// Every random choice follows from it.
    pub seed: u64,
}

/// What can't be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// There is nowhere to go, or nobody to ask.
    #[error("a replay needs at least one worker and one replica")]
    Nobody,
    /// A rate that is none.
    #[error("the rate scale must be a positive number")]
    Rate,
    /// An outage of nobody, or one that ends before it begins.
    #[error(
        "worker w{worker} can't fail from {from:?} to {until:?}: there are {workers} workers, from w0 on"
    )]
    Outage {
        /// Which one.
        worker: usize,
        /// From when on.
        from: Duration,
        /// Until when.
        until: Duration,
        /// How many there are.
        workers: usize,
    },
    /// The core and the simulation disagree about who is there.
    #[error("the core refused a change of the fleet: {0}")]
    Fleet(#[from] homing_core::fleet::FleetError),
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod snapshot_tests;
