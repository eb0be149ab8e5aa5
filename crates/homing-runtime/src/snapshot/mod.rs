//! The snapshot file: bindings that outlive the process (R25), and the secret that keys them (R01).
//!
//! This is the file alone. It knows nothing of the affinity table: who writes a snapshot walks the
//! table and hands over batches, who loads one is handed batches and decides what still lives. The
//! trick is that a file is either whole or not there: it is written beside its target, synced and
//! renamed, and it is verified from its first byte to its last before the first binding is given
//! out. So ten million bindings stream in both directions through buffers of one block.
//!
//! * `format`: the bytes, and their documentation (`docs/snapshot-format.md` says the same);
//! * `writer`: temporary file, sync, rename;
//! * `reader`: two passes, the first of which believes nothing;
//! * `aside`: the names beside the target: damaged files that are kept, left-overs that are not;
//! * `key`: where the session secret comes from.
//!
//! Everything blocks; call it from a thread that may.

mod aside;
mod format;
mod key;
mod reader;
mod writer;

pub use aside::set_aside;
pub use format::VERSION;
pub use key::{Fingerprint, KeyError, Origin, Secret, secret};
pub use reader::{Damage, Problem, Reader, read_header};
pub use writer::{WriteError, Writer, Written};

use homing_core::ids::Role;
use std::fmt;

/// A binding as the file keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SavedBinding {
    /// Which of the file's places it belongs to, from 0.
    pub partition: u32,
    /// The session key's 128 bits.
    pub key: u128,
    /// The worker's id when the file was written. Which worker that was, says the [`Life`] of this id.
    /// Where no life has it, the worker had been forgotten by then, and so should be the binding.
    pub worker: u32,
    /// The rank, where the binding names one.
    pub rank: Option<u16>,
    /// The version's first half (R23).
    pub sequence: u64,
    /// The version's second half: who wrote it.
    pub writer: u32,
    /// Since when it idles, in Unix microseconds.
    pub idle_since: u64,
    /// Its session's final turn has been committed.
    pub last: bool,
}

impl fmt::Debug for SavedBinding {
    /// Only a stub of the key, as [`homing_core::ids::SessionKey`] does it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedBinding")
            .field("partition", &self.partition)
            .field("key", &homing_core::ids::SessionKey(self.key))
            .field("worker", &self.worker)
            .field("rank", &self.rank)
            .field("version", &(self.sequence, self.writer))
            .field("idle_since", &self.idle_since)
            .field("last", &self.last)
            .finish()
    }
}

/// One incarnation of a worker that bindings of the file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The id that it has in this file. Another process gives other ids.
    pub id: u32,
    /// The worker's name.
    pub name: String,
    /// When its process started, in Unix milliseconds, where known.
    pub started: Option<u64>,
}

/// A partition that bindings of the file belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The pool's name.
    pub pool: String,
    /// What the workers of the partition do.
    pub role: Role,
}

/// What a snapshot says before its records.
#[derive(Clone, Debug)]
pub struct Header {
    /// When the file was begun, in Unix microseconds.
    pub created: u64,
    /// Under which secret its keys are.
    pub keying: Keying,
}

/// The secret of a file, or how to recognise it.
#[derive(Clone, Debug)]
pub enum Keying {
    /// The router drew the secret itself, and this file is the only place that keeps it.
    Own(Secret),
    /// The secret is in `affinity.key_file`; this is its fingerprint.
    KeyFile(Fingerprint),
}

impl Header {
    /// The header of a file written at `created` (Unix microseconds) by a router whose secret came
    /// from `origin`: a secret of a key file is not copied into the snapshot.
    #[must_use]
    pub fn new(created: u64, secret: &Secret, origin: Origin) -> Self {
        let keying = match origin {
            Origin::KeyFile { .. } => Keying::KeyFile(secret.fingerprint()),
            Origin::Snapshot { .. } | Origin::Fresh => Keying::Own(secret.clone()),
        };
        Self { created, keying }
    }

    /// Whether the file's keys were made with `secret`. If not, none of its bindings can ever be
    /// asked for again.
    #[must_use]
    pub fn is_keyed_by(&self, secret: &Secret) -> bool {
        match &self.keying {
            Keying::Own(own) => own.fingerprint() == secret.fingerprint(),
            Keying::KeyFile(print) => *print == secret.fingerprint(),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
