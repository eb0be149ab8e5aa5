//! One partition: a pool's workers in one role, their load, their sessions, who waits for them.
//!
//! Everything here happens under the partition's lock, in one critical section a call: resolve, select
//! and book can't be torn apart by another request.
//!
//! * `place`: resolve, filter, pin, pick and book; waiting and refusing.

mod place;

use crate::affinity::{Check, Outcome, Standing, Steer, Table};
use crate::ask::{
    Abandon, Admission, Ask, Cause, Checked, Dispatch, Failure, Grant, Held, Live, Output, Step,
    Ticket, TicketId,
};
use crate::dice::SplitMix;
use crate::explain::Preview;
use crate::fleet::State;
use crate::fleet::registry::Row;
use crate::ids::{DpRank, PartitionId, WorkerId};
use crate::load::{Ledger, Load};
use crate::queue::Queue;
use crate::select::policy::Policy;
use crate::select::{Candidates, pick};
use crate::settings::{CoreSettings, Mode};
use crate::time::Time;
use place::{demand, pin, standing};
use std::collections::VecDeque;

/// Bindings that one tick drops at most, so that no request waits behind an expiry storm (R14).
const EXPIRE_AT_ONCE: usize = 1024;
/// Requests whose deadline has passed that one tick wakes at most, for the same reason.
const WAKE_AT_ONCE: usize = 1024;
/// A debug build looks at the invariants after each of so many calls, and later after one in
/// [`CHECK_ONE_IN`]: checks walk whole tables, and a debug build under load must not get slower with
/// every session. Tests that want each step checked call [`Partition::check`] themselves.
#[cfg(debug_assertions)]
const CHECK_ALL_OF: u32 = 4096;
/// See [`CHECK_ALL_OF`].
#[cfg(debug_assertions)]
const CHECK_ONE_IN: u32 = 64;

/// What a partition counts, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions bound.
    pub bindings: usize,
    /// Leases and bound holds.
    pub leases: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests placed and not ended.
    pub bookings: usize,
    /// Sessions that found no room in the table.
    pub full_table: u64,
    /// Bindings that idled out.
    pub expired: u64,
    /// Moves, in the order of [`crate::affinity::table::MoveReason::ALL`].
    pub moves: [u64; 3],
    /// Requests by what happened to their session, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; 9],
}

/// See the module.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    settings: CoreSettings,
    /// In the order of ids.
    rows: Vec<Row>,
    /// `None`: sessions are passive (R02).
    table: Option<Table>,
    ledger: Ledger,
    queue: Queue<Ask>,
    policy: Policy,
    dice: SplitMix,
    outputs: VecDeque<Output>,
    /// A worker was lost, and not all who wait have looked since: one of them may wait in vain (F43).
    worker_lost: bool,
    outcomes: [u64; 9],
    /// How often invariants could have been looked at.
    #[cfg(debug_assertions)]
    calls: u32,
}

/// One worker's part in a partition, as the admin API shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// What it has to do.
    pub load: Load,
    /// Sessions that live there.
    pub bindings: usize,
}

impl Partition {
    /// An empty partition whose random choices follow from `seed`.
    #[must_use]
    pub fn new(id: PartitionId, settings: CoreSettings, seed: u64, writer: u32) -> Self {
        let affinity = &settings.affinity;
        Self {
            id,
            rows: Vec::new(),
            table: affinity.ttl.map(|ttl| Table::new(ttl, affinity.max_sessions, writer)),
            ledger: Ledger::default(),
            queue: Queue::new(settings.queue.max_requests),
            policy: Policy::new(settings.policy),
            dice: SplitMix::new(seed),
            outputs: VecDeque::new(),
            worker_lost: false,
            outcomes: [0; 9],
            #[cfg(debug_assertions)]
            calls: 0,
            settings,
        }
    }

    /// A worker is new here, or has changed. Nobody is woken for one that is as it was.
    pub fn set_row(&mut self, row: Row) {
        match self.rows.binary_search_by_key(&row.info.id, |r| r.info.id) {
            Ok(i) if self.rows[i] == row => return,
            Ok(i) => {
                let old = &self.rows[i];
                self.worker_lost |= old.state == State::Ready
                    && (row.state != State::Ready || row.serves != old.serves);
                self.rows[i] = row;
            }
            Err(i) => self.rows.insert(i, row),
        }
        self.wake();
    }

    /// A worker has departed. Its bookings stay until their streams end.
    pub fn remove_row(&mut self, worker: WorkerId) {
        self.rows.retain(|r| r.info.id != worker);
        self.worker_lost = true;
        self.wake();
    }

    /// Resolves and selects (the way of a request in the contract).
    pub fn admit(&mut self, now: Time, ask: Ask) -> Admission {
        let admission = self.place(now, ask, None);
        self.checked(admission)
    }

    /// A woken ticket tries its luck; session and fleet are read anew.
    pub fn claim(&mut self, now: Time, ticket: Ticket) -> Admission {
        let serial = ticket.place.id().0;
        let (ask, deadline, _) = self.queue.leave(ticket.place);
        let admission = if deadline <= now {
            self.refuse(Cause::Timeout, self.has_session(&ask))
        } else {
            self.place(now, ask, Some((deadline, serial)))
        };
        self.wake_next();
        self.checked(admission)
    }

    /// A waiting request leaves.
    pub fn cancel(&mut self, _now: Time, ticket: Ticket) {
        let (ask, _, awake) = self.queue.leave(ticket.place);
        self.count(if self.has_session(&ask) { Outcome::Unbound } else { Outcome::None });
        if awake {
            self.wake_next();
        }
        self.debug_check();
    }

    /// A dispatch failed before its worker had begun to answer: frees the booking, keeps the claim on
    /// the session, and selects among the others.
    pub fn retry(&mut self, now: Time, checked: Checked, failure: Failure) -> Admission {
        let Grant { mut ask, worker, booking, hold, .. } = checked.0;
        self.ledger.free(booking);
        ask.past.excluded.push(worker.id);
        ask.past.failure = Some(failure);
        let spent = ask.past.excluded.len() > self.settings.retry_attempts as usize;
        if let (Some(table), Some(hold)) = (&mut self.table, hold) {
            ask.past.had_binding |= hold.had_binding();
            // Within this critical section released and resolved anew is the same as kept. It has been
            // dispatched, wherever its way ends now: the idle time of its session restarts (R12).
            table.release(now, hold, true);
        }
        let admission = if spent {
            self.refuse_after(failure, self.has_session(&ask))
        } else {
            self.place(now, ask, None)
        };
        self.wake();
        self.checked(admission)
    }

    /// The last look before a worker starts the request (R10).
    pub fn check_dispatch(&mut self, now: Time, grant: Grant) -> Dispatch {
        let (Some(table), Some(hold)) = (&self.table, &grant.hold) else {
            return Dispatch::Go(Checked(grant));
        };
        let standing = |t| standing(&self.rows, self.settings.affinity.on_down, grant.ask.name, t);
        if grant.ask.past.rechecked
            || table.check_dispatch(now, hold, grant.target(), standing) == Check::Go
        {
            return Dispatch::Go(Checked(grant));
        }
        let Grant { mut ask, booking, hold, .. } = grant;
        self.ledger.free(booking);
        if let (Some(table), Some(hold)) = (&mut self.table, hold) {
            table.release(now, hold, false);
        }
        ask.past.rechecked = true;
        self.wake();
        self.debug_check();
        Dispatch::Again(ask)
    }

    /// The worker has begun to answer (R11).
    pub fn commit(&mut self, now: Time, checked: Checked) -> (Live, Outcome) {
        let grant = checked.0;
        let target = grant.target();
        let (lease, outcome) = match (&mut self.table, grant.hold) {
            (Some(table), Some(hold)) => {
                let (rows, on_down) = (&self.rows, self.settings.affinity.on_down);
                let name = grant.ask.name;
                let c = table.commit(now, hold, target, |t| standing(rows, on_down, name, t));
                (c.lease, c.outcome)
            }
            _ if grant.full => (None, Outcome::UnboundFull),
            _ => (None, Outcome::None),
        };
        self.count(outcome);
        self.debug_check();
        (Live { partition: self.id, booking: grant.booking, lease }, outcome)
    }

    /// A grant comes to nothing: releases the hold and the booking, binds nothing (R12).
    pub fn abandon(&mut self, now: Time, held: Held, why: Abandon) -> Outcome {
        let (Held::Grant(grant) | Held::Checked(Checked(grant))) = held;
        self.ledger.free(grant.booking);
        if let (Some(table), Some(hold)) = (&mut self.table, grant.hold) {
            table.release(now, hold, why != Abandon::NotDispatched);
        }
        let outcome = if self.has_session(&grant.ask) { Outcome::Unbound } else { Outcome::None };
        self.count(outcome);
        self.wake();
        self.debug_check();
        outcome
    }

    /// A running request has come further.
    pub fn progress(&mut self, live: &Live, step: Step) {
        match step {
            Step::FirstToken => self.ledger.first_token(&live.booking),
            Step::Output(n) => self.ledger.output(&live.booking, n),
        }
    }

    /// A stream has ended, however: frees the booking, releases the lease (R13).
    pub fn finish(&mut self, now: Time, live: Live) {
        self.ledger.free(live.booking);
        if let (Some(table), Some(lease)) = (&mut self.table, live.lease) {
            table.end(now, lease);
        }
        self.wake();
        self.debug_check();
    }

    /// Where a request would go, without acting (R16).
    #[must_use]
    pub fn preview(&self, now: Time, ask: &Ask) -> Preview {
        let eligible = self.eligible(ask);
        let demand = demand(ask);
        let (steer, refused) = self.foresee(now, ask);
        let mut considered = if refused { Candidates::new() } else { eligible.clone() };
        pin(&mut considered, steer.unwrap_or(Steer::Free));
        // The policy and the dice are copies: a preview takes nobody's turn.
        let (mut policy, mut dice) = (self.policy.clone(), self.dice.clone());
        let target =
            pick(&mut policy, &demand, &considered, &mut dice).map(|i| considered[i].target());
        let candidates = eligible.iter().map(|c| (*c, self.policy.cost(&demand, c))).collect();
        Preview { target, steer, candidates }
    }

    /// What a session would ask of selection, and whether its target can only be refused (R07).
    fn foresee(&self, now: Time, ask: &Ask) -> (Option<Steer>, bool) {
        let (Some(table), Some((key, mode))) = (&self.table, ask.session) else {
            return (None, false);
        };
        let Some(view) = table.get(now, key) else {
            return (table.tentative(key).map(Steer::Tentative), false);
        };
        let on_down = self.settings.affinity.on_down;
        let standing = standing(&self.rows, on_down, ask.name, view.target);
        match (standing, mode) {
            (Standing::Departed, _) => (None, false),
            (_, Mode::Soft) => (Some(Steer::Prefer(view.target)), false),
            (_, Mode::Hard) => (Some(Steer::Pin(view.target)), standing == Standing::Unavailable),
        }
    }

    /// Does what is due, up to a bound; call it when [`Self::poll_timeout`] says so. While that says a
    /// time that has passed, more is due at once.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(table) = &mut self.table {
            table.expire(now, EXPIRE_AT_ONCE);
        }
        for _ in 0..WAKE_AT_ONCE {
            let Some(wait) = self.queue.wake_overdue(now) else { break };
            self.outputs.push_back(Output::Wake(TicketId::new(self.id, wait)));
        }
        self.debug_check();
    }

    /// When [`Self::handle_timeout`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let expiry = self.table.as_ref().and_then(Table::next_expiry);
        expiry.into_iter().chain(self.queue.next_deadline()).min()
    }

    /// What to do next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// How many outputs there are to poll.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outputs.len()
    }

    /// The sessions, if sessions are kept at all.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The sessions, to remove one.
    pub fn table_mut(&mut self) -> Option<&mut Table> {
        self.table.as_mut()
    }

    /// A worker's part.
    #[must_use]
    pub fn worker_load(&self, worker: WorkerId) -> WorkerLoad {
        WorkerLoad {
            load: self.ledger.of(worker, DpRank(0)),
            bindings: self.table.as_ref().map_or(0, |t| t.bindings_of(worker)),
        }
    }

    /// What it counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let table = self.table.as_ref();
        let counters = table.map(Table::counters).unwrap_or_default();
        Stats {
            bindings: table.map_or(0, Table::bindings),
            leases: table.map_or(0, Table::leases),
            waiting: self.queue.len(),
            bookings: self.ledger.bookings(),
            full_table: counters.full,
            expired: counters.expired,
            moves: counters.moves,
            outcomes: self.outcomes,
        }
    }

    /// Whether the request has a session, as far as anybody is concerned (R02).
    fn has_session(&self, ask: &Ask) -> bool {
        self.table.is_some() && ask.session.is_some()
    }

    fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    fn checked(&mut self, admission: Admission) -> Admission {
        self.debug_check();
        admission
    }

    /// After every public mutator, in debug builds.
    fn debug_check(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.calls = self.calls.wrapping_add(1);
            if self.calls <= CHECK_ALL_OF || self.calls.is_multiple_of(CHECK_ONE_IN) {
                self.check();
            }
        }
    }

    /// Invariants, after every public call.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        if let Some(table) = &self.table {
            table.check();
        }
        self.ledger.check();
        self.queue.check();
        assert!(self.rows.is_sorted_by_key(|r| r.info.id), "rows out of order");
        let free = self
            .rows
            .iter()
            .any(|r| r.state == State::Ready && !self.busy(&self.ledger.of(r.info.id, DpRank(0))));
        assert!(
            !free || self.queue.someone_awake() || self.queue.all_tried(),
            "somebody waits, somebody is free, and nobody was woken"
        );
        let hopeless = self.queue.items().any(|ask| self.eligible(ask).is_empty());
        assert!(
            !hopeless || self.queue.someone_awake(),
            "somebody waits for workers that are gone, and nobody was woken"
        );
    }
}
