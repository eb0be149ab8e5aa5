//! Connections and paths.
//!
//! Bounds, and what happens at them: connections (the next one waits to be accepted), a request's head (30 s,
//! then the connection is closed), its body (413 by size, 408 after 60 s), requests run or waiting at once (503 before the body
//! is read, as vLLM's `max_num_queued_reqs` does).

use super::answer::{Stream, whole};
use super::ask::{Accepted, Api, accept, rank};
use super::driver::Driver;
use super::embeddings::embeddings;
use super::faults::{Failing, Faults, Never};
use super::info;
use super::model::Model;
use super::refusal::Refusal;
use super::shape::{Frame, seconds};
use super::window;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to send a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait before accepting again after the system refused to (out of file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all requests share.
pub(super) struct App {
    pub(super) served: String,
    pub(super) model: Model,
    pub(super) driver: Arc<Driver>,
    pub(super) max_body: usize,
    /// Whether `usage` tells cached tokens.
    pub(super) details: bool,
    /// One permit per request that runs or waits.
    pub(super) places: Arc<Semaphore>,
    /// Numbers answers.
    pub(super) answers: AtomicU64,
    pub(super) faults: Faults,
    pub(super) failing: Failing,
    pub(super) api_key: Option<String>,
    /// Cancelled when it has been told to stop.
    pub(super) stopping: CancellationToken,
}

/// Serves until `stop`; then requests in flight have `grace` to end.
pub(super) async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    max_connections: usize,
    stop: CancellationToken,
    grace: Duration,
) {
    let slots = Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let over = async {
            stop.cancelled().await;
            if app.faults.green_drain {
                tokio::time::sleep(grace).await;
            }
        };
        let (slot, stream) = tokio::select! {
            () = over => break,
            (slot, accepted) = accepted => match accepted {
                Ok((stream, _)) => (slot, stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        // Who drains in green goes on as if nothing had been said.
        let stop = if app.faults.green_drain { CancellationToken::new() } else { stop.clone() };
        let app = app.clone();
        connections.spawn(async move {
            connection(app, stream, stop).await;
            drop(slot);
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Whoever is still here after the grace is cut off, when `connections` is dropped.
    let _ = tokio::time::timeout(grace, ended).await;
}

async fn connection(app: Arc<App>, stream: TcpStream, stop: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(app.answer(request).await) }
    });
    let mut connection = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

impl App {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let anthropic = request.uri().path().starts_with(MESSAGES);
        if !self.admits(&request) {
            let body = json!({"error": "Unauthorized"});
            return json_answer(StatusCode::UNAUTHORIZED, &body);
        }
        let answer = match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/chat/completions") => self.generate(Api::Chat, request).await,
            (&Method::POST, "/v1/completions") => self.generate(Api::Completion, request).await,
            (&Method::POST, "/v1/responses") => self.generate(Api::Responses, request).await,
            (&Method::POST, MESSAGES) => self.generate(Api::Messages, request).await,
            (&Method::POST, COUNT_TOKENS) => self.count_tokens(request).await,
            (&Method::POST, EMBEDDINGS) => self.embeddings(request).await,
            (&Method::POST, "/tokenize") => self.tokenize(request).await,
            (&Method::POST, "/reset_prefix_cache") => Ok(match self.driver.clear_cache() {
                true => plain(Bytes::new(), None),
                false => json_answer(
                    StatusCode::CONFLICT,
                    &json!({"detail": "requests run, and a rank's cache stays as it is"}),
                ),
            }),
            (&Method::GET, "/mock/cache") => {
                Ok(json_answer(StatusCode::OK, &window::blocks(&self.driver)))
            }
            (&Method::POST, "/mock/cache") => self.reusable(request).await,
            (&Method::GET, "/health") => Ok(plain(Bytes::new(), None)),
            (&Method::GET, "/version") => {
                Ok(json_answer(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")})))
            }
            (&Method::GET, "/metrics") => {
                let page = self.driver.metrics(&self.served);
                Ok(plain(page.into(), Some("text/plain; version=0.0.4; charset=utf-8")))
            }
            (&Method::GET, "/v1/models") => {
                Ok(json_answer(StatusCode::OK, &info::models(&self.served, &self.driver)))
            }
            (&Method::GET, "/kv_event_sources") => Ok(match info::kv_event_sources(&self.driver) {
                Some(sources) => json_answer(StatusCode::OK, &sources),
                None => not_found(),
            }),
            (_, path) if PATHS.contains(&path) => Ok(json_answer(
                StatusCode::METHOD_NOT_ALLOWED,
                &json!({"detail": "Method Not Allowed"}),
            )),
            _ => Ok(not_found()),
        };
        answer.unwrap_or_else(|refusal: Refusal| {
            json_answer(refusal.status, &refusal.body(anthropic))
        })
    }

    /// As vLLM does: what is under `/v1` wants the key.
    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(key) = &self.api_key else { return true };
        let shown = request.headers().get(http::header::AUTHORIZATION);
        let shown = shown.and_then(|v| v.to_str().ok()?.strip_prefix("Bearer "));
        !request.uri().path().starts_with("/v1") || shown == Some(key)
    }

    async fn generate(&self, api: Api, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let drains = self.faults.green_drain && self.stopping.is_cancelled();
        if drains || self.failing.is_next(self.faults.fail_every) {
            return Err(Refusal::broken("the engine is dead"));
        }
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(Refusal::busy(self.driver.max_queued()));
        };
        let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
        let id = self.answer_id(api, given);
        let rank = rank(request.headers(), &self.driver)?;
        let body = self.body(request).await?;
        if self.faults.hang {
            if !wants_stream(&body) {
                std::future::pending::<()>().await;
            }
            return Ok(stream_of(Never));
        }
        let accepted = accept(api, rank, &body, &self.served, &self.model, &self.driver)?;
        drop(body);
        let frame = Frame {
            api,
            id,
            created: seconds(self.driver.real()),
            model: self.served.clone(),
            prompt_tokens: accepted.prompt_tokens,
            details: self.details,
        };
        if accepted.stream {
            return Ok(self.stream(accepted, frame, place));
        }
        let answer = whole(accepted, &frame).await?;
        drop(place);
        Ok(json_answer(StatusCode::OK, &answer))
    }

    fn stream(
        &self,
        accepted: Accepted,
        frame: Frame,
        place: tokio::sync::OwnedSemaphorePermit,
    ) -> Answer {
        stream_of(Stream::new(accepted, frame, place))
    }

    async fn tokenize(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let body = self.body(request).await?;
        let tokens = info::tokenize(&body, &self.served, &self.model, &self.driver)?;
        Ok(json_answer(StatusCode::OK, &tokens))
    }

    async fn embeddings(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        if self.failing.is_next(self.faults.fail_every) {
            return Err(Refusal::broken("the engine is dead"));
        }
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let id = format!("embd-{:x}-{number:x}", self.driver.began_at().as_micros());
        let body = self.body(request).await?;
        if self.faults.hang {
            std::future::pending::<()>().await;
        }
        let created = seconds(self.driver.real());
        let (model, driver) = (&self.model, &self.driver);
        let answer = embeddings(&body, &id, created, &self.served, model, driver)?;
        Ok(json_answer(StatusCode::OK, &answer))
    }

    async fn count_tokens(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let body = self.body(request).await?;
        let count = info::count_tokens(&body, &self.served, &self.model)?;
        Ok(json_answer(StatusCode::OK, &count))
    }

    async fn reusable(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let body = self.body(request).await?;
        let ranks = window::reusable(&body, &self.served, &self.model, &self.driver)?;
        Ok(json_answer(StatusCode::OK, &ranks))
    }

    fn body(&self, request: Request<Incoming>) -> impl Future<Output = Result<Bytes, Refusal>> {
        let limit = self.max_body;
        let body = Limited::new(request.into_body(), limit);
        async move {
            let Ok(body) = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await else {
                return Err(Refusal::too_slow(BODY_TIMEOUT));
            };
            match body {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                    Err(Refusal::too_large(limit))
                }
                Err(error) => Err(Refusal::bad(None, format!("the body broke off: {error}"))),
            }
        }
    }

    /// As vLLM makes it: of the client's request id where it sent one.
    fn answer_id(&self, api: Api, given: Option<&str>) -> String {
        let kind = match api {
            Api::Chat | Api::Messages => "chatcmpl-",
            Api::Completion => "cmpl-",
            Api::Responses => "resp_",
        };
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        match given {
            Some(given) => format!("{kind}{given}"),
            None => format!("{kind}{:x}-{number:x}", self.driver.began_at().as_micros()),
        }
    }
}

const EMBEDDINGS: &str = "/v1/embeddings";
const MESSAGES: &str = "/v1/messages";
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

const PATHS: [&str; 14] = [
    EMBEDDINGS,
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    MESSAGES,
    COUNT_TOKENS,
    "/v1/models",
    "/tokenize",
    "/health",
    "/version",
    "/metrics",
    "/kv_event_sources",
    "/reset_prefix_cache",
    "/mock/cache",
];

fn stream_of<B>(body: B) -> Answer
where
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + Sync + 'static,
{
    let mut answer = Response::new(body.boxed());
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn wants_stream(body: &[u8]) -> bool {
    let body: Option<Value> = serde_json::from_slice(body).ok();
    body.is_some_and(|body| body["stream"] == true)
}

fn not_found() -> Answer {
    json_answer(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"}))
}

fn json_answer(status: StatusCode, body: &Value) -> Answer {
    let mut answer = plain(body.to_string().into(), Some("application/json"));
    *answer.status_mut() = status;
    answer
}

fn plain(body: Bytes, kind: Option<&'static str>) -> Answer {
    let mut answer = Response::new(Full::new(body).boxed());
    if let Some(kind) = kind {
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    answer
}
