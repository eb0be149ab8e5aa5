//! The admission queue: first come, first served, bounded, each with a deadline.
//!
//! A waiting request holds nothing: its session, tentative target and the fleet are read anew when it
//! is granted (R08). It keeps its place while it is awake and tries its luck. One is awake at a time, in
//! order; who tried in vain sleeps until capacity is freed again, and the next one tries. So nobody is
//! overtaken by a request that wants the same, nobody blocks one that wants something else, and nothing
//! is served twice or lost.

use crate::time::Time;
use slab::Slab;
use std::collections::VecDeque;

/// A request's place in the queue. Consumed by claim or cancel.
#[must_use = "a ticket that is dropped keeps its place until its deadline; cancel it"]
#[derive(Debug)]
pub struct Place {
    slot: usize,
    serial: u64,
}

/// Names a waiting request in a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    serial: u64,
    deadline: Time,
    awake: bool,
    /// The round in which it tried in vain.
    tried: u64,
}

/// A bounded queue of `T`s.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: Slab<Waiting<T>>,
    /// Slots in the order of arrival.
    order: VecDeque<usize>,
    next_serial: u64,
    most: usize,
    /// Counts how often capacity was freed.
    round: u64,
}

impl<T> Queue<T> {
    /// An empty queue for at most `most` requests.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { waiting: Slab::new(), order: VecDeque::new(), next_serial: 0, most, round: 1 }
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// What waits, in the order of arrival.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.order.iter().map(|s| &self.waiting[*s].item)
    }

    /// Goes to the end; gives the item back when the queue is full.
    ///
    /// # Errors
    /// The item, when there is no room.
    pub fn push(&mut self, item: T, deadline: Time) -> Result<Place, T> {
        if self.order.len() >= self.most {
            return Err(item);
        }
        self.next_serial += 1;
        let serial = self.next_serial;
        let slot = self.waiting.insert(Waiting { item, serial, deadline, awake: false, tried: 0 });
        self.order.push_back(slot);
        Ok(Place { slot, serial })
    }

    /// Leaves the queue with what one came with, and the deadline; whether it was awake.
    pub fn leave(&mut self, place: Place) -> (T, Time, bool) {
        let w = self.waiting.remove(place.slot);
        self.order.retain(|s| *s != place.slot);
        (w.item, w.deadline, w.awake)
    }

    /// Takes up one's old place again, after a claim that came to nothing. There is always room: the
    /// place was given up in the same critical section.
    pub fn resume(&mut self, item: T, deadline: Time, serial: u64) -> Place {
        let tried = self.round;
        let slot = self.waiting.insert(Waiting { item, serial, deadline, awake: false, tried });
        let at = self.order.partition_point(|s| self.waiting[*s].serial < serial);
        self.order.insert(at, slot);
        Place { slot, serial }
    }

    /// Capacity was freed: all may try again.
    pub fn freed(&mut self) {
        self.round += 1;
    }

    /// Wakes the first that has not tried since capacity was last freed, unless somebody is awake.
    pub fn wake_next(&mut self) -> Option<WaitId> {
        if self.someone_awake() {
            return None;
        }
        let slot = *self.order.iter().find(|s| self.waiting[**s].tried < self.round)?;
        let w = &mut self.waiting[slot];
        w.awake = true;
        Some(WaitId(w.serial))
    }

    /// Wakes one whose deadline has passed.
    pub fn wake_overdue(&mut self, now: Time) -> Option<WaitId> {
        let slot = self.order.iter().find(|s| {
            let w = &self.waiting[**s];
            !w.awake && w.deadline <= now
        })?;
        let w = &mut self.waiting[*slot];
        w.awake = true;
        Some(WaitId(w.serial))
    }

    /// The earliest deadline of those that sleep.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let sleeping = self.waiting.iter().filter(|(_, w)| !w.awake);
        sleeping.map(|(_, w)| w.deadline).min()
    }

    /// Whether somebody has been woken and has not claimed yet.
    #[must_use]
    pub fn someone_awake(&self) -> bool {
        self.waiting.iter().any(|(_, w)| w.awake)
    }

    /// Whether all have tried in vain since capacity was last freed.
    #[must_use]
    pub fn all_tried(&self) -> bool {
        self.waiting.iter().all(|(_, w)| w.tried == self.round)
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        assert!(self.order.len() <= self.most, "the queue has outgrown its bound");
        assert_eq!(self.order.len(), self.waiting.len(), "places and order disagree");
        let serials: Vec<_> = self.order.iter().map(|s| self.waiting[*s].serial).collect();
        assert!(serials.windows(2).all(|w| w[0] < w[1]), "out of order: {serials:?}");
    }
}

impl Place {
    /// The name under which it is woken.
    #[must_use]
    pub fn id(&self) -> WaitId {
        WaitId(self.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f42_the_bound_is_kept_and_the_item_comes_back() {
        let mut q = Queue::new(1);
        let place = q.push("a", Time::ZERO).unwrap();
        assert_eq!(q.push("b", Time::ZERO).unwrap_err(), "b");
        assert_eq!(q.leave(place).0, "a");
        assert!(q.is_empty());
    }

    proptest! {
        /// The model: a vector of serials. Nothing is lost, nothing served twice, order is kept.
        #[test]
        fn the_queue_equals_a_vector(ops in prop::collection::vec((0u8..7, any::<usize>(), 0u64..50), 0..120)) {
            let mut q = Queue::new(8);
            let mut model: Vec<(u64, u64, u64)> = Vec::new(); // item, serial, deadline
            let mut places: Vec<Place> = Vec::new();
            let mut tried = std::collections::BTreeSet::new();
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
                        let (got, deadline, _) = q.leave(p);
                        let at = model.iter().position(|m| m.1 == serial).unwrap();
                        let want = model.remove(at);
                        prop_assert_eq!((got, deadline.as_micros()), (want.0, want.2));
                    },
                    3 => if let Some(i) = i.checked_rem(places.len()) {
                        let p = places.swap_remove(i);
                        let serial = p.serial;
                        let (got, deadline, _) = q.leave(p);
                        places.push(q.resume(got, deadline, serial));
                        tried.insert(serial);
                    },
                    4 => { q.freed(); tried.clear(); }
                    _ => {
                        let before = q.someone_awake();
                        let woken = q.wake_next();
                        let want = model.iter().map(|m| m.1).find(|s| !tried.contains(s));
                        prop_assert_eq!(woken.map(|w| w.0), want.filter(|_| !before));
                    }
                }
                q.check();
                prop_assert_eq!(q.len(), model.len());
            }
        }
    }
}
