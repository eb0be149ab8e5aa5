//! Whether an engine tells of its cache, and whether that arrives.

use super::engine::{finding, indexed, kind};
use crate::doctor::facts::{Engine, Events};
use crate::doctor::finding::{Finding, Severity};
use homing_wire::engine::{Kind, is_wildcard};

/// What is asked of each engine.
pub(super) const QUESTIONS: [fn(&Engine) -> Option<Finding>; 10] = [
    events_off,
    events_unreachable,
    unfollowed,
    events_silent,
    uncertain,
    refused,
    malformed,
    replay_off,
    replay_failed,
    other_port,
];

fn events_off(engine: &Engine) -> Option<Finding> {
    let Events::Off { why } = &engine.events else { return None };
    const GUESSED: &str = "what it has cached is guessed by the text of what it is sent: what it evicts, or \
                           computes for others, is not seen";
    let (severity, why_so) = match engine.routed.as_ref().map(|routed| routed.index.as_str()) {
        // Written down by hand, and it works or is known not to.
        Some("events" | "uncertain" | "connecting" | "off") => return None,
        Some("approximate") => (Severity::Note, GUESSED),
        Some(_) => (
            Severity::Missing,
            "what it has cached is not known, so requests don't go where their prefix is",
        ),
        None => (Severity::Missing, GUESSED),
    };
    Some(Finding {
        why: why_so,
        mend: kind(engine).events_switch().to_owned(),
        ..finding(engine, severity, "events_off", format!("it tells nothing of its cache: {why}"))
    })
}

fn events_unreachable(engine: &Engine) -> Option<Finding> {
    let routed = indexed(engine, "connecting")?;
    let mut what = "its KV events don't reach the router".to_owned();
    let mend = match &routed.index_error {
        // It could not even begin to.
        Some(why) => {
            what = format!("{what}: {why}");
            "end whatever holds that port at the router's host, and the router takes it by itself within a minute or so; or \
             write another port into `kv_events` in its [[workers]] and into the engine's endpoint"
                .to_owned()
        }
        None => unreachable_mend(engine),
    };
    Some(Finding {
        why: "what it has cached is not known, so requests don't go where their prefix is",
        mend,
        ..finding(engine, Severity::Broken, "events_unreachable", what)
    })
}

/// What is written goes before what the engine says, so it is looked at first.
fn unreachable_mend(engine: &Engine) -> String {
    let (endpoint, listens) = match &engine.events {
        Events::Polled => {
            return "see that `POST /kv_cache_events` answers, and that nobody else asks it"
                .to_owned();
        }
        Events::Streams { endpoint, listens, .. } => (Some(endpoint), *listens),
        Events::Off { .. } => {
            let switch = kind(engine).events_switch();
            return format!(
                "see that its events are on ({switch}), that `kv_events` in its [[workers]] is where they are, and that the \
                 port is open to the router"
            );
        }
        Events::Unknown => (None, true),
    };
    let set = engine.written.as_ref().map(|written| written.kv_events.as_deref());
    match (set, endpoint) {
        (Some(Some(set)), _) if is_wildcard(set) => format!(
            "the router listens at `kv_events = \"{set}\"`, and no engine has connected: start it with an endpoint that \
             names the router's host and that port, and open the port; if it listens itself, delete `kv_events`"
        ),
        (Some(Some(set)), Some(endpoint)) if set != endpoint => format!(
            "delete `kv_events = \"{set}\"` from its [[workers]], or correct it: the engine itself names \
             \"{endpoint}\""
        ),
        (Some(Some(set)), _) => {
            format!("open the port of `kv_events = \"{set}\"` to the router, or correct it in its [[workers]]")
        }
        (None, Some(endpoint)) => format!(
            "if its [[workers]] has `kv_events`, delete it or correct it: the engine itself names \"{endpoint}\" (with \
             --config the doctor sees what is written); else {}",
            unset_mend(endpoint, listens)
        ),
        (Some(None), Some(endpoint)) => unset_mend(endpoint, listens),
        (_, None) => "open the port of its events to the router, or write where they are: `kv_events` in its \
                      [[workers]]"
            .to_owned(),
    }
}

/// Where the router follows what the engine says.
fn unset_mend(endpoint: &str, listens: bool) -> String {
    if listens {
        return format!(
            "open the port of {endpoint} to the router, or write where its events are: `kv_events` in its [[workers]]"
        );
    }
    let port = endpoint.rsplit_once(':').map_or("5557", |(_, port)| port);
    format!(
        "an engine whose own endpoint is \"{endpoint}\" may connect to it instead of listening there: then write \
         `kv_events = \"tcp://*:{port}\"` in its [[workers]], or start it with \"tcp://*:{port}\" as its endpoint"
    )
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
        mend: replay_mend(engine).unwrap_or_else(|| {
            "it passes by itself as the engine stores anew; see `homing_kv_event_gaps_lost_total`".to_owned()
        }),
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

/// How lost events can be had again; `None`: they can. What is written goes before what the engine says, and where
/// `kv_events` is written the engine isn't asked for its replay socket either.
fn replay_mend(engine: &Engine) -> Option<String> {
    let written = engine.written.as_ref();
    if written.is_some_and(|written| written.kv_replay.is_some()) {
        return None;
    }
    let named = match &engine.events {
        Events::Streams { replay, .. } => replay.as_deref(),
        _ => None,
    };
    if let Some(set) = written.and_then(|written| written.kv_events.as_deref()) {
        let mend = match named {
            Some(named) => format!("write `kv_replay = \"{named}\"`"),
            None => format!(
                "write `kv_replay = \"tcp://ENGINE:PORT\"`, once it replays at that place ({})",
                switch(engine)
            ),
        };
        return Some(format!(
            "{mend} beside `kv_events = \"{set}\"` in its [[workers]]: where that is written the engine's own word for \
             it is not used"
        ));
    }
    let Events::Streams { .. } = engine.events else { return None };
    if named.is_none() {
        return Some(switch(engine));
    }
    // Nobody has said what is written, and the router has asked for nothing that it lost.
    let unasked = engine.routed.as_ref().is_some_and(|r| r.lost > 0.0 && r.replays == 0.0);
    (unasked && written.is_none()).then(|| {
        "if its [[workers]] has `kv_events`, write `kv_replay` beside it (with --config the doctor sees what is written)"
            .to_owned()
    })
}

/// What the engine is started with to repeat its events.
fn switch(engine: &Engine) -> String {
    let more = "\"replay_endpoint\":\"tcp://*:5558\"";
    match kind(engine) {
        Kind::TensorRtLlm => "raise `event_buffer_max_size`".to_owned(),
        Kind::Vllm | Kind::Sglang => format!("add {more} to its --kv-events-config"),
    }
}

fn replay_off(engine: &Engine) -> Option<Finding> {
    // That is said already; or what is written is to be mended first.
    let misled = engine.written.as_ref().is_some_and(|written| written.kv_events.is_some())
        && indexed(engine, "connecting").is_some();
    if misled || indexed(engine, "uncertain").is_some() {
        return None;
    }
    let mend = replay_mend(engine)?;
    let lost = engine.routed.as_ref().map_or(0.0, |routed| routed.lost);
    let so_far = if lost > 0.0 {
        format!(": what was in {lost} holes is lost for good")
    } else {
        String::new()
    };
    Some(Finding {
        why: "a lost message costs all that is known of a rank's cache, and a router that starts later knows \
              nothing of what is cached already",
        mend,
        ..finding(
            engine,
            Severity::Missing,
            "replay_off",
            format!("its events are not repeated for who has missed some{so_far}"),
        )
    })
}

/// The port that is written against the one that the engine names: it may be another one's that was copied. A note,
/// since a host may give its containers' ports other numbers.
fn other_port(engine: &Engine) -> Option<Finding> {
    // That they don't arrive says more.
    if indexed(engine, "connecting").is_some() {
        return None;
    }
    let set = engine.written.as_ref()?.kv_events.as_deref()?;
    let Events::Streams { endpoint, .. } = &engine.events else { return None };
    let (written, named) = (port(set)?, port(endpoint)?);
    (written != named).then(|| Finding {
        why: "events of another engine would be taken for its own, and its cache for what it isn't",
        mend: format!(
            "where no ports are mapped in between, correct `kv_events = \"{set}\"` in its [[workers]], or delete it"
        ),
        ..finding(
            engine,
            Severity::Note,
            "events_other_port",
            format!("its `kv_events` has port {written}, and the engine itself names \"{endpoint}\""),
        )
    })
}

/// Of a tcp endpoint.
fn port(endpoint: &str) -> Option<u16> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':')?.1.parse().ok()
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
