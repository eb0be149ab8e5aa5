//! SGLang's `/server_info` (`/get_server_info` of old): everything that the server was started with, of which
//! the events are a part. Newer versions describe them under `kv_events`; older ones repeat only the flag
//! (`kv_events_config`, JSON within JSON) beside the sizes, and that says the same.

use super::sources::{is_every_host, is_wildcard, tcp};
use super::{EngineError, KvSource, MAX_RANKS, endpoint_of, reachable_endpoint, read};
use serde::Deserialize;

/// What an SGLang server says of its cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Whether it is an SGLang server at all; other engines have a page of that name too.
    pub is_sglang: bool,
    /// Where its ranks publish, in their order; none where they don't, or not over ZMQ.
    pub sources: Vec<KvSource>,
    /// How many data-parallel ranks it has.
    pub dp_size: Option<u32>,
    /// Tokens per block (SGLang's page).
    pub block_size: Option<u32>,
    /// Whether it keeps prefixes for reuse.
    pub prefix_caching: Option<bool>,
}

#[derive(Deserialize)]
struct Page {
    kv_events: Option<Described>,
    kv_events_config: Option<String>,
    dp_size: Option<u32>,
    page_size: Option<u32>,
    disable_radix_cache: Option<bool>,
}

/// `kv_events`.
#[derive(Deserialize)]
struct Described {
    publisher: Option<String>,
    endpoint_host: Option<String>,
    endpoint_port_base: Option<u16>,
    replay_endpoint_port_base: Option<u16>,
    topic: Option<String>,
    block_size: Option<u32>,
    dp_size: Option<u32>,
}

/// `--kv-events-config`, with SGLang's own defaults.
#[derive(Deserialize)]
struct Flag {
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
}

/// The events of rank 0.
struct First {
    events: String,
    replay: Option<String>,
    listens: bool,
    topic: String,
}

/// Reads `/server_info` of the worker at `host`.
///
/// # Errors
/// Where it is not a JSON object, its fields have other types, or it has ranks beyond [`MAX_RANKS`].
pub fn parse_server_info(body: &[u8], host: &str) -> Result<ServerInfo, EngineError> {
    const PATH: &str = "/server_info";
    let page: Page = read(PATH, body)?;
    let described = page.kv_events.as_ref();
    let dp_size = described.and_then(|d| d.dp_size).or(page.dp_size);
    let block_size = described.and_then(|d| d.block_size).or(page.page_size);
    super::bounded(PATH, dp_size.unwrap_or(1) as usize, MAX_RANKS)?;
    let first = match (&page.kv_events, &page.kv_events_config) {
        (Some(described), _) => described.first(host),
        (None, Some(flag)) => read::<Flag>(PATH, flag.as_bytes())?.first(host),
        (None, None) => None,
    };
    let sources = first.map_or_else(Vec::new, |first| first.ranks(dp_size.unwrap_or(1).max(1)));
    let is_sglang = page.page_size.is_some()
        || page.kv_events.is_some()
        || page.kv_events_config.is_some()
        || page.disable_radix_cache.is_some();
    let prefix_caching = page.disable_radix_cache.map(|off| !off);
    Ok(ServerInfo { is_sglang, sources, dp_size, block_size, prefix_caching })
}

impl Described {
    fn first(&self, host: &str) -> Option<First> {
        if self.publisher.as_deref().is_some_and(|publisher| publisher != "zmq") {
            return None;
        }
        let named = self.endpoint_host.as_deref().filter(|named| !named.is_empty()).unwrap_or("*");
        let listens = is_every_host(named);
        let at = |port: u16| tcp(if listens { host } else { named }, &port.to_string());
        Some(First {
            events: self.endpoint_port_base.filter(|port| *port != 0).map(at)?,
            replay: self.replay_endpoint_port_base.filter(|port| *port != 0).map(at),
            listens,
            topic: self.topic.clone().unwrap_or_default(),
        })
    }
}

impl Flag {
    fn first(self, host: &str) -> Option<First> {
        // Its default is a publisher that publishes nothing.
        if self.publisher.as_deref() != Some("zmq") {
            return None;
        }
        let named = self.endpoint.unwrap_or_else(|| "tcp://*:5557".to_owned());
        Some(First {
            events: reachable_endpoint(&named, host),
            replay: self.replay_endpoint.map(|replay| reachable_endpoint(&replay, host)),
            listens: is_wildcard(&named),
            topic: self.topic.unwrap_or_default(),
        })
    }
}

impl First {
    /// Of each rank that has a port.
    fn ranks(&self, count: u32) -> Vec<KvSource> {
        let source = |rank: u32| {
            let above = u16::try_from(rank).ok()?;
            Some(KvSource {
                rank,
                endpoint: endpoint_of(&self.events, above)?,
                listens: self.listens,
                replay_endpoint: self.replay.as_deref().and_then(|r| endpoint_of(r, above)),
                topic: self.topic.clone(),
            })
        };
        (0..count).map_while(source).collect()
    }
}

#[cfg(test)]
#[path = "server_info_tests.rs"]
mod tests;
