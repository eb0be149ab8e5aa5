//! How fast each worker of a partition is, as far as it has shown, and how long its answers are.

use super::pace::{Decoded, Learned, Pace, Prefilled};
use crate::ids::WorkerId;

/// How many tokens an answer has, until some have been seen.
const USUAL_ANSWER: f32 = 200.0;
/// What a longer answer counts as: one that never ends says nothing about others.
const LONG_ANSWER: f64 = 4096.0;
/// First tokens of the pool after which those who had none of them are known less.
const FADES: u64 = 64;
/// Answers of which their usual length is the mean, about.
const RECENT_ANSWERS: f32 = 64.0;

/// See the module.
#[derive(Debug)]
pub(crate) struct Paces {
    /// In the order of ids, each with how many first tokens its pool had seen when it showed its last; of whom nothing
    /// is known is not there.
    workers: Vec<(WorkerId, Learned, u64)>,
    /// First tokens that the pool has seen.
    seen: u64,
    /// How fast they are all told: what is taken for true of those.
    pool: Learned,
    answer: f32,
    /// How often others than those who had shown something have changed.
    faded: u32,
}

impl Default for Paces {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            seen: 0,
            pool: Learned::default(),
            answer: USUAL_ANSWER,
            faded: 0,
        }
    }
}

impl Paces {
    /// A first token has come from `worker`; `known`: it has not departed.
    pub(crate) fn prefilled(&mut self, worker: WorkerId, known: bool, seen: &Prefilled) {
        self.pool.prefilled(seen);
        self.seen += 1;
        if self.seen.is_multiple_of(FADES) {
            self.fade();
        }
        if let Some(it) = self.worker(worker, known) {
            it.prefilled(seen);
        }
    }

    /// A stream of `worker` has ended.
    pub(crate) fn decoded(&mut self, worker: WorkerId, known: bool, seen: &Decoded) {
        let tokens = seen.tokens.min(LONG_ANSWER) as f32;
        self.answer += (tokens - self.answer) / RECENT_ANSWERS;
        self.pool.decoded(seen);
        if let Some(it) = self.worker(worker, known) {
            it.decoded(seen);
        }
    }

    fn worker(&mut self, worker: WorkerId, known: bool) -> Option<&mut Learned> {
        let at = match self.workers.binary_search_by_key(&worker, |(w, ..)| *w) {
            Ok(at) => at,
            // Whoever has departed is nobody's business any more.
            Err(_) if !known => return None,
            Err(at) => {
                self.workers.insert(at, (worker, Learned::from(self.pool.pace()), 0));
                at
            }
        };
        self.workers[at].2 = self.seen;
        Some(&mut self.workers[at].1)
    }

    /// Who was thought slow and so gets nothing can't show that it is not: what is known of those who have shown
    /// nothing while others did goes half of the way to what the pool is, again and again, until they are tried.
    fn fade(&mut self) {
        let pool = self.pool.pace();
        for (_, it, _) in self.workers.iter_mut().filter(|(_, _, at)| at + FADES <= self.seen) {
            it.fade_to(&pool);
            self.faded = self.faded.wrapping_add(1);
        }
    }

    /// A worker has departed.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.workers.retain(|(w, ..)| *w != worker);
    }

    /// How fast those of whom nothing is known are taken to be.
    pub(crate) fn of_pool(&self) -> Pace {
        self.pool.pace()
    }

    /// Another number than before: anybody's pace may be another.
    pub(crate) fn faded(&self) -> u32 {
        self.faded
    }

    /// Whether anything is known of a worker.
    pub(crate) fn knows(&self, worker: WorkerId) -> bool {
        self.workers.binary_search_by_key(&worker, |(w, ..)| *w).is_ok()
    }

    /// How fast a worker is, as far as that is known.
    pub(crate) fn of(&self, worker: WorkerId) -> Pace {
        let known = self.workers.binary_search_by_key(&worker, |(w, ..)| *w);
        known.map_or(self.pool.pace(), |at| self.workers[at].1.pace())
    }

    /// How many tokens answers have, lately.
    pub(crate) fn answer(&self) -> f32 {
        self.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_shown_nothing_is_like_its_pool_and_who_has_departed_is_forgotten() {
        let mut it = Paces::default();
        let slow = Prefilled { ms: 2_000.0, tokens: 1_000.0, pairs: 0.0 };
        assert_eq!(it.of(WorkerId(2)), Pace::default());
        (0..20).for_each(|_| it.prefilled(WorkerId(1), true, &slow));
        assert!(it.of(WorkerId(2)).token > 10.0 * Pace::default().token);
        let fast = Prefilled { ms: 20.0, ..slow };
        (0..20).for_each(|_| it.prefilled(WorkerId(2), true, &fast));
        assert!(it.of(WorkerId(2)).token * 20.0 < it.of(WorkerId(1)).token);
        it.prefilled(WorkerId(3), false, &fast);
        assert_eq!([1, 2, 3].map(|w| it.knows(WorkerId(w))), [true, true, false]);
        // Who gets nothing is in time taken to be like the others again.
        (0..10 * FADES).for_each(|_| it.prefilled(WorkerId(2), true, &fast));
        assert!(it.of(WorkerId(1)).token < 2.0 * it.of_pool().token, "it is given another chance");
        it.forget(WorkerId(1));
        assert_eq!(it.of(WorkerId(1)), it.of_pool());
        let long = Decoded { tokens: 1e9, ms: 10.0, sequences: 1.0, context: 1.0, prefilled: 0.0 };
        (0..1000).for_each(|_| it.decoded(WorkerId(2), true, &long));
        assert!((4000.0..4097.0).contains(&it.answer()));
    }
}
