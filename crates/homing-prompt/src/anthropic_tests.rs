//! Messages requests as chats: that a conversation is the same prompt in each API, and where Anthropic's differs.

use super::*;
use crate::chat;
use crate::testing::{recordings, shared};

/// The messages and tools that a template gets.
fn seen(body: &ChatBody) -> (Vec<Value>, Option<Vec<Value>>) {
    let input = body.input(None).unwrap();
    (chat::messages(&input).unwrap(), chat::tools(&input).unwrap())
}

fn from(body: &Value) -> Result<ChatBody, PromptError> {
    ChatBody::from_messages(body.to_string().as_bytes(), ModelPrompt::builtin().habits())
}

fn messages(body: &Value) -> Vec<Value> {
    seen(&from(body).unwrap()).0
}

/// One conversation of an agent, as a chat, as Anthropic's messages, and as a response's items.
fn in_each_api() -> [ChatBody; 3] {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let chat = json!({
        "messages": [
            {"role": "system", "content": "Be brief. Always."},
            {"role": "user", "content": "Weather in Köln?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "It is a city.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Köln\"}"}},
                {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain\n12 C"},
            {"role": "tool", "tool_call_id": "c2", "content": "noon"},
            {"role": "user", "content": "And\nnow?"},
            {"role": "assistant", "content": "Still rain."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "weather", "description": "w", "parameters": schema}},
            {"type": "function", "function": {"name": "time", "parameters": schema, "strict": true}}],
        "reasoning_effort": "low",
    });
    let anthropic = json!({
        "max_tokens": 9,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                   {"type": "text", "text": "Be brief."},
                   {"type": "text", "text": " Always.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Köln?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "It is a city.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "c2", "name": "time", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [
                    {"type": "text", "text": "rain"}, {"type": "text", "text": "12 C"}]},
                {"type": "text", "text": "And"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "noon", "cache_control": {}},
                {"type": "text", "text": "now?"}]},
            {"role": "assistant", "content": "Still rain."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [
            {"name": "weather", "description": "w", "input_schema": schema},
            {"name": "time", "input_schema": schema, "strict": true, "cache_control": {}}],
        "output_config": {"effort": "low"},
    });
    let responses = json!({
        "instructions": "Be brief. Always.",
        "input": [
            {"role": "user", "content": "Weather in Köln?"},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "It is a city."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\":\"Köln\"}"},
            {"type": "function_call", "call_id": "c2", "name": "time", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "rain\n12 C"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "And"}, {"type": "input_text", "text": "now?"}]},
            {"role": "assistant", "content": "Still rain."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [
            {"type": "function", "name": "weather", "description": "w", "parameters": schema},
            {"type": "web_search"},
            {"type": "function", "name": "time", "parameters": schema, "strict": true}],
        "reasoning": {"effort": "low"},
    });
    let responses = ChatBody::from_responses(responses.to_string().as_bytes()).unwrap();
    [ChatBody::from_value(chat).unwrap(), from(&anthropic).unwrap(), responses]
}

#[test]
fn a_conversation_is_the_same_prompt_in_each_api() {
    let [chat, anthropic, responses] = in_each_api();
    assert_eq!(seen(&chat), seen(&anthropic));
    assert_eq!(seen(&chat), seen(&responses));
    let model = ModelPrompt::builtin();
    let text = |body: &ChatBody| model.render_chat(&body.input(None).unwrap()).unwrap();
    assert_eq!(text(&chat), text(&anthropic));
    assert_eq!(text(&chat), text(&responses));
}

/// The same with what real models make of it, byte for byte.
#[test]
fn real_templates_render_it_alike() {
    let Some(templates) = std::fs::read_dir(shared("chat-templates")).ok() else {
        eprintln!("SKIPPED: ../shared/data/chat-templates is not here");
        return;
    };
    let mut rendered = 0;
    for file in templates.map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        let mut all = crate::template::Templates::new(Map::new());
        all.add("default", std::fs::read_to_string(&file).unwrap()).unwrap();
        let now = Some(homing_core::time::Time::from_micros(1_800_000_000_000_000));
        let texts = in_each_api().map(|body| all.render(&body.input(now).unwrap()).ok());
        assert!(texts.iter().all(|text| *text == texts[0]), "{}", file.display());
        rendered += usize::from(texts[0].is_some());
    }
    assert!(rendered >= 5, "{rendered}");
}

#[test]
fn what_a_message_has_not_is_left_out() {
    let of = |role: &str, content: Value| {
        messages(&json!({"messages": [{"role": "user", "content": "x"}, {"role": role, "content": content}]}))
            .split_off(1)
    };
    assert_eq!(of("user", json!([])), [] as [Value; 0]);
    assert_eq!(of("user", json!([{"type": "text", "text": ""}])), [] as [Value; 0]);
    assert_eq!(of("assistant", json!([])), [json!({"role": "assistant", "content": ""})]);
    let result = json!([{"type": "tool_result", "tool_use_id": "t"}]);
    assert_eq!(of("user", result), [json!({"role": "tool", "content": "", "tool_call_id": "t"})]);
}

#[test]
fn inline_system_messages_stay_or_are_merged_as_the_template_can() {
    let body = json!({"system": "A.", "messages": [
        {"role": "user", "content": "x"},
        {"role": "system", "content": [{"type": "text", "text": "B."}]},
        {"role": "system", "content": "x-anthropic-billing-header: 1"},
        {"role": "user", "content": "y"}]});
    let with = |merge_system| {
        let habits = Habits { merge_system, no_thinking: "none" };
        let body = ChatBody::from_messages(body.to_string().as_bytes(), habits).unwrap();
        let said = seen(&body).0;
        let said = said.iter().map(|m| format!("{}{}", &m["role"], &m["content"]).replace('"', ""));
        said.collect::<Vec<_>>()
    };
    assert_eq!(with(false), ["systemA.", "userx", "systemB.", "usery"]);
    assert_eq!(with(true), ["systemA.B.", "userx", "usery"]);
}

#[test]
fn habits_are_found_out_by_trying() {
    let Some(read) = std::fs::read_to_string(shared("chat-templates/qwen3-0.6b.jinja")).ok() else {
        eprintln!("SKIPPED: ../shared/data/chat-templates is not here");
        return;
    };
    let mut all = crate::template::Templates::new(Map::new());
    all.add("default", read).unwrap();
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let with = |effort| {
        let input = ChatInput { reasoning_effort: effort, ..ChatInput::new(&hi) };
        all.render(&input).unwrap()
    };
    assert_eq!(with(None), with(Some("high")), "it thinks by itself");
    assert_ne!(with(None), with(Some("none")));
    let says = json!({"enable_thinking": true});
    let input = ChatInput {
        reasoning_effort: Some("none"),
        chat_template_kwargs: Some(&says),
        ..ChatInput::new(&hi)
    };
    assert_eq!(all.render(&input).unwrap(), with(None), "what the request says wins");
}

#[test]
fn thinking_that_is_switched_off_is_an_effort_that_the_template_heeds() {
    for no_thinking in ["none", "low"] {
        let habits = Habits { merge_system: false, no_thinking };
        let body = br#"{"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"},
            "output_config":{"effort":"high"}}"#;
        let body = ChatBody::from_messages(body, habits).unwrap();
        assert_eq!(body.reasoning_effort.as_deref(), Some(no_thinking));
    }
    let enabled = json!({"messages": [], "thinking": {"type": "enabled", "budget_tokens": 2048}});
    assert_eq!(from(&enabled).unwrap().reasoning_effort, None);
    // The built-in template knows no efforts, so that `none` would say nothing.
    assert_eq!(ModelPrompt::builtin().habits().no_thinking, "low");
}

#[test]
fn what_only_the_engine_can_do_is_said_to_be_unsupported() {
    let image = json!({"type": "image", "source": {"type": "base64", "data": ""}});
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    for body in [
        user(json!([image])),
        user(json!([{"type": "tool_result", "tool_use_id": "t", "content": [image]}])),
        user(json!([{"type": "document"}])),
        user(json!([{"type": "tool_use", "name": "f"}])),
        json!({"messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}]}),
        json!({"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        json!({"messages": [{"role": "system", "content": [{"type": "tool_removal"}]}]}),
    ] {
        let result = from(&body);
        assert!(matches!(result, Err(PromptError::Unsupported(_))), "{body}: {result:?}");
    }
    for body in [
        json!([]),
        json!({}),
        json!({"messages": "x"}),
        json!({"messages": [1]}),
        json!({"messages": [{"role": "tool", "content": "x"}]}),
        json!({"messages": [{"role": "user"}]}),
        user(json!([{"text": "x"}])),
        user(json!([{"type": "tool_use", "id": "t", "input": 3}])),
        json!({"messages": [], "system": 3}),
        json!({"messages": [], "tools": 3}),
    ] {
        let result = from(&body);
        assert!(matches!(result, Err(PromptError::Malformed(_))), "{body}: {result:?}");
    }
}

#[test]
fn tools_get_the_type_that_is_understood() {
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": [
        {"name": "f", "input_schema": {"properties": {}}, "defer_loading": null}]});
    let tools = seen(&from(&body).unwrap()).1.unwrap();
    let expected = json!({"type": "function", "function": {
        "name": "f", "description": null, "parameters": {"properties": {}, "type": "object"}}});
    assert_eq!(tools, [expected]);
}

/// Claude Code's next turn begins with the whole of the one before, whatever it marks.
#[test]
fn recorded_turns_are_rendered_and_extend_each_other() {
    let model = ModelPrompt::builtin();
    let mut seen = 0;
    let mut before: Option<String> = None;
    for (file, body) in recordings("/v1/messages") {
        let chat = ChatBody::from_messages(&body, model.habits()).unwrap();
        let mut input = chat.input(None).unwrap();
        assert!(model.encode_chat(&input).unwrap().len() > 5, "{file}");
        input.add_generation_prompt = false;
        let text = model.render_chat(&input).unwrap();
        assert!(!text.contains("billing") && !text.contains("ephemeral"), "{file}");
        if file.contains("claude-code") {
            let before = before.replace(text.clone());
            assert!(before.is_none_or(|before| text.starts_with(&before)), "{file}");
        }
        seen += 1;
    }
    assert!(seen >= 4, "{seen}");
}
