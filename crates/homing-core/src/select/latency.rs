//! `latency`: costs in milliseconds.

use super::policy::{Policy, Terms, Weight, terms};
use super::{Candidate, Demand};

/// The time that the request takes, and the time that it takes from others. How fast workers are is learned
/// ([`crate::load::pace`]); there is nothing to set. The weights are of replays of public traces
/// (`docs/routing-quality.md`), where any within a factor of two do about as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// What a millisecond of prefill counts for besides itself: it fills the cache, and those who come later wait for it.
    pub work: f64,
    /// What a millisecond that others' tokens wait for its prefill counts for.
    pub stall: f64,
    /// What a millisecond of decoding counts for where its own tokens take longer,
    pub decode: f64,
    /// and where others' do.
    pub others: f64,
    /// What one session at home costs, in tokens of prefill: it will come again and wants its blocks kept.
    pub home: f64,
    /// What a block in host memory costs, against one that must be computed: it has to be copied.
    pub host: f64,
    /// What one costs that is farther away: it has to be read first.
    pub disk: f64,
}

impl Default for Latency {
    fn default() -> Self {
        let (host, disk) = (0.1, 0.3);
        Self { work: 1.5, stall: 0.05, decode: 0.3, others: 0.6, home: 1024.0, host, disk }
    }
}

impl Latency {
    /// The parts of its cost, and when its first token comes.
    #[inline]
    fn parts(&self, demand: &Demand, c: &Candidate) -> ([f64; 6], f64) {
        let (pace, load) = (&c.pace, &c.load);
        let uncached = demand.uncached(c.believed());
        let far = (self.host * f64::from(c.host) + self.disk * f64::from(c.disk))
            * f64::from(demand.block_size)
            * f64::from(pace.token);
        let prefill = pace.prefill_ms(uncached, demand.tokens) + far;
        let decoding = f64::from(load.decoding);
        // A token of prefill delays those that decode beside it by less than itself where engines take turns.
        let stalls = f64::from(pace.stall / pace.token.max(1e-6)).min(1.0);
        let answer = f64::from(demand.answer);
        let more = f64::from(pace.sequence) + f64::from(pace.context) * f64::from(demand.tokens);
        let queue = f64::from(pace.base) + pace.queue_ms(demand.now, load);
        let parts = [
            queue,
            prefill * (1.0 + self.work),
            self.stall * stalls * decoding * prefill,
            self.decode * answer * pace.step_ms(load, demand.tokens),
            self.others * answer * more * f64::from(load.active_requests),
            self.home * f64::from(c.homes) * f64::from(pace.token),
        ];
        (parts, queue + prefill)
    }
}

impl Policy for Latency {
    fn cost(&self, demand: &Demand, c: &Candidate) -> f64 {
        self.parts(demand, c).0.iter().sum()
    }

    fn is_constant(&self) -> bool {
        true
    }

    fn weigh(&self, demand: &Demand, c: &Candidate) -> Weight {
        let (parts, first_ms) = self.parts(demand, c);
        Weight::of(parts, first_ms)
    }

    fn terms(&self, demand: &Demand, c: &Candidate) -> Terms {
        let [queue, prefill, stall, decode, others, homes] = self.parts(demand, c).0;
        terms([
            ("queue_ms", queue),
            ("prefill_ms", prefill),
            ("stall_ms", stall),
            ("decode_ms", decode),
            ("others_ms", others),
            ("homes_ms", homes),
        ])
    }

    /// Some 4 ms of waiting for the first token: no forecast is better, and who takes one of such by chance keeps work even.
    fn near(&self) -> f64 {
        10.0
    }
}
