//! What the tests of cancellation share: requests that go their whole way through the guards, on a fleet
//! that changes meanwhile. `cancel_tests` drops them at every await, `model_tests` runs them on threads.

use crate::guard::Unsent;
use crate::shell::Shell;
use crate::testing::{ask, register};
use homing_core::ask::{Ask, Explicit, Failure, Step};
use homing_core::fleet::{Drain, FleetChange, Probe};
use std::sync::Arc;
use std::time::Duration;

/// A pause of the host's own: where it waits for a worker, or for its client.
pub(crate) async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// One request: what it asks, and how its dispatches end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journey {
    /// "": it has none.
    pub(crate) session: &'static str,
    /// The worker that it names.
    pub(crate) worker: Option<&'static str>,
    /// What its dispatches meet, one after the other; then they go well.
    pub(crate) fails: &'static [Failure],
    /// In the end its worker answers with an error.
    pub(crate) badly: bool,
}

/// One that goes well.
pub(crate) const fn turn(session: &'static str) -> Journey {
    Journey { session, worker: None, fails: &[], badly: false }
}

impl Journey {
    fn ask(self, shell: &Shell) -> Ask {
        let mut ask = ask(shell, self.session);
        ask.explicit = self.worker.map(|w| Explicit { worker: w.into(), rank: None });
        ask
    }

    /// The way of a request, as the gateway goes it.
    pub(crate) async fn go(self, shell: Arc<Shell>) {
        let mut fails = self.fails.iter();
        let mut ask = Box::new(self.ask(&shell));
        loop {
            let Ok(mut granted) = shell.admit(ask).await else { return };
            ask = loop {
                pause().await;
                let mut checked = match granted.check().await {
                    Ok(checked) => checked,
                    Err(Unsent::Again(again)) => break again,
                    Err(Unsent::Refused(_)) => return,
                };
                checked.dispatching();
                pause().await;
                if let Some(failure) = fails.next() {
                    match checked.failed(*failure).await {
                        Ok(next) => granted = next,
                        Err(_) => return,
                    }
                    continue;
                }
                if self.badly {
                    let _ = checked.answered_badly();
                    return;
                }
                let (live, _) = checked.begin();
                live.progress(Step::FirstToken);
                pause().await;
                return;
            };
        }
    }
}

/// What happens to the fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Register(&'static str),
    Remove(&'static str),
    Refused(&'static str),
    /// Its sessions move, or may finish.
    Drain(&'static str, bool),
    Undrain(&'static str),
    /// The core's clock strikes, an hour too early.
    Tick,
}

impl Event {
    pub(crate) fn happen(self, shell: &Shell) {
        let now = shell.now();
        let id = |name| shell.core().worker_named(name);
        let change = match self {
            Self::Register(name) => {
                register(shell, name);
                return;
            }
            Self::Tick => {
                shell.core().handle_timeout(now + Duration::from_secs(3600));
                return shell.pump();
            }
            Self::Remove(name) => id(name).map(FleetChange::Remove),
            Self::Refused(name) => id(name).map(|id| FleetChange::Probed(id, Probe::Refused)),
            Self::Undrain(name) => id(name).map(|id| FleetChange::Drain(id, None)),
            Self::Drain(name, moves) => {
                let drain = Drain { moves_at: moves.then_some(now) };
                id(name).map(|id| FleetChange::Drain(id, Some(drain)))
            }
        };
        if let Some(change) = change {
            // An error: it has departed meanwhile.
            let _ = shell.core().handle_fleet(now, change);
            shell.pump();
        }
    }
}

/// Requests at once, and what happens meanwhile, in this order.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) settings: String,
    pub(crate) workers: &'static [&'static str],
    /// A session `s` lives at the first worker.
    pub(crate) bound: bool,
    pub(crate) journeys: Vec<Journey>,
    pub(crate) events: Vec<Event>,
    /// Whoever sleeps while nothing runs has been forgotten: all that it needs is there.
    pub(crate) lively: bool,
}

/// One request at a time on each worker; a few may wait.
pub(crate) const NARROW: &str = "queue.max_requests = 4\nqueue.busy_active_requests = 1\n";

/// Every path through admit, settle, check, failed and begin, with what may come in between.
pub(crate) fn scenes() -> Vec<(&'static str, Scene)> {
    const WAIT: &str = "affinity.on_overload = 'wait'\n";
    const BROKEN: &[Failure] = &[Failure::Broken];
    const FULL: &[Failure] = &[Failure::Overloaded(Some(Duration::from_secs(60)))];
    let usual = |journeys: &[Journey], events: &[Event]| Scene {
        settings: String::new(),
        workers: &["a", "b"],
        bound: false,
        journeys: journeys.to_vec(),
        events: events.to_vec(),
        lively: true,
    };
    let fails = |fails| Journey { fails, ..turn("s") };
    let at = |worker, session| Journey { worker: Some(worker), ..turn(session) };
    let bound = |scene: Scene| Scene { bound: true, ..scene };
    let with = |text: &str, scene: Scene| Scene { settings: text.to_owned(), ..scene };
    let alone = |scene: Scene| Scene { workers: &["a"], ..scene };
    vec![
        ("first turns", usual(&[turn("s"), turn("s")], &[Event::Remove("a")])),
        ("bad answers", usual(&[Journey { badly: true, ..turn("s") }, turn("s")], &[])),
        ("two queue", with(NARROW, alone(usual(&[turn("s"), turn("")], &[Event::Register("b")])))),
        (
            "the queue's only worker goes",
            with(NARROW, alone(usual(&[turn("s"), turn("s")], &[Event::Remove("a"), Event::Tick]))),
        ),
        (
            "a worker comes again",
            with(
                NARROW,
                alone(usual(&[turn("s"), turn("t")], &[Event::Remove("a"), Event::Register("a")])),
            ),
        ),
        ("broken", bound(usual(&[fails(BROKEN), turn("s")], &[Event::Drain("b", false)]))),
        (
            "refused",
            bound(usual(&[fails(&[Failure::Refused]), turn("s")], &[Event::Register("c")])),
        ),
        (
            "twice in vain",
            with(
                "retry.attempts = 2\n",
                usual(&[fails(&[Failure::Broken, Failure::Unreachable]), turn("s")], &[]),
            ),
        ),
        ("it spills", bound(usual(&[fails(FULL), turn("s")], &[Event::Remove("a")]))),
        (
            "a failure queues",
            with(NARROW, bound(usual(&[fails(BROKEN), turn("t")], &[Event::Drain("b", true)]))),
        ),
        // They wait for a clock that does not strike, or for their home to go.
        (
            "it waits for home",
            Scene {
                lively: false,
                ..with(WAIT, bound(usual(&[fails(FULL), turn("s")], &[Event::Remove("a")])))
            },
        ),
        (
            "home drains while it waits",
            Scene {
                lively: false,
                ..with(WAIT, bound(usual(&[fails(FULL), turn("s")], &[Event::Drain("a", true)])))
            },
        ),
        (
            "explicit ones wait for one worker",
            with(
                NARROW,
                usual(
                    &[at("a", "s"), at("a", "")],
                    &[Event::Drain("a", false), Event::Undrain("a")],
                ),
            ),
        ),
        (
            "explicit ones lose their worker",
            with(NARROW, usual(&[at("a", "s"), at("a", "t")], &[Event::Remove("a")])),
        ),
        (
            "explicit beside others",
            with(NARROW, alone(usual(&[at("a", "s"), turn("s")], &[Event::Refused("a")]))),
        ),
        ("too hot", with("affinity.max_parallel = 1\n", usual(&[turn("s"), turn("s")], &[]))),
        ("full", with("affinity.max_sessions = 1\n", usual(&[turn("s"), turn("t")], &[]))),
        ("passive", with("affinity.ttl = 'off'\n", usual(&[turn("s"), fails(BROKEN)], &[]))),
    ]
}
