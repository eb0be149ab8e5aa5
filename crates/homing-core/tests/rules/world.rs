//! A small world around one core: what time it is, who is up, and short words for what a host does.

use homing_core::SelectionCore;
use homing_core::affinity::Outcome;
use homing_core::affinity::table::SessionView;
use homing_core::ask::{
    Admission, Ask, Checked, Constraints, Dispatch, Explicit, Failure, Grant, Live, Output,
    Refusal, Session, Ticket, TicketId,
};
use homing_core::core::WorkerView;
use homing_core::fleet::{Drain, FleetChange, FleetEvent, Probe, Ranks, ServedName, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::{DpRank, KeySecret, PartitionId, Role, SessionKey, Target, WorkerId};
use homing_core::partition::{Stats, WorkerLoad};
use homing_core::select::policy::Policy;
use homing_core::settings::{CoreSettings, Mode, PolicyKind, QueueSettings, VitalSettings};
use homing_core::time::Time;
use std::sync::Arc;
use std::time::Duration;

pub(super) const TTL: Duration = Duration::from_secs(60);
pub(super) const MODEL: &str = "m";
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Kv,
    PolicyKind::Latency,
    PolicyKind::LeastLoaded,
    PolicyKind::PowerOfTwo,
    PolicyKind::RoundRobin,
    PolicyKind::Random,
];
pub(super) const MODES: [Mode; 2] = [Mode::Hard, Mode::Soft];

pub(super) struct World {
    pub(super) core: SelectionCore,
    pub(super) now: Time,
    /// Registrations so far: each is another one, unless a test sees one again.
    registered: u64,
}

pub(super) fn settings() -> CoreSettings {
    // The rules look at what probes say; what comes back from workers is `f_vitals`.
    let (vitals, retry_budget) = (VitalSettings::OFF, 1.0);
    let mut settings = CoreSettings { vitals, retry_budget, ..CoreSettings::default() };
    settings.affinity.ttl = Some(TTL);
    settings
}

/// One request at a time each; `most` may wait.
pub(super) fn queueing(most: usize) -> CoreSettings {
    let max_wait = Duration::from_secs(30);
    let queue = QueueSettings {
        max_requests: most,
        max_wait,
        busy_active_requests: 1,
        ..QueueSettings::default()
    };
    CoreSettings { queue, ..settings() }
}

impl World {
    /// `w0`, `w1`, ... serve [`MODEL`].
    pub(super) fn new(workers: usize) -> Self {
        Self::with(settings(), workers)
    }

    pub(super) fn with(settings: CoreSettings, workers: usize) -> Self {
        Self::around(SelectionCore::new(settings, 7), workers)
    }

    /// Another router: its choices are its own, and so is its mark on versions.
    pub(super) fn router(settings: CoreSettings, seed: u64, workers: usize) -> Self {
        Self::around(SelectionCore::new(settings, seed), workers)
    }

    /// As [`Self::with`], choosing by a policy of the test's own.
    pub(super) fn choosing<P: Policy + Clone + Sync + 'static>(
        settings: CoreSettings,
        policy: P,
        workers: usize,
    ) -> Self {
        let policy = move || Box::new(policy.clone()) as Box<dyn Policy>;
        Self::around(SelectionCore::with_policy(settings, 7, policy), workers)
    }

    fn around(core: SelectionCore, workers: usize) -> Self {
        let mut w = Self { core, now: Time::from_micros(1_000_000_000), registered: 0 };
        for i in 0..workers {
            w.up(&format!("w{i}"), &[MODEL]);
        }
        w
    }

    // === what the world says ===

    pub(super) fn fleet(&mut self, change: FleetChange) -> Vec<FleetEvent> {
        let events = self.core.handle_fleet(self.now, change).unwrap();
        self.core.check();
        events
    }

    /// A worker that serves these names; an adapter's ends in `-lora`.
    pub(super) fn up(&mut self, name: &str, serves: &[&str]) -> WorkerId {
        let id = self.register(name);
        self.serves(id, serves);
        self.probe(id, Probe::Good);
        id
    }

    pub(super) fn register(&mut self, name: &str) -> WorkerId {
        self.register_as(name, |_| ())
    }

    /// A registration that no other is.
    pub(super) fn register_as(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut WorkerSpec),
    ) -> WorkerId {
        self.registered += 1;
        let mut spec = WorkerSpec::new(name, &format!("http://{name}"));
        spec.generation = self.registered;
        change(&mut spec);
        self.fleet(FleetChange::Register(spec));
        self.core.worker_named(name).unwrap()
    }

    /// As [`Self::up`], registered with something besides.
    pub(super) fn up_as(&mut self, name: &str, change: impl FnOnce(&mut WorkerSpec)) -> WorkerId {
        let id = self.register_as(name, change);
        self.serves(id, &[MODEL]);
        self.probe(id, Probe::Good);
        id
    }

    /// A worker with these data-parallel ranks.
    pub(super) fn up_with_ranks(&mut self, name: &str, start: u16, size: u16) -> WorkerId {
        self.up_as(name, |spec| spec.ranks = Ranks::new(start, size))
    }

    /// Drained; its sessions move from that time on.
    pub(super) fn drain(&mut self, id: WorkerId, moves_at: Option<Time>) {
        self.fleet(FleetChange::Drain(id, Some(Drain { moves_at })));
    }

    pub(super) fn serves(&mut self, id: WorkerId, names: &[&str]) {
        let served = |n: &&str| ServedName { name: (*n).into(), adapter: n.ends_with("-lora") };
        self.fleet(FleetChange::Serves(id, names.iter().map(served).collect()));
    }

    pub(super) fn probe(&mut self, id: WorkerId, probe: Probe) {
        self.fleet(FleetChange::Probed(id, probe));
    }

    /// It stops answering; the same life goes on.
    pub(super) fn down(&mut self, id: WorkerId) {
        for _ in 0..3 {
            self.probe(id, Probe::Bad);
        }
    }

    pub(super) fn back(&mut self, id: WorkerId) {
        self.probe(id, Probe::Good);
    }

    pub(super) fn remove(&mut self, id: WorkerId) {
        self.fleet(FleetChange::Remove(id));
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    // === what a host does ===

    pub(super) fn ask_for(&self, model: &str, session: Option<(&str, Mode)>) -> Ask {
        let route = self.core.route(model).unwrap();
        let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(100));
        ask.session = session.map(|(id, mode)| Session::new(key(id), mode));
        ask
    }

    pub(super) fn ask(&self, id: &str, mode: Mode) -> Ask {
        self.ask_for(MODEL, Some((id, mode)))
    }

    pub(super) fn hard(&self, id: &str) -> Ask {
        self.ask_for(MODEL, Some((id, Mode::Hard)))
    }

    pub(super) fn soft(&self, id: &str) -> Ask {
        self.ask_for(MODEL, Some((id, Mode::Soft)))
    }

    pub(super) fn plain(&self) -> Ask {
        self.ask_for(MODEL, None)
    }

    pub(super) fn admit(&self, ask: Ask) -> Admission {
        let admission = self.core.admit(self.now, ask);
        self.core.check();
        admission
    }

    pub(super) fn grant(&self, ask: Ask) -> Grant {
        granted(self.admit(ask))
    }

    pub(super) fn refused(&self, ask: Ask) -> Refusal {
        refused(self.admit(ask))
    }

    pub(super) fn waiting(&self, ask: Ask) -> Ticket {
        match self.admit(ask) {
            Admission::Waiting(ticket) => ticket,
            other => panic!("not waiting: {other:?}"),
        }
    }

    pub(super) fn claim(&self, ticket: Ticket) -> Admission {
        let admission = self.core.claim(self.now, ticket);
        self.core.check();
        admission
    }

    pub(super) fn check(&self, grant: Grant) -> Dispatch {
        let dispatch = self.core.check_dispatch(self.now, grant);
        self.core.check();
        dispatch
    }

    pub(super) fn go(&self, grant: Grant) -> Checked {
        match self.check(grant) {
            Dispatch::Go(checked) => checked,
            other => panic!("not to be dispatched: {other:?}"),
        }
    }

    pub(super) fn again(&self, grant: Grant) -> Ask {
        match self.check(grant) {
            Dispatch::Again(ask) => *ask,
            other => panic!("went on: {other:?}"),
        }
    }

    pub(super) fn commit(&self, checked: Checked) -> (Live, Outcome) {
        let committed = self.core.commit(self.now, checked);
        self.core.check();
        committed
    }

    pub(super) fn retry(&self, checked: Checked, failure: Failure) -> Admission {
        let (admission, _) = self.core.retry(self.now, checked, failure);
        self.core.check();
        admission
    }

    pub(super) fn finish(&self, live: Live) {
        self.core.finish(self.now, live);
        self.core.check();
    }

    /// It answers 429 or 503: a plain request finds out, and goes nowhere else.
    pub(super) fn overload(&self, worker: WorkerId, retry_after: Option<Duration>) {
        let grant = self.grant(at(self.plain(), &self.name_of(worker), Some(0)));
        let refusal = refused(self.retry(self.go(grant), Failure::Overloaded(retry_after)));
        assert_eq!(refusal.cause, homing_core::ask::Cause::Answered);
        assert!(self.part(worker).shed);
    }

    /// Does what is due.
    pub(super) fn tick(&self) {
        self.core.handle_timeout(self.now);
        self.core.check();
    }

    pub(super) fn woken(&self) -> Option<TicketId> {
        self.core.poll_output().map(|Output::Wake(id)| id)
    }

    /// The next output wakes this ticket, and its claim is granted.
    pub(super) fn claimed(&self, ticket: Ticket) -> Grant {
        assert_eq!(self.woken(), Some(ticket.id()));
        granted(self.claim(ticket))
    }

    /// A request up to its first byte.
    pub(super) fn start(&self, ask: Ask) -> (WorkerId, Outcome, Live) {
        let grant = self.grant(ask);
        let worker = grant.worker().id;
        let (live, outcome) = self.commit(self.go(grant));
        (worker, outcome, live)
    }

    /// A request from end to end.
    pub(super) fn turn(&self, ask: Ask) -> (WorkerId, Outcome) {
        let (worker, outcome, live) = self.start(ask);
        self.finish(live);
        (worker, outcome)
    }

    /// Two first turns of one session that run at different workers: the second came while the first
    /// one's target did not answer, which it does again now.
    pub(super) fn split(&mut self, first: Ask, second: Ask) -> (Grant, Grant) {
        let a = self.grant(first);
        self.down(a.worker().id);
        let b = self.grant(second);
        self.back(a.worker().id);
        assert_ne!(a.worker().id, b.worker().id);
        (a, b)
    }

    // === what people ask ===

    pub(super) fn partition(&self) -> PartitionId {
        self.core.route(MODEL).unwrap().partition
    }

    pub(super) fn session(&self, id: &str) -> Option<SessionView> {
        self.core.session(self.now, self.partition(), key(id))
    }

    pub(super) fn home(&self, id: &str) -> Option<WorkerId> {
        self.session(id).map(|view| view.target.worker)
    }

    pub(super) fn stats(&self) -> Stats {
        self.stats_of(self.partition())
    }

    pub(super) fn stats_of(&self, partition: PartitionId) -> Stats {
        self.core.partitions()[partition.0 as usize].stats
    }

    /// Requests that have an outcome.
    pub(super) fn requests(&self) -> u64 {
        self.stats().outcomes.iter().sum()
    }

    /// Everything that a request could leave behind.
    pub(super) fn traces(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let parts: Vec<_> =
            self.core.workers().iter().map(|v| (v.info.id, v.state, v.part)).collect();
        let stats: Vec<_> = self.core.partitions().iter().map(|p| p.stats).collect();
        (stats, self.core.sessions(self.now, 1000), parts, self.core.poll_timeout())
    }

    pub(super) fn view(&self, id: WorkerId) -> WorkerView {
        self.core.workers().into_iter().find(|w| w.info.id == id).unwrap()
    }

    pub(super) fn view_named(&self, name: &str) -> WorkerId {
        self.core.worker_named(name).unwrap()
    }

    pub(super) fn name_of(&self, id: WorkerId) -> String {
        self.view(id).info.spec.name.to_string()
    }

    /// The workers that are not `id`, in order.
    pub(super) fn others(&self, id: WorkerId) -> Vec<WorkerId> {
        self.core.workers().iter().map(|w| w.info.id).filter(|w| *w != id).collect()
    }

    pub(super) fn outcomes(&self, outcome: Outcome) -> u64 {
        self.stats().outcomes[outcome as usize]
    }

    /// Moves because of a departure, of a failure, of softness, of overload.
    pub(super) fn moves(&self) -> [u64; 4] {
        self.stats().table.moves
    }

    pub(super) fn part(&self, id: WorkerId) -> WorkerLoad {
        self.view(id).part
    }

    /// Nothing is held any more, and a TTL later nothing is kept.
    pub(super) fn quiesce(mut self) {
        let held = |s: Stats| (s.leases, s.bookings, s.waiting);
        assert_eq!(held(self.stats()), (0, 0, 0));
        self.pass(TTL);
        self.core.handle_timeout(self.now);
        self.core.check();
        assert_eq!(self.stats().bindings, 0);
        assert_eq!(self.core.poll_timeout(), None);
    }
}

pub(super) fn key(id: &str) -> SessionKey {
    KeySecret::new(&[1; 32]).session("", "", id.as_bytes())
}

/// What one target of a worker is called.
pub(super) fn target(worker: WorkerId, rank: u16) -> Target {
    Target { worker, rank: Some(DpRank(rank)) }
}

/// The request, for a worker that it names (R09).
pub(super) fn at(mut ask: Ask, worker: &str, rank: Option<u16>) -> Ask {
    ask.explicit = Some(Explicit { worker: worker.into(), rank: rank.map(DpRank) });
    ask
}

/// The request, for these workers only.
pub(super) fn only(mut ask: Ask, workers: &[&str]) -> Ask {
    let workers = Some(workers.iter().map(|w| (*w).to_owned()).collect());
    ask.constraints = Some(Arc::new(Constraints::new(workers, Vec::new())));
    ask
}

/// The request, for workers with this label only.
pub(super) fn labelled(mut ask: Ask, label: &str, value: &str) -> Ask {
    let labels = vec![(label.to_owned(), value.to_owned())];
    ask.constraints = Some(Arc::new(Constraints::new(None, labels)));
    ask
}

/// The request, as the last of its session (R19).
pub(super) fn last(mut ask: Ask) -> Ask {
    ask.session.as_mut().unwrap().last = true;
    ask
}

/// The request, as work of this role (R17).
pub(super) fn in_role(w: &World, mut ask: Ask, role: Role) -> Ask {
    ask.partition = w.core.route_as(MODEL, role).unwrap().partition;
    ask
}

pub(super) fn granted(admission: Admission) -> Grant {
    match admission {
        Admission::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(super) fn refused(admission: Admission) -> Refusal {
    match admission {
        Admission::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}
