//! From an ask to a place: resolve, filter, pin, pick, book; or wait, or be refused.

use super::Partition;
use crate::affinity::{Hold, Outcome, Resolved, Standing, Steer};
use crate::ask::{Admission, Ask, Cause, Failure, Grant, Output, Refusal, Ticket, TicketId};
use crate::explain::Placement;
use crate::fleet::State;
use crate::fleet::registry::Row;
use crate::ids::{DpRank, NameId, Target};
use crate::index::{Overlap, Overlaps};
use crate::load::Load;
use crate::select::{Candidate, Candidates, Demand, pick};
use crate::settings::OnDown;
use crate::time::Time;
use std::borrow::Cow;

impl Partition {
    pub(super) fn place(
        &mut self,
        now: Time,
        mut ask: Ask,
        queued: Option<(Time, u64)>,
    ) -> Admission {
        let with_session = self.has_session(&ask);
        let (mut hold, mut full) = (None, false);
        if let (Some(table), Some((key, mode))) = (&mut self.table, ask.session) {
            let (rows, on_down) = (&self.rows, self.settings.affinity.on_down);
            let name = ask.name;
            let had = ask.past.had_binding;
            match table.resolve(now, key, mode, had, |t| standing(rows, on_down, name, t)) {
                Resolved::Hold(h) => hold = Some(h),
                Resolved::Full => full = true,
                Resolved::Unavailable(_) => {
                    return self.refuse(Cause::TargetUnavailable, with_session);
                }
            }
        }
        let mut candidates = self.eligible(&ask);
        let eligible = candidates.len();
        if eligible == 0 {
            self.release_unsent(now, hold);
            return match ask.past.failure {
                Some(failure) => self.refuse_after(failure, with_session),
                None => self.refuse(Cause::NoWorker, with_session),
            };
        }
        let others_first = queued.is_none() && !self.queue.is_empty();
        if others_first || candidates.iter().all(|c| self.busy(&c.load)) {
            ask.past.had_binding |= hold.as_ref().is_some_and(|h| h.had_binding());
            self.release_unsent(now, hold);
            return self.enqueue(now, ask, queued, with_session);
        }
        let best_overlap_blocks = candidates.iter().map(|c| c.overlap).max().unwrap_or(0);
        pin(&mut candidates, hold.as_ref().map_or(Steer::Free, |h| h.steer()));
        let demand = demand(&ask);
        let picked = pick(&mut self.policy, &demand, &candidates, &mut self.dice);
        let Some(c) = picked.map(|i| candidates[i]) else {
            self.release_unsent(now, hold);
            return self.refuse(Cause::NoWorker, with_session);
        };
        if let (Some(table), Some(hold)) = (&mut self.table, &hold) {
            table.selected(hold, c.target());
        }
        let uncached = demand.uncached(c.overlap);
        let booking =
            self.ledger.book(c.worker, c.rank, demand.tokens, uncached, demand.block_size);
        let placement = Placement {
            eligible: u32::try_from(eligible).unwrap_or(u32::MAX),
            considered: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
            overlap_blocks: c.overlap,
            best_overlap_blocks,
            cached_tokens: demand.tokens - uncached,
        };
        let worker = self.rows[c.row].info.clone();
        Admission::Granted(Grant { ask, worker, rank: c.rank, booking, hold, full, placement })
    }

    /// Live, selectable, serving the name, and not excluded by an earlier failure of this request.
    pub(super) fn eligible(&self, ask: &Ask) -> Candidates {
        let overlaps = in_order(&ask.overlaps);
        let mut overlaps = overlaps.iter().peekable();
        let rows = self.rows.iter().enumerate();
        let usable = rows.filter(|(_, r)| {
            r.state == State::Ready
                && r.serves.contains(&ask.name)
                && !ask.past.excluded.contains(&r.info.id)
        });
        usable
            .map(|(row, r)| {
                let (worker, rank) = (r.info.id, DpRank(0));
                // Both are in the order of ids: one walk beside the other.
                while overlaps.next_if(|o| (o.worker, o.rank) < (worker, rank)).is_some() {}
                let overlap = overlaps.next_if(|o| (o.worker, o.rank) == (worker, rank));
                let homes = self.table.as_ref().map_or(0, |t| t.bindings_of(worker));
                Candidate {
                    worker,
                    rank,
                    row,
                    load: self.ledger.of(worker, rank),
                    overlap: overlap.map_or(0, |o| o.blocks),
                    homes: u32::try_from(homes).unwrap_or(u32::MAX),
                }
            })
            .collect()
    }

    pub(super) fn busy(&self, load: &Load) -> bool {
        let queue = &self.settings.queue;
        // Where nothing may wait nobody is too busy: the engines queue.
        queue.max_requests > 0
            && queue.busy_active_requests > 0
            && load.active_requests >= queue.busy_active_requests
    }

    fn enqueue(
        &mut self,
        now: Time,
        ask: Ask,
        queued: Option<(Time, u64)>,
        with_session: bool,
    ) -> Admission {
        let partition = self.id;
        if let Some((deadline, serial)) = queued {
            let place = self.queue.resume(ask, deadline, serial);
            return Admission::Waiting(Ticket { partition, place });
        }
        let patience = now + self.settings.queue.max_wait;
        let deadline = ask.deadline.map_or(patience, |d| d.min(patience));
        match self.queue.push(ask, deadline) {
            Ok(place) => {
                self.wake_next();
                Admission::Waiting(Ticket { partition, place })
            }
            Err(_) => self.refuse(Cause::QueueFull, with_session),
        }
    }

    /// Something has changed for those who wait: the first of them tries again.
    pub(super) fn wake(&mut self) {
        if self.queue.is_empty() {
            self.worker_lost = false;
        } else {
            self.queue.freed();
            self.wake_next();
        }
    }

    /// Wakes the next that waits, if there is something for it.
    pub(super) fn wake_next(&mut self) {
        let mut ready = self.rows.iter().filter(|r| r.state == State::Ready);
        let free = ready.any(|r| !self.busy(&self.ledger.of(r.info.id, DpRank(0))));
        if !free && !self.worker_lost {
            return;
        }
        match self.queue.wake_next() {
            Some(wait) => self.outputs.push_back(Output::Wake(TicketId::new(self.id, wait))),
            None => self.worker_lost &= self.queue.someone_awake(),
        }
    }

    fn release_unsent(&mut self, now: Time, hold: Option<Hold>) {
        if let (Some(table), Some(hold)) = (&mut self.table, hold) {
            table.release(now, hold, false);
        }
    }

    pub(super) fn refuse(&mut self, cause: Cause, with_session: bool) -> Admission {
        let outcome = match (with_session, cause) {
            (false, _) => Outcome::None,
            (true, Cause::WorkerFailed) => Outcome::Unbound,
            (true, _) => Outcome::Rejected,
        };
        self.count(outcome);
        Admission::Refused(Refusal { cause, outcome })
    }

    pub(super) fn refuse_after(&mut self, failure: Failure, with_session: bool) -> Admission {
        let cause = match failure {
            // Nothing ran anywhere: it is as if the worker had never been there.
            Failure::Refused => Cause::NoWorker,
            Failure::Unreachable | Failure::Broken => Cause::WorkerFailed,
        };
        self.refuse(cause, with_session)
    }
}

/// The overlaps in the order of ids: as they are if they come from the index, which keeps that order.
fn in_order(overlaps: &Overlaps) -> Cow<'_, [Overlap]> {
    let id = |o: &Overlap| (o.worker, o.rank);
    if overlaps.is_sorted_by_key(id) {
        return Cow::Borrowed(overlaps);
    }
    let mut sorted = overlaps.to_vec();
    sorted.sort_by_key(id);
    Cow::Owned(sorted)
}

pub(super) fn demand(ask: &Ask) -> Demand {
    Demand { tokens: ask.prompt.tokens, block_size: ask.prompt.block_size }
}

/// The pin rule (R06, and R04 for joiners): what cannot be used does not narrow. For a bound target
/// that is live and not eligible the row of R07 says that the request moves; refusals were made before.
pub(super) fn pin(candidates: &mut Candidates, steer: Steer) {
    let (Steer::Pin(t) | Steer::Prefer(t) | Steer::Tentative(t)) = steer else { return };
    // `affinity.soft = "keep"`: a preference is followed while it can be.
    if candidates.iter().any(|c| t.admits(c.target())) {
        candidates.retain(|c| t.admits(c.target()));
    }
}

/// How a bound target stands, for a request under `name`.
pub(super) fn standing(rows: &[Row], on_down: OnDown, name: NameId, target: Target) -> Standing {
    let Ok(i) = rows.binary_search_by_key(&target.worker, |r| r.info.id) else {
        return Standing::Departed;
    };
    let row = &rows[i];
    // One rank a worker until ranks are learned.
    if !row.serves.contains(&name) || target.rank.is_some_and(|r| r != DpRank(0)) {
        return Standing::Departed;
    }
    match (row.state, on_down) {
        (State::Ready, _) => Standing::Live,
        (State::Down, OnDown::Rebind) => Standing::Departed,
        (State::Down, OnDown::Reject) | (State::Starting, _) => Standing::Unavailable,
    }
}
