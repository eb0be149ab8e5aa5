//! The settings as operators see them: what holds, where each value came from, and reading them anew.

use super::{Admin, problem};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Every key with its value as TOML, and its source. Secrets are in files, of which only the names are here.
pub(super) async fn show(State(admin): State<Admin>) -> Json<Value> {
    let settings = admin.reloader.current();
    let all = settings.effective().iter();
    let all = all.map(
        |line| json!({"key": line.key, "value": line.value, "origin": line.origin.to_string()}),
    );
    Json(Value::Array(all.collect()))
}

pub(super) async fn reload(State(admin): State<Admin>) -> Response {
    let reloader = admin.reloader.clone();
    // It reads files.
    match tokio::task::spawn_blocking(move || reloader.reload()).await {
        Ok(Ok(changed)) => Json(json!({"changed": changed})).into_response(),
        Ok(Err(error)) => problem(StatusCode::CONFLICT, "not_applied", &error.to_string()),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error.to_string()),
    }
}
