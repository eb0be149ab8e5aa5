//! What the tests of this crate share: a shell with workers in it, and how to wait for what must come
//! about without waiting for a time to pass.

use crate::settings::{Settings, Sources};
use crate::shell::Shell;
use homing_core::ask::{Ask, Session};
use homing_core::fleet::{FleetChange, Probe, ServedName, State, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::WorkerId;
use homing_core::partition::Stats;
use homing_core::settings::Mode;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn settings(text: &str) -> Settings {
    let file = Some(("test.toml".into(), text.to_owned()));
    Settings::load(Sources { file, ..Sources::default() }).unwrap()
}

/// A shell with workers that are ready and serve `m`.
pub(crate) fn shell(text: &str, workers: &[&str]) -> Arc<Shell> {
    let shell = Shell::new(&settings(text), &[7; 32]);
    for name in workers {
        register(&shell, name);
    }
    shell
}

pub(crate) fn register(shell: &Shell, name: &str) -> WorkerId {
    fleet(shell, FleetChange::Register(WorkerSpec::new(name, &format!("http://{name}:1"))));
    let id = shell.core().worker_named(name).unwrap();
    let serves = vec![ServedName { name: "m".into(), adapter: false }];
    fleet(shell, FleetChange::Serves(id, serves));
    fleet(shell, FleetChange::Probed(id, Probe::Good));
    id
}

pub(crate) fn fleet(shell: &Shell, change: FleetChange) {
    shell.core().handle_fleet(shell.now(), change).unwrap();
    shell.pump();
}

pub(crate) fn state(shell: &Shell, name: &str) -> Option<State> {
    let workers = shell.core().workers();
    workers.iter().find(|w| &*w.info.spec.name == name).map(|w| w.state)
}

/// A request for `m`; of a session, unless its id is empty.
pub(crate) fn ask(shell: &Shell, session: &str) -> Ask {
    let route = shell.core().route("m").unwrap();
    let mut ask = Ask::new(route.partition, route.name, Prompt::of_length(100));
    if !session.is_empty() {
        let key = shell.secret().session("", "", session.as_bytes());
        ask.session = Some(Session::new(key, Mode::Hard));
    }
    ask
}

pub(crate) fn stats(shell: &Shell) -> Stats {
    shell.core().check();
    shell.core().partitions()[0].stats
}

/// Asserts that nothing is held, and that each of `requests` was counted exactly once.
pub(crate) fn assert_quiet(shell: &Shell, requests: u64) {
    let s = stats(shell);
    assert_eq!((s.leases, s.bookings, s.waiting), (0, 0, 0), "{s:?}");
    assert_eq!(s.outcomes.iter().sum::<u64>(), requests, "{s:?}");
}

/// Returns once it holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "it never came about that {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Polls once: what is there at once.
pub(crate) async fn now<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            std::task::Poll::Ready(x) => Some(x),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// The messages that this thread logs at warn and above while the guard lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let lines = Self::default();
        (lines.clone(), tracing::subscriber::set_default(lines))
    }

    pub(crate) fn count(&self, message: &str) -> usize {
        self.0.lock().iter().filter(|l| *l == message).count()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&mut self.0.lock()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'a>(&'a mut Vec<String>);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.push(format!("{value:?}"));
        }
    }
}
