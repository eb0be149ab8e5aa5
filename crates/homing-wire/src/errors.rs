//! What a client reads when the answer is ours and not a worker's.
//!
//! The shapes are the APIs' own: OpenAI's `{"error": {"message", "type", "code", "param"}}`, and
//! Anthropic's `{"type": "error", "error": {"type", "message"}}`. In a stream that breaks after it
//! began, the same body goes out as an event; no `[DONE]` follows, since the answer is not done.

use serde::Serialize;

/// Whose API a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiShape {
    /// `/v1/chat/completions`, `/v1/completions` and their kin.
    #[default]
    OpenAi,
    /// `/v1/messages`.
    Anthropic,
}

/// One error, before it has a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiError<'a> {
    /// The class, such as `invalid_request_error`.
    pub kind: &'a str,
    /// For a person: what was wrong, where, and what to do.
    pub message: &'a str,
    /// For a program, such as `model_not_found`.
    pub code: &'a str,
    /// The field of the request that is to blame, if one is.
    pub param: Option<&'a str>,
}

#[derive(Serialize)]
struct OpenAiBody<'a> {
    error: OpenAiError<'a>,
}

#[derive(Serialize)]
struct OpenAiError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    param: Option<&'a str>,
}

#[derive(Serialize)]
struct AnthropicBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicError<'a>,
}

#[derive(Serialize)]
struct AnthropicError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

/// The body of an answer with an error status: JSON.
#[must_use]
pub fn error_body(shape: ApiShape, error: &ApiError<'_>) -> Vec<u8> {
    let ApiError { kind, message, code, param } = *error;
    let body = match shape {
        ApiShape::OpenAi => {
            serde_json::to_vec(&OpenAiBody { error: OpenAiError { message, kind, code, param } })
        }
        ApiShape::Anthropic => serde_json::to_vec(&AnthropicBody {
            kind: "error",
            error: AnthropicError { kind, message },
        }),
    };
    // Writing texts into memory has no way to fail; an empty body would still carry its status.
    body.unwrap_or_default()
}

/// The last event of a stream that can't go on.
///
/// It must follow a whole event: what a worker's cut left unfinished may not be completed by it
/// ([`crate::sse::SseScanner::feed`] says how far that is).
#[must_use]
pub fn error_event(shape: ApiShape, error: &ApiError<'_>) -> Vec<u8> {
    let head: &[u8] = match shape {
        ApiShape::OpenAi => b"data: ",
        ApiShape::Anthropic => b"event: error\ndata: ",
    };
    [head, &error_body(shape, error), b"\n\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{SseEvent, SseScanner};
    use serde_json::{Value, json};

    const ERROR: ApiError<'_> = ApiError {
        kind: "invalid_request_error",
        message: "no \"model\"\nin \\ the \u{1} body: \u{2028}é",
        code: "invalid_request",
        param: Some("model"),
    };

    #[test]
    fn the_openai_shape_has_its_four_fields_and_survives_any_text() {
        let body = error_body(ApiShape::OpenAi, &ERROR);
        let expected = json!({"error": {"message": ERROR.message, "type": ERROR.kind,
            "code": ERROR.code, "param": "model"}});
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
        let without = error_body(ApiShape::OpenAi, &ApiError { param: None, ..ERROR });
        assert!(without.ends_with(br#""code":"invalid_request","param":null}}"#));
    }

    #[test]
    fn the_anthropic_shape_says_error_twice() {
        let body = error_body(ApiShape::Anthropic, &ERROR);
        let expected =
            json!({"type": "error", "error": {"type": ERROR.kind, "message": ERROR.message}});
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn an_error_event_is_one_event_whatever_the_message() {
        for (shape, name) in [(ApiShape::OpenAi, ""), (ApiShape::Anthropic, "error")] {
            let mut seen = Vec::new();
            let bytes = error_event(shape, &ERROR);
            let whole = SseScanner::default().feed(&bytes, |event| {
                if let SseEvent::Data { name, data } = event {
                    seen.push((name.to_vec(), data.to_vec()));
                }
            });
            assert_eq!(seen, [(name.as_bytes().to_vec(), error_body(shape, &ERROR))]);
            assert_eq!(whole, bytes.len());
        }
    }
}
