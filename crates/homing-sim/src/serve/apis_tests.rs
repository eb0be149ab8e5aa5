//! The Responses API and Anthropic's Messages: one prompt is one prefix in all of them, and streams say what whole
//! answers say.

use super::tests::{call, config, post, receive, send, start, user};
use serde_json::{Value, json};

const LONG: &str =
    "The cache keeps what was computed, block by block, until somebody needs the room. ";

/// The events of a stream, by name.
fn events(text: &str) -> Vec<(String, Value)> {
    let event = |text: &str| {
        let (name, data) = text.split_once('\n').expect("a name and data");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(data["type"], name);
        (name, data)
    };
    text.trim_end().split("\n\n").map(event).collect()
}

#[test]
fn one_prompt_is_one_prefix_in_each_api() {
    let mock = start(config(1000));
    let system = LONG.repeat(20);
    let chat =
        json!({"messages": [{"role": "system", "content": system}, user("Hi")], "max_tokens": 4});
    let first = post(&mock, "/v1/chat/completions", &chat);
    let prompt = first["usage"]["prompt_tokens"].as_u64().expect("a number");
    let responses = json!({"instructions": system, "input": "Hi", "max_output_tokens": 4});
    let usage = &post(&mock, "/v1/responses", &responses)["usage"];
    assert_eq!(usage["input_tokens"], prompt);
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached > 200 && cached < prompt, "{usage}");
    let messages = json!({"system": [{"type": "text", "text": system, "cache_control": {}}],
        "messages": [user("Hi")], "max_tokens": 4});
    let usage = &post(&mock, "/v1/messages", &messages)["usage"];
    assert_eq!(usage["cache_read_input_tokens"], cached);
    assert_eq!(usage["input_tokens"], prompt - cached);
    let count = post(&mock, "/v1/messages/count_tokens", &messages);
    assert_eq!(count["input_tokens"], prompt);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let mock = start(config(1000));
    let mut ask = json!({"input": "Tell me.", "max_output_tokens": 9, "ignore_eos": true});
    let whole = post(&mock, "/v1/responses", &ask);
    assert_eq!(
        (whole["object"].as_str(), whole["status"].as_str()),
        (Some("response"), Some("incomplete"))
    );
    ask["stream"] = json!(true);
    let (_, text) = receive(send(&mock, "POST", "/v1/responses", &ask.to_string()));
    let said = events(&text);
    for (n, (_, data)) in said.iter().enumerate() {
        assert_eq!(data["sequence_number"], n, "{data}");
    }
    let deltas: String = said.iter().filter_map(|(_, data)| data["delta"].as_str()).collect();
    let (name, last) = &said[said.len() - 1];
    assert_eq!((said[0].0.as_str(), name.as_str()), ("response.created", "response.completed"));
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(whole["output"][0]["content"][0]["text"], deltas);

    let mut ask = json!({"messages": [user("Tell me.")], "max_tokens": 9, "ignore_eos": true});
    let whole = post(&mock, "/v1/messages", &ask);
    assert_eq!(
        (whole["type"].as_str(), whole["stop_reason"].as_str()),
        (Some("message"), Some("max_tokens"))
    );
    ask["stream"] = json!(true);
    let (_, text) = receive(send(&mock, "POST", "/v1/messages?beta=true", &ask.to_string()));
    let said = events(&text);
    let deltas: String =
        said.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(whole["content"][0]["text"], deltas);
    let names: Vec<&str> = said.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert_eq!(said[said.len() - 2].1["usage"]["output_tokens"], 9);
}

#[test]
fn refusals_have_the_apis_shape() {
    let mock = start(config(100));
    let (status, body) = call(&mock, "POST", "/v1/messages", &json!({"messages": [user("Hi")]}));
    assert_eq!(
        (status, body["type"].as_str()),
        (400, Some("error")),
        "{body}: max_tokens is needed"
    );
    let stored = json!({"input": "Hi", "previous_response_id": "r"});
    let (status, body) = call(&mock, "POST", "/v1/responses", &stored);
    assert_eq!((status, body["error"]["param"].as_str()), (400, Some("previous_response_id")));
    let unknown = json!({"model": "x", "messages": []});
    let (status, body) = call(&mock, "POST", "/v1/messages/count_tokens", &unknown);
    assert_eq!((status, body["error"]["type"].as_str()), (404, Some("NotFoundError")));
}

#[test]
fn embeddings_come_in_the_order_of_their_inputs_and_in_both_forms() {
    let mock = start(config(100));
    let ask = |body: Value| post(&mock, "/v1/embeddings", &body);
    let one = ask(json!({"input": "Hi", "dimensions": 4}));
    assert_eq!((one["object"].as_str(), one["data"][0]["index"].as_u64()), (Some("list"), Some(0)));
    assert_eq!(one["data"][0]["embedding"].as_array().map(Vec::len), Some(4));
    let tokens = one["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert!(tokens > 0 && one["usage"]["total_tokens"] == tokens);
    let both = ask(json!({"input": ["there", "Hi"], "dimensions": 4}));
    assert_eq!(both["data"][1]["embedding"], one["data"][0]["embedding"]);
    assert_ne!(both["data"][0]["embedding"], one["data"][0]["embedding"]);
    assert_eq!(
        ask(json!({"input": "Hi"}))["data"][0]["embedding"].as_array().map(Vec::len),
        Some(384)
    );
    let packed = ask(json!({"input": "Hi", "dimensions": 4, "encoding_format": "base64"}));
    assert_eq!(packed["data"][0]["embedding"].as_str().map(str::len), Some(24));
    let ids = ask(json!({"input": [[1, 2, 3], [4]], "dimensions": 2}));
    assert_eq!(
        (ids["data"].as_array().map(Vec::len), ids["usage"]["prompt_tokens"].as_u64()),
        (Some(2), Some(4))
    );
    assert_eq!(ask(json!({"input": [1, 2, 3]}))["data"].as_array().map(Vec::len), Some(1));
    for bad in [
        json!({"input": ""}),
        json!({"input": []}),
        json!({"input": [[]]}),
        json!({"input": ["a", 1]}),
        json!({"input": vec!["a"; 2049]}),
        json!({"input": "Hi", "dimensions": 0}),
        json!({"input": "Hi", "encoding_format": "words"}),
        json!({}),
    ] {
        let (status, body) = call(&mock, "POST", "/v1/embeddings", &bad);
        assert_eq!((status, body["error"]["code"].as_u64()), (400, Some(400)), "{body}");
    }
    assert_eq!(call(&mock, "GET", "/v1/embeddings", &Value::Null).0, 405);
}
