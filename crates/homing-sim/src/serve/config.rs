//! What can be set about a mock.

use crate::engine::EngineConfig;
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
    /// How much faster than real time the engine is; above 0.
    pub speedup: f64,
    /// Like an engine started without extra flags: no KV events, no cached tokens in `usage`.
    pub stock: bool,
    /// Where to publish KV events; port 0: a free one. Always bound, never connected.
    pub kv_endpoint: String,
    /// Their topic.
    pub kv_topic: String,
    /// Where to answer requests for a replay of KV events; port 0: a free one. `None`: nowhere.
    pub kv_replay: Option<String>,
    /// Batches of KV events that are kept for it.
    pub kv_buffer: usize,
    /// Of so many batches one is lost on its way to subscribers, and kept; 0: none is.
    pub kv_drop_every: u64,
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
            speedup: 1.0,
            stock: false,
            kv_endpoint: "tcp://127.0.0.1:0".into(),
            kv_topic: "kv-events".into(),
            kv_replay: Some("tcp://127.0.0.1:0".into()),
            kv_buffer: 10_000,
            kv_drop_every: 0,
            max_body: 32 << 20,
            max_connections: 4096,
        }
    }
}
