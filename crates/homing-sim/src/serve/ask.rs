//! A generating request: the members that the mock heeds, checked. All others are ignored, as sampling
//! parameters mean nothing to it.

use super::driver::{Driver, Generation};
use super::model::{Model, Reply};
use super::refusal::Refusal;
use crate::engine::sequence::Namespace;
use http::HeaderMap;
use serde_json::Value;
use std::sync::Arc;

/// The ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
}

impl Api {
    /// Whether it has OpenAI's older fields.
    fn has_choices(self) -> bool {
        matches!(self, Self::Chat | Self::Completion)
    }
}

/// A request that the engine has taken, and what its answer needs.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: bool,
    /// A last chunk with the usage.
    pub(super) include_usage: bool,
    /// The text that comes before the answer (`echo`); "" for none.
    pub(super) echo: String,
    pub(super) prompt_tokens: usize,
    /// The answer's text, token by token.
    pub(super) pieces: Vec<String>,
    pub(super) generation: Generation,
}

/// vLLM's default for the length of a plain completion.
const COMPLETION_TOKENS: usize = 16;

/// Checks a request and submits it.
pub(super) fn accept(
    api: Api,
    rank: Option<usize>,
    body: &[u8],
    served: &str,
    model: &Model,
    driver: &Arc<Driver>,
) -> Result<Accepted, Refusal> {
    let body = parse(body)?;
    check_model(&body, served)?;
    if api.has_choices() && body.get("n").is_some_and(|n| !n.is_null() && n.as_u64() != Some(1)) {
        return Err(Refusal::bad("n", "this mock gives one answer a request; leave n out"));
    }
    let stream = flag(&body, "stream")?;
    let options = body.get("stream_options").filter(|options| !options.is_null());
    let options = options.filter(|_| api.has_choices());
    if options.is_some() && !stream {
        return Err(Refusal::bad("stream_options", "stream_options need stream = true"));
    }
    let include_usage = match options {
        Some(options) => flag(options, "include_usage")?,
        None => false,
    };
    if api == Api::Responses && !body["previous_response_id"].is_null() {
        let message = "this mock stores no responses; send the whole conversation";
        return Err(Refusal::bad("previous_response_id", message));
    }
    let tokens = prompt(api, &body, model)?;
    let limit = driver.max_model_len();
    let room = limit.saturating_sub(tokens.len());
    let wanted = wanted(api, &body, room)?;
    if wanted > room && room > 0 {
        let message = format!(
            "the maximum context length is {limit} tokens, and {} of the prompt and {wanted} of the \
             output are more",
            tokens.len()
        );
        return Err(Refusal::bad("max_tokens", message));
    }
    let echo = if api == Api::Completion && flag(&body, "echo")? {
        model.decode(&tokens)?
    } else {
        String::new()
    };
    let prompt_tokens = tokens.len();
    let exactly = flag(&body, "ignore_eos")?;
    let Reply { tokens: output, pieces, ending } =
        model.reply(&tokens, wanted.min(room), exactly)?;
    let generation = driver.submit(rank, tokens, output, ending, namespace(&body)?)?;
    Ok(Accepted { stream, include_usage, echo, prompt_tokens, pieces, generation })
}

/// The tokens of a request's prompt.
pub(super) fn prompt(api: Api, body: &Value, model: &Model) -> Result<Vec<u32>, Refusal> {
    Ok(match api {
        Api::Chat => model.chat(body)?,
        Api::Completion => model.completion(body.get("prompt").unwrap_or(&Value::Null))?,
        Api::Responses => model.responses(body)?,
        Api::Messages => model.messages(body)?,
    })
}

/// The rank that a request names in `x-data-parallel-rank`.
pub(super) fn rank(headers: &HeaderMap, driver: &Driver) -> Result<Option<usize>, Refusal> {
    let Some(named) = headers.get("x-data-parallel-rank") else { return Ok(None) };
    let rank = named.to_str().ok().and_then(|rank| rank.trim().parse().ok());
    let ranks = driver.ranks();
    match rank {
        Some(rank) if rank < ranks => Ok(Some(rank)),
        _ => {
            let message = format!("x-data-parallel-rank must be 0 to {}", ranks - 1);
            Err(Refusal::bad("data_parallel_rank", message))
        }
    }
}

/// A body as JSON object.
pub(super) fn parse(body: &[u8]) -> Result<Value, Refusal> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(None, format!("the body is not JSON: {error}")))?;
    if body.is_object() { Ok(body) } else { Err(Refusal::bad(None, "the body is no JSON object")) }
}

/// Only the served model; a request that names none means it.
pub(super) fn check_model(body: &Value, served: &str) -> Result<(), Refusal> {
    match body.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) if name == served => Ok(()),
        Some(Value::String(name)) => Err(Refusal::unknown_model(name, served)),
        Some(_) => Err(Refusal::bad("model", "model is no string")),
    }
}

/// A boolean member; absent or null is false.
pub(super) fn flag(body: &Value, name: &'static str) -> Result<bool, Refusal> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(_) => Err(Refusal::bad(name, format!("{name} is neither true nor false"))),
    }
}

/// How many output tokens the client wants at most.
fn wanted(api: Api, body: &Value, room: usize) -> Result<usize, Refusal> {
    // Chat clients send the newer name; vLLM prefers it too.
    let names = match api {
        Api::Chat | Api::Completion => ["max_completion_tokens", "max_tokens"].as_slice(),
        Api::Responses => &["max_output_tokens"],
        Api::Messages => &["max_tokens"],
    };
    for name in names.iter().copied() {
        if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
            return match value.as_u64() {
                Some(n) if n > 0 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
                _ => Err(Refusal::bad("max_tokens", format!("{name} is no positive integer"))),
            };
        }
    }
    match api {
        Api::Chat | Api::Responses => Ok(room),
        Api::Completion => Ok(COMPLETION_TOKENS.min(room)),
        Api::Messages => Err(Refusal::bad("max_tokens", "max_tokens is missing")),
    }
}

pub(super) fn namespace(body: &Value) -> Result<Namespace, Refusal> {
    match body.get("cache_salt") {
        None | Some(Value::Null) => Ok(Namespace::default()),
        Some(Value::String(salt)) if !salt.is_empty() => {
            Ok(Namespace { adapter: String::new(), salt: salt.clone() })
        }
        Some(_) => Err(Refusal::bad("cache_salt", "cache_salt is no string with something in it")),
    }
}
