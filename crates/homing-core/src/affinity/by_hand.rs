//! A table by hand: short words for the tests beside it, with workers that are all live.

use super::quota::Quota;
use super::table::SessionView;
use super::{Hold, Lease, Outcome, Plan, Resolved, Rules, Standing, Table};
use crate::ids::{DpRank, SessionKey, Target, WorkerId};
use crate::settings::{Mode, OnFull};
use crate::time::Time;
use std::time::Duration;

pub(super) const TTL: Duration = Duration::from_secs(60);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Room for `max`, no bound on claims, nothing shared.
pub(super) fn rules(max_sessions: usize) -> Rules {
    let on_full = OnFull::RouteUnbound;
    Rules { ttl: TTL, max_sessions, on_full, max_parallel: 0, shared: false }
}

pub(super) fn key(k: u32) -> SessionKey {
    SessionKey(u128::from(k))
}

pub(super) fn at(worker: u32) -> Target {
    Target { worker: WorkerId(worker), rank: Some(DpRank(0)) }
}

pub(super) fn live(_: Target) -> Standing {
    Standing::Live
}

#[derive(Debug)]
pub(super) struct ByHand {
    pub(super) table: Table,
    pub(super) now: Time,
    /// Of whoever resolves from now on.
    pub(super) quota: Option<Quota>,
}

impl ByHand {
    pub(super) fn new(rules: Rules) -> Self {
        Self::writing(rules, 1)
    }

    /// Of router number `writer`.
    pub(super) fn writing(rules: Rules, writer: u32) -> Self {
        Self {
            table: Table::new(rules, writer),
            now: Time::from_micros(1_000_000_000),
            quota: None,
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    pub(super) fn resolve(&mut self, k: u32) -> Resolved {
        self.table.resolve(self.now, key(k), Mode::Hard, false, self.quota, live)
    }

    pub(super) fn hold(&mut self, k: u32) -> Hold {
        match self.resolve(k) {
            Resolved::Hold(hold) => hold,
            other => panic!("no hold: {other:?}"),
        }
    }

    /// A request that is on its way to `worker`.
    pub(super) fn sent(&mut self, k: u32, worker: u32, plan: Plan) -> Hold {
        let mut hold = self.hold(k);
        self.table.selected(self.now, &mut hold, at(worker), plan);
        hold
    }

    pub(super) fn commit(&mut self, hold: Hold, worker: u32) -> (Option<Lease>, Outcome) {
        let done = self.table.commit(self.now, hold, at(worker), false, live);
        self.table.check();
        (done.lease, done.outcome)
    }

    /// A turn that goes on.
    pub(super) fn begin(&mut self, k: u32, worker: u32) -> Lease {
        let hold = self.sent(k, worker, Plan::Home);
        self.commit(hold, worker).0.expect("a lease")
    }

    /// A session's final turn (R19), which goes on.
    pub(super) fn begin_last(&mut self, k: u32, worker: u32) -> Lease {
        let hold = self.sent(k, worker, Plan::Home);
        let done = self.table.commit(self.now, hold, at(worker), true, live);
        done.lease.expect("a lease")
    }

    pub(super) fn end(&mut self, lease: Lease) {
        self.table.end(self.now, lease);
        self.table.check();
    }

    /// A whole turn.
    pub(super) fn turn(&mut self, k: u32, worker: u32) {
        let lease = self.begin(k, worker);
        self.end(lease);
    }

    /// A turn that goes on, in a table that is too large to check each time.
    pub(super) fn begin_unchecked(&mut self, k: u32, worker: u32) -> Lease {
        let hold = self.hold(k);
        let done = self.table.commit(self.now, hold, at(worker), false, live);
        done.lease.expect("a lease")
    }

    /// A whole one.
    pub(super) fn turn_unchecked(&mut self, k: u32, worker: u32) {
        let lease = self.begin_unchecked(k, worker);
        self.table.end(self.now, lease);
    }

    pub(super) fn view(&self, k: u32) -> Option<SessionView> {
        self.table.get(self.now, key(k))
    }

    /// The worker that a session lives at.
    pub(super) fn home(&self, k: u32) -> Option<u32> {
        self.view(k).map(|v| v.target.worker.0)
    }

    /// Those of `0..n` that are bound.
    pub(super) fn bound(&self, n: u32) -> Vec<u32> {
        (0..n).filter(|k| self.home(*k).is_some()).collect()
    }
}
