//! Printing, against values that Python 3.11 gave.

use minijinja::Environment;

use super::*;

fn eval(expression: &str) -> Result<String, Error> {
    let mut env = Environment::new();
    env.set_formatter(print);
    env.set_fuel(Some(100_000));
    env.add_filter("tojson", tojson);
    env.render_str(
        &format!("{{{{ {expression} }}}}"),
        minijinja::context! {
            b => (1, 2.5, 1e16, 1e-5, 0.0001, -0.0, 123_456_789_012_345.0, (), true),
            a => "\"\\\n\r\t\u{8}\u{c}\u{1}<é&'👩\u{7f}",
            inf => f64::NEG_INFINITY, nan => f64::NAN,
        },
    )
}

#[test]
fn tojson_is_json_dumps() {
    let numbers = "[1, 2.5, 1e+16, 1e-05, 0.0001, -0.0, 123456789012345.0, null, true]";
    let text = "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001<é&'👩\u{7f}\"";
    let ascii = "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001<\\u00e9&'\\ud83d\\udc69\u{7f}\"";
    assert_eq!(eval("b | tojson").unwrap(), numbers);
    assert_eq!(eval("a | tojson").unwrap(), text);
    assert_eq!(eval("a | tojson(true)").unwrap(), ascii);
    assert_eq!(eval("a | tojson(ensure_ascii=true)").unwrap(), ascii);
    assert_eq!(eval("[inf, nan] | tojson").unwrap(), "[-Infinity, NaN]");
    assert_eq!(
        eval("{'b': [1, {}], 'a': []} | tojson(indent=2)").unwrap(),
        "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}"
    );
    assert_eq!(
        eval("{'b': [1, 2], 'a': none} | tojson(sort_keys=true, separators=(',', ':'))").unwrap(),
        r#"{"a":null,"b":[1,2]}"#
    );
    assert_eq!(
        eval("{3: 2, true: 3, none: 4} | tojson").unwrap(),
        r#"{"3": 2, "true": 3, "null": 4}"#
    );
    for wrong in ["missing | tojson", "1 | tojson(indent='x')", "1 | tojson(other=1)"] {
        assert!(eval(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn values_print_as_str() {
    assert_eq!(eval("none").unwrap(), "None");
    assert_eq!(eval("'a\"b'").unwrap(), "a\"b");
    assert_eq!(eval("1 == 1").unwrap(), "True");
    assert_eq!(
        eval("[0.5, 3.0, 'a', \"b'\", {'k': none}, (1,), []]").unwrap(),
        "[0.5, 3.0, 'a', \"b'\", {'k': None}, (1,), []]"
    );
    assert_eq!(eval("[a]").unwrap(), "['\"\\\\\\n\\r\\t\\x08\\x0c\\x01<é&\\'👩\\x7f']");
    assert_eq!(eval("missing").unwrap(), "");
}

#[test]
fn iterable_is_pythons() {
    let mut env = Environment::new();
    env.add_test("iterable", is_iterable);
    for (expression, expected) in [
        ("none", "False"),
        ("1", "False"),
        ("missing", "True"),
        ("'s'", "True"),
        ("[]", "True"),
        ("{}", "True"),
        ("range(3)", "True"),
        ("true", "False"),
    ] {
        let text = env.render_str(&format!("{{{{ {expression} is iterable }}}}"), ()).unwrap();
        assert_eq!(text, expected, "{expression}");
    }
}
