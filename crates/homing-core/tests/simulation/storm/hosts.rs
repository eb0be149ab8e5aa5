//! What hosts do with their requests, at any point of each one's way, and what must come of it.

use super::super::engine::{FAMILIES, LONGEST, prompt};
use super::{Meta, NAMES, POOLS, Running, SESSIONS, Storm, any};
use homing_core::SelectionCore;
use homing_core::affinity::Outcome;
use homing_core::affinity::table::SessionView;
use homing_core::ask::{Abandon, Admission, Ask, Cause, Checked, Dispatch, Failure, Output, Step};
use homing_core::dice::Dice;
use homing_core::fleet::State;
use homing_core::ids::{SessionKey, Target, WorkerId};
use homing_core::settings::{Mode, OnDown};
use homing_core::time::Time;
use std::time::Duration;

impl Storm {
    pub(super) fn admit(&mut self) {
        let name = NAMES[self.dice.below(NAMES.len())];
        let Ok(route) = self.core.route(name) else { return };
        let pool = POOLS.iter().position(|p| name.starts_with(p)).unwrap();
        self.partitions[pool] = Some(route.partition);
        let family = self.dice.below(FAMILIES as usize) as u32;
        let blocks = self.dice.below(LONGEST as usize + 1) as u32;
        let mut ask = Ask::new(route.partition, route.name, prompt(family, blocks));
        ask.overlaps = self.core.overlaps(route.partition, &ask.prompt);
        for e in self.engines.iter().filter(|e| e.id.is_some() && e.placed == Some(pool)) {
            let got = ask.overlaps.iter().find(|o| Some(o.worker) == e.id).map_or(0, |o| o.blocks);
            assert_eq!(got, e.overlap(family, blocks), "overlap of {:?}", e.id);
        }
        if self.dice.below(5) > 0 {
            let key = SessionKey(self.dice.roll() as u128 % SESSIONS);
            let mode = [Mode::Hard, Mode::Hard, Mode::Soft][self.dice.below(3)];
            ask.session = Some((key, mode));
        }
        if self.dice.below(4) == 0 {
            ask.deadline = Some(self.now + Duration::from_micros(self.dice.below(20_000) as u64));
        }
        self.requests += 1;
        let meta = Meta {
            serial: self.requests,
            pool,
            name,
            session: ask.session,
            excluded: Vec::new(),
            seen: None,
            full: false,
            rechecked: false,
            client: ask.deadline,
            deadline: self.now,
        };
        self.ask(meta, ask);
    }

    pub(super) fn ask(&mut self, mut meta: Meta, ask: Ask) {
        meta.deadline = self.patience(&meta);
        let before = self.before(&meta);
        let admission = self.core.admit(self.now, ask);
        self.admitted(meta, before, admission);
    }

    pub(super) fn patience(&self, meta: &Meta) -> Time {
        let patience = self.now + self.settings.queue.max_wait;
        meta.client.map_or(patience, |d| d.min(patience))
    }

    /// The session's binding just before the request resolves it.
    pub(super) fn before(&self, meta: &Meta) -> Option<SessionView> {
        let (key, _) = meta.session?;
        self.core.session(self.now, self.partitions[meta.pool]?, key)
    }

    fn full_table(&self, pool: usize) -> u64 {
        let views = self.core.partitions();
        let view = self.partitions[pool].and_then(|p| views.get(p.0 as usize));
        view.map_or(0, |v| v.stats.full_table)
    }

    /// The worker, if it is known: its state, and whether it serves the name.
    pub(super) fn standing(&self, worker: WorkerId, name: &str) -> Option<(State, bool)> {
        let views = self.core.workers();
        let view = views.iter().find(|v| v.info.id == worker)?;
        Some((view.state, view.models.iter().any(|m| m.as_ref() == name)))
    }

    /// Whether the home of a session has departed for a request under this name, and whether it can be used.
    fn home(&self, view: &SessionView, name: &str) -> (bool, bool) {
        let rejects = self.settings.affinity.on_down == OnDown::Reject;
        match self.standing(view.target.worker, name) {
            Some((State::Ready, true)) => (false, true),
            Some((State::Starting, true)) => (false, false),
            Some((State::Down, true)) => (!rejects, false),
            _ => (true, false),
        }
    }

    /// What R03 to R07 promise for what `before` showed.
    pub(super) fn admitted(
        &mut self,
        mut meta: Meta,
        before: Option<SessionView>,
        admission: Admission,
    ) {
        let after = self.before(&meta);
        let full = self.full_table(meta.pool);
        meta.full = full > self.shadows[meta.pool].full;
        self.shadows[meta.pool].full = full;
        assert!(!meta.full || (before.is_none() && meta.session.is_some()));
        let (departed, usable) = before.map_or((false, false), |v| self.home(&v, meta.name));
        let hard = meta.session.is_some_and(|s| s.1 == Mode::Hard);
        let timeout = matches!(&admission, Admission::Refused(r) if r.cause == Cause::Timeout);
        if departed && !timeout {
            assert_eq!(after, None, "a departed binding is dropped");
            let (key, _) = meta.session.unwrap();
            self.shadows[meta.pool].bound.remove(&key);
        } else {
            assert_eq!(after.map(|v| v.version), before.map(|v| v.version), "it is kept");
        }
        let stuck = before.is_some() && !departed && !usable && hard;
        match &admission {
            Admission::Granted(grant) => {
                let worker = grant.worker().id;
                assert_eq!(self.standing(worker, meta.name), Some((State::Ready, true)));
                assert!(!meta.excluded.contains(&worker), "where it failed already");
                assert!(!stuck, "its home is known and can't be used");
                if let Some(view) = before.filter(|_| !departed) {
                    let home = view.target.worker;
                    if usable && !meta.excluded.contains(&home) {
                        assert_eq!(worker, home, "home can be used");
                    }
                }
                meta.seen = before.filter(|_| !departed).map(|v| v.version);
            }
            Admission::Waiting(_) => {
                let queue = &self.settings.queue;
                assert!(queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuck);
            }
            Admission::Refused(refusal) => {
                let with_session = meta.session.is_some() && self.settings.affinity.ttl.is_some();
                let outcome = match refusal.cause {
                    _ if !with_session => Outcome::None,
                    Cause::WorkerFailed => Outcome::Unbound,
                    _ => Outcome::Rejected,
                };
                assert_eq!(refusal.outcome, outcome);
                match refusal.cause {
                    Cause::TargetUnavailable => assert!(stuck),
                    Cause::NoWorker => assert!(!self.someone_else(&meta)),
                    Cause::QueueFull => assert!(self.settings.queue.max_requests > 0),
                    Cause::Timeout => assert!(self.now >= meta.deadline),
                    Cause::WorkerFailed => {
                        assert!(!meta.excluded.is_empty() && !self.someone_else(&meta));
                    }
                }
                self.shadows[meta.pool].outcomes[refusal.outcome as usize] += 1;
            }
        }
        self.log(format_args!(
            "#{} {:?} {:?} at {:?} -> {}",
            meta.serial,
            meta.name,
            meta.session,
            before.map(|v| v.target.worker),
            match &admission {
                Admission::Granted(g) => format!("granted {:?} {:?}", g.worker().id, g.placement()),
                Admission::Waiting(t) => format!("waiting {:?}", t.id()),
                Admission::Refused(r) => format!("refused {r:?}"),
            }
        ));
        match admission {
            Admission::Granted(grant) => self.grants.push((meta, grant)),
            Admission::Waiting(ticket) => {
                self.ever_waited.insert(ticket.id());
                self.tickets.insert(ticket.id(), (meta, ticket));
            }
            Admission::Refused(_) => {}
        }
    }

    /// Whether any worker could serve the request.
    pub(super) fn someone_else(&self, meta: &Meta) -> bool {
        self.core.workers().iter().any(|v| {
            v.state == State::Ready
                && v.models.iter().any(|m| m.as_ref() == meta.name)
                && !meta.excluded.contains(&v.info.id)
        })
    }

    pub(super) fn look(&mut self) {
        let Some(i) = any(&mut self.dice, &self.grants) else { return };
        let (meta, grant) = self.grants.swap_remove(i);
        let (before, target) = (self.before(&meta), grant.target());
        let moved = before.is_some_and(|v| {
            !v.target.admits(target)
                && meta.session.is_some_and(|s| s.1 == Mode::Hard)
                && meta.seen != Some(v.version)
                && !self.home(&v, meta.name).0
        });
        let again = moved && !meta.rechecked && !meta.full;
        match self.core.check_dispatch(self.now, grant) {
            Dispatch::Go(checked) => {
                assert!(!again, "its session is at home elsewhere by now");
                assert_eq!(self.before(&meta), before, "the last look changes nothing");
                self.log(format_args!("#{} goes", meta.serial));
                self.checked.push((meta, checked));
            }
            Dispatch::Again(ask) => {
                assert!(again, "no reason to ask again");
                self.log(format_args!("#{} again", meta.serial));
                self.ask(Meta { seen: None, rechecked: true, ..meta }, ask);
            }
        }
    }

    pub(super) fn begin(&mut self) {
        let Some(i) = any(&mut self.dice, &self.checked) else { return };
        let (meta, checked) = self.checked.swap_remove(i);
        self.commit(meta, checked);
    }

    pub(super) fn commit(&mut self, meta: Meta, checked: Checked) {
        let target: Target = checked.grant().target();
        let before = self.before(&meta);
        let (live, outcome) = self.core.commit(self.now, checked);
        self.log(format_args!("#{} runs at {:?}: {outcome}", meta.serial, target.worker));
        assert_eq!(outcome == Outcome::UnboundFull, meta.full);
        let shadow = &mut self.shadows[meta.pool];
        shadow.outcomes[outcome as usize] += 1;
        let binding = match meta.session {
            Some((key, _)) => shadow.committed(key, target, outcome),
            None => None,
        };
        let lease = binding.is_some();
        match (before, outcome) {
            (Some(view), Outcome::Hit | Outcome::Joined) => assert!(view.target.admits(target)),
            (Some(view), Outcome::Conflict) => {
                assert_eq!(self.before(&meta).map(|v| v.version), Some(view.version));
            }
            (Some(view), Outcome::Rebound) => assert!(!view.target.admits(target)),
            (Some(_), Outcome::New) => panic!("a first turn of a bound session"),
            (None, Outcome::Hit | Outcome::Joined | Outcome::Conflict) => {
                panic!("{outcome} of an unbound session");
            }
            _ => {}
        }
        if lease {
            assert_eq!(self.before(&meta).unwrap().target, target, "bound where it ran");
        }
        self.running.push(Running { live, pool: meta.pool, lease, binding });
    }

    pub(super) fn fail(&mut self) {
        let Some(i) = any(&mut self.dice, &self.checked) else { return };
        let (mut meta, checked) = self.checked.swap_remove(i);
        let failure = [Failure::Refused, Failure::Unreachable, Failure::Broken][self.dice.below(3)];
        let failed = checked.grant().worker().id;
        self.log(format_args!("#{} failed at {failed:?}: {failure:?}", meta.serial));
        meta.excluded.push(failed);
        meta.seen = None;
        let spent = meta.excluded.len() > self.settings.retry_attempts as usize;
        meta.deadline = self.patience(&meta);
        let before = self.before(&meta);
        let (admission, events) = self.core.retry(self.now, checked, failure);
        self.note(&events);
        if spent {
            let Admission::Refused(refusal) = &admission else { panic!("out of attempts") };
            let after = self.before(&meta);
            assert_eq!(after.map(|v| v.version), before.map(|v| v.version), "R12: kept");
            self.shadows[meta.pool].outcomes[refusal.outcome as usize] += 1;
            self.log(format_args!("#{} refused {refusal:?}", meta.serial));
        } else {
            self.admitted(meta, before, admission);
        }
    }

    pub(super) fn give_up(&mut self) {
        let why = [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone];
        let why = why[self.dice.below(3)];
        if self.dice.below(2) > 0 {
            let Some(i) = any(&mut self.dice, &self.grants) else { return };
            let (meta, grant) = self.grants.swap_remove(i);
            let outcome = self.core.abandon(self.now, grant, why);
            self.given_up(&meta, outcome);
        } else {
            let Some(i) = any(&mut self.dice, &self.checked) else { return };
            let (meta, checked) = self.checked.swap_remove(i);
            let outcome = self.core.abandon(self.now, checked, why);
            self.given_up(&meta, outcome);
        }
    }

    pub(super) fn given_up(&mut self, meta: &Meta, outcome: Outcome) {
        self.log(format_args!("#{} abandoned: {outcome}", meta.serial));
        self.shadows[meta.pool].outcomes[outcome as usize] += 1;
    }

    pub(super) fn progress(&mut self) {
        let Some(i) = any(&mut self.dice, &self.running) else { return };
        let step = match self.dice.below(3) {
            0 => Step::FirstToken,
            _ => Step::Output(self.dice.below(20) as u32),
        };
        self.core.progress(&self.running[i].live, step);
    }

    pub(super) fn finish(&mut self) {
        let Some(i) = any(&mut self.dice, &self.running) else { return };
        let r = self.running.swap_remove(i);
        self.shadows[r.pool].ended(r.binding);
        // Another thread's clock may have been read a little earlier.
        let now = self.now - Duration::from_micros(self.dice.below(3) as u64);
        self.core.finish(now, r.live);
        self.log("finished");
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
        let before = self.before(&meta);
        let admission = self.core.claim(self.now, ticket);
        self.admitted(meta, before, admission);
    }

    pub(super) fn cancel(&mut self) {
        let n = self.tickets.len();
        let Some(id) = self.tickets.keys().nth(self.dice.below(n)).copied() else { return };
        let (meta, ticket) = self.tickets.remove(&id).unwrap();
        self.core.cancel(self.now, ticket);
        let with_session = meta.session.is_some() && self.settings.affinity.ttl.is_some();
        let outcome = if with_session { Outcome::Unbound } else { Outcome::None };
        self.given_up(&meta, outcome);
    }

    pub(super) fn unbind(&mut self) {
        let pool = self.dice.below(2);
        let key = SessionKey(self.dice.roll() as u128 % SESSIONS);
        let Some(p) = self.partitions[pool] else { return };
        let bound = self.core.session(self.now, p, key).is_some();
        assert_eq!(self.core.unbind(self.now, p, key), bound);
        self.shadows[pool].bound.remove(&key);
        self.log(format_args!("unbound {key:?}"));
    }

    pub(super) fn preview(&mut self) {
        let name = NAMES[self.dice.below(NAMES.len())];
        let Ok(route) = self.core.route(name) else { return };
        let mut ask = Ask::new(route.partition, route.name, prompt(0, 1));
        ask.session = Some((SessionKey(self.dice.roll() as u128 % SESSIONS), Mode::Hard));
        let stats = |core: &SelectionCore| core.partitions()[route.partition.0 as usize].stats;
        let before = stats(&self.core);
        let preview = self.core.preview(self.now, &ask);
        assert_eq!(stats(&self.core), before);
        self.log(format_args!("preview {:?}", preview.map(|p| p.target)));
    }
}
