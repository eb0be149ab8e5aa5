//! Which path is what.

use super::Gateway;
use super::access::{Access, Caller};
use super::pace::Pace;
use super::proxy;
use super::record::Record;
use super::reply::{self, ReplyBody};
use homing_core::trust::Shape;
use homing_runtime::upstream::Upstream;
use homing_wire::errors::ApiShape;
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A client has so long to take an answer of our own.
const PLAIN_TIME: Duration = Duration::from_secs(30);

/// An endpoint that workers serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`: it generates nothing.
    CountTokens,
    /// `/v1/embeddings`: likewise.
    Embeddings,
    /// A path of `gateway.pass_through`.
    PassThrough,
}

impl Endpoint {
    pub(super) fn of(path: &str, access: &Access) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            "/v1/messages/count_tokens" => Some(Self::CountTokens),
            "/v1/embeddings" => Some(Self::Embeddings),
            _ => {
                let more = &access.settings.gateway.pass_through;
                more.iter().any(|other| other == path).then_some(Self::PassThrough)
            }
        }
    }

    /// The metric's label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Embeddings => "embeddings",
            Self::PassThrough => "pass_through",
        }
    }

    /// What the core calls it.
    pub(super) fn shape(self) -> Shape {
        match self {
            Self::Chat | Self::Embeddings | Self::PassThrough => Shape::Chat,
            Self::Completions => Shape::Completions,
            Self::Responses => Shape::Responses,
            Self::Messages | Self::CountTokens => Shape::Messages,
        }
    }

    /// Whose API it is of.
    pub(super) fn api(self) -> ApiShape {
        match self {
            Self::Chat | Self::Completions | Self::Embeddings | Self::PassThrough => {
                ApiShape::OpenAi
            }
            Self::Responses => ApiShape::Responses,
            Self::Messages | Self::CountTokens => ApiShape::Anthropic,
        }
    }

    /// Whether an engine generates something for it, from a prompt that its cache may hold.
    pub(super) fn generates(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Embeddings | Self::PassThrough)
    }
}

/// Answers one request.
pub(super) async fn handle(
    gateway: &Arc<Gateway>,
    upstream: &Upstream,
    pace: &Pace,
    peer: Option<IpAddr>,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    pace.begin(Instant::now() + PLAIN_TIME);
    let (method, path) = (request.method(), request.uri().path());
    let access = gateway.access();
    if let Some(endpoint) = Endpoint::of(path, &access) {
        let caller = match access.caller(peer, request.headers()) {
            Ok(caller) => caller,
            Err(error) => {
                let (label, api) = (endpoint.label(), endpoint.api());
                let record = Record::start(gateway, request.headers(), label, api);
                return reply::error(record, gateway.early(request.headers(), error));
            }
        };
        if method != Method::POST && endpoint != Endpoint::PassThrough {
            let (label, api) = (endpoint.label(), endpoint.api());
            let record = Record::start(gateway, request.headers(), label, api);
            let mut response = reply::error(record, reply::Error::method());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return response;
        }
        // Out of line: its state is some KiB, which would be moved about with the request and kept by each connection.
        return Box::pin(proxy::handle(gateway, upstream, pace, caller, endpoint, request)).await;
    }
    let get = method == Method::GET || method == Method::HEAD;
    match path {
        "/" | "/health" | "/livez" if get => reply::plain(StatusCode::OK, "ok"),
        "/readyz" if get => readyz(gateway, request.uri().query()),
        "/v1/models" if get => match access.caller(peer, request.headers()) {
            Ok(caller) => models(gateway, &caller),
            Err(error) => {
                let api = ApiShape::OpenAi;
                reply::error(Record::start(gateway, request.headers(), "models", api), error)
            }
        },
        _ => {
            let api = match path.starts_with("/v1/messages/") {
                true => ApiShape::Anthropic,
                false => ApiShape::OpenAi,
            };
            let record = Record::start(gateway, request.headers(), "other", api);
            let text = "there is nothing here; this router serves /v1/chat/completions, \
                        /v1/completions, /v1/responses, /v1/messages, \
                        /v1/messages/count_tokens, /v1/embeddings and /v1/models";
            reply::error(record, reply::Error::not_found(text))
        }
    }
}

/// Ready once a worker was; with `?strict=1` while one is.
fn readyz(gateway: &Gateway, query: Option<&str>) -> Response<ReplyBody> {
    let strict = query.is_some_and(|q| q.split('&').any(|p| p == "strict=1"));
    let ready = if strict { gateway.shell.core().any_ready() } else { gateway.shell.ready() };
    if gateway.draining() {
        reply::plain(StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if ready {
        reply::plain(StatusCode::OK, "ready")
    } else {
        let why = match gateway.shell.waits_for().first() {
            Some(what) if !strict => format!("waiting for {what}"),
            _ => "no worker is ready".to_owned(),
        };
        reply::plain(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

/// The union of what the ready workers serve, and other names for it, as far as the caller may use them.
fn models(gateway: &Gateway, caller: &Caller) -> Response<ReplyBody> {
    let served = gateway.shell.core().served_models();
    let has = |name: &str| served.iter().any(|(other, _)| &**other == name);
    let aliases = caller.access.aliases().filter(|(alias, name)| has(name) && !has(alias));
    let mut aliases: Vec<&str> = aliases.map(|(alias, _)| alias).collect();
    aliases.sort_unstable();
    let data: Vec<_> = served
        .iter()
        .map(|(name, _)| &**name)
        .chain(aliases)
        .filter(|name| caller.may_use(name))
        .map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "homing"}))
        .collect();
    reply::json(StatusCode::OK, &json!({"object": "list", "data": data}))
}
