//! From a request to what the core must know of it: model, session, steering, prompt. Real requests and
//! previews are read by the same code.

use super::access::Caller;
use super::proxy::Failed;
use super::record::{Record, Trace};
use super::reply::Error;
use super::service::Endpoint;
use super::steering::Steering;
use super::{Gateway, infer, prompt};
use bytes::Bytes;
use homing_core::affinity::Outcome;
use homing_core::ask::Ask;
use homing_core::fleet::{Route, RouteError};
use homing_core::hash::Prompt;
use homing_core::trust::Shape;
use homing_runtime::upstream::Upstream;
use homing_wire::errors::ApiShape;
use homing_wire::request::{
    ChatView, CommonView, CompletionView, MessagesView, Opening, RequestError, ResponsesView,
};
use http::HeaderMap;
use std::time::Duration;
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

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    pub(super) endpoint: Endpoint,
    pub(super) caller: &'a Caller,
    pub(super) headers: &'a HeaderMap,
    pub(super) steering: &'a Steering,
    pub(super) body: &'a Bytes,
}

/// Everything that the core must know of the request; and how it wants its answer. `upstream`: an engine may have to
/// say what tokens its prompt has.
pub(super) async fn of(
    gateway: &Gateway,
    upstream: &Upstream,
    given: Given<'_>,
    record: &mut Record,
    until: Instant,
) -> Result<(Box<Ask>, Wish), Failed> {
    let Given { endpoint, caller, headers, steering, body } = given;
    let settings = &caller.access.settings;
    record.prompt_guess = prompt::guess(body);
    let core = gateway.shell.core();
    let secret = gateway.shell.secret();
    let view = View::parse(gateway, endpoint, body)
        .map_err(|e| gateway.early(headers, Error::request(&e)))?;
    let (common, cut) = (view.common(), view.is_cut());
    // What only counts tokens is no turn, and has no opening that anything could be inferred from.
    let opening = || infer::hash(secret, view.opening().filter(|_| endpoint.generates())?);
    let found = gateway.finder.find(headers, steering, common, opening)?;
    if let Some(metrics) = record.metrics() {
        metrics.ignored_keys.inc_by(u64::from(found.ignored));
    }
    // What generates nothing is no turn of a session, and leaves nothing in a cache.
    let named = found.named.filter(|_| endpoint.generates());
    let with_session = named.is_some() && settings.affinity.ttl.is_some();
    let unroutable = |e| Error::route(&common.model, e).with_session(with_session);
    let route = match core.route(&common.model) {
        Err(RouteError::Unknown) if record.metrics().is_some() => {
            route_after_refresh(gateway, &common.model).await
        }
        routed => routed,
    };
    let route = route.map_err(unroutable)?;
    record.model = Some(route.model.clone());
    let session = named.map(|n| n.session(secret, &caller.tenant, &route.adapter));
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
        ask.priority = caller.priority(steering.priority);
        (ask.tenant, ask.max_sessions) = (caller.number(), caller.limits().max_sessions);
        ask.whole = !common.stream;
    };
    if !endpoint.generates() {
        // Of embeddings and the like the length is a measure of the work, too.
        let tokens = if endpoint == Endpoint::CountTokens { 0 } else { record.prompt_guess };
        let mut ask = Box::new(Ask::new(route.partition, route.name, Prompt::of_length(tokens)));
        constrain(&mut ask);
        return Ok((ask, wish));
    }
    let counts = record.metrics().is_some();
    let known = prompt::of(gateway, upstream, &route, &view, &given, counts).await;
    if let (Some(metrics), true) = (record.metrics(), known.untokenized) {
        metrics.untokenized.inc();
    }
    let exact = known.prompt.exact;
    record.prompt_tokens = exact.then_some(known.prompt.tokens);
    // What an engine leaves of a prompt that it cuts is not how its text begins.
    let text = match !cut && prompt::wants_text(gateway, &route, exact) {
        true => prompt::text(&route, common, &view.text_parts()),
        false => Prompt::default(),
    };
    if let Some(recorder) = gateway.recorder.clone().filter(|_| record.metrics().is_some()) {
        let prompt = match text.block_size > 0 {
            _ if exact || cut => known.prompt.clone(),
            true => text.clone(),
            false => prompt::text(&route, common, &view.text_parts()),
        };
        record.trace = Some(Box::new(Trace { recorder, prompt }));
    }
    // Zero stands for "predicted: nothing"; what is unknown says nothing.
    record.cached_tokens = (exact || text.block_size > 0).then_some(0);
    let mut ask = Box::new(Ask::new(route.partition, route.name, known.prompt));
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

/// Where requests for a model go that nobody was known to serve, once workers have been asked anew: adapters come and go,
/// and a client may hear of one before the router does.
async fn route_after_refresh(gateway: &Gateway, model: &str) -> Result<Route, RouteError> {
    const PATIENCE: Duration = Duration::from_millis(500);
    const LOOK: Duration = Duration::from_millis(10);
    let core = gateway.shell.core();
    if !gateway.shell.refresh_models() {
        return core.route(model);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        tokio::time::sleep(LOOK).await;
        match core.route(model) {
            Err(RouteError::Unknown) if Instant::now() < until => {}
            routed => return routed,
        }
    }
}

/// What routing must know of a body.
pub(super) enum View<'a> {
    Chat(ChatView<'a>),
    Completions(CompletionView<'a>),
    Responses(ResponsesView<'a>),
    Messages(MessagesView<'a>),
    /// Nothing of it is a prompt that a cache could hold.
    Plain(CommonView<'a>),
}

impl<'a> View<'a> {
    fn parse(gateway: &Gateway, endpoint: Endpoint, body: &'a [u8]) -> Result<Self, RequestError> {
        let paths = &gateway.body_paths;
        Ok(match endpoint {
            Endpoint::Chat => Self::Chat(ChatView::parse(body, paths)?),
            Endpoint::Completions => Self::Completions(CompletionView::parse(body, paths)?),
            Endpoint::Responses => Self::Responses(ResponsesView::parse(body, paths)?),
            Endpoint::Messages | Endpoint::CountTokens => {
                Self::Messages(MessagesView::parse(body, paths)?)
            }
            Endpoint::Embeddings | Endpoint::PassThrough => {
                Self::Plain(CommonView::parse(body, paths)?)
            }
        })
    }

    pub(super) fn common(&self) -> &CommonView<'a> {
        match self {
            Self::Chat(view) => &view.common,
            Self::Completions(view) => &view.common,
            Self::Responses(view) => &view.common,
            Self::Messages(view) => &view.common,
            Self::Plain(common) => common,
        }
    }

    /// How the conversation opens, where it is all there.
    fn opening(&self) -> Option<Opening<'a>> {
        match self {
            Self::Chat(view) => Some(view.opening()),
            Self::Completions(_) | Self::Plain(_) => None,
            Self::Responses(view) => view.opening(),
            Self::Messages(view) => Some(view.opening()),
        }
    }

    /// The engine is to cut its prompt.
    pub(super) fn is_cut(&self) -> bool {
        match self {
            Self::Chat(view) => view.template.truncate_prompt_tokens.is_some(),
            Self::Completions(view) => view.truncate_prompt_tokens.is_some(),
            Self::Responses(_) | Self::Messages(_) | Self::Plain(_) => false,
        }
    }

    /// What the prompt is made of, in the engine's order: slices of the body, which is read again for them.
    fn text_parts(&self) -> Vec<&'a [u8]> {
        match self {
            Self::Chat(view) => view.text_parts(),
            Self::Completions(view) => view.text_parts(),
            Self::Responses(view) => view.text_parts(),
            Self::Messages(view) => view.text_parts(),
            Self::Plain(_) => Vec::new(),
        }
    }
}
