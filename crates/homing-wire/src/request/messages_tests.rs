//! Views of Anthropic's and the Responses API's bodies; that marks and Claude Code's line are no part of a text.

use super::super::{BodyPaths, MessagesView, PieceKind, RequestError, ResponsesView};
use serde_json::{Value, json};

fn paths() -> BodyPaths {
    BodyPaths::parse(&["prompt_cache_key", "metadata.user_id"]).unwrap()
}

fn text(body: &Value) -> String {
    let body = body.to_string();
    let view = MessagesView::parse(body.as_bytes(), &paths()).unwrap();
    String::from_utf8(view.text_parts().concat()).unwrap()
}

#[test]
fn a_messages_body_is_seen() {
    let body = br#"{"model":"m","stream":true,"max_tokens":9,"cache_salt":"s","system":"Be brief.",
        "metadata":{"user_id":"{\"session_id\":\"abc\"}"},"messages":[{"role":"user","content":"Hi"}]}"#;
    let view = MessagesView::parse(body, &paths()).unwrap();
    let common = &view.common;
    assert!(common.stream && common.model == "m" && common.cache_salt == "s");
    assert_eq!((common.max_tokens, common.session.id.as_deref()), (Some(9), Some("abc")));
    assert_eq!(view.system.unwrap().get(), "\"Be brief.\"");
    for (body, param) in [
        (&br#"{"model":"m"}"#[..], "messages"),
        (br#"{"model":"m","messages":"Hi"}"#, "messages"),
        (br#"{"messages":[]}"#, "model"),
    ] {
        assert_eq!(MessagesView::parse(body, &paths()).unwrap_err().param(), Some(param));
    }
}

#[test]
fn marks_and_the_billing_line_are_no_part_of_a_text() {
    let mark = json!({"type": "ephemeral"});
    let turn = |bill: &str, marked: bool, more: &[Value]| {
        let mut last = json!({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "text", "text": "done"}]});
        if marked {
            last["cache_control"] = mark.clone();
        }
        let mut messages = vec![
            json!({"role": "user", "content": "Fix it."}),
            json!({"role": "assistant", "content": [
                {"type": "tool_use", "id": "t", "name": "run", "input": {"cache_control": 1}}]}),
            json!({"role": "user", "content": [last]}),
        ];
        messages.extend(more.iter().cloned());
        json!({"model": "m", "tools": [{"name": "run"}], "messages": messages, "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: cch={bill}")},
            {"type": "text", "text": "You are an agent.", "cache_control": mark}]})
    };
    let first = text(&turn("1", true, &[]));
    let next = text(&turn("2", false, &[json!({"role": "user", "content": "Go on."})]));
    assert!(next.starts_with(&first) && next.len() > first.len(), "{first}\n{next}");
    assert!(!next.contains("billing") && !next.contains("ephemeral"), "{next}");
    for kept in
        ["[{\"name\":\"run\"}]", "You are an agent.", "\"Fix it.\"", "{\"cache_control\":1}"]
    {
        assert!(first.contains(kept), "{kept} in {first}");
    }
    // Only of the system prompt is that line left out.
    let said = json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "x-anthropic-billing-header: what is this?"}]}]});
    assert!(text(&said).contains("what is this?"));
}

#[test]
fn odd_contents_are_taken_as_they_are_written() {
    let body = json!({"model": "m", "system": 3, "messages": [7, {"role": 1, "content": [8, {"type": "text",
        "text": null}, {"type": "image", "source": {"data": "AA"}}]}]});
    let text = text(&body);
    for kept in ["3", "7", "8", "{\"data\":\"AA\"}", "null"] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
}

/// Contents nest as deep as a client likes: it costs no stack, nor a look at each level for each above it.
#[test]
fn contents_without_end_are_taken_as_they_are_written_from_some_depth_on() {
    const DEEP: usize = 200_000;
    let content = format!(r#"{}"x"{}"#, r#"[{"content":"#.repeat(DEEP), "}]".repeat(DEEP));
    let body = format!(r#"{{"model":"m","messages":[{{"content":{content}}}]}}"#);
    let view = MessagesView::parse(body.as_bytes(), &paths()).unwrap();
    assert!(view.text_parts().len() < 20);
    let _ = opening(view.opening());
    // A tool's result is not so deep: its marks are no part of it.
    let marked = |mark: Value| {
        let block = json!({"type": "text", "text": "out", "cache_control": mark});
        let result = json!({"type": "tool_result", "content": [block]});
        text(&json!({"model": "m", "messages": [{"role": "user", "content": [result]}]}))
    };
    assert_eq!(marked(json!({"type": "ephemeral"})), marked(Value::Null));
}

/// The pieces of an opening; `None` where it has none.
fn opening(opening: super::super::Opening<'_>) -> Option<Vec<(PieceKind, String)>> {
    let mut pieces = Vec::new();
    opening.read(|kind, piece| pieces.push((kind, piece.to_owned()))).then_some(pieces)
}

#[test]
fn the_same_opening_in_each_api_is_one() {
    let chat = br#"{"model":"m","messages":[{"role":"system","content":"Be brief."},
        {"role":"user","content":"Hi"}]}"#;
    let chat = super::super::ChatView::parse(chat, &paths()).unwrap();
    let expected = opening(chat.opening()).unwrap();
    let messages = br#"{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: 1"},
        {"type":"text","text":"Be brief.","cache_control":{}}],"messages":[{"role":"user","content":"Hi"},
        {"role":"assistant","content":"Hello"},{"role":"user","content":"And?"}]}"#;
    let view = MessagesView::parse(messages, &paths()).unwrap();
    assert_eq!(opening(view.opening()).unwrap(), expected);
    for input in [
        json!("Hi"),
        json!([{"role": "user", "content": "Hi"}, {"type": "function_call", "name": "f"}]),
        json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]),
    ] {
        let body = json!({"model": "m", "instructions": "Be brief.", "input": input}).to_string();
        let view = ResponsesView::parse(body.as_bytes(), &paths()).unwrap();
        assert_eq!(opening(view.opening().unwrap()).unwrap(), expected, "{body}");
    }
}

#[test]
fn a_responses_body_is_seen() {
    let body =
        br#"{"model":"m","input":"Hi","instructions":"Be brief.","tools":[1],"max_output_tokens":9,
        "prompt_cache_key":"conv-9","stream":true}"#;
    let view = ResponsesView::parse(body, &paths()).unwrap();
    let common = &view.common;
    assert_eq!((common.max_tokens, common.session.id.as_deref()), (Some(9), Some("conv-9")));
    assert!(common.stream && view.stored.is_none());
    assert_eq!(view.text_parts().concat(), br#"[1]"Be brief.""Hi"#);
    for (body, param) in [
        (&br#"{"model":"m"}"#[..], "input"),
        (br#"{"model":"m","input":3}"#, "input"),
        (br#"{"input":"Hi"}"#, "model"),
    ] {
        let error: RequestError = ResponsesView::parse(body, &paths()).unwrap_err();
        assert_eq!(error.param(), Some(param));
    }
}

#[test]
fn what_is_stored_is_a_part_of_its_own() {
    let parts = |id: &str| {
        let body = format!(r#"{{"model":"m","previous_response_id":"{id}","input":"And?"}}"#);
        let view = ResponsesView::parse(body.as_bytes(), &paths()).unwrap();
        assert!(view.opening().is_none());
        view.text_parts().concat()
    };
    assert_eq!(parts("r1"), parts("r1"));
    assert_ne!(parts("r1"), parts("r2"));
    let body = br#"{"model":"m","conversation":{"id":"c"}}"#;
    assert!(ResponsesView::parse(body, &paths()).unwrap().stored.is_some());
}
