//! The usage of each API, whole and streamed, and what is none.

use super::*;
use crate::sse::SseScanner;
use proptest::prelude::*;
use serde_json::json;

fn cached(details: &str) -> Option<u64> {
    let json = format!(r#"{{"id":"x","usage":{{"prompt_tokens":7,"total_tokens":9{details}}}}}"#);
    let usage = parse_usage(ApiShape::OpenAi, json.as_bytes()).unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 0));
    usage.cached_tokens
}

#[test]
fn unknown_is_not_zero() {
    assert_eq!(cached(""), None);
    assert_eq!(cached(r#","prompt_tokens_details":null"#), None);
    assert_eq!(cached(r#","prompt_tokens_details":{}"#), None);
    assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":null}"#), None);
    assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":0,"new":[1]}"#), Some(0));
    assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":6}"#), Some(6));
}

#[test]
fn no_usage_is_none() {
    for json in [
        r#"{"choices":[],"usage":null}"#,
        r#"{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}]}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"usage":{"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":-1}}"#,
        r#"{"usage":{"prompt_tokens":1}"#,
        "[DONE]",
        "",
    ] {
        assert_eq!(parse_usage(ApiShape::OpenAi, json.as_bytes()), None, "{json}");
    }
    for shape in [ApiShape::Responses, ApiShape::Anthropic] {
        for json in [
            r#"{"usage":null,"response":null,"message":null}"#,
            r#"{"usage":{"prompt_tokens":1,"output_tokens":2}}"#,
            r#"{"output":[{"usage":{"input_tokens":1}}]}"#,
            r#"{"usage":{"input_tokens":-1}}"#,
            r#"{"usage":{"input_tokens":1}"#,
        ] {
            assert_eq!(parse_usage(shape, json.as_bytes()), None, "{shape:?} {json}");
        }
    }
}

#[test]
fn a_response_says_all_of_its_input() {
    let mut counts = json!({"input_tokens": 90, "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 95});
    let read = |counts: &serde_json::Value| {
        let whole = json!({"object": "response", "usage": counts});
        let event = json!({"type": "response.completed", "response": &whole});
        let [whole, event] = [whole, event]
            .map(|said| parse_usage(ApiShape::Responses, said.to_string().as_bytes()));
        assert_eq!(whole, event);
        whole.unwrap()
    };
    let expected = Usage { prompt_tokens: 90, completion_tokens: 5, cached_tokens: Some(64) };
    assert_eq!(read(&counts), expected);
    counts["input_tokens_details"] = json!(null);
    assert_eq!(read(&counts), Usage { cached_tokens: None, ..expected });
}

#[test]
fn anthropics_input_is_without_what_was_reused() {
    let read = |counts: serde_json::Value| {
        let whole = json!({"type": "message", "usage": counts}).to_string();
        parse_usage(ApiShape::Anthropic, whole.as_bytes()).unwrap()
    };
    let expected = Usage { prompt_tokens: 90, completion_tokens: 5, cached_tokens: Some(64) };
    assert_eq!(
        read(json!({"input_tokens": 26, "cache_read_input_tokens": 64, "output_tokens": 5})),
        expected
    );
    let kept = json!({"input_tokens": 6, "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 64, "output_tokens": 5});
    assert_eq!(read(kept), expected);
    let silent = json!({"input_tokens": 90, "output_tokens": 5, "cache_read_input_tokens": null});
    assert_eq!(read(silent), Usage { cached_tokens: None, ..expected });
}

/// Follows a stream as a relay does.
fn streamed(shape: ApiShape, stream: &str) -> Option<Usage> {
    let mut usage = StreamUsage::new(shape);
    let mut scanner = SseScanner::default();
    for byte in stream.as_bytes() {
        scanner.feed(&[*byte], |event| usage.see(event));
    }
    usage.at_end(scanner.last_data())
}

#[test]
fn a_streams_usage_is_where_its_api_says_it() {
    let expected = Usage { prompt_tokens: 90, completion_tokens: 5, cached_tokens: Some(64) };
    let chat = "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":5,\
                \"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\ndata: [DONE]\n\n";
    assert_eq!(streamed(ApiShape::OpenAi, chat), Some(expected));
    let responses = "event: response.created\ndata: {\"response\":{\"usage\":null}}\n\n\
                     event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":90,\
                     \"output_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":64}}}}\n\n";
    assert_eq!(streamed(ApiShape::Responses, responses), Some(expected));
    // Anthropic's own: the input at first, the output at last.
    let start = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":26,\
                 \"cache_read_input_tokens\":64,\"output_tokens\":1}}}\n\n";
    let text = "event: content_block_delta\ndata: {\"delta\":{\"text\":\"\\\"usage\\\"\"},\
                \"usage\":{\"input_tokens\":1}}\n\n";
    let end = "event: message_delta\ndata: {\"usage\":{\"output_tokens\":5}}\n\n\
               event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_eq!(streamed(ApiShape::Anthropic, &[start, text, end].concat()), Some(expected));
    // vLLM's: what was reused is known at the end, and then the input is without it.
    let start = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":90,\
                 \"output_tokens\":0}}}\n\n";
    let end = "event: message_delta\ndata: {\"usage\":{\"input_tokens\":26,\"output_tokens\":5,\
               \"cache_read_input_tokens\":64}}\n\nevent: message_stop\ndata: {}\n\n";
    assert_eq!(streamed(ApiShape::Anthropic, &[start, end].concat()), Some(expected));
    assert_eq!(streamed(ApiShape::Anthropic, "data: {}\n\n"), None);
}

#[test]
fn a_responses_stream_has_no_token_before_its_prelude_is_over() {
    let data = |name: &'static [u8], data: &'static [u8]| SseEvent::Data { name, data };
    let mut it = StreamUsage::new(ApiShape::Responses);
    it.see(data(b"response.created", b"{}"));
    it.see(data(b"", br#"{"type":"response.in_progress"}"#));
    assert!(!it.tokens_begun());
    it.see(data(b"response.output_item.added", b"{}"));
    assert!(it.tokens_begun());
    assert!(StreamUsage::new(ApiShape::OpenAi).tokens_begun());
}

/// Objects in which the word is everywhere: as a name, as a text, as a part of either, at any depth.
fn objects() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let word = prop_oneof![
        Just("usage"),
        Just("\"usage"),
        Just("usage\""),
        Just("\\\"usage\":{"),
        Just("\\"),
        Just("x"),
    ];
    let names = word.prop_map(str::to_owned);
    let leaf = prop_oneof![names.clone().prop_map(Value::from), any::<u8>().prop_map(Value::from)];
    let inner = leaf.prop_recursive(3, 24, 4, {
        let names = names.clone();
        move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((names.clone(), inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        }
    });
    prop::collection::vec((names, inner), 0..6)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

proptest! {
    #[test]
    fn the_own_usage_is_found_from_the_end_as_from_the_beginning(object in objects(), pretty: bool) {
        let json = match pretty {
            true => serde_json::to_vec_pretty(&object).unwrap(),
            false => object.to_string().into_bytes(),
        };
        let found = own(&json).map(|raw| serde_json::from_str::<serde_json::Value>(raw.get()).unwrap());
        prop_assert_eq!(found.as_ref(), object.get("usage"));
    }
}

#[test]
fn of_several_usages_the_last_of_the_object_itself_counts() {
    let own = |json: &'static str| own(json.as_bytes()).map(Raw::get);
    assert_eq!(own(r#"{"usage":1,"usage":2,"a":{"usage":3}}"#), Some("2"));
    assert_eq!(own(r#"{"usage":1,"a":["usage","usage","usage","usage",{"usage":4}]}"#), Some("1"));
    assert_eq!(own(r#"{"a":{"usage":1}}"#), None);
    assert_eq!(own(r#"[{"usage":1}]"#), None);
    assert_eq!(own(r#"{"usage":1} x"#), None);
    assert_eq!(own(r#"{"usage":1"#), None);
}
