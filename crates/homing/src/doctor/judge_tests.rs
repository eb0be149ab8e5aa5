//! Each finding by the facts that bring it, and by those that don't.

use super::*;
use crate::doctor::facts::{
    Engine, Events, Model, Over, Routed, Router, Shared, Tokenizer, Tokens, TurnedOff, Written,
};
use crate::doctor::finding::Severity::{self, Broken, Missing, Note};
use crate::doctor::finding::is_wrong;
use homing_runtime::settings::ReplicationBackend::{Etcd, Nats};
use homing_wire::engine::Kind;

pub(super) const ENDPOINT: &str = "tcp://10.0.0.1:6001";
pub(super) const REPLAY: &str = "tcp://10.0.0.1:6002";

/// Events of an engine that listens.
pub(super) fn streams(replayed: bool) -> Events {
    let replay = replayed.then(|| REPLAY.to_owned());
    Events::Streams { replay, endpoint: ENDPOINT.into(), listens: true }
}

pub(super) fn written(kv_events: Option<&str>) -> Option<Written> {
    let kv_events = kv_events.map(str::to_owned);
    Some(Written { kv_events, kv_replay: None, dp_size: Some(1) })
}

/// An engine of which nothing can be said.
pub(super) fn engine() -> Engine {
    Engine {
        name: "gpu-a".into(),
        kind: Some(Kind::Vllm),
        models: vec!["m".into()],
        events: streams(true),
        ranks: Some(1),
        block_size: Some(16),
        prefix_caching: Some(true),
        details: Some(true),
        tokens: vec![("m".into(), Tokens::Same)],
        routed: Some(routed()),
        ..Engine::default()
    }
}

pub(super) fn routed() -> Routed {
    Routed {
        state: "ready".into(),
        index: "events".into(),
        ranks: 1,
        cached_blocks: 9,
        ..Routed::default()
    }
}

/// A router with such an engine, and a configuration that knows its model.
pub(super) fn well() -> Facts {
    Facts {
        router: Some(Router { url: "http://127.0.0.1:9464".into(), ..Router::default() }),
        engines: vec![engine()],
        models: Some(vec![Model { name: "m".into(), at: 0, tokenizer: Tokenizer::Loaded }]),
        turned_off: TurnedOff::default(),
    }
}

pub(super) fn with_engine(change: impl FnOnce(&mut Engine)) -> Facts {
    let mut facts = well();
    change(&mut facts.engines[0]);
    facts
}

pub(super) fn with_routed(change: impl FnOnce(&mut Routed)) -> Facts {
    with_engine(|engine| change(engine.routed.as_mut().unwrap()))
}

/// The one finding of these facts.
pub(super) fn only(facts: &Facts) -> Finding {
    let mut findings = judge(facts);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = findings.remove(0);
    assert!(!finding.what.is_empty() && !finding.why.is_empty() && !finding.mend.is_empty());
    finding
}

/// The one finding has this code and severity, and its remedy names this.
pub(super) fn is(facts: &Facts, severity: Severity, code: &str, mend: &str) {
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
    is(&facts, Broken, "router_unready", "findings of its workers below");
    // Each reason has its own remedy, and none speaks of findings that there aren't.
    let unready = |why: &str| {
        let mut facts = well();
        facts.router.as_mut().unwrap().unready = Some(why.into());
        only(&facts).mend
    };
    let waits = unready("a worker is ready; waiting for what other routers know");
    assert!(waits.contains("fifteen seconds") && !waits.contains("below"), "{waits}");
    let restored =
        "a worker is ready; waiting for word of every worker that restored sessions may live at";
    assert!(unready(restored).contains("restored sessions"));
    assert!(unready("the router is shutting down").contains("start it anew"));
    assert!(unready("something new").contains("log"));
    let both = unready("no worker is ready: w is down; waiting for what other routers know");
    assert!(both.contains("below") && both.contains("fifteen seconds"), "{both}");
    let mut facts = well();
    facts.router.as_mut().unwrap().untokenized = 7.0;
    is(&facts, Note, "prompts_untokenized", "more cores");
    assert!(!only(&facts).why.contains("load and session"), "they are compared by their text");
    let mut facts = well();
    facts.router.as_mut().unwrap().dropped = 3.0;
    is(&facts, Missing, "index_memory", "raise `index.memory`");
}

#[test]
fn what_a_router_shares_with_others() {
    let well_shared = Shared { up: true, in_step: true, ..Shared::default() };
    let with = |shared: Shared| {
        let mut facts = well();
        facts.router.as_mut().unwrap().shared = Some(shared);
        facts
    };
    assert_eq!(judge(&with(well_shared.clone())), []);
    is(&with(Shared::default()), Broken, "replication_down", "`urls` of [replication]");
    is(
        &with(Shared { in_step: false, ..well_shared.clone() }),
        Note,
        "replication_out_of_step",
        "by itself",
    );
    let other = Shared { other_secret: 3.0, ..well_shared.clone() };
    is(&with(other), Broken, "replication_other_secret", "affinity.key_file");
    let unanswered = Shared { unreachable: 2.0, ..well_shared };
    is(&with(unanswered.clone()), Note, "replication_claims_unanswered", "quorum");
    assert!(only(&with(unanswered)).what.contains("2 first turns"));
    let mut facts = well();
    facts.router.as_mut().unwrap().frozen = vec!["etcd at x can't be reached: refused".into()];
    is(&facts, Broken, "discovery_frozen", "[discovery]");
    facts.router.as_mut().unwrap().unreachable = Some("Refused".into());
    facts.engines.clear();
    is(&facts, Broken, "router_unreachable", "--admin URL");
}

#[test]
fn what_is_shared_over_says_what_is_lost_with_it_and_what_to_look_at() {
    let down = |backend, claims| {
        let over = Over { backend, claims, urls: vec!["x://10.0.0.5:1".into()] };
        let mut facts = well();
        let shared = Shared { over: Some(over), ..Shared::default() };
        facts.router.as_mut().unwrap().shared = Some(shared);
        only(&facts)
    };
    for (backend, claims, load, js) in [
        (Etcd, false, false, false),
        (Etcd, true, false, false),
        (Nats, false, true, false),
        (Nats, true, true, true),
    ] {
        let found = down(backend, claims);
        let name = if backend == Nats { "NATS" } else { "etcd" };
        assert!(found.what.contains(&format!(", {name} at x://10.0.0.5:1")), "{found}");
        assert_eq!(found.why.contains("load"), load, "load goes over NATS only: {found}");
        assert_eq!(found.why.contains("on_store_failure"), claims, "{found}");
        assert_eq!(found.mend.contains("-js"), js, "{found}");
    }
}

#[test]
fn what_the_configuration_turns_off() {
    let with = |source, verify| Facts { turned_off: TurnedOff { source, verify }, ..well() };
    is(&with(true, false), Note, "index_off", "source = \"auto\"");
    is(&with(false, true), Note, "verify_off", "verify = \"usage\"");
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
    // It doesn't answer here either, and its events are gone with it: one cause.
    let mut facts = with_routed(|routed| {
        (routed.state, routed.index) = ("down".into(), "connecting".into());
    });
    facts.engines[0].unreachable = Some("the connection is refused".into());
    is(&facts, Broken, "worker_down", "health.path");
    assert!(only(&facts).what.contains("the connection is refused"));
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
    // Without a router: what is written counts, and where nothing is, one is what a router takes.
    facts.router = None;
    facts.engines[0].routed = None;
    is(&facts, Missing, "ranks_behind_one_url", "write `dp_size = 4` in its [[workers]]");
    facts.engines[0].written = written(None);
    is(&facts, Broken, "ranks_behind_one_url", "write `dp_size = 4` in its [[workers]]");
    facts.engines[0].written.as_mut().unwrap().dp_size = Some(4);
    assert_eq!(judge(&facts), []);
    // Where nothing is written, a router learns as many as the engine surely has.
    for written in [None, Some(Written::default())] {
        facts.engines[0].written = written;
        facts.engines[0].ranks_told = true;
        assert_eq!(judge(&facts), []);
        facts.engines[0].ranks_told = false;
        assert_eq!(only(&facts).code, "ranks_behind_one_url");
    }
    facts.engines[0].ranks_told = true;
    let listens = Written {
        kv_events: Some("tcp://*:6001".to_owned()),
        kv_replay: Some(REPLAY.to_owned()),
        dp_size: None,
    };
    facts.engines[0].written = Some(listens);
    is(&facts, Broken, "ranks_behind_one_url", "write `dp_size = 4` in its [[workers]]");
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
    // Its events are refused, and so none of its blocks is known.
    let routed = facts.engines[1].routed.as_mut().unwrap();
    (routed.refused, routed.cached_blocks, routed.active_requests) = (5.0, 0, 1);
    is(&facts, Broken, "block_size_mismatch", "start it with --block-size 16, as gpu-a");
    // It is the other way round where those of the first are refused.
    let routed = facts.engines[0].routed.as_mut().unwrap();
    (routed.refused, routed.cached_blocks) = (5.0, 0);
    let routed = facts.engines[1].routed.as_mut().unwrap();
    (routed.refused, routed.cached_blocks) = (0.0, 9);
    facts.engines.truncate(2);
    is(&facts, Broken, "block_size_mismatch", "start it with --block-size 32, as gpu-b");
    assert_eq!(only(&facts).about, "gpu-a");
    // Those of the right size may be refused for something else.
    facts.engines[0].block_size = Some(32);
    is(&facts, Broken, "events_refused", "dp_size");
}

#[test]
fn a_model_without_its_tokenizer() {
    let mut facts = Facts { models: Some(vec![]), ..well() };
    is(&facts, Missing, "tokenizer_missing", "[[models]] with name = \"m\"");
    let model = |name: &str, tokenizer| Model { name: name.into(), at: 1, tokenizer };
    facts.models = Some(vec![model("m", Tokenizer::Missing)]);
    is(&facts, Missing, "tokenizer_missing", "tokenizer = \"FOLDER\"");
    assert!(!only(&facts).mend.contains("engine\""));
    facts.engines[0].tokenizes = true;
    is(&facts, Missing, "tokenizer_missing", "tokenizer = \"engine\"");
    facts.models = Some(vec![model("m", Tokenizer::Engine)]);
    assert!(judge(&facts).is_empty());
    facts.engines[0].tokenizes = false;
    facts.models = Some(vec![model("m", Tokenizer::Broken("no such folder".into()))]);
    is(&facts, Broken, "tokenizer_broken", "tokenizer.json");
    facts.models = Some(vec![model("m", Tokenizer::Loaded), model("n", Tokenizer::Loaded)]);
    is(&facts, Missing, "model_name_mismatch", "one of their names: m");
    assert_eq!(only(&facts).about, "models[1]");
    // A wrong name is one mistake, however many engines serve the right one.
    facts.models = Some(vec![model("n", Tokenizer::Loaded)]);
    facts.engines.push(Engine { name: "gpu-b".into(), ..engine() });
    is(&facts, Missing, "model_name_mismatch", "one of their names: m");
    assert!(only(&facts).what.contains("`n`"));
    // Two names are missing, and one can be corrected.
    facts.engines.truncate(1);
    facts.engines[0].models.push("o".into());
    let codes: Vec<_> = judge(&facts).iter().map(|f| f.code).collect();
    assert_eq!(codes, ["model_name_mismatch", "tokenizer_missing", "tokenizer_missing"]);
    facts.engines[0].models.pop();
    // One finding a model.
    facts.models = Some(vec![]);
    facts.engines.extend((0..9).map(|n| Engine { name: format!("gpu-{n}"), ..engine() }));
    assert!(only(&facts).what.ends_with("gpu-a, gpu-0, gpu-1, gpu-2 and 6 more serve"));
    facts.engines.truncate(1);
    // Where an engine can't be asked, its name is not known; the one that fits nobody is named.
    let mut unsure =
        Facts { router: None, models: Some(vec![model("n", Tokenizer::Loaded)]), ..facts.clone() };
    unsure.engines.push(Engine { unreachable: Some("no".into()), ..Engine::default() });
    let findings = judge(&unsure);
    let found = findings.iter().find(|f| f.code == "tokenizer_missing").unwrap();
    assert!(
        found.mend.contains("if models[1] is to be that") && found.mend.contains("`n`"),
        "{found}"
    );
    facts.models = Some(vec![model("m", Tokenizer::Loaded), model("n", Tokenizer::Loaded)]);
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
    is(&with(Tokens::NotTheirs("404".into())), Missing, "tokenize_unanswered", "be the folder");
    assert!(judge(&with(Tokens::Theirs)).is_empty());
    is(&with(Tokens::Unknown("404".into())), Note, "tokens_unknown", "cached_tokens");
}

#[test]
fn the_worst_comes_first_and_notes_alone_are_no_fault() {
    let facts = with_routed(|routed| {
        routed.failed_replays = 1.0;
        routed.refused = 1.0;
    });
    let facts = Facts { turned_off: TurnedOff { source: false, verify: true }, ..facts };
    let findings = judge(&facts);
    let seen: Vec<_> = findings.iter().map(|f| f.severity).collect();
    assert_eq!(seen, [Broken, Missing, Note]);
    assert!(is_wrong(&findings) && is_wrong(&findings[1..2]));
    assert!(!is_wrong(&findings[2..]) && !is_wrong(&[]));
    let json = findings[0].json();
    assert_eq!((&json["severity"], &json["code"]), (&"broken".into(), &"events_refused".into()));
}
