//! What a client reads when the answer is ours and not a worker's.
//!
//! The shapes are the APIs' own: OpenAI's `{"error": {"message", "type", "code", "param"}}`, and
//! Anthropic's `{"type": "error", "error": {"type", "message"}}`. In a stream that breaks after it
//! began, the same body goes out as an event, but for the Responses API, whose error event has a shape of
//! its own; nothing that ends a stream follows, since the answer is not done.

use serde::Serialize;

/// Whose API a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiShape {
    /// `/v1/chat/completions`, `/v1/completions` and their kin.
    #[default]
    OpenAi,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Anthropic,
}

/// One error, before it has a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiError<'a> {
    /// The HTTP status that it has, or that it would have had; Anthropic's classes go by it.
    pub status: u16,
    /// The class in OpenAI's words, such as `invalid_request_error`.
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

/// OpenAI's `ResponseErrorEvent`.
#[derive(Serialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    code: &'a str,
    message: &'a str,
    param: Option<&'a str>,
    sequence_number: u64,
}

/// The class of an error in Anthropic's words, by its status.
const fn anthropic_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

/// The body of an answer with an error status: JSON.
#[must_use]
pub fn error_body(shape: ApiShape, error: &ApiError<'_>) -> Vec<u8> {
    let ApiError { status, kind, message, code, param } = *error;
    let body = match shape {
        ApiShape::OpenAi | ApiShape::Responses => {
            serde_json::to_vec(&OpenAiBody { error: OpenAiError { message, kind, code, param } })
        }
        ApiShape::Anthropic => serde_json::to_vec(&AnthropicBody {
            kind: "error",
            error: AnthropicError { kind: anthropic_kind(status), message },
        }),
    };
    // Writing texts into memory has no way to fail; an empty body would still carry its status.
    body.unwrap_or_default()
}

/// The last event of a stream that can't go on, behind `earlier` events with data.
///
/// It must follow a whole event: what a worker's cut left unfinished may not be completed by it
/// ([`crate::sse::SseScanner::feed`] says how far that is).
#[must_use]
pub fn error_event(shape: ApiShape, error: &ApiError<'_>, earlier: u64) -> Vec<u8> {
    let head: &[u8] = match shape {
        ApiShape::OpenAi => b"data: ",
        ApiShape::Responses | ApiShape::Anthropic => b"event: error\ndata: ",
    };
    let ApiError { message, code, param, .. } = *error;
    let data = match shape {
        ApiShape::OpenAi | ApiShape::Anthropic => error_body(shape, error),
        // Counted from 0, an event each.
        ApiShape::Responses => {
            let (kind, sequence_number) = ("error", earlier);
            let event = ResponsesEvent { kind, code, message, param, sequence_number };
            serde_json::to_vec(&event).unwrap_or_default()
        }
    };
    [head, &data, b"\n\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{SseEvent, SseScanner};
    use serde_json::{Value, json};

    const ERROR: ApiError<'_> = ApiError {
        status: 404,
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
        let expected = json!({"type": "error", "error": {"type": "not_found_error", "message": ERROR.message}});
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn anthropics_classes_go_by_the_status() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (405, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
        ] {
            let body = error_body(ApiShape::Anthropic, &ApiError { status, ..ERROR });
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["error"]["type"], kind, "{status}");
        }
    }

    #[test]
    fn the_responses_api_has_an_event_of_its_own() {
        let event = error_event(ApiShape::Responses, &ERROR, 7);
        let data = event.strip_prefix(b"event: error\ndata: ").unwrap();
        let expected = json!({"type": "error", "code": ERROR.code, "message": ERROR.message,
            "param": "model", "sequence_number": 7});
        assert_eq!(serde_json::from_slice::<Value>(data).unwrap(), expected);
        assert_eq!(error_body(ApiShape::Responses, &ERROR), error_body(ApiShape::OpenAi, &ERROR));
    }

    #[test]
    fn an_error_event_is_one_event_whatever_the_message() {
        for (shape, name) in [(ApiShape::OpenAi, ""), (ApiShape::Anthropic, "error")] {
            let mut seen = Vec::new();
            let bytes = error_event(shape, &ERROR, 3);
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
