//! What routers say to each other (R23), and what they keep in a shared store (R24): msgpack, with a version.
//!
//! ```text
//! message = [1, writer, boot, sequence, now, group, kind, ...body, reads, ...more]
//! updates = [1] pools homes registers              chunk  = [5] next pools homes registers
//! loads   = [2] whole workers targets              hello  = [3]
//! fetch   = [4] since cursor                       bye    = [6]
//! more    = whole workers targets, of updates that loads go along with; else nothing
//! pools   = [name, ..]      homes = [[worker, started], ..]     workers = [name, ..]
//! register = [pool, role, key, sequence, writer, home, rank, used]
//! target  = [worker, rank, active, decoding, prefill, blocks, context]
//! record  = [1, kind, pool, role, key, sequence, writer, worker, rank, started, used, until, group]
//! ```
//!
//! A list may be longer than is known here: a later version adds at the end, and what an earlier one doesn't know it
//! passes over; so does a kind that is not known. Another first number is another language: its messages are refused.
//! `reads` says how much of the language its sender understands: what some would pass over is said to them apart.
//! docs/replication-protocol.md is the page for people.

mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

pub use read::decode;
pub use record::{Record, RecordKind};
pub use write::{encode, updates_that_fit};

use crate::msgpack::DecodeError;
use homing_core::core::Publication;
use homing_core::ids::DpRank;
use homing_core::load::PeerLoad;
use homing_core::time::Time;
use std::sync::Arc;

/// The language that is spoken here.
pub const VERSION: u64 = 1;
/// Registers, or targets, of one message at most.
pub const ENTRIES_MAX: usize = 16_384;
/// What is read here, as [`Head::reads`] tells others: loads that go along with updates.
pub const READS: u64 = 1;
/// Longest name of a worker or a pool, in bytes.
pub const NAME_MAX: usize = 256;

/// A message of one router.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who says it.
    pub head: Head,
    /// What it says; `None`: something that only later versions know.
    pub body: Option<Body>,
}

/// Who says something, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The router's number.
    pub writer: u32,
    /// When it started, in Unix microseconds: the same number later is another life.
    pub boot: u64,
    /// Counts what it says to all, from 1; 0 in what is for one.
    pub sequence: u64,
    /// Its clock.
    pub now: Time,
    /// A digest of the session secret: with another one no session of it means anything here.
    pub group: u64,
    /// How much of the language its sender reads: 0: what every release does; from [`READS`] on also [`Body::Updates`]
    /// with loads.
    pub reads: u64,
}

/// What is booked on targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// It is all that is booked: what is not named has nothing.
    pub whole: bool,
    /// Worker, rank, load.
    pub targets: Vec<(Arc<str>, DpRank, PeerLoad)>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Registers that were written or used.
    Updates {
        /// The registers.
        updates: Vec<Publication>,
        /// What is booked, in the same message. Who reads less passes over it.
        loads: Option<Loads>,
    },
    /// What is booked on targets.
    Loads(Loads),
    /// Somebody is new, or back: who is there?
    Hello,
    /// To one: give me your registers that were written or used since.
    Fetch {
        /// By the clock of the one who is asked; 0: all.
        since: Time,
        /// Where to go on; 0: at the beginning.
        cursor: u64,
    },
    /// To one: a part of them.
    Chunk {
        /// Where to go on; `None`: that was all.
        next: Option<u64>,
        /// The registers.
        updates: Vec<Publication>,
    },
    /// It leaves: what it had booked is over.
    Bye,
}

/// Why bytes are no message, or no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// Not msgpack.
    #[error(transparent)]
    Bytes(#[from] DecodeError),
    /// Not what routers say.
    #[error("not what routers say: expected {0}")]
    Foreign(&'static str),
    /// Another language, most likely of a later version.
    #[error("it is written in version {0}, and this router reads version {VERSION}")]
    Version(u64),
}
