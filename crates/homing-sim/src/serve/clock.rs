//! The one place of the mock that reads clocks: real time in, modelled time out.

use homing_core::time::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maps real time to the engine's, which runs `speedup` times as fast from the same start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    began: Instant,
    began_at: Time,
    speedup: f64,
}

impl Clock {
    /// Starts now. A speed that is not a positive number counts as 1.
    pub(super) fn start(speedup: f64) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let speedup = if speedup.is_finite() && speedup > 0.0 { speedup } else { 1.0 };
        Self { began: Instant::now(), began_at: Time::ZERO + unix, speedup }
    }

    /// When it started, in both times.
    pub(super) const fn began_at(&self) -> Time {
        self.began_at
    }

    /// The engine's time now.
    pub(super) fn now(&self) -> Time {
        self.began_at + self.began.elapsed().mul_f64(self.speedup)
    }

    /// The real time now.
    pub(super) fn real(&self) -> Time {
        self.began_at + self.began.elapsed()
    }

    /// The real instant at which the engine's time will be `at`.
    pub(super) fn instant(&self, at: Time) -> Instant {
        let ahead = at.since(self.began_at).as_secs_f64() / self.speedup;
        // A deadline too far for the clock is as good as an hour from now: the loop only looks again.
        let real = Duration::try_from_secs_f64(ahead).unwrap_or(Duration::MAX);
        self.began.checked_add(real).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }
}
