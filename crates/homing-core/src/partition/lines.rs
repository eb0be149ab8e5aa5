//! Who waits for what: one queue for those whom any worker can serve, and one for each worker that
//! somebody waits for in particular (R08). Together they have one bound (F42).
//!
//! In each line one is awake at a time, in order (`queue`: priority, turns of tenants, arrival); it is woken when
//! there may be something for it, and when what it waits for is gone, so that it leaves at once (F43).

use crate::ask::{Ask, Output, Ticket, TicketId};
use crate::ids::{PartitionId, WorkerId};
use crate::queue::{Claimant, Line, Queue, Stood};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Requests that wait for one worker, where nothing else may wait.
const TIED_MOST: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Lines {
    partition: PartitionId,
    any: Queue<Box<Ask>>,
    /// Lines are made for the first that waits in them, and go with the last.
    tied: BTreeMap<Line, Queue<Box<Ask>>>,
    /// The last serial number of a line that is gone.
    serial: u64,
    most: usize,
    pub(super) outputs: VecDeque<Output>,
}

/// A request that comes from the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) deadline: Time,
    pub(super) line: Line,
    stood: Stood,
}

impl Lines {
    /// `most`: waiting requests at most; 0: only those that wait for one worker.
    pub(super) fn new(partition: PartitionId, most: usize) -> Self {
        let most = if most == 0 { TIED_MOST } else { most };
        Self {
            partition,
            any: Queue::new(most, 0),
            tied: BTreeMap::new(),
            serial: 0,
            most,
            outputs: VecDeque::new(),
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.any.len() + self.tied.values().map(Queue::len).sum::<usize>()
    }

    pub(super) fn is_empty(&self, line: Line) -> bool {
        match line {
            Line::Any => self.any.is_empty(),
            tied => !self.tied.contains_key(&tied),
        }
    }

    /// The lines of single workers.
    pub(super) fn tied(&self) -> impl Iterator<Item = Line> {
        self.tied.keys().copied()
    }

    /// Whether somebody waits for one worker.
    pub(super) fn any_tied(&self) -> bool {
        !self.tied.is_empty()
    }

    fn line(&mut self, line: Line) -> &mut Queue<Box<Ask>> {
        match line {
            Line::Any => &mut self.any,
            tied => self.tied.entry(tied).or_insert_with(|| Queue::new(self.most, self.serial)),
        }
    }

    /// Waits in a line: in its old place there, if it comes from it. Gives the ask back when too many wait.
    pub(super) fn wait(
        &mut self,
        ask: Box<Ask>,
        line: Line,
        queued: Option<Queued>,
        deadline: Time,
    ) -> Result<Ticket, Box<Ask>> {
        let partition = self.partition;
        if let Some(q) = queued.filter(|q| q.line == line) {
            let place = self.line(line).resume(ask, deadline, q.stood);
            return Ok(Ticket { partition, line, place });
        }
        if self.len() >= self.most {
            return Err(ask);
        }
        let who = Claimant { priority: ask.priority, tenant: ask.tenant };
        let place = self.line(line).push(ask, deadline, who)?;
        Ok(Ticket { partition, line, place })
    }

    /// Leaves; whether it was awake.
    pub(super) fn leave(&mut self, ticket: Ticket) -> (Box<Ask>, Queued, bool) {
        let Ticket { line, place, .. } = ticket;
        let left = self.line(line).leave(place);
        (left.item, Queued { deadline: left.deadline, line, stood: left.stood }, left.awake)
    }

    /// One that has left is served.
    pub(super) fn served(&mut self, queued: Queued) {
        if let Some(queue) = self.get_mut(queued.line) {
            queue.served(queued.stood);
        }
    }

    /// A line that nobody waits in any more is no line. True if it has gone.
    pub(super) fn tidy(&mut self, line: Line) -> bool {
        let Some(queue) = self.tied.get(&line).filter(|q| q.is_empty()) else { return false };
        self.serial = self.serial.max(queue.serial());
        self.tied.remove(&line);
        true
    }

    /// Something has changed for those in the line: all may try again.
    pub(super) fn freed(&mut self, line: Line) {
        if let Some(queue) = self.get_mut(line) {
            queue.freed();
        }
    }

    /// Wakes the next in the line, unless somebody is awake or all have tried.
    pub(super) fn wake_next(&mut self, line: Line) -> bool {
        let Some(wait) = self.get_mut(line).and_then(Queue::wake_next) else { return false };
        self.outputs.push_back(Output::Wake(TicketId::new(self.partition, line, wait)));
        true
    }

    /// Wakes those whose deadline has passed, at most `most`.
    pub(super) fn wake_overdue(&mut self, now: Time, most: usize) {
        let mut left = most;
        let all = std::iter::once((Line::Any, &mut self.any))
            .chain(self.tied.iter_mut().map(|(line, queue)| (*line, queue)));
        for (line, queue) in all {
            while let Some(wait) = (left > 0).then(|| queue.wake_overdue(now)).flatten() {
                left -= 1;
                self.outputs.push_back(Output::Wake(TicketId::new(self.partition, line, wait)));
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let tied = self.tied.values().filter_map(Queue::next_deadline);
        tied.chain(self.any.next_deadline()).min()
    }

    pub(super) fn someone_awake(&self, line: Line) -> bool {
        self.get(line).is_some_and(Queue::someone_awake)
    }

    pub(super) fn all_tried(&self, line: Line) -> bool {
        self.get(line).is_none_or(Queue::all_tried)
    }

    /// Who waits in a line, in order.
    pub(super) fn asks(&self, line: Line) -> impl Iterator<Item = &Ask> {
        self.get(line).into_iter().flat_map(Queue::items).map(|ask| &**ask)
    }

    fn get(&self, line: Line) -> Option<&Queue<Box<Ask>>> {
        match line {
            Line::Any => Some(&self.any),
            tied => self.tied.get(&tied),
        }
    }

    fn get_mut(&mut self, line: Line) -> Option<&mut Queue<Box<Ask>>> {
        match line {
            Line::Any => Some(&mut self.any),
            tied => self.tied.get_mut(&tied),
        }
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self) {
        assert!(self.len() <= self.most, "the queue has outgrown its bound");
        self.any.check();
        for queue in self.tied.values() {
            queue.check();
            assert!(!queue.is_empty(), "a line that nobody waits in");
        }
    }
}

impl Line {
    /// The worker that is waited for.
    pub(crate) fn worker(self) -> Option<WorkerId> {
        match self {
            Self::Any => None,
            Self::Named(worker) | Self::Home(worker) => Some(worker),
        }
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
