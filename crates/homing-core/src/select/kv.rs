//! `kv`: fewest blocks to compute and to decode.

use super::policy::{Policy, Terms, Weight, terms};
use super::{Candidate, Demand};
use crate::load::block_of;

/// Fewest blocks to compute and to decode; the field's usual formula, and homes. Weights in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kv {
    /// What one block of prefill costs against one block that is being decoded.
    pub prefill: f64,
    /// What one active request costs besides its blocks: its share of every step.
    pub request: f64,
    /// What one session at home costs: it will come again and wants its blocks kept. Without this, an
    /// idle moment makes every worker look alike, and shared openers draw all sessions to one cache.
    pub home: f64,
    /// What a block in host memory costs, against one that must be computed: it has to be copied.
    pub host: f64,
    /// What one costs that is farther away: it has to be read first.
    pub disk: f64,
}

impl Default for Kv {
    fn default() -> Self {
        Self { prefill: 1.0, request: 4.0, home: 16.0, host: 0.1, disk: 0.3 }
    }
}

impl Kv {
    fn parts(&self, demand: &Demand, c: &Candidate) -> [f64; 5] {
        let block = f64::from(block_of(demand.unit));
        let uncached = f64::from(demand.uncached(c.believed()));
        let far = self.host * f64::from(c.host) + self.disk * f64::from(c.disk);
        [
            self.prefill * c.load.prefill_tokens as f64 / block,
            self.prefill * (uncached / block + far),
            c.load.blocks as f64,
            self.request * f64::from(c.load.active_requests),
            self.home * f64::from(c.homes),
        ]
    }
}

impl Policy for Kv {
    /// `prefill * (waiting prefill + this prompt's uncached part + host * blocks there + disk * blocks there)
    /// + decode + request * active + home * homes`, in blocks.
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        self.parts(demand, c).iter().sum()
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn weigh(&self, demand: &Demand, c: &Candidate) -> Weight {
        // No milliseconds.
        Weight::of(self.parts(demand, c), 0.0)
    }

    fn terms(&self, demand: &Demand, c: &Candidate) -> Terms {
        let [waiting, prefill, decode, active, homes] = self.parts(demand, c);
        terms([
            ("waiting_prefill", waiting),
            ("prefill", prefill),
            ("decode", decode),
            ("active_requests", active),
            ("homes", homes),
        ])
    }

    /// A quarter of a request.
    fn near(&self) -> f64 {
        self.request / 4.0
    }
}
