//! What hosts do with their requests, at any point of each one's way, and what must come of it.

use super::super::engine::{BLOCK, LONGEST};
use super::laws::{Claim, Due, Verdict};
use super::{Line, Meta, Running, Storm, TIED_MOST, any, one};
use homing_core::affinity::Outcome;
use homing_core::affinity::table::SessionView;
use homing_core::ask::{
    Abandon, Admission, Ask, Cause, Checked, Dispatch, Failure, Grant, Output, Refusal, Step, Usage,
};
use homing_core::dice::Dice;
use homing_core::fleet::State;
use homing_core::ids::{SessionKey, Target};
use homing_core::settings::{Mode, OnDown, OnFailure, OnFull, OnOverload};
use homing_core::time::Time;
use std::time::Duration;

impl Storm {
    pub(super) fn ask(&mut self, meta: Meta, ask: Ask) {
        self.time_told(meta.pool, self.now);
        let due = self.due(&meta, None);
        let mut ask = ask;
        ask.note.id = Some(meta.serial.to_string().into());
        let admission = self.core.admit(self.now, ask);
        self.admitted(meta, due, None, admission);
    }

    /// When a request that begins to wait in `line` must have left it.
    fn patience(&self, meta: &Meta, line: Line, from: Option<Line>) -> Time {
        let patience = self.now + self.settings.queue.max_wait;
        let had = from.map(|_| meta.deadline);
        match line {
            Line::Home(home) if self.waits_for(meta.pool, home) => {
                meta.client.or(had).unwrap_or(patience)
            }
            _ => had.unwrap_or(meta.client.map_or(patience, |d| d.min(patience))),
        }
    }

    /// The session's binding as it is shown.
    pub(super) fn shown(&self, meta: &Meta) -> Option<SessionView> {
        self.core.session(self.now, self.partitions[meta.pool]?, meta.session?.key)
    }

    fn has_session(&self, meta: &Meta) -> bool {
        meta.session.is_some() && self.settings.affinity.ttl.is_some()
    }

    /// What was due has come: whether it is granted, waits or is refused, why, and what is kept.
    fn admitted(&mut self, mut meta: Meta, due: Due, from: Option<Line>, admission: Admission) {
        let pool = meta.pool;
        let key = meta.session.map(|s| s.key);
        let waits_on = matches!(from, Some(Line::Home(home)) if self.waits_for(pool, home))
            && meta.client.is_some_and(|client| self.now < client);
        let overdue = from.is_some() && meta.deadline <= self.now && !waits_on;
        let waiting = self.tickets.values().filter(|(m, _)| m.pool == pool).count();
        let most = Some(self.settings.queue.max_requests).filter(|n| *n > 0).unwrap_or(TIED_MOST);
        // A claim that comes too late isn't looked at.
        let due = if overdue {
            let verdict = Verdict::Refuse(Cause::Timeout, false);
            Due { claim: Claim::None, drops: false, gives_up: false, home: None, verdict }
        } else {
            due
        };
        let own = |cause| {
            use Cause::{BadRank, NotAllowed, RankRequired, UnknownWorker};
            matches!(cause, UnknownWorker | BadRank | NotAllowed | RankRequired)
        };
        // Who goes nowhere changes nothing.
        if due.drops && matches!(admission, Admission::Granted(_)) {
            self.shadows[pool].depart(key.unwrap());
        }
        if due.gives_up {
            self.shadows[pool].bound.remove(&key.unwrap());
            self.saw("given up");
        }
        let had = matches!(due.claim, Claim::Held(hold) if hold.had) && !due.drops;
        let known = !overdue && !matches!(due.verdict, Verdict::Refuse(cause, _) if own(cause));
        if let Some(e) = meta.explicit.as_ref().filter(|_| known) {
            meta.named = meta.named.or_else(|| self.core.worker_named(&e.worker));
        }
        self.log(format_args!(
            "#{} {:?} {:?} {:?} -> {:?}: {}",
            meta.serial,
            meta.name,
            meta.session.map(|s| (s.key.0, s.mode)),
            meta.explicit,
            due,
            match &admission {
                Admission::Granted(g) => format!("granted {:?} {:?}", g.target(), g.placement()),
                Admission::Waiting(t) => format!("waiting {:?}", t.id()),
                Admission::Refused(r) => format!("refused {r:?}"),
            }
        ));
        match (admission, due.verdict) {
            (Admission::Granted(grant), Verdict::Go(to, plan)) => {
                assert!(to.contains(&grant.target()), "{:?} is none of {to:?}", grant.target());
                self.may_run(&meta, due.home, &grant);
                self.recorded(&meta, &grant);
                (meta.claim, meta.plan) = (due.claim, plan);
                if let Claim::Held(hold) = &due.claim {
                    self.shadows[pool].hold(key.unwrap(), hold, grant.target());
                }
                self.grants.push((meta, grant));
                self.weigh(pool, None);
            }
            (Admission::Waiting(ticket), Verdict::Wait(line)) => {
                assert!(from == Some(line) || waiting < most, "F42");
                meta.deadline = self.patience(&meta, line, from);
                meta.line = line;
                self.saw(match line {
                    Line::Any => "waits for anybody",
                    Line::Named(_) => "waits for the named one",
                    Line::Home(_) => "waits for home",
                });
                meta.seen = self.seen(&meta, &due.claim);
                meta.had |= had;
                self.ever_waited.insert(ticket.id());
                self.tickets.insert(ticket.id(), (meta, ticket));
            }
            (Admission::Refused(refusal), verdict) => {
                let (cause, bound) = match verdict {
                    Verdict::Refuse(cause, bound) => (cause, bound),
                    Verdict::Wait(line) if from != Some(line) && waiting >= most => {
                        (Cause::QueueFull, false)
                    }
                    verdict => panic!("{refusal:?} where {verdict:?} is due"),
                };
                let cause = after(&meta, from.is_some(), cause);
                assert_eq!((refusal.cause, refusal.bound), (cause, bound));
                self.refused(&meta, due.home, refusal);
            }
            (admission, verdict) => panic!("{admission:?} where {verdict:?} is due"),
        }
        if let Some(key) = key {
            self.shadows[pool].tidy(key);
        }
    }

    /// Whoever is granted a worker could be served there at all, whatever the rules say besides.
    fn may_run(&self, meta: &Meta, home: Option<Target>, grant: &Grant) {
        let worker = grant.worker();
        let views = self.core.workers();
        let view = views.iter().find(|v| v.info.id == worker.id).unwrap();
        assert_eq!(view.state, State::Ready);
        assert!(view.models.iter().any(|m| **m == *meta.name), "it doesn't serve {}", meta.name);
        assert!(grant.target().rank.is_some_and(|rank| view.ranks.has(rank)), "R09: the rank");
        assert!(meta.constraints.as_deref().is_none_or(|c| c.allow(worker)), "never widened");
        let hard = meta.session.is_some_and(|s| s.mode == Mode::Hard);
        if let Some(home) = home.filter(|_| hard && self.is_strict()) {
            assert!(home.admits(grant.target()), "R07: the strict set, and home is known");
        }
        if let Some(e) = &meta.explicit {
            assert_eq!(e.worker, worker.spec.name, "R09");
            assert!(e.rank.is_none() || e.rank == grant.target().rank, "R09");
        }
    }

    fn is_strict(&self) -> bool {
        let a = &self.settings.affinity;
        (a.on_down, a.on_failure, a.on_overload)
            == (OnDown::Reject, OnFailure::Reject, OnOverload::Reject)
    }

    fn refused(&mut self, meta: &Meta, home: Option<Target>, refusal: Refusal) {
        let outcome = match refusal.cause {
            _ if !self.has_session(meta) => Outcome::None,
            Cause::WorkerFailed | Cause::Answered => Outcome::Unbound,
            _ => Outcome::Rejected,
        };
        assert_eq!(refusal.outcome, outcome);
        self.saw(format_args!("{:?}", refusal.cause));
        let overloaded = matches!(refusal.cause, Cause::Overloaded | Cause::TargetOverloaded);
        if refusal.cause != Cause::QueueFull {
            assert_eq!(refusal.retry_after.is_some(), overloaded);
        }
        // Where it has not been said when they are back, it is a guess.
        let guess = !overloaded || self.anybody_over(meta.pool);
        if let Some(after) = refusal.retry_after.filter(|_| !guess) {
            let shed = self.shed[meta.pool].iter().filter(|(_, until)| **until > self.now);
            // Its home's own time, where that is the reason.
            let home = home.filter(|_| refusal.cause == Cause::TargetOverloaded);
            let those = shed.filter(|(id, _)| home.is_none_or(|home| home.worker == **id));
            let first = those.map(|(_, until)| *until).min();
            assert_eq!(Some(self.now + after), first, "when to come again");
        }
        self.ended(meta, outcome);
    }

    /// A request has its outcome.
    fn ended(&mut self, meta: &Meta, outcome: Outcome) {
        self.shadows[meta.pool].outcomes[outcome as usize] += 1;
        self.told(meta, outcome);
    }

    pub(super) fn look(&mut self) {
        let Some(i) = any(&mut self.dice, &self.grants) else { return };
        let (meta, grant) = self.grants.swap_remove(i);
        self.look_at(meta, grant);
    }

    pub(super) fn look_at(&mut self, mut meta: Meta, grant: Grant) {
        let before = self.shown(&meta);
        let again = self.must_look_again(&meta, grant.target());
        match self.core.check_dispatch(self.now, grant) {
            Dispatch::Go(checked) => {
                assert!(!again, "its session is at home elsewhere by now");
                assert_eq!(self.shown(&meta), before, "the last look changes nothing");
                self.log(format_args!("#{} goes", meta.serial));
                self.checked.push((meta, checked));
            }
            Dispatch::Again(ask) => {
                assert!(again, "no reason to ask again");
                self.log(format_args!("#{} again", meta.serial));
                self.saw("again");
                self.freed(meta.pool, self.now);
                self.let_go(&mut meta, false);
                meta.rechecked = true;
                self.ask(meta, *ask);
            }
            other => panic!("nothing is claimed here: {other:?}"),
        }
    }

    /// Its hold ends without a lease.
    fn let_go(&mut self, meta: &mut Meta, dispatched: bool) {
        if let (Claim::Held(hold), Some(session)) = (meta.claim, meta.session) {
            meta.had |= hold.had;
            self.shadows[meta.pool].release(self.now, session.key, &hold, dispatched);
        }
        meta.claim = Claim::None;
    }

    pub(super) fn begin(&mut self) {
        let Some(i) = any(&mut self.dice, &self.checked) else { return };
        let (meta, checked) = self.checked.swap_remove(i);
        self.commit(meta, checked);
    }

    /// R11: what was due, and nothing besides.
    pub(super) fn commit(&mut self, meta: Meta, checked: Checked) -> Outcome {
        let (pool, target) = (meta.pool, checked.grant().target());
        let before = self.shown(&meta);
        let bound = meta.session.and_then(|s| self.shadows[pool].get(self.now, s.key));
        let (due, moved) = match &meta.claim {
            Claim::None => (Outcome::None, None),
            Claim::Full => (Outcome::UnboundFull, None),
            Claim::Surplus => (Outcome::Surplus, None),
            Claim::Held(hold) => self.commit_due(&meta, hold, bound, target),
        };
        let (live, outcome) = self.core.commit(self.now, checked);
        self.log(format_args!("#{} runs at {target:?}: {outcome}", meta.serial));
        assert_eq!(outcome, due, "it was bound to {before:?}, and had {:?}", meta.claim);
        let mut lease = None;
        if let (Claim::Held(hold), Some(session)) = (meta.claim, meta.session) {
            let key = session.key;
            let shown = self.shown(&meta);
            match outcome {
                Outcome::New | Outcome::Rebound => {
                    let shown = shown.unwrap();
                    assert_eq!(shown.target, target, "R03: bound where it ran");
                    assert!(before.is_none_or(|b| b.version < shown.version), "R23");
                    self.make_room(pool, bound.is_some(), session.ends_group);
                    let shadow = &mut self.shadows[pool];
                    shadow.bind(self.now, key, target, shown.version);
                    if let Some(reason) = moved {
                        shadow.moves[reason as usize] += 1;
                    }
                }
                Outcome::Spilled => self.shadows[pool].bound.get_mut(&key).unwrap().spills += 1,
                Outcome::Hit | Outcome::Joined => {
                    self.shadows[pool].bound.get_mut(&key).unwrap().spills = 0;
                }
                Outcome::UnboundFull => self.shadows[pool].full += 1,
                _ => {}
            }
            let shadow = &mut self.shadows[pool];
            if matches!(outcome, Outcome::UnboundFull | Outcome::Conflict) {
                // It changes nothing: `agree` sees to the rest.
                assert_eq!(shown.map(|v| v.version), before.map(|v| v.version));
                shadow.release(self.now, key, &hold, true);
            } else {
                lease = Some((key, shadow.lease(key, &hold, session.last)));
            }
        }
        if matches!(meta.claim, Claim::Full) {
            self.shadows[pool].full += 1;
        }
        let ends =
            meta.session.and_then(|s| s.ends_group).filter(|_| !matches!(meta.claim, Claim::None));
        if let Some(group) = ends.filter(|_| outcome != Outcome::Surplus) {
            self.shadows[pool].end_group(group);
            self.saw("a group ends");
        }
        self.ended(&meta, outcome);
        self.running.push(Running { live, pool, target, lease });
        outcome
    }

    /// A binding has found room, if need be by another's going (R15).
    fn make_room(&mut self, pool: usize, replaces: bool, ends: Option<SessionKey>) {
        let affinity = &self.settings.affinity;
        let full = self.shadows[pool].bound.len() >= affinity.max_sessions;
        if full && !replaces {
            assert_eq!(affinity.on_full, OnFull::EvictIdle);
            let p = self.partitions[pool].unwrap();
            self.shadows[pool].evict(&self.core, self.now, p, ends);
        }
    }

    pub(super) fn fail(&mut self) {
        let Some(i) = any(&mut self.dice, &self.checked) else { return };
        let failure = match self.dice.below(8) {
            0 => Failure::Refused,
            n if n <= self.busy_day => Failure::Overloaded(None),
            1..=3 => Failure::Unreachable,
            4..=6 => Failure::Broken,
            _ => Failure::Overloaded(Some(Duration::from_millis(self.dice.below(3000) as u64))),
        };
        let (meta, checked) = &self.checked[i];
        let (pool, failed) = (meta.pool, checked.grant().worker().id);
        if failure == Failure::Refused {
            // It is Down before anything else is looked at.
            self.refusing = Some(failed);
            self.weigh(pool, None);
        }
        let (mut meta, checked) = self.checked.swap_remove(i);
        self.freed(pool, self.now);
        self.log(format_args!("#{} failed at {failed:?}: {failure:?}", meta.serial));
        let last = self.no_retry(&meta, failed, failure);
        let before = self.shown(&meta);
        let waits = self.waits_at_home(&meta, failed, failure);
        self.let_go(&mut meta, true);
        meta.attempts += u32::from(!waits);
        meta.failure = Some(failure);
        meta.may_have_run |= failure == Failure::Broken;
        if let Failure::Overloaded(retry_after) = failure {
            meta.sent_on |= !waits;
            let (least, most) = (Duration::from_secs(1), Duration::from_secs(60));
            let until = self.now + retry_after.unwrap_or(least).clamp(least, most);
            if self.rows(&meta).iter().any(|r| r.id == failed) {
                let known = self.shed[pool].entry(failed).or_insert(until);
                *known = until.max(*known);
            }
        } else {
            meta.failed.push(failed);
        }
        if let Some((cause, bound)) = last {
            self.refusing = None;
            let (admission, _) = self.core.retry(self.now, checked, failure);
            let Admission::Refused(refusal) = admission else { panic!("nothing else is tried") };
            self.log(format_args!("#{} refused {refusal:?}", meta.serial));
            assert_eq!((refusal.cause, refusal.bound), (after(&meta, false, cause), bound));
            let kept = |v: Option<SessionView>| v.filter(|v| !v.last).map(|v| v.version);
            assert!(kept(before).is_none_or(|v| kept(self.shown(&meta)) == Some(v)), "R12: kept");
            self.refused(&meta, None, refusal);
        } else {
            let due = self.due(&meta, None);
            self.refusing = None;
            let (admission, events) = self.core.retry(self.now, checked, failure);
            self.note(&events);
            self.admitted(meta, due, None, admission);
        }
    }

    pub(super) fn give_up(&mut self) {
        let why =
            one(&mut self.dice, &[Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone]);
        let (mut meta, outcome) = if self.dice.below(2) > 0 {
            let Some(i) = any(&mut self.dice, &self.grants) else { return };
            let (meta, grant) = self.grants.swap_remove(i);
            (meta, self.core.abandon(self.now, grant, why))
        } else {
            let Some(i) = any(&mut self.dice, &self.checked) else { return };
            let (meta, checked) = self.checked.swap_remove(i);
            (meta, self.core.abandon(self.now, checked, why))
        };
        self.freed(meta.pool, self.now);
        self.let_go(&mut meta, why != Abandon::NotDispatched);
        self.given_up(&meta, outcome);
    }

    fn given_up(&mut self, meta: &Meta, outcome: Outcome) {
        self.log(format_args!("#{} abandoned: {outcome}", meta.serial));
        let due = if self.has_session(meta) { Outcome::Unbound } else { Outcome::None };
        assert_eq!(outcome, due);
        self.ended(meta, outcome);
    }

    pub(super) fn progress(&mut self) {
        let Some(i) = any(&mut self.dice, &self.running) else { return };
        let step = match self.dice.below(3) {
            0 => Step::FirstToken,
            _ => Step::Output(self.dice.below(20) as u32),
        };
        self.core.progress(self.now, &self.running[i].live, step);
    }

    pub(super) fn finish(&mut self) {
        let Some(i) = any(&mut self.dice, &self.running) else { return };
        let r = self.running.swap_remove(i);
        // Another thread's clock may have been read a little earlier.
        let now = self.now - Duration::from_micros(self.dice.below(3) as u64);
        if let Some((key, number)) = r.lease {
            self.shadows[r.pool].end(now, key, number);
        }
        if let Some(usage) = self.usage() {
            self.core.progress(self.now, &r.live, Step::Usage(usage));
        }
        self.core.finish(now, r.live);
        self.freed(r.pool, now);
        self.log(format_args!("finished at {:?}: {:?}", r.target, r.lease));
    }

    /// A booking has ended there.
    fn freed(&mut self, pool: usize, now: Time) {
        self.time_told(pool, now);
        self.weigh(pool, None);
    }

    /// What the engine says of a request: nothing, or anything.
    fn usage(&mut self) -> Option<Usage> {
        let most = (LONGEST * BLOCK) as usize;
        let dice = &mut self.engine_dice;
        let prompt_tokens = dice.below(2 * most) as u64;
        let cached_tokens = Some(dice.below(most) as u64).filter(|n| n % 5 > 0);
        Some(Usage { prompt_tokens, cached_tokens }).filter(|_| dice.below(3) > 0)
    }

    pub(super) fn drain(&mut self) {
        while let Some(Output::Wake(id)) = self.core.poll_output() {
            assert!(self.ever_waited.contains(&id), "woke nobody: {id:?}");
            self.woken.push_back(id);
        }
    }

    pub(super) fn claim(&mut self) {
        let Some(id) = self.woken.pop_front() else { return };
        // It may have left in between, or have claimed after an earlier wake.
        let Some((meta, ticket)) = self.tickets.remove(&id) else { return };
        let from = Some(meta.line);
        self.time_told(meta.pool, self.now);
        let due = self.due(&meta, from);
        let admission = self.core.claim(self.now, ticket);
        self.admitted(meta, due, from, admission);
    }

    pub(super) fn cancel(&mut self) {
        let n = self.tickets.len();
        let Some(id) = self.tickets.keys().nth(self.dice.below(n)).copied() else { return };
        let (meta, ticket) = self.tickets.remove(&id).unwrap();
        self.core.cancel(self.now, ticket);
        let due = if self.has_session(&meta) { Outcome::Unbound } else { Outcome::None };
        self.given_up(&meta, due);
    }
}

/// What is told of a request that has failed and can be served nowhere else.
fn after(meta: &Meta, waited: bool, cause: Cause) -> Cause {
    match (meta.failure.filter(|_| !waited), cause) {
        (Some(Failure::Overloaded(_)), _) => Cause::Answered,
        (Some(Failure::Unreachable), Cause::NoWorker | Cause::Overloaded) => Cause::WorkerFailed,
        // It may have run: nobody is to send it again.
        (_, Cause::NoWorker | Cause::Overloaded | Cause::QueueFull | Cause::Timeout)
            if meta.may_have_run =>
        {
            Cause::WorkerFailed
        }
        _ => cause,
    }
}
