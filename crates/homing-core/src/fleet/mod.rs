//! The fleet: which workers there are, how they are, and what they serve.
//!
//! * [`worker`]: a worker's description and the states that it goes through;
//! * [`change`]: what is said of it, and what becomes of that;
//! * [`registry`]: all of them, their incarnations, and the pools that they form.

pub mod change;
pub mod registry;
pub mod worker;

pub use change::{FleetChange, FleetError, FleetEvent, Route, RouteError};
pub use registry::{Life, Registry, Row};
pub use worker::{
    Cache, CacheSource, Drain, Probe, Ranks, ServedName, State, WorkerInfo, WorkerSpec,
};
