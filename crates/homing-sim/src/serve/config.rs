//! What can be set about a mock.

use super::faults::Faults;
use super::groups::Groups;
use crate::engine::EngineConfig;
use homing_wire::kv_events::{Hashes, Layout};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// A mock engine's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MockConfig {
    /// Where to serve HTTP; port 0: a free one.
    pub listen: SocketAddr,
    /// The served model's name.
    pub model: String,
    /// A folder with `tokenizer.json` and `chat_template.jinja`; `None`: the project's own.
    pub tokenizer: Option<PathBuf>,
    /// The engine model. Give each mock of a fleet another `cache.seed`.
    pub engine: EngineConfig,
    /// Data-parallel ranks, each with a batch, a cache and a feed of its own; at least 1.
    pub dp_size: u16,
    /// How much faster than real time the engine is; above 0.
    pub speedup: f64,
    /// Like an engine started without extra flags: no KV events, no cached tokens in `usage`.
    pub stock: bool,
    /// Where to publish KV events; port 0: a free one. Rank N's is N ports above.
    pub kv_endpoint: String,
    /// Connect to that endpoint, as vLLM does where it names one address, instead of listening there.
    pub kv_connects: bool,
    /// Their topic.
    pub kv_topic: String,
    /// Where to answer requests for a replay of KV events; port 0: a free one. `None`: nowhere. Rank N's is N
    /// ports above.
    pub kv_replay: Option<String>,
    /// Batches of KV events that are kept for it.
    pub kv_buffer: usize,
    /// Of so many batches one is lost on its way to subscribers, and kept; 0: none is.
    pub kv_drop_every: u64,
    /// The engine version whose events they are.
    pub kv_layout: &'static Layout,
    /// How they write block hashes.
    pub kv_hashes: Hashes,
    /// Which groups they are about.
    pub kv_groups: Groups,
    /// What it does wrong.
    pub faults: Faults,
    /// The key that `/v1/..` asks for, as vLLM's `--api-key` does; `None`: none.
    pub api_key: Option<String>,
    /// The largest request body in bytes; beyond it: 413.
    pub max_body: usize,
    /// Connections at once; further ones wait to be accepted.
    pub max_connections: usize,
}

impl Default for MockConfig {
    /// The default engine at its own speed on free loopback ports. The buffer is vLLM's; the body limit is the gateway's; 4,096
    /// connections are as many as the engine takes requests by default.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "homing-mock".into(),
            tokenizer: None,
            engine: EngineConfig::default(),
            dp_size: 1,
            speedup: 1.0,
            stock: false,
            kv_endpoint: "tcp://127.0.0.1:0".into(),
            kv_connects: false,
            kv_topic: "kv-events".into(),
            kv_replay: Some("tcp://127.0.0.1:0".into()),
            kv_buffer: 10_000,
            kv_drop_every: 0,
            kv_layout: Layout::latest(),
            kv_hashes: Hashes::Int,
            kv_groups: Groups::Single,
            faults: Faults::default(),
            api_key: None,
            max_body: 32 << 20,
            max_connections: 4096,
        }
    }
}
