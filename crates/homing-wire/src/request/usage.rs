//! The one edit of a body that is ever made, and only where the configuration says so: a stream is asked
//! for its usage. Everything else stays byte for byte.

/// What is added.
const OPTION: &[u8] = br#""stream_options":{"include_usage":true}"#;

/// The body with one more field at its end, where its absence was seen (or null: of a repeated key the last
/// counts). `None` if it doesn't end as a JSON object with at least one field does.
#[must_use]
pub fn with_usage(body: &[u8]) -> Option<Vec<u8>> {
    let end = body.trim_ascii_end().len().checked_sub(1)?;
    let (front, close) = (body.get(..end)?, body.get(end..)?);
    let last = *front.trim_ascii_end().last()?;
    if !close.starts_with(b"}") || matches!(last, b'{' | b',') {
        return None;
    }
    Some([front, b",", OPTION, close].concat())
}

#[cfg(test)]
mod tests {
    use super::super::{BodyPaths, CommonView};
    use super::*;

    #[test]
    fn a_stream_is_asked_for_its_usage_and_nothing_else_changes() {
        for (body, want) in [
            ("{\"model\":\"m\"}", "{\"model\":\"m\",\"stream_options\":{\"include_usage\":true}}"),
            (
                " {\"model\" : \"m\", \"x\": [1, {}]\n}\r\n ",
                " {\"model\" : \"m\", \"x\": [1, {}]\n,\"stream_options\":{\"include_usage\":true}}\r\n ",
            ),
            (
                "{\"stream_options\":null,\"model\":\"m\"}",
                "{\"stream_options\":null,\"model\":\"m\",\"stream_options\":{\"include_usage\":true}}",
            ),
        ] {
            let paths = BodyPaths::default();
            let before = CommonView::parse(body.as_bytes(), &paths).unwrap();
            assert!(!before.says_stream_options && !before.include_usage);
            let edited = with_usage(body.as_bytes()).unwrap();
            assert_eq!(std::str::from_utf8(&edited).unwrap(), want);
            let after = CommonView::parse(&edited, &paths).unwrap();
            assert!(after.says_stream_options && after.include_usage);
        }
    }

    #[test]
    fn what_is_no_object_with_fields_stays() {
        for body in ["", " ", "}", "{}", "{ }", "[1]", "{\"a\":1,}"] {
            assert_eq!(with_usage(body.as_bytes()), None, "{body}");
        }
    }
}
