//! What routing must know of a request, read from its body in one pass and without building a tree.
//!
//! The body is relayed as it came; this is only a look at it. Every top-level value is first taken as
//! the slice of the body that it is ([`Raw`]); the few scalars that matter are
//! then read, and the large ones (messages, tools) stay slices until somebody tokenizes the prompt.
//!
//! Names are matched by parsing JSON, never by looking for text. Of a repeated key the last one counts,
//! as in Python's `json`, which is what the engines read bodies with. Nesting costs no stack: what is
//! not looked into is scanned without recursion.

mod messages;
mod model;
mod opening;
mod prompt;
mod responses;
mod resume;
mod session;
mod top;
mod usage;

pub use messages::MessagesView;
pub use model::{model_of, with_model};
pub use opening::{Opening, PieceKind};
pub use prompt::PromptInput;
pub use responses::ResponsesView;
pub use resume::{Resumable, Resume};
pub use session::{BodyPaths, BodySession, MAX_BODY_SESSION_BYTES, PathError};
pub use usage::with_usage;

use crate::json::Raw;
use std::borrow::Cow;
use top::Top;

/// What is wrong with a request body: always the client's fault, so 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not JSON, or more than one value.
    #[error("the body is not valid JSON: {0}")]
    NotJson(String),
    /// JSON, but not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// A field that is needed and absent (or null).
    #[error("`{param}` is missing: expected {expected}")]
    Missing {
        /// Its name.
        param: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A field of the wrong type.
    #[error("`{param}` is malformed: expected {expected}")]
    WrongType {
        /// Its name.
        param: &'static str,
        /// What it should be.
        expected: &'static str,
    },
}

impl RequestError {
    /// The field to blame, for the `param` of an error body.
    #[must_use]
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::NotJson(_) | Self::NotAnObject => None,
            Self::Missing { param, .. } | Self::WrongType { param, .. } => Some(param),
        }
    }
}

/// What every kind of request has.
#[derive(Clone, Debug)]
pub struct CommonView<'a> {
    /// The served name that the client asks for; never empty.
    pub model: Cow<'a, str>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// `stream_options.include_usage`: whether the last chunk will tell the usage.
    pub include_usage: bool,
    /// `stream_options` is there, whatever it says.
    pub says_stream_options: bool,
    /// The most tokens to generate, in any API's spelling (`max_completion_tokens` first); `None` where it
    /// is absent or nothing that we can count with, which is for the worker to judge.
    pub max_tokens: Option<u64>,
    /// How many answers to generate; 1 unless said otherwise.
    pub n: u64,
    /// The cache namespace; empty if there is none.
    pub cache_salt: Cow<'a, str>,
    /// The session that the body names.
    pub session: BodySession<'a>,
}

/// A chat request: [`CommonView`] and the parts that the prompt is rendered from.
#[derive(Clone, Debug)]
pub struct ChatView<'a> {
    /// What every request has.
    pub common: CommonView<'a>,
    /// The conversation: a JSON array.
    pub messages: Raw<'a>,
    /// What else shapes the prompt. `None` where absent or null.
    pub template: TemplateFields<'a>,
}

/// Fields that vLLM hands to the chat template or that change its result.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateFields<'a> {
    /// Tool definitions.
    pub tools: Option<Raw<'a>>,
    /// `"none"`, `"auto"`, `"required"` or a function: `"none"` may drop the tools from the prompt.
    pub tool_choice: Option<Raw<'a>>,
    /// Documents for retrieval templates.
    pub documents: Option<Raw<'a>>,
    /// A template of the request's own.
    pub chat_template: Option<Raw<'a>>,
    /// More variables for the template.
    pub chat_template_kwargs: Option<Raw<'a>>,
    /// Set by some clients; models of "harmony" style put it into the prompt.
    pub reasoning_effort: Option<Raw<'a>>,
    /// Whether the prompt ends with the opening of an answer; vLLM's default is true.
    pub add_generation_prompt: Option<bool>,
    /// Whether the last message is to be continued; vLLM's default is false.
    pub continue_final_message: Option<bool>,
    /// Whether the tokenizer adds its special tokens once more.
    pub add_special_tokens: Option<bool>,
    /// Keep only this many tokens of the prompt.
    pub truncate_prompt_tokens: Option<Raw<'a>>,
}

/// A completion request.
#[derive(Clone, Debug)]
pub struct CompletionView<'a> {
    /// What every request has.
    pub common: CommonView<'a>,
    /// Text, token ids, or a list of either: [`PromptInput::parse`]. `None` only where the prompt comes
    /// as embeddings, which nobody can match.
    pub prompt: Option<Raw<'a>>,
    /// Whether the tokenizer adds its special tokens; vLLM's default is true.
    pub add_special_tokens: Option<bool>,
    /// Keep only this many tokens of the prompt.
    pub truncate_prompt_tokens: Option<Raw<'a>>,
}

impl<'a> CommonView<'a> {
    /// Reads what any kind of request has; sessions are looked for at `paths`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        let top = Top::parse(body, paths)?;
        Self::of(&top, paths)
    }

    fn of(top: &Top<'a>, paths: &BodyPaths) -> Result<Self, RequestError> {
        const MODEL: &str = "the name of a model";
        let model = match top.model.map(Raw::text) {
            None => return Err(RequestError::Missing { param: "model", expected: MODEL }),
            Some(Some(name)) if !name.is_empty() => name,
            Some(_) => return Err(RequestError::WrongType { param: "model", expected: MODEL }),
        };
        let max_tokens = top.max_completion_tokens.or(top.max_tokens).or(top.max_output_tokens);
        Ok(Self {
            model,
            stream: flag("stream", top.stream)?.unwrap_or(false),
            include_usage: top.stream_options.is_some_and(top::includes_usage),
            says_stream_options: top.stream_options.is_some(),
            max_tokens: max_tokens.and_then(top::whole_number),
            n: top.n.and_then(top::whole_number).unwrap_or(1),
            cache_salt: top.cache_salt.and_then(Raw::text).unwrap_or_default(),
            session: session::find(paths, &top.session_roots),
        })
    }
}

impl<'a> ChatView<'a> {
    /// Reads a chat request; sessions are looked for at `paths`.
    ///
    /// # Errors
    /// See [`RequestError`]. The messages themselves are only known to be a JSON array.
    pub fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        let top = Top::parse(body, paths)?;
        let common = CommonView::of(&top, paths)?;
        let messages = messages_of(&top)?;
        let template = TemplateFields {
            tools: top.tools,
            tool_choice: top.tool_choice,
            documents: top.documents,
            chat_template: top.chat_template,
            chat_template_kwargs: top.chat_template_kwargs,
            reasoning_effort: top.reasoning_effort,
            add_generation_prompt: flag("add_generation_prompt", top.add_generation_prompt)?,
            continue_final_message: flag("continue_final_message", top.continue_final_message)?,
            add_special_tokens: flag("add_special_tokens", top.add_special_tokens)?,
            truncate_prompt_tokens: top.truncate_prompt_tokens,
        };
        Ok(Self { common, messages, template })
    }

    /// What its prompt is made of, as the bytes that the client sent, in the order in which templates put it: the
    /// next turn's begin with these. They stand for the prompt where nobody can tokenize it.
    #[must_use]
    pub fn text_parts(&self) -> Vec<&'a [u8]> {
        let t = &self.template;
        let before = [t.chat_template, t.chat_template_kwargs, t.documents, t.tools];
        written(before).chain([open_end(self.messages)]).collect()
    }

    /// What of it stays while the conversation grows.
    #[must_use]
    pub const fn opening(&self) -> Opening<'a> {
        Opening { tools: self.template.tools, instructions: None, messages: self.messages }
    }
}

impl<'a> CompletionView<'a> {
    /// Reads a completion request; sessions are looked for at `paths`.
    ///
    /// # Errors
    /// See [`RequestError`]. The prompt itself is only known to be a text or a list.
    pub fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        let top = Top::parse(body, paths)?;
        let common = CommonView::of(&top, paths)?;
        match top.prompt {
            None if top.prompt_embeds.is_none() => {
                return Err(RequestError::Missing { param: "prompt", expected: prompt::EXPECTED });
            }
            Some(raw) if !raw.get().starts_with(['"', '[']) => return Err(prompt::malformed()),
            _ => {}
        }
        Ok(Self {
            common,
            prompt: top.prompt,
            add_special_tokens: flag("add_special_tokens", top.add_special_tokens)?,
            truncate_prompt_tokens: top.truncate_prompt_tokens,
        })
    }

    /// What its prompt is made of: see [`ChatView::text_parts`]. Of several prompts it is all of them, since one
    /// worker gets them all.
    #[must_use]
    pub fn text_parts(&self) -> Vec<&'a [u8]> {
        self.prompt.map(open_end).into_iter().collect()
    }
}

/// The `messages` of a conversation, which are only known to be a JSON array.
fn messages_of<'a>(top: &Top<'a>) -> Result<Raw<'a>, RequestError> {
    const MESSAGES: &str = "a list of messages";
    match top.messages {
        None => Err(RequestError::Missing { param: "messages", expected: MESSAGES }),
        Some(raw) if raw.get().starts_with('[') => Ok(raw),
        Some(_) => Err(RequestError::WrongType { param: "messages", expected: MESSAGES }),
    }
}

/// Those that are there, as they are written.
fn written<'a, const N: usize>(fields: [Option<Raw<'a>>; N]) -> impl Iterator<Item = &'a [u8]> {
    fields.into_iter().flatten().map(|raw| raw.get().as_bytes())
}

/// A list or a text without its end: what is longer begins with the same bytes.
fn open_end(raw: Raw<'_>) -> &[u8] {
    let text = raw.get();
    text.strip_suffix([']', '"']).unwrap_or(text).trim_ascii_end().as_bytes()
}

fn flag(param: &'static str, raw: Option<Raw<'_>>) -> Result<Option<bool>, RequestError> {
    match raw.map(Raw::get) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(_) => Err(RequestError::WrongType { param, expected: "true or false" }),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
