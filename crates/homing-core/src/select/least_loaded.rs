//! `least_loaded`: counts of requests, and nothing about caches.

use super::policy::{Policy, Terms, terms};
use super::{Candidate, Demand};

/// Fewest active requests, then fewest prompt tokens to compute.
#[derive(Clone, Copy, Debug)]
pub struct LeastLoaded;

impl Policy for LeastLoaded {
    fn cost(&self, _: &Demand, c: &Candidate) -> f64 {
        // Tokens only break ties between equal counts of requests: scaled below one request.
        let tokens = c.load.prefill_tokens as f64;
        f64::from(c.load.active_requests) + tokens / (tokens + 1e6)
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn terms(&self, _: &Demand, c: &Candidate) -> Terms {
        let tokens = c.load.prefill_tokens as f64;
        let active = f64::from(c.load.active_requests);
        terms([("active_requests", active), ("prefill_tokens", tokens / (tokens + 1e6))])
    }
}
