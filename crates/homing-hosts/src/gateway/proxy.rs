//! The way of a request: read it, find its session and its prompt, admit it, look once more, dispatch,
//! wait until the worker has begun to answer, commit, relay. There is no session logic here: every
//! decision is the core's.

use super::access::Caller;
use super::ask::{Given, Wish};
use super::begin::Begun;
use super::dispatch::{Dispatched, Opening, overloaded};
use super::onward::{Again, Onward};
use super::pace::Pace;
use super::record::Record;
use super::relay::{Limits, Relay};
use super::reply::{self, Error, ReplyBody};
use super::room::{self, Place};
use super::service::Endpoint;
use super::spans::Spans;
use super::steering::Steering;
use super::{Gateway, ask, forward};
use bytes::Bytes;
use homing_core::ask::{Ask, Cause, Failure, Refusal};
use homing_runtime::guard::{Checked, Granted, Unsent};
use homing_runtime::settings::{self, Settings, Verify};
use homing_runtime::upstream::{AnswerBody, Outgoing, Upstream};
use homing_wire::errors::ApiShape;
use homing_wire::request::{self, Resumable, Resume};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Bytes of a body per token, where nobody has counted.
const BYTES_PER_TOKEN: u64 = 4;

/// Answers a request that workers serve.
pub(super) async fn handle(
    gateway: &Arc<Gateway>,
    upstream: &Upstream,
    pace: &Pace,
    caller: Caller,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let mut record = Record::start(gateway, request.headers(), endpoint.label(), endpoint.api());
    record.client = caller.client;
    record.tenant = Some(caller.tenant.clone()).filter(|name| !name.is_empty());
    let settings = caller.access.settings.clone();
    let until = Instant::now() + settings.gateway.request_timeout;
    pace.begin(until);
    match answer(gateway, upstream, &caller, endpoint, request, &mut record, until).await {
        Ok(Answer { response, body, idle }) => {
            record.status = response.status().as_u16();
            let pace = pace.clone();
            let limits = Limits { idle, until, pace, gone: record.gone.take() };
            let onward = record.onward.take();
            let relay = match body {
                Answered::Plain(body, first, live) => {
                    let kind = response.headers().get(CONTENT_TYPE).map(|v| v.as_bytes());
                    let json = kind.is_some_and(|k| k.starts_with(b"application/json"));
                    Relay::plain(body, first, live, record, limits, json)
                }
                Answered::Stream(body, begun, live) => {
                    Relay::stream(body, begun, live, record, limits, onward)
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
pub(super) struct Answer {
    pub(super) response: Response<()>,
    pub(super) body: Answered,
    /// How long its worker may be silent.
    pub(super) idle: Duration,
}

pub(super) enum Answered {
    Plain(AnswerBody, Bytes, Option<homing_runtime::guard::Live>),
    Stream(AnswerBody, Box<Begun>, homing_runtime::guard::Live),
}

pub(super) type Failed = Box<Error>;

/// Every part of it ends at `until` by itself, and so it is known what becomes of the session then (R26).
async fn answer(
    gateway: &Arc<Gateway>,
    upstream: &Upstream,
    caller: &Caller,
    endpoint: Endpoint,
    request: Request<Incoming>,
    record: &mut Record,
    until: Instant,
) -> Result<Answer, Failed> {
    let (parts, body) = request.into_parts();
    let early = |error| gateway.early(&parts.headers, error);
    let settings = &caller.access.settings;
    let steering = Steering::parse(&parts.headers).map_err(early)?;
    if steering.steers() && !caller.may_steer() {
        let text = "the caller may not name workers, labels or a priority (gateway.steering)";
        return Err(early(Error::not_allowed(text)).into());
    }
    enter(gateway, caller, &parts.headers, record).map_err(early)?;
    let wait = (&gateway.room, settings.queue.max_wait);
    let body = room::read(&parts.headers, body, settings.gateway.max_body, wait);
    let late = |_| early(Error::timeout("the request body took too long"));
    let body = timeout_at(until, body).await.map_err(late)?.map_err(|e| early(*e))?;
    let (body, trailers, place) = body;
    let began = Instant::now();
    let (body, renamed) = admitted_model(caller, body).map_err(|e| early(*e))?;
    let read_as = match endpoint {
        Endpoint::PassThrough if request::model_of(&body).is_none() => {
            stand_in(gateway, caller, &parts).map_err(|e| early(*e))?
        }
        _ => body.clone(),
    };
    let headers = &parts.headers;
    let given = Given { endpoint, caller, headers, steering: &steering, body: &read_as };
    let (mut ask, wish) = ask::of(gateway, upstream, given, record, until).await?;
    ask.note = record.note(began.elapsed());
    drop(read_as);
    let (span, takes_keys) = (record.spans.as_ref().map(Spans::header), caller.access.takes_keys());
    let mut headers = forward::request_headers(&parts, &record.request_id, span, takes_keys);
    if renamed {
        // Its length was the client's; ours is told anew.
        headers.remove(CONTENT_LENGTH);
    }
    let body = with_usage(settings, wish, body, &mut headers);
    let said = settings.retry.resume.then(|| resumable(endpoint, wish, &body)).flatten();
    let body = forward::body(&parts, body, trailers, &mut headers);
    record.onward = said.map(|said| {
        let again = Again {
            gateway: gateway.clone(),
            upstream: upstream.clone(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            headers: headers.clone(),
            ask: ask.clone(),
            api: endpoint.api(),
            endpoint: endpoint.label(),
            until,
        };
        Box::new(Onward::new(said, again))
    });
    let (parts, headers, streams) = (&parts, &headers, wish.streams);
    let (api, place) = (endpoint.api(), Some(place));
    let mut to_send =
        Sending { gateway, upstream, parts, headers, body, place, streams, api, until };
    to_send.place(ask, record).await
}

/// What it takes to go on with a stream in the middle, where that could be done faithfully.
fn resumable(endpoint: Endpoint, wish: Wish, body: &[u8]) -> Option<Resume> {
    let api = match endpoint {
        Endpoint::Chat => Resumable::Chat,
        Endpoint::Completions => Resumable::Completions,
        _ => return None,
    };
    wish.streams.then(|| Resume::of(api, body)).flatten()
}

/// Counts the request among its tenant's.
fn enter(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    headers: &HeaderMap,
    record: &mut Record,
) -> Result<(), Error> {
    let limits = caller.limits();
    if limits == settings::Limits::default() {
        return Ok(());
    }
    let prompt = told_length(headers) / BYTES_PER_TOKEN;
    let entered = gateway.tenants.enter(&caller.tenant, limits, prompt, gateway.shell.now());
    record.entered = Some(entered.map_err(|limited| Error::limited(&limited))?);
    Ok(())
}

/// How long a body is by the word of its head; 0 where that says nothing.
pub(super) fn told_length(headers: &HeaderMap) -> u64 {
    let told = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    told.unwrap_or(0)
}

/// Looks whether the caller may use the model that a body names, and puts the name in the place of its alias; true
/// if the body has changed by that.
pub(super) fn admitted_model(caller: &Caller, body: Bytes) -> Result<(Bytes, bool), Failed> {
    if caller.may_use_all() && !caller.access.has_aliases() {
        return Ok((body, false));
    }
    let Some(model) = request::model_of(&body) else {
        if caller.may_use_all() || body.is_empty() {
            // What names none is told so where it is read.
            return Ok((body, false));
        }
        // An engine may read more than is read here: another encoding, a form.
        let text = "the caller may use some models only, and the body doesn't name one as a JSON object, once";
        return Err(Error::not_allowed(text).into());
    };
    if !caller.may_use(&model) {
        // Whether there is such a model is not said.
        return Err(Error::not_allowed("the caller may not use this model").into());
    }
    let Some(name) = caller.access.alias(&model) else { return Ok((body, false)) };
    Ok(request::with_model(&body, name).map_or((body, false), |edited| (edited.into(), true)))
}

/// What a request of a passed path is read as where its body names no model: as if it named that of `?model=`, or
/// the only one that there is. What is sent stays as it came.
fn stand_in(gateway: &Gateway, caller: &Caller, parts: &Parts) -> Result<Bytes, Failed> {
    let query = parts.uri.query().unwrap_or_default();
    let named = query.split('&').find_map(|pair| pair.strip_prefix("model=")).map(str::to_owned);
    let model = named.or_else(|| match gateway.shell.core().served_models().as_slice() {
        [(name, _)] => Some(name.to_string()),
        _ => None,
    });
    let Some(model) = model else {
        let text = "the request names no model, and there are several: add ?model=NAME to its path";
        return Err(Error::invalid(text.to_owned()).into());
    };
    let body = Bytes::from(serde_json::json!({ "model": model }).to_string());
    Ok(admitted_model(caller, body)?.0)
}

/// The body as workers get it: the client's, and where the configuration says so, asking for a stream's usage.
fn with_usage(settings: &Settings, wish: Wish, body: Bytes, headers: &mut HeaderMap) -> Bytes {
    let asks = settings.index.verify == Verify::InjectUsage;
    if !asks || !wish.streams || wish.says_options {
        return body;
    }
    let Some(edited) = request::with_usage(&body) else { return body };
    // Its length was the client's; ours is told anew.
    headers.remove(CONTENT_LENGTH);
    edited.into()
}

/// A request that is ready to go out, to whichever worker.
pub(super) struct Sending<'a> {
    pub(super) gateway: &'a Arc<Gateway>,
    pub(super) upstream: &'a Upstream,
    pub(super) parts: &'a Parts,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Outgoing,
    /// Its body's place in memory; `None` once it was let go to make room for others: it can't be sent again then.
    pub(super) place: Option<Place>,
    /// It wants a stream of events.
    pub(super) streams: bool,
    pub(super) api: ApiShape,
    /// When it is too late for everything.
    pub(super) until: Instant,
}

/// What is awaited where an attempt has failed is awaited out of line: its state is large, and every request would
/// carry it.
impl Sending<'_> {
    /// Admits, dispatches, and moves on where it fails, until the core says no.
    pub(super) async fn place(
        &mut self,
        mut ask: Box<Ask>,
        record: &mut Record,
    ) -> Result<Answer, Failed> {
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

    async fn attempt(&mut self, granted: Granted, record: &mut Record) -> Result<Attempt, Failed> {
        let mut checked = match granted.check().await {
            Ok(checked) => checked,
            Err(Unsent::Again(ask)) => return Ok(Attempt::Again(ask)),
            Err(Unsent::Refused(refusal)) => {
                return Err(self.gateway.refusal(refusal, false).into());
            }
        };
        let placement = checked.placement();
        let worker = checked.worker();
        record.attempts += 1;
        record.placed();
        record.worker = Some(worker.spec.name.clone());
        record.worker_id = Some(worker.id);
        record.rank = checked.rank();
        record.cached_tokens = record.cached_tokens.map(|_| placement.cached_tokens);
        let Some(link) = self.gateway.shell.links().of(&worker) else {
            // It has departed since it was looked at.
            return Box::pin(self.elsewhere(checked, Failure::Unreachable)).await;
        };
        let idle = link.idle_timeout;
        match self.dispatch(&link, &mut checked, record).await {
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
                Ok(Attempt::Answered(Answer { response, body, idle }))
            }
            Dispatched::Error(mut response, body, first) => {
                let outcome = match overloaded(&response) {
                    // Backpressure and no fault: somebody else may serve it; else the answer stands.
                    Some(failure) if self.place.is_some() => {
                        match Box::pin(checked.failed(failure)).await {
                            Ok(granted) => return Ok(Attempt::Moved(granted)),
                            Err(Refusal { cause: Cause::Answered, outcome, .. }) => outcome,
                            Err(refusal) => {
                                return Err(self.gateway.refusal(refusal, false).into());
                            }
                        }
                    }
                    // Whose fault it is.
                    _ if response.status().is_server_error() => checked.answered_badly(),
                    _ => checked.answered(),
                };
                record.outcome = outcome;
                forward::response_headers(response.headers_mut(), record);
                let body = Answered::Plain(body, first, None);
                Ok(Attempt::Answered(Answer { response, body, idle }))
            }
            Dispatched::Failed(_) if self.place.is_none() => {
                Err(Error::broke_off(checked.answered_badly()).into())
            }
            Dispatched::Failed(failure) => Box::pin(self.elsewhere(checked, failure)).await,
            Dispatched::TimedOut => Err(Error::worker_timeout(checked.answered_badly()).into()),
            // It may have run, and nobody knows: as if its client had left.
            Dispatched::Cut => Err(Error::draining().into()),
        }
    }

    /// What has failed before its worker had begun goes to another, if there is one.
    async fn elsewhere(&self, checked: Checked, failure: Failure) -> Result<Attempt, Failed> {
        match checked.failed(failure).await {
            Ok(granted) => Ok(Attempt::Moved(granted)),
            Err(refusal) => Err(self.gateway.refusal(refusal, false).into()),
        }
    }
}

enum Attempt {
    Answered(Answer),
    /// To another worker.
    Moved(Granted),
    /// Its session has moved: admit it anew.
    Again(Box<Ask>),
}
