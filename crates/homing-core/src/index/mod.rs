//! What each target has cached, block by block.
//!
//! * [`event`]: what engines say;
//! * [`chain`]: the index that serves;
//! * [`naive`]: the plain one, exact and obvious: its oracle;
//! * [`recency`]: the one for workers that publish nothing, fed by what is sent to them;
//! * [`seen`]: which prefixes came by lately, whoever holds them.

pub mod chain;
pub mod event;
mod groups;
pub mod naive;
pub mod recency;
mod said;
pub mod seen;

use crate::ids::{DpRank, WorkerId};
use smallvec::SmallVec;

pub use chain::ChainIndex;
pub use naive::NaiveIndex;
pub use recency::{RecencyIndex, TextReader};

/// One target's share of a prompt: how many of its leading blocks it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Who.
    pub worker: WorkerId,
    /// Which of its ranks.
    pub rank: DpRank,
    /// Leading blocks of the prompt in device memory (or on their way there), at most what the engine can
    /// reuse.
    pub blocks: u32,
    /// Of these, those that are there already: a prompt on its way is not.
    pub told: u32,
    /// Blocks behind these that host memory adds.
    pub host: u32,
    /// Blocks behind these that a disk, or a shared store, adds.
    pub disk: u32,
}

impl Overlap {
    /// Leading blocks that need not be computed.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.blocks.saturating_add(self.host).saturating_add(self.disk)
    }
}

/// The overlaps of one prompt, in the order of (worker, rank); targets without any are left out.
pub type Overlaps = SmallVec<[Overlap; 8]>;

#[cfg(test)]
#[path = "vectors_tests.rs"]
mod vectors_tests;
