//! Sessions as operators see them: what is bound where. A list shows digests only; one session is asked
//! for by the very id that its client sends.

use super::{Admin, problem};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use homing_core::affinity::table::SessionView;
use homing_core::ids::{PartitionId, Role, SessionKey, WorkerId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sessions in one answer, unless asked otherwise; and at most.
const USUAL: usize = 100;
const MOST: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    limit: Option<usize>,
}

pub(super) async fn list(State(admin): State<Admin>, Query(query): Query<Limit>) -> Json<Value> {
    let (shell, core) = (&admin.shell, admin.shell.core());
    let limit = query.limit.unwrap_or(USUAL).min(MOST);
    let stats: Vec<_> = core.partitions().into_iter().map(|p| p.stats).collect();
    let names = names(&admin);
    let sessions: Vec<_> = core
        .sessions(shell.now(), limit)
        .into_iter()
        .map(|(pool, role, s)| one(&admin, &names, &pool, role, &s))
        .collect();
    Json(json!({
        "count": stats.iter().map(|s| s.bindings).sum::<usize>(),
        "leases": stats.iter().map(|s| s.leases).sum::<usize>(),
        "sessions": sessions,
    }))
}

fn names(admin: &Admin) -> BTreeMap<WorkerId, Arc<str>> {
    let workers = admin.shell.core().workers().into_iter();
    workers.map(|w| (w.info.id, w.info.spec.name.clone())).collect()
}

fn one(
    admin: &Admin,
    names: &BTreeMap<WorkerId, Arc<str>>,
    pool: &str,
    role: Role,
    s: &SessionView,
) -> Value {
    json!({
        "key_digest": admin.shell.secret().digest(s.key).to_string(),
        "partition": format!("{pool}/{role}"),
        // Null: its worker has departed, and its next turn binds it elsewhere.
        "worker": names.get(&s.target.worker).map(|n| &**n),
        "dp_rank": s.target.rank.map(|r| r.0),
        "leases": s.leases,
        "idle_seconds": s.idle.as_secs_f64(),
        "version": s.version.to_string(),
        "final": s.last,
    })
}

/// Whose session it is, where one id may name several.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// The name that its requests use; all that there are, unless given.
    model: Option<String>,
    tenant: Option<String>,
    role: Option<String>,
    /// The id is a parent's, and its group of subagents is meant.
    group: Option<bool>,
}

pub(super) async fn show(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Response {
    let found = match find(&admin, &id, &which) {
        Ok(found) => found,
        Err(problem) => return problem,
    };
    let names = names(&admin);
    let now = admin.shell.now();
    let parts = admin.shell.core().partitions();
    for (partition, key) in found {
        let Some(session) = admin.shell.core().session(now, partition, key) else { continue };
        if let Some(p) = parts.get(partition.0 as usize) {
            return Json(one(&admin, &names, &p.pool, p.role, &session)).into_response();
        }
    }
    unbound()
}

pub(super) async fn remove(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Response {
    let found = match find(&admin, &id, &which) {
        Ok(found) => found,
        Err(problem) => return problem,
    };
    let (core, now) = (admin.shell.core(), admin.shell.now());
    let removed = found.into_iter().filter(|(partition, key)| core.unbind(now, *partition, *key));
    if removed.count() > 0 { StatusCode::NO_CONTENT.into_response() } else { unbound() }
}

/// Where the session may be bound: a partition, and its key there, for each name that it may be used
/// with.
#[expect(clippy::result_large_err, reason = "an answer of the admin server, made once and sent")]
fn find(
    admin: &Admin,
    id: &str,
    which: &Which,
) -> Result<Vec<(PartitionId, SessionKey)>, Response> {
    let core = admin.shell.core();
    let role = match which.role.as_deref() {
        None | Some("aggregated") => Role::Aggregated,
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        Some(_) => {
            let text = "role is one of aggregated, prefill and decode";
            return Err(problem(StatusCode::BAD_REQUEST, "invalid_request", text));
        }
    };
    let models: Vec<Arc<str>> = match &which.model {
        Some(model) => vec![model.as_str().into()],
        None => core.known_models(),
    };
    let (secret, tenant) = (admin.shell.secret(), which.tenant.as_deref().unwrap_or_default());
    let mut found = Vec::new();
    for model in models {
        let Ok(route) = core.route_as(&model, role) else { continue };
        let key = match which.group {
            Some(true) => secret.group(tenant, &route.adapter, id.as_bytes()),
            _ => secret.session(tenant, &route.adapter, id.as_bytes()),
        };
        if !found.contains(&(route.partition, key)) {
            found.push((route.partition, key));
        }
    }
    Ok(found)
}

fn unbound() -> Response {
    let text =
        "no such session is bound; where one id is used with several models, name one: ?model=";
    problem(StatusCode::NOT_FOUND, "not_found", text)
}
