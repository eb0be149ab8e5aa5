//! What an engine says that an answer cost: the truth that predictions are held against.
//!
//! The one trap: an engine without `--enable-prompt-tokens-details` sends `prompt_tokens_details: null`,
//! and an older one nothing. That is *unknown*, not zero; only a number is a number.

use serde::Deserialize;

/// Tokens of one request, as its engine counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated; 0 where the engine leaves them out (embeddings).
    pub completion_tokens: u64,
    /// How many of the prompt's were in the engine's cache; `None` where it doesn't say.
    pub cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: u64,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// The `usage` of a whole answer, or of one chunk of a streamed one (which has it only in its last, and
/// only if the client asked); `None` where there is none or it is malformed.
#[must_use]
pub fn parse_usage(json: &[u8]) -> Option<Usage> {
    // Most chunks of a stream have none: look for the word before parsing. The word alone proves nothing.
    memchr::memmem::find(json, b"\"usage\"")?;
    let counts = serde_json::from_slice::<Answer>(json).ok()?.usage?;
    Some(Usage {
        prompt_tokens: counts.prompt_tokens,
        completion_tokens: counts.completion_tokens.unwrap_or(0),
        cached_tokens: counts.prompt_tokens_details.and_then(|details| details.cached_tokens),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(details: &str) -> Option<u64> {
        let json =
            format!(r#"{{"id":"x","usage":{{"prompt_tokens":7,"total_tokens":9{details}}}}}"#);
        let usage = parse_usage(json.as_bytes()).unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (7, 0));
        usage.cached_tokens
    }

    #[test]
    fn unknown_is_not_zero() {
        assert_eq!(cached(""), None);
        assert_eq!(cached(r#","prompt_tokens_details":null"#), None);
        assert_eq!(cached(r#","prompt_tokens_details":{}"#), None);
        assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":null}"#), None);
        assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":0,"new":[1]}"#), Some(0));
        assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":6}"#), Some(6));
    }

    #[test]
    fn no_usage_is_none() {
        for json in [
            r#"{"choices":[],"usage":null}"#,
            r#"{"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}]}"#,
            r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#,
            r#"{"usage":{"completion_tokens":1}}"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
            r#"{"usage":{"prompt_tokens":1}"#,
            "[DONE]",
            "",
        ] {
            assert_eq!(parse_usage(json.as_bytes()), None, "{json}");
        }
    }
}
