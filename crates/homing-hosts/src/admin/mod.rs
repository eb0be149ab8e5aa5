//! The admin server, on its own listener:
//!
//! | call | gives or does |
//! |---|---|
//! | `GET /health` | 200: the process lives |
//! | `GET /ready` | 200 once a worker can serve; 503 and why before that, and while draining; `frozen`: what can't be discovered |
//! | `GET /metrics` | Prometheus text |
//! | `GET /admin/workers` | every worker, its state and its load (`workers`) |
//! | `POST /admin/workers?ttl=15s` | registers one (`register`) |
//! | `DELETE /admin/workers/{id}` | removes one: it has departed, running streams finish |
//! | `POST /admin/workers/{id}/drain`, `/undrain` | no new sessions; or again |
//! | `GET /admin/sessions?limit=N` | what is bound where (`sessions`) |
//! | `GET`, `DELETE /admin/sessions/{id}` | one session, by the id that its client sends |
//! | `GET /admin/decisions?limit=N`, `/admin/decisions/{request_id}` | where requests went, and why (`decisions`) |
//! | `POST /admin/preview` | where a request would go, without acting (`preview`) |
//! | `GET /admin/config` | the settings, and where each value came from (`config`) |
//! | `POST /admin/reload` | reads them anew |
//!
//! `login` says who may ask what; without it `host` keeps web pages out. Errors have one shape (`problems`).

mod config;
mod decisions;
mod host;
mod login;
mod preview;
mod problems;
mod register;
mod sessions;
mod workers;

pub use login::Tokens;

use problems::problem;

use crate::gateway::Gateway;
use crate::reload::Reloader;
use arc_swap::ArcSwap;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router, middleware};
use homing_runtime::fleet::Fleet;
use homing_runtime::fleet::registered::Registered;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::shell::Shell;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;

/// What it shows and changes.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) shell: Arc<Shell>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) life: Lifecycle,
    pub(crate) tokens: Arc<ArcSwap<Tokens>>,
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) registered: Arc<Registered>,
}

/// Serves until the runtime ends.
pub(crate) async fn serve(listener: tokio::net::TcpListener, admin: Admin) {
    let app = Router::new()
        .route("/health", get(async || "ok"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/admin/workers", get(workers::list).post(register::register))
        .route("/admin/workers/{id}", delete(workers::remove))
        .route("/admin/workers/{id}/drain", post(workers::drain))
        .route("/admin/workers/{id}/undrain", post(workers::undrain))
        .route("/admin/sessions", get(sessions::list))
        .route("/admin/sessions/{id}", get(sessions::show).delete(sessions::remove))
        .route("/admin/decisions", get(decisions::list))
        .route("/admin/decisions/{request_id}", get(decisions::show))
        .route("/admin/preview", post(preview::preview))
        .route("/admin/config", get(config::show))
        .route("/admin/reload", post(config::reload))
        .layer(middleware::map_response(problems::shaped))
        .layer(middleware::from_fn_with_state(admin.clone(), login::check))
        .with_state(admin)
        .into_make_service_with_connect_info::<SocketAddr>();
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the admin server has ended");
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    if admin.life.draining().is_cancelled() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "draining", "the router is shutting down");
    }
    let frozen = admin.fleet.frozen();
    if admin.shell.ready() {
        let mut body = json!({"ready": true});
        if !frozen.is_empty() {
            // Those that are known go on being served.
            body["frozen"] = json!(frozen);
        }
        return Json(body).into_response();
    }
    let workers = admin.shell.core().workers();
    let states: Vec<_> =
        workers.iter().map(|w| format!("{} is {}", w.info.spec.name, w.state)).collect();
    let mut why = match states.as_slice() {
        [] => "no worker is registered".to_owned(),
        some if !workers.iter().any(|w| w.state == homing_core::fleet::State::Ready) => {
            format!("no worker is ready: {}", some.join(", "))
        }
        _ => "a worker is ready".to_owned(),
    };
    let waits = admin.shell.waits_for();
    if !waits.is_empty() {
        why = format!("{why}; waiting for {}", waits.join(", and for "));
    }
    if !frozen.is_empty() {
        why = format!("{why}; and workers can't be discovered: {}", frozen.join("; "));
    }
    problem(StatusCode::SERVICE_UNAVAILABLE, "starting", &why)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.shell.metrics().text() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error.to_string()),
    }
}
