//! The selection core of Homing: sans-I/O, deterministic, the same in production, in the simulator and
//! in tests. It has no clock, socket, task, log, environment or global; what it must know is an
//! argument (`now` first), what it wants done is a value that it returns.
//!
//! # The way of a request
//!
//! ```text
//! route(model)                which partition serves it
//! look_up(ask)                who holds how much of its prompt       index/
//! admit(now, ask)             resolve the session -> Hold            affinity/
//!                             filter, pin, score, pick               select/
//!                             book the load, or wait                 load, queue
//! check_dispatch(now, grant)  the last look                          affinity/contract
//!   ... the host dispatches; the worker begins to answer ...
//! commit(now, checked)        the hold becomes a lease               affinity/contract
//! progress, finish            the lease ends with the stream
//! ```
//!
//! A failed dispatch goes through `retry`, or ends in `abandon`. See [`SelectionCore`].

pub mod affinity;
pub mod ask;
pub mod blame;
pub mod core;
pub mod dice;
pub mod explain;
pub mod fleet;
pub mod hash;
pub mod ids;
pub mod index;
mod keys;
pub mod load;
pub mod partition;
mod queue;
pub mod select;
pub mod settings;
mod shelf;
pub mod time;
pub mod trust;

pub use crate::core::SelectionCore;
