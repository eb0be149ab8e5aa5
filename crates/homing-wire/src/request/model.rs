//! The one edit of a body that an operator asks for by `models.aliases`: another name for the model.

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Where the one `model` of a JSON object lies.
struct Model<'a>(Option<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Model<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Model<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found: Option<&RawValue> = None;
                while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    if key == "model" {
                        // Who takes which of two is anybody's guess.
                        if found.replace(map.next_value()?).is_some() {
                            return Err(serde::de::Error::duplicate_field("model"));
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Model(found))
            }
        }
        d.deserialize_map(Fields)
    }
}

/// The body with `name` as its model, and every other byte as it was. `None` if it is no JSON object, or its
/// `model` is no string.
#[must_use]
pub fn with_model(body: &[u8], name: &str) -> Option<Vec<u8>> {
    let Model(found) = serde_json::from_slice(body).ok()?;
    let raw = found?.get();
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
    let Model(found) = serde_json::from_slice(body).ok()?;
    serde_json::from_str(found?.get()).ok()
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
