//! Why requests went where they went: the records of their decisions, for a while.

use super::{Admin, problem};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;

/// Decisions in one answer, unless asked otherwise; and at most.
const USUAL: usize = 20;
const MOST: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    limit: Option<usize>,
}

pub(super) async fn list(State(admin): State<Admin>, Query(query): Query<Limit>) -> Json<Value> {
    Json(admin.gateway.decisions(query.limit.unwrap_or(USUAL).min(MOST)))
}

pub(super) async fn show(State(admin): State<Admin>, Path(id): Path<String>) -> Response {
    match admin.gateway.decision(&id) {
        Ok(decision) => Json(decision).into_response(),
        Err(why) => problem(StatusCode::NOT_FOUND, "not_found", &why),
    }
}
