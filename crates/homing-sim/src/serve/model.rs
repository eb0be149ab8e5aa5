//! The model's two ends: tokens from what clients send, and something to answer.

use crate::engine::FinishReason;
use crate::text::{Codec, Message, Words};
use homing_core::dice::{Dice, SplitMix};
use homing_core::hash::HashSpace;
use homing_prompt::{ChatBody, ChatInput, LoadError, ModelPrompt, PromptError, Specials};
use serde_json::Value;
use std::path::Path;

/// A real tokenizer and chat template as a [`Codec`]: what plans in virtual time encode with, so that
/// they see the tokens that the mock and the router see.
#[derive(Debug)]
pub struct PromptCodec(ModelPrompt);

impl PromptCodec {
    /// The project's own tokenizer and template.
    #[must_use]
    pub fn builtin() -> Self {
        Self(ModelPrompt::builtin())
    }

    /// Those of a model's folder.
    ///
    /// # Errors
    /// [`LoadError`], naming the file.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        ModelPrompt::load(folder).map(Self)
    }
}

impl Codec for PromptCodec {
    type Error = PromptError;

    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, PromptError> {
        let messages = serde_json::to_value(messages)
            .map_err(|error| PromptError::Malformed(error.to_string()))?;
        self.0.encode_chat(&ChatInput::new(&messages))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        self.0.encode_text(text, Specials::Omit)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, PromptError> {
        self.0.decode(tokens)
    }
}

/// How long the model talks by itself, in tokens: evenly between these.
const NATURAL: (usize, usize) = (24, 120);

/// The mocked model.
#[derive(Debug)]
pub(super) struct Model {
    codec: PromptCodec,
    words: Words,
}

/// An answer before it is given.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) tokens: Vec<u32>,
    /// The text of each token; together they are the text of all.
    pub(super) pieces: Vec<String>,
    pub(super) ending: FinishReason,
}

impl Model {
    pub(super) fn new(codec: PromptCodec) -> Result<Self, PromptError> {
        let words = Words::of(&codec)?;
        Ok(Self { codec, words })
    }

    /// The tokens of a chat request's body.
    pub(super) fn chat(&self, body: &Value) -> Result<Vec<u32>, PromptError> {
        let encode = |body: Value| {
            let body = ChatBody::from_value(body)?;
            self.codec.0.encode_chat(&body.input(None)?)
        };
        match encode(body.clone()) {
            Err(PromptError::Unsupported(_)) => encode(text_only(body.clone())),
            other => other,
        }
    }

    /// The tokens of a Responses request's body.
    pub(super) fn responses(&self, body: &Value) -> Result<Vec<u32>, PromptError> {
        let body = ChatBody::from_responses(body.to_string().as_bytes())?;
        self.codec.0.encode_chat(&body.input(None)?)
    }

    /// The tokens of the body of a request of Anthropic's.
    pub(super) fn messages(&self, body: &Value) -> Result<Vec<u32>, PromptError> {
        let habits = self.codec.0.habits();
        let body = ChatBody::from_messages(body.to_string().as_bytes(), habits)?;
        self.codec.0.encode_chat(&body.input(None)?)
    }

    /// The tokens of the one prompt of a completion request.
    pub(super) fn completion(&self, prompt: &Value) -> Result<Vec<u32>, PromptError> {
        let prompts = self.codec.0.encode_completion(prompt, Specials::Add)?;
        match <[Vec<u32>; 1]>::try_from(prompts) {
            Ok([tokens]) => Ok(tokens),
            Err(_) => Err(PromptError::Unsupported("this mock takes one prompt a request")),
        }
    }

    /// The tokens of a text, with those that the tokenizer adds if `specials`.
    pub(super) fn text(&self, text: &str, specials: bool) -> Result<Vec<u32>, PromptError> {
        let specials = if specials { Specials::Add } else { Specials::Omit };
        self.codec.0.encode_text(text, specials)
    }

    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, PromptError> {
        self.codec.decode(tokens)
    }

    /// What to answer `prompt`, in at most `limit` tokens; exactly that many if `exactly`. At least one.
    pub(super) fn reply(
        &self,
        prompt: &[u32],
        limit: usize,
        exactly: bool,
    ) -> Result<Reply, PromptError> {
        let mut dice = SplitMix::new(HashSpace::default().local(prompt).0 ^ 1);
        let natural = NATURAL.0 + dice.below(NATURAL.1 - NATURAL.0 + 1);
        let wanted = if exactly { limit } else { natural.min(limit) }.max(1);
        let cut = exactly || natural > limit;
        let tokens = self.words.reply(&self.codec, prompt, wanted)?;
        let pieces = self.pieces(&tokens)?;
        let ending = if cut { FinishReason::Length } else { FinishReason::Stop };
        Ok(Reply { tokens, pieces, ending })
    }

    /// Text by token. A tokenizer that decodes a token differently in context (one that drops the first
    /// space, say) is decoded prefix by prefix: quadratic, and only there.
    fn pieces(&self, tokens: &[u32]) -> Result<Vec<String>, PromptError> {
        let whole = self.codec.decode(tokens)?;
        let alone: Vec<String> =
            tokens.iter().map(|t| self.codec.decode(&[*t])).collect::<Result<_, _>>()?;
        if alone.concat() == whole {
            return Ok(alone);
        }
        let mut pieces = Vec::with_capacity(tokens.len());
        let mut done = 0;
        for n in 1..=tokens.len() {
            let prefix = self.codec.decode(&tokens[..n])?;
            // A character cut in two shows as U+FFFD until its rest is there.
            let ready = if n == tokens.len() {
                prefix.as_str()
            } else {
                prefix.trim_end_matches('\u{FFFD}')
            };
            pieces.push(ready.get(done..).unwrap_or_default().to_owned());
            done = done.max(ready.len());
        }
        Ok(pieces)
    }
}

/// The body as a model without eyes reads it: a place-holder for each part that is not text, and no
/// template or documents of its own. A real engine has place-holder tokens there as well.
fn text_only(mut body: Value) -> Value {
    if let Some(body) = body.as_object_mut() {
        body.remove("chat_template");
        body.remove("documents");
    }
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for part in messages
        .into_iter()
        .flatten()
        .filter_map(|message| message.get_mut("content").and_then(Value::as_array_mut))
        .flatten()
    {
        if part.get("type").and_then(Value::as_str) != Some("text") {
            *part = serde_json::json!({"type": "text", "text": "[attachment]"});
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn model() -> Model {
        Model::new(PromptCodec::builtin()).expect("the built-in model encodes its words")
    }

    /// The law that prefix reuse of decoded blocks rests on.
    #[test]
    fn a_reply_that_comes_back_in_the_next_turn_has_the_same_tokens() {
        let model = model();
        let mut messages = vec![json!({"role": "user", "content": "Fix the bug."})];
        let mut before = vec![];
        for turn in 0..40 {
            let prompt = model.chat(&json!({"messages": messages})).expect("encodes");
            assert!(prompt.starts_with(&before), "turn {turn}");
            let reply = model.reply(&prompt, 1 + turn * 3, true).expect("encodes");
            assert_eq!(reply.tokens.len(), 1 + turn * 3);
            before = [prompt, reply.tokens].concat();
            messages.push(json!({"role": "assistant", "content": reply.pieces.concat()}));
            messages.push(json!({"role": "user", "content": format!("And now {turn}?")}));
        }
    }

    #[test]
    fn a_reply_is_cut_or_ends_by_itself() {
        let model = model();
        let cut = model.reply(&[1, 2], 3, false).expect("encodes");
        assert_eq!((cut.tokens.len(), cut.ending), (3, FinishReason::Length));
        let natural = model.reply(&[1, 2], 1000, false).expect("encodes");
        assert_eq!(natural.ending, FinishReason::Stop);
        assert!((24..=120).contains(&natural.tokens.len()));
    }

    #[test]
    fn what_is_not_text_leaves_a_mark() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        let parts = json!([{"type": "text", "text": "see"}, image]);
        let body = json!({"messages": [{"role": "user", "content": parts}]});
        let tokens = model().chat(&body).expect("encodes");
        let text = model().decode(&tokens).expect("decodes");
        assert!(text.contains("see\n[attachment]"), "{text}");
    }

    #[test]
    fn the_words_add_up_with_the_built_in_tokenizer() {
        let model = model();
        for wanted in [10, 100, 1000] {
            let text = model.words.text(&mut SplitMix::new(wanted as u64), wanted);
            let have = model.text(&text, false).expect("encodes").len();
            assert!((wanted..wanted + 4).contains(&have), "{have} for {wanted}");
        }
    }
}
