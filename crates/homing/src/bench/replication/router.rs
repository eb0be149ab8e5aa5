//! A router without its gateway: a shell with workers, its sessions, and what it shares. And a bus in memory between two of
//! them, that counts what goes over it.

use bytes::Bytes;
use homing_core::ask::{Admission, Ask, Checked, Dispatch, Live, Session, Step};
use homing_core::fleet::{FleetChange, FleetEvent, Probe, ServedName, State, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::{KeySecret, SessionKey};
use homing_core::settings::Mode;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::replication::port::{Bus, Call, Deliveries, Delivery, To};
use homing_runtime::replication::{Ports, Replication, Rules};
use homing_runtime::settings::{Settings, Sources};
use homing_runtime::shell::Shell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

const WORKERS: usize = 8;
const MODEL: &str = "m";
const REFUSED: &str = "the core refuses a turn that anybody could serve";
/// Deliveries that wait: enough that nothing is lost while a machine is busy.
const QUEUE: usize = 1 << 16;

/// One router.
pub(super) struct Router {
    pub(super) shell: Arc<Shell>,
    life: Lifecycle,
    shared: Option<Arc<Replication>>,
}

/// The settings of one; `replication`: the keys of that table, none where nothing is shared.
pub(super) fn settings(replication: &str) -> Result<Settings, String> {
    settings_of("30m", replication)
}

/// The same with another time-to-live of sessions.
pub(super) fn settings_of(ttl: &str, replication: &str) -> Result<Settings, String> {
    let mut text = "[affinity]\nkey_file = \"unused\"\nmax_sessions = 1200000\n".to_owned();
    text += &format!("ttl = \"{ttl}\"\n");
    if !replication.is_empty() {
        text += "[replication]\n";
        text += replication;
    }
    let file = Some(("bench.toml".into(), text));
    Settings::load(Sources { file, ..Sources::default() }).map_err(|errors| errors.to_string())
}

/// The keys of `[replication]` where it goes over a bus of ours.
pub(super) const BUS: &str = "backend = \"nats\"\nurls = [\"nats://unused\"]\n";

/// The key of a session by its number, spread as digests are.
pub(super) fn key(session: usize) -> SessionKey {
    let spread = (session as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    SessionKey(spread)
}

impl Router {
    /// One whose workers are ready.
    pub(super) fn new(settings: &Settings, number: u8) -> Result<Self, String> {
        let shell = Shell::keyed(settings, KeySecret::new(&[7; 32]), &[number; 32]);
        for n in 0..WORKERS {
            let (name, now) = (format!("worker-{n}.example:8000"), shell.now());
            let tell = |change| shell.core().handle_fleet(now, change).map_err(|e| e.to_string());
            tell(FleetChange::Register(WorkerSpec::new(&name, &format!("http://{name}"))))?;
            let id = shell.core().worker_named(&name).ok_or("a worker is not known")?;
            tell(FleetChange::Serves(id, vec![ServedName { name: MODEL.into(), adapter: false }]))?;
            tell(FleetChange::Started(id, 1_790_000_000_000))?;
            tell(FleetChange::Probed(id, Probe::Good))?;
            shell.note_fleet(&name, &[FleetEvent::State(id, State::Ready)]);
        }
        Ok(Self { shell, life: Lifecycle::default(), shared: None })
    }

    /// Which it is among others.
    pub(super) fn number(&self) -> u32 {
        self.shell.core().writer()
    }

    /// It shares from now on; on a runtime.
    pub(super) fn share(&mut self, ports: Ports) {
        let rules = Rules::default();
        self.shared = Some(Replication::start(&self.shell, ports, rules, &self.life));
    }

    /// Ends what it shares by.
    pub(super) async fn end(self) {
        self.life.finish(Duration::from_secs(10)).await;
        drop(self.shared);
    }

    /// A turn of a session is placed, and about to be sent.
    pub(super) fn place(&self, session: usize) -> Result<Checked, String> {
        let core = self.shell.core();
        let route = core.route(MODEL).map_err(|e| e.to_string())?;
        let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(2000));
        ask.session = Some(Session::new(key(session), Mode::Hard));
        let Admission::Granted(grant) = core.admit(self.shell.now(), ask) else {
            return Err(REFUSED.to_owned());
        };
        match core.check_dispatch(self.shell.now(), grant) {
            Dispatch::Go(checked) => Ok(checked),
            _ => Err(REFUSED.to_owned()),
        }
    }

    /// Its answer begins.
    pub(super) fn begin(&self, checked: Checked) -> Live {
        let now = self.shell.now();
        let (live, _) = self.shell.core().commit(now, checked);
        let _ = self.shell.core().progress(now, &live, Step::FirstToken);
        live
    }

    /// It grows.
    pub(super) fn grow(&self, live: &Live) {
        let _ = self.shell.core().progress(self.shell.now(), live, Step::Output(1));
    }

    /// It is over.
    pub(super) fn finish(&self, live: Live) {
        self.shell.core().finish(self.shell.now(), live);
    }

    /// How many sessions it knows.
    pub(super) fn bindings(&self) -> usize {
        self.shell.core().partitions().iter().map(|p| p.stats.bindings).sum()
    }
}

/// What one router has sent.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Counts {
    /// With the CPU time that has gone into it, in us.
    pub(super) fn so_far(&self, spent: Duration) -> [f64; 3] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        [spent.as_secs_f64() * 1e6, of(&self.messages), of(&self.bytes)]
    }
}

/// One router's end.
#[derive(Debug)]
struct End {
    other: (u32, mpsc::Sender<Delivery>),
    counts: Arc<Counts>,
}

/// Both ends of a bus between two routers.
pub(super) fn bus(numbers: [u32; 2], counts: &[Arc<Counts>; 2]) -> [Ports; 2] {
    let ends = [mpsc::channel(QUEUE), mpsc::channel(QUEUE)];
    for (to, _) in &ends {
        // There is room, and the receiver is here.
        let _ = to.try_send(Delivery::Back);
    }
    let [(to_a, a), (to_b, b)] = ends;
    let [first, second] = numbers;
    let port = |other, deliveries: Deliveries, counts: &Arc<Counts>| {
        let bus: Arc<dyn Bus> = Arc::new(End { other, counts: counts.clone() });
        Ports { bus: Some((bus, deliveries)), store: None }
    };
    let [of_a, of_b] = counts;
    [port((second, to_b), a, of_a), port((first, to_a), b, of_b)]
}

impl Bus for End {
    fn send(&self, to: To, message: Bytes) -> Call<'_, ()> {
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(message.len() as u64, Ordering::Relaxed);
        if to == To::All || to == To::One(self.other.0) {
            // A queue that is full loses, as a real one does: whoever missed something asks.
            let _ = self.other.1.try_send(Delivery::Message(message));
        }
        Box::pin(async { Ok(()) })
    }
}

/// A runtime as a gateway's thread has one.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}
