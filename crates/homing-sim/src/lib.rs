//! Simulated engines, alone and as a fleet: everything that Homing is tried on without a GPU.
//!
//! From the inside out:
//!
//! * [`engine`]: one engine, sans-I/O: paged KV cache, continuous batching, a stated cost model.
//! * [`text`]: readable filler of a wanted length in tokens, and the replies of a model that has none.
//! * [`workload`]: multi-turn agent sessions with the statistics of real ones.
//! * [`plan`]: a workload in tokens, and the best hit rate that any routing of it could reach.
//! * [`fleet`]: several engines and a router in virtual time.
//! * [`trace`]: recorded requests, from the formats of the field and our own.
//! * [`replay`]: a trace through the selection core and a fleet of engines, in virtual time.
//! * `serve` (feature `serve`): one engine behind the OpenAI API in real time: the mock.
//!
//! All but the last have no clock, no socket and no randomness of their own; what they do follows from
//! their arguments.

#![forbid(unsafe_code)]

pub mod engine;
pub mod fleet;
pub mod plan;
pub mod replay;
#[cfg(feature = "serve")]
pub mod serve;
pub mod text;
pub mod trace;
pub mod workload;
