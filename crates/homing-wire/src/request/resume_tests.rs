//! What can go on elsewhere, with which request, and how the rest looks.

use super::*;

const CHAT: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"max_tokens":10}"#;

fn chat(body: &str, events: &[&str]) -> Option<Resume> {
    let mut resume = Resume::of(Resumable::Chat, body.as_bytes())?;
    events.iter().for_each(|event| resume.see(event.as_bytes()));
    Some(resume)
}

fn piece(content: &str) -> String {
    let content = serde_json::to_string(content).unwrap();
    format!(
        r#"{{"id":"c-1","created":5,"choices":[{{"index":0,"delta":{{"content":{content}}},"logprobs":null,"finish_reason":null}}]}}"#
    )
}

const OPENING: &str = r#"{"id":"c-1","created":5,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;

fn request(resume: &Resume) -> Option<Value> {
    resume.request().map(|body| serde_json::from_slice(&body).unwrap())
}

#[test]
fn a_chat_goes_on_with_its_last_message() {
    let resume = chat(CHAT, &[OPENING, &piece("Hel"), &piece("lo é")]).unwrap();
    let body = request(&resume).unwrap();
    assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "Hello é"}));
    assert_eq!(
        (&body["continue_final_message"], &body["add_generation_prompt"]),
        (&json!(true), &json!(false))
    );
    assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(8), &json!(true)));
    let goes_on = r#"{"stream":true,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Once"}],"continue_final_message":true,"add_generation_prompt":false}"#;
    let body = request(&chat(goes_on, &[&piece(" upon")]).unwrap()).unwrap();
    assert_eq!(body["messages"].as_array().unwrap().len(), 2);
    assert_eq!(body["messages"][1]["content"], "Once upon");
}

#[test]
fn a_completions_prompt_goes_on() {
    let body = br#"{"model":"m","stream":true,"prompt":"One, ","min_tokens":4}"#;
    let mut resume = Resume::of(Resumable::Completions, body).unwrap();
    resume.see(br#"{"id":"x","choices":[{"index":0,"text":"two, "}]}"#);
    let body = request(&resume).unwrap();
    assert_eq!(
        (body["prompt"].as_str(), body["min_tokens"].as_u64()),
        (Some("One, two, "), Some(3))
    );
    let ids = br#"{"stream":true,"prompt":[1,2]}"#;
    assert!(Resume::of(Resumable::Completions, ids).is_none());
}

#[test]
fn what_is_more_than_text_does_not() {
    for more in [
        r#""n":2"#,
        r#""logprobs":true"#,
        r#""response_format":{"type":"json_object"}"#,
        r#""guided_choice":["a"]"#,
        r#""structured_outputs":{"json":{}}"#,
        r#""stream":false"#,
    ] {
        let body = format!(r#"{{"stream":true,"messages":[],{more}}}"#);
        assert!(Resume::of(Resumable::Chat, body.as_bytes()).is_none(), "{more}");
    }
    for harmless in [
        r#""n":1"#,
        r#""response_format":{"type":"text"}"#,
        r#""logprobs":false"#,
        r#""tools":[{}]"#,
    ] {
        let body = format!(r#"{{"stream":true,"messages":[],{harmless}}}"#);
        assert!(Resume::of(Resumable::Chat, body.as_bytes()).is_some(), "{harmless}");
    }
    for event in [
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}"#,
        r#"{"error":{"message":"x"}}"#,
        "nonsense",
    ] {
        let resume = chat(CHAT, &[&piece("a"), event, &piece("b")]).unwrap();
        assert!(resume.request().is_none(), "{event}");
    }
    assert!(chat(CHAT, &[OPENING]).unwrap().request().is_none(), "nothing was said");
    let all: Vec<String> = (0..10).map(|_| piece("x")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert!(chat(CHAT, &all).unwrap().request().is_none(), "it may say no more");
}

#[test]
fn the_rest_looks_like_the_rest() {
    let resume = chat(CHAT, &[OPENING, &piece("a"), &piece("b")]).unwrap();
    let see = |data: &str| resume.rewrite(data.as_bytes()).map(|d| String::from_utf8(d).unwrap());
    let other = |data: &str| data.replace("c-1", "c-2").replace("\"created\":5", "\"created\":9");
    assert_eq!(see(&other(OPENING)), None, "one opening is enough");
    assert_eq!(see(&other(&piece("c"))).as_deref(), Some(piece("c").as_str()));
    assert_eq!(see("[DONE]").as_deref(), Some("[DONE]"));
    let usage = r#"{"id":"c-2","created":9,"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}"#;
    let told: Value = serde_json::from_str(&see(usage).unwrap()).unwrap();
    assert_eq!(
        told["usage"],
        json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15})
    );
    assert_eq!(told["id"], "c-1");
}
