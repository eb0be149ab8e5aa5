//! When other routers are told what is booked here (R23), so that messages are few: at most two a turn, and one a second.
//!
//! A message that goes out anyway takes along whatever has changed. By itself only a new booking makes one: others must
//! not place on the same worker meanwhile. Requests that end and prompts that are computed wait for such a one; where none
//! comes, they go as long as the turns so far have left messages over, the last of them for an end: a place that is free is
//! worth more to others than a prompt that is done. Answers that merely grow, which they all do all the time, make none.
//! With the next beat at the latest all of it goes. So the busier a router, the sooner all is told; and what is told is
//! whole sums, so nothing is wrong for longer than that.

use super::PeerLoad;
use crate::ids::DpRank;
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Messages that a turn may cost, those that tell of bindings among them.
pub const PER_TURN: u32 = 2;
/// How often new bookings make a message at most: else one goes at once.
pub const BOOKINGS_EVERY: Duration = Duration::from_millis(20);
/// So long whatever else waits for a message to go along with, before it makes one of its own.
pub const REST_WAITS: Duration = Duration::from_millis(40);
/// How often all of it is told, which is also the sign of life,
pub const BEAT: Duration = Duration::from_secs(1);
/// and from when on a message that goes out anyway does for that.
const BEAT_EARLY: Duration = Duration::from_millis(800);
/// Who asks who is there is answered so soon at most.
const ANSWER_EVERY: Duration = Duration::from_millis(50);
/// Messages that turns may leave over, or have had too many of, at most.
const LEFT_MOST: i64 = 8;

/// What is booked on each target that has something to do.
pub type Loads = BTreeMap<(Arc<str>, DpRank), PeerLoad>;

/// What others are to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// It is all that is booked: what is not named has nothing.
    pub whole: bool,
    /// Worker, rank, load; of what is over, nothing.
    pub targets: Vec<(Arc<str>, DpRank, PeerLoad)>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Teller {
    /// Messages that a turn may cost.
    per_turn: u32,
    /// What others were told last, and what was there at the last look.
    told: Loads,
    seen: Loads,
    /// When something was told, and all of it.
    told_at: Time,
    whole_at: Time,
    /// Others know less than we do.
    behind: bool,
    /// Since when they don't know of a request that has come further.
    since: Option<Time>,
    next: Time,
    /// Messages that the turns so far have left over; below zero: had too many.
    left: i64,
    called: bool,
}

impl Teller {
    /// Nothing is told yet. `per_turn`: how many messages a turn may cost, those that tell of bindings among them.
    #[must_use]
    pub fn new(now: Time, per_turn: u32) -> Self {
        let (told, seen, behind, since, left, called) = Default::default();
        let (told_at, whole_at, next) = (now, now, now + BEAT);
        Self { per_turn, told, seen, told_at, whole_at, behind, since, next, left, called }
    }

    /// Somebody asks who is there, and is to hear all.
    pub fn call(&mut self) {
        self.called = true;
        self.next = self.next.min(self.whole_at + ANSWER_EVERY);
    }

    /// When to look again, whatever happens.
    #[must_use]
    pub fn next_look(&self) -> Time {
        self.next
    }

    /// Whether others know less than we do, as of the last look.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// What is to be told now. `rides`: a message goes out anyway, and counts as one of a turn's.
    pub fn look(&mut self, now: Time, loads: Loads, rides: bool) -> Option<Word> {
        let begun = loads.iter().map(|(at, load)| i64::from(begun(load, self.seen.get(at))));
        let earned = begun.sum::<i64>() * i64::from(self.per_turn);
        self.left = (self.left + earned).min(LEFT_MOST);
        let is_beat = now >= self.beat();
        let says = self.decide(now, &loads, rides);
        // The beat is no turn's.
        if rides || says.is_some() && !is_beat {
            self.left = (self.left - 1).max(-LEFT_MOST);
        }
        if let Some(whole) = says {
            let word = self.word(whole, &loads);
            if whole {
                (self.whole_at, self.called) = (now, false);
            }
            (self.told, self.told_at) = (loads.clone(), now);
            (self.behind, self.since) = (false, None);
            self.seen = loads;
            self.next = self.whole_at + BEAT;
            return Some(word);
        }
        self.seen = loads;
        None
    }

    fn beat(&self) -> Time {
        self.whole_at + if self.called { ANSWER_EVERY } else { BEAT }
    }

    /// Whether something is told, and all of it. Otherwise notes when to look again.
    fn decide(&mut self, now: Time, loads: &Loads, rides: bool) -> Option<bool> {
        let beat = self.beat();
        self.next = beat;
        if now >= beat {
            return Some(true);
        }
        let whole = now >= self.whole_at + BEAT_EARLY;
        self.behind = *loads != self.told;
        if rides {
            return (self.behind || whole).then_some(whole);
        }
        let is_new = |(at, load): (&_, &PeerLoad)| begun(load, self.told.get(at)) > 0;
        let due = if loads.iter().any(is_new) {
            self.told_at + BOOKINGS_EVERY
        } else if has_come_further(loads, &self.told) {
            let since = *self.since.get_or_insert(now);
            let kept = i64::from(!has_ended(loads, &self.told));
            if self.left <= kept {
                return None;
            }
            since + REST_WAITS
        } else {
            self.since = None;
            return None;
        };
        if now >= due {
            return Some(whole);
        }
        self.next = beat.min(due);
        None
    }

    fn word(&self, whole: bool, loads: &Loads) -> Word {
        let changed = |at: &(Arc<str>, DpRank), load| self.told.get(at) != Some(load);
        let named = loads.iter().filter(|(at, load)| whole || changed(at, load));
        let mut targets: Vec<_> =
            named.map(|((worker, rank), load)| (worker.clone(), *rank, *load)).collect();
        let over = self.told.keys().filter(|at| !loads.contains_key(*at));
        targets.extend(over.map(|(worker, rank)| (worker.clone(), *rank, PeerLoad::default())));
        Word { whole, targets }
    }
}

/// How many requests there are more than before.
fn begun(load: &PeerLoad, before: Option<&PeerLoad>) -> u32 {
    load.active_requests.saturating_sub(before.map_or(0, |before| before.active_requests))
}

/// Whether more has happened than that answers have grown.
fn has_come_further(now: &Loads, told: &Loads) -> bool {
    let stage = |load: &PeerLoad| (load.active_requests, load.decoding, load.prefill_tokens);
    now.len() != told.len()
        || now
            .iter()
            .zip(told)
            .any(|((at, now), (there, told))| at != there || stage(now) != stage(told))
}

/// Whether a target has fewer requests than others know of.
fn has_ended(now: &Loads, told: &Loads) -> bool {
    let requests = |all: &Loads, at| all.get(at).map_or(0, |load| load.active_requests);
    told.keys().any(|at| requests(now, at) < requests(told, at))
}

#[cfg(test)]
#[path = "teller_tests.rs"]
mod tests;
