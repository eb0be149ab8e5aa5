//! Our own answers. The one place where a refusal becomes a status (F58).

use super::forward;
use super::record::{Ended, Record};
use super::relay::Relay;
use bytes::Bytes;
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Refusal};
use homing_core::fleet::RouteError;
use homing_runtime::tenants::Limited;
use homing_wire::errors::{ApiError, ApiShape, error_body};
use homing_wire::request::RequestError;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a response's body is.
#[derive(Debug)]
pub(super) enum ReplyBody {
    /// Ours, whole.
    Whole(Option<Bytes>),
    /// A worker's, on its way.
    Relay(Box<Relay>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = super::relay::BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Relay(relay) => Pin::new(relay.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Relay(relay) => relay.size_hint(),
        }
    }
}

/// An error that is answered here.
#[derive(Debug)]
pub(super) struct Error {
    status: StatusCode,
    code: &'static str,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
    /// When to come again, in milliseconds; `None`: a retry can't cure it.
    retry_after_ms: Option<u64>,
    outcome: Outcome,
    /// The core has counted the outcome.
    counted: bool,
    ended: Ended,
}

const CLIENT: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// How soon a client may come again: around two seconds, when a probe may have found a worker.
const RETRY_MS: u64 = 1_000;
/// Clients are spread over as much, and over a quarter of what they are told to wait.
const RETRY_JITTER_MS: u64 = 2_000;
const RETRY_MOST_MS: u64 = 60_000;

impl Error {
    fn new(status: StatusCode, code: &'static str, kind: &'static str, message: String) -> Self {
        Self {
            status,
            code,
            kind,
            message,
            param: None,
            retry_after_ms: None,
            outcome: Outcome::None,
            counted: false,
            ended: Ended::Refused,
        }
    }

    /// 400, the client's fault.
    pub(super) fn invalid(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", CLIENT, message)
    }

    /// 400, a session id that can't be one.
    pub(super) fn session_id(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_session_id", CLIENT, message).with_session(true)
    }

    /// Of a request with a session, or without one.
    pub(super) fn with_session(self, there: bool) -> Self {
        Self { outcome: if there { Outcome::Rejected } else { Outcome::None }, ..self }
    }

    /// 404, no such path.
    pub(super) fn not_found(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", CLIENT, message.to_owned())
    }

    /// 401: who asks is not known.
    pub(super) fn unauthorized(message: &str) -> Self {
        let text = message.to_owned();
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", "authentication_error", text)
    }

    /// 403: it is known, and may not.
    pub(super) fn not_allowed(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "not_allowed", "permission_error", message.to_owned())
    }

    /// 429: its tenant has had enough for now.
    pub(super) fn limited(limited: &Limited) -> Self {
        let text = format!("the tenant's limit is reached ({})", limited.limit.word());
        let after = u64::try_from(limited.after.as_millis()).unwrap_or(RETRY_MOST_MS);
        let error =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "rate_limit_error", text);
        Self { retry_after_ms: Some(after), ..error }
    }

    /// 429: so many bodies are held that there is no room for one more.
    pub(super) fn no_room() -> Self {
        let text = "so many requests are held here that there is no room for this one (gateway.body_memory)";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", SERVER, text.to_owned());
        Self { retry_after_ms: Some(RETRY_MS), ..error }
    }

    /// 502: the worker broke off, and the request can't be sent again.
    pub(super) fn broke_off(outcome: Outcome) -> Self {
        let text = Cause::WorkerFailed.to_string();
        let error = Self::new(StatusCode::BAD_GATEWAY, "worker_error", SERVER, text);
        Self { outcome, counted: true, ..error }
    }

    /// 503: the router stops before the answer has begun.
    pub(super) fn draining() -> Self {
        Self::unavailable("draining", "the router is shutting down; try again".to_owned())
    }

    /// 405.
    pub(super) fn method() -> Self {
        let text = "this path takes POST".to_owned();
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request", CLIENT, text)
    }

    /// 413.
    pub(super) fn too_large(most: usize) -> Self {
        let text = format!("the request body is larger than {most} bytes (gateway.max_body)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", CLIENT, text)
    }

    /// 504.
    pub(super) fn timeout(message: &str) -> Self {
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", SERVER, message.to_owned());
        Self { ended: Ended::TimedOut, ..error }
    }

    /// A body that is none.
    pub(super) fn request(error: &RequestError) -> Self {
        Self { param: error.param(), ..Self::invalid(error.to_string()) }
    }

    /// A model that can't be routed.
    pub(super) fn route(model: &str, error: RouteError) -> Self {
        // A client's own words go back to it, but not at any length.
        let model: String = model.chars().take(128).collect();
        match error {
            RouteError::Unknown => Self {
                param: Some("model"),
                ..Self::new(
                    StatusCode::NOT_FOUND,
                    "model_not_found",
                    CLIENT,
                    format!(
                        "the model `{model}` does not exist here; GET /v1/models lists what does"
                    ),
                )
            },
            RouteError::NotYet => Self::unavailable(
                "starting",
                format!("no worker has told yet that it serves `{model}`; try again"),
            ),
            RouteError::NoWorker => {
                Self::unavailable("no_worker", format!("no worker serves `{model}` now; try again"))
            }
        }
    }

    fn unavailable(code: &'static str, message: String) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, SERVER, message);
        Self { retry_after_ms: Some(RETRY_MS), ..error }
    }

    /// The core's refusal. `as_argument` (`affinity.reject_as = "invalid_argument"`): one whose reason is
    /// a Hard session's live home is the client's fault, the cause in the message.
    pub(super) fn refusal(refusal: Refusal, as_argument: bool) -> Self {
        let text = refusal.cause.to_string();
        let too_many = |code| {
            Self::new(StatusCode::TOO_MANY_REQUESTS, code, SERVER, text.clone()).again(&refusal)
        };
        let at_fault = |code| Self::new(StatusCode::BAD_REQUEST, code, CLIENT, text.clone());
        let error = match refusal.cause {
            Cause::TargetUnavailable | Cause::TargetOverloaded | Cause::Overloaded
                if refusal.bound && as_argument =>
            {
                at_fault("affinity_conflict")
            }
            Cause::Conflict => at_fault("affinity_conflict"),
            Cause::UnknownWorker => at_fault("unknown_worker"),
            Cause::RankRequired => at_fault("rank_required"),
            Cause::BadRank | Cause::NotAllowed => at_fault("invalid_request"),
            Cause::NoWorker => Self::unavailable("no_worker", text),
            Cause::TargetUnavailable => Self::unavailable("affinity_target_unavailable", text),
            // Where its session lives is known to nobody who can be asked.
            Cause::StoreUnreachable => Self::unavailable("affinity_target_unavailable", text),
            Cause::TargetOverloaded => too_many("affinity_target_overloaded"),
            // The worker's answer passes where there is one; it is gone by now.
            Cause::Overloaded | Cause::Answered => too_many("overloaded"),
            Cause::QueueFull => too_many("queue_full"),
            // It never ran.
            Cause::Timeout => Self { retry_after_ms: Some(RETRY_MS), ..Self::timeout(&text) },
            Cause::WorkerFailed => Self::new(StatusCode::BAD_GATEWAY, "worker_error", SERVER, text),
        };
        Self { outcome: refusal.outcome, counted: true, ..error }
    }

    /// The same in other words.
    pub(super) fn saying(self, message: &str) -> Self {
        Self { message: message.to_owned(), ..self }
    }

    /// A retry can cure it: when the core thinks so, else soon.
    fn again(self, refusal: &Refusal) -> Self {
        let after = refusal.retry_after.map_or(RETRY_MS, |d| d.as_millis() as u64);
        Self { retry_after_ms: Some(after), ..self }
    }

    /// The worker was too slow with its first byte.
    pub(super) fn worker_timeout(outcome: Outcome) -> Self {
        let error = Self::timeout("the worker did not begin to answer in time");
        Self { outcome, counted: true, ..error }
    }

    /// As a preview tells it.
    pub(super) fn described(&self) -> serde_json::Value {
        serde_json::json!({
            "status": self.status.as_u16(),
            "code": self.code,
            "message": self.message,
        })
    }

    /// What happened to the session.
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// For a stream's last event, behind `earlier` ones.
    pub(super) fn event(api: ApiShape, code: &'static str, message: &str, earlier: u64) -> Vec<u8> {
        let status = if code == "timeout" { 504 } else { 502 };
        let error = ApiError { status, kind: SERVER, message, code, param: None };
        homing_wire::errors::error_event(api, &error, earlier)
    }
}

/// Ends a request with an error; the record is emitted here.
pub(super) fn error(mut record: Record, error: Error) -> Response<ReplyBody> {
    record.status = error.status.as_u16();
    record.code = error.code;
    record.outcome = error.outcome;
    record.ended = error.ended;
    if error.outcome == Outcome::Rejected && !error.counted {
        record.rejected_here();
    }
    // What a worker would have had to reuse is nothing to tell where none has served it.
    record.cached_tokens = None;
    let body = ApiError {
        status: error.status.as_u16(),
        kind: error.kind,
        message: &error.message,
        code: error.code,
        param: error.param,
    };
    let mut response = whole(error.status, error_body(record.api, &body).into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    forward::own_headers(headers, &record);
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    match error.retry_after_ms {
        Some(ms) => {
            // Spread by what differs between requests, so that refused clients don't return as one.
            let spread = spread(record.request_id.as_bytes()) % RETRY_JITTER_MS.max(ms / 4);
            let ms = (ms + spread).clamp(RETRY_MS, RETRY_MOST_MS);
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).clamp(1, 60)));
            headers.insert(HeaderName::from_static("retry-after-ms"), HeaderValue::from(ms));
        }
        None => {
            let name = HeaderName::from_static("x-should-retry");
            headers.insert(name, HeaderValue::from_static("false"));
        }
    }
    response
}

/// FNV-1a: enough to spread clients.
fn spread(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// A short text.
pub(super) fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = whole(status, text.into());
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// A JSON value.
pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> Response<ReplyBody> {
    let mut response = whole(status, value.to_string().into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn whole(status: StatusCode, body: Bytes) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Whole(Some(body)));
    *response.status_mut() = status;
    response
}
