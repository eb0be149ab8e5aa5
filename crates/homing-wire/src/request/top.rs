//! The top level of a body, every value still a slice of it.
//!
//! Written by hand and not derived, because a derived reader refuses repeated keys, and can't collect
//! the fields that only the configuration names.

use super::{BodyPaths, RequestError};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A value that is there and not null.
type Slot<'a> = Option<&'a RawValue>;

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
        let mut reader = serde_json::Deserializer::from_slice(body);
        let top = TopSeed(paths).deserialize(&mut reader);
        let top = top.and_then(|top| reader.end().map(|()| top));
        top.map_err(|error| match error.classify() {
            Category::Data => RequestError::NotAnObject,
            _ => RequestError::NotJson(error.to_string()),
        })
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

struct TopSeed<'p>(&'p BodyPaths);

impl<'a> DeserializeSeed<'a> for TopSeed<'_> {
    type Value = Top<'a>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Top<'a>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for TopSeed<'_> {
    type Value = Top<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Top<'a>, M::Error> {
        let mut top = Top { session_roots: vec![None; self.0.len()], ..Top::default() };
        while let Some(Text(name)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            let value = Some(value).filter(|raw| raw.get() != "null");
            if let Some(slot) = top.slot(&name) {
                *slot = value;
            }
            for (root, slot) in self.0.roots().zip(&mut top.session_roots) {
                if root == name {
                    *slot = value;
                }
            }
        }
        Ok(top)
    }
}

/// A text, borrowed unless it has escapes.
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'a> Deserialize<'a> for Text<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'a> Visitor<'a> for TextVisitor {
            type Value = Text<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Text<'a>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'a>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// The value as a text, if it is one.
pub(super) fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

/// The value as a number from 0 up; too large a one becomes the largest, no number is none.
pub(super) fn whole_number(raw: &RawValue) -> Option<u64> {
    let value: f64 = serde_json::from_str(raw.get()).ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    (value >= 0.0).then_some(value as u64)
}

/// Whether these stream options ask for the usage.
pub(super) fn includes_usage(raw: &RawValue) -> bool {
    member(raw, "include_usage").is_some_and(|value| value.get() == "true")
}

/// The last value under `name` if `raw` is an object that has one.
pub(super) fn member<'a>(raw: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    struct Member<'n>(&'n str);
    impl<'a> Visitor<'a> for Member<'_> {
        type Value = Option<&'a RawValue>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut found = None;
            while let Some(Text(key)) = map.next_key()? {
                let value: &RawValue = map.next_value()?;
                if key == self.0 {
                    found = Some(value);
                }
            }
            Ok(found)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    reader.deserialize_map(Member(name)).ok()?
}
