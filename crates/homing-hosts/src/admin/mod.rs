//! The admin server, on its own listener:
//!
//! | call | gives or does |
//! |---|---|
//! | `GET /health` | 200: the process lives |
//! | `GET /ready` | 200 once a worker can serve; 503 and why before that, and while draining |
//! | `GET /metrics` | Prometheus text |
//! | `GET /admin/workers` | every worker, its state and its load |
//! | `DELETE /admin/workers/{id}` | removes one: it has departed, running streams finish |
//! | `GET /admin/sessions?limit=N` | what is bound where |
//!
//! It has no login; `host` keeps web pages out.

mod host;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router, middleware};
use homing_core::core::WorkerView;
use homing_runtime::fleet::Fleet;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::shell::Shell;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sessions in one answer, unless asked otherwise; and at most.
const SESSIONS_USUAL: usize = 100;
const SESSIONS_MOST: usize = 10_000;

#[derive(Clone)]
struct Admin {
    shell: Arc<Shell>,
    fleet: Arc<Fleet>,
    life: Lifecycle,
}

/// Serves until the runtime ends.
pub async fn serve(
    listener: tokio::net::TcpListener,
    shell: Arc<Shell>,
    fleet: Arc<Fleet>,
    life: Lifecycle,
) {
    let admin = Admin { shell, fleet, life };
    let app = Router::new()
        .route("/health", get(async || "ok"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/admin/workers", get(workers))
        .route("/admin/workers/{id}", delete(remove_worker))
        .route("/admin/sessions", get(sessions))
        .layer(middleware::from_fn(host::check))
        .with_state(admin);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the admin server has ended");
    }
}

fn problem(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"message": message, "code": code}});
    (status, Json(body)).into_response()
}

async fn ready(State(admin): State<Admin>) -> Response {
    if admin.life.draining().is_cancelled() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "draining", "the router is shutting down");
    }
    if admin.shell.ready() {
        return Json(json!({"ready": true})).into_response();
    }
    let workers = admin.shell.core().workers();
    let states: Vec<_> =
        workers.iter().map(|w| format!("{} is {}", w.info.spec.name, w.state)).collect();
    let why = match states.as_slice() {
        [] => "no worker is registered".to_owned(),
        some => format!("no worker is ready: {}", some.join(", ")),
    };
    problem(StatusCode::SERVICE_UNAVAILABLE, "starting", &why)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.shell.metrics().text() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error.to_string()),
    }
}

async fn workers(State(admin): State<Admin>) -> Json<Value> {
    let workers = admin.shell.core().workers();
    let one = |w: &WorkerView| {
        let spec = &w.info.spec;
        json!({
            "id": &*spec.name,
            "url": &*spec.url,
            "role": "aggregated",
            "models": w.models.iter().map(|m| &**m).collect::<Vec<_>>(),
            "ranks": 1,
            "state": w.state.to_string(),
            "labels": spec.labels,
            "active_requests": w.part.load.active_requests,
            "active_prefill_tokens": w.part.load.prefill_tokens,
            "active_blocks": w.part.load.blocks,
            "cached_blocks": w.cached_blocks,
            "bindings": w.part.bindings,
            "index": admin.fleet.index_state(&spec.name),
            "incarnation": w.info.id.0,
        })
    };
    Json(Value::Array(workers.iter().map(one).collect()))
}

async fn remove_worker(State(admin): State<Admin>, Path(id): Path<String>) -> Response {
    if admin.fleet.remove(&id) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        problem(StatusCode::NOT_FOUND, "unknown_worker", "there is no worker of this id")
    }
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn sessions(State(admin): State<Admin>, Query(query): Query<Limit>) -> Json<Value> {
    let (shell, core) = (&admin.shell, admin.shell.core());
    let limit = query.limit.unwrap_or(SESSIONS_USUAL).min(SESSIONS_MOST);
    let stats: Vec<_> = core.partitions().into_iter().map(|p| p.stats).collect();
    let names: BTreeMap<_, _> =
        core.workers().into_iter().map(|w| (w.info.id, w.info.spec.name.clone())).collect();
    let sessions: Vec<_> = core
        .sessions(shell.now(), limit)
        .into_iter()
        .map(|(pool, s)| {
            json!({
                "key_digest": shell.secret().digest(s.key).to_string(),
                "partition": format!("{pool}/aggregated"),
                // Null: its worker has departed, and its next turn binds it elsewhere.
                "worker": names.get(&s.target.worker).map(|n| &**n),
                "dp_rank": s.target.rank.map(|r| r.0),
                "leases": s.leases,
                "idle_seconds": s.idle.as_secs_f64(),
                "version": s.version.to_string(),
            })
        })
        .collect();
    Json(json!({
        "count": stats.iter().map(|s| s.bindings).sum::<usize>(),
        "leases": stats.iter().map(|s| s.leases).sum::<usize>(),
        "sessions": sessions,
    }))
}
