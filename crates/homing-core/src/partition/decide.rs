//! The decision itself, as a function that changes nothing: filter, pin rule, and what follows where the
//! pinned target can't be used (R06, R07, R08, R09). Placing acts on it, a preview shows it (R16).

use super::Partition;
use super::standing::Lens;
use crate::affinity::{MoveReason, Plan, Standing};
use crate::ask::{Ask, Cause, Constraints, Failure, Past};
use crate::dice::SplitMix;
use crate::fleet::Row;
use crate::ids::{NameId, Target, WorkerId};
use crate::index::{Overlap, Overlaps};
use crate::queue::Line;
use crate::select::{Candidate, Candidates, Demand, Fit};
use crate::settings::{Mode, OnFailure, OnOverload};
use crate::time::Time;
use std::borrow::Cow;

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
    Go { picked: Candidate, considered: usize, plan: Plan },
    Wait(Line),
    Refuse(No),
}

/// What speaks against a candidate for everybody who doesn't live there.
pub(super) const UNUSABLE: Fit =
    Fit::NOT_READY.and(Fit::FORBIDDEN).and(Fit::FAILED).and(Fit::DRAINING);
/// What only means that it is somebody else's turn.
const OCCUPIED: Fit = Fit::BUSY.and(Fit::SHED);

impl Partition {
    /// Every target that serves the name, in the order of ids, and what speaks against each.
    pub(super) fn candidates(&self, demand: &Demand, ask: &Ask) -> Candidates {
        let overlaps = in_order(&ask.overlaps);
        let mut overlaps = overlaps.iter().peekable();
        let mut all = Candidates::new();
        let allowed =
            |row: &Row| ask.constraints.as_deref().is_none_or(|c: &Constraints| c.allow(&row.info));
        let unknown = self.paces.of_pool();
        let mut paces = self.paces.iter().peekable();
        let lens = self.lens(demand.now);
        for (number, row) in self.rows.iter().enumerate() {
            if !row.serves.contains(&ask.name) {
                continue;
            }
            let worker = row.info.id;
            let mut fit = Fit::default();
            fit.add(Fit::NOT_READY, !lens.is_up(row));
            fit.add(Fit::FORBIDDEN, !allowed(row));
            fit.add(Fit::FAILED, ask.past.failed.contains(&worker));
            fit.add(Fit::DRAINING, row.drain.is_some());
            fit.add(Fit::SHED, self.is_shed(demand.now, worker));
            let awaited = self.awaited(worker);
            while paces.next_if(|(w, _)| *w < worker).is_some() {}
            let pace = paces.next_if(|(w, _)| *w == worker).map_or(unknown, |(_, pace)| pace);
            let name = row.name;
            let homes = self.table.as_ref().map_or(0, |t| t.bindings_of(worker));
            for rank in row.ranks.iter() {
                // Both are in the order of ids: one walk beside the other.
                while overlaps.next_if(|o| (o.worker, o.rank) < (worker, rank)).is_some() {}
                let overlap = overlaps.next_if(|o| (o.worker, o.rank) == (worker, rank));
                let (host, disk) = overlap.map_or((0, 0), |o| (o.host, o.disk));
                // What is farther away follows what is near: where that is only on its way, so is the rest.
                let told =
                    overlap.map_or(0, |o| if o.told < o.blocks { o.told } else { o.total() });
                let overlap = overlap.map_or(0, Overlap::total);
                let load = self.load_of(worker, rank);
                let trust = self.trust.of(worker, ask.shape);
                let row = number;
                let mut c = Candidate {
                    worker,
                    rank,
                    row,
                    load,
                    overlap,
                    told,
                    host,
                    disk,
                    trust,
                    homes,
                    home: false,
                    pace,
                    name,
                    fit,
                };
                c.fit.add(Fit::BUSY, self.is_busy(&load));
                c.fit.add(Fit::AWAITED, awaited.has(rank));
                c.fit.add(Fit::VETOED, !self.policy.admits(demand, &c));
                all.push(c);
            }
        }
        all
    }

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
        all: &Candidates,
        dice: &mut SplitMix,
    ) -> Decision {
        if let Some(worker) = seat.named {
            return self.decide_named(demand, ask, seat, worker, all, dice);
        }
        let Some(home) = seat.home else {
            // A joiner goes where the other is about to run, while anybody could (R04).
            let beside = |c: &&Candidate| {
                seat.tentative.is_some_and(|t| t.admits(c.target()))
                    && !c.fit.any(UNUSABLE.and(Fit::SHED).and(Fit::VETOED))
            };
            let beside: Candidates = all.iter().filter(beside).copied().collect();
            if !beside.is_empty() {
                return self.at_home(demand, Line::Any, all, &beside, dice);
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
        let there: Candidates = all.iter().filter(|c| home.admits(c.target())).copied().collect();
        let admitted: Candidates =
            there.iter().filter(|c| !c.fit.any(Fit::VETOED)).copied().collect();
        match (admitted.is_empty(), seat.mode) {
            (false, _) => self.at_home(demand, Line::Home(home.worker), all, &admitted, dice),
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
        all: &Candidates,
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
        // Where the request names no rank, its session's own is meant.
        let there = |c: &&Candidate| {
            target.admits(c.target())
                && (!agrees || seat.home.is_none_or(|home| home.admits(c.target())))
                && !c.fit.any(Fit::VETOED)
        };
        let mut there: Candidates = all.iter().filter(there).copied().collect();
        if there.is_empty() {
            // The policy alone can rule out where a Hard session lives: then the session is given up, too.
            let give_up = bound && all.iter().any(|c| target.admits(c.target()));
            return Decision::Refuse(No { give_up, ..No::because(Cause::NoWorker) });
        }
        // A joiner takes the rank where the other's first turn is about to run (R04).
        let joins = |c: &Candidate| seat.tentative.is_some_and(|t| t.admits(c.target()));
        if there.iter().any(joins) {
            there.retain(|c| joins(c));
        }
        let line = Line::Named(worker);
        let free: Candidates = there.iter().filter(|c| !c.fit.any(Fit::BUSY)).copied().collect();
        // Behind those who wait already, unless it is one of them.
        let behind = seat.from != Some(line) && !self.lines.is_empty(line);
        if free.is_empty() || behind {
            return Decision::Wait(line);
        }
        let plan = if agrees { Plan::Home } else { Plan::Move(MoveReason::Soft) };
        self.pick(demand, &free, plan, dice)
    }

    /// At one of the targets that the session is tied to: their own load delays nobody, unless it would
    /// delay everybody (R08).
    fn at_home(
        &self,
        demand: &Demand,
        line: Line,
        all: &Candidates,
        there: &Candidates,
        dice: &mut SplitMix,
    ) -> Decision {
        let plan = Plan::Home;
        let free: Candidates = there.iter().filter(|c| !c.fit.any(Fit::BUSY)).copied().collect();
        if !free.is_empty() {
            return self.pick(demand, &free, plan, dice);
        }
        // Where nobody could serve new work at all, nobody's stream is worth waiting for.
        let mut others = all.iter().filter(|c| !c.fit.any(UNUSABLE)).peekable();
        let all_busy = others.peek().is_some() && others.all(|c| c.fit.any(OCCUPIED));
        if self.queues() && all_busy {
            return Decision::Wait(line);
        }
        self.pick(demand, there, plan, dice)
    }

    /// Wherever the policy likes.
    pub(super) fn anywhere(
        &self,
        demand: &Demand,
        seat: &Seat,
        all: &Candidates,
        plan: Plan,
        dice: &mut SplitMix,
    ) -> Decision {
        let mut usable: Candidates = all.iter().filter(|c| !c.fit.any(UNUSABLE)).copied().collect();
        if usable.is_empty() {
            return Decision::Refuse(No::because(Cause::NoWorker));
        }
        usable.retain(|c| !c.fit.any(Fit::VETOED));
        if usable.is_empty() {
            return Decision::Refuse(No::because(Cause::NoWorker));
        }
        if !self.queues() {
            usable.retain(|c| !c.fit.any(Fit::SHED));
            if usable.is_empty() {
                let bound = plan == Plan::Spill;
                return Decision::Refuse(No { bound, ..No::because(Cause::Overloaded) });
            }
            // Whoever waits for one worker would wait for ever if others took each free place there.
            if usable.iter().any(|c| !c.fit.any(Fit::AWAITED)) {
                usable.retain(|c| !c.fit.any(Fit::AWAITED));
            }
            return self.pick(demand, &usable, plan, dice);
        }
        usable.retain(|c| !c.fit.any(OCCUPIED.and(Fit::AWAITED)));
        let behind = seat.from != Some(Line::Any) && !self.lines.is_empty(Line::Any);
        if usable.is_empty() || behind {
            return Decision::Wait(Line::Any);
        }
        self.pick(demand, &usable, plan, dice)
    }

    fn pick(
        &self,
        demand: &Demand,
        from: &Candidates,
        plan: Plan,
        dice: &mut SplitMix,
    ) -> Decision {
        match self.policy.pick(demand, from, dice).and_then(|i| from.get(i)) {
            Some(picked) => Decision::Go { picked: *picked, considered: from.len(), plan },
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
