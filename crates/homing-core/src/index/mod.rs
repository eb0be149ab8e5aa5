//! What each target has cached, block by block.
//!
//! * [`event`]: what engines say;
//! * [`naive`]: the plain index, exact and obvious. It serves this version, and stays as the oracle of
//!   the faster one that a later step brings.

pub mod event;
pub mod naive;

use crate::ids::{DpRank, WorkerId};
use smallvec::SmallVec;

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
