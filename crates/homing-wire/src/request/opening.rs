//! How a conversation opens: what stays as it is while messages are appended, for telling conversations
//! apart that bring no id.
//!
//! That is the tools, the instructions, the leading system and developer messages, and the first user message;
//! nothing behind that one is read. Everything is handed out as slices of the body. Clients that mark where a
//! cache is to end (`cache_control`) move the mark on with every turn, and some turn a text into a list
//! of one part to have a place for it: so the marks are left out, and a text part counts as the text.

use super::top::{Text, member, text};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The mark that moves.
pub(super) const CACHE_MARK: &str = "cache_control";
/// How a block of Claude Code's system prompt begins that changes from request to request. Engines leave it out.
pub(super) const BILLING: &str = "x-anthropic-billing-header";

/// What a piece of an opening is. The numbers are for hashing: they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PieceKind {
    /// The tools, as they are written.
    Tools = 1,
    /// A message begins; the piece is its role, read.
    Role = 2,
    /// A text of it, as it is written, quotes included.
    Text = 3,
    /// A part of it that is no text begins; the piece is empty.
    Part = 4,
    /// A field of that part; the piece is its name, read.
    Name = 5,
    /// The value of that field, or a content that is neither a text nor a list, as it is written.
    Value = 6,
}

/// The parts of a body that an opening is in.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Its tools.
    pub(super) tools: Option<&'a RawValue>,
    /// The instructions that stand beside the conversation: a text, or a list of blocks.
    pub(super) instructions: Option<&'a RawValue>,
    /// The conversation: a list, or a text that is the first user message.
    pub(super) messages: &'a RawValue,
}

impl Opening<'_> {
    /// Hands out the opening piece by piece, in the order of the body but the tools first.
    ///
    /// Whether there is a user message: without one a conversation has not opened, and what was handed
    /// out counts for nothing. Time is linear in the opening, memory constant.
    pub fn read(self, mut piece: impl FnMut(PieceKind, &str)) -> bool {
        if let Some(tools) = self.tools {
            piece(PieceKind::Tools, tools.get());
        }
        if let Some(instructions) = self.instructions {
            piece(PieceKind::Role, "system");
            content(instructions, true, &mut piece);
        }
        if self.messages.get().starts_with('"') {
            piece(PieceKind::Role, "user");
            piece(PieceKind::Text, self.messages.get());
            return true;
        }
        let mut found = false;
        let messages = Messages { piece: &mut piece, found: &mut found };
        // An error where it stops behind the first user message; that all is JSON is known.
        drop(serde_json::Deserializer::from_str(self.messages.get()).deserialize_seq(messages));
        found
    }
}

struct Messages<'f, F> {
    piece: &'f mut F,
    found: &'f mut bool,
}

impl<'a, F: FnMut(PieceKind, &str)> Visitor<'a> for Messages<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of messages")
    }

    fn visit_seq<S: SeqAccess<'a>>(self, mut messages: S) -> Result<(), S::Error> {
        let mut leading = true;
        while let Some(message) = messages.next_element::<&RawValue>()? {
            let role = member(message, "role").and_then(text);
            let role = role.as_deref().unwrap_or_default();
            leading = leading && matches!(role, "system" | "developer");
            *self.found = role == "user";
            if leading || *self.found {
                (self.piece)(PieceKind::Role, role);
                if let Some(said) = member(message, "content") {
                    content(said, false, self.piece);
                }
            }
            if *self.found {
                break;
            }
        }
        Ok(())
    }
}

fn content(content: &RawValue, instructions: bool, piece: &mut impl FnMut(PieceKind, &str)) {
    match content.get().as_bytes().first() {
        Some(b'"') => piece(PieceKind::Text, content.get()),
        Some(b'[') => {
            let mut reader = serde_json::Deserializer::from_str(content.get());
            // It is JSON, and read to its end.
            drop(reader.deserialize_seq(Parts { instructions, piece }));
        }
        _ => piece(PieceKind::Value, content.get()),
    }
}

struct Parts<'f, F> {
    instructions: bool,
    piece: &'f mut F,
}

impl<'a, F: FnMut(PieceKind, &str)> Visitor<'a> for Parts<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts")
    }

    fn visit_seq<S: SeqAccess<'a>>(self, mut parts: S) -> Result<(), S::Error> {
        while let Some(part) = parts.next_element::<&RawValue>()? {
            let written = member(part, "text").filter(|raw| raw.get().starts_with('"'));
            match written.filter(|_| is_text(part)) {
                Some(written) if self.instructions && written.get()[1..].starts_with(BILLING) => {}
                Some(written) => (self.piece)(PieceKind::Text, written.get()),
                None => other(part, self.piece),
            }
        }
        Ok(())
    }
}

/// Whether a part says that it is a text, in any API's word.
pub(super) fn is_text(part: &RawValue) -> bool {
    let kind = member(part, "type").and_then(text);
    kind.is_some_and(|kind| matches!(&*kind, "text" | "input_text" | "output_text"))
}

/// A part that is no text: an image, mostly.
fn other(part: &RawValue, piece: &mut impl FnMut(PieceKind, &str)) {
    piece(PieceKind::Part, "");
    if part.get().starts_with('{') {
        // It is JSON, and read to its end.
        drop(serde_json::Deserializer::from_str(part.get()).deserialize_map(Fields(piece)));
    } else {
        piece(PieceKind::Value, part.get());
    }
}

struct Fields<'f, F>(&'f mut F);

impl<'a, F: FnMut(PieceKind, &str)> Visitor<'a> for Fields<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a message")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut fields: M) -> Result<(), M::Error> {
        while let Some(Text(name)) = fields.next_key()? {
            if name == CACHE_MARK {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            (self.0)(PieceKind::Name, &name);
            (self.0)(PieceKind::Value, fields.next_value::<&RawValue>()?.get());
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
