//! The table of every documented key: the one place that says what can be configured.
//!
//! Adding a setting means adding a row here and reading it in `convert`; building one that was
//! planned means changing its status. The bounds are generous: they keep out slips (a second
//! written as a day) and values that arithmetic could trip over, not unusual wishes.

use super::keys::{Key, Kind, Section, Shape, Status, Step};
use super::raw::WORKERS_MAX;
use super::replication::{OnStoreFailure, ReplicationBackend, ReplicationMode};
use super::types::{
    AffinityMode, Discovery, IndexSource, LogFormat, OnDown, OnFailure, OnFull, OnOverload, Policy,
    RejectAs, ResponseHeaders, Soft, Steering, Subagents, Verify,
};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A year as humantime reads "1y": 365.25 days.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// Longest path of a file or of a URL, in bytes (Linux' PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;
/// Longest name of a worker, a model or a header, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Most `[[models]]`: each may hold a tokenizer in memory.
const MODELS_MAX: usize = 256;
/// Most `[[tenants]]`: each may be a label of metrics.
const TENANTS_MAX: usize = 10_000;
/// Most headers, body fields and the like: each costs a look at every request.
const SOURCES_MAX: usize = 64;
/// Most requests at a time of one session: a wider bound can't be counted.
const PARALLEL_MAX: u64 = 60_000;

const NAME: Kind = Kind::Text { max: NAME_BYTES_MAX };
const PATH: Kind = Kind::Text { max: PATH_BYTES_MAX };
const LIST: Kind = Kind::List { max: SOURCES_MAX };
const COUNT: Kind = Kind::Int { min: 0, max: 1_000_000_000 };
const FRACTION: Kind = Kind::Float { min: 0.0, max: 1.0 };
/// What bounds a request or a part of one.
const PATIENCE: Kind = span(SECOND, DAY);
/// For a connection to be made.
const CONNECT: Kind = span(Duration::from_millis(10), MINUTE);
/// For an unused one to be kept.
const KEPT: Kind = span(Duration::ZERO, HOUR);
const UNACKNOWLEDGED: Kind = span(SECOND, HOUR);

const fn span(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, off: false, empty: false }
}

const fn words(built: &'static [&'static str], later: &'static [(&'static str, Step)]) -> Kind {
    Kind::Choice { built, later }
}

const fn built(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { path, kind, default, status: Status::Built, doc }
}

/// Planned; only the documented default is accepted, because it says what this build does.
const fn later(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    step: Step,
    doc: &'static str,
) -> Key {
    Key { path, kind, default, status: Status::Only { value: default, step }, doc }
}

const fn one(name: &'static str, doc: &'static str) -> Section {
    Section { name, shape: Shape::One, doc }
}

const fn not_yet(name: &'static str, step: Step, doc: &'static str) -> Section {
    Section { name, shape: Shape::Later(step), doc }
}

/// Every section, in the order of the reference page.
pub const SECTIONS: &[Section] = &[
    one("gateway", "The clients' side."),
    one("gateway.tls", "TLS in front."),
    one("admin", "The operators' side: metrics, health, the admin API."),
    one("upstream", "Connections to workers; for every worker."),
    one("health", "Probing of workers."),
    one("retry", "What happens to a request whose worker fails before it answers."),
    one("queue", "The admission queue of each partition."),
    one("overload", "The overload detector."),
    one("limits", "Limits of each tenant."),
    Section {
        name: "tenants",
        shape: Shape::Many(TENANTS_MAX),
        doc: "What single tenants may do; optional. Those that are not listed have what `[limits]` says, all models, \
              and priority 0.",
    },
    one("affinity", "Sessions: how they are named, and how they hold on to their worker."),
    one("routing", "The choice of a worker."),
    one("index", "The picture of what each worker has cached."),
    one("replication", "Bindings and load shared between routers."),
    one("discovery", "Where workers come from."),
    one("log", "Logs."),
    Section {
        name: "models",
        shape: Shape::Many(MODELS_MAX),
        doc: "What the fleet doesn't say of its models by itself; optional.",
    },
    Section {
        name: "workers",
        shape: Shape::Many(WORKERS_MAX),
        doc: "The workers. `--worker URL` (repeated), or `HOMING_WORKERS` with URLs, comma \
              separated, puts others in their place.",
    },
    not_yet("selection", Step::After, "The selection service."),
    not_yet("ext_proc", Step::After, "The endpoint picker for Envoy."),
];

/// Every key, in the order of the reference page.
#[rustfmt::skip] // a table: a row is a line or three
pub const KEYS: &[Key] = &[
    built("gateway.listen", Kind::Listen { unix: true }, "127.0.0.1:8080",
        "Where clients connect, by HTTP/1.1 or HTTP/2. Port 0 takes a free one. Off loopback only with \
         `gateway.api_keys_file`, a `gateway.tenant_header`, where `gateway.tls.client_ca` asks for certificates, or \
         with `gateway.open`. `unix:/path`: a socket in the file system, for its owner and group."),
    built("gateway.api_keys_file", PATH, "",
        "A file of API keys, a line each: `name:key` or `name:sha256:HEX`. The name is the tenant. Where it is \
         set every request needs one, and none of them reaches a worker. It is read again when it changes."),
    built("gateway.tenant_header", NAME, "",
        "The header that names the tenant, for an authenticating gateway in front; taken only from \
         `trusted_proxies`. Requests without one need a key."),
    built("gateway.trusted_proxies", LIST, "",
        "Addresses or CIDRs of proxies in front, whose `tenant_header` and `x-forwarded-for` are believed."),
    built("gateway.steering", words(Steering::WORDS, &[]), "all",
        "Who may name workers, labels and priority in headers: everybody, tenants with `steer = true`, or nobody. \
         Others are answered 403."),
    built("gateway.response_headers", words(ResponseHeaders::WORDS, &[]), "auto",
        "Whether answers tell the worker and its cached tokens. `auto`: not where tenants exist."),
    built("gateway.max_body", Kind::Size { min: 1 << 10, max: 1 << 30 }, "32MiB",
        "Largest request body; a larger one is 413."),
    built("gateway.body_memory", Kind::Size { min: 1 << 20, max: 1 << 44 }, "1GiB",
        "Memory of all request bodies that are held at once. A request beyond it waits for others to end, as long as \
         it would wait in the queue; then it is 429."),
    built("gateway.record", PATH, "",
        "A file for a trace of the requests: hashes, lengths and times, never text. `homing replay` plays it."),
    built("gateway.pass_through", LIST, "",
        "More paths that are passed through, by load, to a worker of the model that the body or `?model=` names: \
         e.g. `/v1/rerank`. Engines serve dangerous ones on the same port: list what clients may use."),
    built("gateway.open", Kind::Bool, "false",
        "Start although `gateway.listen` is off loopback and nothing authenticates clients."),
    built("gateway.request_timeout", PATIENCE, "30m",
        "A request's whole time, to the end of its stream; then 504."),
    built("gateway.shutdown_delay", span(Duration::ZERO, HOUR), "5s",
        "After the stop signal: `/readyz` is 503, requests are still served."),
    built("gateway.shutdown_grace", span(Duration::ZERO, DAY), "10m",
        "After that: how long running streams may take to finish."),

    built("gateway.tls.cert", PATH, "",
        "The certificate chain, PEM. With it clients connect by TLS alone. The three files are read again when they \
         change."),
    built("gateway.tls.key", PATH, "", "Its key, PEM."),
    built("gateway.tls.client_ca", PATH, "",
        "Whose certificates clients must show, PEM. Empty: they show none."),

    built("admin.listen", Kind::Listen { unix: false }, "127.0.0.1:9464",
        "Where metrics, health and the admin API are served. Off loopback only with `admin.token_file`."),
    built("admin.token_file", PATH, "",
        "A file of tokens, a line each: `operate:TOKEN` or `read:TOKEN`, the latter for what changes nothing; instead \
         of a token its `sha256:HEX`. Where it is set all but `/health` and `/ready` asks for one."),

    built("upstream.api_key_file", PATH, "",
        "A file with the key towards workers; it replaces the clients' own `authorization` and `x-api-key`."),
    built("upstream.ca_file", PATH, "",
        "Whom to believe about the certificates of `https` workers, PEM. Empty: whom the system believes."),
    built("upstream.cert_file", PATH, "", "The certificate shown to `https` workers, PEM."),
    built("upstream.key_file", PATH, "", "Its key, PEM."),
    built("upstream.connect_timeout", CONNECT, "2s",
        "For a connection to a worker to be made, TLS included."),
    built("upstream.first_token_timeout", PATIENCE, "10m",
        "From dispatch to the first byte of the answer's body."),
    built("upstream.idle_timeout", PATIENCE, "5m", "Between two bytes of an answer."),
    built("upstream.pool_idle", KEPT, "3s",
        "How long an unused connection is kept. Below the 5 s after which uvicorn closes it."),
    built("upstream.tcp_user_timeout", UNACKNOWLEDGED, "20s",
        "How long bytes that were sent to a worker may stay unacknowledged (`TCP_USER_TIMEOUT`); then the connection \
         has broken."),

    built("health.interval", span(Duration::from_millis(50), HOUR), "5s",
        "Between two probes of a worker."),
    built("health.timeout", span(Duration::from_millis(10), MINUTE), "2s",
        "For a probe to be answered."),
    built("health.failures", Kind::Int { min: 1, max: 100 }, "3",
        "So many failed probes in a row mark a worker Down. A refused connection does at once."),
    built("health.successes", Kind::Int { min: 1, max: 100 }, "1",
        "So many good probes in a row bring a worker back."),
    built("health.path", PATH, "/health", "What is asked for, behind the worker's base path."),

    built("retry.attempts", Kind::Int { min: 0, max: 10 }, "1",
        "How often a request that no worker has begun to answer is tried again elsewhere."),
    built("retry.budget", FRACTION, "0.1",
        "Retries as a share of the requests of the last 10 s, per model; ten in them are always allowed. One whose \
         connection was refused costs nothing."),
    built("retry.resume", Kind::Bool, "false",
        "Go on in mid-stream at another worker, for chats and completions of which only text has been said; engines must \
         know `continue_final_message` (vLLM, SGLang)."),

    built("queue.max_requests", Kind::Int { min: 0, max: 1_000_000 }, "0",
        "Most requests that wait, per partition. 0: only requests with an explicit target, and \
         Hard sessions under `affinity.on_overload = \"wait\"`, wait; at most 1,024 of them."),
    built("queue.max_wait", span(MS, HOUR), "30s", "Longest wait in the queue; then 504. Who waits for an overloaded home (`on_overload = \"wait\"`) waits as \
         long as its client does."),
    built("queue.busy_active_requests", Kind::Int { min: 0, max: 1_000_000 }, "0",
        "A rank is busy from so many active requests on; 0: never."),
    built("queue.busy_prefill_tokens", COUNT, "0",
        "A rank is busy from so many prompt tokens on that it has to compute; 0: never."),

    built("overload.active_requests", COUNT, "0",
        "A worker is overloaded from so many active requests on, the mean of its ranks; 0: off."),
    built("overload.kv_usage", FRACTION, "0.0",
        "And from this share of its KV memory on, as its engine reports it; 0: off."),
    built("overload.factor", Kind::Float { min: 0.0, max: 1000.0 }, "0.0",
        "And above so many times the active requests of the pool's mean, if it is more than 4 beyond \
         that, too; 0: off."),
    built("overload.recover", FRACTION, "0.8",
        "It is so no longer at this share of the bound that it had reached, or below."),

    built("limits.concurrency", COUNT, "0", "Requests of one tenant at a time; 0: no limit."),
    built("limits.requests_per_minute", COUNT, "0",
        "Requests of one tenant a minute, up to as many at once; 0: no limit."),
    built("limits.tokens_per_minute", COUNT, "0",
        "Tokens of one tenant a minute, prompts and answers: a request is refused while what the last ones took \
         is not paid off; 0: no limit."),
    built("limits.max_sessions", COUNT, "0",
        "Sessions of one tenant that are bound, per partition; further ones are routed without a binding. 0: no limit."),

    built("tenants.name", NAME, "", "As its keys, or `gateway.tenant_header`, call it. Required."),
    built("tenants.models", LIST, "*",
        "The models that it may use, by the names in requests; `*` at the end stands for anything."),
    built("tenants.steer", Kind::Bool, "false",
        "It may name workers, labels and priority where `gateway.steering` is `trusted`."),
    built("tenants.max_priority", Kind::Int { min: 0, max: 1_000_000 }, "0",
        "The highest priority that it may ask for; higher ones count as this."),
    built("tenants.concurrency", COUNT, "0", "Its own value of the key of `[limits]`, which holds where it isn't set."),
    built("tenants.requests_per_minute", COUNT, "0", "Likewise."),
    built("tenants.tokens_per_minute", COUNT, "0", "Likewise."),
    built("tenants.max_sessions", COUNT, "0", "Likewise."),

    built("affinity.ttl", Kind::Duration { min: SECOND, max: YEAR, off: true, empty: false }, "30m",
        "Idle time-to-live of a binding. `off` makes session ids passive: recorded, without effect."),
    built("affinity.prefill_ttl",
        Kind::Duration { min: SECOND, max: YEAR, off: true, empty: true }, "",
        "The prefill pool's own time-to-live; empty: as `affinity.ttl`. Prefill workers themselves \
         can't be configured yet."),
    built("affinity.mode", words(AffinityMode::WORDS, &[]), "hard",
        "Whether a session's worker is a rule or a preference. A request may choose its own by \
         `x-homing-affinity`."),
    built("affinity.soft", words(Soft::WORDS, &[]), "keep",
        "What a preference means: kept while the worker is eligible, or weighed: the session moves \
         where that is cheaper by the policy's costs, by more than moving back and forth would win."),
    built("affinity.max_sessions", Kind::Int { min: 1, max: 100_000_000 }, "1000000",
        "Most bindings of a partition."),
    built("affinity.on_full", words(OnFull::WORDS, &[]), "route_unbound",
        "A new session at a full table: routed without a binding, or bound in the place of the \
         longest-idle one."),
    built("affinity.on_overload", words(OnOverload::WORDS, &[]), "spill",
        "What a Hard session's request does while its worker is overloaded or answers 429 or 503: \
         runs elsewhere for this turn, is refused, waits for the worker, or goes to it all \
         the same."),
    built("affinity.on_failure", words(OnFailure::WORDS, &[]), "rebind",
        "A Hard session whose live worker just failed this request: moved, or 503 with the binding \
         kept."),
    built("affinity.on_down", words(OnDown::WORDS, &[]), "rebind",
        "A Hard session whose worker is Down but still known: moved, or 503 until it is back."),
    built("affinity.reject_as", words(RejectAs::WORDS, &[]), "by_cause",
        "The codes of refusals of a Hard session: one for each cause, or 400 `affinity_conflict` \
         for all."),
    built("affinity.subagents", words(Subagents::WORDS, &[]), "own",
        "Whether a request with a parent session binds alone, or with its siblings."),
    built("affinity.max_parallel", Kind::Int { min: 0, max: PARALLEL_MAX }, "32",
        "Most requests at a time of one session; further ones are placed as without a session. 0: \
         no bound."),
    built("affinity.infer", Kind::Bool, "false",
        "Whether clients that send no id get a session by how their conversation begins."),
    built("affinity.headers", LIST,
        "x-homing-session-id, x-dynamo-session-affinity-id, x-dynamo-session-id, \
         x-claude-code-session-id, x-session-id, session-id, session_id, x-session-affinity, \
         x-smg-routing-key, x-sgl-routing-key, x-litellm-session-id, x-bf-session-id, \
         x-aibrix-session-key, x-cache-affinity-key, x-multi-turn-session-id, x-grok-conv-id",
        "Headers that may name a session, in order of precedence."),
    built("affinity.body_fields", LIST, "prompt_cache_key, metadata.user_id",
        "Dotted fields of the body that may name a session, asked after the headers, in order. \
         Of Anthropic's `metadata.user_id` it is the session id inside."),
    built("affinity.body_mode", words(AffinityMode::WORDS, &[]), "soft",
        "The mode of sessions that a body field names; one such key may be shared by a whole \
         application."),
    built("affinity.snapshot", PATH, "",
        "A file that keeps bindings across restarts; empty: none."),
    built("affinity.key_file", PATH, "",
        "A file with the 32 bytes that key the session digests. Empty: drawn once and kept in the \
         snapshot; without one, drawn anew at each start."),

    built("routing.policy",
        words(Policy::WORDS, &[]),
        "latency", "How a worker is chosen among the eligible ones."),

    built("index.source", words(IndexSource::WORDS, &[]), "auto",
        "What fills the index. `auto`: a worker's KV events where it publishes them; else what was \
         sent to it, as text (`approximate`: that for every worker, and no feed is opened)."),
    built("index.memory", Kind::Size { min: 1 << 20, max: 1 << 44 }, "2GiB",
        "Memory of the index of all models together; beyond it what nobody asked for of late is \
         dropped, and counted."),
    built("index.verify", words(Verify::WORDS, &[]), "usage",
        "How predicted cached tokens are held against what the engines report. `usage`: by what a \
         client's own request makes its engine send. `inject_usage`: streams whose request says nothing of \
         `stream_options` are asked for their usage too, and their clients get one more chunk."),

    built("replication.backend", words(ReplicationBackend::WORDS, &[]), "none",
        "What routers of one fleet share their sessions over. `nats`: each hears of what the others bind, and of their \
         load; `etcd`: each session is a key there. `affinity.key_file` must be the same at all of them."),
    built("replication.mode", words(ReplicationMode::WORDS, &[]), "advisory",
        "`authoritative`: the first turn of a session is made known in the shared store (etcd, or JetStream's key-value \
         buckets) before its dispatch, so that of first turns at several routers at once all go to one worker. It costs \
         that turn a round trip; later ones none."),
    built("replication.group", NAME, "default",
        "Routers of one group share; 1 to 63 of a-z, 0-9 and -."),
    built("replication.urls", LIST, "",
        "Where the backend is: `nats://host:4222`, `tls://host:4222`; `http://host:2379`, `https://host:2379`."),
    built("replication.user", NAME, "", "Our name there."),
    built("replication.password_file", PATH, "", "A file whose first line is the password."),
    built("replication.ca_file", PATH, "", "Whose certificates are believed besides the system's authorities."),
    built("replication.cert_file", PATH, "", "Our certificate, where the backend wants one."),
    built("replication.key_file", PATH, "", "Its key."),
    built("replication.on_store_failure", words(OnStoreFailure::WORDS, &[]), "local",
        "What first turns do while the shared store can't be reached: go on with what this router knows, or fail with \
         503. Bound sessions go on in any case."),

    built("discovery.backend", words(Discovery::WORDS, &[]), "static",
        "Where workers come from besides `[[workers]]` and `POST /admin/workers`: nowhere, a file, etcd, where they \
         register themselves or `homing register` does it for them, or Kubernetes, where they are pods."),
    built("discovery.path", PATH, "",
        "The file, for `file`: TOML or JSON with the keys of `[[workers]]`. It is looked at every second; a bad one keeps \
         what the last good one said."),
    built("discovery.urls", LIST, "",
        "Where etcd is, for `etcd`, or the API server, for `kubernetes`: `http://host:port` or `https://host:port`; several \
         are tried in turn. Empty for `kubernetes`: that of the cluster in whose pod the router is."),
    built("discovery.group", Kind::Text { max: 63 }, "default",
        "Whose workers they are, for `etcd`: those below `/homing/GROUP/workers/`. `a-z`, `0-9` and `-`."),
    built("discovery.namespace", NAME, "",
        "Of which namespace the pods are, for `kubernetes`. Empty: that of the router's own pod."),
    built("discovery.service", NAME, "",
        "The Service whose endpoints are workers, for `kubernetes`. One of this, `selector` and `inference_pool` is set."),
    built("discovery.selector", Kind::Text { max: 1024 }, "",
        "The label selector whose pods are workers, for `kubernetes`: e.g. `app=vllm,tier!=test`."),
    built("discovery.inference_pool", NAME, "",
        "The InferencePool whose pods are workers, for `kubernetes`, at its target ports."),
    built("discovery.port", Kind::Port, "8000",
        "Where engines listen in their pods, for `kubernetes`; for a Service it may be the name of its port."),
    built("discovery.user", NAME, "", "etcd's user, where it asks for one."),
    built("discovery.password_file", PATH, "", "A file whose first line is the password. It is read for each connection."),
    built("discovery.token_file", PATH, "",
        "A file with the token shown to the API server, for `kubernetes`. It is read for each call. Empty in a pod: that of \
         its service account."),
    built("discovery.ca_file", PATH, "",
        "Whom to believe about the certificate of etcd or the API server, PEM. Empty: whom the system believes; in a pod \
         its cluster's."),
    built("discovery.cert_file", PATH, "", "The certificate shown to etcd or the API server, PEM."),
    built("discovery.key_file", PATH, "", "Its key, PEM."),

    built("log.format", words(LogFormat::WORDS, &[]), "text", "For people, or a JSON object a line."),
    built("log.access", Kind::Bool, "true", "One line a request."),

    built("models.name", NAME, "", "The name as served. Required."),
    built("models.aliases", LIST, "",
        "Other names for it, e.g. `claude-sonnet-4-5` for a client that knows no other: in a request's body the alias is \
         replaced by the name, and nothing else is."),
    built("models.tokenizer", PATH, "",
        "The folder with `tokenizer.json` and the chat template; a relative one starts at the \
         folder that the router is started in. `\"engine\"`: the engines' own `/tokenize` is asked about each \
         prompt (a folder of that name is `\"./engine\"`). Empty: prompts are not \
         tokenized, and compared by their text (see `index.source`)."),
    built("models.chat_template_kwargs", Kind::Json, "",
        "What the engine was started with for its chat template."),

    built("workers.id", NAME, "",
        "Its name in headers, the admin API and metrics: 1 to 128 printable ASCII characters \
         without space and comma. Empty: `host:port` of the URL, or `unix:/path`."),
    built("workers.url", PATH, "",
        "`http://host:port` or `https://host:port`, with a base path if need be; `unix:/path`, a socket in the file \
         system; or `dns://name:port`: every address that the name has, looked up again every few seconds, each a \
         worker of its own with its address behind the id. Required."),
    built("workers.role", words(&["aggregated"],
        &[("prefill", Step::After), ("decode", Step::After)]), "aggregated",
        "What it does."),
    built("workers.dp_size", Kind::Int { min: 0, max: 4096 }, "0",
        "Data-parallel ranks behind the URL. 0: learned from the engine (vLLM's `/kv_event_sources`, SGLang's \
         `/server_info`); 1 where it doesn't say, and where it connects to a port of ours (`kv_events`)."),
    built("workers.kv_events", NAME, "",
        "The ZMQ endpoint of its KV events, `tcp://host:port`; or, where the engine connects (vLLM's \
         endpoint without a wildcard), the port that it connects to, `tcp://*:port`. Empty: the \
         engine is asked."),
    built("workers.kv_replay", NAME, "",
        "The ZMQ endpoint of its replay socket, `tcp://host:port`, which is asked for events that were \
         lost. Empty: the one that the engine names where it is asked for `kv_events`, if any."),
    built("workers.labels", Kind::Labels, "", "Labels, for requests that require some."),
    later("workers.weight", Kind::Float { min: 0.01, max: 100.0 }, "1.0", Step::Choosing,
        "Its capacity against the others'."),
    own("workers.api_key_file", PATH), own("workers.ca_file", PATH),
    own("workers.cert_file", PATH), own("workers.key_file", PATH),
    own("workers.connect_timeout", or_empty(CONNECT)),
    own("workers.first_token_timeout", or_empty(PATIENCE)),
    own("workers.idle_timeout", or_empty(PATIENCE)), own("workers.pool_idle", or_empty(KEPT)),
    own("workers.tcp_user_timeout", or_empty(UNACKNOWLEDGED)),
];

/// A worker's own value of a key of `[upstream]`.
const fn own(path: &'static str, kind: Kind) -> Key {
    built(path, kind, "", "This worker's own value of the key of `[upstream]`.")
}

/// A time that need not be there.
const fn or_empty(kind: Kind) -> Kind {
    match kind {
        Kind::Duration { min, max, off, .. } => Kind::Duration { min, max, off, empty: true },
        other => other,
    }
}
