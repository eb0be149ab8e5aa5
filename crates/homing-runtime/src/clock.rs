//! Unix time that never goes back within a process: the wall clock is read once, and time since then
//! comes from the monotonic one. A stepped wall clock moves no deadline.

use homing_core::time::Time;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Copied freely; all copies of one clock agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Time,
    began: Instant,
}

impl Clock {
    /// A clock that starts at the wall clock's time.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Time::ZERO + unix, began: Instant::now() }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Time {
        self.start + self.began.elapsed()
    }
}
