//! The JSON of answers, member by member as a vLLM 0.32.0 server was seen to send them.

use super::ask::Api;
use super::{messages, responses};
use crate::engine::FinishReason;
use homing_core::time::Time;
use serde_json::{Value, json};

/// What all objects of one answer share.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) api: Api,
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    /// Whether `usage` tells how many tokens were cached.
    pub(super) details: bool,
}

/// Names the engine's version to clients, as vLLM's `system_fingerprint` does.
const FINGERPRINT: &str = concat!("homing-mock-", env!("CARGO_PKG_VERSION"));

pub(super) const fn seconds(at: Time) -> u64 {
    at.as_micros() / 1_000_000
}

const fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

impl Frame {
    /// The whole answer.
    pub(super) fn whole(&self, text: &str, reason: FinishReason, usage: &Value) -> Value {
        match self.api {
            Api::Responses => return responses::whole(self, text, reason, usage),
            Api::Messages => return messages::whole(self, text, reason, usage),
            Api::Chat | Api::Completion => {}
        }
        let reason = word(reason);
        let (object, choice) = match self.api {
            Api::Chat => (
                "chat.completion",
                json!({
                    "index": 0,
                    "message": {
                        "role": "assistant", "content": text, "refusal": null, "annotations": null,
                        "audio": null, "function_call": null, "reasoning": null,
                    },
                    "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": null,
                }),
            ),
            _ => (
                "text_completion",
                json!({
                    "index": 0, "text": text, "logprobs": null, "finish_reason": reason,
                    "stop_reason": null, "token_ids": null, "prompt_logprobs": null,
                    "prompt_token_ids": null,
                }),
            ),
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": [choice], "service_tier": null, "system_fingerprint": FINGERPRINT,
            "usage": usage, "kv_transfer_params": null,
        })
    }

    /// The chunk that opens a chat's stream: the role.
    pub(super) fn opening(&self) -> Value {
        let delta = json!({"role": "assistant", "content": ""});
        self.chunk(json!([
            {"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}
        ]))
    }

    /// A chunk with new text; the last one says why it is the last.
    pub(super) fn piece(&self, text: &str, last: Option<FinishReason>) -> Value {
        let mut choice = match self.api {
            Api::Chat => json!({"index": 0, "delta": {"content": text}, "logprobs": null}),
            _ => json!({"index": 0, "text": text, "logprobs": null}),
        };
        choice["finish_reason"] = json!(last.map(word));
        if last.is_some() || self.api == Api::Completion {
            choice["stop_reason"] = Value::Null;
        }
        choice["token_ids"] = Value::Null;
        self.chunk(json!([choice]))
    }

    /// The chunk that tells the usage.
    pub(super) fn closing(&self, usage: Value) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage;
        chunk["system_fingerprint"] = json!(FINGERPRINT);
        chunk
    }

    /// Tokens in, out, and reused.
    pub(super) fn usage(&self, output: usize, cached: usize) -> Value {
        match self.api {
            Api::Responses => return responses::usage(self, output, cached),
            Api::Messages => return messages::usage(self, output, cached),
            Api::Chat | Api::Completion => {}
        }
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": self.details.then(|| json!({"cached_tokens": cached})),
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }
}

/// One server-sent event; those of the older APIs have no name.
pub(super) fn event(out: &mut Vec<u8>, name: Option<&str>, data: &Value) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}
