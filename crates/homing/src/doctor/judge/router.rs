//! The router as a whole.

use crate::doctor::facts::{Facts, Router};
use crate::doctor::finding::{Finding, Severity};

/// What is asked of it.
pub(super) const QUESTIONS: [fn(&Facts) -> Option<Finding>; 7] =
    [unreachable, unready, without_workers, index_memory, untokenized, index_off, verify_off];

pub(super) fn reached(facts: &Facts) -> Option<&Router> {
    facts.router.as_ref().filter(|router| router.unreachable.is_none())
}

pub(super) fn finding(severity: Severity, code: &'static str, what: String) -> Finding {
    let about = "router".to_owned();
    Finding { severity, code, about, what, why: "", mend: String::new() }
}

/// Nobody answers at the admin address.
fn unreachable(facts: &Facts) -> Option<Finding> {
    let router = facts.router.as_ref()?;
    let why = router.unreachable.as_ref()?;
    Some(Finding {
        why: "without its admin API nothing of what it knows can be looked at",
        mend: "start `homing serve`, or give `--admin URL` with its [admin] listen; engines alone are \
               looked at with `--worker URL`"
            .to_owned(),
        ..finding(
            Severity::Broken,
            "router_unreachable",
            format!("no router answers at {}: {why}", router.url),
        )
    })
}

fn unready(facts: &Facts) -> Option<Finding> {
    let why = reached(facts)?.unready.as_ref()?;
    Some(Finding {
        why: "it answers requests with 503",
        mend: unready_mend(why),
        ..finding(Severity::Broken, "router_unready", format!("it is not ready: {why}"))
    })
}

/// By what is waited for, in the words of `GET /ready`: there may be several things.
fn unready_mend(why: &str) -> String {
    // What is said here, and what there is to be done. Where no worker is registered that is a finding of its own.
    const MENDS: [(&str, &str); 6] = [
        ("no worker is ready", "see the findings of its workers below"),
        ("no worker is registered", "see `no_workers` below"),
        (
            "what other routers know",
            "it takes over what they know as soon as one of its workers serves, and is ready after fifteen seconds at \
             most from then on; if it stays so, see its workers, and `replication_down`",
        ),
        (
            "word of every worker",
            "it waits until each worker of restored sessions has answered, for a while: ask again; a worker that \
             stays away has a finding below",
        ),
        ("workers can't be discovered", "see `discovery_frozen`"),
        ("shutting down", "it ends: start it anew, or ask another router"),
    ];
    let fit = MENDS.iter().filter(|(said, _)| why.contains(said));
    let fit: Vec<_> = fit.map(|(_, mend)| *mend).collect();
    match fit.is_empty() {
        true => "this router's log says more".to_owned(),
        false => fit.join("; "),
    }
}

fn without_workers(facts: &Facts) -> Option<Finding> {
    reached(facts)?;
    let none = facts.engines.iter().all(|engine| engine.routed.is_none());
    none.then(|| Finding {
        why: "there is nobody to route to",
        mend: "give `--worker URL`, or [[workers]] in the file of --config".to_owned(),
        ..finding(Severity::Broken, "no_workers", "it has no workers".to_owned())
    })
}

/// Prompts that it should have tokenized.
fn untokenized(facts: &Facts) -> Option<Finding> {
    let count = reached(facts)?.untokenized;
    (count > 0.0).then(|| Finding {
        why: "such a prompt is only compared by its text, with what the router has sent before",
        mend: "images and templates of a request's own can't be rendered here; if there are none, the \
               compute pool is behind: give the router more cores, and see its log at debug level"
            .to_owned(),
        ..finding(
            Severity::Note,
            "prompts_untokenized",
            format!("{count} prompts could not be tokenized so far"),
        )
    })
}

/// F22: its index has no room for what the engines hold.
fn index_memory(facts: &Facts) -> Option<Finding> {
    let count = reached(facts)?.dropped;
    (count > 0.0).then(|| Finding {
        why: "what was dropped is still cached and not known any more: predictions are too low, and requests go \
              elsewhere than they could",
        mend: "raise `index.memory` (2GiB unless it is set); `homing_index_bytes` shows what is taken".to_owned(),
        ..finding(
            Severity::Missing,
            "index_memory",
            format!("its index has dropped {count} blocks or chunks to stay within `index.memory`"),
        )
    })
}

fn index_off(facts: &Facts) -> Option<Finding> {
    facts.turned_off.source.then(|| Finding {
        why: "nothing is known of what workers have cached, so requests go by load and session",
        mend: "write `source = \"auto\"` under [index], or leave it out".to_owned(),
        ..finding(
            Severity::Note,
            "index_off",
            "its configuration says index.source = \"off\"".to_owned(),
        )
    })
}

fn verify_off(facts: &Facts) -> Option<Finding> {
    facts.turned_off.verify.then(|| Finding {
        why: "nobody notices where predictions don't come true, and they are believed all the same",
        mend: "write `verify = \"usage\"` under [index], or leave it out".to_owned(),
        ..finding(
            Severity::Note,
            "verify_off",
            "its configuration says index.verify = \"off\"".to_owned(),
        )
    })
}
