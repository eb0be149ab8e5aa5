//! What metrics, people and readiness see of replication.

use homing_core::affinity::merge::Merged;
use homing_core::core::Received;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;

/// Reasons for which something was refused that are logged once each.
const LOGGED_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Flow {
    direction: &'static str,
    outcome: &'static str,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Counts {
    updates: Family<Flow, Counter>,
    claims: Family<Outcome, Counter>,
    gaps: Counter,
    up: Gauge,
    peers: Gauge,
    in_step: Gauge,
    standing: Mutex<Standing>,
    /// What has been logged.
    logged: Mutex<BTreeSet<(&'static str, String)>>,
}

/// What routers share over, where there is such: all of it must be there.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    bus: Option<Part>,
    store: Option<Part>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    up: bool,
    in_step: bool,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Bus,
    Store,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl Counts {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Registers of sessions sent to other routers or the store, and received, by what became of them";
        registry.register("replication_updates", help, self.updates.clone());
        let help = "First turns that asked the shared store, by its answer";
        registry.register("replication_claims", help, self.claims.clone());
        let help = "Times that something of another router was missing, and was asked for";
        registry.register("replication_gaps", help, self.gaps.clone());
        let help = "1 while what routers share over can be reached";
        registry.register("replication_up", help, self.up.clone());
        let help = "Other routers of the group that are there; over etcd nobody knows, and it is 0";
        registry.register("replication_peers", help, self.peers.clone());
        let help = "1 while nothing of another router is known to be missing";
        registry.register("replication_in_step", help, self.in_step.clone());
        for (direction, outcome) in [("sent", "sent"), ("sent", "lost"), ("received", "applied")] {
            let _ = self.updates.get_or_create(&Flow { direction, outcome });
        }
    }

    fn flow(&self, direction: &'static str, outcome: &'static str, n: usize) {
        self.updates.get_or_create(&Flow { direction, outcome }).inc_by(n as u64);
    }

    pub(super) fn sent(&self, n: usize) {
        self.flow("sent", "sent", n);
    }

    /// To one who asked.
    pub(super) fn told(&self, n: usize) {
        self.flow("sent", "told", n);
    }

    pub(super) fn fetched(&self, n: usize) {
        self.flow("received", "fetched", n);
    }

    pub(super) fn received(&self, what: Received) {
        let outcome = match what {
            Received::Merged(Merged::Applied) => "applied",
            Received::Merged(Merged::Same) => "same",
            Received::Merged(Merged::Stale) => "stale",
            Received::Merged(Merged::Untrue) => return self.untrue(),
            Received::Merged(Merged::Expired) => "expired",
            Received::Merged(Merged::Full) => "full",
            Received::SetAside => "set_aside",
            Received::Passive => "passive",
            Received::Departed => "departed",
            Received::Forged => {
                return self.refused(
                    "forged",
                    "a session was said to live at a rank that its worker has not",
                );
            }
        };
        self.flow("received", outcome, 1);
    }

    /// Something of a peer was refused: counted always, logged once.
    pub(super) fn refused(&self, outcome: &'static str, why: &str) {
        self.flow("received", outcome, 1);
        let mut logged = self.logged.lock();
        if logged.len() < LOGGED_MAX && logged.insert((outcome, why.to_owned())) {
            tracing::warn!(
                why,
                "something that another router said, or the shared store says, is not believed"
            );
        }
    }

    /// Something of a router whose sessions have other keys.
    pub(super) fn other_secret(&self) {
        let why = "a router of this group has another session secret: affinity.key_file must be the same at all of them";
        self.refused("other_secret", why);
    }

    /// Something of a time that has not come yet.
    pub(super) fn untrue(&self) {
        let why = "it is of a time that is hours ahead: the clock of a router is wrong, this one's perhaps";
        self.refused("untrue", why);
    }

    /// Registers of ours could not go out.
    pub(super) fn unsent(&self, registers: usize, why: &str) {
        self.flow("sent", "lost", registers);
        tracing::debug!(
            registers,
            why,
            "what other routers should have heard was lost: they will ask for it"
        );
    }

    pub(super) fn claimed(&self, outcome: &'static str) {
        self.claims.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn gap(&self) {
        self.gaps.inc();
    }

    /// What there is to share over.
    pub(super) fn over(&self, bus: bool, store: bool) {
        let part = |there: bool| there.then(Part::default);
        *self.standing.lock() = Standing { bus: part(bus), store: part(store) };
    }

    pub(super) fn up(&self, over: Over, up: bool) {
        let before = self.stand(over, |part| std::mem::replace(&mut part.up, up));
        match (before, over) {
            (true, _) if up => {}
            (_, Over::Bus) if up => tracing::info!("what routers talk over can be reached"),
            (_, Over::Store) if up => {
                tracing::info!("the store that routers share can be reached");
            }
            (true, Over::Bus) => tracing::warn!(
                "what routers talk over can't be reached: each goes on with what it knows"
            ),
            (true, Over::Store) => tracing::warn!(
                "the store that routers share can't be reached: each goes on with what it knows"
            ),
            (false, _) => {}
        }
    }

    /// Whether nothing that goes over it is known to be missing.
    pub(super) fn in_step(&self, over: Over, in_step: bool) {
        self.stand(over, |part| part.in_step = in_step);
    }

    fn stand<T>(&self, over: Over, change: impl FnOnce(&mut Part) -> T) -> T {
        let mut standing = self.standing.lock();
        let part = match over {
            Over::Bus => &mut standing.bus,
            Over::Store => &mut standing.store,
        };
        let changed = change(part.get_or_insert_default());
        let parts = [standing.bus, standing.store];
        let all = |is: fn(Part) -> bool| i64::from(parts.into_iter().flatten().all(is));
        self.up.set(all(|part| part.up));
        // What is said meanwhile is not heard.
        self.in_step.set(all(|part| part.up && part.in_step));
        changed
    }

    pub(super) fn peers(&self, n: usize) {
        self.peers.set(i64::try_from(n).unwrap_or(i64::MAX));
    }
}
