//! A prompt's tokens from the engine's own `/tokenize`, for models that are configured so
//! (`[[models]] tokenizer = "engine"`). A ready worker of the pool is asked, the one with least to do.
//!
//! It may never make a request worse than without: a question has [`PATIENCE`] from the body to the tokens, only so
//! many are on their way, an answer is believed only where it can be one, and who doesn't answer well is left alone
//! for a while (`pauses`). What fails is compared by its text, and counted. What was answered is remembered
//! (`memory`), by everything that decides a prompt.

mod memory;
mod pauses;

use super::Gateway;
use super::service::Endpoint;
use bytes::Bytes;
use homing_core::ask::Failure;
use homing_core::fleet::{Route, WorkerInfo};
use homing_core::hash::{HashSpace, Prompt};
use homing_prompt::{ChatBody, PromptError, TEXT_LIMIT};
use homing_runtime::ask::Ask;
use homing_runtime::metrics::Asked;
use homing_runtime::settings::Model;
use homing_runtime::upstream::Upstream;
use homing_wire::engine::parse_tokens;
use homing_wire::request::{CompletionView, PromptInput};
use memory::{Answer, Memory};
use parking_lot::Mutex;
use pauses::Pauses;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long a request may wait for its tokens, all in all.
const PATIENCE: Duration = Duration::from_millis(250);
/// Questions on their way at once.
const AT_ONCE: usize = 64;
/// The longest question, in bytes. A longer prompt would hardly be answered in time.
const LONGEST: usize = 2 << 20;
/// Whoever doesn't answer one of up to this length in time is left alone; a longer one may just be too long.
const SHORT: usize = 64 << 10;
/// What is done on the I/O thread, in bytes of a body or an answer; more goes to the pool.
const INLINE: usize = 64 << 10;
/// Tokens that a template may add. Each of the others stands for a byte of the question at least.
const OF_TEMPLATES: usize = 64 << 10;
/// Bytes of a token in an answer: ten digits, a comma and a space.
const BYTES_PER_TOKEN: usize = 12;

/// What is shared by all that ask. See the module.
#[derive(Debug)]
pub(super) struct EngineTokens {
    places: Semaphore,
    memory: Mutex<Memory>,
    pauses: Mutex<Pauses>,
}

impl Default for EngineTokens {
    fn default() -> Self {
        let (memory, pauses) = Default::default();
        Self { places: Semaphore::new(AT_ONCE), memory, pauses }
    }
}

/// What a request's prompt needs to have tokens.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// Nothing: it came as these, or as several lists with so many tokens in all.
    Nothing { first: Vec<u32>, total: usize },
    /// This question, answered.
    Answer(Bytes),
}

/// The request, as far as its prompt goes.
pub(super) struct Request<'a> {
    pub(super) endpoint: Endpoint,
    pub(super) route: &'a Route,
    pub(super) model: &'a Arc<Model>,
    pub(super) body: &'a Bytes,
    pub(super) space: HashSpace,
    pub(super) block_size: u32,
    /// Whether it counts, or is only looked at (R16).
    pub(super) counts: bool,
}

/// The prompt of a request.
///
/// # Errors
/// Why it has no exact tokens.
pub(super) async fn prompt(
    gateway: &Gateway,
    upstream: &Upstream,
    request: &Request<'_>,
) -> Result<Prompt, &'static str> {
    let until = Instant::now() + PATIENCE;
    let (model, body) = (request.model.clone(), request.body.clone());
    // An adapter's name, or the model's own: what the engine knows it by.
    let (endpoint, name) = (request.endpoint, request.route.model.clone());
    let wanted = inline(gateway, body.len(), until, move || {
        wanted(endpoint, &name, &model, &body).map_err(|error| super::prompt::kind(&error))
    });
    let (tokens, total) = match wanted.await?? {
        Wanted::Nothing { first, total } => (first.into(), total),
        Wanted::Answer(question) => {
            let (tokens, how) = answer(gateway, upstream, request.route, question, until).await;
            if request.counts {
                gateway.shell.metrics().asked(how);
            }
            let tokens = tokens.ok_or(how.why())?;
            let total = tokens.len();
            (tokens, total)
        }
    };
    let (space, block_size) = (request.space, request.block_size);
    inline(gateway, tokens.len() * 4, until, move || {
        let mut prompt = Prompt::from_tokens(&tokens, block_size, space);
        prompt.tokens = u32::try_from(total).unwrap_or(u32::MAX);
        prompt
    })
    .await
}

/// Does it here, or on the pool where it is about so many bytes.
async fn inline<T: Send + 'static>(
    gateway: &Gateway,
    bytes: usize,
    until: Instant,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, &'static str> {
    if bytes <= INLINE {
        return Ok(job());
    }
    let left = until.saturating_duration_since(Instant::now());
    gateway.pool.run(left, job).await.map_err(|_| "the compute pool is behind")
}

/// What a body's prompt needs. `name`: what the engine serves it as.
fn wanted(
    endpoint: Endpoint,
    name: &str,
    model: &Model,
    body: &[u8],
) -> Result<Wanted, PromptError> {
    let chat = match endpoint {
        Endpoint::Chat => ChatBody::parse(body)?,
        Endpoint::Responses => ChatBody::from_responses(body)?,
        Endpoint::Messages | Endpoint::CountTokens => ChatBody::from_messages(body, None)?,
        Endpoint::Completions => return completion(name, body),
        Endpoint::Embeddings | Endpoint::PassThrough => {
            return Err(PromptError::Unsupported("what is no prompt"));
        }
    };
    asking(chat.question(name, &model.chat_template_kwargs)?)
}

fn completion(name: &str, body: &[u8]) -> Result<Wanted, PromptError> {
    let malformed = |e: homing_wire::request::RequestError| PromptError::Malformed(e.to_string());
    let view = CompletionView::parse(body, &Default::default()).map_err(malformed)?;
    let raw = view.prompt.ok_or(PromptError::Unsupported("prompt embeddings"))?;
    let text = match PromptInput::parse(raw).map_err(malformed)? {
        PromptInput::Tokens(ids) => return given(vec![ids]),
        PromptInput::TokenLists(lists) => return given(lists),
        PromptInput::Text(text) => text,
        PromptInput::Texts(mut texts) if texts.len() == 1 => texts.remove(0),
        PromptInput::Texts(_) => {
            return Err(PromptError::Unsupported(
                "several texts, of which the engine is not asked",
            ));
        }
    };
    let specials = view.add_special_tokens.unwrap_or(true);
    let body = json!({"model": name, "prompt": text, "add_special_tokens": specials});
    asking(body.to_string().into_bytes())
}

/// Of prompts that came as token ids.
fn given(lists: Vec<Vec<u32>>) -> Result<Wanted, PromptError> {
    let total: usize = lists.iter().map(Vec::len).sum();
    if size_of::<u32>() * total > TEXT_LIMIT {
        return Err(PromptError::TooLong { limit: TEXT_LIMIT });
    }
    match lists.into_iter().next() {
        Some(first) if !first.is_empty() => Ok(Wanted::Nothing { first, total }),
        _ => Err(PromptError::Malformed("prompt is an empty list".to_owned())),
    }
}

fn asking(question: Vec<u8>) -> Result<Wanted, PromptError> {
    if question.len() > LONGEST {
        return Err(PromptError::TooLong { limit: LONGEST });
    }
    Ok(Wanted::Answer(question.into()))
}

/// The answer to a question, if there is one, and how it came about.
async fn answer(
    gateway: &Gateway,
    upstream: &Upstream,
    route: &Route,
    question: Bytes,
    until: Instant,
) -> (Option<Arc<[u32]>>, Asked) {
    let (shared, core) = (&gateway.engines, gateway.shell.core());
    let lives = |by: &WorkerInfo| core.worker_named(&by.spec.name) == Some(by.id);
    let remembered = shared.memory.lock().get(route.partition, &question, lives);
    if remembered.is_some() {
        return (remembered, Asked::Remembered);
    }
    // Never closed, so only an error where all are taken.
    let Ok(_place) = shared.places.try_acquire() else { return (None, Asked::Busy) };
    let able = core.ready_by_load(route.partition, route.name);
    let now = Instant::now();
    let left = until.saturating_duration_since(now);
    let found = {
        let mut pauses = shared.pauses.lock();
        able.into_iter().find(|worker| pauses.may_ask(worker.id, now, PATIENCE))
    };
    let Some(worker) = found else { return (None, Asked::Paused) };
    // It has departed just now.
    let Some(link) = gateway.shell.links().of(&worker) else { return (None, Asked::Failed) };
    let ask = Ask { upstream: upstream.clone(), link, timeout: left };
    let most = question.len() + OF_TEMPLATES;
    let answer = ask.post("/tokenize", question.clone(), most * BYTES_PER_TOKEN).await;
    let fault = match answer {
        Ok((200, body)) => {
            let tokens = inline(gateway, body.len(), until, move || tokens(&body, most)).await;
            match tokens {
                Ok(Some(tokens)) => {
                    shared.pauses.lock().answered(worker.id);
                    let answer = Answer { tokens: tokens.clone(), by: worker };
                    shared.memory.lock().put(route.partition, question, answer);
                    return (Some(tokens), Asked::Answered);
                }
                Ok(None) => Asked::Nonsense,
                // It has answered; we are behind.
                Err(_) => {
                    shared.pauses.lock().answered(worker.id);
                    return (None, Asked::Slow);
                }
            }
        }
        // No such path, or not for us.
        Ok((401 | 403 | 404 | 405 | 501, _)) => {
            shared.pauses.lock().never(worker.id, Instant::now());
            return (None, Asked::Refused);
        }
        // Its own template, or a limit of its own, refuses this one.
        Ok((status @ 400..=499, _)) if status != 429 => {
            shared.pauses.lock().answered(worker.id);
            return (None, Asked::Refused);
        }
        Err(Failure::Unreachable) if question.len() > SHORT => return (None, Asked::Slow),
        Err(Failure::Unreachable) => Asked::Slow,
        Ok(_) | Err(_) => Asked::Failed,
    };
    shared.pauses.lock().failed(worker.id, Instant::now());
    let (worker, how) = (&*worker.spec.name, fault.word());
    tracing::debug!(worker, how, "an engine gives no tokens of a prompt");
    (None, fault)
}

/// The tokens of an answer, if they can be those of a question that has `most` at most.
fn tokens(body: &[u8], most: usize) -> Option<Arc<[u32]>> {
    let tokens = parse_tokens(body)?;
    (!tokens.is_empty() && tokens.len() <= most).then(|| tokens.into())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
