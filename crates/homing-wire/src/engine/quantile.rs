//! Cumulative histograms: added over label sets and workers, subtracted over time, asked for quantiles.
//!
//! The quantile is Prometheus' `histogram_quantile` for classic buckets, so that our tables and an
//! operator's dashboards show the same number: observations are taken to be spread evenly within their
//! bucket, the first bucket begins at 0, and what lies in the last, endless bucket counts as that
//! bucket's lower bound.

/// The most bounds of one histogram; engines have about twenty. More are not taken.
const MAX_BUCKETS: usize = 1024;

/// A histogram as the text format has it: how many observations are at or below each bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending, with the count up to each. The last bound of a whole one is infinite.
    buckets: Vec<(f64, f64)>,
    /// The sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// Adds `count` observations that are at or below `le`.
    pub fn add_bucket(&mut self, le: f64, count: f64) {
        if le.is_nan() || count.is_nan() {
            return;
        }
        match self.buckets.binary_search_by(|(bound, _)| bound.total_cmp(&le)) {
            Ok(at) => self.buckets[at].1 += count,
            Err(at) if self.buckets.len() < MAX_BUCKETS => self.buckets.insert(at, (le, count)),
            Err(_) => {}
        }
    }

    /// Whether it has no buckets at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// How many observations there are.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// The mean of all observations; `None` without any.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// Adds another worker's histogram of the same bounds.
    pub fn merge(&mut self, other: &Self) {
        other.buckets.iter().for_each(|(le, count)| self.add_bucket(*le, *count));
        self.sum += other.sum;
    }

    /// What was observed since `earlier`. If anything went down the process is a new one, and all that
    /// it has is new.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |le: f64| {
            let found = earlier.buckets.iter().find(|(bound, _)| bound.total_cmp(&le).is_eq());
            found.map_or(0.0, |(_, count)| *count)
        };
        if self.buckets.iter().any(|(le, count)| *count < before(*le)) {
            return self.clone();
        }
        Self {
            buckets: self.buckets.iter().map(|(le, count)| (*le, count - before(*le))).collect(),
            sum: self.sum - earlier.sum,
        }
    }

    /// The value below which the fraction `q` of the observations lies; `None` without observations,
    /// without the endless bucket, with no other bucket, or for a `q` outside of 0 to 1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (last, finite) = self.buckets.split_last()?;
        let highest = finite.last()?.0;
        if last.0 != f64::INFINITY || last.1 <= 0.0 || !(0.0..=1.0).contains(&q) {
            return None;
        }
        let rank = q * last.1;
        let (mut start, mut below) = (0.0_f64, 0.0_f64);
        for (index, (end, count)) in finite.iter().enumerate() {
            // Counts that were read while they changed may fall; they never do in truth.
            let count = count.max(below);
            if count >= rank {
                return Some(match index {
                    0 if *end <= 0.0 => *end,
                    _ if count > below => {
                        start + (end - start) * ((rank - below) / (count - below))
                    }
                    _ => *end,
                });
            }
            (start, below) = (*end, count);
        }
        Some(highest)
    }
}
