//! Errors in the admin API's one shape, whoever makes them: the handlers by [`problem`], and by [`shaped`] those that axum
//! makes before or beside them, which are plain text or nothing (a body that is no JSON, or isn't said to be; a parameter
//! that nobody knows; no such path, or not by that method).

use axum::Json;
use axum::body::to_bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// So much of axum's own words is repeated.
const WORDS: usize = 16 << 10;

/// An error.
pub(super) fn problem(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"message": message, "code": code}});
    (status, Json(body)).into_response()
}

/// The same answer, in the API's shape where it is an error that has another.
pub(super) async fn shaped(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !(status.is_client_error() || status.is_server_error()) || kind == Some(b"application/json")
    {
        return response;
    }
    let (parts, body) = response.into_parts();
    let said = to_bytes(body, WORDS).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let (code, usual) = match status {
        StatusCode::NOT_FOUND => {
            ("not_found", "there is nothing here; docs/http-api.md lists the calls")
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            ("invalid_request", "this path takes another method (Allow)")
        }
        StatusCode::PAYLOAD_TOO_LARGE => ("body_too_large", "the body is too large"),
        status if status.is_client_error() => ("invalid_request", "the request can't be read"),
        _ => ("internal", "something is wrong here"),
    };
    let message = if said.trim().is_empty() { usual } else { said.trim() };
    let mut response = problem(status, code, message);
    for (name, value) in &parts.headers {
        // What else it says stands: the methods that are allowed, say.
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            response.headers_mut().append(name, value.clone());
        }
    }
    response
}
