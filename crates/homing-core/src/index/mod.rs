//! What each target has cached, block by block.
//!
//! * [`event`]: what engines say;
//! * [`chain`]: the index that serves;
//! * [`naive`]: the plain one, exact and obvious: its oracle.

pub mod chain;
pub mod event;
pub mod naive;

use crate::ids::{DpRank, WorkerId};
use smallvec::SmallVec;

pub use chain::ChainIndex;
pub use naive::NaiveIndex;

/// One target's share of a prompt: how many of its leading blocks it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Who.
    pub worker: WorkerId,
    /// Which of its ranks.
    pub rank: DpRank,
    /// Leading blocks of the prompt in device memory, at most what the engine can reuse.
    pub blocks: u32,
}

/// The overlaps of one prompt, in the order of (worker, rank); targets without any are left out.
pub type Overlaps = SmallVec<[Overlap; 8]>;
