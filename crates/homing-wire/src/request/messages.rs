//! A request of Anthropic's Messages API.
//!
//! Its clients mark where a cache is to end (`cache_control`), and the marks move on with each turn; Claude Code also
//! begins its system prompt with a line about itself that engines leave out. Neither reaches the prompt, so
//! neither is part of its text: a conversation's text is handed out field by field, without them.

use super::opening::{BILLING, CACHE_MARK, text_of};
use super::{BodyPaths, CommonView, Opening, RequestError, Top, messages_of, written};
use crate::json::Raw;
use std::borrow::Cow;

/// Contents in contents that are read block by block: a message's, and a tool result's in it. Of what is deeper no
/// engine makes a prompt, and it is taken as it is written.
const DEEPEST: u8 = 2;

/// A Messages request: [`CommonView`] and the parts that the prompt is rendered from.
#[derive(Clone, Debug)]
pub struct MessagesView<'a> {
    /// What every request has.
    pub common: CommonView<'a>,
    /// The conversation: a JSON array.
    pub messages: Raw<'a>,
    /// The system prompt: a text or a list of blocks.
    pub system: Option<Raw<'a>>,
    /// Tool definitions.
    pub tools: Option<Raw<'a>>,
    /// More variables for the template; vLLM's own field.
    pub chat_template_kwargs: Option<Raw<'a>>,
}

impl<'a> MessagesView<'a> {
    /// Reads a Messages request, or one that only counts its tokens; sessions are looked for at `paths`.
    ///
    /// # Errors
    /// See [`RequestError`]. The messages themselves are only known to be a JSON array.
    pub fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        let top = Top::parse(body, paths)?;
        let common = CommonView::of(&top, paths)?;
        let messages = messages_of(&top)?;
        let (system, tools) = (top.system, top.tools);
        let chat_template_kwargs = top.chat_template_kwargs;
        Ok(Self { common, messages, system, tools, chat_template_kwargs })
    }

    /// What its prompt is made of: see [`super::ChatView::text_parts`].
    #[must_use]
    pub fn text_parts(&self) -> Vec<&'a [u8]> {
        let mut parts: Vec<&[u8]> = written([self.chat_template_kwargs, self.tools]).collect();
        if let Some(system) = self.system {
            blocks(system, Place { system: true, depth: 1 }, &mut parts);
        }
        for message in self.messages.items() {
            fields(message, Place { system: false, depth: 0 }, &mut parts);
        }
        parts
    }

    /// What of it stays while the conversation grows.
    #[must_use]
    pub const fn opening(&self) -> Opening<'a> {
        Opening { tools: self.tools, instructions: self.system, messages: self.messages }
    }
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Place {
    /// In the system prompt.
    system: bool,
    /// In so many contents.
    depth: u8,
}

/// The blocks of a content; a content that is a text is one block of it.
fn blocks<'a>(content: Raw<'a>, place: Place, parts: &mut Vec<&'a [u8]>) {
    if !content.get().starts_with('[') {
        parts.push(content.get().as_bytes());
        return;
    }
    for block in content.items() {
        match text_of(block) {
            Some(text) if place.system && text.get()[1..].starts_with(BILLING) => {}
            Some(text) => parts.push(text.get().as_bytes()),
            None => fields(block, place, parts),
        }
    }
}

/// The fields of a message or of a block, but for the marks; a `content` block by block.
fn fields<'a>(object: Raw<'a>, place: Place, parts: &mut Vec<&'a [u8]>) {
    if !object.get().starts_with('{') {
        parts.push(object.get().as_bytes());
    }
    for (name, value) in object.members().filter(|(name, _)| name != CACHE_MARK) {
        // A name with escapes is none that anybody writes.
        if let Cow::Borrowed(name) = name {
            parts.push(name.as_bytes());
        }
        if name == "content" && place.depth < DEEPEST {
            let depth = place.depth + 1;
            blocks(value, Place { depth, ..place }, parts);
        } else {
            parts.push(value.get().as_bytes());
        }
    }
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
