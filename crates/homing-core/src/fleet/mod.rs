//! The fleet: which workers there are, how they are, and what they serve.
//!
//! * [`worker`]: a worker's description and the states that it goes through;
//! * [`registry`]: all of them, their incarnations, and the pools that they form.

pub mod registry;
pub mod worker;

pub use registry::{FleetChange, FleetEvent, Registry, Route, RouteError};
pub use worker::{Probe, ServedName, State, WorkerInfo, WorkerSpec};
