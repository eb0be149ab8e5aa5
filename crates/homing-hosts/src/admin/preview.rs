//! Where a request would go, and why, without sending it (R16). It is read exactly as the gateway reads
//! it, by the gateway's own code.

use super::{Admin, problem};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// As many as the gateway's server takes.
const MOST_HEADERS: usize = 100;

/// A request to look at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    /// Its path; chat unless given.
    #[serde(default = "chat")]
    endpoint: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// As the client would send it.
    body: Box<RawValue>,
}

fn chat() -> String {
    "/v1/chat/completions".to_owned()
}

pub(super) async fn preview(State(admin): State<Admin>, body: Bytes) -> Response {
    let wrong = |text: &str| problem(StatusCode::BAD_REQUEST, "invalid_request", text);
    let question: Question = match serde_json::from_slice(&body) {
        Ok(question) => question,
        Err(error) => {
            let text = format!("send {{\"endpoint\", \"headers\", \"body\"}}: {error}");
            return wrong(&text);
        }
    };
    if question.headers.len() > MOST_HEADERS {
        return wrong("headers has more than 100: the gateway takes no such request either");
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &question.headers {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        let Some((name, value)) = header.zip(HeaderValue::from_str(value).ok()) else {
            return wrong("headers has one that can't be a header");
        };
        headers.append(name, value);
    }
    let body = Bytes::copy_from_slice(question.body.get().as_bytes());
    match admin.gateway.preview(&question.endpoint, headers, &body).await {
        Some(answer) => Json(answer).into_response(),
        None => wrong("endpoint is none that the gateway routes, such as /v1/chat/completions"),
    }
}
