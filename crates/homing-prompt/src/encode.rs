//! Text to token ids and back, and the four forms of a completion's `prompt`.
//!
//! Text that spells a special token (`<|im_end|>` typed by a user) becomes that token. Hugging
//! Face's tokenizers do so unless told otherwise, and vLLM doesn't tell them; an exact prefix index
//! must repeat it.

use serde_json::Value;

use crate::TEXT_LIMIT;
use crate::chat::ChatInput;
use crate::error::PromptError;
use crate::load::ModelPrompt;

/// Whether the tokenizer adds the tokens that its post-processor knows, mostly a BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As vLLM does for completions.
    Add,
    /// As vLLM does for chats, whose template writes them.
    Omit,
}

/// The most prompts of one completion request.
const PROMPTS: usize = 10_000;

impl ModelPrompt {
    /// A chat's token ids: [`Self::render_chat`], then encoded.
    ///
    /// # Errors
    /// As [`Self::render_chat`]; [`PromptError::Tokenizer`] if the tokenizer fails.
    pub fn encode_chat(&self, input: &ChatInput<'_>) -> Result<Vec<u32>, PromptError> {
        self.encode_text(&self.render_chat(input)?, input.specials)
    }

    /// The token ids of each prompt of a completion request: `prompt` is a text, a list of token
    /// ids, a list of texts or a list of lists of ids. Ids are taken as they are.
    ///
    /// # Errors
    /// [`PromptError::Malformed`] for any other form; [`PromptError::TooLong`] if the texts, or the
    /// ids at 4 bytes each, exceed [`TEXT_LIMIT`] together.
    pub fn encode_completion(
        &self,
        prompt: &Value,
        specials: Specials,
    ) -> Result<Vec<Vec<u32>>, PromptError> {
        completion(prompt, |text| self.encode_text(text, specials))
    }

    /// A text's token ids.
    ///
    /// # Errors
    /// [`PromptError::TooLong`] over [`TEXT_LIMIT`]; [`PromptError::Tokenizer`] if the tokenizer
    /// fails, which with byte-level vocabularies doesn't happen.
    pub fn encode_text(&self, text: &str, specials: Specials) -> Result<Vec<u32>, PromptError> {
        within_limit(text.len())?;
        let encoding = self
            .tokenizer
            .encode_fast(text, specials == Specials::Add)
            .map_err(|e| PromptError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of token ids, special tokens included. Unknown ids have no text; bytes that are not
    /// UTF-8 (a character cut in two) become U+FFFD.
    ///
    /// # Errors
    /// [`PromptError::Tokenizer`] if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, PromptError> {
        self.tokenizer.decode(ids, false).map_err(|e| PromptError::Tokenizer(e.to_string()))
    }

    /// The id of a token by its content, special ones included.
    #[must_use]
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// How many tokens there are, special ones included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }
}

/// The ids of each prompt of a completion request, texts encoded by `encode`.
pub(crate) fn completion(
    prompt: &Value,
    encode: impl Fn(&str) -> Result<Vec<u32>, PromptError>,
) -> Result<Vec<Vec<u32>>, PromptError> {
    let list = match prompt {
        Value::String(text) => return Ok(vec![encode(text)?]),
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(malformed("prompt is an empty list")),
        _ => return Err(malformed("prompt is neither a string nor a list")),
    };
    if list.iter().all(Value::is_number) {
        return Ok(vec![ids(list)?]);
    }
    if list.len() > PROMPTS {
        return Err(malformed("prompt is a list of more than 10000 prompts"));
    }
    let bytes: usize = list
        .iter()
        .map(|one| one.as_array().map_or_else(|| one.as_str().map_or(0, str::len), |l| l.len() * 4))
        .sum();
    within_limit(bytes)?;
    list.iter()
        .map(|one| match one {
            Value::String(text) => encode(text),
            Value::Array(list) => ids(list),
            _ => Err(malformed("prompt is a list of neither texts nor token ids")),
        })
        .collect()
}

fn ids(list: &[Value]) -> Result<Vec<u32>, PromptError> {
    within_limit(list.len() * 4)?;
    list.iter()
        .map(|id| {
            id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                malformed("prompt has a token id that is not a whole number below 2^32")
            })
        })
        .collect()
}

pub(crate) fn within_limit(bytes: usize) -> Result<(), PromptError> {
    if bytes > TEXT_LIMIT { Err(PromptError::TooLong { limit: TEXT_LIMIT }) } else { Ok(()) }
}

fn malformed(what: &str) -> PromptError {
    PromptError::Malformed(what.into())
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
