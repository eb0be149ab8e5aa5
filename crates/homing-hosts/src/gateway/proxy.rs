//! The way of a request: read it, find its session and its prompt, admit it, look once more, dispatch,
//! wait until the worker has begun to answer, commit, relay. There is no session logic here: every
//! decision is the core's.

use super::ask::{Given, Wish};
use super::pace::Pace;
use super::record::Record;
use super::relay::{self, Begun, Limits, Relay};
use super::reply::{self, Error, ReplyBody};
use super::service::Endpoint;
use super::steering::Steering;
use super::{Gateway, ask, forward};
use bytes::{Bytes, BytesMut};
use homing_core::ask::{Ask, Cause, Failure, Refusal};
use homing_runtime::guard::{Checked, Granted};
use homing_runtime::settings::Verify;
use homing_runtime::upstream::Upstream;
use homing_wire::errors::ApiShape;
use homing_wire::request;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A body's room is made at once up to this size; a longer one grows as it comes, so that a client
/// can't reserve memory by a header alone.
const ROOM_AT_FIRST: usize = 256 << 10;

/// Answers a request that workers serve.
pub(super) async fn handle(
    gateway: &Gateway,
    upstream: &Upstream,
    pace: &Pace,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let mut record = Record::start(gateway, request.headers(), endpoint.label(), endpoint.api());
    let until = Instant::now() + gateway.settings.gateway.request_timeout;
    pace.begin(until);
    match answer(gateway, upstream, endpoint, request, &mut record, until).await {
        Ok(Answer { response, body }) => {
            record.status = response.status().as_u16();
            let (idle, pace) = (gateway.settings.upstream.idle_timeout, pace.clone());
            let limits = Limits { idle, until, pace };
            let relay = match body {
                Answered::Plain(body, first, live) => {
                    let kind = response.headers().get(CONTENT_TYPE).map(|v| v.as_bytes());
                    let json = kind.is_some_and(|k| k.starts_with(b"application/json"));
                    Relay::plain(body, first, live, record, limits, json)
                }
                Answered::Stream(body, begun, live) => {
                    Relay::stream(body, begun, live, record, limits)
                }
            };
            response.map(|()| ReplyBody::Relay(Box::new(relay)))
        }
        Err(error) => {
            let response = reply::error(record, *error);
            if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
                pace.hear_out();
            }
            response
        }
    }
}

/// A worker's answer that has begun.
struct Answer {
    response: Response<()>,
    body: Answered,
}

enum Answered {
    Plain(Incoming, Bytes, Option<homing_runtime::guard::Live>),
    Stream(Incoming, Box<Begun>, homing_runtime::guard::Live),
}

pub(super) type Failed = Box<Error>;

/// Every part of it ends at `until` by itself, and so it is known what becomes of the session then (R26).
async fn answer(
    gateway: &Gateway,
    upstream: &Upstream,
    endpoint: Endpoint,
    request: Request<Incoming>,
    record: &mut Record,
    until: Instant,
) -> Result<Answer, Failed> {
    let (parts, body) = request.into_parts();
    let early = |error| gateway.early(&parts.headers, error);
    let steering = Steering::parse(&parts.headers).map_err(early)?;
    let body = read(&parts.headers, body, gateway.settings.gateway.max_body);
    let late = |_| early(Error::timeout("the request body took too long"));
    let body = timeout_at(until, body).await.map_err(late)?.map_err(|e| early(*e))?;
    let began = Instant::now();
    let given = Given { endpoint, headers: &parts.headers, steering: &steering, body: &body };
    let (mut ask, wish) = ask::of(gateway, upstream, given, record, until).await?;
    ask.note = record.note(began.elapsed());
    let mut headers = forward::request_headers(&parts, record);
    let body = with_usage(gateway, wish, body, &mut headers);
    let (parts, headers, streams) = (&parts, &headers, wish.streams);
    let (body, api) = (&body, endpoint.api());
    let to_send = Sending { gateway, upstream, parts, headers, body, streams, api, until };
    to_send.place(ask, record).await
}

/// Reads a body, whole and once.
async fn read(headers: &HeaderMap, mut body: Incoming, most: usize) -> Result<Bytes, Failed> {
    let told = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|n| n > most) {
        return Err(Error::too_large(most).into());
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let Some(frame) = next else { break };
        let broken = |_| Error::invalid("the request body broke off".to_owned());
        let Ok(chunk) = frame.map_err(broken)?.into_data() else { continue };
        if all.is_empty() && first.is_none() && told == Some(chunk.len()) {
            // All of it in one piece: no copy.
            first = Some(chunk);
            continue;
        }
        if all.is_empty() {
            all.reserve(told.unwrap_or(0).min(ROOM_AT_FIRST));
            all.extend_from_slice(&first.take().unwrap_or_default());
        }
        if all.len() + chunk.len() > most {
            return Err(Error::too_large(most).into());
        }
        all.extend_from_slice(&chunk);
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// The body as workers get it: the client's, and where the configuration says so, asking for a stream's usage.
fn with_usage(gateway: &Gateway, wish: Wish, body: Bytes, headers: &mut HeaderMap) -> Bytes {
    let asks = gateway.settings.index.verify == Verify::InjectUsage;
    if !asks || !wish.streams || wish.says_options {
        return body;
    }
    let Some(edited) = request::with_usage(&body) else { return body };
    // Its length was the client's; ours is told anew.
    headers.remove(CONTENT_LENGTH);
    edited.into()
}

/// A request that is ready to go out, to whichever worker.
struct Sending<'a> {
    gateway: &'a Gateway,
    upstream: &'a Upstream,
    parts: &'a Parts,
    headers: &'a HeaderMap,
    body: &'a Bytes,
    /// It wants a stream of events.
    streams: bool,
    api: ApiShape,
    /// When it is too late for everything.
    until: Instant,
}

/// What was read of an answer before its head is sent on.
enum Opening {
    Stream(Box<Begun>),
    /// Of one that nobody follows; its first bytes.
    Plain(Bytes),
}

/// What became of one dispatch.
enum Dispatched {
    /// The worker has begun to answer.
    Begun(Response<()>, Incoming, Opening),
    /// It answered with an error, which passes; and the first bytes of that.
    Error(Response<()>, Incoming, Bytes),
    /// It failed before it had begun.
    Failed(Failure),
    /// It let its first byte wait for too long.
    TimedOut,
}

impl Sending<'_> {
    /// Admits, dispatches, and moves on where it fails, until the core says no.
    async fn place(&self, mut ask: Ask, record: &mut Record) -> Result<Answer, Failed> {
        let shell = &self.gateway.shell;
        loop {
            if !(ask.prompt.chain.is_empty() && ask.text.chain.is_empty()) {
                let began = std::time::Instant::now();
                shell.core().look_up(&mut ask);
                ask.note.look_up = began.elapsed();
                shell.metrics().index_lookup.observe(ask.note.look_up.as_secs_f64());
            }
            let constrained = ask.constraints.is_some();
            let admitted = shell.admit(ask).await;
            let mut granted = admitted.map_err(|r| self.gateway.refusal(r, constrained))?;
            ask = loop {
                match self.attempt(granted, record).await? {
                    Attempt::Answered(answer) => return Ok(answer),
                    Attempt::Moved(next) => granted = next,
                    Attempt::Again(ask) => break ask,
                }
            };
        }
    }

    async fn attempt(&self, granted: Granted, record: &mut Record) -> Result<Attempt, Failed> {
        let mut checked = match granted.check() {
            Ok(checked) => checked,
            Err(ask) => return Ok(Attempt::Again(ask)),
        };
        let placement = checked.placement();
        let worker = checked.worker();
        record.attempts += 1;
        record.worker = Some(worker.spec.name.clone());
        record.rank = checked.rank();
        record.cached_tokens = record.cached_tokens.map(|_| placement.cached_tokens);
        match self.dispatch(&mut checked).await {
            Dispatched::Begun(mut response, body, begun) => {
                let (live, outcome) = checked.begin();
                self.gateway
                    .shell
                    .metrics()
                    .predicted_cached_tokens
                    .inc_by(u64::from(record.cached_tokens.unwrap_or(0)));
                record.outcome = outcome;
                forward::response_headers(response.headers_mut(), record);
                let body = match begun {
                    Opening::Stream(begun) => Answered::Stream(body, begun, live),
                    Opening::Plain(first) => Answered::Plain(body, first, Some(live)),
                };
                Ok(Attempt::Answered(Answer { response, body }))
            }
            Dispatched::Error(mut response, body, first) => {
                let outcome = match overloaded(&response) {
                    // Backpressure and no fault: somebody else may serve it; else the answer stands.
                    Some(failure) => match checked.failed(failure).await {
                        Ok(granted) => return Ok(Attempt::Moved(granted)),
                        Err(Refusal { cause: Cause::Answered, outcome, .. }) => outcome,
                        Err(refusal) => return Err(self.gateway.refusal(refusal, false).into()),
                    },
                    None => checked.answered_badly(),
                };
                record.outcome = outcome;
                forward::response_headers(response.headers_mut(), record);
                let body = Answered::Plain(body, first, None);
                Ok(Attempt::Answered(Answer { response, body }))
            }
            Dispatched::Failed(failure) => match checked.failed(failure).await {
                Ok(granted) => Ok(Attempt::Moved(granted)),
                Err(refusal) => Err(self.gateway.refusal(refusal, false).into()),
            },
            Dispatched::TimedOut => Err(Error::worker_timeout(checked.answered_badly()).into()),
        }
    }

    async fn dispatch(&self, checked: &mut Checked) -> Dispatched {
        let worker = checked.worker();
        let rank = checked.rank();
        let request = forward::request(self.parts, self.headers, &worker, rank, self.body);
        let Some(request) = request else {
            return Dispatched::Failed(Failure::Unreachable);
        };
        checked.dispatching();
        let patience = self.gateway.settings.upstream.first_token_timeout;
        // The head of an answer that is no stream comes when all of it is computed.
        let first_byte =
            if self.streams { self.until.min(Instant::now() + patience) } else { self.until };
        let response = match timeout_at(first_byte, self.upstream.send(request)).await {
            Ok(Ok(response)) => response,
            Err(_) => return Dispatched::TimedOut,
            Ok(Err((failure, why))) => {
                let worker = &*worker.spec.name;
                tracing::debug!(worker, ?failure, why, "a dispatch failed");
                return Dispatched::Failed(failure);
            }
        };
        let (mut head, mut body) = response.into_parts();
        // Ours is between us and the client; an answer of 1.0 would end wherever the connection does.
        head.version = Version::HTTP_11;
        let (status, response) = (head.status, Response::from_parts(head, ()));
        if !(200..600).contains(&status.as_u16()) {
            // Switching protocols, or a status that HTTP doesn't have: no answer to this request.
            return Dispatched::Failed(Failure::Broken);
        }
        let headers = response.headers();
        let kind = headers.get(CONTENT_TYPE).map(|v| v.as_bytes());
        let events = kind.is_some_and(|k| k.starts_with(b"text/event-stream"));
        // Of compressed events nothing can be seen: they pass like anything else.
        if !status.is_success() || !events || headers.contains_key(CONTENT_ENCODING) {
            return match timeout_at(first_byte, relay::first(&mut body)).await {
                Ok(Ok(first)) if status.is_success() => {
                    Dispatched::Begun(response, body, Opening::Plain(first))
                }
                Ok(Ok(first)) => Dispatched::Error(response, body, first),
                Ok(Err(_)) => Dispatched::Failed(Failure::Broken),
                Err(_) => Dispatched::TimedOut,
            };
        }
        match timeout_at(first_byte, relay::begin(&mut body, self.api)).await {
            Ok(Ok(begun)) => Dispatched::Begun(response, body, Opening::Stream(begun)),
            Ok(Err(_)) => Dispatched::Failed(Failure::Broken),
            Err(_) => Dispatched::TimedOut,
        }
    }
}

/// Whether the worker says that it is overloaded, and for how long.
fn overloaded(response: &Response<()>) -> Option<Failure> {
    let status = response.status();
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let number = |name: &str| response.headers().get(name)?.to_str().ok()?.trim().parse().ok();
    // The header in seconds is the standard; the one in milliseconds is OpenAI's, and finer. A date, which
    // the standard allows too, is as good as none: no engine sends it.
    let after = number("retry-after-ms")
        .map(Duration::from_millis)
        .or_else(|| number("retry-after").map(Duration::from_secs));
    Some(Failure::Overloaded(after))
}

enum Attempt {
    Answered(Answer),
    /// To another worker.
    Moved(Granted),
    /// Its session has moved: admit it anew.
    Again(Ask),
}
