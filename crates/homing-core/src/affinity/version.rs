//! The version of a binding: a last-writer-wins register's stamp (R23).
//!
//! The sequence is a hybrid clock, max(wall-clock microseconds, highest seen + 1): it never goes back,
//! not even over a restart, and needs no agreement between routers.

use crate::time::Time;
use std::fmt;
use std::time::Duration;

/// How far ahead of ours another clock may be. Who writes later than that is not believed: what it writes could not be
/// surpassed until our own time has come so far.
pub const AHEAD: Duration = Duration::from_secs(4 * 3600);

/// A stamp; higher wins, the writer breaks ties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Hybrid-clock sequence.
    pub sequence: u64,
    /// Which router wrote it.
    pub writer: u32,
}

impl Version {
    /// Whether a clock that is not far ahead of ours can have given it.
    #[must_use]
    pub fn is_credible(self, now: Time) -> bool {
        self.sequence <= (now + AHEAD).as_micros()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sequence, self.writer)
    }
}

/// Gives each write a higher version than any before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    highest: u64,
    writer: u32,
}

impl Clock {
    /// The clock of router number `writer`.
    #[must_use]
    pub fn new(writer: u32) -> Self {
        Self { highest: 0, writer }
    }

    /// Another's version, which all later ones must surpass. False: it can't be true, and is passed over.
    pub fn saw(&mut self, now: Time, version: Version) -> bool {
        let believed = version.is_credible(now);
        if believed {
            self.highest = self.highest.max(version.sequence);
        }
        believed
    }

    /// The next version.
    pub fn next(&mut self, now: Time) -> Version {
        self.highest = now.as_micros().max(self.highest.saturating_add(1));
        Version { sequence: self.highest, writer: self.writer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_ahead_moves_no_clock() {
        let now = Time::from_micros(1_000_000);
        let mut clock = Clock::new(3);
        let far = (now + AHEAD).as_micros();
        for sequence in [far + 1, u64::MAX / 4, u64::MAX] {
            assert!(!clock.saw(now, Version { sequence, writer: 9 }));
            assert!(clock.next(now).sequence < 1_000_010, "{sequence}");
        }
        assert!(clock.saw(now, Version { sequence: far, writer: 9 }));
        assert_eq!(clock.next(now), Version { sequence: far + 1, writer: 3 });
    }

    #[test]
    fn versions_rise_even_when_the_clock_stands_still_or_goes_back() {
        let mut clock = Clock::new(3);
        let a = clock.next(Time::from_micros(100));
        let b = clock.next(Time::from_micros(100));
        let c = clock.next(Time::from_micros(50));
        let d = clock.next(Time::from_micros(1000));
        assert!(a < b && b < c && c < d);
        assert_eq!((a.sequence, d.sequence), (100, 1000));
    }
}
