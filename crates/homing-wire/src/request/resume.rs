//! Going on with a stream at another worker (`retry.resume`): whether that can be done faithfully, the request that
//! asks for the rest, and what of the rest's events changes, so that the client sees one stream.
//!
//! It can where what a model has said so far can be given back to it as it was: text of one choice. It can't where
//! tools, log probabilities, guided decoding or reasoning are at work, or where the answer depends on more than its
//! text. For chats vLLM's and SGLang's `continue_final_message` is used, for completions the prompt goes on.

use serde_json::{Map, Value, json};

/// Which API a stream is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumable {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// Fields that make an answer more than its text; each must be absent, null, false, 0 or empty.
const MORE_THAN_TEXT: [&str; 18] = [
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
    "suffix",
    "echo",
    "use_beam_search",
    "return_token_ids",
    "truncate_prompt_tokens",
];
/// Those that bound its length.
const BOUNDS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// A stream so far, and how it could go on.
#[derive(Clone, Debug)]
pub struct Resume {
    api: Resumable,
    body: Map<String, Value>,
    /// What has been said.
    text: String,
    /// In so many pieces.
    pieces: u64,
    id: Option<Value>,
    created: Option<Value>,
    /// It can be given back as it was.
    whole: bool,
    /// It has told why it ends: there is nothing to go on with.
    finished: bool,
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::Object(o) => o.get("type").is_none_or(|t| t != "text"),
        Value::String(s) => !s.is_empty(),
        Value::Array(a) => !a.is_empty(),
        Value::Bool(true) => true,
    }
}

impl Resume {
    /// Of a request for a stream; `None` where it could not go on elsewhere whatever is said.
    #[must_use]
    pub fn of(api: Resumable, body: &[u8]) -> Option<Self> {
        let Ok(Value::Object(body)) = serde_json::from_slice(body) else { return None };
        let one = |key: &str| body.get(key).is_none_or(|n| n.is_null() || n.as_u64() == Some(1));
        let plain = MORE_THAN_TEXT.iter().all(|key| !body.get(*key).is_some_and(is_set));
        let prompt = match api {
            Resumable::Chat => body.get("messages").is_some_and(Value::is_array),
            // Of token ids the rest's would have to be known.
            Resumable::Completions => body.get("prompt").is_some_and(Value::is_string),
        };
        let streams = body.get("stream").and_then(Value::as_bool) == Some(true);
        (plain && prompt && streams && one("n") && one("best_of")).then(|| Self {
            api,
            body,
            text: String::new(),
            pieces: 0,
            id: None,
            created: None,
            whole: true,
            finished: false,
        })
    }

    /// Takes in the data of an event that has gone to the client.
    pub fn see(&mut self, data: &[u8]) {
        if !self.whole || data.trim_ascii() == b"[DONE]" {
            return;
        }
        let Ok(Value::Object(event)) = serde_json::from_slice::<Value>(data) else {
            self.whole = false;
            return;
        };
        for (key, slot) in [("id", &mut self.id), ("created", &mut self.created)] {
            if slot.is_none() {
                *slot = event.get(key).cloned();
            }
        }
        let Some(choices) = event.get("choices").and_then(Value::as_array) else {
            self.whole = false;
            return;
        };
        let Some(choice) = choices.first() else { return };
        let first = choice.get("index").is_none_or(|i| i == 0);
        let said = self.said(choice);
        self.whole &= choices.len() == 1 && first && said.is_some();
        self.finished |= choice.get("finish_reason").is_some_and(|r| !r.is_null());
        if let Some(said) = said.filter(|said| !said.is_empty()) {
            self.text.push_str(&said);
            self.pieces += 1;
        }
    }

    /// An event has gone to the client that could not be read.
    pub fn spoil(&mut self) {
        self.whole = false;
    }

    /// The text of a piece; `None` where it is more than that.
    fn said(&self, choice: &Value) -> Option<String> {
        if choice.get("logprobs").is_some_and(|l| !l.is_null()) {
            return None;
        }
        let text = |v: Option<&Value>| match v {
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => None,
        };
        if self.api == Resumable::Completions {
            return text(choice.get("text"));
        }
        let delta = match choice.get("delta") {
            None | Some(Value::Null) => return Some(String::new()),
            Some(Value::Object(delta)) => delta,
            Some(_) => return None,
        };
        let more = |key: &str, value: &Value| !matches!(key, "role" | "content") && is_set(value);
        if delta.iter().any(|(key, value)| more(key, value)) {
            return None;
        }
        text(delta.get("content"))
    }

    /// The request for the rest; `None` where there is none, or it can't be had faithfully.
    #[must_use]
    pub fn request(&self) -> Option<Vec<u8>> {
        if !self.whole || self.finished || self.pieces == 0 {
            return None;
        }
        let mut body = self.body.clone();
        for key in BOUNDS {
            if let Some(most) = body.get(key).filter(|most| !most.is_null()) {
                let left = most.as_u64()?.checked_sub(self.pieces).filter(|left| *left > 0)?;
                body.insert(key.to_owned(), left.into());
            }
        }
        if let Some(least) = body.get("min_tokens").and_then(Value::as_u64) {
            body.insert("min_tokens".to_owned(), least.saturating_sub(self.pieces).into());
        }
        match self.api {
            Resumable::Completions => {
                let prompt = body.get("prompt")?.as_str()?;
                let longer = format!("{prompt}{}", self.text);
                body.insert("prompt".to_owned(), longer.into());
            }
            Resumable::Chat => {
                let goes_on =
                    body.get("continue_final_message").and_then(Value::as_bool) == Some(true);
                let messages = body.get_mut("messages")?.as_array_mut()?;
                if goes_on {
                    let last = messages.last_mut()?.as_object_mut()?;
                    let before = last.get("content")?.as_str()?;
                    let longer = format!("{before}{}", self.text);
                    last.insert("content".to_owned(), longer.into());
                } else {
                    messages.push(json!({"role": "assistant", "content": self.text}));
                }
                body.insert("add_generation_prompt".to_owned(), false.into());
                body.insert("continue_final_message".to_owned(), true.into());
            }
        }
        serde_json::to_vec(&Value::Object(body)).ok()
    }

    /// How many pieces have been said: tokens, where the engine sends them one by one.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.pieces
    }

    /// An event of the rest, as the client is to see it: `None` where it is none of its business (another opening).
    #[must_use]
    pub fn rewrite(&self, data: &[u8]) -> Option<Vec<u8>> {
        if data.trim_ascii() == b"[DONE]" {
            return Some(data.to_vec());
        }
        let Ok(Value::Object(mut event)) = serde_json::from_slice::<Value>(data) else {
            return Some(data.to_vec());
        };
        for (key, value) in [("id", &self.id), ("created", &self.created)] {
            if let (Some(value), true) = (value, event.contains_key(key)) {
                event.insert(key.to_owned(), value.clone());
            }
        }
        if let Some(Value::Object(usage)) = event.get_mut("usage") {
            self.recount(usage);
        }
        let choices = event.get_mut("choices").and_then(Value::as_array_mut);
        for choice in choices.into_iter().flatten() {
            let Some(Value::Object(delta)) = choice.get_mut("delta") else { continue };
            let opens = delta.remove("role").is_some();
            let silent = delta.values().all(|v| !is_set(v));
            if opens && silent && choice.get("finish_reason").is_none_or(Value::is_null) {
                return None;
            }
        }
        serde_json::to_vec(&Value::Object(event)).ok()
    }

    /// What was said before is part of the answer, and not of its prompt.
    fn recount(&self, usage: &mut Map<String, Value>) {
        let mut shift = |key: &str, by: i64| {
            if let Some(n) = usage.get(key).and_then(Value::as_i64) {
                usage.insert(key.to_owned(), n.saturating_add(by).max(0).into());
            }
        };
        let pieces = i64::try_from(self.pieces).unwrap_or(i64::MAX);
        shift("prompt_tokens", -pieces);
        shift("completion_tokens", pieces);
    }
}

#[cfg(test)]
#[path = "resume_tests.rs"]
mod tests;
