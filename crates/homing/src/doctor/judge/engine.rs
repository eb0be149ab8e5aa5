//! An engine: whether it serves, and what it was started with. Its events are `events`'.

use super::events;
use crate::doctor::facts::{Engine, Routed, Written};
use crate::doctor::finding::{Finding, Severity};
use homing_wire::engine::{Kind, is_wildcard};
use std::collections::BTreeMap;

/// Everything about one engine. Of one that can't be asked, only what the router says.
pub(super) fn judge(engine: &Engine) -> Vec<Finding> {
    let questions: [fn(&Engine) -> Option<Finding>; 6] =
        [state, unreachable, unknown_models, ranks, prefix_caching, details];
    questions.iter().chain(&events::QUESTIONS).filter_map(|ask| ask(engine)).collect()
}

pub(super) fn finding(
    engine: &Engine,
    severity: Severity,
    code: &'static str,
    what: String,
) -> Finding {
    let about = engine.name.clone();
    Finding { severity, code, about, what, why: "", mend: String::new() }
}

/// Of an engine that answers.
fn reached(engine: &Engine) -> bool {
    engine.unreachable.is_none()
}

pub(super) fn kind(engine: &Engine) -> Kind {
    engine.kind.unwrap_or_default()
}

pub(super) fn indexed<'a>(engine: &'a Engine, state: &str) -> Option<&'a Routed> {
    engine.routed.as_ref().filter(|routed| routed.index == state)
}

/// The router doesn't send requests to it.
fn state(engine: &Engine) -> Option<Finding> {
    let state = engine.routed.as_ref()?.state.as_str();
    let mend = match state {
        "ready" | "draining" | "overloaded" => return None,
        "down" => {
            "see that the engine runs, that the URL of its [[workers]] is right, and that `health.path` \
                   answers with 2xx"
        }
        "starting" => {
            "wait until it has loaded its model; if it stays so, see that /health and /v1/models \
                       answer"
        }
        "unauthorized" => {
            "the engine wants an API key: write it into a file and name that in `upstream.api_key_file`, or in the \
             worker's own `api_key_file`"
        }
        "stalled" => {
            "requests are open there and no byte comes, whatever its /health says: look at the engine's log, and \
             restart it if it hangs"
        }
        "failing" => "its last requests all failed there: the engine's log says why",
        _ => "see the engine's own log, and the router's",
    };
    let here = match &engine.unreachable {
        Some(why) => format!("the worker is {state}, and doesn't answer here either: {why}"),
        None => format!("the worker is {state}"),
    };
    Some(Finding {
        why: "it gets no requests",
        mend: mend.to_owned(),
        ..finding(engine, Severity::Broken, "worker_down", here)
    })
}

fn unreachable(engine: &Engine) -> Option<Finding> {
    let why = engine.unreachable.as_ref()?;
    // The router reaches it: it is only the way from here.
    let ready = engine.routed.as_ref().is_some_and(|routed| routed.state == "ready");
    Some(Finding {
        why: "what it says of itself can't be looked at",
        mend: "check its URL; run `homing doctor` where the router runs".to_owned(),
        ..finding(
            engine,
            if ready { Severity::Note } else { Severity::Broken },
            "engine_unreachable",
            format!("the engine doesn't answer here: {why}"),
        )
    })
}

fn unknown_models(engine: &Engine) -> Option<Finding> {
    let none = reached(engine) && engine.models.is_empty();
    none.then(|| Finding {
        why: "the router can't know which requests it may get",
        mend: "its `GET /v1/models` must list what it serves".to_owned(),
        ..finding(engine, Severity::Broken, "no_models", "it doesn't say what it serves".to_owned())
    })
}

/// F68: the right worker and the wrong rank.
fn ranks(engine: &Engine) -> Option<Finding> {
    let said = engine.ranks?;
    let (routed, written) = (engine.routed.as_ref(), engine.written.as_ref());
    let given = routed.map(|routed| routed.ranks).or(written.and_then(|written| written.dp_size));
    // Where the engine connects to ports of the router's, how many there are must be written.
    let listens = |written: &Written| written.kv_events.as_deref().is_some_and(is_wildcard);
    if given.is_none() && engine.ranks_told && !written.is_some_and(listens) {
        return None;
    }
    let known = given.or(written.map(|_| 1));
    let (severity, knows) = match known {
        Some(known) => (Severity::Broken, format!("and the router knows {known}")),
        // Nobody routes to it yet.
        None => (Severity::Missing, "which a router takes for one unless it is told".to_owned()),
    };
    (said > known.unwrap_or(1)).then(|| Finding {
        why: "the engine spreads requests over its ranks by itself, and each has a cache of its own: the hit \
              rate falls to one in so many",
        mend: format!("write `dp_size = {said}` in its [[workers]]"),
        ..finding(
            engine,
            severity,
            "ranks_behind_one_url",
            format!("it has {said} data-parallel ranks, {knows}"),
        )
    })
}

fn prefix_caching(engine: &Engine) -> Option<Finding> {
    let off = engine.prefix_caching == Some(false);
    off.then(|| Finding {
        why: "every prompt is computed anew, wherever it goes",
        mend: match kind(engine) {
            Kind::Vllm => "start vLLM with --enable-prefix-caching",
            Kind::Sglang => "start SGLang without --disable-radix-cache",
            Kind::TensorRtLlm => {
                "start trtllm-serve with `kv_cache_config: {enable_block_reuse: true}`"
            }
        }
        .to_owned(),
        ..finding(
            engine,
            Severity::Missing,
            "prefix_caching_off",
            "it keeps no prefixes for reuse".to_owned(),
        )
    })
}

fn details(engine: &Engine) -> Option<Finding> {
    let off = engine.details == Some(false);
    off.then(|| Finding {
        why: "nobody can see how much of a prompt was cached, so wrong predictions stay unseen",
        mend: match kind(engine) {
            Kind::Vllm => "start vLLM with --enable-prompt-tokens-details",
            Kind::Sglang => "start SGLang with --enable-cache-report",
            Kind::TensorRtLlm => {
                "use a version of trtllm-serve whose usage has `prompt_tokens_details`"
            }
        }
        .to_owned(),
        ..finding(
            engine,
            Severity::Missing,
            "prompt_tokens_details_off",
            "its usage has no `prompt_tokens_details` for a prompt that it has cached".to_owned(),
        )
    })
}

/// Engines of one model whose blocks are of different sizes: the router takes those of who tells first.
pub(super) fn block_sizes(engines: &[Engine]) -> Vec<Finding> {
    let taken = |engine: &&Engine| {
        engine.routed.as_ref().is_some_and(|r| r.cached_blocks > 0 && r.refused == 0.0)
    };
    // Whose events are taken in has the right size; where nobody's are, that of the first.
    let (right, others): (Vec<_>, Vec<_>) = engines.iter().partition(taken);
    let mut first: BTreeMap<&str, (&Engine, u32)> = BTreeMap::new();
    let mut findings = Vec::new();
    for engine in right.into_iter().chain(others) {
        let (Some(size), Some(model)) = (engine.block_size, engine.models.first()) else {
            continue;
        };
        let (other, known) = *first.entry(model).or_insert((engine, size));
        if known != size {
            findings.push(Finding {
                why: "the events of only one size can be taken in; those of the other engine are refused, and \
                      nothing of its cache is known",
                mend: match kind(engine) {
                    Kind::Vllm => format!("start it with --block-size {known}, as {}", other.name),
                    Kind::Sglang => format!("start it with --page-size {known}, as {}", other.name),
                    Kind::TensorRtLlm => {
                        format!("set `tokens_per_block: {known}` in its kv_cache_config, as {}", other.name)
                    }
                },
                ..finding(
                    engine,
                    Severity::Broken,
                    "block_size_mismatch",
                    format!("its blocks have {size} tokens, and those of {} {known}", other.name),
                )
            });
        }
    }
    findings
}
