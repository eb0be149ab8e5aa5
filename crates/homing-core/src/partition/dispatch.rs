//! From a place to a running request: the last look, the commit, and the ways in which it comes to nothing (R10-R12).

use super::Partition;
use super::claim::claiming;
use super::decide::No;
use super::standing::Lens;
use crate::affinity::{Check, Outcome};
use crate::ask::{Abandon, Admission, Cause, Checked, Claim, Dispatch, Failure, Grant, Held, Live};
use crate::settings::{Mode, OnDown, OnFailure, OnOverload};
use crate::time::Time;

impl Partition {
    /// A dispatch failed before its worker had begun to answer: frees the booking, keeps the claim on
    /// the session, and selects among the others. A worker that is overloaded is left alone for a while.
    pub fn retry(&mut self, now: Time, checked: Checked, failure: Failure) -> Admission {
        self.note_time(now);
        let Grant { mut ask, worker, rank, booking, claim, tries, .. } = checked.0;
        let _ = self.free(now, booking, rank);
        match failure {
            Failure::Overloaded(_) => self.is_alive(now, worker.id),
            _ => self.came_to_nothing(now, worker.id, tries),
        }
        self.vitals.ended(now, worker.id);
        self.records.failed(ask.past.record, failure);
        let past = &mut ask.past;
        past.attempts += 1;
        past.failure = Some(failure);
        past.may_have_run |= failure == Failure::Broken;
        let mut spent = past.attempts > self.settings.retry_attempts;
        let affinity = &self.settings.affinity;
        // Whether it ran at home since it must, and not since it said so itself.
        let at_home = ask.explicit.is_none()
            && ask.session.is_some_and(|s| s.mode == Mode::Hard)
            && matches!(&claim, Claim::Held(h) if h.home().is_some_and(|t| t.worker == worker.id));
        let mut no = No::because(Cause::NoWorker);
        let mut waits = false;
        match failure {
            Failure::Overloaded(retry_after) => {
                let on_overload = affinity.on_overload;
                let stays =
                    at_home && matches!(on_overload, OnOverload::Reject | OnOverload::Dispatch);
                // Once elsewhere; who waits for home is not elsewhere.
                spent |= past.sent_on || stays || ask.explicit.is_some();
                if at_home && on_overload == OnOverload::Wait {
                    past.attempts -= 1;
                    (spent, waits) = (false, true);
                } else {
                    past.sent_on = true;
                }
                self.shed(now, worker.id, retry_after.unwrap_or_default());
            }
            Failure::Unreachable | Failure::Broken
                if at_home && affinity.on_failure == OnFailure::Reject =>
            {
                spent = true;
                no = No::bound(Cause::TargetUnavailable);
            }
            Failure::Refused if at_home && affinity.on_down == OnDown::Reject => {
                no = No::bound(Cause::TargetUnavailable);
                past.failed.push(worker.id);
            }
            _ => past.failed.push(worker.id),
        }
        // Of a refusal nobody has more to do; who waits for home is not sent anew.
        let costs = failure != Failure::Refused && !(spent || waits);
        spent |= costs && !self.budget.spend(now, self.settings.retry_budget);
        if let (Some(table), Claim::Held(hold)) = (&mut self.table, claim) {
            ask.past.had_binding |= hold.had_binding();
            // Within this critical section released and resolved anew is the same as kept. It has been
            // dispatched, wherever its way ends now: the idle time of its session restarts (R12).
            table.release(now, hold, true);
        }
        let admission =
            if spent { self.refuse(now, &mut ask, None, no) } else { self.place(now, ask, None) };
        self.wake_all(Some(worker.id));
        self.checked(admission)
    }

    /// The last look before a worker starts the request (R10).
    pub fn check_dispatch(&mut self, now: Time, grant: Grant) -> Dispatch {
        let standing = |t| self.standing(now, grant.ask.name, t);
        let again = match (&self.table, &grant.claim) {
            (Some(table), Claim::Held(hold)) if !grant.ask.past.rechecked => {
                table.check_dispatch(now, hold, grant.target(), standing) == Check::Again
            }
            _ => false,
        };
        if !again {
            if let Some(update) = self.unclaimed(now, &grant) {
                return claiming(grant, update);
            }
            self.records.dispatched(now, grant.ask.past.record, grant.target());
            self.sent(now, &grant);
            return Dispatch::Go(Checked(grant));
        }
        let mut ask = self.give_back(now, grant);
        ask.past.rechecked = true;
        Dispatch::Again(ask)
    }

    /// The worker has begun to answer (R11).
    pub fn commit(&mut self, now: Time, checked: Checked) -> (Live, Outcome) {
        let grant = checked.0;
        let target = grant.target();
        let (lease, outcome) = match (&mut self.table, grant.claim, grant.ask.session) {
            (Some(table), Claim::Held(hold), Some(session)) => {
                let (rows, unplaced) = (&self.rows, &self.unplaced);
                let on_down = self.settings.affinity.on_down;
                let lens = Lens::new(now, rows, unplaced, &self.vitals, self.silence, on_down);
                let standing = |t| lens.standing(grant.ask.name, t);
                let c = table.commit(now, hold, target, session.last, standing);
                (c.lease, c.outcome)
            }
            (Some(table), Claim::Full, _) => {
                table.routed_unbound();
                (None, Outcome::UnboundFull)
            }
            (_, Claim::Surplus, _) => (None, Outcome::Surplus),
            _ => (None, Outcome::None),
        };
        let ends = grant.ask.session.and_then(|s| s.ends_group);
        if let (Some(table), Some(group)) = (&mut self.table, ends)
            && outcome != Outcome::Surplus
        {
            table.end_group(now, group);
        }
        self.count(outcome);
        self.records.begun(now, grant.ask.past.record, outcome);
        if self.vitals.answered(now, grant.worker.id) {
            self.is_well(grant.worker.id);
        }
        self.debug_check();
        (self.begin(grant.booking, lease, grant.forecast, grant.ask.past.record), outcome)
    }

    /// A grant comes to nothing: releases the hold and the booking, binds nothing (R12).
    pub fn abandon(&mut self, now: Time, held: Held, why: Abandon) -> Outcome {
        let sent = matches!(held, Held::Checked(_));
        let (Held::Grant(grant) | Held::Checked(Checked(grant))) = held;
        let _ = self.free(now, grant.booking, grant.rank);
        let worker = grant.worker.id;
        match why {
            Abandon::Failed if sent => self.came_to_nothing(now, worker, grant.tries),
            Abandon::Answered => self.is_alive(now, worker),
            _ if grant.tries => self.vitals.tried(now, worker),
            _ => {}
        }
        if sent {
            self.vitals.ended(now, worker);
        }
        let outcome = if self.has_session(&grant.ask) { Outcome::Unbound } else { Outcome::None };
        if let (Some(table), Claim::Held(hold)) = (&mut self.table, grant.claim) {
            table.release(now, hold, why != Abandon::NotDispatched);
        }
        self.withdraw(&grant.ask);
        self.count(outcome);
        self.records.abandoned(now, grant.ask.past.record, why, outcome);
        self.wake_all(Some(grant.worker.id));
        self.debug_check();
        outcome
    }
}
