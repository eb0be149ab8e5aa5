//! What is asked, and which answers are believed. The way of a question over HTTP is tested on the binary
//! (`e2e/python/test_engine_tokens.py`).

use super::*;
use serde_json::Value;

fn model() -> Model {
    Model {
        name: "m".to_owned(),
        aliases: Vec::new(),
        tokenizer: None,
        chat_template_kwargs: Default::default(),
    }
}

fn question(endpoint: Endpoint, body: &Value) -> Value {
    match wanted(endpoint, "m", &model(), body.to_string().as_bytes()).unwrap() {
        Wanted::Answer(question) => serde_json::from_slice(&question).unwrap(),
        nothing @ Wanted::Nothing { .. } => panic!("{nothing:?}"),
    }
}

#[test]
fn texts_are_asked_with_their_option_and_token_ids_are_not_asked() {
    let asked = |body| question(Endpoint::Completions, &body);
    let plain = json!({"model": "m", "prompt": "Hi", "add_special_tokens": true});
    assert_eq!(asked(json!({"model": "m", "prompt": "Hi"})), plain);
    assert_eq!(asked(json!({"model": "m", "prompt": ["Hi"], "max_tokens": 3})), plain);
    let without = asked(json!({"model": "m", "prompt": "Hi", "add_special_tokens": false}));
    assert_eq!(without["add_special_tokens"], false);

    let ids = |prompt: Value| {
        let body = json!({"model": "m", "prompt": prompt}).to_string();
        wanted(Endpoint::Completions, "m", &model(), body.as_bytes())
    };
    assert_eq!(ids(json!([1, 2])).unwrap(), Wanted::Nothing { first: vec![1, 2], total: 2 });
    let lists = Wanted::Nothing { first: vec![1], total: 3 };
    assert_eq!(ids(json!([[1], [2, 3]])).unwrap(), lists);
    assert!(matches!(ids(json!(["a", "b"])), Err(PromptError::Unsupported(_))));
    for empty in [json!([]), json!([[]])] {
        assert!(matches!(ids(empty.clone()), Err(PromptError::Malformed(_))), "{empty}");
    }
    let many = given(vec![vec![1; TEXT_LIMIT / 4], vec![1]]);
    assert!(matches!(many, Err(PromptError::TooLong { .. })));
}

#[test]
fn other_apis_are_asked_as_the_chats_that_they_become() {
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let chat = question(Endpoint::Chat, &json!({"model": "m", "messages": hi}));
    let responses = question(Endpoint::Responses, &json!({"model": "m", "input": "Hi"}));
    assert_eq!(chat, responses);
    let messages = json!({"model": "m", "max_tokens": 1, "messages": hi});
    assert_eq!(chat["messages"], question(Endpoint::Messages, &messages)["messages"]);
    // What becomes of these depends on a template that nobody has here.
    for (name, value) in [
        ("thinking", json!({"type": "disabled"})),
        (
            "messages",
            json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": "x"}]),
        ),
    ] {
        let mut body = messages.clone();
        body[name] = value;
        let wanted = wanted(Endpoint::Messages, "m", &model(), body.to_string().as_bytes());
        assert!(matches!(wanted, Err(PromptError::Unsupported(_))), "{name}: {wanted:?}");
    }
}

#[test]
fn a_question_has_a_bound() {
    let body = json!({"model": "m", "prompt": "x".repeat(LONGEST)}).to_string();
    let wanted = wanted(Endpoint::Completions, "m", &model(), body.as_bytes());
    assert!(matches!(wanted, Err(PromptError::TooLong { .. })), "{wanted:?}");
}

#[test]
fn only_what_can_be_the_tokens_of_a_prompt_is_believed() {
    let said = |answer: Value| tokens(answer.to_string().as_bytes(), 3).map(|t| t.to_vec());
    assert_eq!(said(json!({"tokens": [1, 2], "count": 2, "max_model_len": 9})), Some(vec![1, 2]));
    assert_eq!(said(json!({"tokens": [1, 2]})), Some(vec![1, 2]));
    for lie in [
        json!({"tokens": [1, 2], "count": 3}),
        json!({"tokens": [], "count": 0}),
        json!({"tokens": [1, 2, 3, 4], "count": 4}),
        json!({"tokens": [-1]}),
        json!({"tokens": [4_294_967_296u64]}),
        json!({"tokens": ["a"]}),
        json!({"tokens": [[1]]}),
        json!({"count": 2}),
        json!([1, 2]),
    ] {
        assert_eq!(said(lie.clone()), None, "{lie}");
    }
    assert_eq!(tokens(b"{\"tokens\": [1, ", 3), None);
}
