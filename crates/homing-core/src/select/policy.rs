//! What a candidate costs, policy by policy.

use super::{Candidate, Demand};
use crate::ids::{DpRank, WorkerId};
use crate::settings::PolicyKind;

/// Blocks are a measure here even where the engines' block size is unknown.
const USUAL_BLOCK: f64 = 16.0;

/// The weights of the `kv` policy, in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KvWeights {
    /// What one block of prefill costs against one block that is being decoded.
    pub(crate) prefill: f64,
    /// What one active request costs besides its blocks: its share of every step.
    pub(crate) request: f64,
    /// What one session at home costs: it will come again and wants its blocks kept. Without this, an
    /// idle moment makes every worker look alike, and shared openers draw all sessions to one cache.
    pub(crate) home: f64,
}

impl Default for KvWeights {
    fn default() -> Self {
        Self { prefill: 1.0, request: 4.0, home: 16.0 }
    }
}

/// A policy with its state.
#[derive(Clone, Debug)]
pub(crate) enum Policy {
    /// Fewest blocks to compute and to decode; the field's usual formula, and homes.
    Kv(KvWeights),
    /// Fewest active requests, then fewest prompt tokens to compute.
    LeastLoaded,
    /// One after the other.
    RoundRobin {
        /// Whose turn it was.
        last: Option<(WorkerId, DpRank)>,
    },
    /// Any.
    Random,
}

impl Policy {
    /// The policy of this kind, fresh.
    #[must_use]
    pub(crate) fn new(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Kv => Self::Kv(KvWeights::default()),
            PolicyKind::LeastLoaded => Self::LeastLoaded,
            PolicyKind::RoundRobin => Self::RoundRobin { last: None },
            PolicyKind::Random => Self::Random,
        }
    }

    /// What it costs to place the request at `c`; lower is better, always finite. Policies that don't
    /// weigh say 0.
    ///
    /// `kv`: `prefill * (waiting prefill + this prompt's uncached part) + decode + request * active
    /// + home * homes`, in blocks.
    #[must_use]
    pub(crate) fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        match self {
            Self::Kv(w) => {
                let block =
                    if demand.block_size == 0 { USUAL_BLOCK } else { f64::from(demand.block_size) };
                let uncached = f64::from(demand.uncached(c.overlap));
                let prefill = (c.load.prefill_tokens as f64 + uncached) / block;
                w.prefill * prefill
                    + c.load.blocks as f64
                    + w.request * f64::from(c.load.active_requests)
                    + w.home * f64::from(c.homes)
            }
            Self::LeastLoaded => {
                // Tokens only break ties between equal counts of requests: scaled below one request.
                let tokens = c.load.prefill_tokens as f64;
                f64::from(c.load.active_requests) + tokens / (tokens + 1e6)
            }
            Self::RoundRobin { .. } | Self::Random => 0.0,
        }
    }
}
