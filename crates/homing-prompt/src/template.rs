//! The chat template's engine: minijinja taught Hugging Face's dialect (`apply_chat_template` of
//! transformers 5).
//!
//! Whitespace is trimmed as there (`trim_blocks`, `lstrip_blocks`), values print as Python's, dicts
//! and strings have Python's methods, and `raise_exception`, `strftime_now`, `tojson` are those of
//! transformers. A template comes with a model from anywhere, so it gets fuel and its output a
//! bound.

use std::io;
use std::time::Duration;

use homing_core::time::Time;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value as Json};

use crate::TEXT_LIMIT;
use crate::chat::{self, ChatInput};
use crate::error::PromptError;
use crate::python;
use crate::strftime::strftime;

/// Steps that one rendering may take: minijinja counts an instruction, or 64 bytes produced, as
/// one. A message costs real templates some 100, so this allows tens of thousands of messages, and
/// under a second.
const FUEL: u64 = 2_000_000;

/// Steps that a rendering may take on its caller's stack, see [`STACK`]. Enough for some hundred
/// messages.
const FUEL_HERE: u64 = 8_000;

/// The stack of a longer rendering, in bytes of address space. A template can nest a value in
/// itself with every step, and dropping the value takes 80 to 160 bytes of stack per level: on an
/// ordinary stack of 2 MiB that would abort the process from some 13 000 levels on. Starting a
/// thread costs about 0.1 ms, so only long ones get it.
const STACK: usize = 512 << 20;

/// Marks where the last message's content ends when it is to be continued. The blank at its end
/// shows whether the template trims, as in transformers; the characters are private use, so no
/// client text holds them by chance.
const CONTINUE: &str = "\u{F8FF}continue-here\u{F8FF} ";

/// A model's templates by name, parsed, and its special tokens.
pub(crate) struct Templates {
    env: Environment<'static>,
    /// The same with less fuel.
    env_here: Environment<'static>,
    /// `bos_token` and so on, as variables of the template.
    variables: Map<String, Json>,
}

impl Templates {
    pub(crate) fn new(variables: Map<String, Json>) -> Self {
        let mut env = Environment::new();
        // Without features of minijinja's default syntax the builder has nothing to refuse.
        if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
            env.set_syntax(syntax);
        }
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(unknown_method_callback);
        env.set_formatter(python::print);
        env.set_fuel(Some(FUEL));
        // It would keep and print the template's variables with every error.
        env.set_debug(false);
        env.add_filter("tojson", python::tojson);
        env.add_test("iterable", python::is_iterable);
        env.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised by the template")
                .with_source(Raised(message)))
        });
        env.add_function("strftime_now", strftime_now);
        let mut env_here = env.clone();
        env_here.set_fuel(Some(FUEL_HERE));
        Self { env, env_here, variables }
    }

    /// Adds a template under a name.
    pub(crate) fn add(&mut self, name: &str, source: String) -> Result<(), Error> {
        self.env.add_template_owned(name.to_owned(), source.clone())?;
        self.env_here.add_template_owned(name.to_owned(), source)
    }

    /// Renders a conversation.
    pub(crate) fn render(&self, input: &ChatInput<'_>) -> Result<String, PromptError> {
        if input.continue_final_message && input.add_generation_prompt {
            return Err(PromptError::Malformed(
                "continue_final_message and add_generation_prompt exclude each other".into(),
            ));
        }
        let mut messages = chat::messages(input)?;
        let tools = chat::tools(input)?;
        if input.continue_final_message {
            mark_end(&mut messages);
        }
        let name = self.choose(tools.is_some())?;
        let context = self.context(input, &messages, tools.as_deref())?;
        let text = if takes_long(&messages) {
            self.run_apart(name, context)
        } else {
            match run(&self.env_here, name, context.clone()) {
                Err(PromptError::OutOfFuel { .. }) => self.run_apart(name, context),
                other => other,
            }
        }?;
        if input.continue_final_message { cut_at_mark(text) } else { Ok(text) }
    }

    /// Whether none of the templates refuses a conversation without tools.
    pub(crate) fn all_render(&self, input: &ChatInput<'_>) -> bool {
        let Ok(messages) = chat::messages(input) else { return false };
        let Ok(context) = self.context(input, &messages, None) else { return false };
        let mut there = ["default", "tool_use"].into_iter().filter(|name| self.has(name));
        there.all(|name| self.run_apart(name, context.clone()).is_ok())
    }

    fn has(&self, name: &str) -> bool {
        self.env.get_template(name).is_ok()
    }

    /// Runs a template on a stack of its own, with all the fuel.
    fn run_apart(&self, name: &str, context: Value) -> Result<String, PromptError> {
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("template".into())
                .stack_size(STACK)
                .spawn_scoped(scope, || run(&self.env, name, context))
                .map_err(|e| PromptError::Template(format!("cannot start its thread: {e}")))?
                .join()
                .unwrap_or_else(|_| Err(PromptError::Template("it panicked".into())))
        })
    }

    /// A model may name several templates: "tool_use" serves requests with tools, "default" all
    /// others.
    fn choose(&self, with_tools: bool) -> Result<&'static str, PromptError> {
        if with_tools && self.has("tool_use") {
            Ok("tool_use")
        } else if self.has("default") {
            Ok("default")
        } else {
            Err(PromptError::NoTemplate)
        }
    }

    fn context(
        &self,
        input: &ChatInput<'_>,
        messages: &[Json],
        tools: Option<&[Json]>,
    ) -> Result<Value, PromptError> {
        let mut variables: Vec<(String, Value)> = Vec::new();
        let mut set = |name: &str, value: Value| match variables.iter_mut().find(|(n, _)| n == name)
        {
            Some(slot) => slot.1 = value,
            None => variables.push((name.to_owned(), value)),
        };
        for (name, value) in &self.variables {
            set(name, Value::from(Serde(value)));
        }
        match input.chat_template_kwargs {
            None | Some(Json::Null) => {}
            Some(Json::Object(kwargs)) => {
                for (name, value) in kwargs {
                    set(name, Value::from(Serde(value)));
                }
            }
            Some(_) => {
                let what = "chat_template_kwargs is not an object".to_owned();
                return Err(PromptError::Malformed(what));
            }
        }
        if let Some(effort) = input.reasoning_effort {
            set("reasoning_effort", effort.into());
            // vLLM since 0.32: who asks for an effort asks for thinking, unless it says otherwise.
            let says = input.chat_template_kwargs.and_then(|k| k.get("enable_thinking"));
            if says.is_none() {
                set("enable_thinking", (effort != "none").into());
            }
        }
        set("messages", Value::from(Serde(messages)));
        set("tools", tools.map_or(Value::from(()), |t| Value::from(Serde(t))));
        set("documents", Value::from(()));
        set("add_generation_prompt", input.add_generation_prompt.into());
        if let Some(now) = input.now {
            set(NOW, now.as_micros().into());
        }
        Ok(Value::from_pairs(variables))
    }
}

/// Whether the first try would most likely run out of [`FUEL_HERE`]: half of what a message costs
/// real templates, and all of its text printed once. A wrong guess costs a thread, or the first try.
fn takes_long(messages: &[Json]) -> bool {
    let steps = messages.iter().map(|m| {
        50 + m.get("content").and_then(Json::as_str).map_or(0, |text| text.len() as u64 / 64)
    });
    steps.sum::<u64>() > FUEL_HERE
}

fn run(env: &Environment<'_>, name: &str, context: Value) -> Result<String, PromptError> {
    let template = env.get_template(name).map_err(|_| PromptError::NoTemplate)?;
    let mut out = Bounded { bytes: Vec::new(), full: false };
    let rendered = template.render_captured_to(context, &mut out).map(drop);
    if out.full {
        return Err(PromptError::TooLong { limit: TEXT_LIMIT });
    }
    rendered.map_err(|e| failure(&e, env.fuel().unwrap_or_default()))?;
    String::from_utf8(out.bytes)
        .map_err(|_| PromptError::Template("the output is not UTF-8".into()))
}

/// The variable that carries the caller's time to `strftime_now`; no template can name it.
const NOW: &str = " now";

fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    let micros = state.lookup(NOW).and_then(|v| u64::try_from(v).ok()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, "the template prints the date, but none was given")
    })?;
    let now = Time::ZERO + Duration::from_micros(micros);
    strftime(now, format).map_err(|code| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now: %{code} is not supported"))
    })
}

/// What the template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn failure(error: &Error, fuel: u64) -> PromptError {
    if error.kind() == ErrorKind::OutOfFuel {
        return PromptError::OutOfFuel { fuel };
    }
    // A macro or an include wraps the error that was raised inside it.
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return PromptError::Refused(message.clone());
        }
        if inner.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return PromptError::OutOfFuel { fuel };
        }
        cause = inner.source();
    }
    PromptError::Template(error.to_string())
}

fn mark_end(messages: &mut [Json]) {
    if let Some(Json::String(content)) = messages.last_mut().and_then(|m| m.get_mut("content")) {
        content.push_str(CONTINUE);
    }
}

fn cut_at_mark(mut text: String) -> Result<String, PromptError> {
    let mark = CONTINUE.trim_end();
    let Some(at) = text.rfind(mark) else {
        let what = "the last message's content is not in the output, so it cannot be continued";
        return Err(PromptError::Template(what.into()));
    };
    let kept = text.get(at..).is_some_and(|tail| tail.starts_with(CONTINUE));
    text.truncate(at);
    if !kept {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

/// Collects the output up to [`TEXT_LIMIT`].
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + data.len() > TEXT_LIMIT {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
