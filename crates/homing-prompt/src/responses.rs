//! A request of OpenAI's Responses API as the chat that vLLM (0.32) makes of it before it renders anything.
//!
//! Its items are finer than messages: what the assistant thought, said and called are items of their own that become
//! one message, as long as they come in a row and none of them is there twice. Of an assistant's message only the
//! first part counts. What a worker has stored (`previous_response_id`) nobody else can know.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::anthropic::add_known;
use crate::chat::{ChatBody, list, malformed, object};
use crate::error::PromptError;

/// Between a namespace and the name of a tool in it.
const NAMESPACE: &str = "__";

/// The members that decide the prompt.
#[derive(Deserialize)]
struct Body {
    input: Option<Value>,
    instructions: Option<String>,
    tools: Option<Value>,
    reasoning: Option<Reasoning>,
    chat_template_kwargs: Option<Value>,
    previous_response_id: Option<Value>,
    conversation: Option<Value>,
    previous_input_messages: Option<Value>,
    prompt: Option<Value>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

impl ChatBody {
    /// The chat that a Responses request is.
    ///
    /// # Errors
    /// [`PromptError::Malformed`] if it is not of the API's shape; [`PromptError::Unsupported`] where it goes on from
    /// what is stored, has more than text and tools, or items that vLLM doesn't take.
    pub fn from_responses(body: &[u8]) -> Result<Self, PromptError> {
        let body: Body = serde_json::from_slice(body).map_err(|e| malformed(e.to_string()))?;
        let stored = [&body.previous_response_id, &body.conversation, &body.prompt];
        if stored.into_iter().chain([&body.previous_input_messages]).any(Option::is_some) {
            return Err(PromptError::Unsupported("the prompt goes on from what the worker stored"));
        }
        let input = body.input.ok_or_else(|| malformed("input is missing"))?;
        let mut messages = Vec::new();
        let mut continues = false;
        match &input {
            Value::String(text) => messages.push(json!({"role": "user", "content": text})),
            items => {
                for (i, item) in list(items, "input")?.iter().enumerate() {
                    add(object(item, &format!("input[{i}]"))?, &mut messages)?;
                    continues = is_open(item);
                }
            }
        }
        if let Some(instructions) = body.instructions.filter(|text| !text.is_empty()) {
            messages.insert(0, json!({"role": "system", "content": instructions}));
        }
        Ok(Self {
            messages: messages.into(),
            tools: body.tools.as_ref().map(tools).transpose()?.flatten(),
            chat_template_kwargs: body.chat_template_kwargs,
            reasoning_effort: body.reasoning.and_then(|reasoning| reasoning.effort),
            add_generation_prompt: Some(!continues),
            continue_final_message: Some(continues),
            ..Self::default()
        })
    }
}

/// Whether an item, if it is the last one, is to be continued.
fn is_open(item: &Value) -> bool {
    let is = |name, words: [&str; 2]| {
        item.get(name).and_then(Value::as_str).is_some_and(|word| words.contains(&word))
    };
    let speaks = item.get("type").is_none() || is("type", ["message", "reasoning"]);
    speaks && is("status", ["in_progress", "incomplete"])
}

/// Adds what an item says to the messages.
fn add(item: &Map<String, Value>, messages: &mut Vec<Value>) -> Result<(), PromptError> {
    let word = |name| item.get(name).and_then(Value::as_str);
    let needed = |name| word(name).ok_or_else(|| malformed(format!("an item has no {name}")));
    match word("type").unwrap_or("message") {
        "function_call" => {
            let name = match word("namespace").filter(|space| !space.is_empty()) {
                Some(space) => [space, needed("name")?].join(NAMESPACE),
                None => needed("name")?.to_owned(),
            };
            add_call(needed("call_id")?, &name, needed("arguments")?, messages);
        }
        "function_call_output" => {
            let (id, said) = (item.get("call_id"), item.get("output"));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": said}));
        }
        "reasoning" => {
            if word("encrypted_content").is_some_and(|secret| !secret.is_empty()) {
                return Err(PromptError::Unsupported("a reasoning item is encrypted"));
            }
            let first = |name| item.get(name)?.as_array()?.first()?.get("text")?.as_str();
            let thought = first("content").or_else(|| first("summary")).unwrap_or_default();
            add_said("reasoning", thought, messages);
        }
        "message" if word("role") == Some("assistant") => {
            let said = match item.get("content") {
                Some(Value::String(text)) => Some(text.as_str()),
                Some(Value::Array(parts)) => {
                    parts.first().and_then(|part| part.get("text")?.as_str())
                }
                _ => None,
            };
            let said = said.ok_or(PromptError::Unsupported("an answer begins with no text"))?;
            add_said("content", said, messages);
        }
        "message" => {
            let content = item.get("content");
            messages.push(json!({"role": needed("role")?, "content": content}));
        }
        _ => return Err(PromptError::Unsupported("an item is of a kind that makes no message")),
    }
    Ok(())
}

/// The assistant's message at the end, if there is one.
fn open(messages: &mut [Value]) -> Option<&mut Map<String, Value>> {
    let last = messages.last_mut()?.as_object_mut()?;
    (last.get("role").and_then(Value::as_str) == Some("assistant")).then_some(last)
}

/// What the assistant said or thought joins its message, unless that has said so already.
fn add_said(member: &str, text: &str, messages: &mut Vec<Value>) {
    match open(messages).filter(|last| !last.contains_key(member)) {
        Some(last) => _ = last.insert(member.into(), text.into()),
        None => {
            let mut message = Map::new();
            message.insert("role".into(), "assistant".into());
            message.insert(member.into(), text.into());
            messages.push(message.into());
        }
    }
}

fn add_call(id: &str, name: &str, arguments: &str, messages: &mut Vec<Value>) {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": id, "type": "function", "function": function});
    let Some(last) = open(messages) else {
        messages.push(json!({"role": "assistant", "tool_calls": [call]}));
        return;
    };
    if let Some(calls) = last.entry("tool_calls").or_insert_with(|| json!([])).as_array_mut() {
        calls.push(call);
    }
}

/// The functions that the model is shown, in order; `None` where the request has no tools at all.
fn tools(tools: &Value) -> Result<Option<Value>, PromptError> {
    let tools = list(tools, "tools")?;
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let at = format!("tools[{i}]");
        let tool = object(tool, &at)?;
        let word = |name| tool.get(name).and_then(Value::as_str).unwrap_or_default();
        match word("type") {
            "function" => out.push(function(tool, None)),
            "namespace" => {
                for inner in list(tool.get("tools").unwrap_or(&Value::Null), &at)? {
                    let inner = object(inner, &at)?;
                    if inner.get("type").and_then(Value::as_str) == Some("function") {
                        out.push(function(inner, Some(word("name"))));
                    }
                }
            }
            "custom" => return Err(PromptError::Unsupported("a custom tool")),
            // Built-in ones are for the engine, not for the model.
            _ => {}
        }
    }
    Ok(Some(out.into()))
}

fn function(tool: &Map<String, Value>, namespace: Option<&str>) -> Value {
    let mut function = Map::new();
    for name in ["name", "description", "parameters"] {
        function.insert(name.into(), tool.get(name).cloned().unwrap_or(Value::Null));
    }
    if let (Some(space), Some(Value::String(name))) = (namespace, function.get_mut("name")) {
        *name = [space, name].join(NAMESPACE);
    }
    add_known(&mut function, tool);
    json!({"type": "function", "function": function})
}

#[cfg(test)]
#[path = "responses_tests.rs"]
mod tests;
