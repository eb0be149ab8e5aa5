//! OpenAI's Responses API, in the plain form of a vLLM 0.32 server: one message of text, whole or as events.
//!
//! As there, a stream begins before anything is computed, and nothing is stored.

use super::shape::{Frame, event};
use crate::engine::FinishReason;
use serde_json::{Value, json};

/// The whole answer.
pub(super) fn whole(frame: &Frame, text: &str, reason: FinishReason, usage: &Value) -> Value {
    let (status, details) = match reason {
        FinishReason::Stop => ("completed", Value::Null),
        FinishReason::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
    };
    let mut response = response(frame, status);
    response["incomplete_details"] = details;
    response["output"] = json!([message(frame, "completed", json!([part(text)]))]);
    response["usage"] = usage.clone();
    response
}

/// Tokens in, out, and reused.
pub(super) fn usage(frame: &Frame, output: usize, cached: usize) -> Value {
    let prompt = frame.prompt_tokens;
    json!({
        "input_tokens": prompt,
        // Told without `--enable-prompt-tokens-details` too.
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    })
}

/// A stream, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Events {
    next: u64,
    said: String,
}

impl Events {
    /// The events that come at once.
    pub(super) fn created(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            self.say(out, json!({"type": kind, "response": response(frame, "in_progress")}));
        }
    }

    /// The events that open the message.
    pub(super) fn opening(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        let item = message(frame, "in_progress", json!([]));
        let added = "response.output_item.added";
        self.say(out, json!({"type": added, "output_index": 0, "item": item}));
        self.say_of(out, frame, "response.content_part.added", "part", part(""));
    }

    /// New text.
    pub(super) fn piece(&mut self, frame: &Frame, text: &str, out: &mut Vec<u8>) {
        self.said.push_str(text);
        self.say_of(out, frame, "response.output_text.delta", "delta", text.into());
    }

    /// The events that end a stream.
    pub(super) fn closing(
        &mut self,
        frame: &Frame,
        reason: FinishReason,
        usage: &Value,
        out: &mut Vec<u8>,
    ) {
        let said = std::mem::take(&mut self.said);
        self.say_of(out, frame, "response.output_text.done", "text", said.as_str().into());
        self.say_of(out, frame, "response.content_part.done", "part", part(&said));
        let item = message(frame, "completed", json!([part(&said)]));
        let done = "response.output_item.done";
        self.say(out, json!({"type": done, "output_index": 0, "item": item}));
        let response = whole(frame, &said, reason, usage);
        self.say(out, json!({"type": "response.completed", "response": response}));
    }

    /// An event about the one part of the one message.
    fn say_of(&mut self, out: &mut Vec<u8>, frame: &Frame, kind: &str, name: &str, what: Value) {
        let mut data = json!({
            "type": kind, "output_index": 0, "content_index": 0, "item_id": item_id(frame),
        });
        data[name] = what;
        if kind.starts_with("response.output_text") {
            data["logprobs"] = json!([]);
        }
        self.say(out, data);
    }

    fn say(&mut self, out: &mut Vec<u8>, mut data: Value) {
        data["sequence_number"] = self.next.into();
        self.next += 1;
        event(out, data["type"].as_str(), &data);
    }
}

fn item_id(frame: &Frame) -> String {
    format!("msg_{}", frame.id.trim_start_matches("resp_"))
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn message(frame: &Frame, status: &str, content: Value) -> Value {
    json!({
        "id": item_id(frame), "type": "message", "status": status, "role": "assistant",
        "content": content,
    })
}

fn response(frame: &Frame, status: &str) -> Value {
    json!({
        "id": frame.id, "object": "response", "created_at": frame.created, "status": status,
        "model": frame.model, "output": [], "error": null, "incomplete_details": null,
        "instructions": null, "metadata": null, "parallel_tool_calls": true, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": null,
    })
}
