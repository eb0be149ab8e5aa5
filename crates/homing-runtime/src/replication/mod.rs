//! Sessions and load shared between routers (R23, R24). Requests meet it in one place: a first turn that a shared store
//! must hear of (`Replication::claim`); all else happens behind them.
//!
//! * [`port`]: what is needed of the outside;
//! * `talk`: what routers say to each other over a bus;
//! * `peers`: who is there, and what of their words has been missed;
//! * `store`: bindings in a shared store;
//! * `counts`: what metrics see of it.

mod counts;
#[cfg(test)]
mod fake;
mod peers;
pub mod port;
mod store;
mod talk;

pub use counts::Counts;

use crate::lifecycle::Lifecycle;
use crate::shell::Shell;
use homing_core::SelectionCore;
use homing_core::affinity::merge::Merged;
use homing_core::ask::{Claimed, Claiming};
use homing_core::core::{Publication, Received};
use homing_core::ids::SessionKey;
use homing_core::time::Time;
use homing_wire::replica::{Head, READS};
use port::{BindingStore, Bus, Deliveries};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use talk::Talk;
use tokio::sync::{Notify, oneshot};

/// So long who is new waits for what others know, before it takes requests without that;
const JOIN_PATIENCE: Duration = Duration::from_secs(15);
/// and where nothing is heard.
const ALONE_PATIENCE: Duration = Duration::from_secs(5);

/// What the settings say of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether a first turn fails while the store can't be reached (`on_store_failure = "fail"`).
    pub strict: bool,
    /// How long a session may idle (`affinity.ttl`), and a store keeps what nobody writes.
    pub ttl: Duration,
}

/// What a backend gives.
#[derive(Debug, Default)]
pub struct Ports {
    /// Messages among routers.
    pub bus: Option<(Arc<dyn Bus>, Deliveries)>,
    /// Registers that all share. Where there is one, bindings go there, and load alone over the bus.
    pub store: Option<Arc<dyn BindingStore>>,
}

/// A router's part in it.
#[derive(Debug)]
pub struct Replication {
    store: Option<Arc<Store>>,
}

impl Replication {
    /// Begins to share, and holds readiness back until this router knows what the others know.
    #[must_use = "it ends for requests when it is dropped"]
    pub fn start(shell: &Arc<Shell>, ports: Ports, rules: Rules, life: &Lifecycle) -> Arc<Self> {
        let counts = Arc::new(Counts::default());
        shell.metrics().watch_replication(&counts);
        let head = Head {
            writer: shell.core().writer(),
            boot: shell.now().as_micros(),
            group: group(shell),
            reads: READS,
            ..Head::default()
        };
        let Ports { bus, store } = ports;
        counts.over(bus.is_some(), store.is_some());
        let mut joins = Vec::new();
        let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let [of_talk, of_store] = bells.clone();
        shell.core().on_news(move || bells.iter().for_each(|bell| bell.notify_one()));
        let over = life.finished();
        let store = store.map(|store| {
            let (joined, wait) = oneshot::channel();
            joins.push(wait);
            let store =
                Store::new(shell.clone(), store, counts.clone(), rules, head.group, of_store);
            life.spawn(store.clone().follow(joined, over.clone()));
            life.spawn(store.clone().write(over.clone()));
            life.spawn(store.clone().hold_claims(over.clone()));
            store
        });
        if let Some((bus, deliveries)) = bus {
            let (joined, wait) = oneshot::channel();
            joins.push(wait);
            let bindings = store.is_none();
            let talk =
                Talk::new(shell.clone(), bus, counts.clone(), bindings, head, joined, of_talk);
            life.spawn(talk.run(deliveries, over.clone()));
        }
        let hold = shell.hold_readiness("what other routers know");
        life.spawn(async move {
            for join in joins {
                // One that has ended will not say more.
                let _ = join.await;
            }
            drop(hold);
        });
        let this = Arc::new(Self { store });
        shell.share(&this);
        this
    }

    /// Asks the shared store to make a first turn known.
    pub(crate) async fn claim(&self, claiming: &Claiming) -> Claimed {
        match (&self.store, claiming.publication()) {
            (Some(store), Some(publication)) => {
                store.claim(publication.clone(), claiming.expected()).await
            }
            _ => Claimed::Without,
        }
    }
}

/// What another router knows, or the store holds: who has nothing yet takes it over as if it came out of a file, with what
/// is left of its idle time.
fn take_over(core: &SelectionCore, now: Time, publication: Publication, joining: bool) -> Received {
    if joining && core.restore_publication(now, &publication) {
        return Received::Merged(Merged::Applied);
    }
    core.handle_publication(now, publication)
}

/// What tells routers with one session secret from others, and says nothing about it.
fn group(shell: &Shell) -> u64 {
    let secret = shell.secret();
    let SessionKey(key) = secret.session("", "", b"the group of routers that share one secret");
    secret.digest(SessionKey(key)).0
}

#[cfg(test)]
#[path = "replication_tests.rs"]
mod tests;
