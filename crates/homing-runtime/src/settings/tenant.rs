//! Tenants, and whom the gateway believes: `[limits]`, `[[tenants]]`, and their keys in `[gateway]`.

use super::convert::{conflict, invalid};
use super::problem::{Origin, Problem, Problems};
use super::raw::Group;
use super::worker::{missing, twice};
use http::HeaderName;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// `[limits]`: of one tenant; `None`: no limit, the default of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests at a time.
    pub concurrency: Option<u32>,
    /// Requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, prompts and answers.
    pub tokens_per_minute: Option<u32>,
    /// Sessions that are bound.
    pub max_sessions: Option<u32>,
}

/// One `[[tenants]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// What its keys call it.
    pub name: String,
    /// The models that it may use; `*` at the end stands for anything. Default all.
    pub models: Vec<String>,
    /// It may steer where only some may. Default false.
    pub steer: bool,
    /// The highest priority that it may ask for. Default 0.
    pub max_priority: i32,
    /// Its limits, those of `[limits]` where it has none of its own.
    pub limits: Limits,
}

/// Paths that mean something here already.
const OURS: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/models",
    "/health",
    "/livez",
    "/readyz",
];

/// A limit of the file, where 0 is none.
fn limit(value: u32) -> Option<u32> {
    Some(value).filter(|n| *n > 0)
}

/// `[limits]`.
pub(super) fn limits(top: &Group) -> Result<Limits, Problem> {
    Ok(Limits {
        concurrency: limit(top.read("limits.concurrency")?),
        requests_per_minute: limit(top.read("limits.requests_per_minute")?),
        tokens_per_minute: limit(top.read("limits.tokens_per_minute")?),
        max_sessions: limit(top.read("limits.max_sessions")?),
    })
}

/// `[[tenants]]`; reports what is wrong with them.
pub(super) fn tenants(
    groups: &[Group],
    top: &Group,
    problems: &mut Problems,
) -> Result<Vec<Tenant>, Problem> {
    let common = limits(top)?;
    let mut tenants = Vec::with_capacity(groups.len());
    let mut seen = HashMap::new();
    for group in groups {
        let name: String = group.read("tenants.name")?;
        let models: Vec<String> = group.read("tenants.models")?;
        let own = |path: &'static str, common: Option<u32>| -> Result<Option<u32>, Problem> {
            match group.origin(path) {
                Origin::Default => Ok(common),
                _ => Ok(limit(group.read(path)?)),
            }
        };
        let limits = Limits {
            concurrency: own("tenants.concurrency", common.concurrency)?,
            requests_per_minute: own("tenants.requests_per_minute", common.requests_per_minute)?,
            tokens_per_minute: own("tenants.tokens_per_minute", common.tokens_per_minute)?,
            max_sessions: own("tenants.max_sessions", common.max_sessions)?,
        };
        let (steer, max_priority) =
            (group.read("tenants.steer")?, group.read("tenants.max_priority")?);
        if group.is_unreadable("tenants.name") {
            continue;
        }
        if name.is_empty() {
            let mend = "write the name that its keys have";
            problems.push(missing(group, "tenants.name", mend));
            continue;
        }
        if !is_name(&name) {
            let mend = "write 1 to 64 letters, digits, or any of - _ .";
            problems.push(invalid(group, "tenants.name", "is no name of a tenant", mend));
            continue;
        }
        if let Some(first) = seen.insert(name.clone(), &group.name) {
            problems.push(twice(group, "tenants.name", &name, first, "describe each tenant once"));
            continue;
        }
        tenants.push(Tenant { name, models, steer, max_priority, limits });
    }
    Ok(tenants)
}

/// Longest name of a tenant, in bytes.
const NAME_MAX: usize = 64;

/// Whether a tenant may be called so: it is a part of files, headers and log lines.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits)
}

/// `gateway.tenant_header`.
pub(super) fn header(top: &Group, problems: &mut Problems) -> Result<Option<HeaderName>, Problem> {
    const PATH: &str = "gateway.tenant_header";
    let text: String = top.read(PATH)?;
    if text.is_empty() {
        return Ok(None);
    }
    let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
        let mend = "write the name of a header, e.g. \"x-tenant\"";
        problems.push(invalid(top, PATH, "can't be the name of a header", mend));
        return Ok(None);
    };
    if top.read::<Vec<String>>("gateway.trusted_proxies")?.is_empty() {
        let what = "`gateway.tenant_header` is set, and `gateway.trusted_proxies` is empty: nobody is believed";
        let mend = "list the addresses of the gateway in front in gateway.trusted_proxies";
        problems.push(conflict(top, PATH, what.to_owned(), mend));
    }
    Ok(Some(name))
}

/// `gateway.trusted_proxies`.
pub(super) fn proxies(top: &Group, problems: &mut Problems) -> Result<Vec<IpNet>, Problem> {
    const PATH: &str = "gateway.trusted_proxies";
    let mut nets = Vec::new();
    for text in top.read::<Vec<String>>(PATH)? {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        match net {
            Ok(net) => nets.push(net),
            Err(_) => {
                let what = format!("has \"{text}\", which is no address and no network");
                let mend = "write e.g. \"10.0.0.0/8\" or \"10.1.2.3\"";
                problems.push(invalid(top, PATH, &what, mend));
            }
        }
    }
    Ok(nets)
}

/// `gateway.pass_through`.
pub(super) fn pass_through(top: &Group, problems: &mut Problems) -> Result<Vec<String>, Problem> {
    const PATH: &str = "gateway.pass_through";
    let paths: Vec<String> = top.read(PATH)?;
    for path in &paths {
        let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'?' | b'#' | b'*' | b'%');
        let fits = path.starts_with('/') && path.len() > 1 && path.bytes().all(plain);
        if !fits || path.contains("//") || path.contains("/.") {
            let what = format!("has \"{path}\", which is no path");
            let mend = "write whole paths of printable ASCII, e.g. \"/v1/rerank\"; patterns are not known here";
            problems.push(invalid(top, PATH, &what, mend));
        } else if OURS.iter().any(|ours| path == ours || path.starts_with(&format!("{ours}/"))) {
            let what = format!("has \"{path}\", which is served already");
            problems.push(invalid(top, PATH, &what, "remove it"));
        }
    }
    Ok(paths)
}
