//! What a router has in common with others: who is discovered, and what is shared.

use super::router::{finding, reached};
use crate::doctor::facts::{Facts, Over, Shared};
use crate::doctor::finding::{Finding, Severity};
use homing_runtime::settings::ReplicationBackend;

/// What is asked of it.
pub(super) const QUESTIONS: [fn(&Facts) -> Option<Finding>; 5] =
    [frozen, replication_down, out_of_step, other_secret, claims];

fn shared(facts: &Facts) -> Option<&Shared> {
    reached(facts)?.shared.as_ref()
}

fn frozen(facts: &Facts) -> Option<Finding> {
    let frozen = &reached(facts)?.frozen;
    (!frozen.is_empty()).then(|| Finding {
        why: "workers that come or go are not heard of; those that are known are served on",
        mend: "see that the `urls` of [discovery] answer, and its user, password and CA; nothing is lost meanwhile"
            .to_owned(),
        ..finding(
            Severity::Broken,
            "discovery_frozen",
            format!("it can't discover workers: {}", frozen.join("; ")),
        )
    })
}

fn replication_down(facts: &Facts) -> Option<Finding> {
    let shared = shared(facts)?;
    let over = shared.over.as_ref();
    let at = over.map(|it| format!(", {} at {}", name(it.backend), it.urls.join(", ")));
    let at = at.unwrap_or_default();
    (!shared.up).then(|| Finding {
        why: down_why(over),
        mend: format!(
            "see that the `urls` of [replication] answer from here{}; this router's log says what it was told",
            down_mend(over)
        ),
        ..finding(
            Severity::Broken,
            "replication_down",
            format!("what it shares with other routers can't be reached{at}"),
        )
    })
}

/// As it calls itself.
const fn name(backend: ReplicationBackend) -> &'static str {
    match backend {
        ReplicationBackend::None => "nothing",
        ReplicationBackend::Nats => "NATS",
        ReplicationBackend::Etcd => "etcd",
    }
}

/// Load is shared over NATS only.
fn down_why(over: Option<&Over>) -> &'static str {
    match over.map(|it| (it.backend, it.claims)) {
        Some((ReplicationBackend::Etcd, false)) => {
            "a session that comes by another router may be placed anew there"
        }
        Some((ReplicationBackend::Etcd, true)) => {
            "a session that comes by another router may be placed anew there, and first turns go by each router's own \
             knowledge, or are refused (`replication.on_store_failure`)"
        }
        Some((_, true)) => {
            "a session that comes by another router may be placed anew there, first turns go by each router's own \
             knowledge, or are refused (`replication.on_store_failure`), and routers don't see each other's load"
        }
        _ => {
            "a session that comes by another router may be placed anew there, and routers don't see each other's load"
        }
    }
}

fn down_mend(over: Option<&Over>) -> &'static str {
    match over.map(|it| (it.backend, it.claims)) {
        Some((ReplicationBackend::Etcd, _)) => {
            ", that etcd has a leader, and its user, password and CA"
        }
        Some((_, false)) => ", and its user, password and CA",
        Some((_, true)) => {
            ", that NATS runs with JetStream (`nats-server -js`), and its user, password and CA"
        }
        None => {
            ", and, over NATS with `mode = \"authoritative\"`, that it runs with JetStream (`nats-server -js`)"
        }
    }
}

fn out_of_step(facts: &Facts) -> Option<Finding> {
    let shared = shared(facts)?;
    (shared.up && !shared.in_step).then(|| Finding {
        why: "sessions that other routers bound may be unknown here",
        mend: "it asks for what it has missed by itself; ask again in some seconds, and see its log if it stays so"
            .to_owned(),
        ..finding(
            Severity::Note,
            "replication_out_of_step",
            "something of another router is missing here".to_owned(),
        )
    })
}

fn other_secret(facts: &Facts) -> Option<Finding> {
    let count = shared(facts)?.other_secret;
    (count > 0.0).then(|| Finding {
        why: "sessions of routers with another secret mean nothing here, and theirs nothing there",
        mend: "give all routers of a group the same file as `affinity.key_file`; another fleet gets a \
               `replication.group` of its own"
            .to_owned(),
        ..finding(
            Severity::Broken,
            "replication_other_secret",
            format!("it has refused {count} updates of routers with another `affinity.key_file`"),
        )
    })
}

/// Only told while it goes on: a store that is back needs no mending.
fn claims(facts: &Facts) -> Option<Finding> {
    let shared = shared(facts)?;
    (shared.up && shared.unreachable > 0.0).then(|| Finding {
        why: "such a turn went on by this router's knowledge alone, or was refused (`replication.on_store_failure`)",
        mend: format!("look at `homing_replication_claims_total` over time; {}", slow(shared.over.as_ref())),
        ..finding(
            Severity::Note,
            "replication_claims_unanswered",
            format!(
                "{} first turns could not ask the shared store while it was looked at",
                shared.unreachable
            ),
        )
    })
}

/// What a store that answers at times may suffer from.
fn slow(over: Option<&Over>) -> &'static str {
    match over.map(|it| it.backend) {
        Some(ReplicationBackend::Etcd) => "an etcd that is slow, or loses its leader, shows so",
        Some(_) => "a JetStream that is slow, or without a quorum, shows so",
        None => "a store that is slow, or a JetStream without a quorum, shows so",
    }
}
