//! Who is busy, who is overloaded, and who of those that wait is woken when that changes.

use super::Partition;
use crate::fleet::State;
use crate::ids::{DpRank, WorkerId};
use crate::load::Load;
use crate::queue::Line;
use crate::settings::OnOverload;
use crate::time::Time;
use smallvec::SmallVec;
use std::time::Duration;

/// A worker that answers 429 or 503 counts as overloaded for as long as it says, within these bounds: a
/// header must not shut a worker out for a day.
const SHED: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// Of those who wait for one worker so many are asked which rank they want: it only spreads others.
const LOOK: usize = 64;

/// Which ranks of a worker are waited for.
pub(super) enum Awaited {
    Nothing,
    Ranks(SmallVec<[DpRank; 4]>),
    All,
}

impl Awaited {
    pub(super) fn has(&self, rank: DpRank) -> bool {
        match self {
            Self::Nothing => false,
            Self::Ranks(ranks) => ranks.contains(&rank),
            Self::All => true,
        }
    }
}

impl Partition {
    /// Whether requests wait here for anybody who is free.
    pub(super) fn queues(&self) -> bool {
        self.settings.queue.max_requests > 0 && self.settings.queue.knows_busy()
    }

    pub(super) fn is_busy(&self, load: &Load) -> bool {
        let queue = &self.settings.queue;
        let most = (queue.busy_active_requests, queue.busy_prefill_tokens);
        (most.0 > 0 && load.active_requests >= most.0)
            || (most.1 > 0 && load.prefill_tokens >= most.1)
    }

    /// Whether it counts as overloaded: it has said so itself, or has too much to do.
    pub(super) fn is_shed(&self, now: Time, worker: WorkerId) -> bool {
        let known = self.shed.binary_search_by_key(&worker, |(w, _)| *w);
        known.is_ok_and(|i| now < self.shed[i].1) || !self.detector.of(worker).is_none()
    }

    /// Whether a Hard session waits until this worker, its home, is not overloaded any more.
    pub(super) fn waits_for(&self, now: Time, home: WorkerId) -> bool {
        self.settings.affinity.on_overload == OnOverload::Wait && self.is_shed(now, home)
    }

    /// The ranks that those who wait for this worker wait for, where it is named; `None`: all of them.
    pub(super) fn awaited(&self, worker: WorkerId) -> Awaited {
        let line = Line::Named(worker);
        if self.lines.is_empty(line) {
            return Awaited::Nothing;
        }
        let ranks = self.lines.asks(line).take(LOOK).map(|ask| ask.explicit.as_ref()?.rank);
        match ranks.collect::<Option<SmallVec<[DpRank; 4]>>>() {
            Some(ranks) => Awaited::Ranks(ranks),
            None => Awaited::All,
        }
    }

    /// When that worker, or the first of all that are overloaded, no longer counts as such.
    pub(super) fn shed_until(&self, worker: Option<WorkerId>) -> Option<Time> {
        let those = self.shed.iter().filter(|(w, _)| worker.is_none_or(|worker| *w == worker));
        those.map(|(_, until)| *until).min()
    }

    /// The worker has answered that it is overloaded.
    pub(super) fn shed(&mut self, now: Time, worker: WorkerId, retry_after: Duration) {
        let until = now + retry_after.clamp(*SHED.start(), *SHED.end());
        match self.shed.binary_search_by_key(&worker, |(w, _)| *w) {
            Ok(i) => self.shed[i].1 = until.max(self.shed[i].1),
            // A departed one needs no mark.
            Err(i) if self.row(worker).is_some() => {
                self.shed.insert(i, (worker, until));
                self.shake_homes();
            }
            Err(_) => {}
        }
    }

    /// One less can serve others: who waits for home since all are busy may be the last who could wait for
    /// anybody, and goes home then (R08).
    pub(super) fn shake_homes(&mut self) {
        let homes = self.lines.tied().filter(|line| matches!(line, Line::Home(_)));
        self.shaken.extend(homes);
    }

    /// Takes note of the time: what has been overloaded for long enough is so no longer, what was reported
    /// long ago counts no longer, and what has drained for long enough has departed.
    pub(super) fn note_time(&mut self, now: Time) {
        let before = self.latest;
        self.latest = before.max(now);
        let blinks = |at| self.silence.is_blink(at, self.rows.len());
        if blinks(before) != blinks(self.latest) {
            self.worker_lost = true;
            self.shake_homes();
            self.rebuild_board();
        }
        if self.shed_until(None).is_some_and(|until| until <= now) {
            let over: Vec<_> =
                self.shed.iter().filter(|(_, until)| *until <= now).map(|(w, _)| *w).collect();
            self.shed.retain(|(_, until)| *until > now);
            for worker in over {
                self.wake_all(Some(worker));
            }
        }
        for worker in self.reports.expire(self.latest) {
            self.note_loads(worker);
            self.reassess(Some(worker));
            self.wake_all(Some(worker));
        }
        if self.lines.any_tied() {
            let moves = |worker| self.row(worker).and_then(|row| row.drain?.moves_at);
            let passed = |at: Time| before < at && at <= self.latest;
            let drained = |line: &Line| line.worker().and_then(moves).is_some_and(passed);
            let vain: SmallVec<[Line; 8]> = self.lines.tied().filter(drained).collect();
            vain.into_iter().for_each(|line| self.wake(line));
        }
    }

    /// Something has changed at a worker: for those who wait for it, and for those who take any.
    pub(super) fn wake_all(&mut self, worker: Option<WorkerId>) {
        if let Some(worker) = worker.filter(|_| self.lines.any_tied()) {
            self.wake(Line::Named(worker));
            self.wake(Line::Home(worker));
        }
        self.wake(Line::Any);
        // Who waits for home since all are busy goes there as soon as one of them is not (R08).
        if self.lines.any_tied() && self.someone_idle() {
            let homes: SmallVec<[Line; 8]> =
                self.lines.tied().filter(|line| matches!(line, Line::Home(_))).collect();
            homes.into_iter().for_each(|line| self.wake(line));
        }
        let shaken: SmallVec<[Line; 8]> = self.shaken.iter().copied().collect();
        shaken.into_iter().for_each(|line| self.wake(line));
    }

    /// Something has changed for those in a line: the first of them tries again.
    pub(super) fn wake(&mut self, line: Line) {
        if self.lines.is_empty(line) {
            self.worker_lost &= line != Line::Any;
        } else {
            self.lines.freed(line);
            self.wake_next(line);
        }
    }

    /// Wakes the next in a line, if there is something for it.
    pub(super) fn wake_next(&mut self, line: Line) {
        if line == Line::Any {
            if !self.worker_lost && !self.someone_free() {
                return;
            }
            if !self.lines.wake_next(line) {
                self.worker_lost &= self.lines.someone_awake(line);
            }
        } else if (self.is_open(line) || self.shaken.contains(&line))
            && !self.lines.wake_next(line)
            && !self.lines.someone_awake(line)
        {
            self.shaken.remove(&line);
        }
    }

    /// Whether those who wait for one worker have a reason to look: they can go, or wait in vain.
    pub(super) fn is_open(&self, line: Line) -> bool {
        let Some(row) = line.worker().and_then(|worker| self.row(worker)) else { return true };
        let id = row.info.id;
        let free = || row.ranks.iter().any(|rank| !self.is_busy(&self.load_of(id, rank)));
        let lost = row.state != State::Ready || row.drain.is_some_and(|d| d.moves(self.latest));
        lost || match line {
            Line::Home(_) => {
                !self.waits_for(self.latest, id)
                    && (!self.queues() || free() || self.someone_idle())
            }
            _ => free() || row.drain.is_some(),
        }
    }

    /// Whether a worker has a rank that is not busy, whoever waits for it: then nobody waits for home (R08).
    fn someone_idle(&self) -> bool {
        self.rows.iter().any(|row| {
            let id = row.info.id;
            row.state == State::Ready
                && row.drain.is_none()
                && !self.is_shed(self.latest, id)
                && row.ranks.iter().any(|rank| !self.is_busy(&self.load_of(id, rank)))
        })
    }

    /// Whether a worker is up, and free for new work as far as its load goes.
    pub(super) fn someone_free(&self) -> bool {
        self.rows.iter().any(|row| {
            let id = row.info.id;
            row.state == State::Ready && row.drain.is_none() && !self.is_shed(self.latest, id) && {
                let awaited = self.awaited(id);
                let free = |rank| !self.is_busy(&self.load_of(id, rank));
                row.ranks.iter().any(|rank| !awaited.has(rank) && free(rank))
            }
        })
    }
}
