//! Workers that come at run time: `POST /admin/workers` with the keys of `[[workers]]`.

use super::{Admin, problem};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use homing_runtime::fleet::entry;
use homing_runtime::fleet::registered::{RegisterError, Registration};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A time-to-live is at least a second, which a network may take, and at most a day.
const TTL_LEAST: Duration = Duration::from_secs(1);
const TTL_MOST: Duration = Duration::from_secs(24 * 3600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    /// Gone unless repeated in time, e.g. `15s`.
    ttl: Option<String>,
    /// In the place of whoever has this id.
    replace: Option<bool>,
}

pub(super) async fn register(
    State(admin): State<Admin>,
    Query(how): Query<How>,
    Json(keys): Json<Map<String, Value>>,
) -> Response {
    let bad = |text: &str| problem(StatusCode::BAD_REQUEST, "invalid_request", text);
    let ttl = match how.ttl.as_deref().map(humantime::parse_duration) {
        None => None,
        Some(Ok(ttl)) if (TTL_LEAST..=TTL_MOST).contains(&ttl) => Some(ttl),
        Some(_) => return bad("ttl must be a duration from 1s to 24h, such as 15s"),
    };
    let worker = match entry::worker(keys) {
        Ok(worker) => worker,
        Err(text) => return bad(&text),
    };
    let (id, taken) = (worker.id.clone(), admin.shell.core().worker_named(&worker.id).is_some());
    let replace = how.replace == Some(true);
    match admin.registered.register(worker.clone(), ttl, replace, taken) {
        Ok(Registration::Renewed) => Json(json!({"id": id, "renewed": true})).into_response(),
        Ok(Registration::New | Registration::Replaced) => {
            (StatusCode::CREATED, Json(json!({ "id": id }))).into_response()
        }
        Err(error @ RegisterError::InUse) => {
            admin.fleet.refuse_taken(&worker, admin.registered.is_news(&worker));
            problem(StatusCode::CONFLICT, "worker_exists", &error.to_string())
        }
        Err(error @ RegisterError::Busy) => {
            problem(StatusCode::SERVICE_UNAVAILABLE, "busy", &error.to_string())
        }
    }
}
