//! Bodies good and bad, and recorded ones of real clients.

use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

fn paths(paths: &[&str]) -> BodyPaths {
    BodyPaths::parse(paths).unwrap()
}

/// The default of `affinity.body_fields`.
fn usual() -> BodyPaths {
    paths(&["prompt_cache_key", "metadata.user_id"])
}

fn chat(body: &str) -> Result<ChatView<'_>, RequestError> {
    ChatView::parse(body.as_bytes(), &usual())
}

fn session_at(places: &[&str], rest: &str) -> Option<String> {
    let body = format!(r#"{{"model":"m",{rest}}}"#);
    let view = CommonView::parse(body.as_bytes(), &paths(places)).unwrap();
    view.session.id.map(Cow::into_owned)
}

#[test]
fn a_chat_request_is_seen_as_it_is() {
    let view = chat(
        r#" {"model":"q\u0077en", "stream" : true, "stream_options":{"include_usage":true},
        "max_tokens":5,"max_completion_tokens":7,"n":2,"cache_salt":"s","user":"u",
        "messages": [ {"role":"user","content":"hi \"model\":\"other\""} ],
        "tools":[{}],"tool_choice":null,"chat_template_kwargs":{"enable_thinking":false},
        "add_generation_prompt":false,"prompt_cache_key":"conv"} "#,
    )
    .unwrap();
    let common = &view.common;
    assert_eq!((common.model.as_ref(), common.stream, common.include_usage), ("qwen", true, true));
    assert_eq!((common.max_tokens, common.n, common.cache_salt.as_ref()), (Some(7), 2, "s"));
    let session = BodySession { id: Some("conv".into()), path: 0, too_long: 0 };
    assert_eq!(common.session, session);
    assert_eq!(
        view.messages.get(),
        r#"[ {"role":"user","content":"hi \"model\":\"other\""} ]"#,
        "the very bytes"
    );
    let template = view.template;
    assert_eq!(template.tools.map(Raw::get), Some("[{}]"));
    assert!(template.tool_choice.is_none(), "null is absent");
    assert_eq!(template.chat_template_kwargs.map(Raw::get), Some(r#"{"enable_thinking":false}"#));
    assert_eq!(template.add_generation_prompt, Some(false));
    assert_eq!(template.continue_final_message, None);
}

#[test]
fn what_can_be_borrowed_is() {
    let view = chat(r#"{"model":"m","messages":[],"prompt_cache_key":"k"}"#).unwrap();
    assert!(matches!(view.common.model, Cow::Borrowed(_)));
    assert!(matches!(view.common.session.id, Some(Cow::Borrowed(_))));
}

#[test]
fn of_a_repeated_key_the_last_counts() {
    let view = chat(
        r#"{"model":"a","messages":[1],"stream":true,"messages":[],"stream":false,"model":"b",
        "prompt_cache_key":"x","prompt_cache_key":"y","metadata":{"user_id":1,"user_id":2}}"#,
    )
    .unwrap();
    assert_eq!((view.common.model.as_ref(), view.common.stream), ("b", false));
    assert_eq!(view.messages.get(), "[]");
    assert_eq!(view.common.session.id.as_deref(), Some("y"));
    assert_eq!(session_at(&["a.b"], r#""a":{"b":1,"b":2}"#).as_deref(), Some("2"));
    // Then a last null is as good as none.
    assert_eq!(
        chat(r#"{"model":"a","messages":[],"model":null}"#).unwrap_err().param(),
        Some("model")
    );
}

#[test]
fn bad_bodies_are_told_apart() {
    let error = |body: &str| chat(body).unwrap_err();
    for body in [
        "",
        "{",
        "nope",
        r#"{"model":"m"} {}"#,
        r#"{"model":"m",}"#,
        "{'model':1}",
        "{\"a\":\"\u{1}\"}",
    ] {
        assert!(matches!(error(body), RequestError::NotJson(_)), "{body}: {}", error(body));
    }
    let not_utf8 = ChatView::parse(b"{\"model\":\"\xff\"}", &usual()).unwrap_err();
    assert!(matches!(not_utf8, RequestError::NotJson(_)), "{not_utf8}");
    for body in ["[]", "null", "3", r#""model""#, "true"] {
        assert_eq!(error(body), RequestError::NotAnObject, "{body}");
    }
    for (body, param) in [
        ("{}", "model"),
        (r#"{"model":null,"messages":[]}"#, "model"),
        (r#"{"model":7,"messages":[]}"#, "model"),
        (r#"{"model":"","messages":[]}"#, "model"),
        (r#"{"model":["m"],"messages":[]}"#, "model"),
        (r#"{"model":"\ud800","messages":[]}"#, "model"),
        (r#"{"model":"m"}"#, "messages"),
        (r#"{"model":"m","messages":null}"#, "messages"),
        (r#"{"model":"m","messages":"hi"}"#, "messages"),
        (r#"{"model":"m","messages":{}}"#, "messages"),
        (r#"{"model":"m","messages":[],"stream":"yes"}"#, "stream"),
        (r#"{"model":"m","messages":[],"stream":1}"#, "stream"),
        (r#"{"model":"m","messages":[],"add_generation_prompt":0}"#, "add_generation_prompt"),
    ] {
        assert_eq!(error(body).param(), Some(param), "{body}");
    }
    assert_eq!(error("{}").to_string(), "`model` is missing: expected the name of a model");
}

#[test]
fn numbers_never_overflow() {
    let max = |number: &str| {
        let body = format!(r#"{{"model":"m","messages":[],"max_tokens":{number}}}"#);
        chat(&body).unwrap().common.max_tokens
    };
    assert_eq!(max("16"), Some(16));
    assert_eq!(max("16.0"), Some(16));
    assert_eq!(max("1e300"), Some(u64::MAX));
    assert_eq!(max("99999999999999999999999999"), Some(u64::MAX));
    assert_eq!(max("-1"), None);
    assert_eq!(max("\"16\""), None);
    assert_eq!(max("null"), None);
    assert_eq!(max("[1]"), None);
    assert_eq!(max("1e999"), None, "no number that serde_json knows");
}

#[test]
fn sessions_are_found_by_parsing() {
    // F05: the words stand in a prompt, behind an escape, one level too deep.
    let decoy = r#""messages":"\"prompt_cache_key\":\"no\"","x":{"prompt_cache_key":"no"}"#;
    assert_eq!(session_at(&["prompt_cache_key"], decoy), None);
    let escaped = r#""prompt\u005fcache_key":"a\"b\u00e9""#;
    assert_eq!(session_at(&["prompt_cache_key"], escaped).as_deref(), Some("a\"bé"));
    let deep = r#""a":{"z":[{"b":1}],"b":{"c":"id"}}"#;
    assert_eq!(session_at(&["a.b.c"], deep).as_deref(), Some("id"));
    assert_eq!(session_at(&["a.b"], deep), None, "an object is no id");
    assert_eq!(session_at(&["a.z.b"], deep), None, "nor does a path lead through lists");
    assert_eq!(session_at(&["model"], r#""x":1"#).as_deref(), Some("m"));
}

#[test]
fn the_first_path_with_an_id_wins() {
    let both = ["first", "second.id"];
    assert_eq!(session_at(&both, r#""second":{"id":"b"},"first":"a""#).as_deref(), Some("a"));
    for nothing in [r#""first":"""#, r#""first":null"#, r#""first":true"#, r#""first":1.5"#] {
        let rest = format!(r#"{nothing},"second":{{"id":42}}"#);
        assert_eq!(session_at(&both, &rest).as_deref(), Some("42"), "{nothing}");
    }
    let body = format!(
        r#"{{"model":"m","first":"{}","second":{{"id":"{}"}}}}"#,
        "x".repeat(MAX_BODY_SESSION_BYTES + 1),
        "y".repeat(MAX_BODY_SESSION_BYTES)
    );
    let session = CommonView::parse(body.as_bytes(), &paths(&both)).unwrap().session;
    assert_eq!((session.path, session.too_long), (1, 1));
    assert_eq!(session.id.unwrap().len(), MAX_BODY_SESSION_BYTES);
}

#[test]
fn anthropics_user_id_is_a_session_only_by_its_session_id() {
    let user = |text: &str| {
        let text = serde_json::to_string(text).unwrap();
        session_at(&["metadata.user_id"], &format!(r#""metadata":{{"user_id":{text}}}"#))
    };
    assert_eq!(user(r#"{"device_id":"d","session_id":"f1af\u002d"}"#).as_deref(), Some("f1af-"));
    for other in
        ["user-42", "", r#"{"session_id":""}"#, r#"{"account":"a"}"#, r#"["session_id"]"#, "7"]
    {
        assert_eq!(user(other), None, "{other}");
    }
    assert_eq!(session_at(&["metadata.user_id"], r#""metadata":{"user_id":7}"#), None);
    assert_eq!(session_at(&["metadata.user_id"], r#""metadata":"user_id""#), None);
}

#[test]
fn paths_are_checked() {
    for bad in ["", ".", "a.", ".a", "a..b"] {
        assert_eq!(BodyPaths::parse(&["ok", bad]), Err(PathError(bad.into())));
    }
    assert!(session_at(&[], r#""a":1"#).is_none());
}

fn prompt(json: &str) -> Result<PromptInput, RequestError> {
    let body = format!(r#"{{"model":"m","prompt": {json} }}"#);
    let view = CompletionView::parse(body.as_bytes(), &usual())?;
    PromptInput::parse(view.prompt.unwrap())
}

#[test]
fn prompts_come_in_four_spellings() {
    assert_eq!(prompt(r#""a\nb""#), Ok(PromptInput::Text("a\nb".into())));
    assert_eq!(prompt("[1, 2,3]"), Ok(PromptInput::Tokens(vec![1, 2, 3])));
    assert_eq!(prompt(r#"[ "a", "b"]"#), Ok(PromptInput::Texts(vec!["a".into(), "b".into()])));
    assert_eq!(prompt("[[1],[]]"), Ok(PromptInput::TokenLists(vec![vec![1], vec![]])));
    assert_eq!(prompt("[]"), Ok(PromptInput::Tokens(vec![])));
    for bad in
        ["3", "{}", "true", "[1,\"a\"]", "[-1]", "[1.5]", "[4294967296]", "[[[1]]]", "[null]"]
    {
        assert_eq!(prompt(bad), Err(prompt::malformed()), "{bad}");
    }
    let missing = CompletionView::parse(br#"{"model":"m","prompt":null}"#, &usual()).unwrap_err();
    assert_eq!(missing.param(), Some("prompt"));
    let embeds = CompletionView::parse(br#"{"model":"m","prompt_embeds":"AAAA"}"#, &usual());
    assert!(embeds.unwrap().prompt.is_none());
}

#[test]
fn depth_costs_no_stack() {
    let deep = "[".repeat(2_000_000);
    assert!(matches!(chat(&deep).unwrap_err(), RequestError::NotAnObject));
    let open = format!(r#"{{"model":"m","messages":{deep}"#);
    assert!(matches!(chat(&open).unwrap_err(), RequestError::NotJson(_)));
    let closed =
        format!(r#"{{"model":"m","metadata":{deep}{},"messages":[]}}"#, "]".repeat(2_000_000));
    assert_eq!(chat(&closed).unwrap().common.session.id, None);
    let objects = format!(
        r#"{{"model":"m","messages":[],"metadata":{}1{}}}"#,
        r#"{"user_id":"#.repeat(100_000),
        "}".repeat(100_000)
    );
    assert_eq!(chat(&objects).unwrap().common.session.id, None);
    let prompt = format!(r#"{{"model":"m","prompt":{deep}{}}}"#, "]".repeat(2_000_000));
    let view = CompletionView::parse(prompt.as_bytes(), &usual()).unwrap();
    assert_eq!(PromptInput::parse(view.prompt.unwrap()), Err(prompt::malformed()));
}

#[test]
fn recorded_requests_of_the_sdks() {
    let (chats, completions, sessions) =
        recorded_requests("../../testdata/client-requests").unwrap();
    assert!(chats >= 6 && completions == 2 && sessions >= 1, "{chats} {completions} {sessions}");
}

#[test]
fn recorded_requests_of_agents() {
    let Some(counts) = recorded_requests("../../../shared/data/client-requests") else {
        eprintln!("SKIPPED: ../shared/data/client-requests is not here");
        return;
    };
    let (chats, completions, sessions) = counts;
    assert!(chats > 10 && completions == 2 && sessions > 5, "{chats} {completions} {sessions}");
}

/// Views every recorded request in a folder; how many chats, completions and sessions there were.
fn recorded_requests(dir: &str) -> Option<(usize, usize, usize)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    let entries = std::fs::read_dir(&dir).ok()?;
    let (mut chats, mut completions, mut sessions) = (0, 0, 0);
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "http") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let split = memchr::memmem::find(&bytes, b"\r\n\r\n").unwrap();
        let (head, body) = (String::from_utf8_lossy(&bytes[..split]), &bytes[split + 4..]);
        let target = head.split(' ').nth(1).unwrap().split('?').next().unwrap().to_owned();
        let whole: serde_json::Value = match serde_json::from_slice(body) {
            Ok(whole) => whole,
            Err(_) => continue,
        };
        let common = CommonView::parse(body, &usual()).unwrap();
        assert_eq!(common.model, whole["model"].as_str().unwrap());
        assert_eq!(common.stream, whole["stream"].as_bool().unwrap_or(false));
        sessions += usize::from(common.session.id.is_some());
        match target.as_str() {
            "/v1/chat/completions" => {
                let view = ChatView::parse(body, &usual()).unwrap();
                let messages: serde_json::Value =
                    serde_json::from_str(view.messages.get()).unwrap();
                assert_eq!(messages, whole["messages"]);
                let key = whole["prompt_cache_key"].as_str();
                assert_eq!(view.common.session.id.as_deref(), key, "{}", path.display());
                chats += 1;
            }
            "/v1/completions" => {
                let view = CompletionView::parse(body, &usual()).unwrap();
                PromptInput::parse(view.prompt.unwrap()).unwrap();
                completions += 1;
            }
            _ => {}
        }
    }
    Some((chats, completions, sessions))
}

#[test]
fn the_text_of_a_turn_begins_with_that_of_the_one_before() {
    let text =
        |body: &str| ChatView::parse(body.as_bytes(), &usual()).unwrap().text_parts().concat();
    let one = text(r#"{"model":"m","messages":[{"role":"user","content":"Hi ]"} ],"stream":true}"#);
    let two = text(
        r#"{"messages":[{"role":"user","content":"Hi ]"} ,{"role":"assistant","content":"x"}],
           "temperature":1,"model":"m"}"#,
    );
    assert!(two.starts_with(&one) && two.len() > one.len());
    // What shapes the start of the prompt stands at its start, wherever it is in the body.
    let tools = text(r#"{"model":"m","messages":[{"role":"user"}],"tools":[{"type":"function"}]}"#);
    assert_eq!(tools, br#"[{"type":"function"}][{"role":"user"}"#);
    let completion = |prompt: &str| {
        let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
        CompletionView::parse(body.as_bytes(), &usual()).unwrap().text_parts().concat()
    };
    assert!(completion(r#""Hello you""#).starts_with(&completion(r#""Hello""#)));
    assert!(completion("[1, 2, 3]").starts_with(&completion("[1, 2]")));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(ChatView::parse(&bytes, &usual()));
        drop(CompletionView::parse(&[b"{\"model\":\"m\",", &bytes[..]].concat(), &usual()));
    }

    /// What a tree would say, the view says.
    #[test]
    fn agrees_with_a_tree(
        model in "\\PC{1,20}", key in proptest::option::of("\\PC{1,20}"), stream: bool,
        text in "\\PC{0,80}",
    ) {
        let body = serde_json::json!({"messages": [{"content": text}], "stream": stream,
            "prompt_cache_key": key, "model": model});
        let body = body.to_string();
        let view = chat(&body).unwrap();
        prop_assert_eq!(view.common.model.as_ref(), model);
        prop_assert_eq!(view.common.session.id.as_deref(), key.as_deref());
        prop_assert_eq!(view.common.stream, stream);
    }
}
