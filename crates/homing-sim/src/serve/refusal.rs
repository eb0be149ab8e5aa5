//! What is wrong with a request, in the status and the JSON shape that vLLM gives it.

use crate::engine::SubmitError;
use homing_prompt::PromptError;
use http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;

/// A request that is not served.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    message: String,
    param: Option<&'static str>,
}

impl Refusal {
    /// 400: the client's fault, in the member `param` of its body.
    pub(super) fn bad(param: impl Into<Option<&'static str>>, message: impl Into<String>) -> Self {
        let (param, message) = (param.into(), message.into());
        Self { status: StatusCode::BAD_REQUEST, message, param }
    }

    /// 404 for a model that is not served here.
    pub(super) fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("the model `{asked}` does not exist; this engine serves `{served}`");
        Self { status: StatusCode::NOT_FOUND, message, param: Some("model") }
    }

    /// 503: as many requests inside as may be.
    pub(super) fn busy(limit: usize) -> Self {
        let message = format!("{limit} requests run or wait already; try again later");
        Self { status: StatusCode::SERVICE_UNAVAILABLE, message, param: None }
    }

    /// 413.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, message, param: None }
    }

    /// 408.
    pub(super) fn too_slow(limit: Duration) -> Self {
        let message = format!("the body took longer than {} s", limit.as_secs());
        Self { status: StatusCode::REQUEST_TIMEOUT, message, param: None }
    }

    /// 500: the engine stopped in the middle.
    pub(super) fn broken(message: impl Into<String>) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self { status, message: message.into(), param: None }
    }

    /// The error's body, in OpenAI's shape or in Anthropic's.
    pub(super) fn body(&self, anthropic: bool) -> Value {
        let kind = match self.status {
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
            _ => "BadRequestError",
        };
        if anthropic {
            return json!({"type": "error", "error": {"type": kind, "message": self.message}});
        }
        let code = self.status.as_u16();
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl From<PromptError> for Refusal {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Tokenizer(_) | PromptError::NoTemplate => Self::broken(error.to_string()),
            _ => Self::bad(None, error.to_string()),
        }
    }
}

impl From<SubmitError> for Refusal {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { inside } => Self::busy(inside),
            SubmitError::TooLong { prompt, limit } => Self::bad(
                "input_tokens",
                format!(
                    "the maximum context length is {limit} tokens, and the prompt has {prompt}"
                ),
            ),
            SubmitError::EmptyPrompt => Self::bad("prompt", error.to_string()),
            SubmitError::EmptyOutput => Self::bad("max_tokens", error.to_string()),
        }
    }
}
