//! What a replay came to.

use std::time::Duration;

/// One policy's run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests that were answered in full.
    pub answered: u64,
    /// Requests that the router refused, or no engine could take.
    pub refused: u64,
    /// Requests that broke off in the middle.
    pub broken: u64,
    /// Prompt tokens that engines took in, and those of them that they had cached.
    pub prompt_tokens: u64,
    /// See above.
    pub cached_tokens: u64,
    /// Times that a request lost its blocks while running.
    pub preemptions: u64,
    /// Time to the first token, in microseconds.
    pub ttft_us: Quantiles,
    /// Time per token after it, of answers of at least two, in nanoseconds.
    pub tpot_ns: Quantiles,
    /// By worker: how long it computed, and how many requests it got.
    pub busy: Vec<Duration>,
    /// See above.
    pub placed: Vec<u64>,
    /// How the run went, one for each [`Self::width`].
    pub samples: Vec<Sample>,
    /// What a sample is of.
    pub width: Duration,
    /// From the first request to the end of the last.
    pub lasted: Duration,
}

/// A span of a run, by worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Prompt tokens that it took in.
    pub prompt_tokens: Vec<u64>,
    /// Of these, cached.
    pub cached_tokens: Vec<u64>,
    /// Time in which it computed. A long stride of decoding counts where it ended.
    pub busy: Vec<Duration>,
}

impl Outcome {
    /// Prompt tokens reused over prompt tokens, as the engines counted them.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.cached_tokens, self.prompt_tokens)
    }

    /// The busiest worker's time over the mean; 1 is even.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let seconds = || self.busy.iter().map(Duration::as_secs_f64);
        let mean = seconds().sum::<f64>() / self.busy.len().max(1) as f64;
        let most = seconds().fold(0.0, f64::max);
        if mean > 0.0 { most / mean } else { 1.0 }
    }

    /// How much of the time the workers computed, on average.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        let all = self.lasted.as_secs_f64() * self.busy.len() as f64;
        let busy: f64 = self.busy.iter().map(Duration::as_secs_f64).sum();
        if all > 0.0 { busy / all } else { 0.0 }
    }

    /// Takes in a sample; when there are too many, neighbours become one.
    pub(super) fn sample(&mut self, sample: Sample) {
        self.samples.push(sample);
        if self.samples.len() >= 2 * SAMPLES {
            let pairs =
                self.samples.chunks(2).map(|pair| pair.iter().fold(Sample::default(), Sample::and));
            self.samples = pairs.collect();
            self.width *= 2;
        }
    }
}

/// A run has that many samples, or twice as many.
pub(super) const SAMPLES: usize = 120;

impl Sample {
    fn and(mut self, other: &Self) -> Self {
        fn add<T: Copy + Default + std::ops::AddAssign>(to: &mut Vec<T>, from: &[T]) {
            to.resize(to.len().max(from.len()), T::default());
            to.iter_mut().zip(from).for_each(|(a, b)| *a += *b);
        }
        add(&mut self.prompt_tokens, &other.prompt_tokens);
        add(&mut self.cached_tokens, &other.cached_tokens);
        add(&mut self.busy, &other.busy);
        self
    }
}

/// A part of a whole; 0 of nothing.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Measured values, every one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    values: Vec<u64>,
    sorted: bool,
}

impl Quantiles {
    /// Takes in a value.
    pub fn add(&mut self, value: u64) {
        self.values.push(value);
        self.sorted = false;
    }

    /// Puts them in order, once all are there: quantiles are of what was there then.
    pub fn sort(&mut self) {
        self.values.sort_unstable();
        self.sorted = true;
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Their mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: u128 = self.values.iter().map(|v| u128::from(*v)).sum();
        sum as f64 / self.len().max(1) as f64
    }

    /// The value that this part of all is not above (nearest rank); 0 of none.
    #[must_use]
    pub fn at(&self, part: f64) -> u64 {
        debug_assert!(self.sorted || self.values.len() < 2, "sort first");
        let rank = (part.clamp(0.0, 1.0) * self.len() as f64).ceil() as usize;
        self.values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let mut it = Quantiles::default();
        assert_eq!((it.at(0.5), it.mean()), (0, 0.0));
        (1..=100).rev().for_each(|v| it.add(v));
        it.sort();
        assert_eq!([0.0, 0.5, 0.95, 0.99, 1.0].map(|q| it.at(q)), [1, 50, 95, 99, 100]);
        assert!((it.mean() - 50.5).abs() < 1e-12);
    }

    #[test]
    fn samples_stay_few_and_lose_nothing() {
        let mut it = Outcome { width: Duration::from_secs(1), ..Outcome::default() };
        let seconds = 10 * SAMPLES as u64 + 7;
        for n in 0..seconds {
            let busy = vec![Duration::from_secs(1), Duration::from_secs(n % 2)];
            it.sample(Sample { prompt_tokens: vec![n, 1], cached_tokens: vec![1, 0], busy });
        }
        assert!((SAMPLES..2 * SAMPLES).contains(&it.samples.len()), "{}", it.samples.len());
        let sum = |of: fn(&Sample) -> u64| it.samples.iter().map(of).sum::<u64>();
        assert_eq!(sum(|s| s.prompt_tokens[0]), seconds * (seconds - 1) / 2);
        assert_eq!(sum(|s| s.busy[0].as_secs()), seconds);
        assert!(it.width >= Duration::from_secs(8));
    }

    #[test]
    fn imbalance_is_the_most_over_the_mean() {
        let busy = vec![Duration::from_secs(3), Duration::from_secs(1)];
        let it = Outcome { busy, lasted: Duration::from_secs(4), ..Outcome::default() };
        assert!((it.imbalance() - 1.5).abs() < 1e-12 && (it.utilization() - 0.5).abs() < 1e-12);
        assert!((Outcome::default().imbalance() - 1.0).abs() < 1e-12);
    }
}
