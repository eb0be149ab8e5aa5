//! What an engine says that an answer cost: the truth that predictions are held against.
//!
//! Three APIs spell it in three ways, and mean two: Anthropic's `input_tokens` are those that were not reused,
//! everybody else's are all. The one trap they share: an engine without `--enable-prompt-tokens-details` sends no
//! number of cached tokens, or null. That is *unknown*, not zero; only a number is a number.

use crate::errors::ApiShape;
use crate::json::{Members, Raw};
use crate::sse::SseEvent;
use memchr::memmem::{Finder, FinderRev};
use serde::Deserialize;
use std::sync::LazyLock;

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
struct ChatCounts {
    prompt_tokens: u64,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct ResponsesCounts {
    input_tokens: u64,
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Of a stream each event may tell some of it: what comes later counts.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct AnthropicCounts {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

impl AnthropicCounts {
    fn then(self, later: Self) -> Self {
        Self {
            input_tokens: later.input_tokens.or(self.input_tokens),
            output_tokens: later.output_tokens.or(self.output_tokens),
            cache_read_input_tokens: later.cache_read_input_tokens.or(self.cache_read_input_tokens),
            cache_creation_input_tokens: later
                .cache_creation_input_tokens
                .or(self.cache_creation_input_tokens),
        }
    }

    fn usage(self) -> Option<Usage> {
        let parts = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let reused_or_kept = parts.into_iter().flatten().fold(0, u64::saturating_add);
        Some(Usage {
            prompt_tokens: self.input_tokens?.saturating_add(reused_or_kept),
            completion_tokens: self.output_tokens.unwrap_or(0),
            cached_tokens: self.cache_read_input_tokens,
        })
    }
}

/// The `usage` of a whole answer, or of that event of a stream which has all of it: a chat's last chunk (only if
/// the client asked), `response.completed`. `None` where there is none or it is malformed.
#[must_use]
pub fn parse_usage(shape: ApiShape, json: &[u8]) -> Option<Usage> {
    // Most chunks of a stream have none: look for the word before parsing. The word alone proves nothing.
    WORD.find(json)?;
    match shape {
        ApiShape::OpenAi => {
            let counts: ChatCounts = read(own(json)?)?;
            Some(Usage {
                prompt_tokens: counts.prompt_tokens,
                completion_tokens: counts.completion_tokens.unwrap_or(0),
                cached_tokens: counts.prompt_tokens_details.and_then(|d| d.cached_tokens),
            })
        }
        ApiShape::Responses => {
            let counts: ResponsesCounts = read(said(json, "response")?)?;
            Some(Usage {
                prompt_tokens: counts.input_tokens,
                completion_tokens: counts.output_tokens.unwrap_or(0),
                cached_tokens: counts.input_tokens_details.and_then(|d| d.cached_tokens),
            })
        }
        ApiShape::Anthropic => anthropic(json)?.usage(),
    }
}

fn anthropic(json: &[u8]) -> Option<AnthropicCounts> {
    // In the first event it is the message's.
    read(said(json, "message")?)
}

/// The usage of an answer, or of an event that has one or its usage inside, in a member of this name.
fn said<'a>(json: &'a [u8], inside: &str) -> Option<Raw<'a>> {
    let own = own(json).filter(|usage| usage.get() != "null");
    own.or_else(|| {
        let [inner] = Members::of(json).ok()?.pick([inside]).ok()?;
        inner?.member("usage")
    })
}

/// How a usage begins.
const NAME: &[u8] = b"\"usage\"";
static WORD: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(NAME));
static LAST_WORD: LazyLock<FinderRev<'_>> = LazyLock::new(|| FinderRev::new(NAME));
/// So many places are tried from the end; then an answer is read from its beginning.
const TRIES: usize = 3;

/// The last usage of the object itself.
///
/// It is looked for from the end, where engines put it, so that the answer before it need not be walked. In JSON a
/// quote that no backslash escapes begins a text or ends one, and nothing but a comma, a colon or a bracket stands
/// behind one that ends: so the word in its quotes is a text. And if all behind it is members, and then one bracket and
/// the end, it is the name of a member of the outermost object.
fn own(json: &[u8]) -> Option<Raw<'_>> {
    let mut before = json;
    for _ in 0..TRIES {
        let at = LAST_WORD.rfind(before)?;
        let (earlier, rest) = json.split_at(at);
        if earlier.last() != Some(&b'\\')
            && let Ok([usage]) = Members::within(rest).and_then(|members| members.pick(["usage"]))
        {
            return usage;
        }
        before = earlier;
    }
    let [usage] = Members::of(json).ok()?.pick(["usage"]).ok()?;
    usage
}

fn read<'a, C: Deserialize<'a>>(counts: Raw<'a>) -> Option<C> {
    serde_json::from_str(counts.get()).ok()?
}

/// The usage of a stream, which is followed along.
#[derive(Clone, Copy, Debug)]
pub struct StreamUsage {
    shape: ApiShape,
    anthropic: AnthropicCounts,
    /// Something came that a token may stand behind.
    begun: bool,
}

/// How a Responses stream begins, before its prompt is even looked at.
const PRELUDE: [&[u8]; 3] = [b"response.created", b"response.in_progress", b"response.queued"];

impl StreamUsage {
    /// Of a stream that begins.
    #[must_use]
    pub fn new(shape: ApiShape) -> Self {
        Self { shape, anthropic: AnthropicCounts::default(), begun: shape != ApiShape::Responses }
    }

    /// Whether a token may have come by now: a Responses stream tells first that it was created.
    #[must_use]
    pub fn tokens_begun(&self) -> bool {
        self.begun
    }

    /// One of its events. Only Anthropic's streams tell their usage in pieces; of others the last event is enough.
    pub fn see(&mut self, event: SseEvent<'_>) {
        if let SseEvent::Data { name, data } = event
            && !self.begun
        {
            let kind = if name.is_empty() { data } else { name };
            let mut prelude = PRELUDE.into_iter();
            self.begun = !prelude.any(|word| memchr::memmem::find(kind, word).is_some());
        }
        if self.shape != ApiShape::Anthropic {
            return;
        }
        let SseEvent::Data { name: b"message_start" | b"message_delta" | b"", data } = event else {
            return;
        };
        if WORD.find(data).is_some()
            && let Some(later) = anthropic(data)
        {
            self.anthropic = self.anthropic.then(later);
        }
    }

    /// What it was, at the stream's end; `last` is the data of its last event.
    #[must_use]
    pub fn at_end(&self, last: &[u8]) -> Option<Usage> {
        match self.shape {
            ApiShape::OpenAi | ApiShape::Responses => parse_usage(self.shape, last),
            ApiShape::Anthropic => self.anthropic.usage(),
        }
    }
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
