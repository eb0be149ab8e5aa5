//! One conversation is one session however long it gets; whatever makes it another one makes another.

use super::super::session::{Finder, Kind};
use super::super::steering::Steering;
use super::*;
use homing_core::ask::Session;
use homing_core::ids::SessionKey;
use homing_core::settings::Mode;
use homing_wire::request::{BodyPaths, ChatView};
use http::{HeaderMap, HeaderName, HeaderValue};

fn secret() -> KeySecret {
    KeySecret::new(&[3; 32])
}

fn finder() -> Finder {
    Finder {
        headers: vec![HeaderName::from_static("x-session-id")],
        parents: vec![HeaderName::from_static("x-homing-parent-session-id")],
        mode: Mode::Hard,
        body_mode: Mode::Soft,
        group: false,
        infer: true,
    }
}

/// The session of a chat with these fields, which has no id.
fn session(fields: &str, tenant: &str, adapter: &str) -> Option<Session> {
    let body = format!("{{{fields}}}");
    let view = ChatView::parse(body.as_bytes(), &BodyPaths::default()).unwrap();
    let (headers, steering) = (HeaderMap::new(), Steering::default());
    let opening = || hash(&secret(), view.opening());
    let found = finder().find(&headers, &steering, &view.common, opening).unwrap();
    let named = found.named?;
    assert!(matches!(named.kind, Kind::Inferred { .. }));
    Some(named.session(&secret(), tenant, adapter))
}

fn key(fields: &str) -> SessionKey {
    session(fields, "", "").unwrap().key
}

const FIRST: &str = r#""model":"m","messages":[{"role":"system","content":"s"},
    {"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]"#;

#[test]
fn later_turns_are_the_same_session_bound_softly() {
    let first = session(FIRST, "", "").unwrap();
    assert_eq!((first.mode, first.last, first.ends_group), (Mode::Soft, false, None));
    for later in [
        r#"{"role":"assistant","content":"hello"},{"role":"user","content":"and"}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},{"role":"tool","content":"x"}"#,
        r#"{"role":"system","content":"a reminder"},{"role":"user","content":"and"}"#,
    ] {
        let grown = FIRST.replacen(r#""hi"}"#, &format!("\"hi\"}},{later}"), 1);
        assert_ne!(grown, FIRST);
        assert_eq!(key(&grown), first.key, "{later}");
    }
    // What is no part of the opening, and where it stands in the body.
    let other_order = r#""tools":[{"type":"function","function":{"name":"f"}}],"temperature":0.7,
        "stream":true,"messages":[{"content":"s","role":"system"},{"role":"user","content":"hi"}],
        "model":"m","user":"u","max_tokens":5"#;
    assert_eq!(key(other_order), first.key);
    // A cache mark that comes with one turn and moves on with the next.
    let marked = FIRST.replacen(
        r#""hi""#,
        r#"[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]"#,
        1,
    );
    assert_eq!(key(&marked), first.key);
}

#[test]
fn whatever_differs_in_the_opening_is_another_session() {
    let mut keys = vec![
        key(FIRST),
        session(FIRST, "tenant", "").unwrap().key,
        session(FIRST, "", "tenant").unwrap().key,
        KeySecret::new(&[3; 32]).session("", "", b"hi"),
    ];
    for (old, new) in [
        (r#""hi""#, r#""hi ""#),
        (r#""hi""#, r#""Hi""#),
        (r#""hi""#, r#""""#),
        (r#""hi""#, "null"),
        (r#""hi""#, r#"["hi"]"#),
        (r#""hi""#, r#"[{"type":"text","text":"h"},{"type":"text","text":"i"}]"#),
        (r#""hi""#, r#"[{"type":"text","text":"hi"},{"type":"image_url","image_url":"a"}]"#),
        (r#""hi""#, r#"[{"type":"text","text":"hi"},{"type":"image_url","image_url":"b"}]"#),
        (r#""s""#, r#""t""#),
        (r#""s""#, r#""shi""#),
        (r#""system""#, r#""developer""#),
        (r#"{"role":"system","content":"s"},"#, ""),
        (
            r#"{"role":"system","content":"s"},"#,
            r#"{"role":"system","content":"s"},{"role":"system","content":"s"},"#,
        ),
        (r#""name":"f""#, r#""name":"g""#),
        (r#","tools":[{"type":"function","function":{"name":"f"}}]"#, ""),
        (r#""model":"m""#, r#""model":"n""#),
    ] {
        let other = FIRST.replacen(old, new, 1);
        assert_ne!(other, FIRST, "{old}");
        keys.push(key(&other));
    }
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[i + 1..].iter().all(|b| a != b), "{i}");
    }
}

#[test]
fn without_a_user_message_there_is_no_session() {
    for none in ["[]", r#"[{"role":"system","content":"s"}]"#, "[7,null,{}]"] {
        assert_eq!(session(&format!(r#""model":"m","messages":{none}"#), "", ""), None, "{none}");
    }
}

#[test]
fn r18_nothing_is_inferred_for_who_names_anything_or_does_not_want_it() {
    let body = format!("{{{FIRST}}}");
    let view = ChatView::parse(body.as_bytes(), &BodyPaths::default()).unwrap();
    let asked = std::cell::Cell::new(0);
    let found = |finder: &Finder, name: Option<&'static str>, steer: Option<&'static str>| {
        let mut headers = HeaderMap::new();
        if let Some(name) = name {
            headers.append(name, HeaderValue::from_static("id"));
        }
        if let Some(word) = steer {
            headers.append("x-homing-affinity", HeaderValue::from_static(word));
        }
        let steering = Steering::parse(&headers).unwrap();
        let opening = || {
            asked.set(asked.get() + 1);
            hash(&secret(), view.opening())
        };
        let found = finder.find(&headers, &steering, &view.common, opening).unwrap();
        found.named.map(|named| (matches!(named.kind, Kind::Inferred { .. }), named.mode))
    };
    let group = Finder { group: true, ..finder() };
    let without = Finder { infer: false, ..finder() };
    let parent = "x-homing-parent-session-id";
    assert_eq!(found(&finder(), Some("x-session-id"), None), Some((false, Mode::Hard)));
    assert_eq!(found(&finder(), Some(parent), None), None);
    assert_eq!(found(&group, Some(parent), None), Some((false, Mode::Hard)));
    assert_eq!(found(&without, None, None), None);
    assert_eq!(found(&finder(), None, Some("off")), None);
    assert_eq!(asked.get(), 0, "the body isn't read for nothing");
    assert_eq!(found(&finder(), None, None), Some((true, Mode::Soft)));
    assert_eq!(found(&finder(), None, Some("hard")), Some((true, Mode::Hard)));
    assert_eq!(asked.get(), 2);
}
