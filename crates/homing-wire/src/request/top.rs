//! The top level of a body, every value still a slice of it.
//!
//! Written by hand and not derived, because a derived reader refuses repeated keys, and can't collect
//! the fields that only the configuration names.

use super::{BodyPaths, RequestError};
use crate::json::{Members, NotJson, Raw};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::collections::HashMap;

/// A value that is there and not null.
type Slot<'a> = Option<Raw<'a>>;

/// The fields that anybody here reads; null counts as absent, as it does for the engines.
#[derive(Debug, Default)]
pub(super) struct Top<'a> {
    pub(super) model: Slot<'a>,
    pub(super) stream: Slot<'a>,
    pub(super) stream_options: Slot<'a>,
    pub(super) max_tokens: Slot<'a>,
    pub(super) max_completion_tokens: Slot<'a>,
    pub(super) n: Slot<'a>,
    pub(super) cache_salt: Slot<'a>,
    pub(super) max_output_tokens: Slot<'a>,
    pub(super) messages: Slot<'a>,
    pub(super) system: Slot<'a>,
    pub(super) input: Slot<'a>,
    pub(super) instructions: Slot<'a>,
    pub(super) previous_response_id: Slot<'a>,
    pub(super) conversation: Slot<'a>,
    pub(super) tools: Slot<'a>,
    pub(super) tool_choice: Slot<'a>,
    pub(super) documents: Slot<'a>,
    pub(super) chat_template: Slot<'a>,
    pub(super) chat_template_kwargs: Slot<'a>,
    pub(super) reasoning_effort: Slot<'a>,
    pub(super) add_generation_prompt: Slot<'a>,
    pub(super) continue_final_message: Slot<'a>,
    pub(super) add_special_tokens: Slot<'a>,
    pub(super) truncate_prompt_tokens: Slot<'a>,
    pub(super) prompt: Slot<'a>,
    pub(super) prompt_embeds: Slot<'a>,
    /// One per configured path: the value under the path's first name.
    pub(super) session_roots: Vec<Slot<'a>>,
}

impl<'a> Top<'a> {
    pub(super) fn parse(body: &'a [u8], paths: &BodyPaths) -> Result<Self, RequestError> {
        Self::read(body, paths).map_err(|NotJson| what_is_wrong(body))
    }

    fn read(body: &'a [u8], paths: &BodyPaths) -> Result<Self, NotJson> {
        let mut top = Top { session_roots: vec![None; paths.len()], ..Top::default() };
        for member in Members::of(body)? {
            let (name, value) = member?;
            let value = Some(value).filter(|raw| raw.get() != "null");
            if let Some(slot) = top.slot(&name) {
                *slot = value;
            }
            for (root, slot) in paths.roots().zip(&mut top.session_roots) {
                if root == name {
                    *slot = value;
                }
            }
        }
        Ok(top)
    }

    fn slot(&mut self, name: &str) -> Option<&mut Slot<'a>> {
        Some(match name {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "n" => &mut self.n,
            "cache_salt" => &mut self.cache_salt,
            "max_output_tokens" => &mut self.max_output_tokens,
            "messages" => &mut self.messages,
            "system" => &mut self.system,
            "input" => &mut self.input,
            "instructions" => &mut self.instructions,
            "previous_response_id" => &mut self.previous_response_id,
            "conversation" => &mut self.conversation,
            "tools" => &mut self.tools,
            "tool_choice" => &mut self.tool_choice,
            "documents" => &mut self.documents,
            "chat_template" => &mut self.chat_template,
            "chat_template_kwargs" => &mut self.chat_template_kwargs,
            "reasoning_effort" => &mut self.reasoning_effort,
            "add_generation_prompt" => &mut self.add_generation_prompt,
            "continue_final_message" => &mut self.continue_final_message,
            "add_special_tokens" => &mut self.add_special_tokens,
            "truncate_prompt_tokens" => &mut self.truncate_prompt_tokens,
            "prompt" => &mut self.prompt,
            "prompt_embeds" => &mut self.prompt_embeds,
            _ => return None,
        })
    }
}

/// Why a body is none, in serde_json's words, which tell line and column.
fn what_is_wrong(body: &[u8]) -> RequestError {
    match serde_json::from_slice::<HashMap<String, &RawValue>>(body) {
        Err(error) if error.classify() == Category::Data => RequestError::NotAnObject,
        Err(error) => RequestError::NotJson(error.to_string()),
        Ok(_) => RequestError::NotJson("it can't be read".to_owned()),
    }
}

/// The value as a number from 0 up; too large a one becomes the largest, no number is none.
pub(super) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    let value: f64 = serde_json::from_str(raw.get()).ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    (value >= 0.0).then_some(value as u64)
}

/// Whether these stream options ask for the usage.
pub(super) fn includes_usage(raw: Raw<'_>) -> bool {
    raw.member("include_usage").is_some_and(|value| value.get() == "true")
}
