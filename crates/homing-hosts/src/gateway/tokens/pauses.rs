//! Who is not asked for a while. An engine that hangs, or answers with what are no tokens, would cost each request
//! its patience; so it costs one request, and the others do without until it is tried again.

use homing_core::ids::WorkerId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The first pause; it doubles with each further failure up to the longest.
const FIRST: Duration = Duration::from_secs(1);
/// Also how long who has no such path is left alone.
const LONGEST: Duration = Duration::from_secs(60);
/// Workers that are remembered. Beyond, those whose pause is over go, and then all.
const MOST: usize = 4096;

/// See the module. Bounded by the number of workers.
#[derive(Debug, Default)]
pub(super) struct Pauses(BTreeMap<WorkerId, Pause>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    /// How long the next one is.
    next: Duration,
}

impl Pauses {
    /// Whether it may be asked. Whoever is told so after a pause is the one who tries: the others do without for
    /// the time of `trial`.
    pub(super) fn may_ask(&mut self, worker: WorkerId, now: Instant, trial: Duration) -> bool {
        let Some(pause) = self.0.get_mut(&worker) else { return true };
        let over = pause.until <= now;
        if over {
            pause.until = now + trial;
        }
        over
    }

    /// It has answered.
    pub(super) fn answered(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// It has not, or not well.
    pub(super) fn failed(&mut self, worker: WorkerId, now: Instant) {
        let next = self.0.get(&worker).map_or(FIRST, |pause| pause.next);
        self.pause(worker, now, next);
    }

    /// It doesn't answer such questions.
    pub(super) fn never(&mut self, worker: WorkerId, now: Instant) {
        self.pause(worker, now, LONGEST);
    }

    fn pause(&mut self, worker: WorkerId, now: Instant, long: Duration) {
        if self.0.len() >= MOST && !self.0.contains_key(&worker) {
            self.0.retain(|_, pause| pause.until > now);
            if self.0.len() >= MOST {
                self.0.clear();
            }
        }
        self.0.insert(worker, Pause { until: now + long, next: (long * 2).min(LONGEST) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Duration = Duration::from_millis(250);
    const A: WorkerId = WorkerId(1);

    #[test]
    fn a_failure_pauses_and_one_request_tries_again() {
        let (mut pauses, start) = (Pauses::default(), Instant::now());
        assert!(pauses.may_ask(A, start, TRIAL) && pauses.may_ask(A, start, TRIAL));
        pauses.failed(A, start);
        assert!(!pauses.may_ask(A, start + FIRST - TRIAL, TRIAL));
        assert!(pauses.may_ask(WorkerId(2), start, TRIAL), "others are not paused");
        let later = start + FIRST;
        assert!(pauses.may_ask(A, later, TRIAL) && !pauses.may_ask(A, later, TRIAL));
        assert!(pauses.may_ask(A, later + TRIAL, TRIAL), "whoever tried has gone");
        pauses.answered(A);
        assert!(pauses.may_ask(A, later, TRIAL) && pauses.may_ask(A, later, TRIAL));
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let (mut pauses, mut now) = (Pauses::default(), Instant::now());
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            pauses.failed(A, now);
            let end = now + Duration::from_secs(seconds);
            assert!(!pauses.may_ask(A, end - TRIAL, TRIAL), "{seconds}");
            now = end;
            assert!(pauses.may_ask(A, now, TRIAL), "{seconds}");
        }
        pauses.answered(A);
        pauses.failed(A, now);
        assert!(pauses.may_ask(A, now + FIRST, TRIAL));
    }

    #[test]
    fn there_are_never_more_than_may_be() {
        let (mut pauses, now) = (Pauses::default(), Instant::now());
        for n in 0..MOST as u32 + 10 {
            pauses.never(WorkerId(n), now);
            assert!(pauses.0.len() <= MOST);
        }
        assert!(!pauses.may_ask(WorkerId(MOST as u32 + 9), now, TRIAL));
    }
}
