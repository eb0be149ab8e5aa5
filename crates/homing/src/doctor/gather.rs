//! The asking: the router's admin API, and each engine directly. It only reads, and costs no engine anything,
//! but for what `--probe` allows. What can't be had stays unknown; nothing here judges.
//!
//! TensorRT-LLM's events are never asked for: who asks takes them away from the router.

mod shared;

pub(super) use shared::configured;

use super::facts::{Engine, Events, Facts, Over, Routed, Router, TurnedOff, Written};
use super::tokens::Tokenizers;
use crate::explain::admin::token;
use bytes::Bytes;
use homing_core::ask::Failure;
use homing_runtime::ask::Ask;
use homing_runtime::fleet::ranks::Said;
use homing_runtime::fleet::sources::{self, Found};
use homing_runtime::settings::WorkerUrl;
use homing_runtime::upstream::{Link, Upstream};
use homing_wire::engine::metrics::Exposition;
use homing_wire::engine::{Kind, parse_models, parse_server_info};
use homing_wire::errors::ApiShape;
use homing_wire::usage::parse_usage;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For a completion of one token: it may wait behind others.
const PATIENCE_PROBE: Duration = Duration::from_secs(30);
/// What an answer to a POST may be.
const MAX_ANSWER: usize = 8 << 20;
/// Engines that are asked at a time.
const AT_ONCE: usize = 32;
/// A prompt of some hundred tokens, so that it has whole blocks.
const PROBE: &str = "The quick brown fox jumps over the lazy dog, and home again. ";
const PROBE_REPEATS: usize = 32;

/// Whom to ask, and how far to go.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The router's admin API.
    pub(super) admin: Option<WorkerUrl>,
    /// Engines whether the router names them or not: those of `--worker`, and those of the configuration.
    pub(super) engines: Vec<Named>,
    /// What the configuration turns off.
    pub(super) turned_off: TurnedOff,
    /// Over what it shares with others, by the configuration.
    pub(super) shared_over: Option<Over>,
    /// Whether completions of one token may be asked for.
    pub(super) probe: bool,
}

/// An engine that is named here.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) link: Arc<Link>,
    /// Its name and what is written of it, where it is from a configuration.
    pub(super) written: Option<(String, Written)>,
}

/// One of `/admin/workers`. Fields that a version doesn't have are as if empty.
#[derive(Debug, Deserialize)]
struct Row {
    id: String,
    url: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    index: String,
    index_error: Option<String>,
    ranks: Option<u32>,
    #[serde(default)]
    cached_blocks: u64,
    #[serde(default)]
    active_requests: u64,
}

/// Asks everybody.
pub(super) async fn gather(wanted: Wanted, tokenizers: Arc<Tokenizers>) -> Facts {
    let upstream = Upstream::fresh();
    let ask = |link: Arc<Link>| Ask { upstream: upstream.clone(), link, timeout: PATIENCE };
    let mut facts =
        Facts { models: tokenizers.models(), turned_off: wanted.turned_off, ..Facts::default() };
    let mut engines: Vec<(Engine, Option<Arc<Link>>)> = Vec::new();
    if let Some(admin) = &wanted.admin {
        let ask = ask(Link::plain(admin.clone()).with_token(token().as_deref()));
        let (router, workers) = router(&ask, wanted.shared_over.as_ref()).await;
        facts.router = Some(router);
        for (url, name, routed) in workers {
            let engine = Engine { name, routed: Some(routed), ..Engine::default() };
            engines.push((engine, url.parse().ok().map(Link::plain)));
        }
    }
    for Named { link, written } in wanted.engines {
        let (name, written) = written.unzip();
        let same = |known: &Arc<Link>| known.url() == link.url();
        match engines.iter_mut().find(|(_, known)| known.as_ref().is_some_and(same)) {
            Some((engine, known)) => {
                engine.written = engine.written.take().or(written);
                // What is written of a worker says how it is reached, too.
                *known = Some(link);
            }
            None => {
                let name = name.unwrap_or_else(|| link.url().to_string());
                engines.push((Engine { name, written, ..Engine::default() }, Some(link)));
            }
        }
    }
    let mut asked = JoinSet::new();
    let places = Arc::new(Semaphore::new(AT_ONCE));
    for (n, (mut engine, link)) in engines.into_iter().enumerate() {
        let Some(link) = link else {
            engine.unreachable = Some("its URL can't be asked from here".to_owned());
            asked.spawn(async move { (n, engine) });
            continue;
        };
        let (ask, tokenizers, places) = (ask(link), tokenizers.clone(), places.clone());
        asked.spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await.ok();
            look_at(&mut engine, &ask, &tokenizers, wanted.probe).await;
            (n, engine)
        });
    }
    let engines: BTreeMap<usize, Engine> = asked.join_all().await.into_iter().collect();
    facts.engines = engines.into_values().collect();
    facts
}

fn words(failure: Failure) -> String {
    match failure {
        Failure::Refused => "the connection is refused".to_owned(),
        Failure::Unreachable => "no answer in time".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The router, and its workers: URL, name and what it says of each.
async fn router(ask: &Ask, shared_over: Option<&Over>) -> (Router, Vec<(String, String, Routed)>) {
    let mut router = Router { url: ask.link.url().to_string(), ..Router::default() };
    let mut workers = match ask.get("/admin/workers").await {
        Ok((200, body)) => match serde_json::from_slice::<Vec<Row>>(&body) {
            Ok(rows) => rows,
            Err(error) => {
                router.unreachable = Some(format!("/admin/workers is not a router's: {error}"));
                return (router, Vec::new());
            }
        },
        Ok((status, _)) => {
            router.unreachable = Some(format!("/admin/workers answers {status}"));
            return (router, Vec::new());
        }
        Err(failure) => {
            router.unreachable = Some(words(failure));
            return (router, Vec::new());
        }
    };
    workers.sort_by(|a, b| a.id.cmp(&b.id));
    readiness(ask, &mut router).await;
    let text = match ask.get("/metrics").await {
        Ok((200, body)) => String::from_utf8_lossy(&body).into_owned(),
        _ => String::new(),
    };
    let metrics = Exposition::parse(&text);
    router.untokenized = metrics.sum("homing_prompts_untokenized_total").unwrap_or(0.0);
    router.dropped = metrics.sum("homing_index_dropped_blocks_total").unwrap_or(0.0);
    router.shared = shared::look_at(ask, &metrics, shared_over).await;
    let of = |worker: &str, name: &str, also: Option<(&str, &str)>| -> f64 {
        let is = |label: (&str, &str), s: &homing_wire::engine::metrics::Sample<'_>| {
            s.label(label.0).as_deref() == Some(label.1)
        };
        let samples = metrics.samples(name);
        samples
            .filter(|s| is(("worker", worker), s) && also.is_none_or(|label| is(label, s)))
            .map(|s| s.value)
            .sum()
    };
    let workers = workers.into_iter().map(|row| {
        let routed = Routed {
            refused: of(&row.id, "homing_kv_events_total", Some(("kind", "refused"))),
            malformed: of(&row.id, "homing_kv_events_total", Some(("kind", "malformed"))),
            lost: of(&row.id, "homing_kv_event_gaps_lost_total", None),
            replays: of(&row.id, "homing_kv_event_replays_total", None),
            failed_replays: of(
                &row.id,
                "homing_kv_event_replays_total",
                Some(("outcome", "failed")),
            ),
            state: row.state,
            index: row.index,
            index_error: row.index_error,
            ranks: row.ranks.unwrap_or(1),
            cached_blocks: row.cached_blocks,
            active_requests: row.active_requests,
        };
        (row.url, row.id, routed)
    });
    let workers = workers.collect();
    (router, workers)
}

async fn readiness(ask: &Ask, router: &mut Router) {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Said {
        error: Message,
        frozen: Vec<String>,
    }
    #[derive(Default, Deserialize)]
    struct Message {
        message: String,
    }
    let Ok((status, body)) = ask.get("/ready").await else { return };
    let said: Said = serde_json::from_slice(&body).unwrap_or_default();
    router.frozen = said.frozen;
    let why = Some(said.error.message).filter(|why| !why.is_empty());
    router.unready =
        (status == 503).then(|| why.unwrap_or_else(|| "it doesn't say why".to_owned()));
}

/// Everything that an engine says.
async fn look_at(engine: &mut Engine, ask: &Ask, tokenizers: &Tokenizers, probe: bool) {
    let served = match ask.get("/v1/models").await {
        Ok((200, body)) => parse_models(&body).unwrap_or_default(),
        Ok((status, _)) => {
            engine.unreachable = Some(format!("/v1/models answers {status}"));
            return;
        }
        Err(failure) => {
            engine.unreachable = Some(words(failure));
            return;
        }
    };
    engine.kind = served.iter().find_map(|model| Kind::from_owner(model.owner.as_deref()?));
    let own = served.into_iter().filter(|model| model.parent.is_none());
    engine.models = own.map(|model| model.id).collect();
    look_at_events(engine, ask).await;
    look_at_cache(engine, ask).await;
    for model in engine.models.clone() {
        let (tokens, answers) = tokenizers.compare(ask, &model).await;
        engine.tokenizes |= answers;
        engine.tokens.extend(tokens.map(|tokens| (model, tokens)));
    }
    if let Some(model) = engine.models.first().filter(|_| probe) {
        let ask = Ask { timeout: PATIENCE_PROBE, ..ask.clone() };
        engine.details = has_details(&ask, model).await;
    }
}

async fn look_at_events(engine: &mut Engine, ask: &Ask) {
    let (kind, said) = match sources::find(ask).await {
        Ok(Found::Streams { kind, sources, said }) => {
            engine.events = Events::Streams {
                replay: match sources.iter().all(|source| source.replay_endpoint.is_some()) {
                    true => sources.first().and_then(|source| source.replay_endpoint.clone()),
                    false => None,
                },
                endpoint: sources.first().map(|s| s.endpoint.clone()).unwrap_or_default(),
                listens: sources.iter().all(|source| source.listens),
            };
            (kind, said)
        }
        Ok(Found::Polled) => {
            engine.events = Events::Polled;
            (Kind::TensorRtLlm, Said::AtLeast(0))
        }
        Err(silent) => {
            engine.events = Events::Off { why: silent.why };
            (silent.kind, silent.said)
        }
    };
    engine.ranks = Some(said.at_least()).filter(|said| *said > 0);
    engine.ranks_told = matches!(said, Said::Exactly(_));
    engine.kind.get_or_insert(kind);
}

/// The size of its blocks, and whether it reuses them.
async fn look_at_cache(engine: &mut Engine, ask: &Ask) {
    if engine.kind == Some(Kind::Sglang) {
        if let Ok((200, body)) = ask.get("/server_info").await
            && let Ok(info) = parse_server_info(&body, ask.host())
        {
            (engine.block_size, engine.prefix_caching) = (info.block_size, info.prefix_caching);
            engine.ranks = engine.ranks.or(info.dp_size);
        }
        return;
    }
    let Ok((200, body)) = ask.get("/metrics").await else { return };
    let text = String::from_utf8_lossy(&body);
    let metrics = Exposition::parse(&text);
    engine.block_size = metrics.cache_config().map(|config| config.block_size);
    let mut config = metrics.samples("vllm:cache_config_info");
    let caching = config.find_map(|sample| sample.label("enable_prefix_caching"));
    engine.prefix_caching = caching.and_then(|on| match on.as_ref() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    });
}

/// Whether usage says what was cached. Engines leave that out where nothing was, so the same prompt is sent
/// twice if need be, for one token each.
async fn has_details(ask: &Ask, model: &str) -> Option<bool> {
    let prompt = PROBE.repeat(PROBE_REPEATS);
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0});
    let body = Bytes::from(body.to_string());
    for _ in 0..2 {
        let (200, answer) = ask.post("/v1/completions", body.clone(), MAX_ANSWER).await.ok()?
        else {
            return None;
        };
        if parse_usage(ApiShape::OpenAi, &answer)?.cached_tokens.is_some() {
            return Some(true);
        }
    }
    Some(false)
}
