//! The async shell around the core: everything that has a clock, a socket or a task.
//!
//! ```text
//! settings     one raw file, environment and flags become one validated Settings
//! clock        Unix time that never goes back
//! shell        the core with what it needs: time, secret, metrics, wake-ups
//! guard        tokens of the core that release themselves when dropped
//! upstream     connections to workers: how each is reached, and what their failures mean
//! pem          certificates and keys out of files
//! ask          what a worker is asked about itself, bounded
//! fleet        the workers as tasks: probing them, learning what they serve
//! ingest       their KV events over ZMQ, into the index
//! compute      a bounded pool for work that would stall streams
//! snapshot     bindings and the session secret, in a file
//! keep         the core's sessions into that file, and back
//! traces       spans over OTLP
//! metrics      every metric, in one place
//! lifecycle    tasks, and how they end
//! ```
//!
//! Discovery is a port: a stream of changes. This version has the static one, in `fleet`.

pub mod ask;
pub mod clock;
pub mod compute;
pub mod fleet;
pub mod guard;
pub mod ingest;
mod interleave;
#[cfg(test)]
mod journeys;
pub mod keep;
pub mod keys;
pub mod lifecycle;
pub mod metrics;
pub mod pem;
pub mod recorder;
pub mod replication;
pub mod settings;
pub mod shell;
pub mod snapshot;
pub mod stamp;
pub mod tenants;
#[cfg(test)]
mod testing;
pub mod traces;
pub mod upstream;
