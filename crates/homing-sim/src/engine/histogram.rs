//! A Prometheus histogram with fixed edges, and the quantile that Prometheus would compute from it.
//!
//! Live figures are read from `/metrics` text and virtual ones from the engine itself; both go through
//! this one type, so that their quantiles are comparable.

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    edges: Vec<f64>,
    /// One per edge and one above the last; not cumulative.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper edges, ascending.
    #[must_use]
    pub fn new(edges: &[f64]) -> Self {
        Self { edges: edges.to_vec(), counts: vec![0; edges.len() + 1], sum: 0.0 }
    }

    /// From cumulative counts as the text format has them: one per edge, then the total.
    #[must_use]
    pub fn from_cumulative(edges: Vec<f64>, cumulative: &[u64], sum: f64) -> Self {
        let mut counts = vec![0; edges.len() + 1];
        let mut below = 0;
        for (count, upto) in counts.iter_mut().zip(cumulative) {
            *count = upto.saturating_sub(below);
            below = below.max(*upto);
        }
        Self { edges, counts, sum }
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

    /// Adds another histogram with the same edges; one with other edges is ignored, unless `self` has
    /// none yet and takes them over.
    pub fn merge(&mut self, other: &Self) {
        if self.edges.is_empty() && self.count() == 0 {
            *self = other.clone();
        } else if self.edges == other.edges {
            for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
                *mine += theirs;
            }
            self.sum += other.sum;
        }
    }

    /// The `q`-quantile in seconds, as Prometheus's `histogram_quantile` estimates it: linear within
    /// the bucket, the last finite edge for what lies above it. 0 where nothing was observed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        let total = self.count();
        let rank = q.clamp(0.0, 1.0) * total as f64;
        let mut below = 0u64;
        for (i, count) in self.counts.iter().enumerate() {
            let upto = below + count;
            if *count > 0 && upto as f64 >= rank {
                let Some(upper) = self.edges.get(i) else { break };
                let lower = if i == 0 { 0.0 } else { self.edges[i - 1] };
                return lower + (upper - lower) * ((rank - below as f64) / *count as f64);
            }
            below = upto;
        }
        if total == 0 { 0.0 } else { self.edges.last().copied().unwrap_or(0.0) }
    }

    /// The mean in seconds; 0 where nothing was observed.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum / self.count() as f64 }
    }

    /// How many values were observed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum in seconds.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// (upper edge, how many values were at or below it), ascending; without the infinite bucket.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.edges.iter().zip(&self.counts).scan(0, |below, (edge, count)| {
            *below += count;
            Some((*edge, *below))
        })
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
    fn quantiles_are_linear_within_a_bucket() {
        let it = of(&[150, 160, 170, 180]);
        assert!((it.quantile(0.5) - 0.15).abs() < 1e-9);
        assert!((it.quantile(1.0) - 0.2).abs() < 1e-9);
        assert!((of(&[50, 150]).quantile(0.25) - 0.05).abs() < 1e-9, "the first one begins at 0");
        assert!((of(&[900]).quantile(0.5) - 0.4).abs() < 1e-9, "above the last edge: that edge");
        assert!(of(&[]).quantile(0.5).abs() < 1e-9);
    }

    #[test]
    fn an_edge_belongs_to_the_bucket_below_it() {
        assert_eq!(of(&[100]).cumulative().next(), Some((0.1, 1)));
    }

    #[test]
    fn cumulative_counts_give_the_histogram_back_and_merging_adds() {
        let it = of(&[50, 150, 150, 900]);
        let mut cumulative: Vec<u64> = it.cumulative().map(|(_, n)| n).collect();
        cumulative.push(it.count());
        let back = Histogram::from_cumulative(vec![0.1, 0.2, 0.4], &cumulative, it.sum());
        assert_eq!(it, back);
        let mut twice = Histogram::default();
        twice.merge(&it);
        twice.merge(&back);
        assert_eq!(twice.count(), 8);
        assert!((twice.mean() - it.mean()).abs() < 1e-9);
    }
}
