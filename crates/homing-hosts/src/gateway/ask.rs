//! From a request to what the core must know of it: model, session, steering, prompt. Real requests and
//! previews are read by the same code.

use super::proxy::Failed;
use super::record::Record;
use super::reply::Error;
use super::service::Endpoint;
use super::steering::Steering;
use super::{Gateway, infer, prompt};
use bytes::Bytes;
use homing_core::affinity::Outcome;
use homing_core::ask::Ask;
use homing_core::hash::Prompt;
use homing_core::trust::Shape;
use homing_wire::errors::ApiShape;
use homing_wire::request::{
    ChatView, CommonView, CompletionView, MessagesView, Opening, RequestError, ResponsesView,
};
use http::HeaderMap;
use tokio::time::Instant;

/// How a request wants its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// As a stream of events.
    pub(super) streams: bool,
    /// Nothing has to be asked for its stream to tell the usage: it says something of `stream_options`, or its API
    /// tells it always.
    pub(super) says_options: bool,
}

/// Everything that the core must know of the request; and how it wants its answer.
pub(super) async fn of(
    gateway: &Gateway,
    endpoint: Endpoint,
    headers: &HeaderMap,
    steering: &Steering,
    body: &Bytes,
    record: &mut Record,
    until: Instant,
) -> Result<(Ask, Wish), Failed> {
    let core = gateway.shell.core();
    let secret = gateway.shell.secret();
    let View { common, opening, cut, parts } =
        view(gateway, endpoint, body).map_err(|e| gateway.early(headers, Error::request(&e)))?;
    let opening = || infer::hash(secret, opening?);
    let found = gateway.finder.find(headers, steering, &common, opening)?;
    if let Some(metrics) = record.metrics() {
        metrics.ignored_keys.inc_by(u64::from(found.ignored));
    }
    // What generates nothing is no turn of a session, and leaves nothing in a cache.
    let named = found.named.filter(|_| endpoint.generates());
    let with_session = named.is_some() && gateway.settings.affinity.ttl.is_some();
    let unroutable = |e| Error::route(&common.model, e).with_session(with_session);
    let route = core.route(&common.model).map_err(unroutable)?;
    record.model = Some(route.model.clone());
    // Tenants come with the gateway's keys; until then all callers are one.
    let session = named.map(|n| n.session(secret, "", &route.adapter));
    record.session = session.map(|session| secret.digest(session.key));
    if with_session {
        // True until something else is known: its client may leave at any point.
        record.outcome = Outcome::Unbound;
    }
    let says_options = common.says_stream_options || endpoint.api() != ApiShape::OpenAi;
    let wish = Wish { streams: common.stream, says_options };
    let constrain = |ask: &mut Ask| {
        (ask.explicit, ask.constraints) = (steering.explicit(), steering.constraints());
        ask.deadline = Some(gateway.shell.now() + until.saturating_duration_since(Instant::now()));
        ask.shape = endpoint.shape();
    };
    if !endpoint.generates() {
        let mut ask = Ask::new(route.partition, route.name, Prompt::default());
        constrain(&mut ask);
        return Ok((ask, wish));
    }
    let known = prompt::of(gateway, endpoint, &route, &common, cut, body).await;
    if let (Some(metrics), true) = (record.metrics(), known.untokenized) {
        metrics.untokenized.inc();
    }
    let exact = known.prompt.exact;
    record.prompt_tokens = exact.then_some(known.prompt.tokens);
    // What an engine leaves of a prompt that it cuts is not how its text begins.
    let text = match cut {
        true => Prompt::default(),
        false => prompt::text(gateway, &route, &common, &parts, exact),
    };
    // Zero stands for "predicted: nothing"; what is unknown says nothing.
    record.cached_tokens = (exact || text.block_size > 0).then_some(0);
    let mut ask = Ask::new(route.partition, route.name, known.prompt);
    if !exact && text.block_size > 0 {
        (ask.prompt.tokens, ask.prompt.block_size) = (text.tokens, text.block_size);
    }
    ask.text = text;
    ask.session = session;
    constrain(&mut ask);
    if !exact {
        ask.shape = Shape::Text;
    }
    Ok((ask, wish))
}

/// What routing must know of a body.
struct View<'a> {
    common: CommonView<'a>,
    /// How the conversation opens, where it is all there.
    opening: Option<Opening<'a>>,
    /// The engine is to cut its prompt.
    cut: bool,
    /// What the prompt is made of, in the engine's order: slices of the body.
    parts: Vec<&'a [u8]>,
}

fn view<'a>(
    gateway: &Gateway,
    endpoint: Endpoint,
    body: &'a [u8],
) -> Result<View<'a>, RequestError> {
    let paths = &gateway.body_paths;
    Ok(match endpoint {
        Endpoint::Chat => {
            let view = ChatView::parse(body, paths)?;
            let opening = Some(view.opening());
            let cut = view.template.truncate_prompt_tokens.is_some();
            let parts = view.text_parts();
            View { common: view.common, opening, cut, parts }
        }
        Endpoint::Completions => {
            let view = CompletionView::parse(body, paths)?;
            let cut = view.truncate_prompt_tokens.is_some();
            let parts = view.text_parts();
            View { common: view.common, opening: None, cut, parts }
        }
        Endpoint::Responses => {
            let view = ResponsesView::parse(body, paths)?;
            let (opening, parts) = (view.opening(), view.text_parts());
            View { common: view.common, opening, cut: false, parts }
        }
        Endpoint::Messages => {
            let view = MessagesView::parse(body, paths)?;
            let (opening, parts) = (Some(view.opening()), view.text_parts());
            View { common: view.common, opening, cut: false, parts }
        }
        Endpoint::CountTokens => {
            let common = MessagesView::parse(body, paths)?.common;
            View { common, opening: None, cut: false, parts: Vec::new() }
        }
    })
}
