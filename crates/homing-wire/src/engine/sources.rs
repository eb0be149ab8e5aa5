//! Where the ranks of an engine publish, as vLLM's `/kv_event_sources` says, and what the endpoints that
//! engines name mean to somebody elsewhere: an engine speaks of its own addresses, and by their form it
//! says whether it listens there or wants to be listened to.

use super::{EngineError, MAX_RANKS, bounded, read};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// Where one rank of a worker publishes its KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSource {
    /// The data-parallel rank.
    pub rank: u32,
    /// The ZMQ endpoint of the events, with a host that can be connected to.
    pub endpoint: String,
    /// Whether the engine surely listens there: it names every address of its own. One that names a
    /// single address may as well connect to it (vLLM; `wire-formats.md` 1).
    pub listens: bool,
    /// The endpoint that repeats missed ones, if the engine has one.
    pub replay_endpoint: Option<String>,
    /// The topic; often empty.
    pub topic: String,
}

/// Reads `/kv_event_sources` of the worker at `host`, in the order of ranks. Ranks that publish nothing,
/// or not over ZMQ, are left out.
///
/// # Errors
/// Where it is no map of ranks, or one beyond [`MAX_RANKS`].
pub fn parse_kv_sources(body: &[u8], host: &str) -> Result<Vec<KvSource>, EngineError> {
    #[derive(Deserialize)]
    struct Source {
        enable_kv_cache_events: Option<bool>,
        publisher: Option<String>,
        endpoint: Option<String>,
        replay_endpoint: Option<String>,
        topic: Option<String>,
    }
    const PATH: &str = "/kv_event_sources";
    let sources: BTreeMap<u32, Source> = read(PATH, body)?;
    bounded(PATH, sources.len(), MAX_RANKS)?;
    let usable = sources.into_iter().filter_map(|(rank, source)| {
        let off = source.enable_kv_cache_events == Some(false);
        if off || source.publisher.is_some_and(|publisher| publisher != "zmq") {
            return None;
        }
        let named = source.endpoint.filter(|endpoint| !endpoint.is_empty())?;
        let replay = source.replay_endpoint.filter(|endpoint| !endpoint.is_empty());
        Some(KvSource {
            rank,
            endpoint: reachable_endpoint(&named, host),
            listens: is_wildcard(&named),
            replay_endpoint: replay.map(|named| reachable_endpoint(&named, host)),
            topic: source.topic.unwrap_or_default(),
        })
    });
    Ok(usable.collect())
}

/// How many ranks `/kv_event_sources` has, publishing or not: `None` where they are not 0 to N-1, each once; then it
/// may be one of several that share the ranks of an engine.
#[must_use]
pub fn listed_ranks(body: &[u8]) -> Option<u32> {
    let listed: BTreeMap<u32, IgnoredAny> = serde_json::from_slice(body).ok()?;
    let many =
        u32::try_from(listed.len()).ok().filter(|many| (1..=MAX_RANKS as u32).contains(many))?;
    listed.last_key_value().is_some_and(|(last, _)| *last == many - 1).then_some(many)
}

/// `endpoint` as one can connect to it: where an engine says that it listens on every address (`*`,
/// `0.0.0.0`, `::`), its own `host` takes that place.
#[must_use]
pub fn reachable_endpoint(endpoint: &str, host: &str) -> String {
    match endpoint.rsplit_once(':') {
        Some((_, port)) if is_wildcard(endpoint) => tcp(host, port),
        _ => endpoint.to_owned(),
    }
}

/// Whether it is every address of whoever listens there, so that nobody else can connect to it as it is.
#[must_use]
pub fn is_wildcard(endpoint: &str) -> bool {
    let split = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    split.is_some_and(|(host, _)| is_every_host(host))
}

pub(super) fn is_every_host(host: &str) -> bool {
    matches!(host, "*" | "0.0.0.0" | "::" | "[::]")
}

/// The endpoint of a host and its port; an IPv6 address gets its brackets. Who is asked at every address of
/// our own host is on our own host: the endpoint is one to connect to in any case.
pub(super) fn tcp(host: &str, port: &str) -> String {
    match host.trim_start_matches('[').trim_end_matches(']') {
        "*" | "0.0.0.0" => format!("tcp://127.0.0.1:{port}"),
        "::" => format!("tcp://[::1]:{port}"),
        bare if bare.contains(':') => format!("tcp://[{bare}]:{port}"),
        bare => format!("tcp://{bare}:{port}"),
    }
}

/// Where a rank publishes if the first one does at `first`: that many ports above (vLLM's and SGLang's
/// publishers; `wire-formats.md` 1). `None`: there is no such port.
#[must_use]
pub fn endpoint_of(first: &str, rank: u16) -> Option<String> {
    if rank == 0 {
        return Some(first.to_owned());
    }
    let (host, port) = first.strip_prefix("tcp://")?.rsplit_once(':')?;
    let port = port.parse::<u16>().ok()?.checked_add(rank)?;
    Some(format!("tcp://{host}:{port}"))
}
