//! The walk against `serde_json`, and what is handed out of it.

use super::scan::Scanner;
use super::*;
use proptest::prelude::*;
use serde_json::value::RawValue;

/// Both take it, or none does; and what they make of it is the same.
#[track_caller]
fn agree(json: &[u8]) {
    let theirs = serde_json::from_slice::<&RawValue>(json).ok().map(RawValue::get);
    let ours = Raw::parse(json).ok().map(Raw::get);
    assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(json));
}

#[test]
fn what_is_json_and_what_is_not() {
    for json in [
        "",
        " ",
        "1",
        " 1 ",
        "01",
        "-",
        "-0",
        "-01",
        "1.",
        "1.0",
        ".5",
        "1e",
        "1e5",
        "1E+5",
        "1e-",
        "1e-07",
        "+1",
        "0x1",
        "1_0",
        "1e999",
        "--1",
        "nul",
        "null",
        "nulll",
        "true",
        "tru",
        "True",
        "false",
        "NaN",
        "Infinity",
        "\"",
        "\"\"",
        "\"a",
        "\"\\\"",
        "\"\\\"\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12G4\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\n\"",
        "\"\t\"",
        "\"\u{7f}\"",
        "\"ü\u{10ffff}\"",
        "[",
        "]",
        "[]",
        "[ ]",
        "[1]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1,2]",
        "[[],[]]",
        "[}",
        "{",
        "}",
        "{}",
        "{ }",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" : 1 , \"b\":[{}]}",
        "{\"a\":1]",
        "[{\"a\":[1,{\"b\":null}]}]",
        "{\"a\":1 \"b\":2}",
        "{1:2}",
        "{\"\\ud800\":1}",
        "1 2",
        "[] []",
        "{}x",
        "\u{feff}1",
        "\"a\" \r\n\t",
        "[1\u{a0}]",
        "// 1",
        "[1,/**/2]",
    ] {
        agree(json.as_bytes());
    }
    agree(b"\"\xff\"");
    agree(b"\"\xed\xa0\x80\"");
}

#[test]
fn nesting_costs_no_stack_and_brackets_must_match_at_any_depth() {
    for depth in [1, 63, 64, 65, 127, 128, 129, 1_000, 100_000] {
        let opens: String = (0..depth).map(|i| if i % 3 == 0 { "{\"k\":" } else { "[" }).collect();
        let closes: String = (0..depth).rev().map(|i| if i % 3 == 0 { '}' } else { ']' }).collect();
        agree(format!("{opens}1{closes}").as_bytes());
        agree(format!("{opens}1{}", &closes[1..]).as_bytes());
        agree(format!("{opens}1{closes}]").as_bytes());
        let wrong = closes.replacen(']', "}", 1);
        agree(format!("{opens}1{wrong}").as_bytes());
    }
}

#[test]
fn a_text_ends_where_it_ends_however_long_it_is_and_wherever_it_lies() {
    for before in 0..9 {
        for length in 0..200 {
            for end in ["\"", "\\n\"", "\\u00e9\"", "\u{1}\"", "\\\"", "\\q\"", "ü\"", ""] {
                agree(format!("{}\"{}{end}", " ".repeat(before), "x".repeat(length)).as_bytes());
            }
        }
    }
}

#[test]
fn members_come_in_order_and_names_are_read() {
    let raw = Raw::parse(br#" {"a" : 1, "m\u006f" :[ 1 ,2],"a":{"b" :null} } "#).unwrap();
    let members: Vec<_> = raw.members().map(|(name, value)| (name, value.get())).collect();
    assert_eq!(
        members,
        [("a".into(), "1"), ("mo".into(), "[ 1 ,2]"), ("a".into(), "{\"b\" :null}")]
    );
    assert!(matches!(&members[0].0, Cow::Borrowed(_)));
    assert_eq!(raw.member("a").map(Raw::get), Some("{\"b\" :null}"), "the last counts");
    assert_eq!(raw.member("b"), None);
    assert_eq!(
        raw.pick(["mo", "c", "a"]).map(|v| v.map(Raw::get)),
        [Some("[ 1 ,2]"), None, Some("{\"b\" :null}")]
    );
    let items: Vec<_> = raw.member("mo").unwrap().items().map(Raw::get).collect();
    assert_eq!(items, ["1", "2"]);
    for other in ["[]", "[ ]", "{}", "{ }", "1", "\"{\"", "null", "[[]]"] {
        let raw = Raw::parse(other.as_bytes()).unwrap();
        assert_eq!(
            (raw.members().count(), raw.items().count()),
            (0, usize::from(other == "[[]]")),
            "{other}"
        );
    }
}

#[test]
fn a_text_is_borrowed_unless_it_has_escapes() {
    let text = |json: &'static str| Raw::parse(json.as_bytes()).unwrap().text();
    assert!(matches!(text("\"aü\""), Some(Cow::Borrowed("aü"))));
    assert_eq!(text(r#""a\n\ud83d\ude00""#).as_deref(), Some("a\n😀"));
    for none in ["1", "[\"a\"]", "null", r#""\ud800""#] {
        assert_eq!(text(none), None, "{none}");
    }
}

#[test]
fn an_object_is_json_when_its_last_member_has_come() {
    for (json, whole) in
        [("{\"a\":1}", true), ("{\"a\":1} x", false), ("{\"a\":1", false), ("{\"a\":1,}", false)]
    {
        let members: Vec<_> = Members::of(json.as_bytes()).unwrap().collect();
        assert_eq!(members[0], Ok(("a".into(), Raw("1"))));
        assert_eq!(members[1..].iter().all(Result::is_ok), whole, "{json}");
        assert_eq!(members.len(), if whole { 1 } else { 2 }, "nothing follows an error: {json}");
    }
    for none in ["", "[]", "1", "\"{}\""] {
        assert!(Members::of(none.as_bytes()).is_err(), "{none}");
    }
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,80}".prop_map(Value::from),
        "[\\x00-\\x7f]{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("\\PC{0,12}", inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whole_values_are_taken_and_cut_or_changed_ones_judged_alike(
        value in values(),
        pretty: bool,
        at: prop::sample::Index,
        byte: u8,
    ) {
        let json = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
        let mut json = json.unwrap();
        prop_assert_eq!(Raw::parse(&json).map(Raw::get), Ok(std::str::from_utf8(&json).unwrap()));
        let at = at.index(json.len());
        agree(&json[..at]);
        json[at] = byte;
        agree(&json);
        json.insert(at, b"\"\\{}[],:0 "[byte as usize % 10]);
        agree(&json);
    }

    #[test]
    fn any_bytes_are_judged_alike(json in "[\\[\\]{}\":,\\\\0-2a-eu.tnl\\- ]{0,24}") {
        agree(json.as_bytes());
    }

    #[test]
    fn what_is_handed_out_is_what_it_says(value in values()) {
        let json = value.to_string();
        let raw = Raw::parse(json.as_bytes()).unwrap();
        let read = |raw: Raw<'_>| serde_json::from_str::<serde_json::Value>(raw.get()).unwrap();
        match &value {
            serde_json::Value::Object(object) => {
                let members: Vec<_> = raw.members().map(|(k, v)| (k.into_owned(), read(v))).collect();
                let want: Vec<_> = object.iter().map(|(k, v)| (k.clone(), read_again(v))).collect();
                prop_assert_eq!(members, want);
            }
            serde_json::Value::Array(list) => {
                let want: Vec<_> = list.iter().map(read_again).collect();
                prop_assert_eq!(raw.items().map(read).collect::<Vec<_>>(), want);
            }
            serde_json::Value::String(text) => prop_assert_eq!(raw.text(), Some(text.into())),
            _ => prop_assert_eq!(raw.members().count() + raw.items().count(), 0),
        }
    }
}

/// As it comes out of its own writing: not every number is the same to the last bit.
fn read_again(value: &serde_json::Value) -> serde_json::Value {
    serde_json::from_str(&value.to_string()).unwrap()
}

#[test]
fn a_scanner_takes_only_what_is_asked_for() {
    let mut scanner = Scanner::new(" [ 1");
    assert!(!scanner.takes(b'{') && scanner.takes(b'['));
    assert_eq!(scanner.value(), Ok("1"));
    assert!(scanner.expect(b']').is_err() && scanner.end().is_ok());
}
