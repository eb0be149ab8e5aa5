//! The one conversion: from the raw structure to [`Settings`], with what a single key can't check.

use super::problem::{Fault, Problem, Problems};
use super::raw::{Group, POLICY, Raw, is_settable};
use super::replication::{OnStoreFailure, ReplicationBackend, ReplicationMode};
use super::transport::{self, Listen};
use super::types::{
    Admin, Affinity, AffinityMode, Discovery, Gateway, Health, Index, IndexSource, Log, LogFormat,
    OnDown, OnFailure, OnFull, OnOverload, Overload, Policy, Queue, RejectAs, ResponseHeaders,
    Retry, Routing, Settings, Soft, Steering, Subagents, Verify,
};
use super::value::Value;
use super::{Effective, KEYS, Origin, Policies, Status, discovery, replication, tenant, worker};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What a typed setting is made from.
pub(super) trait FromValue: Sized {
    /// `None`: the value is of another kind, which only a slip in the key table can cause.
    fn from_value(value: Value) -> Option<Self>;
}

/// Implements [`FromValue`] for types that one kind of value gives.
macro_rules! from_value {
    ($($type:ty: $pattern:pat => $made:expr,)+) => {
        $(impl FromValue for $type {
            fn from_value(value: Value) -> Option<Self> {
                match value {
                    $pattern => $made,
                    _ => None,
                }
            }
        })+
    };
}

from_value! {
    bool: Value::Bool(yes) => Some(yes),
    u16: Value::Int(number) => number.try_into().ok(),
    i32: Value::Int(number) => number.try_into().ok(),
    u32: Value::Int(number) => number.try_into().ok(),
    u64: Value::Int(number) => Some(number),
    f64: Value::Float(number) => Some(number),
    usize: Value::Int(number) | Value::Size(number) => number.try_into().ok(),
    Duration: Value::Duration(span) => Some(span),
    Listen: Value::Listen(place) => Some(place),
    SocketAddr: Value::Listen(Listen::Tcp(address)) => Some(address),
    String: Value::Text(text) => Some(text),
    Vec<String>: Value::List(items) => Some(items),
    BTreeMap<String, String>: Value::Labels(labels) => Some(labels),
    serde_json::Map<String, serde_json::Value>: Value::Json(map) => Some(map),
    AffinityMode: Value::Word(word) => Self::from_word(word),
    OnFull: Value::Word(word) => Self::from_word(word),
    Soft: Value::Word(word) => Self::from_word(word),
    OnOverload: Value::Word(word) => Self::from_word(word),
    OnFailure: Value::Word(word) => Self::from_word(word),
    OnDown: Value::Word(word) => Self::from_word(word),
    RejectAs: Value::Word(word) => Self::from_word(word),
    Subagents: Value::Word(word) => Self::from_word(word),
    Policy: Value::Word(word) => Self::from_word(word),
    IndexSource: Value::Word(word) => Self::from_word(word),
    LogFormat: Value::Word(word) => Self::from_word(word),
    Verify: Value::Word(word) => Self::from_word(word),
    Steering: Value::Word(word) => Self::from_word(word),
    Discovery: Value::Word(word) => Self::from_word(word),
    ReplicationBackend: Value::Word(word) => Self::from_word(word),
    ReplicationMode: Value::Word(word) => Self::from_word(word),
    OnStoreFailure: Value::Word(word) => Self::from_word(word),
    ResponseHeaders: Value::Word(word) => Self::from_word(word),
}

impl FromValue for Option<Duration> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Duration(span) => Some(Some(span)),
            Value::Off => Some(None),
            _ => None,
        }
    }
}

impl FromValue for Option<Option<Duration>> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Empty => Some(None),
            value => Option::from_value(value).map(Some),
        }
    }
}

impl FromValue for Option<PathBuf> {
    fn from_value(value: Value) -> Option<Self> {
        let path = PathBuf::from(String::from_value(value)?);
        Some(Some(path).filter(|path| !path.as_os_str().is_empty()))
    }
}

/// Converts, and reports what is wrong between and within values.
///
/// # Errors
///
/// Only where the key table and this function disagree.
pub(super) fn convert(
    raw: &Raw,
    policies: &Policies,
    problems: &mut Problems,
) -> Result<Settings, Problem> {
    let top = &raw.top;
    let upstream = transport::upstream(top, problems)?;
    let affinity = affinity(top, problems)?;
    let (workers_file, etcd, kubernetes) = discovery::convert(top, problems)?;
    let settings = Settings {
        replication: replication::replication(top, &affinity, problems)?,
        gateway: gateway(top, problems)?,
        admin: Admin {
            listen: top.read("admin.listen")?,
            token_file: top.read("admin.token_file")?,
        },
        health: Health {
            interval: top.read("health.interval")?,
            timeout: top.read("health.timeout")?,
            failures: top.read("health.failures")?,
            successes: top.read("health.successes")?,
            path: health_path(top, problems)?,
        },
        retry: Retry {
            attempts: top.read("retry.attempts")?,
            budget: top.read("retry.budget")?,
            resume: top.read("retry.resume")?,
        },
        queue: Queue {
            max_requests: top.read("queue.max_requests")?,
            max_wait: top.read("queue.max_wait")?,
            busy_active_requests: Some(top.read("queue.busy_active_requests")?)
                .filter(|bound| *bound > 0),
            busy_prefill_tokens: Some(top.read("queue.busy_prefill_tokens")?)
                .filter(|bound| *bound > 0),
        },
        overload: Overload {
            active_requests: Some(top.read("overload.active_requests")?).filter(|bound| *bound > 0),
            kv_usage: top.read("overload.kv_usage")?,
            factor: top.read("overload.factor")?,
            recover: top.read("overload.recover")?,
        },
        affinity,
        routing: match top.value(POLICY) {
            // Where it is no word of ours, it is one of those.
            Some(Value::Word(name)) if Policy::from_word(name).is_none() => {
                Routing { policy: Policy::Kv, custom: policies.get(name) }
            }
            _ => Routing { policy: top.read(POLICY)?, custom: None },
        },
        index: Index {
            source: top.read("index.source")?,
            memory: top.read("index.memory")?,
            verify: top.read("index.verify")?,
        },
        log: Log { format: top.read("log.format")?, access: top.read("log.access")? },
        limits: tenant::limits(top)?,
        tenants: tenant::tenants(&raw.tenants, top, problems)?,
        models: worker::models(&raw.models, problems)?,
        workers_file,
        etcd,
        kubernetes,
        workers: worker::workers(&raw.workers, &upstream, problems)?,
        upstream,
        effective: effective(raw),
    };
    listeners(&settings, top, problems);
    Ok(settings)
}

fn gateway(top: &Group, problems: &mut Problems) -> Result<Gateway, Problem> {
    Ok(Gateway {
        listen: top.read("gateway.listen")?,
        api_keys_file: top.read("gateway.api_keys_file")?,
        tenant_header: tenant::header(top, problems)?,
        trusted_proxies: tenant::proxies(top, problems)?,
        steering: top.read("gateway.steering")?,
        response_headers: top.read("gateway.response_headers")?,
        body_memory: top.read("gateway.body_memory")?,
        pass_through: tenant::pass_through(top, problems)?,
        tls: transport::tls(top, problems)?,
        max_body: top.read("gateway.max_body")?,
        record: top.read("gateway.record")?,
        open: top.read("gateway.open")?,
        request_timeout: top.read("gateway.request_timeout")?,
        shutdown_delay: top.read("gateway.shutdown_delay")?,
        shutdown_grace: top.read("gateway.shutdown_grace")?,
    })
}

/// The listeners' reach: what is off loopback is reachable by everybody.
fn listeners(settings: &Settings, top: &Group, problems: &mut Problems) {
    let (gateway, admin) = (&settings.gateway, &settings.admin);
    // Who shows a certificate of the right CA has said who it is.
    let authenticates = gateway.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let known = gateway.api_keys_file.is_some() || gateway.tenant_header.is_some();
    let is_closed = gateway.listen.is_local() || authenticates || known;
    if !is_closed && !gateway.open && !top.is_unreadable("gateway.open") {
        problems.push(conflict(
            top,
            "gateway.listen",
            format!(
                "`gateway.listen` = \"{}\" is off loopback, and nothing authenticates clients",
                gateway.listen
            ),
            "listen on 127.0.0.1, set gateway.api_keys_file, ask clients for certificates \
             (gateway.tls.client_ca), or say gateway.open = true if the network itself is trusted",
        ));
    }
    let admin_at = Listen::Tcp(admin.listen);
    if !admin_at.is_local() && admin.token_file.is_none() {
        problems.push(conflict(
            top,
            "admin.listen",
            format!(
                "`admin.listen` = \"{}\" is off loopback, and `admin.token_file` is not set",
                admin.listen
            ),
            "listen on 127.0.0.1, or write a file with `operate:TOKEN` and name it in admin.token_file",
        ));
    }
    if gateway.listen == admin_at && admin.listen.port() != 0 {
        problems.push(conflict(
            top,
            "admin.listen",
            format!("`admin.listen` and `gateway.listen` are both \"{}\"", admin.listen),
            "give them different ports",
        ));
    }
}

pub(super) fn conflict(group: &Group, path: &str, what: String, mend: &str) -> Problem {
    Problem {
        fault: Fault::Conflict,
        key: group.shown(path),
        origin: group.origin(path),
        what,
        mend: mend.to_owned(),
    }
}

/// A problem of one value that its kind can't see.
pub(super) fn invalid(group: &Group, path: &str, what: &str, mend: &str) -> Problem {
    let shown = group.value(path).map_or_else(String::new, |value| value.to_toml());
    let key = group.shown(path);
    Problem {
        fault: Fault::Invalid,
        what: format!("`{key}` = {} {what}", super::problem::echo(&shown)),
        origin: group.origin(path),
        key,
        mend: mend.to_owned(),
    }
}

fn health_path(top: &Group, problems: &mut Problems) -> Result<String, Problem> {
    let path: String = top.read("health.path")?;
    if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        let mend = "write a path of printable ASCII, e.g. \"/health\"";
        problems.push(invalid(top, "health.path", "is not a path", mend));
    }
    Ok(path)
}

fn affinity(top: &Group, problems: &mut Problems) -> Result<Affinity, Problem> {
    let mut headers: Vec<String> = Vec::new();
    for header in top.read::<Vec<String>>("affinity.headers")? {
        match http::HeaderName::from_bytes(header.as_bytes()) {
            Ok(name) if headers.iter().any(|seen| seen == name.as_str()) => {}
            Ok(name) => headers.push(name.as_str().to_owned()),
            Err(_) => {
                let what = format!("has \"{header}\", which can't be a header's name");
                let mend = "write header names, e.g. \"x-session-id\"";
                problems.push(invalid(top, "affinity.headers", &what, mend));
            }
        }
    }
    let body_fields: Vec<String> = top.read("affinity.body_fields")?;
    if let Some(field) = body_fields.iter().find(|field| field.split('.').any(str::is_empty)) {
        let what = format!("has \"{field}\", whose path has an empty step");
        let mend = "write names joined by dots, e.g. \"metadata.user_id\"";
        problems.push(invalid(top, "affinity.body_fields", &what, mend));
    }
    let snapshot: Option<PathBuf> = top.read("affinity.snapshot")?;
    let key_file: Option<PathBuf> = top.read("affinity.key_file")?;
    if let (Some(path), true) = (&snapshot, snapshot == key_file) {
        let what = format!(
            "`affinity.snapshot` and `affinity.key_file` are both \"{}\"",
            super::problem::echo(&path.display().to_string())
        );
        let mend = "give them different files: the snapshot is written over";
        problems.push(conflict(top, "affinity.snapshot", what, mend));
    }
    Ok(Affinity {
        ttl: top.read("affinity.ttl")?,
        prefill_ttl: top.read("affinity.prefill_ttl")?,
        mode: top.read("affinity.mode")?,
        soft: top.read("affinity.soft")?,
        max_sessions: top.read("affinity.max_sessions")?,
        on_full: top.read("affinity.on_full")?,
        on_overload: top.read("affinity.on_overload")?,
        on_failure: top.read("affinity.on_failure")?,
        on_down: top.read("affinity.on_down")?,
        reject_as: top.read("affinity.reject_as")?,
        subagents: top.read("affinity.subagents")?,
        max_parallel: top.read("affinity.max_parallel")?,
        infer: top.read("affinity.infer")?,
        headers,
        body_fields,
        body_mode: top.read("affinity.body_mode")?,
        snapshot,
        key_file,
    })
}

/// Built keys, and what was given of the others, in the order of the table.
fn effective(raw: &Raw) -> Vec<Effective> {
    let mut lines = Vec::new();
    let mut show = |group: &Group, path: &'static str, is_built: bool| {
        let origin = group.origin(path);
        // A worker's own words on its connections are worth a line where there are some.
        let silent = !is_built || super::reference::is_inherited(path);
        if silent && origin == Origin::Default {
            return;
        }
        if let Some(value) = group.value(path) {
            lines.push(Effective { key: group.shown(path), value: value.to_toml(), origin });
        }
    };
    for key in KEYS.iter().filter(|key| is_settable(key)) {
        show(&raw.top, key.path, matches!(key.status, Status::Built));
    }
    let many = [("tenants.", &raw.tenants), ("models.", &raw.models), ("workers.", &raw.workers)];
    for (section, groups) in many {
        for group in groups {
            for key in KEYS.iter().filter(|key| key.path.starts_with(section)) {
                show(group, key.path, matches!(key.status, Status::Built));
            }
        }
    }
    lines
}
