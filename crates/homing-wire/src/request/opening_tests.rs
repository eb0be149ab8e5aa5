//! What is read of an opening, and what is left out.

use super::PieceKind::{Name, Part, Role, Text, Tools, Value};
use super::*;
use crate::request::{BodyPaths, ChatView};
use proptest::prelude::*;

/// The pieces of a chat with these fields, if there is a user message.
fn pieces(fields: &str) -> Option<Vec<(PieceKind, String)>> {
    let body = format!(r#"{{"model":"m",{fields}}}"#);
    let view = ChatView::parse(body.as_bytes(), &BodyPaths::default()).unwrap();
    let mut all = Vec::new();
    let found = view.opening().read(|kind, piece| all.push((kind, piece.to_owned())));
    found.then_some(all)
}

fn of(messages: &str) -> Option<Vec<(PieceKind, String)>> {
    pieces(&format!(r#""messages":{messages}"#))
}

fn owned(pieces: &[(PieceKind, &str)]) -> Option<Vec<(PieceKind, String)>> {
    Some(pieces.iter().map(|(kind, piece)| (*kind, (*piece).to_owned())).collect())
}

#[test]
fn an_opening_is_tools_leading_instructions_and_the_first_user_message() {
    let all = pieces(
        r#""messages": [ {"role":"system","content":"be \"brief\""},
            {"content":"and kind", "role":"develope\u0072"},
            {"role":"assistant","content":"welcome"},
            {"role":"system","content":"no longer leading"},
            {"role":"user","name":"n","content":"hi"},
            {"role":"user","content":"later"} ], "tools":[ {} ], "temperature":1"#,
    );
    let expected = [
        (Tools, "[ {} ]"),
        (Role, "system"),
        (Text, r#""be \"brief\"""#),
        (Role, "developer"),
        (Text, r#""and kind""#),
        (Role, "user"),
        (Text, r#""hi""#),
    ];
    assert_eq!(all, owned(&expected));
}

#[test]
fn without_a_user_message_nothing_has_opened() {
    for none in [
        "[]",
        r#"[{"role":"system","content":"s"}]"#,
        r#"[{"role":"User","content":"s"}]"#,
        r#"[{"role":null,"content":"user"},{},[],"user",7,null,{"role":["user"]}]"#,
    ] {
        assert_eq!(of(none), None, "{none}");
    }
    assert_eq!(of(r#"[{"role":"user"}]"#), owned(&[(Role, "user")]));
    let number = r#"[{"role":"user","content":7}]"#;
    assert_eq!(of(number), owned(&[(Role, "user"), (Value, "7")]));
}

#[test]
fn a_text_part_is_its_text_and_a_moving_cache_mark_is_nothing() {
    let plain = of(r#"[{"role":"user","content":"a\u0062"}]"#);
    assert_eq!(plain, owned(&[(Role, "user"), (Text, r#""a\u0062""#)]));
    for same in [
        r#"[{"role":"user","content":[{"type":"text","text":"a\u0062"}]}]"#,
        r#"[{"role":"user","content":[ {"text" : "a\u0062", "type":"text",
            "cache_control":{"type":"ephemeral"}} ]}, {"role":"assistant","content":"x"}]"#,
    ] {
        assert_eq!(of(same), plain, "{same}");
    }
    let image = |mark: &str| {
        of(&format!(
            r#"[{{"role":"user","content":[{{"type":"text","text":"x"}},
            {{"type":"image_url","image_url":{{"url":"data:1"}}{mark}}},null,{{}}]}}]"#
        ))
    };
    let expected = [
        (Role, "user"),
        (Text, r#""x""#),
        (Part, ""),
        (Name, "type"),
        (Value, r#""image_url""#),
        (Name, "image_url"),
        (Value, r#"{"url":"data:1"}"#),
        (Part, ""),
        (Value, "null"),
        (Part, ""),
    ];
    assert_eq!(image(""), owned(&expected));
    assert_eq!(image(r#","cache_control":{"a":[1,"2"]}"#), owned(&expected));
    let no_text = of(r#"[{"role":"user","content":[{"type":"text","text":7}]}]"#).unwrap();
    assert_eq!(no_text[1].0, Part, "what claims to be a text and is none");
}

#[test]
fn nothing_behind_the_first_user_message_is_read_and_depth_costs_no_stack() {
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    let all = of(&format!(r#"[{{"role":"user","content":"x"}},{deep}]"#));
    assert_eq!(all, owned(&[(Role, "user"), (Text, r#""x""#)]));
    let all = of(&format!(r#"[{{"role":"user","content":[{deep}]}}]"#)).unwrap();
    assert_eq!(all[2], (Value, deep.clone()));
    let all = of(&format!(r#"[{{"role":{deep}}},{{"role":"user","content":{{"a":{deep}}}}}]"#));
    assert_eq!(all.unwrap().len(), 2);
}

proptest! {
    /// Whatever is appended, the opening stays; whatever it is made of, it is told.
    #[test]
    fn later_turns_open_alike(
        system in "\\PC{0,20}", user in "\\PC{0,20}",
        later in proptest::collection::vec(("(user|assistant|tool|system)", "\\PC{0,20}"), 0..5),
    ) {
        let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        let mut messages = vec![message("system", &system), message("user", &user)];
        let first = of(&serde_json::Value::from(messages.clone()).to_string()).unwrap();
        let texts: Vec<String> = first.iter().filter(|(kind, _)| *kind == Text)
            .map(|(_, raw)| serde_json::from_str(raw).unwrap()).collect();
        prop_assert_eq!(texts, [system, user]);
        messages.extend(later.iter().map(|(role, text)| message(role, text)));
        prop_assert_eq!(of(&serde_json::Value::from(messages).to_string()).unwrap(), first);
    }
}
