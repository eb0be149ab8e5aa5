//! The typed settings: what the rest of the program sees.
//!
//! Plain data with public fields, grouped as in the file. Everything is checked: a value here is
//! within the bounds that the key table states. Enumerations are this module's own, so that
//! the core's types may change without the file format changing.

use super::discovery::DiscoveryEtcd;
use super::kubernetes::DiscoveryKubernetes;
use super::policies::CustomPolicy;
use super::replication::Replication;
use super::tenant::{Limits, Tenant};
use super::tokenizer::Tokenizer;
use super::transport::{GatewayTls, Listen, Upstream};
use super::{Effective, WorkerUrl};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Declares an enumeration together with the words that stand for it in the file.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl $name {
            /// The words of the file, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The variant of a word of the file.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The word of the file.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(super) use words;

words! {
    /// How firmly a session holds on to its worker (rule R06).
    AffinityMode {
        /// The session's turns go to its worker, or by the rules of R07.
        Hard = "hard",
        /// The session's worker is a preference.
        Soft = "soft",
    }
}

words! {
    /// What a Soft session does while its worker can be used (rule R06).
    Soft {
        /// It stays.
        Keep = "keep",
        /// It moves where moving is cheaper.
        Weigh = "weigh",
    }
}

words! {
    /// What happens to a Hard session whose worker is Down but still known (rule R07).
    OnDown {
        /// As if the worker had departed: the session moves and binds where it runs.
        Rebind = "rebind",
        /// 503 until the worker is back or gone; the binding is kept.
        Reject = "reject",
    }
}

words! {
    /// What happens to a new session at a full table (rule R15).
    OnFull {
        /// It is routed without a binding.
        RouteUnbound = "route_unbound",
        /// It takes the place of the longest-idle binding that has no lease.
        EvictIdle = "evict_idle",
    }
}

words! {
    /// What a Hard session's request does while its worker is overloaded, or itself answers 429
    /// or 503 (rule R07).
    OnOverload {
        /// It is served elsewhere and the binding is kept; the third such turn in a row re-binds.
        Spill = "spill",
        /// 429, or the worker's own answer; the binding is kept.
        Reject = "reject",
        /// It is queued for its worker until its deadline.
        Wait = "wait",
        /// The verdict is ignored.
        Dispatch = "dispatch",
    }
}

words! {
    /// What happens to a Hard session whose live worker just failed this request (rule R07).
    OnFailure {
        /// It moves, and binds where it runs.
        Rebind = "rebind",
        /// 503; the binding is kept.
        Reject = "reject",
    }
}

words! {
    /// How refusals of a live Hard binding are told to the client (rule R07).
    RejectAs {
        /// Each cause has its status and code.
        ByCause = "by_cause",
        /// All are 400 `affinity_conflict`, the cause in the message.
        InvalidArgument = "invalid_argument",
    }
}

words! {
    /// How a request with a parent session binds (rule R18).
    Subagents {
        /// Alone, by its own id.
        Own = "own",
        /// With its siblings: all children of one parent share a binding.
        Group = "group",
    }
}

words! {
    /// How a worker is chosen among the eligible ones.
    Policy {
        /// By what is cached where, and by load.
        Kv = "kv",
        /// By how long it will take, and how long that makes others wait.
        Latency = "latency",
        /// By load alone.
        LeastLoaded = "least_loaded",
        /// The less loaded of two that are drawn.
        PowerOfTwo = "power_of_two",
        /// In turn.
        RoundRobin = "round_robin",
        /// By a draw.
        Random = "random",
    }
}

words! {
    /// What fills the prefix index.
    IndexSource {
        /// A worker's KV events where it publishes them; else what was sent to it, as text.
        Auto = "auto",
        /// KV events; a worker that publishes none is reported, and nothing is known of its cache.
        Events = "events",
        /// What was sent to each worker, as text; no feed is opened.
        Approximate = "approximate",
        /// Nothing; no feed is opened.
        Off = "off",
    }
}

words! {
    /// How predictions are held against what engines report.
    Verify {
        /// By the usage that a client's own request makes the engine send.
        Usage = "usage",
        /// The same, and streams are asked for their usage on the client's behalf.
        InjectUsage = "inject_usage",
        /// Not at all.
        Off = "off",
    }
}

words! {
    /// The form of log lines.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

words! {
    /// Who may say in headers where a request goes, and before whom.
    Steering {
        /// Everybody.
        All = "all",
        /// Tenants that are marked so.
        Trusted = "trusted",
        /// Nobody.
        Off = "off",
    }
}

words! {
    /// What answers tell of the router's decision.
    ResponseHeaders {
        /// All of it, unless there are tenants.
        Auto = "auto",
        /// The worker and what it had cached, too.
        Full = "full",
        /// What is the client's own business.
        Minimal = "minimal",
    }
}

words! {
    /// Where workers come from besides the configuration.
    Discovery {
        /// From nowhere.
        Static = "static",
        /// A file of their own.
        File = "file",
        /// Where they register under leases.
        Etcd = "etcd",
        /// As a cluster lists them.
        Kubernetes = "kubernetes",
    }
}

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The clients' side.
    pub gateway: Gateway,
    /// The operators' side.
    pub admin: Admin,
    /// Connections to workers, where they have no words of their own.
    pub upstream: Upstream,
    /// Probing of workers.
    pub health: Health,
    /// Retries.
    pub retry: Retry,
    /// The admission queue of each partition.
    pub queue: Queue,
    /// The overload detector.
    pub overload: Overload,
    /// Sessions.
    pub affinity: Affinity,
    /// The choice of a worker.
    pub routing: Routing,
    /// The prefix index.
    pub index: Index,
    /// Logs.
    pub log: Log,
    /// What each tenant may do that has no word of its own on it.
    pub limits: Limits,
    /// Tenants of which something is said; names are unique.
    pub tenants: Vec<Tenant>,
    /// What the fleet doesn't say of its models by itself; names are unique.
    pub models: Vec<Model>,
    /// What is shared with other routers, where something is.
    pub replication: Option<Replication>,
    /// The file of workers, where there is one.
    pub workers_file: Option<PathBuf>,
    /// Where workers register under leases, where they do.
    pub etcd: Option<DiscoveryEtcd>,
    /// Where a cluster lists them, where one does.
    pub kubernetes: Option<DiscoveryKubernetes>,
    /// The workers of static discovery; ids are unique.
    pub workers: Vec<Worker>,
    pub(super) effective: Vec<Effective>,
}

/// `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Where clients connect. Default 127.0.0.1:8080; port 0 takes a free one.
    pub listen: Listen,
    /// TLS in front. Default none.
    pub tls: Option<GatewayTls>,
    /// A file of API keys. Default none: clients need none.
    pub api_keys_file: Option<PathBuf>,
    /// The header that names the tenant, taken from `trusted_proxies` only. Default none.
    pub tenant_header: Option<http::HeaderName>,
    /// Whose word on tenants and clients' addresses is believed. Default nobody's.
    pub trusted_proxies: Vec<IpNet>,
    /// Who may name workers, labels and priority. Default all.
    pub steering: Steering,
    /// What answers tell. Default auto.
    pub response_headers: ResponseHeaders,
    /// Bytes of request bodies that are held at once. Default 1 GiB.
    pub body_memory: usize,
    /// More paths that are passed through. Default none.
    pub pass_through: Vec<String>,
    /// Largest request body, in bytes; a larger one is 413. Default 32 MiB.
    pub max_body: usize,
    /// A file for a trace of the requests. Default none.
    pub record: Option<PathBuf>,
    /// Whether `listen` may be off loopback although nothing authenticates clients. Default false.
    pub open: bool,
    /// A request's whole time from its head to the end of its stream; then 504. Default 30 min.
    pub request_timeout: Duration,
    /// From the stop signal on: unready but still serving. Default 5 s.
    pub shutdown_delay: Duration,
    /// After the delay: how long running streams may take to finish. Default 10 min.
    pub shutdown_grace: Duration,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where metrics, health and the admin API are served. Default 127.0.0.1:9464.
    pub listen: SocketAddr,
    /// A file of tokens. Default none; required off loopback.
    pub token_file: Option<PathBuf>,
}

/// `[health]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Between two probes of a worker. Default 5 s.
    pub interval: Duration,
    /// For a probe to be answered. Default 2 s.
    pub timeout: Duration,
    /// So many failed probes in a row mark a worker Down. Default 3.
    pub failures: u32,
    /// So many good probes in a row bring a worker back. Default 1.
    pub successes: u32,
    /// What is asked for, behind the worker's base path. Default `/health`.
    pub path: String,
}

/// `[retry]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// How often a request that has not begun to be answered is tried again elsewhere. Default 1.
    pub attempts: u32,
    /// Retries as a share of the requests of the last 10 s. Default 0.1.
    pub budget: f64,
    /// Whether a stream that breaks off goes on at another worker. Default false.
    pub resume: bool,
}

/// `[queue]`: per partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Most requests that wait. 0: only requests with an explicit target, and Hard sessions under
    /// [`OnOverload::Wait`], wait; at most 1,024 of them. Default 0.
    pub max_requests: usize,
    /// Longest wait; then 504. Default 30 s.
    pub max_wait: Duration,
    /// A target is busy from so many active requests on; `None`: never. Default 0, never.
    pub busy_active_requests: Option<u32>,
    /// And from so many prompt tokens on that it has to compute; `None`: never. Default 0, never.
    pub busy_prefill_tokens: Option<u64>,
}

/// `[overload]`: when a worker counts as overloaded. Any of the three rules is enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Overload {
    /// From so many active requests on, the mean of its ranks; `None`: off. Default 0, off.
    pub active_requests: Option<u32>,
    /// From this share of its KV memory on; 0: off. Default 0.
    pub kv_usage: f64,
    /// Above so many times the pool's mean, beyond a gap; 0: off. Default 0.
    pub factor: f64,
    /// No longer at this share of a bound, or below. Default 0.8.
    pub recover: f64,
}

/// `[affinity]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Idle time-to-live of a binding; `None` makes session ids passive. Default 30 min.
    pub ttl: Option<Duration>,
    /// The prefill pool's own, which may be on while `ttl` is off: `None` is as `ttl`,
    /// `Some(None)` is off. Default `None`.
    pub prefill_ttl: Option<Option<Duration>>,
    /// The mode of sessions that a header names. Default hard.
    pub mode: AffinityMode,
    /// What Soft sessions do while they could stay. Default keep.
    pub soft: Soft,
    /// Most bindings of a partition. Default 1,000,000.
    pub max_sessions: usize,
    /// What a new session does at a full table. Default route_unbound.
    pub on_full: OnFull,
    /// What a Hard session does whose worker is overloaded. Default spill.
    pub on_overload: OnOverload,
    /// What a Hard session does whose live worker just failed it. Default rebind.
    pub on_failure: OnFailure,
    /// What a Hard session does whose worker is Down. Default rebind.
    pub on_down: OnDown,
    /// How refusals of a Hard session are told. Default by_cause.
    pub reject_as: RejectAs,
    /// How a request with a parent session binds. Default own.
    pub subagents: Subagents,
    /// Most requests at a time of one session, at most 60,000; 0: no bound. Default 32.
    pub max_parallel: u32,
    /// Whether clients that send no id get a session by how their conversation begins (rule R27
    /// bounds what one opener can hold). Default false.
    pub infer: bool,
    /// Headers that may name a session, in order of precedence, lower case, without repeats.
    pub headers: Vec<String>,
    /// Dotted fields of the body that may name a session, in order, asked after the headers.
    pub body_fields: Vec<String>,
    /// The mode of sessions that a body field names. Default soft.
    pub body_mode: AffinityMode,
    /// A file that keeps bindings across restarts. Default none.
    pub snapshot: Option<PathBuf>,
    /// A file with the 32 bytes that key the session digests; unread here. Default none.
    pub key_file: Option<PathBuf>,
}

/// `[routing]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// How a worker is chosen. Default latency.
    pub policy: Policy,
    /// What the program brings along in its place.
    pub custom: Option<CustomPolicy>,
}

/// `[index]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// What fills the prefix index. Default auto.
    pub source: IndexSource,
    /// Bytes that the index of all models may take. Default 2 GiB.
    pub memory: usize,
    /// How its predictions are held against what engines report. Default usage.
    pub verify: Verify,
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The form of log lines. Default text.
    pub format: LogFormat,
    /// Whether each request gets a line. Default true.
    pub access: bool,
}

/// One `[[models]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The name under which the engines serve it.
    pub name: String,
    /// Other names for it. Default none.
    pub aliases: Vec<String>,
    /// Where the tokens of its prompts come from. `None`: from nowhere, they are compared by text.
    pub tokenizer: Option<Tokenizer>,
    /// What the chat template gets besides the request, as the engine was started. Default empty.
    pub chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
}

/// One `[[workers]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its name in headers, the admin API and metrics. Default `host:port`.
    pub id: String,
    /// Where it is.
    pub url: WorkerUrl,
    /// Data-parallel ranks behind the URL, 1 to 4,096. `None` (0 in the file, the default): what the
    /// engine says, or 1.
    pub dp_size: Option<u16>,
    /// The ZMQ endpoint of its KV events, where we listen if it is every address of ours; `None`: the
    /// engine is asked.
    pub kv_events: Option<String>,
    /// The ZMQ endpoint of its replay socket; `None`: what the engine says where it is asked.
    pub kv_replay: Option<String>,
    /// Labels, for requests that require some. Default none.
    pub labels: BTreeMap<String, String>,
    /// How it is reached: its own words, and `[upstream]` where it has none.
    pub upstream: Arc<Upstream>,
    /// Which registration it is, where its discovery counts them: another one is another life. 0: it doesn't.
    pub generation: u64,
}
