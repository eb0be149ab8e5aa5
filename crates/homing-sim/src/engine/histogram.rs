//! What an engine records of its times: counts in buckets of fixed edges.
//!
//! It only counts. Whoever asks for a quantile asks `homing_wire`'s histogram, which reads `/metrics`
//! text too: live figures come from that text and virtual ones from [`Histogram::snapshot`], and the
//! two are equal to the last bit.

use homing_wire::engine::Histogram as Snapshot;
use std::time::Duration;

/// vLLM's edges for `time_to_first_token_seconds`, in seconds (seen in vLLM 0.32.0).
pub const TTFT_EDGES: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// vLLM's edges for `inter_token_latency_seconds`, in seconds.
pub const ITL_EDGES: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// vLLM's edges for `e2e_request_latency_seconds` and `request_queue_time_seconds`, in seconds.
pub const REQUEST_EDGES: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Counts per bucket, and the sum of what was observed.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Upper edges, ascending, in seconds.
    edges: &'static [f64],
    /// One per edge and one above the last; not cumulative.
    counts: Vec<u64>,
    /// In seconds.
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper edges, ascending, in seconds.
    #[must_use]
    pub fn new(edges: &'static [f64]) -> Self {
        Self { edges, counts: vec![0; edges.len() + 1], sum: 0.0 }
    }

    /// Counts one duration.
    pub fn observe(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        let at = self.edges.partition_point(|edge| *edge < seconds);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += seconds;
    }

    /// (upper edge in seconds, how many values were at or below it), ascending. The last edge is
    /// infinite, and its count that of all values.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let edges = self.edges.iter().copied().chain([f64::INFINITY]);
        edges.zip(&self.counts).scan(0, |below, (edge, count)| {
            *below += count;
            Some((edge, *below))
        })
    }

    /// The sum of all values, in seconds.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// What was recorded so far, as a reader of the engine's `/metrics` would have it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.sum = self.sum;
        self.cumulative().for_each(|(edge, count)| snapshot.add_bucket(edge, count as f64));
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values_ms: &[u64]) -> Histogram {
        let mut it = Histogram::new(&[0.1, 0.2, 0.4]);
        for ms in values_ms {
            it.observe(Duration::from_millis(*ms));
        }
        it
    }

    #[test]
    fn an_edge_belongs_to_the_bucket_below_it() {
        let it = of(&[50, 100, 101, 900]);
        let cumulative: Vec<_> = it.cumulative().collect();
        assert_eq!(cumulative, [(0.1, 2), (0.2, 3), (0.4, 3), (f64::INFINITY, 4)]);
    }

    #[test]
    fn a_snapshot_answers_what_was_observed() {
        let it = of(&[150, 160, 170, 900]).snapshot();
        assert_eq!((it.count(), it.mean()), (4.0, Some(1.38 / 4.0)));
        // Rank 1.5 of the 3 between 0.1 and 0.2; the one above the last edge counts as that edge.
        let p = |q| it.quantile(q).expect("four values");
        assert!((p(0.375) - 0.15).abs() < 1e-12, "{}", p(0.375));
        assert_eq!(p(1.0), 0.4);
        let none = of(&[]).snapshot();
        assert_eq!((none.count(), none.quantile(0.5)), (0.0, None));
        assert!(!none.is_empty(), "it has its edges");
    }
}
