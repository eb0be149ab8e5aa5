//! The reshaping of messages and tools, and every way a request can be wrong.

use serde_json::json;

use super::*;

fn one(message: Value) -> Result<Value, PromptError> {
    let list = json!([message]);
    messages(&ChatInput::new(&list)).map(|mut m| m.remove(0))
}

fn is_malformed(result: Result<Value, PromptError>, at: &str) {
    match result {
        Err(PromptError::Malformed(what)) => assert!(what.contains(at), "{what:?} lacks {at:?}"),
        other => panic!("not malformed: {other:?}"),
    }
}

#[test]
fn only_known_members_are_kept() {
    let out = one(
        json!({ "role": "user", "content": "x", "name": "Ann", "extra": 1, "tool_calls": [1] }),
    );
    assert_eq!(out.unwrap(), json!({ "role": "user", "content": "x", "name": "Ann" }));
    let out = one(json!({ "role": "tool", "content": "x", "tool_call_id": "c1", "name": 3 }));
    assert_eq!(out.unwrap(), json!({ "role": "tool", "content": "x", "tool_call_id": "c1" }));
    let out = one(json!({ "role": "developer", "content": "x" }));
    assert_eq!(out.unwrap(), json!({ "role": "system", "content": "x" }));
    let out = one(
        json!({ "role": "assistant", "content": "x", "reasoning_content": "hm", "refusal": null }),
    );
    let both = json!({ "role": "assistant", "content": "x", "reasoning": "hm", "reasoning_content": "hm" });
    assert_eq!(out.unwrap(), both);
}

#[test]
fn content_becomes_text() {
    let content = |content: Value| {
        one(json!({ "role": "user", "content": content }))
            .map(|m| m["content"].as_str().unwrap().to_owned())
    };
    assert_eq!(content(json!(null)).unwrap(), "");
    assert_eq!(content(json!([])).unwrap(), "");
    let parts = json!([
        { "type": "text", "text": "a " }, "b", { "type": "text", "text": null }, { "type": "refusal", "refusal": "c" },
        { "type": "thinking", "thinking": "d" }, { "type": "output_text", "text": "e" },
    ]);
    assert_eq!(content(parts).unwrap(), "a \nb\nc\nd\ne");
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
    assert!(matches!(content(image), Err(PromptError::Unsupported(_))));
}

#[test]
fn arguments_are_parsed() {
    let call = |arguments: Value| {
        one(json!({ "role": "assistant", "tool_calls": [
            { "id": "c", "type": "function", "function": { "name": "f", "arguments": arguments } } ] }))
        .map(|m| m["tool_calls"][0]["function"]["arguments"].clone())
    };
    assert_eq!(
        call(json!("{\"b\": 1, \"a\": [2.50]}")).unwrap().to_string(),
        r#"{"b":1,"a":[2.5]}"#
    );
    assert_eq!(call(json!("")).unwrap(), json!({}));
    assert_eq!(call(json!(null)).unwrap(), json!({}));
    assert_eq!(call(json!({ "a": 1 })).unwrap(), json!({ "a": 1 }));
    is_malformed(call(json!("{oops")), "messages[0].tool_calls[0].function.arguments");
    is_malformed(call(json!(3)), "messages[0].tool_calls[0].function.arguments");
    let deep = "[".repeat(100_000);
    is_malformed(call(json!(deep)), "recursion limit");
    let call = json!({ "x": 1, "type": "function", "function": { "name": "f", "arguments": "[]" }, "id": "c" });
    let ordered = one(json!({ "role": "assistant", "tool_calls": [call] })).unwrap();
    let expected = r#"[{"id":"c","function":{"arguments":[],"name":"f"},"x":1,"type":"function"}]"#;
    assert_eq!(ordered["tool_calls"].to_string(), expected);
    let none = one(json!({ "role": "assistant", "content": "x", "tool_calls": [] })).unwrap();
    assert_eq!(none, json!({ "role": "assistant", "content": "x" }));
}

#[test]
fn tools_have_vllms_members_in_its_order() {
    let list = json!([{
        "function": { "strict": true, "parameters": { "b": 1, "a": 2 }, "name": "f" }, "type": "function", "x": 1,
    }]);
    let none = json!([{ "role": "user", "content": "x" }]);
    let input = ChatInput { tools: Some(&list), ..ChatInput::new(&none) };
    let text = serde_json::to_string(&tools(&input).unwrap().unwrap()).unwrap();
    let expected = r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"b":1,"a":2},"strict":true},"x":1}]"#;
    assert_eq!(text, expected);
    assert_eq!(tools(&ChatInput::new(&none)).unwrap(), None);
    for (wrong, at) in [
        (json!({}), "tools is not a list"),
        (json!([1]), "tools[0]"),
        (json!([{ "function": 1 }]), "tools[0].function"),
        (json!([{ "function": {} }]), "tools[0].function.name"),
    ] {
        let input = ChatInput { tools: Some(&wrong), ..ChatInput::new(&none) };
        is_malformed(tools(&input).map(|_| Value::Null), at);
    }
}

#[test]
fn malformed_messages_are_named() {
    for (list, at) in [
        (json!(null), "messages is not a list"),
        (json!("x"), "messages is not a list"),
        (json!([]), "messages is empty"),
        (json!([3]), "messages[0] is not an object"),
        (json!([{}]), "messages[0].role"),
        (json!([{ "role": 1 }]), "messages[0].role"),
        (json!([{ "role": "user", "content": 3 }]), "messages[0].content"),
        (json!([{ "role": "user", "content": [3] }]), "messages[0].content[0]"),
        (json!([{ "role": "user", "content": [{}] }]), "messages[0].content[0].type"),
        (
            json!([{ "role": "user", "content": [{ "type": "text", "text": 3 }] }]),
            "messages[0].content[0].text",
        ),
        (json!([{ "role": "assistant", "tool_calls": 3 }]), "messages[0].tool_calls"),
        (json!([{ "role": "assistant", "tool_calls": [3] }]), "messages[0].tool_calls[0]"),
        (
            json!([{ "role": "assistant", "tool_calls": [{}] }]),
            "messages[0].tool_calls[0].function",
        ),
    ] {
        is_malformed(messages(&ChatInput::new(&list)).map(Value::Array), at);
    }
}

#[test]
fn a_body_gives_its_input() {
    let body = ChatBody::parse(br#"{"model":"m","messages":[],"stream":true,"add_special_tokens":true,
        "add_generation_prompt":false,"continue_final_message":true,"tools":null,"reasoning_effort":"low"}"#);
    let body = body.unwrap();
    let input = body.input(None).unwrap();
    assert!(!input.add_generation_prompt && input.continue_final_message && input.tools.is_none());
    assert_eq!((input.specials, input.reasoning_effort), (Specials::Add, Some("low")));
    for wrong in [&b"{"[..], b"[]", b"{}", br#"{"messages":[],"add_generation_prompt":3}"#] {
        assert!(matches!(ChatBody::parse(wrong), Err(PromptError::Malformed(_))));
    }
    for other in [json!({ "chat_template": "x" }), json!({ "documents": [] })] {
        let mut body = json!({ "messages": [] });
        body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let body = ChatBody::from_value(body).unwrap();
        assert!(matches!(body.input(None), Err(PromptError::Unsupported(_))));
    }
}
