//! The prompt of a completion request, once somebody wants its text or tokens.
//!
//! OpenAI's API has four spellings in one field. The first character behind the bracket tells them
//! apart, so each is read straight into its type, without trying one after the other.

use super::RequestError;
use crate::json::Raw;
use serde::de::DeserializeOwned;

pub(super) const EXPECTED: &str = "a text, a list of token ids, or a list of these";

pub(super) const fn malformed() -> RequestError {
    RequestError::WrongType { param: "prompt", expected: EXPECTED }
}

/// What a completion request asks to be continued; a request with several prompts is as many
/// generations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// One text.
    Text(String),
    /// One prompt, already tokenized.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several tokenized prompts.
    TokenLists(Vec<Vec<u32>>),
}

impl PromptInput {
    /// Reads the field `prompt`.
    ///
    /// # Errors
    /// [`RequestError::WrongType`] where it is none of the four.
    pub fn parse(raw: Raw<'_>) -> Result<Self, RequestError> {
        fn read<T: DeserializeOwned>(raw: Raw<'_>) -> Result<T, RequestError> {
            serde_json::from_str(raw.get()).map_err(|_| malformed())
        }
        let Some(inside) = raw.get().strip_prefix('[') else {
            return read(raw).map(Self::Text);
        };
        match inside.trim_ascii_start().bytes().next() {
            Some(b'"') => read(raw).map(Self::Texts),
            Some(b'[') => read(raw).map(Self::TokenLists),
            _ => read(raw).map(Self::Tokens),
        }
    }
}
