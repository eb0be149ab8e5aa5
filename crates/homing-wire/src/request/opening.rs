//! How a conversation opens: what stays as it is while messages are appended, for telling conversations
//! apart that bring no id.
//!
//! That is the tools, the instructions, the leading system and developer messages, and the first user message;
//! nothing behind that one is read. Everything is handed out as slices of the body. Clients that mark where a
//! cache is to end (`cache_control`) move the mark on with every turn, and some turn a text into a list
//! of one part to have a place for it: so the marks are left out, and a text part counts as the text.

use crate::json::Raw;

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
    pub(super) tools: Option<Raw<'a>>,
    /// The instructions that stand beside the conversation: a text, or a list of blocks.
    pub(super) instructions: Option<Raw<'a>>,
    /// The conversation: a list, or a text that is the first user message.
    pub(super) messages: Raw<'a>,
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
        let mut leading = true;
        for message in self.messages.items() {
            let [role, said] = message.pick(["role", "content"]);
            let role = role.and_then(Raw::text);
            let role = role.as_deref().unwrap_or_default();
            leading = leading && matches!(role, "system" | "developer");
            let found = role == "user";
            if leading || found {
                piece(PieceKind::Role, role);
                if let Some(said) = said {
                    content(said, false, &mut piece);
                }
            }
            if found {
                return true;
            }
        }
        false
    }
}

fn content(content: Raw<'_>, instructions: bool, piece: &mut impl FnMut(PieceKind, &str)) {
    match content.get().as_bytes().first() {
        Some(b'"') => piece(PieceKind::Text, content.get()),
        Some(b'[') => {
            for part in content.items() {
                match text_of(part) {
                    Some(written) if instructions && written.get()[1..].starts_with(BILLING) => {}
                    Some(written) => piece(PieceKind::Text, written.get()),
                    None => other(part, piece),
                }
            }
        }
        _ => piece(PieceKind::Value, content.get()),
    }
}

/// The text of a part, as it is written, where it says that it is one, in any API's word.
pub(super) fn text_of(part: Raw<'_>) -> Option<Raw<'_>> {
    let [kind, written] = part.pick(["type", "text"]);
    let is_text = matches!(&*kind?.text()?, "text" | "input_text" | "output_text");
    written.filter(|raw| is_text && raw.get().starts_with('"'))
}

/// A part that is no text: an image, mostly.
fn other(part: Raw<'_>, piece: &mut impl FnMut(PieceKind, &str)) {
    piece(PieceKind::Part, "");
    if !part.get().starts_with('{') {
        piece(PieceKind::Value, part.get());
    }
    for (name, value) in part.members().filter(|(name, _)| name != CACHE_MARK) {
        piece(PieceKind::Name, &name);
        piece(PieceKind::Value, value.get());
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
