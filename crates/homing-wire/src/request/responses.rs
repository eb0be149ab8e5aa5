//! A request of OpenAI's Responses API.

use super::{BodyPaths, CommonView, Opening, RequestError, Top, open_end, written};
use crate::json::Raw;

/// A Responses request: [`CommonView`] and the parts that the prompt is rendered from.
#[derive(Clone, Debug)]
pub struct ResponsesView<'a> {
    /// What every request has.
    pub common: CommonView<'a>,
    /// A text, or a list of items. It may be absent where `stored` is there.
    pub input: Option<Raw<'a>>,
    /// What stands before the input.
    pub instructions: Option<Raw<'a>>,
    /// Tool definitions.
    pub tools: Option<Raw<'a>>,
    /// More variables for the template; vLLM's own field.
    pub chat_template_kwargs: Option<Raw<'a>>,
    /// `previous_response_id` or `conversation`: the prompt goes on from what only the worker knows.
    pub stored: Option<Raw<'a>>,
}

impl<'a> ResponsesView<'a> {
    /// Reads a Responses request; sessions are looked for at `paths`.
    ///
    /// # Errors
    /// See [`RequestError`]. The input itself is only known to be a text or a list.
    pub fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        const INPUT: &str = "a text or a list of items";
        let top = Top::parse(body, paths)?;
        let common = CommonView::of(&top, paths)?;
        let stored = top.previous_response_id.or(top.conversation);
        match top.input.map(Raw::get) {
            None if stored.is_none() => {
                return Err(RequestError::Missing { param: "input", expected: INPUT });
            }
            Some(input) if !input.starts_with(['"', '[']) => {
                return Err(RequestError::WrongType { param: "input", expected: INPUT });
            }
            _ => {}
        }
        Ok(Self {
            common,
            input: top.input,
            instructions: top.instructions,
            tools: top.tools,
            chat_template_kwargs: top.chat_template_kwargs,
            stored,
        })
    }

    /// What its prompt is made of: see [`super::ChatView::text_parts`]. What is stored stands there by its name, so
    /// that its successors are alike, and nobody else's prompt is taken for one.
    #[must_use]
    pub fn text_parts(&self) -> Vec<&'a [u8]> {
        let before = [self.chat_template_kwargs, self.tools, self.instructions, self.stored];
        written(before).chain(self.input.map(open_end)).collect()
    }

    /// What of it stays while the conversation grows; `None` where its beginning is stored.
    #[must_use]
    pub fn opening(&self) -> Option<Opening<'a>> {
        let messages = self.input.filter(|_| self.stored.is_none())?;
        Some(Opening { tools: self.tools, instructions: self.instructions, messages })
    }
}
