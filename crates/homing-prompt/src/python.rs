//! How Python prints: `json.dumps` for templates' `tojson`, and `str()` for `{{ value }}`.
//!
//! Both stand here because a prompt must be equal byte for byte, and Rust's printing differs in
//! blanks, in floats, in `True` and `None`. Every step pays fuel: a template can build a value
//! whose text is exponentially longer than itself.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// Deeper values are refused; JSON that a client sends is at most 128 deep (`serde_json`'s own
/// limit).
const DEPTH: usize = 256;

/// The widest indent of `tojson`, in blanks per level; templates use 2 and 4.
const INDENT: usize = 16;

/// `tojson` of Hugging Face's templates: Python's `json.dumps` with `ensure_ascii=False`, nothing
/// escaped for HTML.
///
/// The positional parameters are in Hugging Face's order, which is not plain Jinja's: `tojson(4)`
/// asks for ASCII.
pub(crate) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let ascii = match ensure_ascii {
        Some(v) => v.is_true(),
        None => kwargs.get::<Option<Value>>("ensure_ascii")?.is_some_and(|v| v.is_true()),
    };
    let indent = match indent {
        Some(v) => Some(v),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|v| !v.is_none()) {
        Some(v) => Some(v.as_usize().filter(|n| *n <= INDENT).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("tojson: indent must be 0 to {INDENT}"))
        })?),
        None => None,
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|v| !v.is_none());
    kwargs.assert_all_used()?;
    let (comma, colon) = match separators {
        Some(pair) => {
            let part = |i| pair.get_item_by_index(i).map(|v| v.to_string());
            (part(0)?, part(1)?)
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut json = Json { state, out: String::new(), indent, ascii, sort_keys, comma, colon };
    json.value(value, 0)?;
    Ok(json.out)
}

struct Json<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    indent: Option<usize>,
    ascii: bool,
    sort_keys: bool,
    comma: String,
    colon: String,
}

impl Json<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        step(self.state, depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter()?.checked() {
                    self.state.consume_fuel(1)?;
                    items.push(item?);
                }
                self.block('[', ']', depth, &items, |json, item| json.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = Vec::new();
                for key in value.try_iter()?.checked() {
                    self.state.consume_fuel(1)?;
                    keys.push(key?);
                }
                if self.sort_keys {
                    keys.sort();
                }
                self.block('{', '}', depth, &keys, |json, key| {
                    json.key(key)?;
                    json.out.push_str(&json.colon);
                    json.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: a value of kind {kind} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn block<T>(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.comma);
            }
            self.line(depth + 1)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(width) = self.indent {
            self.state.consume_fuel((width * depth / 64) as u64)?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
        Ok(())
    }

    /// Python writes keys that are not strings as the string of their JSON form.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.string("null"),
            ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.string(&number(key)),
            kind => Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson: a key of kind {kind} has no JSON form"),
            )),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel((text.len() / 64) as u64)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

/// Writes `{{ value }}` as Python's `str(value)` reads; an undefined one is empty.
pub(crate) fn print(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return Ok(out.write_str(text)?);
    }
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::Invalid | ValueKind::Plain => minijinja::escape_formatter(out, state, value),
        _ => {
            let mut text = String::new();
            repr(state, value, 0, &mut text)?;
            Ok(out.write_str(&text)?)
        }
    }
}

/// Jinja's test `iterable`: whether Python's `iter()` takes the value. `None` it doesn't, an
/// undefined one it does.
pub(crate) fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::String
            | ValueKind::Bytes
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Iterable
    )
}

/// Python's `repr` of the values that JSON has.
fn repr(state: &State<'_, '_>, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    step(state, depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            state.consume_fuel((text.len() / 64) as u64)?;
            repr_str(text, out);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(state, &item?, depth + 1, out)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push_str(if i > 0 { ", " } else { "" });
                repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            // Writing to a String cannot fail.
            c if c.is_control() || c == '\u{a0}' => drop(write!(out, "\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Pays for one value and bounds the depth.
fn step(state: &State<'_, '_>, depth: usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested deeper than {DEPTH}"),
        ));
    }
    state.consume_fuel(1)
}

/// A number as both `repr` and `json.dumps` write it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// Python's float: the shortest digits that read back equal (as Rust), scientific from 1e16 and
/// below 1e-4.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;
