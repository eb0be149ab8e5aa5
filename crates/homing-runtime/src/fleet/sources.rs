//! Finding where a worker's events are: by asking it, in the ways of the engines that there are, until one
//! is answered. vLLM has a page for it; SGLang has a part of one; TensorRT-LLM has no streams, but answers
//! whoever asks for events, and forgets what it has answered: so it is only asked whether it would.

use super::ask::Ask;
use homing_wire::engine::{Kind, KvSource, parse_kv_sources, parse_server_info};

/// Where a rank's events are, and where they are repeated.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) events: String,
    pub(super) replay: Option<String>,
}

/// Where an engine's events are.
#[derive(Debug)]
pub(super) enum Found {
    /// Published over ZMQ.
    Streams {
        /// By rank, as many as the worker is configured to have; at least one has some.
        ranks: Vec<Option<Source>>,
        /// How many ranks the engine has, by what it says.
        said: u32,
    },
    /// To be asked for: [`POLL`].
    Polled,
}

/// Where TensorRT-LLM answers with its events (`POST`).
pub(super) const POLL: &str = "/kv_cache_events";

/// Why no events were found.
#[derive(Debug)]
pub(super) struct Silent {
    pub(super) kind: Kind,
    pub(super) why: String,
    /// As in [`Found::Streams`]; 0: it doesn't say.
    pub(super) said: u32,
}

/// The endpoints of each of so many `ranks`, as the engine names them.
pub(super) async fn find(ask: &Ask, ranks: u16) -> Result<Found, Silent> {
    const VLLM: &str = "/kv_event_sources";
    let silent = |kind, why: String| Silent { kind, why, said: 0 };
    match ask.get(VLLM).await {
        Ok((200, body)) => {
            let sources = parse_kv_sources(&body, ask.host());
            let sources = sources.map_err(|error| silent(Kind::Vllm, error.to_string()))?;
            return choose(Kind::Vllm, sources, 0, ranks);
        }
        Ok((404 | 405, _)) => {}
        Ok((status, _)) => return Err(silent(Kind::Vllm, format!("{VLLM} answers {status}"))),
        Err(failure) => return Err(silent(Kind::Vllm, format!("{VLLM}: {failure:?}"))),
    }
    let mut why =
        format!("it has none of {VLLM} (vLLM), /server_info (SGLang), {POLL} (TensorRT-LLM)");
    // The second name is the older one.
    for path in ["/server_info", "/get_server_info"] {
        let Ok((200, body)) = ask.get(path).await else { continue };
        match parse_server_info(&body, ask.host()) {
            Ok(info) if info.is_sglang => {
                return choose(Kind::Sglang, info.sources, info.dp_size.unwrap_or(0), ranks);
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

/// Of each configured rank the endpoint that can be followed.
fn choose(kind: Kind, sources: Vec<KvSource>, said: u32, ranks: u16) -> Result<Found, Silent> {
    let mut found = vec![None; usize::from(ranks)];
    let mut why = "it publishes no events over ZMQ";
    let said = sources.iter().map(|s| s.rank.saturating_add(1)).fold(said, u32::max);
    for source in sources {
        let Some(place) = usize::try_from(source.rank).ok().and_then(|r| found.get_mut(r)) else {
            continue;
        };
        // Other transports would let a worker name sockets of our own host.
        if source.endpoint.starts_with("tcp://") {
            let replay = source.replay_endpoint.filter(|e| e.starts_with("tcp://"));
            *place = Some(Source { events: source.endpoint, replay });
        } else {
            why = "it publishes its events over something else than tcp";
        }
    }
    if found.iter().any(Option::is_some) {
        Ok(Found::Streams { ranks: found, said })
    } else {
        Err(Silent { kind, why: why.to_owned(), said })
    }
}
