//! What the contract says must come of a request, from what anybody can see and the storm holds: R04 to
//! R09, R15 and R27 for one that asks, R07 and R12 for one that has failed, R10 for one that is about to
//! be sent, R11 for one that is answered. Plain on purpose: no rule knows how the core does it.

use super::super::shadow::{Binding, Hold};
use super::{Line, Meta, PICKY, Storm};
use homing_core::affinity::{MoveReason, Outcome, Plan};
use homing_core::ask::{Cause, Failure};
use homing_core::fleet::{Drain, Ranks, State};
use homing_core::ids::{Target, WorkerId};
use homing_core::settings::{Mode, OnDown, OnFailure, OnFull, OnOverload};
use std::sync::Arc;

/// What a request has of its session.
#[derive(Clone, Copy, Debug)]
pub(super) enum Claim {
    /// No session, or sessions are off.
    None,
    Full,
    Surplus,
    Held(Hold),
}

#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// Why, and whether its Hard session's home is the reason.
    Refuse(Cause, bool),
    /// To one of these.
    Go(Vec<Target>, Plan),
    Wait(Line),
    /// Nobody may serve it, by its policy's own word: the binding goes (R07's last row).
    GiveUp,
}

/// What must come of a request that asks now.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) claim: Claim,
    /// Its session's home has departed, and the binding goes.
    pub(super) drops: bool,
    /// Its binding goes, and it is refused.
    pub(super) gives_up: bool,
    /// Its home, if that is known and live enough.
    pub(super) home: Option<Target>,
    pub(super) verdict: Verdict,
}

/// A worker of one pool.
pub(super) struct Row {
    pub(super) id: WorkerId,
    name: String,
    state: State,
    serves: Vec<Arc<str>>,
    ranks: Ranks,
    drain: Option<Drain>,
    shed: bool,
    allowed: bool,
}

/// A rank of a worker that serves the name.
#[derive(Clone, Copy)]
struct Spot {
    target: Target,
    /// Ready, allowed, not draining, and it hasn't failed the request.
    usable: bool,
    shed: bool,
    busy: bool,
    /// Requests that name its worker wait for it.
    awaited: bool,
    /// The policy rules it out.
    vetoed: bool,
}

impl Storm {
    /// Of the request's pool.
    pub(super) fn rows(&self, meta: &Meta) -> Vec<Row> {
        self.rows_of(meta, Some(meta.pool))
    }

    /// Those that serve nothing known yet.
    fn unplaced(&self, meta: &Meta) -> Vec<Row> {
        self.rows_of(meta, None)
    }

    fn rows_of(&self, meta: &Meta, placed: Option<usize>) -> Vec<Row> {
        let shed = &self.shed[meta.pool];
        let mut rows = Vec::new();
        for v in self.core.workers() {
            let e = self.engines.iter().find(|e| e.id == Some(v.info.id)).unwrap();
            if e.placed != placed {
                continue;
            }
            rows.push(Row {
                id: v.info.id,
                name: e.name.clone(),
                // Whose port has just refused is Down before anything is looked at.
                state: if self.refusing == Some(v.info.id) { State::Down } else { v.state },
                serves: v.models,
                ranks: e.ranks,
                drain: e.drain,
                shed: shed.get(&v.info.id).is_some_and(|until| *until > self.now)
                    || self.is_over(meta.pool, v.info.id),
                allowed: meta.constraints.as_deref().is_none_or(|c| c.allow(&v.info)),
            });
        }
        rows
    }

    /// R07's first row.
    pub(super) fn departed(&self, rows: &[Row], name: &str, home: Target) -> bool {
        let Some(row) = rows.iter().find(|r| r.id == home.worker) else { return true };
        !row.serves.iter().any(|m| **m == *name)
            || home.rank.is_some_and(|rank| !row.ranks.has(rank))
            || row.drain.and_then(|d| d.moves_at).is_some_and(|at| at <= self.now)
            || (row.state == State::Down && self.settings.affinity.on_down == OnDown::Rebind)
    }

    pub(super) fn queues(&self) -> bool {
        self.settings.queue.max_requests > 0 && self.settings.queue.busy_active_requests > 0
    }

    pub(super) fn waits_in(&self, pool: usize, line: Line) -> bool {
        self.tickets.values().any(|(m, _)| m.pool == pool && m.line == line)
    }

    /// Whether somebody waits for this very rank, or for any of its worker's.
    fn is_awaited(&self, pool: usize, target: Target) -> bool {
        self.tickets.values().any(|(m, _)| {
            let rank = m.explicit.as_ref().and_then(|e| e.rank);
            m.pool == pool
                && m.line == Line::Named(target.worker)
                && (rank.is_none() || rank == target.rank)
        })
    }

    /// Whether a Hard session waits until its home is not overloaded any more.
    pub(super) fn waits_for(&self, pool: usize, home: WorkerId) -> bool {
        self.settings.affinity.on_overload == OnOverload::Wait
            && (self.shed[pool].get(&home).is_some_and(|until| *until > self.now)
                || self.is_over(pool, home))
    }

    pub(super) fn due(&self, meta: &Meta, from: Option<Line>) -> Due {
        let rows = self.rows(meta);
        let refused = |cause| Due {
            claim: Claim::None,
            drops: false,
            gives_up: false,
            home: None,
            verdict: Verdict::Refuse(cause, false),
        };
        let named = match self.named(meta, &rows) {
            Ok(named) => named,
            // Nothing is touched then.
            Err(cause) => return refused(cause),
        };
        let (claim, drops) = self.resolved(meta, &rows);
        let hold = if let Claim::Held(hold) = claim { Some(hold) } else { None };
        let home = hold.and_then(|h| h.on).map(|b| b.target);
        let key = meta.session.map(|s| s.key).filter(|_| hold.is_some() && home.is_none());
        let other = key.and_then(|key| self.shadows[meta.pool].tentative.get(&key)).copied();
        let verdict = match (named, home, meta.session) {
            (Some(worker), _, _) => self.to_named(meta, &rows, worker, (home, other), from),
            (None, Some(home), Some(s)) => self.to_home(meta, &rows, home, s.mode, from),
            _ => self.as_new(meta, &rows, other, from),
        };
        let gives_up = matches!(verdict, Verdict::GiveUp);
        let verdict = if gives_up { Verdict::Refuse(Cause::NoWorker, false) } else { verdict };
        Due { claim, drops, gives_up, home, verdict }
    }

    /// What the request itself has wrong (R09), or the life that its target's name means.
    fn named(&self, meta: &Meta, rows: &[Row]) -> Result<Option<WorkerId>, Cause> {
        let Some(explicit) = &meta.explicit else { return Ok(None) };
        let starting = self.unplaced(meta);
        let row = rows.iter().chain(&starting).find(|r| *r.name == *explicit.worker);
        let id = row.map(|r| r.id);
        match (id, meta.named) {
            (None, None) => return Err(Cause::UnknownWorker),
            (None, Some(_)) => return Err(Cause::TargetUnavailable),
            (Some(now), Some(then)) if now != then => return Err(Cause::TargetUnavailable),
            _ => {}
        }
        let with_session = meta.session.is_some() && self.settings.affinity.ttl.is_some();
        match row {
            Some(r) if explicit.rank.is_some_and(|rank| !r.ranks.has(rank)) => {
                // One that was in range when the request came has departed since.
                let had = meta.named.is_some();
                Err(if had { Cause::TargetUnavailable } else { Cause::BadRank })
            }
            Some(r) if !r.allowed => Err(Cause::NotAllowed),
            Some(r) if explicit.rank.is_none() && !with_session && r.ranks.count() > 1 => {
                Err(Cause::RankRequired)
            }
            _ => Ok(id),
        }
    }

    /// R03 to R05, R15, R27, and whether R07's first row takes the binding.
    fn resolved(&self, meta: &Meta, rows: &[Row]) -> (Claim, bool) {
        let affinity = &self.settings.affinity;
        let Some(session) = meta.session.filter(|_| affinity.ttl.is_some()) else {
            return (Claim::None, false);
        };
        let (key, shadow) = (session.key, &self.shadows[meta.pool]);
        let most = affinity.max_parallel;
        let bound = shadow.get(self.now, key);
        let drops = bound.is_some_and(|b| self.departed(rows, meta.name, b.target));
        // Leases on what has departed are none on its successor.
        let claims = shadow.claims(key) - bound.filter(|_| drops).map_or(0, |b| b.leases);
        if most > 0 && claims >= most {
            return (Claim::Surplus, false);
        }
        if let Some(on) = bound.filter(|_| !drops) {
            return (Claim::Held(Hold { on: Some(on), had: meta.had }), false);
        }
        let room =
            affinity.on_full == OnFull::EvictIdle || shadow.bound.len() < affinity.max_sessions;
        if bound.is_none() && shadow.claims(key) == 0 && !room {
            return (Claim::Full, false);
        }
        let had = meta.had || drops || shadow.lost.contains(&key);
        (Claim::Held(Hold { on: None, had }), drops)
    }

    fn spots(&self, meta: &Meta, rows: &[Row]) -> Vec<Spot> {
        let most = self.settings.queue.busy_active_requests;
        let serving = rows.iter().filter(|r| r.serves.iter().any(|m| **m == *meta.name));
        let spots = serving.flat_map(|r| {
            r.ranks.iter().map(|rank| {
                let target = Target { worker: r.id, rank: Some(rank) };
                Spot {
                    target,
                    usable: r.state == State::Ready
                        && r.allowed
                        && r.drain.is_none()
                        && !meta.failed.contains(&r.id),
                    shed: r.shed,
                    busy: most > 0 && self.load(meta.pool, target) >= most as usize,
                    awaited: self.is_awaited(meta.pool, target),
                    vetoed: self.picky && self.load(meta.pool, target) >= PICKY as usize,
                }
            })
        });
        spots.collect()
    }

    /// R09: waited for there, never moved.
    fn to_named(
        &self,
        meta: &Meta,
        rows: &[Row],
        worker: WorkerId,
        (home, other): (Option<Target>, Option<Target>),
        from: Option<Line>,
    ) -> Verdict {
        let hard = meta.session.is_some_and(|s| s.mode == Mode::Hard);
        let target = Target { worker, rank: meta.explicit.as_ref().unwrap().rank };
        let agrees = home.is_none_or(|home| home.admits(target));
        if hard && !agrees {
            return Verdict::Refuse(Cause::Conflict, true);
        }
        let row = rows.iter().find(|r| r.id == worker && r.state == State::Ready);
        let Some(row) = row else {
            return Verdict::Refuse(Cause::TargetUnavailable, hard && home.is_some());
        };
        if row.drain.is_some() && home.is_none_or(|home| home.worker != worker) {
            return Verdict::Refuse(Cause::TargetUnavailable, false);
        }
        let mut there = self.spots(meta, rows);
        there.retain(|s| target.admits(s.target) && !s.vetoed);
        if let Some(home) = home.filter(|_| agrees) {
            there.retain(|s| home.admits(s.target));
        }
        if there.is_empty() {
            // By the policy's own word alone: then its home is given up, too.
            let vetoed = self.spots(meta, rows).iter().any(|s| target.admits(s.target));
            return match hard && home.is_some() && vetoed {
                true => Verdict::GiveUp,
                false => Verdict::Refuse(Cause::NoWorker, false),
            };
        }
        let beside = |s: &Spot| other.is_some_and(|t| t.admits(s.target));
        if there.iter().any(beside) {
            there.retain(beside);
        }
        there.retain(|s| !s.busy);
        let line = Line::Named(worker);
        let behind = from != Some(line) && self.waits_in(meta.pool, line);
        if there.is_empty() || behind {
            return Verdict::Wait(line);
        }
        go(&there, if agrees { Plan::Home } else { Plan::Move(MoveReason::Soft) })
    }

    /// R07, row by row, for a home that hasn't departed.
    fn to_home(
        &self,
        meta: &Meta,
        rows: &[Row],
        home: Target,
        mode: Mode,
        from: Option<Line>,
    ) -> Verdict {
        let affinity = &self.settings.affinity;
        let row = rows.iter().find(|r| r.id == home.worker).unwrap();
        let soft = Plan::Move(MoveReason::Soft);
        let hard = mode == Mode::Hard;
        let plan = if !row.allowed {
            if hard {
                return Verdict::Refuse(Cause::Conflict, true);
            }
            soft
        } else if row.state != State::Ready {
            if hard {
                return Verdict::Refuse(Cause::TargetUnavailable, true);
            }
            soft
        } else if meta.failed.contains(&home.worker) {
            if hard && affinity.on_failure == OnFailure::Reject {
                return Verdict::Refuse(Cause::TargetUnavailable, true);
            }
            Plan::Move(MoveReason::Failed)
        } else if row.shed {
            match affinity.on_overload {
                _ if !hard => soft,
                OnOverload::Spill => Plan::Spill,
                OnOverload::Reject => return Verdict::Refuse(Cause::TargetOverloaded, true),
                OnOverload::Wait => return Verdict::Wait(Line::Home(home.worker)),
                OnOverload::Dispatch => Plan::Home,
            }
        } else {
            Plan::Home
        };
        let spots = self.spots(meta, rows);
        if plan != Plan::Home {
            return self.anywhere(meta, &spots, plan, from);
        }
        let would_wait = self.any_would_wait(&spots);
        let there: Vec<Spot> =
            spots.iter().filter(|s| home.admits(s.target) && !s.vetoed).copied().collect();
        match (there.is_empty(), hard) {
            (false, _) => at(&there, would_wait, Line::Home(home.worker)),
            (true, true) => Verdict::GiveUp,
            (true, false) => self.anywhere(meta, &spots, soft, from),
        }
    }

    /// R03, and R04 where another is about to bind.
    fn as_new(
        &self,
        meta: &Meta,
        rows: &[Row],
        other: Option<Target>,
        from: Option<Line>,
    ) -> Verdict {
        let spots = self.spots(meta, rows);
        let beside = |s: &&Spot| {
            other.is_some_and(|t| t.admits(s.target)) && s.usable && !s.shed && !s.vetoed
        };
        let joined: Vec<Spot> = spots.iter().filter(beside).copied().collect();
        if joined.is_empty() {
            return self.anywhere(meta, &spots, Plan::Home, from);
        }
        at(&joined, self.any_would_wait(&spots), Line::Any)
    }

    /// R08: every eligible target is busy, and requests may wait.
    fn any_would_wait(&self, spots: &[Spot]) -> bool {
        let mut usable = spots.iter().filter(|s| s.usable).peekable();
        self.queues() && usable.peek().is_some() && usable.all(|s| s.shed || s.busy)
    }

    /// Whether somebody is free for new work, and nobody else waits for him.
    pub(super) fn is_anybody_free(&self, meta: &Meta) -> bool {
        let spots = self.spots(meta, &self.rows(meta));
        spots.iter().any(|s| s.usable && !s.shed && !s.busy && !s.awaited)
    }

    fn anywhere(&self, meta: &Meta, spots: &[Spot], plan: Plan, from: Option<Line>) -> Verdict {
        let usable = spots.iter().filter(|s| s.usable && !s.vetoed);
        let mut to: Vec<Spot> = usable.copied().collect();
        if to.is_empty() {
            return Verdict::Refuse(Cause::NoWorker, false);
        }
        to.retain(|s| !s.shed);
        if !self.queues() {
            if to.is_empty() {
                return Verdict::Refuse(Cause::Overloaded, plan == Plan::Spill);
            }
            // Places that others wait for are left to them, if there are any others.
            if to.iter().any(|s| !s.awaited) {
                to.retain(|s| !s.awaited);
            }
            return go(&to, plan);
        }
        to.retain(|s| !s.busy && !s.awaited);
        let behind = from != Some(Line::Any) && self.waits_in(meta.pool, Line::Any);
        if to.is_empty() || behind { Verdict::Wait(Line::Any) } else { go(&to, plan) }
    }

    /// A dispatch has failed: the refusal, where nothing else is tried (R07, R12).
    pub(super) fn no_retry(
        &self,
        meta: &Meta,
        at: WorkerId,
        failure: Failure,
    ) -> Option<(Cause, bool)> {
        let affinity = &self.settings.affinity;
        let home = if let Claim::Held(hold) = meta.claim { hold.on } else { None };
        let at_home = meta.explicit.is_none()
            && meta.session.is_some_and(|s| s.mode == Mode::Hard)
            && home.is_some_and(|home| home.target.worker == at);
        let spent = meta.attempts >= self.settings.retry_attempts;
        let again = match (failure, affinity.on_overload) {
            // It waits for its home, however long that takes.
            (Failure::Overloaded(_), OnOverload::Wait) if at_home => true,
            (Failure::Overloaded(_), OnOverload::Reject | OnOverload::Dispatch) if at_home => false,
            (Failure::Overloaded(_), _) => !spent && !meta.sent_on && meta.explicit.is_none(),
            _ => !spent,
        };
        let broke = matches!(failure, Failure::Unreachable | Failure::Broken);
        if at_home && broke && affinity.on_failure == OnFailure::Reject {
            return Some((Cause::TargetUnavailable, true));
        }
        let refused_at_home =
            at_home && failure == Failure::Refused && affinity.on_down == OnDown::Reject;
        let cause = match refused_at_home {
            true => (Cause::TargetUnavailable, true),
            false => (Cause::NoWorker, false),
        };
        (!again).then_some(cause)
    }

    /// Whether a request that has just failed waits for its home, which is no attempt elsewhere.
    pub(super) fn waits_at_home(&self, meta: &Meta, at: WorkerId, failure: Failure) -> bool {
        let home = if let Claim::Held(hold) = meta.claim { hold.on } else { None };
        matches!(failure, Failure::Overloaded(_))
            && self.settings.affinity.on_overload == OnOverload::Wait
            && meta.explicit.is_none()
            && meta.session.is_some_and(|s| s.mode == Mode::Hard)
            && home.is_some_and(|home| home.target.worker == at)
    }

    /// R10: whether the session has moved meanwhile to another live target.
    pub(super) fn must_look_again(&self, meta: &Meta, target: Target) -> bool {
        let (Claim::Held(hold), Some(session)) = (meta.claim, meta.session) else { return false };
        let Some(b) = self.shadows[meta.pool].get(self.now, session.key) else { return false };
        let unchanged = hold.on.is_some_and(|on| on.version == b.version);
        session.mode == Mode::Hard
            && !meta.rechecked
            && !unchanged
            && !b.target.admits(target)
            && !self.departed(&self.rows(meta), meta.name, b.target)
    }

    /// R11: what the commit of a request that ran at `target` does; where it binds, why that is a move.
    pub(super) fn commit_due(
        &self,
        meta: &Meta,
        hold: &Hold,
        bound: Option<Binding>,
        target: Target,
    ) -> (Outcome, Option<MoveReason>) {
        let affinity = &self.settings.affinity;
        let hard = meta.session.is_some_and(|s| s.mode == Mode::Hard);
        let Some(b) = bound else {
            if !self.shadows[meta.pool].has_room(affinity.max_sessions, affinity.on_full) {
                return (Outcome::UnboundFull, None);
            }
            let away = hold.on.is_some_and(|home| !home.target.admits(target));
            return if hold.had || away {
                (Outcome::Rebound, Some(MoveReason::Departed))
            } else {
                (Outcome::New, None)
            };
        };
        if b.target.admits(target) {
            return (if hold.on.is_some() { Outcome::Hit } else { Outcome::Joined }, None);
        }
        if self.departed(&self.rows(meta), meta.name, b.target) {
            return (Outcome::Rebound, Some(MoveReason::Departed));
        }
        let unchanged = hold.on.is_some_and(|on| on.version == b.version);
        match meta.plan {
            Plan::Move(reason) if unchanged => (Outcome::Rebound, Some(reason)),
            _ if !hard => (Outcome::Rebound, Some(MoveReason::Soft)),
            Plan::Spill if unchanged && b.spills < 2 => (Outcome::Spilled, None),
            Plan::Spill if unchanged => (Outcome::Rebound, Some(MoveReason::Overloaded)),
            _ => (Outcome::Conflict, None),
        }
    }
}

fn go(to: &[Spot], plan: Plan) -> Verdict {
    Verdict::Go(to.iter().map(|s| s.target).collect(), plan)
}

/// Where it is tied to: a busy one delays it only if everybody would have to wait (R08).
fn at(there: &[Spot], would_wait: bool, line: Line) -> Verdict {
    let free: Vec<Spot> = there.iter().filter(|s| !s.busy).copied().collect();
    match (free.is_empty(), would_wait) {
        (false, _) => go(&free, Plan::Home),
        (true, true) => Verdict::Wait(line),
        (true, false) => go(there, Plan::Home),
    }
}
