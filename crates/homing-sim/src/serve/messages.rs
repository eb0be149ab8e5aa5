//! Anthropic's Messages API, in the plain form of a vLLM 0.32 server: one block of text, whole or as events.
//!
//! As there, `input_tokens` are those that were not reused, and what was reused is known at the end of a stream only.

use super::shape::{Frame, event};
use crate::engine::FinishReason;
use serde_json::{Value, json};

const fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
    }
}

/// The whole answer.
pub(super) fn whole(frame: &Frame, text: &str, reason: FinishReason, usage: &Value) -> Value {
    json!({
        "id": frame.id, "type": "message", "role": "assistant",
        "content": [{"type": "text", "text": text}], "model": frame.model,
        "stop_reason": word(reason), "stop_sequence": null, "usage": usage,
    })
}

/// Tokens in, out, and reused.
pub(super) fn usage(frame: &Frame, output: usize, cached: usize) -> Value {
    let prompt = frame.prompt_tokens;
    match frame.details {
        true => json!({"input_tokens": prompt - cached.min(prompt), "output_tokens": output,
                       "cache_read_input_tokens": cached}),
        false => json!({"input_tokens": prompt, "output_tokens": output}),
    }
}

/// The events that open a stream.
pub(super) fn opening(frame: &Frame, out: &mut Vec<u8>) {
    let usage = json!({"input_tokens": frame.prompt_tokens, "output_tokens": 0});
    let message = json!({
        "id": frame.id, "type": "message", "role": "assistant", "content": [], "model": frame.model,
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    });
    say(out, json!({"type": "message_start", "message": message}));
    let block = json!({"type": "text", "text": ""});
    say(out, json!({"type": "content_block_start", "index": 0, "content_block": block}));
}

/// New text.
pub(super) fn piece(text: &str, out: &mut Vec<u8>) {
    let delta = json!({"type": "text_delta", "text": text});
    say(out, json!({"type": "content_block_delta", "index": 0, "delta": delta}));
}

/// The events that end a stream.
pub(super) fn closing(reason: FinishReason, usage: &Value, out: &mut Vec<u8>) {
    say(out, json!({"type": "content_block_stop", "index": 0}));
    let delta = json!({"stop_reason": word(reason), "stop_sequence": null});
    say(out, json!({"type": "message_delta", "delta": delta, "usage": usage}));
    say(out, json!({"type": "message_stop"}));
}

fn say(out: &mut Vec<u8>, data: Value) {
    event(out, data["type"].as_str(), &data);
}
