//! Why a request went where it went. A grant carries the short form; a preview gives the long one, and of every
//! decision that was acted upon a record is kept for a while.
//!
//! * [`record`]: what is kept of a request;
//! * `records`: how it is noted, step by step; `lowest`: and which of many targets;
//! * `stands`: what lies there of targets;
//! * `ring`: where it lies, and how old ones make room;
//! * `recall`: what is made of it for who wants to know.

mod lowest;
pub(crate) mod recall;
pub mod record;
pub(crate) mod records;
pub(crate) mod ring;
pub(crate) mod stands;

pub use record::Record;
pub use records::{BEST, RECORD_BYTES, WHOLE};

use crate::affinity::{Outcome, Steer};
use crate::ask::Refusal;
use crate::ids::Target;
use crate::select::Candidate;
use crate::select::policy::Terms;
use crate::trust::Trust;

/// What the filter and the pin rule said, and what was picked: the part of a decision that is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Targets that could have served it.
    pub eligible: u32,
    /// Targets that the policy was asked about (one, when the session pins).
    pub considered: u32,
    /// Leading blocks of the prompt that the picked target holds by the index.
    pub overlap_blocks: u32,
    /// How far that was believed when it was picked.
    pub trust: Trust,
    /// The most that any eligible target holds.
    pub best_overlap_blocks: u32,
    /// Prompt tokens that the picked target reuses if the index is right, whatever that is trusted.
    pub cached_tokens: u32,
}

/// A decision that was not acted upon (R16).
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// Where the request would go; `None`: it would wait, or be refused.
    pub target: Option<Target>,
    /// It would wait.
    pub waits: bool,
    /// It would be refused.
    pub refusal: Option<Refusal>,
    /// What would happen to its session, if it is answered well.
    pub outcome: Outcome,
    /// Where its session lives.
    pub home: Option<Target>,
    /// What its session asks of selection.
    pub steer: Option<Steer>,
    /// Every target that serves the model with its cost, in the order of ids.
    pub candidates: Vec<(Candidate, f64)>,
    /// What each of these costs is made of.
    pub terms: Vec<Terms>,
}
