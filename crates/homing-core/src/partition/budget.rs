//! How many requests may be sent anew: a share of those that came lately, so that a pool which fails as a whole
//! is not asked twice as much for it.

use crate::time::Time;
use std::time::Duration;

/// What counts as lately, in parts of a second.
const PARTS: usize = 10;
/// So many are always allowed: of few requests a share is none.
const LEAST: u64 = 10;

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    second: u64,
    requests: u32,
    retries: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Budget {
    parts: [Part; PARTS],
}

impl Budget {
    fn part(&mut self, now: Time) -> &mut Part {
        let second = now.since(Time::ZERO).as_secs();
        let part = &mut self.parts[second as usize % PARTS];
        if part.second != second {
            *part = Part { second, ..Part::default() };
        }
        part
    }

    /// A request has come.
    pub(super) fn request(&mut self, now: Time) {
        let part = self.part(now);
        part.requests = part.requests.saturating_add(1);
    }

    /// Whether one may be sent anew; if so, it counts.
    pub(super) fn spend(&mut self, now: Time, share: f64) -> bool {
        let from =
            now.since(Time::ZERO).saturating_sub(Duration::from_secs(PARTS as u64 - 1)).as_secs();
        let lately = self.parts.iter().filter(|part| part.second >= from);
        let (requests, retries) = lately.fold((0u64, 0u64), |(requests, retries), part| {
            (requests + u64::from(part.requests), retries + u64::from(part.retries))
        });
        let most = ((requests as f64 * share) as u64).max(LEAST);
        if retries >= most {
            return false;
        }
        let part = self.part(now);
        part.retries = part.retries.saturating_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_what_came_in_the_last_ten_seconds() {
        let at = |s: u64| Time::from_micros(1_000_000_000 + s * 1_000_000);
        let mut b = Budget::default();
        let spend = |b: &mut Budget, t| (0..1000).filter(|_| b.spend(t, 0.1)).count();
        assert_eq!(spend(&mut b, at(0)), 10, "few requests");
        assert_eq!(spend(&mut b, at(9)), 0, "still lately");
        assert_eq!(spend(&mut b, at(10)), 10, "a new window");
        (0..1000).for_each(|_| b.request(at(12)));
        assert_eq!(
            spend(&mut b, at(12)),
            90,
            "a tenth of a thousand, less those of two seconds ago"
        );
        assert_eq!(
            spend(&mut b, at(21)),
            10,
            "what was spent nine seconds ago counts; one ago no more"
        );
        assert_eq!(spend(&mut b, at(40)), 10, "long ago");
        assert_eq!((0..20).filter(|_| b.spend(at(60), 0.0)).count(), 10);
    }
}
