//! A chat request as the template sees it: vLLM's reshaping of the OpenAI wire form, before any
//! rendering.
//!
//! What vLLM (0.32, `POST /tokenize` recordings and served logs) does and this imitates: text parts
//! are joined by line feeds, a missing content is the empty text, `developer` becomes `system`, of
//! a message only known members are kept, a tool call's `arguments` string is parsed, empty
//! `tool_calls` are dropped, tools get their members in the order of vLLM's own types with `null`
//! for the absent ones.

use homing_core::time::Time;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::encode::Specials;
use crate::error::PromptError;

/// The members of a chat completion request that decide its prompt; the others are ignored. Requests of other APIs
/// become one: [`Self::from_responses`], [`Self::from_messages`].
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ChatBody {
    pub(crate) messages: Value,
    pub(crate) tools: Option<Value>,
    pub(crate) chat_template_kwargs: Option<Value>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) add_special_tokens: Option<bool>,
    pub(crate) chat_template: Option<Value>,
    pub(crate) documents: Option<Value>,
}

impl ChatBody {
    /// Reads a request's body.
    ///
    /// # Errors
    /// [`PromptError::Malformed`] if it is not JSON of the right types, with the place.
    pub fn parse(body: &[u8]) -> Result<Self, PromptError> {
        serde_json::from_slice(body).map_err(|e| PromptError::Malformed(e.to_string()))
    }

    /// The same from a parsed body.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_value(body: Value) -> Result<Self, PromptError> {
        serde_json::from_value(body).map_err(|e| PromptError::Malformed(e.to_string()))
    }

    /// What to render. `now` is for templates that print the date.
    ///
    /// # Errors
    /// [`PromptError::Unsupported`] if the request brings its own template or documents: whether
    /// the engine heeds them depends on its flags.
    pub fn input(&self, now: Option<Time>) -> Result<ChatInput<'_>, PromptError> {
        if self.chat_template.is_some() {
            return Err(PromptError::Unsupported("the request brings its own chat_template"));
        }
        if self.documents.is_some() {
            return Err(PromptError::Unsupported("the request has documents"));
        }
        Ok(ChatInput {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            chat_template_kwargs: self.chat_template_kwargs.as_ref(),
            reasoning_effort: self.reasoning_effort.as_deref(),
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            continue_final_message: self.continue_final_message.unwrap_or(false),
            specials: match self.add_special_tokens {
                Some(true) => Specials::Add,
                Some(false) | None => Specials::Omit,
            },
            now,
        })
    }
}

/// A conversation to render, borrowed from JSON in the OpenAI wire form.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The list of messages, not empty.
    pub messages: &'a Value,
    /// The list of tools; none is different from an empty list for some templates.
    pub tools: Option<&'a Value>,
    /// Further variables of the template (an object). They win over the model's, not over the
    /// request's own.
    pub chat_template_kwargs: Option<&'a Value>,
    /// The request's `reasoning_effort`; a variable of the template too.
    pub reasoning_effort: Option<&'a str>,
    /// Open an assistant's message at the end. Default: true.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it. Excludes
    /// `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its own tokens (a BOS) to the rendered text. Default: they are
    /// omitted, as the template wrote them.
    pub specials: Specials,
    /// The time that `strftime_now` tells; without it such templates fail.
    pub now: Option<Time>,
}

impl<'a> ChatInput<'a> {
    /// The messages alone, everything else at its default.
    #[must_use]
    pub const fn new(messages: &'a Value) -> Self {
        Self {
            messages,
            tools: None,
            chat_template_kwargs: None,
            reasoning_effort: None,
            add_generation_prompt: true,
            continue_final_message: false,
            specials: Specials::Omit,
            now: None,
        }
    }
}

/// The most messages, parts of a message, tools or tool calls that are looked at; a request with
/// more is malformed. Far above what fits any context window.
const ITEMS: usize = 100_000;

/// The messages as the template gets them.
pub(crate) fn messages(input: &ChatInput<'_>) -> Result<Vec<Value>, PromptError> {
    let list = list(input.messages, "messages")?;
    if list.is_empty() {
        return Err(malformed("messages is empty"));
    }
    list.iter().enumerate().map(|(i, m)| message(m, &format!("messages[{i}]"))).collect()
}

/// The tools as the template gets them; `None` is the template's `none`.
pub(crate) fn tools(input: &ChatInput<'_>) -> Result<Option<Vec<Value>>, PromptError> {
    match input.tools {
        None | Some(Value::Null) => Ok(None),
        Some(tools) => list(tools, "tools")?
            .iter()
            .enumerate()
            .map(|(i, t)| tool(t, &format!("tools[{i}]")))
            .collect::<Result<_, _>>()
            .map(Some),
    }
}

fn message(message: &Value, at: &str) -> Result<Value, PromptError> {
    let message = object(message, at)?;
    let role = match message.get("role") {
        Some(Value::String(role)) if role == "developer" => "system",
        Some(Value::String(role)) => role,
        _ => return Err(malformed(format!("{at}.role is not a string"))),
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    out.insert("content".into(), content(message.get("content"), at)?.into());
    if role == "assistant" {
        if let Some(calls) = message.get("tool_calls").filter(|c| !c.is_null()) {
            let at = format!("{at}.tool_calls");
            let calls = list(calls, &at)?
                .iter()
                .enumerate()
                .map(|(i, call)| tool_call(call, &format!("{at}[{i}]")))
                .collect::<Result<Vec<_>, _>>()?;
            if !calls.is_empty() {
                out.insert("tool_calls".into(), calls.into());
            }
        }
        // Either name comes in; both go to the template.
        let reasoning = ["reasoning", "reasoning_content"]
            .iter()
            .find_map(|name| message.get(*name).filter(|r| !r.is_null()));
        if let Some(reasoning) = reasoning {
            out.insert("reasoning".into(), reasoning.clone());
            out.insert("reasoning_content".into(), reasoning.clone());
        }
    }
    if role == "tool"
        && let Some(id) = message.get("tool_call_id")
    {
        out.insert("tool_call_id".into(), id.clone());
    }
    if let Some(name @ Value::String(_)) = message.get("name") {
        out.insert("name".into(), name.clone());
    }
    Ok(Value::Object(out))
}

fn content(content: Option<&Value>, at: &str) -> Result<String, PromptError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(parts @ Value::Array(_)) => {
            let at = format!("{at}.content");
            let mut texts = Vec::new();
            for (i, part) in list(parts, &at)?.iter().enumerate() {
                texts.extend(part_text(part, &format!("{at}[{i}]"))?);
            }
            Ok(texts.join("\n"))
        }
        Some(_) => Err(malformed(format!("{at}.content is neither a string nor a list of parts"))),
    }
}

/// A part's text; `None` where vLLM skips the part.
fn part_text<'a>(part: &'a Value, at: &str) -> Result<Option<&'a str>, PromptError> {
    if let Value::String(text) = part {
        return Ok(Some(text));
    }
    let part = object(part, at)?;
    let kind = match part.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        _ => return Err(malformed(format!("{at}.type is not a string"))),
    };
    let member = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "thinking" => "thinking",
        _ => return Err(PromptError::Unsupported("a message has parts that are not text")),
    };
    match part.get(member) {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Null) | None if matches!(kind, "text" | "refusal") => Ok(None),
        _ => Err(malformed(format!("{at}.{member} is not a string"))),
    }
}

/// A tool call with its `arguments` parsed, and its members in the order of the OpenAI package's
/// types, which vLLM validates with: `id`, then `function` (`arguments` first).
fn tool_call(call: &Value, at: &str) -> Result<Value, PromptError> {
    let call = object(call, at)?;
    let Some(Value::Object(function)) = call.get("function") else {
        return Err(malformed(format!("{at}.function is not an object")));
    };
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) if text.is_empty() => json!({}),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|e| malformed(format!("{at}.function.arguments is not JSON: {e}")))?,
        Some(parsed @ (Value::Object(_) | Value::Array(_))) => parsed.clone(),
        Some(_) => {
            return Err(malformed(format!("{at}.function.arguments is neither text nor object")));
        }
    };
    let mut inner = Map::new();
    inner.insert("arguments".into(), arguments);
    add_others(&mut inner, function);
    let mut out = Map::new();
    out.extend(call.get("id").map(|id| ("id".to_owned(), id.clone())));
    out.insert("function".into(), Value::Object(inner));
    add_others(&mut out, call);
    Ok(Value::Object(out))
}

/// A tool with the members in the order of vLLM's types (`type`, `function`: `name`, `description`,
/// `parameters`), the absent ones `null`, then whatever else the client sent.
fn tool(tool: &Value, at: &str) -> Result<Value, PromptError> {
    let tool = object(tool, at)?;
    let Some(Value::Object(function)) = tool.get("function") else {
        return Err(malformed(format!("{at}.function is not an object")));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(malformed(format!("{at}.function.name is not a string")));
    }
    let mut out = Map::new();
    for name in ["name", "description", "parameters"] {
        out.insert(name.into(), function.get(name).cloned().unwrap_or(Value::Null));
    }
    add_others(&mut out, function);
    let kind = tool.get("type").cloned().unwrap_or_else(|| "function".into());
    let mut whole = Map::new();
    whole.insert("type".into(), kind);
    whole.insert("function".into(), Value::Object(out));
    add_others(&mut whole, tool);
    Ok(Value::Object(whole))
}

fn add_others(out: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        if !out.contains_key(name) {
            out.insert(name.clone(), value.clone());
        }
    }
}

pub(crate) fn list<'a>(value: &'a Value, at: &str) -> Result<&'a [Value], PromptError> {
    match value {
        Value::Array(items) if items.len() <= ITEMS => Ok(items),
        Value::Array(_) => Err(malformed(format!("{at} has more than {ITEMS} items"))),
        _ => Err(malformed(format!("{at} is not a list"))),
    }
}

pub(crate) fn object<'a>(
    value: &'a Value,
    at: &str,
) -> Result<&'a Map<String, Value>, PromptError> {
    value.as_object().ok_or_else(|| malformed(format!("{at} is not an object")))
}

pub(crate) fn malformed(what: impl Into<String>) -> PromptError {
    PromptError::Malformed(what.into())
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
