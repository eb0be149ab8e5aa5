//! Finding where a worker's events are: by asking it, in the ways of the engines that there are, until one
//! is answered. vLLM has a page for it; SGLang has a part of one; TensorRT-LLM has no streams, but answers
//! whoever asks for events, and forgets what it has answered: so it is only asked whether it would.

use super::ranks::Said;
use crate::ask::Ask;
use homing_wire::engine::{Kind, KvSource, listed_ranks, parse_kv_sources, parse_server_info};

/// Where an engine's events are.
#[derive(Clone, Debug)]
pub enum Found {
    /// Published over ZMQ.
    Streams {
        /// By whom.
        kind: Kind,
        /// Of each rank that names a tcp endpoint, at least one; in the order of ranks.
        sources: Vec<KvSource>,
        /// How many ranks the engine has, by what it says.
        said: Said,
    },
    /// To be asked for: [`POLL`].
    Polled,
}

/// Where TensorRT-LLM answers with its events (`POST`).
pub const POLL: &str = "/kv_cache_events";

/// Why no events were found.
#[derive(Clone, Debug)]
pub struct Silent {
    /// What engine it seems to be.
    pub kind: Kind,
    /// Why.
    pub why: String,
    /// As in [`Found::Streams`].
    pub said: Said,
}

/// Asks an engine for its events.
///
/// # Errors
/// Where it doesn't say of any, or can't be asked.
pub async fn find(ask: &Ask) -> Result<Found, Silent> {
    const VLLM: &str = "/kv_event_sources";
    let silent = |kind, why: String| Silent { kind, why, said: Said::AtLeast(0) };
    let unheard = |why: String| Silent { kind: Kind::Vllm, why, said: Said::Unheard };
    match ask.get(VLLM).await {
        Ok((200, body)) => {
            let sources = parse_kv_sources(&body, ask.host());
            let sources = sources.map_err(|error| silent(Kind::Vllm, error.to_string()))?;
            return over_tcp(Kind::Vllm, sources, listed_ranks(&body));
        }
        Ok((404 | 405, _)) => {}
        Ok((status, _)) => return Err(unheard(format!("{VLLM} answers {status}"))),
        Err(failure) => return Err(unheard(format!("{VLLM}: {failure:?}"))),
    }
    let mut why =
        format!("it has none of {VLLM} (vLLM), /server_info (SGLang), {POLL} (TensorRT-LLM)");
    // The second name is the older one.
    for path in ["/server_info", "/get_server_info"] {
        let Ok((200, body)) = ask.get(path).await else { continue };
        match parse_server_info(&body, ask.host()) {
            Ok(info) if info.is_sglang => {
                return over_tcp(Kind::Sglang, info.sources, info.dp_size);
            }
            // A page of that name of another engine.
            Ok(_) => {}
            Err(error) => why = error.to_string(),
        }
    }
    // The answer to the wrong method says that there is such a path.
    if let Ok((405, _)) = ask.get(POLL).await {
        return Ok(Found::Polled);
    }
    Err(silent(Kind::Vllm, why))
}

/// The sources that may be followed: other transports would let a worker name sockets of our own host. `ranks`: how
/// many it says that it has.
fn over_tcp(kind: Kind, sources: Vec<KvSource>, ranks: Option<u32>) -> Result<Found, Silent> {
    let named = sources.iter().map(|s| s.rank.saturating_add(1)).fold(0, u32::max);
    let said = match ranks.map(u16::try_from) {
        // One that names sources of more contradicts itself.
        Some(Ok(ranks)) if u32::from(ranks) >= named.max(1) => Said::Exactly(ranks),
        _ => Said::AtLeast(named.max(ranks.unwrap_or(0))),
    };
    let why = match sources.is_empty() {
        true => "it publishes no events over ZMQ",
        false => "it publishes its events over something else than tcp",
    };
    let is_tcp = |endpoint: &str| endpoint.starts_with("tcp://");
    let sources = sources.into_iter().filter(|source| is_tcp(&source.endpoint));
    let sources: Vec<_> = sources
        .map(|mut source| {
            source.replay_endpoint = source.replay_endpoint.filter(|replay| is_tcp(replay));
            source
        })
        .collect();
    if sources.is_empty() {
        Err(Silent { kind, why: why.to_owned(), said })
    } else {
        Ok(Found::Streams { kind, sources, said })
    }
}
