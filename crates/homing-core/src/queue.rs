//! The admission queue: bounded, in order, each request with a deadline.
//!
//! The order: a higher priority goes first; within one, tenants take turns (`fair`); within a tenant, first
//! come, first served. When the queue is full it is full, for every priority: a place that was given stays.
//!
//! A waiting request holds nothing: its session, tentative target and the fleet are read anew when it
//! is granted (R08). It keeps its place while it is awake and tries its luck. One is awake at a time, in
//! order; who tried in vain sleeps until capacity is freed again, and the next one tries. So nobody is
//! overtaken by a request that wants the same, nobody blocks one that wants something else, and nothing
//! is served twice or lost.
//!
//! A queue can be long, and all this happens under its partition's lock: nothing here walks it. Who is
//! next is found by a cursor that only moves forward until capacity is freed; what it steps over has
//! tried since, so each vain try costs one step. Who comes later and stands before the cursor is kept
//! beside it, and tries first.

mod fair;

use crate::ids::WorkerId;
use crate::time::Time;
use fair::Turns;
use std::cmp::Reverse;
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

/// Whose request it is, and how urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// Higher goes first.
    pub(crate) priority: i32,
    pub(crate) tenant: u64,
}

/// Where one stands: smaller is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Spot {
    priority: Reverse<i32>,
    /// Its turn among its priority's.
    start: u64,
    /// When it came.
    serial: u64,
}

/// A request's place in the queue. Consumed by claim or cancel.
#[must_use = "a ticket that is dropped keeps its place until its deadline; cancel it"]
#[derive(Debug)]
pub(crate) struct Place {
    at: Spot,
}

/// Names a waiting request in a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaitId(pub(crate) u64);

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    tenant: u64,
    deadline: Time,
    awake: bool,
    /// The round in which it tried in vain.
    tried: u64,
}

/// One that has left: what it came with.
#[derive(Debug)]
pub(crate) struct Left<T> {
    pub(crate) item: T,
    pub(crate) deadline: Time,
    pub(crate) awake: bool,
    /// Where it stood, should it come back or be served.
    pub(crate) stood: Stood,
}

/// Where one stood that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stood {
    at: Spot,
    tenant: u64,
}

/// A bounded queue of `T`s.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: BTreeMap<Spot, Waiting<T>>,
    /// Those that sleep, by deadline.
    sleeping: BTreeSet<(Time, Spot)>,
    turns: Turns,
    last_serial: u64,
    most: usize,
    /// Counts how often capacity was freed.
    round: u64,
    /// Who sleeps at or before it has tried in this round,
    cursor: Option<Spot>,
    /// but for these.
    late: BTreeSet<Spot>,
}

impl<T> Queue<T> {
    /// An empty queue for at most `most` requests, whose serial numbers come after `serial`: a queue that
    /// takes another's place must not give its numbers out again.
    #[must_use]
    pub(crate) fn new(most: usize, serial: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            sleeping: BTreeSet::new(),
            turns: Turns::default(),
            last_serial: serial,
            most,
            round: 1,
            cursor: None,
            late: BTreeSet::new(),
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

    /// What waits, in order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().map(|w| &w.item)
    }

    /// Takes the place that is due to it; gives the item back when the queue is full.
    ///
    /// # Errors
    /// The item, when there is no room.
    pub(crate) fn push(&mut self, item: T, deadline: Time, who: Claimant) -> Result<Place, T> {
        if self.waiting.len() >= self.most {
            return Err(item);
        }
        self.last_serial += 1;
        let start = self.turns.enter(who.priority, who.tenant);
        let at = Spot { priority: Reverse(who.priority), start, serial: self.last_serial };
        if self.cursor.is_some_and(|cursor| at < cursor) {
            self.late.insert(at);
        }
        Ok(self.lie_down(item, deadline, Stood { at, tenant: who.tenant }, 0))
    }

    /// Leaves the queue with what one came with.
    ///
    /// # Panics
    /// Never: a place is made by this queue and consumed here.
    pub(crate) fn leave(&mut self, place: Place) -> Left<T> {
        let at = place.at;
        let w = self.waiting.remove(&at).expect("a place stays until it is consumed");
        self.late.remove(&at);
        if !w.awake {
            self.sleeping.remove(&(w.deadline, at));
        }
        self.turns.leave(at.priority.0, w.tenant, at.start);
        let stood = Stood { at, tenant: w.tenant };
        Left { item: w.item, deadline: w.deadline, awake: w.awake, stood }
    }

    /// Takes up one's old place again, after a claim that came to nothing. There is always room: the
    /// place was given up in the same critical section.
    pub(crate) fn resume(&mut self, item: T, deadline: Time, stood: Stood) -> Place {
        self.turns.resume(stood.at.priority.0, stood.tenant, stood.at.start);
        self.lie_down(item, deadline, stood, self.round)
    }

    /// One that has left is served: it was its tenant's turn.
    pub(crate) fn served(&mut self, stood: Stood) {
        self.turns.served(stood.at.priority.0, stood.tenant, stood.at.start);
    }

    fn lie_down(&mut self, item: T, deadline: Time, stood: Stood, tried: u64) -> Place {
        let Stood { at, tenant } = stood;
        self.waiting.insert(at, Waiting { item, tenant, deadline, awake: false, tried });
        self.sleeping.insert((deadline, at));
        Place { at }
    }

    /// Capacity was freed: all may try again.
    pub(crate) fn freed(&mut self) {
        self.round += 1;
        self.cursor = None;
        self.late.clear();
    }

    /// Wakes the first that has not tried since capacity was last freed, unless somebody is awake.
    pub(crate) fn wake_next(&mut self) -> Option<WaitId> {
        if self.someone_awake() {
            return None;
        }
        let next = self.late.pop_first().or_else(|| self.next_behind());
        let at = next?;
        // It is awake until it leaves; should it resume, it has tried.
        let w = self.waiting.get_mut(&at)?;
        w.awake = true;
        self.sleeping.remove(&(w.deadline, at));
        Some(at.id())
    }

    /// The first behind the cursor that has not tried; the cursor goes there, or to the end.
    fn next_behind(&mut self) -> Option<Spot> {
        let after = self.cursor.map_or(Unbounded, Excluded);
        let mut behind = self.waiting.range((after, Unbounded));
        let next = behind.find(|(_, w)| w.tried < self.round).map(|(at, _)| *at);
        let last = || self.waiting.last_key_value().map(|(at, _)| *at);
        self.cursor = next.or_else(last).max(self.cursor);
        next
    }

    /// Wakes one whose deadline has passed: the one that is due for longest.
    pub(crate) fn wake_overdue(&mut self, now: Time) -> Option<WaitId> {
        let (_, at) = *self.sleeping.first().filter(|(deadline, _)| *deadline <= now)?;
        self.sleeping.pop_first();
        self.late.remove(&at);
        self.waiting.get_mut(&at)?.awake = true;
        Some(at.id())
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
        self.turns.check(self.waiting.len());
        let asleep = self.waiting.iter().filter(|(_, w)| !w.awake);
        let mut deadlines: Vec<_> = asleep.map(|(at, w)| (w.deadline, *at)).collect();
        deadlines.sort_unstable();
        assert!(deadlines.iter().eq(&self.sleeping), "sleepers and deadlines disagree");
        let sleeps = |at: &Spot| self.waiting.get(at).is_some_and(|w| !w.awake);
        assert!(self.late.iter().all(sleeps), "somebody is late who doesn't sleep");
        let passed = self.waiting.iter().filter(|(at, _)| self.cursor.is_some_and(|c| **at <= c));
        let skipped = passed.filter(|(_, w)| !w.awake && w.tried < self.round).map(|(at, _)| at);
        assert!(skipped.eq(&self.late), "the cursor has passed somebody who has not tried");
    }
}

impl Spot {
    fn id(self) -> WaitId {
        WaitId(self.serial)
    }
}

impl Place {
    /// The name under which it is woken.
    #[must_use]
    pub(crate) fn id(&self) -> WaitId {
        self.at.id()
    }
}

#[cfg(test)]
mod tests;
