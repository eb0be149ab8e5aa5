//! From a request's body to the chain of its blocks, where that is possible and worth it.

use super::ask::{Given, View};
use super::service::Endpoint;
use super::{Gateway, Source, tokens};
use bytes::Bytes;
use homing_core::fleet::Route;
use homing_core::hash::{HashSpace, Prompt};
use homing_core::time::Time;
use homing_prompt::{ChatBody, ModelPrompt, PromptError, Specials};
use homing_runtime::settings::{IndexSource, Model};
use homing_runtime::upstream::Upstream;
use homing_wire::request::{CommonView, CompletionView};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Text up to this long is tokenized on the I/O thread (some 1 ms); more goes to the pool.
const INLINE: usize = 4 << 10;
/// A prompt is waited for so long; the largest take a fifth of it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a body per token, where nobody has counted: only a measure of load.
const BYTES_PER_TOKEN: usize = 4;

/// A prompt, as far as it is known.
pub(super) struct Known {
    pub(super) prompt: Prompt,
    /// It should have been tokenized, and could not be.
    pub(super) untokenized: bool,
}

/// The prompt of a request. Never an error: what can't be tokenized here is routed without, and the
/// worker judges it (F18).
pub(super) async fn of(
    gateway: &Gateway,
    upstream: &Upstream,
    route: &Route,
    view: &View<'_>,
    given: &Given<'_>,
    counts: bool,
) -> Known {
    let (endpoint, body, common) = (given.endpoint, given.body, view.common());
    let guessed = || Known { prompt: Prompt::of_length(guess(body)), untokenized: false };
    if matches!(gateway.settings().index.source, IndexSource::Off | IndexSource::Approximate) {
        return guessed();
    }
    let Some((source, model)) = gateway.prompts.get(&*common.model) else { return guessed() };
    // Before the first event nothing is known to be cached, and no block size either.
    let Some(block_size) = gateway.shell.core().block_size(route.partition) else {
        return guessed();
    };
    let without = |why| {
        tracing::debug!(why, "a prompt is routed without exact tokens");
        Known { untokenized: true, ..guessed() }
    };
    if view.is_cut() {
        return without("which of its tokens stay is the engine's to say");
    }
    let space = HashSpace::new(&route.adapter, &common.cache_salt);
    let tokenizer = match source {
        Source::Here(tokenizer) => tokenizer,
        Source::Engines => {
            let request =
                tokens::Request { endpoint, route, model, body, space, block_size, counts };
            return match Box::pin(tokens::prompt(gateway, upstream, &request)).await {
                Ok(prompt) => Known { prompt, untokenized: false },
                Err(why) => without(why),
            };
        }
    };
    let (tokenizer, model, body) = (tokenizer.clone(), model.clone(), body.clone());
    let now = gateway.shell.now();
    let job = Job { tokenizer, model, endpoint, body, space, block_size, now };
    let tokenized = if job.body.len() <= INLINE {
        Some(job.run(&|| true))
    } else {
        Box::pin(gateway.pool.run_while(PATIENCE, move |wanted| job.run(wanted))).await.ok()
    };
    match tokenized {
        Some(Ok(prompt)) => Known { prompt, untokenized: false },
        // Only the kind: the error's text may quote the prompt.
        Some(Err(error)) => without(kind(&error)),
        None => without("the compute pool is behind"),
    }
}

/// About how many tokens a body has.
pub(super) fn guess(body: &[u8]) -> u32 {
    u32::try_from(body.len() / BYTES_PER_TOKEN).unwrap_or(u32::MAX)
}

/// Whether the prompt is wanted as text: somebody is known by nothing else, or its tokens are not known.
pub(super) fn wants_text(gateway: &Gateway, route: &Route, exact: bool) -> bool {
    match gateway.settings().index.source {
        IndexSource::Auto => !exact || gateway.shell.core().wants_text(route.partition),
        IndexSource::Approximate => true,
        IndexSource::Events | IndexSource::Off => false,
    }
}

/// The prompt as text.
pub(super) fn text(route: &Route, common: &CommonView<'_>, parts: &[&[u8]]) -> Prompt {
    Prompt::from_text(parts, HashSpace::new(&route.adapter, &common.cache_salt))
}

/// A prompt to be tokenized.
struct Job {
    tokenizer: Arc<ModelPrompt>,
    model: Arc<Model>,
    endpoint: Endpoint,
    body: Bytes,
    space: HashSpace,
    block_size: u32,
    now: Time,
}

impl Job {
    fn run(&self, wanted: &dyn Fn() -> bool) -> Result<Prompt, PromptError> {
        let (tokenizer, body) = (&self.tokenizer, &self.body);
        let chat = match self.endpoint {
            Endpoint::Embeddings | Endpoint::PassThrough => return Ok(Prompt::default()),
            Endpoint::Chat => ChatBody::parse(body)?,
            Endpoint::Responses => ChatBody::from_responses(body)?,
            Endpoint::Messages | Endpoint::CountTokens => {
                ChatBody::from_messages(body, tokenizer.habits())?
            }
            Endpoint::Completions => return self.completion(wanted),
        };
        let mut input = chat.input(Some(self.now))?;
        let kwargs;
        if !self.model.chat_template_kwargs.is_empty() {
            kwargs = Value::Object(merged(&self.model, input.chat_template_kwargs));
            input.chat_template_kwargs = Some(&kwargs);
        }
        tokenizer.chat_prompt_while(&input, self.block_size, self.space, wanted)
    }

    fn completion(&self, wanted: &dyn Fn() -> bool) -> Result<Prompt, PromptError> {
        let malformed = |e: String| PromptError::Malformed(e);
        let view = CompletionView::parse(&self.body, &Default::default());
        let view = view.map_err(|e| malformed(e.to_string()))?;
        let Some(raw) = view.prompt else {
            return Err(PromptError::Unsupported("prompt embeddings"));
        };
        let value: Value = serde_json::from_str(raw.get()).map_err(|e| malformed(e.to_string()))?;
        let specials = match view.add_special_tokens {
            Some(false) => Specials::Omit,
            _ => Specials::Add,
        };
        let (block_size, space) = (self.block_size, self.space);
        self.tokenizer.completion_prompt_while(&value, specials, block_size, space, wanted)
    }
}

pub(super) fn kind(error: &PromptError) -> &'static str {
    match error {
        PromptError::Malformed(_) => "malformed request",
        PromptError::Unsupported(what) => what,
        PromptError::NoTemplate => "the model has no chat template",
        PromptError::Refused(_) => "the template refuses the conversation",
        PromptError::Template(_) => "the template failed",
        PromptError::OutOfFuel { .. } => "the template takes too many steps",
        PromptError::TooLong { .. } => "the text is too long",
        PromptError::Unbroken { .. } => "the text is too long between two special tokens",
        PromptError::Unwanted => "the compute pool is behind",
        PromptError::Tokenizer(_) => "the tokenizer failed",
    }
}

/// The engine's own defaults first; what the request says wins.
fn merged(model: &Model, request: Option<&Value>) -> serde_json::Map<String, Value> {
    let mut all = model.chat_template_kwargs.clone();
    if let Some(Value::Object(own)) = request {
        all.extend(own.clone());
    }
    all
}
