//! What targets have to do, and how fast they are.
//!
//! * `ledger`: one booking per request, from its selection to the end of its stream;
//! * `paths`: which blocks the requests of one target occupy together;
//! * [`pace`]: how long a target takes, learned from what it did;
//! * [`peers`]: what other routers have booked;
//! * [`report`]: what engines say that they have to do, and what that shows beyond all bookings;
//! * [`teller`]: when other routers are told what is booked here.

mod ledger;
pub mod pace;
mod paces;
mod paths;
pub mod peers;
pub mod report;
pub mod teller;

pub(crate) use ledger::{Booking, Claimed, Freed, Ledger};
pub use pace::Pace;
pub(crate) use paces::Paces;
pub use peers::PeerLoad;
pub(crate) use peers::Peers;

use crate::time::Time;
use std::iter::Sum;

/// Blocks are a measure of load also where nobody knows how many tokens one has.
const USUAL_BLOCK: u32 = 16;

/// Tokens of a block, of which `unit` says how many, or 0: that is not known.
pub(crate) fn block_of(unit: u32) -> u32 {
    if unit == 0 { USUAL_BLOCK } else { unit }
}

/// What a target has to do, summed over its bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests placed and not ended.
    pub active_requests: u32,
    /// Those of them whose first token has come.
    pub decoding: u32,
    /// Prompt tokens that must be computed before the first token of their requests.
    pub prefill_tokens: u64,
    /// KV blocks that they occupy, what several share once: of their prompts, and of their outputs so far.
    pub blocks: u64,
    /// Tokens of context that are read for each step of those that decode.
    pub context: u64,
    /// Pairs of one of `prefill_tokens` with a token before it.
    pub prefill_pairs: u64,
    /// The part of `prefill_tokens` that is computed first, which is the oldest request's,
    pub first_prefill: u64,
    /// its pairs,
    pub first_pairs: u64,
    /// and since when it can have been worked on.
    pub since: Time,
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |a, b| Self {
            active_requests: a.active_requests.saturating_add(b.active_requests),
            decoding: a.decoding.saturating_add(b.decoding),
            prefill_tokens: a.prefill_tokens.saturating_add(b.prefill_tokens),
            blocks: a.blocks.saturating_add(b.blocks),
            context: a.context.saturating_add(b.context),
            prefill_pairs: a.prefill_pairs.saturating_add(b.prefill_pairs),
            first_prefill: a.first_prefill.saturating_add(b.first_prefill),
            first_pairs: a.first_pairs.saturating_add(b.first_pairs),
            since: a.since.max(b.since),
        })
    }
}
