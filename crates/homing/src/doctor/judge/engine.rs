//! An engine: whether it serves, and whether it tells of its cache.

use crate::doctor::facts::{Engine, Events, Routed};
use crate::doctor::finding::{Finding, Severity};
use homing_wire::engine::Kind;
use std::collections::BTreeMap;

/// Everything about one engine. Of one that can't be asked, only what the router says.
pub(super) fn judge(engine: &Engine) -> Vec<Finding> {
    let questions = [
        state,
        unreachable,
        unknown_models,
        ranks,
        events_off,
        events_unreachable,
        unfollowed,
        events_silent,
        uncertain,
        refused,
        malformed,
        replay_off,
        replay_failed,
        prefix_caching,
        details,
    ];
    questions.iter().filter_map(|ask| ask(engine)).collect()
}

fn finding(engine: &Engine, severity: Severity, code: &'static str, what: String) -> Finding {
    let about = engine.name.clone();
    Finding { severity, code, about, what, why: "", mend: String::new() }
}

/// Of an engine that answers.
fn reached(engine: &Engine) -> bool {
    engine.unreachable.is_none()
}

fn kind(engine: &Engine) -> Kind {
    engine.kind.unwrap_or_default()
}

fn indexed<'a>(engine: &'a Engine, state: &str) -> Option<&'a Routed> {
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
        "unauthorized" => "the engine wants an API key that requests don't carry",
        _ => "see the engine's own log, and the router's",
    };
    Some(Finding {
        why: "it gets no requests",
        mend: mend.to_owned(),
        ..finding(engine, Severity::Broken, "worker_down", format!("the worker is {state}"))
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
    let (said, known) = (engine.ranks?, engine.routed.as_ref()?.ranks);
    (said > known).then(|| Finding {
        why: "the engine spreads requests over its ranks by itself, and each has a cache of its own: the hit \
              rate falls to one in so many",
        mend: format!("write `dp_size = {said}` in its [[workers]]"),
        ..finding(
            engine,
            Severity::Broken,
            "ranks_behind_one_url",
            format!("it has {said} data-parallel ranks, and the router knows {known}"),
        )
    })
}

fn events_off(engine: &Engine) -> Option<Finding> {
    let Events::Off { why } = &engine.events else { return None };
    let severity = match engine.routed.as_ref().map(|routed| routed.index.as_str()) {
        // Written down by hand, and it works.
        Some("events" | "uncertain" | "off") => return None,
        // What is routed there is taken for cached.
        Some("approximate") => Severity::Note,
        _ => Severity::Missing,
    };
    Some(Finding {
        why: "what it has cached is not known exactly, so requests don't go where their prefix is",
        mend: kind(engine).events_switch().to_owned(),
        ..finding(engine, severity, "events_off", format!("it tells nothing of its cache: {why}"))
    })
}

fn events_unreachable(engine: &Engine) -> Option<Finding> {
    indexed(engine, "connecting")?;
    let mend = match &engine.events {
        Events::Streams { connects_to: Some(endpoint), .. } => {
            let port = endpoint.rsplit_once(':').map_or("5557", |(_, port)| port);
            format!(
                "an engine whose own endpoint is \"{endpoint}\" may connect to it instead of listening there: \
                 then write `kv_events = \"tcp://*:{port}\"` in its [[workers]], or start it with \
                 \"tcp://*:{port}\" as its endpoint"
            )
        }
        Events::Polled => "see that `POST /kv_cache_events` answers, and that nobody else asks it".to_owned(),
        _ => "open the port of its events to the router, or write where they are: `kv_events` in its [[workers]]"
            .to_owned(),
    };
    Some(Finding {
        why: "what it has cached is not known, so requests don't go where their prefix is",
        mend,
        ..finding(
            engine,
            Severity::Broken,
            "events_unreachable",
            "its KV events don't reach the router".to_owned(),
        )
    })
}

/// The engine says that it tells, and the router has heard nothing of it.
fn unfollowed(engine: &Engine) -> Option<Finding> {
    indexed(engine, "none")?;
    let mend = match engine.events {
        Events::Streams { .. } => {
            "the router asks again every minute or so; if this stays, its log says why".to_owned()
        }
        Events::Polled => kind(engine).events_switch().to_owned(),
        Events::Off { .. } | Events::Unknown => return None,
    };
    Some(Finding {
        why: "what it has cached is not known, so requests don't go where their prefix is",
        mend,
        ..finding(
            engine,
            Severity::Missing,
            "events_unfollowed",
            "it could tell of its cache, and the router has heard nothing".to_owned(),
        )
    })
}

fn events_silent(engine: &Engine) -> Option<Finding> {
    let routed = indexed(engine, "events").filter(|routed| routed.cached_blocks == 0)?;
    // Something runs, and would have been told of.
    let busy = routed.active_requests > 0;
    Some(Finding {
        why: "either nothing was asked of it yet, or its events are not those of its cache",
        mend: "send a prompt of some hundred tokens and look again; then see that prefix caching is on"
            .to_owned(),
        ..finding(
            engine,
            if busy { Severity::Missing } else { Severity::Note },
            "events_silent",
            "its events are followed, and none of its blocks is known".to_owned(),
        )
    })
}

fn uncertain(engine: &Engine) -> Option<Finding> {
    let routed = indexed(engine, "uncertain")?;
    Some(Finding {
        why: "what was cached before the hole is not known any more: requests go elsewhere",
        mend: match engine.events {
            Events::Streams { replayed: false, .. } => replay_mend(engine),
            _ => "it passes by itself as the engine stores anew; see `homing_kv_event_gaps_lost_total`".to_owned(),
        },
        ..finding(
            engine,
            Severity::Missing,
            "events_uncertain",
            format!("events were lost for good ({} holes so far)", routed.lost),
        )
    })
}

fn refused(engine: &Engine) -> Option<Finding> {
    let count = engine.routed.as_ref()?.refused;
    (count > 0.0).then(|| Finding {
        why: "a refused event leaves blocks unknown, or believed in that are gone",
        mend: "the router's log says which: another block size than the pool's (start all engines of a model \
               with one --block-size), or a rank that `dp_size` in its [[workers]] doesn't have"
            .to_owned(),
        ..finding(
            engine,
            Severity::Broken,
            "events_refused",
            format!("{count} of its events were refused"),
        )
    })
}

fn malformed(engine: &Engine) -> Option<Finding> {
    let count = engine.routed.as_ref()?.malformed;
    (count > 0.0).then(|| Finding {
        why: "each may have told of removals, so it counts as a hole",
        mend:
            "see the router's log for why, and that nothing but the engine publishes on that port"
                .to_owned(),
        ..finding(
            engine,
            Severity::Missing,
            "events_malformed",
            format!("{count} of its events could not be read"),
        )
    })
}

fn replay_mend(engine: &Engine) -> String {
    let more = "\"replay_endpoint\":\"tcp://*:5558\"";
    match kind(engine) {
        Kind::TensorRtLlm => "raise `event_buffer_max_size`".to_owned(),
        Kind::Vllm | Kind::Sglang => format!("add {more} to its --kv-events-config"),
    }
}

fn replay_off(engine: &Engine) -> Option<Finding> {
    let off = matches!(engine.events, Events::Streams { replayed: false, .. });
    // That is said already.
    (off && indexed(engine, "uncertain").is_none()).then(|| Finding {
        why: "a lost message costs all that is known of a rank's cache, and a router that starts later knows \
              nothing of what is cached already",
        mend: replay_mend(engine),
        ..finding(
            engine,
            Severity::Missing,
            "replay_off",
            "its events are not repeated for who has missed some".to_owned(),
        )
    })
}

fn replay_failed(engine: &Engine) -> Option<Finding> {
    let count = engine.routed.as_ref()?.failed_replays;
    (count > 0.0 && !matches!(engine.events, Events::Polled)).then(|| Finding {
        why: "holes in its events stay holes",
        mend: "open the port of its replay socket to the router, or write where it is: `kv_replay` in its \
               [[workers]]"
            .to_owned(),
        ..finding(
            engine,
            Severity::Missing,
            "replay_failed",
            format!("{count} requests for a replay got nothing of use"),
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

/// Engines of one model whose blocks are of different sizes: the router takes those of the first.
pub(super) fn block_sizes(engines: &[Engine]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, (&Engine, u32)> = BTreeMap::new();
    let mut findings = Vec::new();
    for engine in engines {
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
