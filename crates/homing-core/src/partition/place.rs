//! From an ask to a place: resolve, decide, book; or wait, or be refused.

use super::Partition;
use super::board::Board;
use super::decide::{Decision, No, Seat, after};
use super::lines::Queued;
use super::standing::Lens;
use crate::affinity::{Hold, Outcome, Plan, Resolved, Standing, Steer};
use crate::ask::{Admission, Ask, Cause, Claim, Grant, Refusal};
use crate::explain::{Placement, Preview};
use crate::load::Claimed;
use crate::select::{Candidate, Demand, Fit};
use crate::settings::Mode;
use crate::time::Time;
use crate::trust::Forecast;

impl Partition {
    pub(super) fn place(
        &mut self,
        now: Time,
        mut ask: Box<Ask>,
        queued: Option<Queued>,
    ) -> Admission {
        let with_session = self.has_session(&ask);
        // The request's own fault comes first, before anything is touched.
        let named = match self.named(&ask, with_session) {
            Ok(named) => named,
            Err(cause) => return self.refuse(now, &mut ask, queued, No::because(cause)),
        };
        ask.past.explicit = named;
        let mut claim = self.resolve(now, &ask);
        let hold = if let Claim::Held(hold) = &claim { Some(hold) } else { None };
        let steer = hold.map_or(Steer::Free, Hold::steer);
        let seat = Seat { named, from: queued.map(|q| q.line), ..seat(&ask, hold) };
        let demand = self.demand(now, &ask, seat.home);
        let (decision, among) = self.look(&demand, &mut ask, &seat, steer);
        match decision {
            Decision::Go { picked, plan, .. } => {
                if let (Some(table), Claim::Held(hold)) = (&mut self.table, &mut claim) {
                    table.selected(now, hold, picked.target(), plan);
                }
                self.policy.picked(&demand, &picked);
                let grant = self.grant(&demand, ask, claim, &picked, among);
                self.booked(picked.worker, &demand);
                Admission::Granted(grant)
            }
            Decision::Wait(line) => {
                if let Claim::Held(hold) = claim {
                    ask.past.had_binding |= hold.had_binding();
                    self.release_unsent(now, hold);
                }
                self.wait(now, ask, line, queued)
            }
            Decision::Refuse(no) => {
                if let Claim::Held(hold) = claim {
                    if let Some(table) = self.table.as_mut().filter(|_| no.give_up) {
                        table.give_up(now, &hold);
                    }
                    self.release_unsent(now, hold);
                }
                self.refuse(now, &mut ask, queued, no)
            }
        }
    }

    fn resolve(&mut self, now: Time, ask: &Ask) -> Claim {
        let (Some(table), Some(session)) = (&mut self.table, ask.session) else {
            return Claim::None;
        };
        let (rows, unplaced) = (&self.rows, &self.unplaced);
        let on_down = self.settings.affinity.on_down;
        let lens = Lens::new(now, rows, unplaced, &self.vitals, self.silence, on_down);
        let standing = |t| lens.standing(ask.name, t);
        let (had, quota) = (ask.past.had_binding, ask.quota());
        match table.resolve(now, session.key, session.mode, had, quota, standing) {
            Resolved::Hold(mut hold) => {
                self.join(ask, &mut hold);
                Claim::Held(hold)
            }
            Resolved::Full => Claim::Full,
            Resolved::Surplus => Claim::Surplus,
        }
    }

    /// Decides, and keeps what it was made of. The board is out of its place meanwhile: nothing changes on it but by
    /// the decision itself.
    fn look(
        &mut self,
        demand: &Demand,
        ask: &mut Ask,
        seat: &Seat,
        steer: Steer,
    ) -> (Decision, Among) {
        let mut board = std::mem::take(&mut self.board);
        self.survey(&mut board, demand, ask);
        if let Some(table) = &mut self.table {
            table.counted();
        }
        let mut dice = self.dice.clone();
        let decision = self.decide(demand, ask, seat, board.field_mut(), &mut dice);
        self.dice = dice;
        self.remember(demand, ask, steer, &mut board, &decision);
        let among = among(&board);
        self.board = board;
        (decision, among)
    }

    fn grant(
        &mut self,
        demand: &Demand,
        ask: Box<Ask>,
        claim: Claim,
        picked: &Candidate,
        among: Among,
    ) -> Grant {
        let chain = if ask.prompt.exact { &ask.prompt.chain } else { &ask.text.chain };
        let claimed = Claimed {
            tokens: demand.tokens,
            uncached: demand.uncached(picked.believed()),
            unit: demand.unit,
            chain: chain.clone(),
            chain_unit: demand.block_size,
        };
        let booking = self.ledger.book(demand.now, picked.worker, picked.rank, claimed);
        self.note_load(picked.worker, picked.rank);
        let forecast = forecast(demand, &ask, among.live, picked);
        let placement = Placement {
            eligible: among.eligible,
            considered: among.considered,
            overlap_blocks: picked.overlap,
            trust: picked.trust,
            best_overlap_blocks: among.best,
            cached_tokens: forecast.cached,
        };
        self.records.granted(demand.now, ask.past.record, picked.target(), placement);
        let worker = self.rows[picked.row].info.clone();
        let tries = self.vitals.placed(worker.id);
        Grant { ask, worker, rank: picked.rank, booking, claim, placement, forecast, tries }
    }

    fn release_unsent(&mut self, now: Time, hold: Hold) {
        if let Some(table) = &mut self.table {
            table.release(now, hold, false);
        }
    }

    /// Refuses a request; nothing is held any more.
    pub(super) fn refuse(
        &mut self,
        now: Time,
        ask: &mut Ask,
        queued: Option<Queued>,
        no: No,
    ) -> Admission {
        let cause = after(&ask.past, queued.is_some(), no.cause);
        let outcome = match (self.has_session(ask), cause) {
            (false, _) => Outcome::None,
            (true, Cause::WorkerFailed | Cause::Answered) => Outcome::Unbound,
            (true, _) => Outcome::Rejected,
        };
        self.withdraw(ask);
        self.count(outcome);
        let retry_after = self.retry_after(now, cause, no.at);
        let refusal = Refusal { cause, outcome, bound: no.bound, retry_after };
        self.records.refused(now, ask, &refusal);
        Admission::Refused(refusal)
    }

    /// Where a request would go, without acting (R16).
    #[must_use]
    pub fn preview(&self, now: Time, ask: &Ask) -> Preview {
        let with_session = self.has_session(ask);
        let named = self.named(ask, with_session);
        let (seat, claim) = self.foresee(now, ask);
        let demand = self.demand(now, ask, seat.home);
        let mut board = self.board.clone();
        self.survey(&mut board, &demand, ask);
        // The dice are a copy: a preview takes nobody's turn.
        let decision = match named {
            Ok(named) => {
                let (seat, all) = (Seat { named, ..seat }, board.field_mut());
                self.decide(&demand, ask, &seat, all, &mut self.dice.clone())
            }
            Err(cause) => Decision::Refuse(No::because(cause)),
        };
        let rejected = if with_session { Outcome::Rejected } else { Outcome::None };
        let (target, refusal, outcome) = match &decision {
            Decision::Go { picked, plan, .. } => {
                (Some(picked.target()), None, foreseen(&seat, &claim, picked, *plan))
            }
            Decision::Wait(_) => (None, None, foreseen_waiting(&claim, with_session)),
            Decision::Refuse(no) => {
                let retry_after = None;
                let refusal =
                    Refusal { cause: no.cause, outcome: rejected, bound: no.bound, retry_after };
                (None, Some(refusal), rejected)
            }
        };
        let steer = match (seat.home, seat.tentative, seat.mode) {
            (Some(home), _, Mode::Hard) => Some(Steer::Pin(home)),
            (Some(home), _, Mode::Soft) => Some(Steer::Prefer(home)),
            (None, Some(tentative), _) => Some(Steer::Tentative(tentative)),
            (None, None, _) => None,
        };
        let all = board.field().all();
        Preview {
            target,
            waits: matches!(decision, Decision::Wait(_)),
            refusal,
            outcome,
            home: seat.home,
            steer,
            candidates: all.iter().map(|c| (*c, self.policy.cost(&demand, c))).collect(),
            terms: all.iter().map(|c| self.policy.terms(&demand, c)).collect(),
        }
    }

    /// What a session would resolve to.
    fn foresee(&self, now: Time, ask: &Ask) -> (Seat, Foreseen) {
        let none = seat(ask, None);
        let (Some(table), Some(session)) = (&self.table, ask.session) else {
            return (none, Foreseen::None);
        };
        let key = session.key;
        let bound = table.get(now, key).map(|view| view.target);
        let departed = |t| self.standing(now, ask.name, t) == Standing::Departed;
        let home = bound.filter(|t| !departed(*t));
        let lost = bound.is_some() && home.is_none();
        if table.is_hot(key, lost) {
            return (none, Foreseen::Surplus);
        }
        let tentative = if bound.is_none() { table.tentative(key) } else { None };
        let full = || table.would_be_full(now, key, ask.quota());
        if bound.is_none() && tentative.is_none() && full() {
            return (none, Foreseen::Full);
        }
        let spills = table.next_spill_moves(key);
        (Seat { home, tentative, ..none }, Foreseen::Held { lost, moves: spills })
    }
}

/// What is predicted of a request that goes there, by the index alone: how far that was believed is no part
/// of it, or a lie that nobody believes would look like the truth.
/// `best`: what some live target holds.
fn forecast(demand: &Demand, ask: &Ask, best: u32, picked: &Candidate) -> Forecast {
    let held = |blocks| demand.tokens - demand.uncached(blocks);
    Forecast {
        worker: picked.worker,
        rank: picked.rank,
        name: ask.name,
        shape: ask.shape,
        exact: ask.prompt.exact,
        block_size: demand.block_size,
        tokens: demand.tokens,
        cached: held(picked.overlap),
        told: held(picked.told),
        best: held(best.max(picked.overlap)),
        seen: held(ask.past.seen.max(best).min(ask.prompt.reusable_blocks())),
    }
}

/// Among whom a decision was made.
struct Among {
    /// How many could have served it,
    eligible: u32,
    /// and how many of them the policy was asked about.
    considered: u32,
    /// The most that one who could have served it holds,
    best: u32,
    /// and that one who is up does.
    live: u32,
}

fn among(board: &Board) -> Among {
    let most = |not: Fit| {
        let those = board.holders().filter(move |c| !c.fit.any(not));
        those.map(|c| c.overlap).max().unwrap_or(0)
    };
    let field = board.field();
    let eligible = field.fits().iter().filter(|fit| !fit.any(NOT_ELIGIBLE)).count();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Among {
        eligible: number(eligible),
        considered: number(field.kept.len()),
        best: most(NOT_ELIGIBLE),
        live: most(Fit::NOT_READY),
    }
}

/// What a candidate must not be to count as eligible in the contract's sense.
pub(super) const NOT_ELIGIBLE: Fit = Fit::NOT_READY
    .and(Fit::UNWELL)
    .and(Fit::FORBIDDEN)
    .and(Fit::FAILED)
    .and(Fit::DRAINING)
    .and(Fit::SHED)
    .and(Fit::VETOED);

/// What a preview finds of a session.
enum Foreseen {
    None,
    Full,
    Surplus,
    /// `lost`: a departure takes its binding; `moves`: one more spilled turn moves it.
    Held {
        lost: bool,
        moves: bool,
    },
}

fn seat(ask: &Ask, hold: Option<&Hold>) -> Seat {
    let mode = ask.session.map_or(Mode::Hard, |s| s.mode);
    let steer = hold.map_or(Steer::Free, Hold::steer);
    let tentative = if let Steer::Tentative(t) = steer { Some(t) } else { None };
    Seat { home: hold.and_then(Hold::home), tentative, mode, named: None, from: None }
}

/// What a good answer there would do to the session.
fn foreseen(seat: &Seat, claim: &Foreseen, picked: &Candidate, plan: Plan) -> Outcome {
    match claim {
        Foreseen::None => Outcome::None,
        Foreseen::Full => Outcome::UnboundFull,
        Foreseen::Surplus => Outcome::Surplus,
        Foreseen::Held { lost: true, .. } => Outcome::Rebound,
        Foreseen::Held { moves, .. } => match (seat.home, seat.tentative) {
            (Some(home), _) if home.admits(picked.target()) => Outcome::Hit,
            (Some(_), _) if plan == Plan::Spill && !moves => Outcome::Spilled,
            (Some(_), _) => Outcome::Rebound,
            (None, Some(t)) if t.admits(picked.target()) => Outcome::Joined,
            (None, _) => Outcome::New,
        },
    }
}

fn foreseen_waiting(claim: &Foreseen, with_session: bool) -> Outcome {
    match claim {
        Foreseen::Full => Outcome::UnboundFull,
        Foreseen::Surplus => Outcome::Surplus,
        _ if with_session => Outcome::Unbound,
        _ => Outcome::None,
    }
}
