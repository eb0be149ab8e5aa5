//! One router: a core, its clock, and what its host does.

use homing_core::SelectionCore;
use homing_core::affinity::Outcome;
use homing_core::affinity::table::SessionView;
use homing_core::ask::{Admission, Ask, Checked, Dispatch, Live, Session};
use homing_core::core::{Publication, Received};
use homing_core::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::{PartitionId, SessionKey};
use homing_core::partition::Stats;
use homing_core::settings::{CoreSettings, Mode};
use homing_core::time::Time;
use std::time::Duration;

pub(crate) const TTL: Duration = Duration::from_secs(60);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// How long an update waits for its worker.
pub(crate) const ASIDE_FOR: Duration = Duration::from_secs(60);
pub(crate) const MODEL: &str = "m";

pub(crate) fn settings() -> CoreSettings {
    let vitals = homing_core::settings::VitalSettings::OFF;
    let mut settings = CoreSettings { vitals, ..CoreSettings::default() };
    settings.affinity.ttl = Some(TTL);
    settings.affinity.shared = true;
    settings
}

pub(crate) fn key(k: u32) -> SessionKey {
    SessionKey(u128::from(k))
}

pub(crate) struct Router {
    pub(crate) core: SelectionCore,
    pub(crate) now: Time,
    registered: u64,
}

impl Router {
    pub(crate) fn new(settings: CoreSettings, seed: u64) -> Self {
        let now = Time::from_micros(1_000_000_000_000);
        Self { core: SelectionCore::new(settings, seed), now, registered: 0 }
    }

    /// Worker `w{n}` comes, and serves.
    pub(crate) fn up(&mut self, n: usize) {
        let name = format!("w{n}");
        self.registered += 1;
        let spec = WorkerSpec {
            generation: self.registered,
            ..WorkerSpec::new(&name, &format!("http://{name}"))
        };
        self.core.handle_fleet(self.now, FleetChange::Register(spec)).unwrap();
        let id = self.core.worker_named(&name).unwrap();
        let names = vec![ServedName { name: MODEL.into(), adapter: false }];
        self.core.handle_fleet(self.now, FleetChange::Serves(id, names)).unwrap();
        self.core.handle_fleet(self.now, FleetChange::Probed(id, Probe::Good)).unwrap();
    }

    /// Worker `w{n}` goes.
    pub(crate) fn down(&mut self, n: usize) {
        let id = self.core.worker_named(&format!("w{n}")).unwrap();
        self.core.handle_fleet(self.now, FleetChange::Remove(id)).unwrap();
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.core.route(MODEL).unwrap().partition
    }

    /// A request up to its last look; `None`: it is refused.
    pub(crate) fn send(&mut self, k: u32, mode: Mode, last: bool) -> Option<Checked> {
        let route = self.core.route(MODEL).unwrap();
        let mut ask = Ask::new(route.partition, route.name, Prompt::default());
        ask.session = Some(Session { last, ..Session::new(key(k), mode) });
        loop {
            match self.core.admit(self.now, ask) {
                Admission::Granted(grant) => match self.core.check_dispatch(self.now, grant) {
                    Dispatch::Go(checked) => return Some(checked),
                    Dispatch::Again(again) => ask = *again,
                    other => panic!("nothing is claimed here: {other:?}"),
                },
                Admission::Refused(_) => return None,
                Admission::Waiting(_) => panic!("nothing waits here"),
            }
        }
    }

    /// A turn that goes on.
    pub(crate) fn begin(&mut self, k: u32) -> Live {
        let checked = self.send(k, Mode::Hard, false).unwrap();
        self.core.commit(self.now, checked).0
    }

    /// A whole turn.
    pub(crate) fn turn(&mut self, k: u32) -> Outcome {
        let checked = self.send(k, Mode::Hard, false).unwrap();
        let (live, outcome) = self.core.commit(self.now, checked);
        self.core.finish(self.now, live);
        outcome
    }

    /// All that others shall hear.
    pub(crate) fn told(&mut self) -> Vec<Publication> {
        self.core.publications(Time::FAR, usize::MAX)
    }

    pub(crate) fn hear(&mut self, publication: Publication) -> Received {
        self.core.handle_publication(self.now, publication)
    }

    pub(crate) fn view(&self, k: u32) -> Option<SessionView> {
        let route = self.core.route(MODEL).ok()?;
        self.core.session(self.now, route.partition, key(k))
    }

    /// The name of the worker that a session lives at: of one that has departed none.
    pub(crate) fn home(&self, k: u32) -> Option<String> {
        let target = self.view(k)?.target;
        let workers = self.core.workers();
        let info = workers.iter().find(|w| w.info.id == target.worker)?;
        Some(format!("{}/{}", info.info.spec.name, target.rank.unwrap().0))
    }

    pub(crate) fn version(&self, k: u32) -> Option<homing_core::affinity::version::Version> {
        Some(self.view(k)?.version)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.core.partitions()[0].stats
    }

    /// Nothing runs, and nothing is left behind.
    pub(crate) fn check_idle(&self) {
        self.core.check();
        let stats = self.stats();
        assert_eq!((stats.leases, stats.bookings, stats.waiting), (0, 0, 0));
    }
}
