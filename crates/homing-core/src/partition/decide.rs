//! The decision itself, as a function that changes nothing: filter, pin rule, and what follows where the
//! pinned target can't be used (R06, R07, R08, R09). Placing acts on it, a preview shows it (R16).

use super::Partition;
use super::board::Field;
use super::standing::Lens;
use crate::affinity::{MoveReason, Plan, Standing};
use crate::ask::{Ask, Cause, Failure, Past};
use crate::dice::SplitMix;
use crate::fleet::Row;
use crate::ids::{NameId, Target, WorkerId};
use crate::queue::Line;
use crate::select::{Candidate, Demand, Fit};
use crate::settings::{Mode, OnFailure, OnOverload};
use crate::time::Time;

/// What a request brings along besides its ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// Where its session lives.
    pub(super) home: Option<Target>,
    /// Where another's first turn of its session is about to run.
    pub(super) tentative: Option<Target>,
    pub(super) mode: Mode,
    /// The life that its explicit target's name means.
    pub(super) named: Option<WorkerId>,
    /// The line that it comes from.
    pub(super) from: Option<Line>,
}

/// Why it is refused, and whether a Hard session's live home is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct No {
    pub(super) cause: Cause,
    pub(super) bound: bool,
    /// The session can be used nowhere: its binding goes.
    pub(super) give_up: bool,
    /// The worker that is the reason, where it is one.
    pub(super) at: Option<WorkerId>,
}

impl No {
    pub(super) fn because(cause: Cause) -> Self {
        Self { cause, bound: false, give_up: false, at: None }
    }

    pub(super) fn bound(cause: Cause) -> Self {
        Self { cause, bound: true, give_up: false, at: None }
    }
}

/// What is decided.
#[derive(Clone, Debug)]
pub(super) enum Decision {
    /// `at`: the picked one's number.
    Go {
        picked: Candidate,
        at: usize,
        plan: Plan,
    },
    Wait(Line),
    Refuse(No),
}

/// What only means that it is somebody else's turn.
const OCCUPIED: Fit = Fit::BUSY.and(Fit::SHED);

impl Partition {
    /// What is wrong with the request itself, whatever its session says; and the life that its explicit
    /// target's name means (R09).
    pub(super) fn named(&self, ask: &Ask, with_session: bool) -> Result<Option<WorkerId>, Cause> {
        let Some(explicit) = &ask.explicit else { return Ok(None) };
        let called = |name: &str| name == &*explicit.worker;
        let row = self.rows.iter().find(|r| called(&r.info.spec.name));
        let starting = || self.unplaced.values().find(|r| called(&r.info.spec.name));
        let Some(row) = row.or_else(starting) else {
            // It was known when the request came: it has departed since.
            let gone = ask.past.explicit.is_some();
            return Err(if gone { Cause::TargetUnavailable } else { Cause::UnknownWorker });
        };
        let id = row.info.id;
        if ask.past.explicit.is_some_and(|known| known != id) {
            return Err(Cause::TargetUnavailable);
        }
        if explicit.rank.is_some_and(|rank| !row.ranks.has(rank)) {
            // One that was in range when the request came has departed since.
            let gone = ask.past.explicit.is_some();
            return Err(if gone { Cause::TargetUnavailable } else { Cause::BadRank });
        }
        if ask.constraints.as_deref().is_some_and(|c| !c.allow(&row.info)) {
            return Err(Cause::NotAllowed);
        }
        if explicit.rank.is_none() && !with_session && row.ranks.count() > 1 {
            return Err(Cause::RankRequired);
        }
        Ok(Some(id))
    }

    /// See the module.
    pub(super) fn decide(
        &self,
        demand: &Demand,
        ask: &Ask,
        seat: &Seat,
        all: &mut Field,
        dice: &mut SplitMix,
    ) -> Decision {
        if let Some(worker) = seat.named {
            return self.decide_named(demand, ask, seat, worker, all, dice);
        }
        let Some(home) = seat.home else {
            // A joiner goes where the other is about to run, while anybody could (R04).
            if let Some(beside) = seat.tentative {
                let never = Fit::UNUSABLE.and(Fit::SHED).and(Fit::VETOED);
                all.keep_at(beside, |fit| !fit.any(never));
                if !all.kept.is_empty() {
                    return self.at_home(demand, Line::Any, all, dice);
                }
            }
            return self.anywhere(demand, seat, all, Plan::Home, dice);
        };
        let plan = match self.leave_home(demand.now, ask, seat.mode, home) {
            Ok(None) if seat.mode == Mode::Soft && self.weighs() => {
                return self.weighed(demand, seat, home, all, dice);
            }
            Ok(None) => Plan::Home,
            Ok(Some(Leave::For(plan))) => plan,
            Ok(Some(Leave::WaitFor(line))) => return Decision::Wait(line),
            Err(no) => return Decision::Refuse(no),
        };
        if plan != Plan::Home {
            return self.anywhere(demand, seat, all, plan, dice);
        }
        all.keep_at(home, |fit| !fit.any(Fit::VETOED));
        match (all.kept.is_empty(), seat.mode) {
            (false, _) => self.at_home(demand, Line::Home(home.worker), all, dice),
            (true, Mode::Soft) => {
                self.anywhere(demand, seat, all, Plan::Move(MoveReason::Soft), dice)
            }
            (true, Mode::Hard) => {
                Decision::Refuse(No { give_up: true, ..No::because(Cause::NoWorker) })
            }
        }
    }

    /// Whether a bound session's request leaves home, by R07's rows: `None` where it stays.
    fn leave_home(
        &self,
        now: Time,
        ask: &Ask,
        mode: Mode,
        home: Target,
    ) -> Result<Option<Leave>, No> {
        let soft = Ok(Some(Leave::For(Plan::Move(MoveReason::Soft))));
        let row = self.row(home.worker);
        // The request's own fault comes first.
        let allowed = |row: &Row| ask.constraints.as_deref().is_none_or(|c| c.allow(&row.info));
        if row.is_some_and(|row| !allowed(row)) {
            return if mode == Mode::Soft { soft } else { Err(No::bound(Cause::Conflict)) };
        }
        if row.is_none_or(|row| !self.lens(now).is_up(row)) {
            return if mode == Mode::Soft {
                soft
            } else {
                Err(No::bound(Cause::TargetUnavailable))
            };
        }
        if ask.past.failed.contains(&home.worker) {
            return match (mode, self.settings.affinity.on_failure) {
                (Mode::Hard, OnFailure::Reject) => Err(No::bound(Cause::TargetUnavailable)),
                _ => Ok(Some(Leave::For(Plan::Move(MoveReason::Failed)))),
            };
        }
        if self.is_shed(now, home.worker) {
            return match (mode, self.settings.affinity.on_overload) {
                (Mode::Soft, _) => soft,
                (Mode::Hard, OnOverload::Spill) => Ok(Some(Leave::For(Plan::Spill))),
                (Mode::Hard, OnOverload::Reject) => {
                    Err(No { at: Some(home.worker), ..No::bound(Cause::TargetOverloaded) })
                }
                (Mode::Hard, OnOverload::Wait) => Ok(Some(Leave::WaitFor(Line::Home(home.worker)))),
                (Mode::Hard, OnOverload::Dispatch) => Ok(None),
            };
        }
        Ok(None)
    }

    /// Where the request says (R09): overload and an earlier failure there don't matter.
    fn decide_named(
        &self,
        demand: &Demand,
        ask: &Ask,
        seat: &Seat,
        worker: WorkerId,
        all: &mut Field,
        dice: &mut SplitMix,
    ) -> Decision {
        let rank = ask.explicit.as_ref().and_then(|e| e.rank);
        let target = Target { worker, rank };
        let agrees = seat.home.is_none_or(|home| home.admits(target));
        if !agrees && seat.mode == Mode::Hard {
            return Decision::Refuse(No::bound(Cause::Conflict));
        }
        let bound = seat.home.is_some() && seat.mode == Mode::Hard;
        let unavailable = No { bound, ..No::because(Cause::TargetUnavailable) };
        let Some(row) = self.row(worker).filter(|row| self.lens(demand.now).is_up(row)) else {
            return Decision::Refuse(unavailable);
        };
        let lives_there = seat.home.is_some_and(|home| home.worker == worker);
        if row.drain.is_some() && !lives_there {
            return Decision::Refuse(No::because(Cause::TargetUnavailable));
        }
        all.keep_at(target, |fit| !fit.any(Fit::VETOED));
        if let Some(home) = seat.home.filter(|_| agrees) {
            // Where the request names no rank, its session's own is meant.
            all.retain_at(home);
        }
        if all.kept.is_empty() {
            // The policy alone can rule out where a Hard session lives: then the session is given up, too.
            let give_up = bound && !all.at(target).is_empty();
            return Decision::Refuse(No { give_up, ..No::because(Cause::NoWorker) });
        }
        // A joiner takes the rank where the other's first turn is about to run (R04).
        if let Some(t) = seat.tentative
            && all.any_at(t)
        {
            all.retain_at(t);
        }
        let line = Line::Named(worker);
        all.retain(|fit| !fit.any(Fit::BUSY));
        // Behind those who wait already, unless it is one of them.
        let behind = seat.from != Some(line) && !self.lines.is_empty(line);
        if all.kept.is_empty() || behind {
            return Decision::Wait(line);
        }
        let plan = if agrees { Plan::Home } else { Plan::Move(MoveReason::Soft) };
        self.pick(demand, all, plan, dice)
    }

    /// At one of the targets that are left, to which the session is tied: their own load delays nobody, unless it
    /// would delay everybody (R08).
    fn at_home(
        &self,
        demand: &Demand,
        line: Line,
        all: &mut Field,
        dice: &mut SplitMix,
    ) -> Decision {
        let plan = Plan::Home;
        if all.any(|fit| !fit.any(Fit::BUSY)) {
            all.retain(|fit| !fit.any(Fit::BUSY));
            return self.pick(demand, all, plan, dice);
        }
        // Where nobody could serve new work at all, nobody's stream is worth waiting for.
        let mut others = all.fits().iter().filter(|fit| !fit.any(Fit::UNUSABLE)).peekable();
        let all_busy = others.peek().is_some() && others.all(|fit| fit.any(OCCUPIED));
        if self.queues() && all_busy {
            return Decision::Wait(line);
        }
        self.pick(demand, all, plan, dice)
    }

    /// Wherever the policy likes.
    pub(super) fn anywhere(
        &self,
        demand: &Demand,
        seat: &Seat,
        all: &mut Field,
        plan: Plan,
        dice: &mut SplitMix,
    ) -> Decision {
        all.keep(|fit| !fit.any(Fit::UNUSABLE.and(Fit::VETOED)));
        if all.kept.is_empty() {
            return Decision::Refuse(No::because(Cause::NoWorker));
        }
        if !self.queues() {
            all.retain(|fit| !fit.any(Fit::SHED));
            if all.kept.is_empty() {
                let bound = plan == Plan::Spill;
                return Decision::Refuse(No { bound, ..No::because(Cause::Overloaded) });
            }
            // Whoever waits for one worker would wait for ever if others took each free place there.
            if all.any(|fit| !fit.any(Fit::AWAITED)) {
                all.retain(|fit| !fit.any(Fit::AWAITED));
            }
            return self.pick(demand, all, plan, dice);
        }
        all.retain(|fit| !fit.any(OCCUPIED.and(Fit::AWAITED)));
        let behind = seat.from != Some(Line::Any) && !self.lines.is_empty(Line::Any);
        if all.kept.is_empty() || behind {
            return Decision::Wait(Line::Any);
        }
        self.pick(demand, all, plan, dice)
    }

    /// The policy's choice among those that are left.
    fn pick(&self, demand: &Demand, from: &mut Field, plan: Plan, dice: &mut SplitMix) -> Decision {
        let whole = !self.records.off() && !self.policy.is_constant();
        match from.pick(&*self.policy, demand, whole, dice) {
            Some(at) => Decision::Go { picked: from.all()[at], at, plan },
            None => Decision::Refuse(No::because(Cause::NoWorker)),
        }
    }

    /// What a request demands whose session lives there, or nowhere.
    pub(super) fn demand(&self, now: Time, ask: &Ask, home: Option<Target>) -> Demand {
        let block_size = ask.prompt.block_size;
        // Where nobody shares bindings, all should find the same place for a session that none of them knows.
        let first = home.is_none() && !self.settings.affinity.shared;
        Demand {
            tokens: ask.prompt.tokens,
            block_size,
            unit: if ask.prompt.exact { block_size } else { 0 },
            now,
            answer: self.paces.answer(),
            newcomer: ask.session.filter(|_| first).map(|s| s.key),
        }
    }

    /// How a bound target stands, for a request under `name`.
    pub(super) fn standing(&self, now: Time, name: NameId, target: Target) -> Standing {
        self.lens(now).standing(name, target)
    }

    /// The workers as they count now.
    pub(super) fn lens(&self, now: Time) -> Lens<'_> {
        let on_down = self.settings.affinity.on_down;
        Lens::new(now, &self.rows, &self.unplaced, &self.vitals, self.silence, on_down)
    }

    pub(super) fn row(&self, worker: WorkerId) -> Option<&Row> {
        self.rows.binary_search_by_key(&worker, |r| r.info.id).ok().map(|i| &self.rows[i])
    }
}

/// Whither a request leaves home.
enum Leave {
    For(Plan),
    WaitFor(Line),
}

/// What to tell of a request that has failed before and that nobody can serve now. `waited`: since its last
/// failure it has been in the queue.
pub(super) fn after(past: &Past, waited: bool, cause: Cause) -> Cause {
    match (cause, past.failure.filter(|_| !waited)) {
        // Its worker has answered, and nobody else will: that answer stands.
        (_, Some(Failure::Overloaded(_))) => Cause::Answered,
        (Cause::NoWorker | Cause::Overloaded, Some(Failure::Unreachable)) => Cause::WorkerFailed,
        // It may have run: it must not be told to come again, whatever stood in its way afterwards.
        (Cause::NoWorker | Cause::Overloaded | Cause::QueueFull | Cause::Timeout, _)
            if past.may_have_run =>
        {
            Cause::WorkerFailed
        }
        // Nothing ran anywhere: it is as if the worker that refused had never been there.
        _ => cause,
    }
}
