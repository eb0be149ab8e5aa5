//! The one edit of a body that an operator asks for by `models.aliases`: another name for the model.

use crate::json::{Members, Raw};
use std::borrow::Cow;

/// The one `model` of a JSON object. `None` where there are two: who takes which of them is anybody's guess.
fn the_model(body: &[u8]) -> Option<Raw<'_>> {
    let mut found = None;
    for member in Members::of(body).ok()? {
        let (name, value) = member.ok()?;
        if name == "model" && found.replace(value).is_some() {
            return None;
        }
    }
    found
}

/// The body with `name` as its model, and every other byte as it was. `None` if it is no JSON object, or its
/// `model` is no string.
#[must_use]
pub fn with_model(body: &[u8], name: &str) -> Option<Vec<u8>> {
    let raw = the_model(body)?.get();
    // A slice of the body itself.
    let start = (raw.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let end = start.checked_add(raw.len())?;
    if !raw.starts_with('"') || body.get(start..end)? != raw.as_bytes() {
        return None;
    }
    let quoted = serde_json::to_string(name).ok()?;
    Some([&body[..start], quoted.as_bytes(), &body[end..]].concat())
}

/// The model that a body names, as far as it is a JSON object that names one.
#[must_use]
pub fn model_of(body: &[u8]) -> Option<String> {
    the_model(body)?.text().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_changes_and_nothing_else() {
        for (body, want) in [
            (r#"{"model":"a"}"#, r#"{"model":"b\"c"}"#),
            (
                " {\n \"x\": {\"model\":\"a\"}, \"model\" :\t\"\\u0061\", \"y\":1.0e3 } \r\n",
                " {\n \"x\": {\"model\":\"a\"}, \"model\" :\t\"b\\\"c\", \"y\":1.0e3 } \r\n",
            ),
        ] {
            let edited = with_model(body.as_bytes(), "b\"c").unwrap();
            assert_eq!(std::str::from_utf8(&edited).unwrap(), want);
            assert_eq!(model_of(&edited).as_deref(), Some("b\"c"));
        }
    }

    #[test]
    fn what_names_no_model_stays() {
        for body in [
            "",
            "{",
            "[]",
            "{}",
            r#"{"model":1}"#,
            r#"{"model":null}"#,
            r#"{"x":{"model":"a"}}"#,
            r#"{"model":"a","m\u006fdel":"z"}"#,
        ] {
            assert_eq!(with_model(body.as_bytes(), "b"), None, "{body}");
            assert_eq!(model_of(body.as_bytes()), None, "{body}");
        }
    }
}
