//! The admission queue: first come, first served, bounded, each with a deadline.
//!
//! A waiting request holds nothing: its session, tentative target and the fleet are read anew when it
//! is granted (R08). It keeps its place while it is awake and tries its luck. One is awake at a time, in
//! order; who tried in vain sleeps until capacity is freed again, and the next one tries. So nobody is
//! overtaken by a request that wants the same, nobody blocks one that wants something else, and nothing
//! is served twice or lost.
//!
//! A queue can be long, and all this happens under its partition's lock: nothing here walks it. Who is
//! next is found by a cursor that only moves forward until capacity is freed; what it steps over has
//! tried since, so each vain try costs one step.

use crate::ids::WorkerId;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// What a request waits for. Each line is a queue of its own, so that nobody who waits for one worker
/// stands before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Line {
    /// Any worker that is free.
    Any,
    /// A worker that the request names, until it is free.
    Named(WorkerId),
    /// The session's home, until it is no longer overloaded.
    Home(WorkerId),
}

/// A request's place in the queue. Consumed by claim or cancel.
#[must_use = "a ticket that is dropped keeps its place until its deadline; cancel it"]
#[derive(Debug)]
pub(crate) struct Place {
    serial: u64,
}

/// Names a waiting request in a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaitId(pub(crate) u64);

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    deadline: Time,
    awake: bool,
    /// The round in which it tried in vain.
    tried: u64,
}

/// A bounded queue of `T`s.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// By serial number, which is the order of arrival.
    waiting: BTreeMap<u64, Waiting<T>>,
    /// Those that sleep, by deadline.
    sleeping: BTreeSet<(Time, u64)>,
    last_serial: u64,
    most: usize,
    /// Counts how often capacity was freed.
    round: u64,
    /// Who sleeps at or before this serial number has tried in this round.
    cursor: u64,
}

impl<T> Queue<T> {
    /// An empty queue for at most `most` requests, whose serial numbers come after `serial`: a queue that
    /// takes another's place must not give its numbers out again.
    #[must_use]
    pub(crate) fn new(most: usize, serial: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            sleeping: BTreeSet::new(),
            last_serial: serial,
            most,
            round: 1,
            cursor: 0,
        }
    }

    /// The last serial number that it gave out.
    #[must_use]
    pub(crate) fn serial(&self) -> u64 {
        self.last_serial
    }

    /// How many wait.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What waits, in the order of arrival.
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().map(|w| &w.item)
    }

    /// Goes to the end; gives the item back when the queue is full.
    ///
    /// # Errors
    /// The item, when there is no room.
    pub(crate) fn push(&mut self, item: T, deadline: Time) -> Result<Place, T> {
        if self.waiting.len() >= self.most {
            return Err(item);
        }
        self.last_serial += 1;
        Ok(self.lie_down(item, deadline, self.last_serial, 0))
    }

    /// Leaves the queue with what one came with, and the deadline; whether it was awake.
    ///
    /// # Panics
    /// Never: a place is made by this queue and consumed here.
    pub(crate) fn leave(&mut self, place: Place) -> (T, Time, bool) {
        let w = self.waiting.remove(&place.serial).expect("a place stays until it is consumed");
        if !w.awake {
            self.sleeping.remove(&(w.deadline, place.serial));
        }
        (w.item, w.deadline, w.awake)
    }

    /// Takes up one's old place again, after a claim that came to nothing. There is always room: the
    /// place was given up in the same critical section.
    pub(crate) fn resume(&mut self, item: T, deadline: Time, serial: u64) -> Place {
        self.lie_down(item, deadline, serial, self.round)
    }

    fn lie_down(&mut self, item: T, deadline: Time, serial: u64, tried: u64) -> Place {
        self.waiting.insert(serial, Waiting { item, deadline, awake: false, tried });
        self.sleeping.insert((deadline, serial));
        Place { serial }
    }

    /// Capacity was freed: all may try again.
    pub(crate) fn freed(&mut self) {
        self.round += 1;
        self.cursor = 0;
    }

    /// Wakes the first that has not tried since capacity was last freed, unless somebody is awake.
    pub(crate) fn wake_next(&mut self) -> Option<WaitId> {
        if self.someone_awake() {
            return None;
        }
        let mut behind = self.waiting.range_mut((Excluded(self.cursor), Unbounded));
        let Some((&serial, w)) = behind.find(|(_, w)| w.tried < self.round) else {
            self.cursor = self.last_serial;
            return None;
        };
        // It is awake until it leaves; should it resume, it has tried.
        self.cursor = serial;
        w.awake = true;
        self.sleeping.remove(&(w.deadline, serial));
        Some(WaitId(serial))
    }

    /// Wakes one whose deadline has passed: the one that is due for longest.
    pub(crate) fn wake_overdue(&mut self, now: Time) -> Option<WaitId> {
        let (_, serial) = *self.sleeping.first().filter(|(deadline, _)| *deadline <= now)?;
        self.sleeping.pop_first();
        self.waiting.get_mut(&serial)?.awake = true;
        Some(WaitId(serial))
    }

    /// The earliest deadline of those that sleep.
    #[must_use]
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.sleeping.first().map(|(deadline, _)| *deadline)
    }

    /// Whether somebody has been woken and has not claimed yet.
    #[must_use]
    pub(crate) fn someone_awake(&self) -> bool {
        self.sleeping.len() < self.waiting.len()
    }

    /// Whether all have tried in vain since capacity was last freed. Walks the queue: for checks.
    #[must_use]
    pub(crate) fn all_tried(&self) -> bool {
        self.waiting.values().all(|w| w.tried == self.round)
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self) {
        assert!(self.waiting.len() <= self.most, "the queue has outgrown its bound");
        let asleep = self.waiting.iter().filter(|(_, w)| !w.awake);
        let mut deadlines: Vec<_> = asleep.map(|(serial, w)| (w.deadline, *serial)).collect();
        deadlines.sort_unstable();
        assert!(deadlines.iter().eq(&self.sleeping), "sleepers and deadlines disagree");
        let passed = self.waiting.range(..=self.cursor);
        let skipped = passed.filter(|(_, w)| !w.awake && w.tried < self.round).count();
        assert_eq!(skipped, 0, "the cursor has passed somebody who has not tried");
    }
}

impl Place {
    /// The name under which it is woken.
    #[must_use]
    pub(crate) fn id(&self) -> WaitId {
        WaitId(self.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f42_the_bound_is_kept_and_the_item_comes_back() {
        let mut q = Queue::new(1, 0);
        let place = q.push("a", Time::ZERO).unwrap();
        assert_eq!(q.push("b", Time::ZERO).unwrap_err(), "b");
        assert_eq!(q.leave(place).0, "a");
        assert!(q.is_empty());
    }

    /// As many as some queue may hold: where an operation walks the queue this takes minutes.
    #[test]
    fn a_long_queue_costs_no_more_for_each_than_a_short_one() {
        const N: u64 = 100_000;
        let mut q = Queue::new(N as usize, 0);
        let mut places: BTreeMap<u64, Place> =
            (1..=N).map(|i| (i, q.push(i, Time::from_micros(1 + i * 7919 % N)).unwrap())).collect();
        let next = |q: &mut Queue<u64>, places: &mut BTreeMap<u64, Place>| {
            let WaitId(serial) = q.wake_next()?;
            assert_eq!(q.wake_next(), None, "one at a time");
            assert!(q.someone_awake());
            let (item, deadline, awake) = q.leave(places.remove(&serial).unwrap());
            assert!(awake && item == serial);
            Some((item, deadline))
        };
        // Everybody tries in vain, in order, and once.
        for i in 1..=N {
            let (item, deadline) = next(&mut q, &mut places).unwrap();
            assert_eq!(item, i);
            places.insert(item, q.resume(item, deadline, item));
            assert_eq!(q.next_deadline(), Some(Time::from_micros(1)));
        }
        assert_eq!(q.wake_next(), None);
        assert!(q.all_tried());
        // Capacity for one at a time: the first goes, the next two try in vain.
        for first in 1..=N / 4 {
            q.freed();
            assert_eq!(next(&mut q, &mut places).unwrap().0, first);
            for i in 1..=2 {
                let (item, deadline) = next(&mut q, &mut places).unwrap();
                assert_eq!(item, first + i);
                places.insert(item, q.resume(item, deadline, item));
            }
        }
        // Some give up, from anywhere; the rest comes due.
        for i in (N / 4 + 1..=N).step_by(3) {
            let _ = q.leave(places.remove(&i).unwrap());
        }
        q.check();
        let mut before = Time::ZERO;
        while let Some(due) = q.next_deadline() {
            assert!(due >= before, "out of order");
            before = due;
            let WaitId(serial) = q.wake_overdue(due).unwrap();
            if serial % 2 == 0 {
                let _ = q.leave(places.remove(&serial).unwrap());
            }
        }
        assert_eq!(q.wake_overdue(Time::from_micros(u64::MAX)), None);
        assert_eq!(q.len(), places.len());
        q.check();
        for place in places.into_values() {
            assert!(q.leave(place).2);
        }
        assert!(q.is_empty() && !q.someone_awake());
    }

    proptest! {
        /// The model: a vector of serials. Nothing is lost, nothing served twice, order is kept.
        #[test]
        fn the_queue_equals_a_vector(ops in prop::collection::vec((0u8..9, any::<usize>(), 0u64..50), 0..120)) {
            let mut q = Queue::new(8, 0);
            let mut model: Vec<(u64, u64, u64)> = Vec::new(); // item, serial, deadline
            let mut places: Vec<Place> = Vec::new();
            let mut tried = BTreeSet::new();
            let mut awake = BTreeSet::new();
            for (item, (op, i, t)) in ops.into_iter().enumerate() {
                let item = item as u64;
                match op {
                    0 | 1 => match q.push(item, Time::from_micros(t)) {
                        Ok(p) => { model.push((item, p.serial, t)); places.push(p); }
                        Err(back) => { prop_assert_eq!(back, item); prop_assert_eq!(model.len(), 8); }
                    },
                    2 => if let Some(i) = i.checked_rem(places.len()) {
                        let p = places.swap_remove(i);
                        let serial = p.serial;
                        let (got, deadline, was_awake) = q.leave(p);
                        prop_assert_eq!(was_awake, awake.remove(&serial));
                        let at = model.iter().position(|m| m.1 == serial).unwrap();
                        let want = model.remove(at);
                        prop_assert_eq!((got, deadline.as_micros()), (want.0, want.2));
                    },
                    3 => if let Some(i) = i.checked_rem(places.len()) {
                        let p = places.swap_remove(i);
                        let serial = p.serial;
                        let (got, deadline, was_awake) = q.leave(p);
                        prop_assert_eq!(was_awake, awake.remove(&serial));
                        places.push(q.resume(got, deadline, serial));
                        tried.insert(serial);
                    },
                    4 => { q.freed(); tried.clear(); }
                    5 => {
                        let now = Time::from_micros(t / 2);
                        let due = model.iter().filter(|m| m.2 <= t / 2 && !awake.contains(&m.1));
                        let want = due.map(|m| (m.2, m.1)).min().map(|m| m.1);
                        let woken = q.wake_overdue(now).map(|w| w.0);
                        prop_assert_eq!(woken, want);
                        awake.extend(woken);
                    }
                    _ => {
                        let woken = q.wake_next().map(|w| w.0);
                        let want = model.iter().map(|m| m.1).find(|s| !tried.contains(s));
                        prop_assert_eq!(woken, want.filter(|_| awake.is_empty()));
                        awake.extend(woken);
                    }
                }
                q.check();
                prop_assert_eq!(q.someone_awake(), !awake.is_empty());
                let asleep = model.iter().filter(|m| !awake.contains(&m.1)).map(|m| m.2);
                prop_assert_eq!(q.next_deadline(), asleep.min().map(Time::from_micros));
                prop_assert_eq!(q.all_tried(), model.iter().all(|m| tried.contains(&m.1)));
                prop_assert_eq!(q.len(), model.len());
            }
        }
    }
}
