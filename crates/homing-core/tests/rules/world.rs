//! A small world around one core: what time it is, who is up, and short words for what a host does.

use homing_core::SelectionCore;
use homing_core::affinity::Outcome;
use homing_core::affinity::table::SessionView;
use homing_core::ask::{Admission, Ask, Checked, Dispatch, Failure, Grant, Live, Refusal, Ticket};
use homing_core::fleet::{FleetChange, FleetEvent, Probe, ServedName, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::{KeySecret, PartitionId, SessionKey, WorkerId};
use homing_core::partition::{Stats, WorkerLoad};
use homing_core::settings::{CoreSettings, Mode, PolicyKind, QueueSettings};
use homing_core::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const TTL: Duration = Duration::from_secs(60);
pub(super) const MODEL: &str = "m";
pub(super) const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::RoundRobin, PolicyKind::Random];

pub(super) struct World {
    pub(super) core: SelectionCore,
    pub(super) now: Time,
}

pub(super) fn settings() -> CoreSettings {
    let mut settings = CoreSettings::default();
    settings.affinity.ttl = Some(TTL);
    settings
}

/// One request at a time each; `most` may wait.
pub(super) fn queueing(most: usize) -> CoreSettings {
    let max_wait = Duration::from_secs(30);
    let queue = QueueSettings { max_requests: most, max_wait, busy_active_requests: 1 };
    CoreSettings { queue, ..settings() }
}

impl World {
    /// `w0`, `w1`, ... serve [`MODEL`].
    pub(super) fn new(workers: usize) -> Self {
        Self::with(settings(), workers)
    }

    pub(super) fn with(settings: CoreSettings, workers: usize) -> Self {
        let core = SelectionCore::new(settings, 7);
        let mut w = Self { core, now: Time::from_micros(1_000_000_000) };
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
        let url = format!("http://{name}");
        let spec =
            WorkerSpec { name: name.into(), url: url.as_str().into(), labels: BTreeMap::new() };
        self.fleet(FleetChange::Register(spec));
        self.core.worker_named(name).unwrap()
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
        ask.session = session.map(|(id, mode)| (key(id), mode));
        ask
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
            Dispatch::Again(ask) => panic!("not to be dispatched: {ask:?}"),
        }
    }

    pub(super) fn again(&self, grant: Grant) -> Ask {
        match self.check(grant) {
            Dispatch::Again(ask) => ask,
            Dispatch::Go(checked) => panic!("went on: {checked:?}"),
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
        self.core.partitions()[self.partition().0 as usize].stats
    }

    pub(super) fn outcomes(&self, outcome: Outcome) -> u64 {
        self.stats().outcomes[outcome as usize]
    }

    /// Moves because of a departure, of a failure, of softness.
    pub(super) fn moves(&self) -> [u64; 3] {
        self.stats().moves
    }

    pub(super) fn part(&self, id: WorkerId) -> WorkerLoad {
        self.core.workers().iter().find(|w| w.info.id == id).unwrap().part
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
