//! A request of Anthropic's Messages API as the chat that vLLM (0.32) makes of it before it renders anything.
//!
//! What it does and this imitates: the system prompt's texts are joined without anything between, Claude Code's
//! billing line is left out; thinking becomes `reasoning`; the results of tools become messages of their own *before*
//! the rest of their message; a message with one text has it as a string. Two things depend on the model's
//! template, which vLLM tries out when it starts: [`Habits`].

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::chat::{ChatBody, ChatInput, list, malformed, object};
use crate::error::PromptError;
use crate::load::ModelPrompt;

/// The beginning of a line about the client, with a hash that changes from request to request.
const BILLING: &str = "x-anthropic-billing-header";

/// What a model's template can't take as Anthropic's API has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    /// It takes no system message behind others: they are merged into the first one.
    merge_system: bool,
    /// The `reasoning_effort` that stands for thinking that is switched off.
    no_thinking: &'static str,
}

impl Habits {
    /// By trying, as vLLM does.
    pub(crate) fn of(model: &ModelPrompt) -> Self {
        let said = |role| json!({"role": role, "content": "t"});
        let mixed = json!([said("system"), said("user"), said("system"), said("user")]);
        let input = ChatInput { add_generation_prompt: false, ..ChatInput::new(&mixed) };
        let merge_system = !model.all_render(&input);
        let hi = json!([{"role": "user", "content": "Hi"}]);
        let with = |effort| {
            let input = ChatInput { reasoning_effort: Some(effort), ..ChatInput::new(&hi) };
            model.render_chat(&input).ok()
        };
        let none = with("none");
        let efforts = ["low", "medium", "high", "xhigh", "max"];
        let heeded = none.is_some() && efforts.into_iter().all(|effort| with(effort) != none);
        Self { merge_system, no_thinking: if heeded { "none" } else { "low" } }
    }
}

/// The members that decide the prompt.
#[derive(Deserialize)]
struct Body {
    messages: Value,
    system: Option<Value>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Value>,
    thinking: Option<Kind>,
    output_config: Option<Output>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Output {
    effort: Option<String>,
}

impl ChatBody {
    /// The chat that a Messages request is to a model with these habits; `None`: nobody knows them here.
    ///
    /// # Errors
    /// [`PromptError::Malformed`] if it is not of the API's shape; [`PromptError::Unsupported`] where it has more
    /// than text and tools, or blocks that vLLM doesn't know, or depends on unknown habits.
    pub fn from_messages(
        body: &[u8],
        habits: impl Into<Option<Habits>>,
    ) -> Result<Self, PromptError> {
        const UNKNOWN: PromptError =
            PromptError::Unsupported("what chat it becomes depends on the engine's template");
        let habits: Option<Habits> = habits.into();
        let body: Body = serde_json::from_slice(body).map_err(|e| malformed(e.to_string()))?;
        let said = list(&body.messages, "messages")?;
        let mut system = String::new();
        if let Some(top) = &body.system {
            system.push_str(&system_text(top, "system")?);
        }
        let mut messages = Vec::with_capacity(said.len() + 1);
        for (i, message) in said.iter().enumerate() {
            let at = format!("messages[{i}]");
            let message = object(message, &at)?;
            let content = message.get("content").unwrap_or(&Value::Null);
            match message.get("role").and_then(Value::as_str) {
                Some("system") => {
                    let text = system_text(content, &at)?;
                    if habits.ok_or(UNKNOWN)?.merge_system {
                        system.push_str(&text);
                    } else if !text.is_empty() {
                        messages.push(json!({"role": "system", "content": text}));
                    }
                }
                Some(role @ ("user" | "assistant")) => {
                    one(role, content, &at, &mut messages)?;
                }
                _ => return Err(malformed(format!("{at}.role is none that there is"))),
            }
        }
        if !system.is_empty() {
            messages.insert(0, json!({"role": "system", "content": system}));
        }
        let effort = body.output_config.and_then(|output| output.effort);
        let off = body.thinking.is_some_and(|thinking| thinking.kind == "disabled");
        let effort = match (off, habits) {
            (false, _) => effort,
            (true, Some(habits)) => Some(habits.no_thinking.to_owned()),
            (true, None) => return Err(UNKNOWN),
        };
        Ok(Self {
            messages: messages.into(),
            tools: body.tools.as_ref().map(tools).transpose()?,
            chat_template_kwargs: body.chat_template_kwargs,
            reasoning_effort: effort,
            ..Self::default()
        })
    }
}

/// The text of a system prompt, without the line about the client.
fn system_text(content: &Value, at: &str) -> Result<String, PromptError> {
    let counts = |text: &&str| !text.starts_with(BILLING);
    match content {
        Value::String(text) => Ok(Some(text.as_str()).filter(counts).unwrap_or_default().into()),
        Value::Array(_) => {
            let mut all = String::new();
            for block in list(content, at)? {
                match kind(block, at)? {
                    "text" => all.extend(text(block).filter(counts)),
                    "tool_addition" | "tool_removal" => {
                        return Err(PromptError::Unsupported("tools change within the messages"));
                    }
                    _ => {}
                }
            }
            Ok(all)
        }
        _ => Err(malformed(format!("{at} has neither a text nor a list of blocks"))),
    }
}

/// A message of the user or the assistant, behind the results of tools that it has.
fn one(
    role: &str,
    content: &Value,
    at: &str,
    messages: &mut Vec<Value>,
) -> Result<(), PromptError> {
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    match content {
        Value::String(text) => _ = message.insert("content".into(), text.as_str().into()),
        Value::Array(_) => {
            let (mut texts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
            let mut has_thoughts = false;
            for block in list(content, at)? {
                match kind(block, at)? {
                    "text" => {
                        let text = text(block).filter(|text| !text.is_empty());
                        texts.extend(text.map(|text| json!({"type": "text", "text": text})));
                    }
                    "thinking" => {
                        if let Some(thought) = block.get("thinking").and_then(Value::as_str) {
                            thoughts.push_str(thought);
                            has_thoughts = true;
                        }
                    }
                    "tool_use" => calls.push(tool_use(block)?),
                    "tool_result" if role == "user" => messages.push(tool_result(block)?),
                    "redacted_thinking" | "tool_reference" => {}
                    _ => return Err(NOT_TEXT),
                }
            }
            if has_thoughts {
                message.insert("reasoning".into(), thoughts.into());
            }
            if !calls.is_empty() {
                message.insert("tool_calls".into(), calls.into());
            }
            if !texts.is_empty() {
                message.insert("content".into(), texts.into());
            }
        }
        _ => return Err(malformed(format!("{at}.content is neither a text nor a list of blocks"))),
    }
    // The assistant may say nothing.
    if role == "assistant" || message.contains_key("content") {
        messages.push(message.into());
    }
    Ok(())
}

const NOT_TEXT: PromptError = PromptError::Unsupported("a message has blocks that are not text");

fn kind<'a>(block: &'a Value, at: &str) -> Result<&'a str, PromptError> {
    let kind = block.get("type").and_then(Value::as_str);
    kind.ok_or_else(|| malformed(format!("{at} has a block without a type")))
}

fn text(block: &Value) -> Option<&str> {
    block.get("text").and_then(Value::as_str)
}

fn tool_use(block: &Value) -> Result<Value, PromptError> {
    // One without an id would get one of the time.
    let id = block.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    let id = id.ok_or(PromptError::Unsupported("a tool_use has no id"))?;
    let name = block.get("name").and_then(Value::as_str).unwrap_or_default();
    let input = match block.get("input") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input.clone(),
        Some(_) => return Err(malformed("a tool_use has an input that is no object")),
    };
    let function = json!({"name": name, "arguments": input});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

fn tool_result(block: &Value) -> Result<Value, PromptError> {
    let said = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(items @ Value::Array(_)) => {
            let mut texts = Vec::new();
            for item in list(items, "a tool_result")? {
                match item.get("type").and_then(Value::as_str) {
                    Some("text") => texts.push(text(item).unwrap_or_default()),
                    Some("image" | "tool_reference") => return Err(NOT_TEXT),
                    _ => {}
                }
            }
            texts.join("\n")
        }
        Some(_) => return Err(malformed("a tool_result is neither a text nor a list")),
    };
    let id = block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
    Ok(json!({"role": "tool", "tool_call_id": id, "content": said}))
}

fn tools(tools: &Value) -> Result<Value, PromptError> {
    let mut out = Vec::new();
    for (i, tool) in list(tools, "tools")?.iter().enumerate() {
        let tool = object(tool, &format!("tools[{i}]"))?;
        let Some(Value::Object(schema)) = tool.get("input_schema") else {
            return Err(PromptError::Unsupported("a tool is none of the client's own"));
        };
        let mut schema = schema.clone();
        schema.entry("type").or_insert_with(|| "object".into());
        let mut function = Map::new();
        for name in ["name", "description"] {
            function.insert(name.into(), tool.get(name).cloned().unwrap_or(Value::Null));
        }
        function.insert("parameters".into(), schema.into());
        add_known(&mut function, tool);
        out.push(json!({"type": "function", "function": function}));
    }
    Ok(out.into())
}

/// The members of a function that are only there where they say something.
pub(crate) fn add_known(function: &mut Map<String, Value>, tool: &Map<String, Value>) {
    for name in ["strict", "defer_loading"] {
        if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
            function.insert(name.into(), value.clone());
        }
    }
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
