//! Which id is a session's, subagents and their groups, and ten thousand ids that mean no good.

use super::super::steering::Steering;
use super::*;
use homing_core::ids::SessionKey;
use homing_wire::request::{BodySession, CommonView};
use http::HeaderValue;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

const OWN: &str = "x-homing-session-id";
const TWIN: &str = "x-dynamo-session-id";
const FOREIGN: &str = "x-session-id";
const PARENT: &str = "x-homing-parent-session-id";
const PARENT_TWIN: &str = "x-dynamo-parent-session-id";
const FOREIGN_PARENT: &str = "x-parent-session-id";

fn finder(group: bool) -> Finder {
    Finder {
        headers: [OWN, TWIN, FOREIGN].map(HeaderName::from_static).to_vec(),
        parents: PARENT_HEADERS.to_vec(),
        mode: Mode::Hard,
        body_mode: Mode::Soft,
        group,
        infer: false,
    }
}

fn secret() -> KeySecret {
    KeySecret::new(&[5; 32])
}

fn map(headers: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_bytes(value).unwrap());
    }
    map
}

/// A body that names this session.
fn body(id: Option<&str>) -> CommonView<'_> {
    CommonView {
        says_stream_options: false,
        model: "m".into(),
        stream: false,
        include_usage: false,
        max_tokens: None,
        n: 1,
        cache_salt: "".into(),
        session: BodySession { id: id.map(Cow::Borrowed), ..BodySession::default() },
    }
}

/// The session of a request, and how many ids were passed over.
fn found(
    finder: &Finder,
    headers: &HeaderMap,
    id: Option<&str>,
) -> Result<(Option<Session>, u32), String> {
    let steering = Steering::parse(headers).unwrap();
    let body = body(id);
    match finder.find(headers, &steering, &body, || None) {
        Ok(found) => Ok((found.named.map(|n| n.session(&secret(), "t", "a")), found.ignored)),
        Err(error) => {
            let error = format!("{error:?}");
            let invalid = r#"code: "invalid_session_id""#;
            assert!(error.contains("status: 400") && error.contains(invalid), "{error}");
            Err(error)
        }
    }
}

fn keyed(finder: &Finder, headers: &[(&'static str, &[u8])], id: Option<&str>) -> Option<Session> {
    found(finder, &map(headers), id).unwrap().0
}

fn session(id: &[u8]) -> SessionKey {
    secret().session("t", "a", id)
}

fn group(id: &[u8]) -> SessionKey {
    secret().group("t", "a", id)
}

#[test]
fn r01_the_mode_is_the_sources_and_r20_the_request_may_say_otherwise() {
    let finder = finder(false);
    let header = keyed(&finder, &[(FOREIGN, b"s")], Some("b")).unwrap();
    let expected = Session { key: session(b"s"), mode: Mode::Hard, last: false, ends_group: None };
    assert_eq!(header, expected);
    let from_body = keyed(&finder, &[(OWN, b"")], Some("b")).unwrap();
    assert_eq!(from_body, Session { key: session(b"b"), mode: Mode::Soft, ..expected });
    let soft = keyed(&finder, &[(OWN, b"s"), ("x-homing-affinity", b"soft")], None).unwrap();
    assert_eq!(soft, Session { mode: Mode::Soft, ..expected });
    let hard = keyed(&finder, &[("x-homing-affinity", b"hard")], Some("s")).unwrap();
    assert_eq!(hard, expected);
    assert_eq!(keyed(&finder, &[(OWN, b"s"), ("x-homing-affinity", b"off")], None), None);
    assert_eq!(keyed(&finder, &[], None), None);
    let wrong = map(&[(OWN, b"s"), (OWN, b"r"), ("x-homing-affinity", b"off")]);
    found(&finder, &wrong, None).unwrap_err();
}

#[test]
fn r18_alone_a_child_is_its_own_session_or_none() {
    let finder = finder(false);
    let child = keyed(&finder, &[(PARENT, b"p"), (OWN, b"c")], None).unwrap();
    assert_eq!((child.key, child.mode), (session(b"c"), Mode::Hard));
    let child = keyed(&finder, &[(PARENT_TWIN, b"p")], Some("c")).unwrap();
    assert_eq!((child.key, child.mode), (session(b"c"), Mode::Soft));
    assert_eq!(keyed(&finder, &[(PARENT, b"p")], None), None);
    assert_eq!(keyed(&finder, &[(PARENT, b"p"), (OWN, b"")], None), None);
}

#[test]
fn r18_in_a_group_all_children_of_one_parent_are_one_session() {
    let finder = finder(true);
    let expected = Session { key: group(b"p"), mode: Mode::Hard, last: false, ends_group: None };
    for headers in [
        &[(PARENT, b"p" as &[u8])][..],
        &[(PARENT_TWIN, b"p")],
        &[(PARENT, b""), (PARENT_TWIN, b"p")],
        &[(PARENT, b"p"), (PARENT, b"p")],
        // Ours comes first, as of the sessions' own headers.
        &[(PARENT_TWIN, b"q"), (PARENT, b"p")],
        &[(PARENT, b"p"), (OWN, b"c1")],
        &[(FOREIGN, b"c2"), (PARENT, b"p")],
    ] {
        assert_eq!(keyed(&finder, headers, None), Some(expected), "{headers:?}");
        assert_eq!(keyed(&finder, headers, Some("c3")), Some(expected), "{headers:?}");
    }
    let other = keyed(&finder, &[(PARENT, b"p2")], None).unwrap();
    let parent = keyed(&finder, &[(OWN, b"p")], None).unwrap();
    assert!(other.key != expected.key && parent.key != expected.key && parent.key != other.key);
    let soft = keyed(&finder, &[(PARENT, b"p"), ("x-homing-affinity", b"soft")], None).unwrap();
    assert_eq!(soft, Session { mode: Mode::Soft, ..expected });
    let off = keyed(&finder, &[(PARENT, b"p"), ("x-homing-affinity", b"off")], None);
    assert_eq!(off, None);
}

#[test]
fn r18_a_parents_id_is_held_to_the_rules_of_ids() {
    let long = [b'x'; 257];
    for finder in [finder(false), finder(true)] {
        for name in [PARENT, PARENT_TWIN] {
            for wrong in [
                &[(name, &long[..])][..],
                &[(name, b"a\tb")],
                &[(name, b"a"), (name, b"b")],
                &[(name, b"a"), (name, b""), (name, b"b")],
            ] {
                let error = found(&finder, &map(wrong), Some("c")).unwrap_err();
                assert!(error.contains(name) && !error.contains("xxxx"), "{error}");
            }
            assert!(keyed(&finder, &[(name, &long[1..]), (OWN, b"c")], None).is_some());
        }
        let bad_child = map(&[(PARENT, b"p"), (OWN, &long)]);
        found(&finder, &bad_child, None).unwrap_err();
    }
    let fits = [b'x'; 4096];
    let foreign = keyed(&finder(true), &[(FOREIGN_PARENT, &fits)], None).unwrap();
    assert_eq!(foreign.key, group(&fits));
    let too_long = map(&[(FOREIGN_PARENT, &[b'x'; 4097])]);
    assert_eq!(found(&finder(true), &too_long, None), Ok((None, 1)), "absent, and counted");
    let of_child = found(&finder(true), &too_long, Some("c")).unwrap().0.unwrap();
    assert_eq!(of_child.key, session(b"c"));
}

#[test]
fn r19_a_parents_last_turn_ends_its_group_and_a_childs_ends_nothing() {
    let last = "x-homing-session-final";
    for grouped in [false, true] {
        let finder = finder(grouped);
        let parent = keyed(&finder, &[(OWN, b"p"), (last, b"true")], None).unwrap();
        let ends = Session {
            key: session(b"p"),
            mode: Mode::Hard,
            last: true,
            ends_group: Some(group(b"p")),
        };
        assert_eq!(parent, ends);
        let twin = keyed(&finder, &[("x-dynamo-session-final", b"1")], Some("p")).unwrap();
        assert_eq!(twin, Session { mode: Mode::Soft, ..ends });
        let goes_on = keyed(&finder, &[(OWN, b"p"), (last, b"false")], None).unwrap();
        assert_eq!((goes_on.last, goes_on.ends_group), (false, None));
    }
    let child = [(PARENT, b"p" as &[u8]), (OWN, b"c"), (last, b"true")];
    let in_group = keyed(&finder(true), &child, None).unwrap();
    // Its own children's group does: it is their parent.
    let expected = (group(b"p"), false, Some(group(b"c")));
    assert_eq!((in_group.key, in_group.last, in_group.ends_group), expected);
    let alone = keyed(&finder(false), &child, None).unwrap();
    assert_eq!((alone.last, alone.ends_group), (true, Some(group(b"c"))));
}

/// What ids that mean no good are made of.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let base = prop_oneof![Just("sess-abc"), Just("0"), Just("null"), Just("../../etc/passwd")];
    let look_alike = (base, 0usize..14).prop_map(|(id, how)| {
        match how {
            0 => format!("{id} "),
            1 => format!(" {id}"),
            2 => format!("{id}\t"),
            3 => id.to_uppercase(),
            4 => id.replace('s', "\u{455}"),
            5 => id.replace('-', "\u{2010}"),
            6 => format!("{id}\u{200b}"),
            7 => format!("{id}\u{301}"),
            8 => id.replace('s', "%73"),
            9 => format!("{id}%00"),
            10 => format!("\"{id}\""),
            11 => format!("{id},{id}"),
            12 => format!("group/1{id}"),
            _ => id.to_owned(),
        }
        .into_bytes()
    });
    let near = |n: usize| n - 2..n + 3;
    prop_oneof![
        4 => look_alike,
        1 => Just(Vec::new()),
        2 => proptest::collection::vec(any::<u8>(), 0..6),
        2 => proptest::collection::vec(prop_oneof![0u8..33, 127u8..162], 1..4),
        2 => (near(256), any::<u8>()).prop_map(|(n, byte)| vec![byte; n]),
        1 => (near(4096), any::<u8>()).prop_map(|(n, byte)| vec![byte; n]),
        1 => (20_000usize..70_000).prop_map(|n| vec![b'h'; n]),
        2 => "\\PC{1,6}".prop_map(String::into_bytes),
    ]
}

#[test]
fn r01_ten_thousand_hostile_ids_are_400_absent_or_sessions() {
    let (mut runner, finder) = (TestRunner::new(Config::with_cases(10_000)), finder(true));
    // Every session that was seen: one key an id, and one id a key.
    let ids: RefCell<BTreeMap<SessionKey, Vec<u8>>> = RefCell::default();
    let counts = RefCell::new([0u32; 4]);
    let is = |id: &[u8], key: SessionKey| {
        let mut ids = ids.borrow_mut();
        ids.entry(key).or_insert_with(|| id.to_vec()) == id && key == session(id)
    };
    let both = (hostile(), hostile());
    let outcome = runner.run(&both, |(id, other)| {
        let Ok(value) = HeaderValue::from_bytes(&id) else {
            // No HTTP server takes these: they can only come in a body.
            counts.borrow_mut()[0] += 1;
            prop_assert!(id.iter().any(|b| *b == 127 || (*b < 32 && *b != b'\t')));
            return Ok(());
        };
        let headers = |name: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), value.clone())])
        };
        for name in [OWN, TWIN, PARENT, PARENT_TWIN] {
            let parent = name == PARENT || name == PARENT_TWIN;
            let mut headers = headers(name);
            let result = found(&finder, &headers, None);
            if id.is_empty() {
                prop_assert_eq!(result, Ok((None, 0)));
            } else if id.len() > 256 || id.contains(&b'\t') {
                let error = result.unwrap_err();
                prop_assert!(error.contains(name));
                counts.borrow_mut()[1] += 1;
            } else {
                let key = result.unwrap().0.unwrap().key;
                let right = if parent { key == group(&id) } else { is(&id, key) };
                prop_assert!(right);
                counts.borrow_mut()[2] += 1;
            }
            if let Ok(other_value) = HeaderValue::from_bytes(&other) {
                // Twice: one value where they are equal or one is empty, else a contradiction.
                headers.append(name, other_value);
                let twice = found(&finder, &headers, None);
                if id != other && !id.is_empty() && !other.is_empty() {
                    prop_assert!(twice.is_err());
                    let absent =
                        id.len() < 20 || !twice.unwrap_err().contains("hhhhhhhhhhhhhhhhhhhh");
                    prop_assert!(absent, "an id is not echoed");
                }
            }
        }
        let result = found(&finder, &headers(FOREIGN), None).unwrap();
        match id.len() {
            0 => prop_assert_eq!(result, (None, 0)),
            4097.. => prop_assert_eq!(result, (None, 1)),
            _ => prop_assert!(is(&id, result.0.unwrap().key)),
        }
        if let Ok(text) = std::str::from_utf8(&id) {
            let result = found(&finder, &HeaderMap::new(), Some(text)).unwrap().0;
            prop_assert!(is(&id, result.unwrap().key));
            counts.borrow_mut()[3] += 1;
        }
        Ok(())
    });
    outcome.unwrap();
    let counts = counts.into_inner();
    assert!(counts.iter().all(|n| *n > 300), "each kind was there: {counts:?}");
}
