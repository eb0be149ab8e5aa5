//! homing-prompt: from what a client sent (messages, tools, prompts) to the token ids that its
//! engine will see.
//!
//! An engine caches by token, so the router must know the tokens before the engine does: it renders
//! the model's own chat template and runs the model's own tokenizer, both read from a folder like
//! the one the engine was given. Gateway hosts and the mock engine call this same code, so they
//! agree by construction. CPU only: nothing here reads a clock or a socket, and the only files read
//! are those of [`ModelPrompt::load`]. Hashing the ids is `homing_core::hash`'s part.
//!
//! What to imitate is not the template engine but the *engine server*: vLLM reshapes messages
//! before it renders (module [`chat`]), and makes chats of other APIs' requests (`responses`, `anthropic`); Hugging Face's `apply_chat_template` has its own Jinja
//! dialect (`template`), and that dialect prints values as Python does (`python`).
//!
//! A turn repeats its conversation, so [`ModelPrompt::chat_prompt`] keeps what it encoded (`cut`:
//! where a text may be cut, `cache`, `incremental`), and gives what the plain way gives.
//!
//! Calls may take milliseconds per 10 KB of new text: run them on a compute pool, not on an I/O thread.

mod anthropic;
mod cache;
pub mod chat;
mod cut;
mod encode;
mod error;
mod incremental;
mod load;
mod python;
mod question;
mod responses;
mod strftime;
mod template;
#[cfg(test)]
mod testing;

pub use anthropic::Habits;
pub use cache::{CacheStats, PromptCache};
pub use chat::{ChatBody, ChatInput};
pub use encode::Specials;
pub use error::{LoadError, PromptError};
pub use load::{BUILTIN_FILES, ModelPrompt};

/// The longest text that is rendered or encoded, in bytes (a million tokens are some 4 MB). Longer
/// ones get [`PromptError::TooLong`].
pub const TEXT_LIMIT: usize = 16 << 20;

/// The longest stretch between two places where a text may be cut, in bytes, where prompts are made for routing.
/// Such a stretch is encoded in one go: a tokenizer takes 100 bytes of memory a byte for prose, and 350 and three
/// times as long for a row of line feeds. Longer ones get [`PromptError::Unbroken`].
pub const UNBROKEN_LIMIT: usize = 1 << 20;
