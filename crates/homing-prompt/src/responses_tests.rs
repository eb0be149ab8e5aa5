//! Responses requests as chats: how items become messages, and what can't be known. That they are the prompt which a
//! chat is, is tested with Anthropic's.

use super::*;
use crate::ModelPrompt;
use crate::chat;
use crate::testing::recordings;

fn from(body: &Value) -> Result<ChatBody, PromptError> {
    ChatBody::from_responses(body.to_string().as_bytes())
}

fn messages(input: Value) -> Vec<Value> {
    let body = from(&json!({"input": input})).unwrap();
    chat::messages(&body.input(None).unwrap()).unwrap()
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})
}

#[test]
fn what_the_assistant_does_in_a_row_is_one_message_until_it_says_something_twice() {
    let said = |text: &str| json!({"type": "message", "role": "assistant", "content": text});
    let out = messages(json!([call("a"), said("x"), call("b"), said("y"), call("c")]));
    let shape: Vec<_> = out
        .iter()
        .map(|m| (m["content"].as_str().unwrap(), m["tool_calls"].as_array().unwrap().len()))
        .collect();
    assert_eq!(shape, [("x", 2), ("y", 1)]);
    // A result stands between.
    let output = json!({"type": "function_call_output", "call_id": "a", "output": "1"});
    let roles = messages(json!([call("a"), output, call("b")]));
    let roles: Vec<_> = roles.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["assistant", "tool", "assistant"]);
}

#[test]
fn thoughts_are_taken_from_the_content_else_from_the_summary() {
    let thought = |item: Value| {
        let out = messages(json!([item]));
        out[0]["reasoning"].as_str().unwrap().to_owned()
    };
    let text = |text: &str| json!([{"type": "text", "text": text}, {"type": "text", "text": "?"}]);
    assert_eq!(
        thought(json!({"type": "reasoning", "summary": text("s"), "content": text("c")})),
        "c"
    );
    assert_eq!(thought(json!({"type": "reasoning", "summary": text("s"), "content": null})), "s");
    assert_eq!(thought(json!({"type": "reasoning", "summary": []})), "");
    let secret = json!({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]});
    assert!(matches!(from(&secret), Err(PromptError::Unsupported(_))));
}

#[test]
fn developers_and_instructions_are_the_system() {
    let body = json!({"instructions": "A", "input": [{"role": "developer", "content": "B"}]});
    let body = from(&body).unwrap();
    let out = chat::messages(&body.input(None).unwrap()).unwrap();
    let system = |text: &str| json!({"role": "system", "content": text});
    assert_eq!(out, [system("A"), system("B")]);
}

#[test]
fn an_answer_that_is_not_complete_is_continued() {
    let last = |item: Value| {
        let body = from(&json!({"input": [item]})).unwrap();
        let input = body.input(None).unwrap();
        assert_ne!(input.add_generation_prompt, input.continue_final_message);
        input.continue_final_message
    };
    let mut item = json!({"role": "assistant", "content": "x", "status": "incomplete"});
    assert!(last(item.clone()));
    item["status"] = json!("completed");
    assert!(!last(item));
    let mut call = call("a");
    call["status"] = json!("in_progress");
    assert!(!last(call));
}

#[test]
fn tools_of_a_namespace_have_its_name_in_front() {
    let tools = |tools: Value| from(&json!({"input": "x", "tools": tools})).unwrap().tools;
    let inner = json!([{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": false},
        {"type": "custom", "name": "g"}]);
    let expected = json!([{"type": "function", "function": {"name": "n__f", "description": "d",
        "parameters": {}, "strict": false}}]);
    assert_eq!(tools(json!([{"type": "namespace", "name": "n", "tools": inner}])), Some(expected));
    assert_eq!(
        tools(json!([{"type": "web_search"}])),
        Some(json!([])),
        "it has tools, but none is shown"
    );
    assert_eq!((tools(json!([])), tools(json!(null))), (None, None));
    let out =
        messages(json!([{"type": "function_call", "call_id": "a", "name": "f", "namespace": "n",
        "arguments": "{}"}]));
    assert_eq!(out[0]["tool_calls"][0]["function"]["name"], "n__f");
}

#[test]
fn what_can_t_be_known_is_said_to_be_unsupported() {
    for body in [
        json!({"input": "x", "previous_response_id": "r"}),
        json!({"input": "x", "conversation": "c"}),
        json!({"input": "x", "prompt": {"id": "p"}}),
        json!({"input": "x", "tools": [{"type": "custom", "name": "f"}]}),
        json!({"input": [{"type": "item_reference", "id": "i"}]}),
        json!({"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}),
        json!({"input": [{"role": "assistant", "content": []}]}),
    ] {
        let result = from(&body);
        assert!(matches!(result, Err(PromptError::Unsupported(_))), "{body}: {result:?}");
    }
    let image = json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]});
    let image = from(&image).unwrap();
    let seen = chat::messages(&image.input(None).unwrap());
    assert!(matches!(seen, Err(PromptError::Unsupported(_))), "{seen:?}");
    for body in [
        json!([]),
        json!({}),
        json!({"input": 3}),
        json!({"input": [3]}),
        json!({"input": [{}]}),
        json!({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}),
        json!({"input": "x", "instructions": 3}),
        json!({"input": "x", "tools": [3]}),
    ] {
        let result = from(&body);
        assert!(matches!(result, Err(PromptError::Malformed(_))), "{body}: {result:?}");
    }
}

/// Codex's next turn begins with the whole of the one before.
#[test]
fn recorded_turns_are_rendered_and_extend_each_other() {
    let model = ModelPrompt::builtin();
    let mut before: Option<String> = None;
    let (mut seen, mut stored) = (0, 0);
    for (file, body) in recordings("/v1/responses") {
        let Ok(chat) = ChatBody::from_responses(&body) else {
            stored += 1;
            assert!(
                file.starts_with("014"),
                "{file}: the only one that goes on from what is stored"
            );
            continue;
        };
        let mut input = chat.input(None).unwrap();
        assert!(model.encode_chat(&input).unwrap().len() > 5, "{file}");
        input.add_generation_prompt = false;
        let text = model.render_chat(&input).unwrap();
        if file.contains("codex") {
            let before = before.replace(text.clone());
            assert!(before.is_none_or(|before| text.starts_with(&before)), "{file}");
        }
        seen += 1;
    }
    assert!(seen >= 3 && stored == 1, "{seen} {stored}");
}
