//! What was found out, before anybody judges it. Plain data: the I/O that fills it is `gather`'s, what it
//! means is `judge`'s. Where something is `None`, nobody could say.

use homing_runtime::settings::ReplicationBackend;
use homing_wire::engine::Kind;

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The router, where one was to be asked.
    pub(super) router: Option<Router>,
    /// Each engine, whether the router knows it or not.
    pub(super) engines: Vec<Engine>,
    /// `[[models]]` of the configuration, where one was given.
    pub(super) models: Option<Vec<Model>>,
    /// What its `[index]` turns off.
    pub(super) turned_off: TurnedOff,
}

/// What a configuration has turned off that would tell more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnedOff {
    /// `index.source = "off"`.
    pub(super) source: bool,
    /// `index.verify = "off"`.
    pub(super) verify: bool,
}

/// What a running router says.
#[derive(Clone, Debug, Default)]
pub(super) struct Router {
    /// Where its admin API is.
    pub(super) url: String,
    /// Why it can't be asked.
    pub(super) unreachable: Option<String>,
    /// Why it takes no requests.
    pub(super) unready: Option<String>,
    /// `homing_prompts_untokenized_total`.
    pub(super) untokenized: f64,
    /// `homing_index_dropped_blocks_total`.
    pub(super) dropped: f64,
    /// Discoveries that can't say who is there, and why.
    pub(super) frozen: Vec<String>,
    /// What it shares with others, where it shares something.
    pub(super) shared: Option<Shared>,
}

/// What a router says of what it shares with others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shared {
    /// Over what, where that is known.
    pub(super) over: Option<Over>,
    /// `homing_replication_up`.
    pub(super) up: bool,
    /// `homing_replication_in_step`.
    pub(super) in_step: bool,
    /// `homing_replication_updates_total{outcome="other_secret"}`.
    pub(super) other_secret: f64,
    /// What `homing_replication_claims_total{outcome="unreachable"}` has grown by while it was looked at.
    pub(super) unreachable: f64,
}

/// `[replication]` of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Over {
    /// `backend`.
    pub(super) backend: ReplicationBackend,
    /// Whether `mode` is authoritative.
    pub(super) claims: bool,
    /// `urls`, without what may be a password.
    pub(super) urls: Vec<String>,
}

/// A worker as the router sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Routed {
    /// `/admin/workers`: the state in one word.
    pub(super) state: String,
    /// How its cache is known, in one word.
    pub(super) index: String,
    /// How many ranks are known.
    pub(super) ranks: u32,
    /// Blocks that are known to be cached.
    pub(super) cached_blocks: u64,
    /// Requests that run.
    pub(super) active_requests: u64,
    /// `homing_kv_events_total{kind="refused"}`.
    pub(super) refused: f64,
    /// `homing_kv_events_total{kind="malformed"}`.
    pub(super) malformed: f64,
    /// `homing_kv_event_gaps_lost_total`.
    pub(super) lost: f64,
    /// `homing_kv_event_replays_total`, however they ended.
    pub(super) replays: f64,
    /// `homing_kv_event_replays_total{outcome="failed"}`.
    pub(super) failed_replays: f64,
    /// `/admin/workers`: why its events can't be followed at all, as where their port is another process's.
    pub(super) index_error: Option<String>,
}

/// What an engine says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    /// The router's name for it, or its URL.
    pub(super) name: String,
    /// Why it can't be asked.
    pub(super) unreachable: Option<String>,
    /// The router's view of it.
    pub(super) routed: Option<Routed>,
    /// Its `[[workers]]` in the file of `--config`, where that has it.
    pub(super) written: Option<Written>,
    /// What it is.
    pub(super) kind: Option<Kind>,
    /// The models that it serves, adapters left out.
    pub(super) models: Vec<String>,
    /// Where its events are.
    pub(super) events: Events,
    /// How many data-parallel ranks it has.
    pub(super) ranks: Option<u32>,
    /// Whether a router learns as much from it.
    pub(super) ranks_told: bool,
    /// Tokens per block.
    pub(super) block_size: Option<u32>,
    /// Whether it keeps prefixes for reuse.
    pub(super) prefix_caching: Option<bool>,
    /// Whether its answers say how much of a prompt was cached.
    pub(super) details: Option<bool>,
    /// Its tokens against ours, a model each.
    pub(super) tokens: Vec<(String, Tokens)>,
    /// Whether its `/tokenize` answers, where that was asked for a model without a tokenizer here.
    pub(super) tokenizes: bool,
}

/// What a configuration says of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// `kv_events`.
    pub(super) kv_events: Option<String>,
    /// `kv_replay`.
    pub(super) kv_replay: Option<String>,
    /// `dp_size`, at least 1; `None`: a router learns it.
    pub(super) dp_size: Option<u32>,
}

/// Where an engine's events are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Events {
    /// Nobody could say.
    #[default]
    Unknown,
    /// Published over ZMQ.
    Streams {
        /// Where the first one is repeated, if each of them is.
        replay: Option<String>,
        /// The endpoint of the first one.
        endpoint: String,
        /// Whether the engine surely listens there; else it may be one that it connects to.
        listens: bool,
    },
    /// Told to whoever asks (TensorRT-LLM).
    Polled,
    /// Not told.
    Off {
        /// Why that is thought.
        why: String,
    },
}

/// How an engine's tokens of a conversation compare with ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tokens {
    /// They are the same.
    Same,
    /// Those of plain text already differ.
    TextDiffers,
    /// Those of plain text are the same, those of a conversation differ.
    ChatDiffers {
        /// From which token on.
        at: usize,
        /// How many are ours.
        ours: usize,
        /// How many are the engine's.
        theirs: usize,
    },
    /// It can't be asked, and why.
    Unknown(String),
    /// There are none of ours: its own count, and it gives them.
    Theirs,
    /// Likewise, and it gives none, and why.
    NotTheirs(String),
}

/// A model of the configuration.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// `models.name`.
    pub(super) name: String,
    /// Its place in the file, from 0.
    pub(super) at: usize,
    /// The state of its tokenizer.
    pub(super) tokenizer: Tokenizer,
}

/// The state of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tokenizer {
    /// None is configured.
    Missing,
    /// It can't be loaded, and why.
    Broken(String),
    /// It is loaded.
    Loaded,
    /// The engines' own is asked.
    Engine,
}
