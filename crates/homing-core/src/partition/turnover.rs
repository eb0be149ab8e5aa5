//! How fast places get free while there are too few: what a client that is told to come again later is told.
//!
//! Only what is measured while requests wait, or workers are overloaded, says how fast that ends: of a fleet
//! with time to spare requests end as seldom as they come. What is known from the last time holds until the
//! next.

use crate::time::Time;
use std::time::Duration;

/// The share of the newest gap in the mean.
const NEWEST: f64 = 0.125;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turnover {
    /// Mean time between two requests that end, in microseconds.
    gap: Option<f64>,
    /// The last that ended while there were too few places.
    last: Option<Time>,
}

impl Turnover {
    /// A request has ended; whether there are too few places now.
    pub(super) fn ended(&mut self, now: Time, scarce: bool) {
        if let Some(last) = self.last {
            self.gap = Some(self.with(micros(now.since(last))));
        }
        self.last = scarce.then_some(now);
    }

    fn with(&self, gap: f64) -> f64 {
        self.gap.map_or(gap, |mean| mean + NEWEST * (gap - mean))
    }

    /// How long it takes until so many more have ended; `None`: nothing is known.
    pub(super) fn takes(&self, now: Time, ends: f64) -> Option<Duration> {
        // The gap that is still open counts as soon as it is longer than usual.
        let open = self.last.map(|last| micros(now.since(last)));
        let gap = self.gap?;
        let gap = open.filter(|open| *open > gap).map_or(gap, |open| self.with(open));
        Some(Duration::from_micros((gap * ends) as u64))
    }
}

fn micros(d: Duration) -> f64 {
    d.as_micros() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Time {
        Time::from_micros(ms * 1000)
    }

    #[test]
    fn nothing_measured_says_nothing() {
        let mut turnover = Turnover::default();
        turnover.ended(at(5), false);
        turnover.ended(at(9), true);
        assert_eq!(turnover.takes(at(10), 3.0), None);
    }

    #[test]
    fn the_mean_follows_what_is_measured_while_places_are_scarce() {
        let mut turnover = Turnover::default();
        for i in 0..50 {
            turnover.ended(at(i * 1000), true);
        }
        assert_eq!(turnover.takes(at(49_000), 3.0), Some(SECOND * 3));
        // An idle hour is no gap.
        turnover.ended(at(50_000), false);
        turnover.ended(at(3_650_000), true);
        assert_eq!(turnover.takes(at(3_650_000), 2.0), Some(SECOND * 2));
        // Twice as fast.
        for i in 1..100 {
            turnover.ended(at(3_650_000 + i * 500), true);
        }
        let two = turnover.takes(at(3_699_500), 2.0).unwrap();
        assert!((two.as_secs_f64() - 1.0).abs() < 0.001, "{two:?}");
    }

    #[test]
    fn when_nothing_ends_any_more_it_takes_longer() {
        let mut turnover = Turnover::default();
        turnover.ended(at(0), true);
        turnover.ended(at(1000), true);
        assert_eq!(turnover.takes(at(1900), 1.0), Some(SECOND));
        assert_eq!(turnover.takes(at(10_000), 1.0), Some(SECOND * 2));
    }
}
