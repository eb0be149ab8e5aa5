//! What a router has in common with others: who is discovered, and what is shared.

use super::router::{finding, reached};
use crate::doctor::facts::{Facts, Shared};
use crate::doctor::finding::{Finding, Severity};

/// What is asked of it.
pub(super) const QUESTIONS: [fn(&Facts) -> Option<Finding>; 5] =
    [frozen, replication_down, out_of_step, other_secret, claims];

fn shared(facts: &Facts) -> Option<Shared> {
    reached(facts)?.shared
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
    let down = !shared(facts)?.up;
    down.then(|| Finding {
        why: "a session that comes by another router may be placed anew there, and routers don't see each other's load",
        mend: "see that the `urls` of [replication] answer, that NATS runs with -js where `mode` is authoritative, \
               and this router's log, which says what it was told"
            .to_owned(),
        ..finding(
            Severity::Broken,
            "replication_down",
            "what it shares with other routers can't be reached".to_owned(),
        )
    })
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
        mend: "look at `homing_replication_claims_total` over time; a store that is slow, or a JetStream without a \
               quorum, shows so"
            .to_owned(),
        ..finding(
            Severity::Note,
            "replication_claims_unanswered",
            format!("{} first turns could not ask the shared store so far", shared.unreachable),
        )
    })
}
