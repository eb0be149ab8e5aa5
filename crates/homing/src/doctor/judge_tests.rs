//! Each finding by the facts that bring it, and by those that don't.

use super::*;
use crate::doctor::facts::{Engine, Events, Model, Routed, Router, Tokenizer, Tokens};
use crate::doctor::finding::Severity::{self, Broken, Missing, Note};
use crate::doctor::finding::is_wrong;
use homing_wire::engine::Kind;

/// An engine of which nothing can be said.
fn engine() -> Engine {
    Engine {
        name: "gpu-a".into(),
        kind: Some(Kind::Vllm),
        models: vec!["m".into()],
        events: Events::Streams { replayed: true, connects_to: None },
        ranks: Some(1),
        block_size: Some(16),
        prefix_caching: Some(true),
        details: Some(true),
        tokens: vec![("m".into(), Tokens::Same)],
        routed: Some(routed()),
        ..Engine::default()
    }
}

fn routed() -> Routed {
    Routed {
        state: "ready".into(),
        index: "events".into(),
        ranks: 1,
        cached_blocks: 9,
        ..Routed::default()
    }
}

/// A router with such an engine, and a configuration that knows its model.
fn well() -> Facts {
    Facts {
        router: Some(Router { url: "http://127.0.0.1:9464".into(), ..Router::default() }),
        engines: vec![engine()],
        models: Some(vec![Model { name: "m".into(), at: 0, tokenizer: Tokenizer::Loaded }]),
    }
}

fn with_engine(change: impl FnOnce(&mut Engine)) -> Facts {
    let mut facts = well();
    change(&mut facts.engines[0]);
    facts
}

fn with_routed(change: impl FnOnce(&mut Routed)) -> Facts {
    with_engine(|engine| change(engine.routed.as_mut().unwrap()))
}

/// The one finding of these facts.
fn only(facts: &Facts) -> Finding {
    let mut findings = judge(facts);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = findings.remove(0);
    assert!(!finding.what.is_empty() && !finding.why.is_empty() && !finding.mend.is_empty());
    finding
}

/// The one finding has this code and severity, and its remedy names this.
fn is(facts: &Facts, severity: Severity, code: &str, mend: &str) {
    let found = only(facts);
    assert_eq!((found.severity, found.code), (severity, code), "{found}");
    assert!(found.mend.contains(mend), "{found}");
}

#[test]
fn of_a_fleet_that_is_well_nothing_is_said() {
    assert_eq!(judge(&well()), []);
    // Engines alone.
    let mut facts = Facts { router: None, models: None, ..well() };
    facts.engines[0].routed = None;
    assert_eq!(judge(&facts), []);
    for index in ["off", "approximate"] {
        let facts = with_routed(|routed| routed.index = index.into());
        assert_eq!(judge(&facts), [], "{index}");
    }
}

#[test]
fn a_router_that_is_not_there_or_not_ready() {
    let mut facts = well();
    facts.engines.clear();
    facts.models = None;
    facts.router.as_mut().unwrap().unreachable = Some("Refused".into());
    is(&facts, Broken, "router_unreachable", "--admin URL");
    facts.router.as_mut().unwrap().unreachable = None;
    is(&facts, Broken, "no_workers", "--worker URL");
    let mut facts = well();
    facts.router.as_mut().unwrap().unready = Some("no worker is ready".into());
    is(&facts, Broken, "router_unready", "below");
    let mut facts = well();
    facts.router.as_mut().unwrap().untokenized = 7.0;
    is(&facts, Note, "prompts_untokenized", "more cores");
}

#[test]
fn a_worker_that_gets_no_requests() {
    for (state, mend) in [
        ("down", "health.path"),
        ("starting", "/v1/models"),
        ("unauthorized", "API key"),
        ("stalled", "log"),
        ("failing", "log"),
    ] {
        is(&with_routed(|routed| routed.state = state.into()), Broken, "worker_down", mend);
    }
    for state in ["ready", "draining", "overloaded"] {
        assert_eq!(judge(&with_routed(|routed| routed.state = state.into())), []);
    }
}

#[test]
fn an_engine_that_does_not_answer_here() {
    let gone = |engine: &mut Engine| {
        let (name, routed) = (engine.name.clone(), engine.routed.clone());
        *engine = Engine { name, routed, unreachable: Some("no".into()), ..Engine::default() };
    };
    // The router reaches it.
    is(&with_engine(gone), Note, "engine_unreachable", "where the router runs");
    let facts = with_engine(|engine| {
        gone(engine);
        engine.routed = None;
    });
    let facts = Facts { router: None, ..facts };
    is(&facts, Broken, "engine_unreachable", "check its URL");
    is(&with_engine(|engine| engine.models.clear()), Broken, "no_models", "/v1/models");
}

#[test]
fn f68_ranks_behind_one_url() {
    let facts = with_engine(|engine| engine.ranks = Some(4));
    is(&facts, Broken, "ranks_behind_one_url", "write `dp_size = 4` in its [[workers]]");
    let mut facts = facts;
    facts.engines[0].routed.as_mut().unwrap().ranks = 4;
    assert_eq!(judge(&facts), []);
}

#[test]
fn events_that_are_off_with_the_switch_of_each_engine() {
    for (kind, switch) in [
        (Some(Kind::Vllm), "start vLLM with --kv-events-config"),
        (Some(Kind::Sglang), "start SGLang with --kv-events-config"),
        (Some(Kind::TensorRtLlm), "event_buffer_max_size"),
        (None, "start vLLM"),
    ] {
        let off = |index: &str| {
            with_engine(|engine| {
                engine.kind = kind;
                engine.events = Events::Off { why: "404".into() };
                engine.routed.as_mut().unwrap().index = index.into();
            })
        };
        is(&off("none"), Missing, "events_off", switch);
        is(&off("approximate"), Note, "events_off", switch);
        assert_eq!(judge(&off("events")), [], "they are configured by hand");
    }
}

#[test]
fn events_that_do_not_arrive() {
    let connecting = |events: Events| {
        with_engine(|engine| {
            engine.events = events;
            engine.routed.as_mut().unwrap().index = "connecting".into();
        })
    };
    let listens = Events::Streams { replayed: true, connects_to: None };
    is(&connecting(listens), Broken, "events_unreachable", "open the port");
    let connects = Some("tcp://10.0.0.1:6001".to_owned());
    let connects = Events::Streams { replayed: true, connects_to: connects };
    is(&connecting(connects), Broken, "events_unreachable", "write `kv_events = \"tcp://*:6001\"`");
    is(&connecting(Events::Polled), Broken, "events_unreachable", "/kv_cache_events");
    let none = |events: Events| {
        with_engine(|engine| {
            engine.kind = Some(Kind::TensorRtLlm);
            engine.events = events;
            engine.routed.as_mut().unwrap().index = "none".into();
        })
    };
    is(&none(Events::Polled), Missing, "events_unfollowed", "event_buffer_max_size");
    let streams = Events::Streams { replayed: true, connects_to: None };
    is(&none(streams), Missing, "events_unfollowed", "log");
}

#[test]
fn events_that_say_nothing() {
    is(&with_routed(|routed| routed.cached_blocks = 0), Note, "events_silent", "hundred tokens");
    let busy = with_routed(|routed| (routed.cached_blocks, routed.active_requests) = (0, 3));
    is(&busy, Missing, "events_silent", "hundred tokens");
}

#[test]
fn f24_events_that_were_lost() {
    let lost = |replayed| {
        with_engine(|engine| {
            engine.events = Events::Streams { replayed, connects_to: None };
            let routed = engine.routed.as_mut().unwrap();
            (routed.index, routed.lost) = ("uncertain".into(), 2.0);
        })
    };
    is(&lost(true), Missing, "events_uncertain", "passes by itself");
    is(&lost(false), Missing, "events_uncertain", "\"replay_endpoint\":\"tcp://*:5558\"");
    let off = Events::Streams { replayed: false, connects_to: None };
    is(&with_engine(|e| e.events = off), Missing, "replay_off", "\"replay_endpoint\"");
    is(&with_routed(|routed| routed.failed_replays = 1.0), Missing, "replay_failed", "kv_replay");
}

#[test]
fn f27_events_that_are_refused_or_can_not_be_read() {
    is(&with_routed(|routed| routed.refused = 5.0), Broken, "events_refused", "--block-size");
    is(&with_routed(|routed| routed.malformed = 5.0), Missing, "events_malformed", "log");
}

#[test]
fn what_an_engine_was_started_without() {
    for (kind, caching, details) in [
        (Kind::Vllm, "--enable-prefix-caching", "--enable-prompt-tokens-details"),
        (Kind::Sglang, "--disable-radix-cache", "--enable-cache-report"),
        (Kind::TensorRtLlm, "enable_block_reuse: true", "prompt_tokens_details"),
    ] {
        let off = with_engine(|e| (e.kind, e.prefix_caching) = (Some(kind), Some(false)));
        is(&off, Missing, "prefix_caching_off", caching);
        let off = with_engine(|e| (e.kind, e.details) = (Some(kind), Some(false)));
        is(&off, Missing, "prompt_tokens_details_off", details);
    }
    let unknown = with_engine(|e| (e.prefix_caching, e.details, e.ranks) = (None, None, None));
    assert_eq!(judge(&unknown), []);
}

#[test]
fn f27_blocks_of_several_sizes() {
    let mut facts = well();
    let other = |name: &str, model: &str, size| Engine {
        name: name.into(),
        models: vec![model.into()],
        block_size: Some(size),
        ..engine()
    };
    facts.engines.push(other("gpu-b", "m", 32));
    facts.engines.push(other("gpu-c", "m", 16));
    is(&facts, Broken, "block_size_mismatch", "start it with --block-size 16, as gpu-a");
    assert_eq!(only(&facts).about, "gpu-b");
}

#[test]
fn a_model_without_its_tokenizer() {
    let mut facts = Facts { models: Some(vec![]), ..well() };
    is(&facts, Missing, "tokenizer_missing", "[[models]] with name = \"m\"");
    let model = |name: &str, tokenizer| Model { name: name.into(), at: 1, tokenizer };
    facts.models = Some(vec![model("m", Tokenizer::Missing)]);
    is(&facts, Missing, "tokenizer_missing", "tokenizer = \"FOLDER\"");
    facts.models = Some(vec![model("m", Tokenizer::Broken("no such folder".into()))]);
    is(&facts, Broken, "tokenizer_broken", "tokenizer.json");
    facts.models = Some(vec![model("m", Tokenizer::Loaded), model("n", Tokenizer::Loaded)]);
    is(&facts, Missing, "model_name_mismatch", "one of their names: m");
    assert_eq!(only(&facts).about, "models[1]");
    // It may be the one that an engine serves that can't be asked.
    facts.engines.push(Engine { unreachable: Some("no".into()), ..Engine::default() });
    facts.router = None;
    assert_eq!(only(&facts).code, "engine_unreachable");
}

#[test]
fn f28_prompts_that_are_not_seen_as_the_engine_does() {
    let with = |tokens: Tokens| with_engine(|engine| engine.tokens = vec![("m".into(), tokens)]);
    is(&with(Tokens::TextDiffers), Broken, "tokenizer_differs", "`tokenizer` of `m`");
    let chat = Tokens::ChatDiffers { at: 3, ours: 9, theirs: 12 };
    is(&with(chat.clone()), Broken, "template_differs", "chat_template.jinja");
    assert!(only(&with(chat)).what.contains("from token 3 on (12 tokens, and 9 here)"));
    is(&with(Tokens::Unknown("404".into())), Note, "tokens_unknown", "cached_tokens");
}

#[test]
fn the_worst_comes_first_and_notes_alone_are_no_fault() {
    let facts = with_routed(|routed| {
        routed.cached_blocks = 0;
        routed.failed_replays = 1.0;
        routed.refused = 1.0;
    });
    let findings = judge(&facts);
    let seen: Vec<_> = findings.iter().map(|f| f.severity).collect();
    assert_eq!(seen, [Broken, Missing, Note]);
    assert!(is_wrong(&findings) && is_wrong(&findings[1..2]));
    assert!(!is_wrong(&findings[2..]) && !is_wrong(&[]));
    let json = findings[0].json();
    assert_eq!((&json["severity"], &json["code"]), (&"broken".into(), &"events_refused".into()));
}
