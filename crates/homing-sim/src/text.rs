//! Readable filler: text of a wanted length *in tokens*, and the replies of a model that has none.
//!
//! The trick is that word costs add up: with a tokenizer that splits before every space (all byte-level
//! ones do), a text has as many tokens as its words have one by one. So the words are measured once,
//! and text of any length needs no tokenizing.
//!
//! A reply follows from the prompt alone. The mock engine and a plan in virtual time thus answer the
//! same turn with the same words, and the next turn's prompt is the same in both.

use homing_core::dice::{Dice, SplitMix};
use homing_core::hash::HashSpace;
use serde::Serialize;

/// One message of a chat, as the OpenAI API has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
}

/// A model's tokenizer and chat template.
pub trait Codec {
    /// Why something could not be encoded.
    type Error;

    /// The tokens of a conversation, up to where the assistant's reply begins.
    ///
    /// # Errors
    /// Where the template or the tokenizer fails.
    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, Self::Error>;

    /// The tokens of a text.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    fn encode(&self, text: &str) -> Result<Vec<u32>, Self::Error>;

    /// The text of some tokens.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    fn decode(&self, tokens: &[u32]) -> Result<String, Self::Error>;
}

/// Plain words of a coding session, most of them one token in most vocabularies.
const WORDS: [&str; 160] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "are", "this", "or", "from", "but", "at", "which", "have", "an", "they", "you",
    "were", "their", "one", "all", "we", "can", "has", "there", "been", "if", "more", "when",
    "will", "would", "who", "so", "no", "system", "know", "public", "where", "much", "left", "way",
    "down", "should", "because", "small", "until", "long", "each", "find", "just", "next", "good",
    "very", "build", "key", "still", "token", "second", "open", "here", "between", "both", "error",
    "window", "same", "another", "data", "early", "order", "might", "run", "change", "move",
    "since", "test", "used", "take", "worker", "kind", "turn", "within", "few", "list", "main",
    "found", "however", "service", "once", "return", "type", "high", "name", "string", "every",
    "field", "method", "read", "add", "score", "option", "stop", "less", "memory", "network",
    "head", "set", "end", "policy", "total", "why", "correct", "task", "program", "summary",
    "group", "side", "given", "case", "safe", "large", "local", "problem", "range", "help", "file",
    "line", "code", "function", "map", "value", "message", "result", "user", "model", "tool",
    "block", "cache", "request", "session", "queue", "client", "response", "server", "stream",
    "hash", "index", "store", "path", "write", "update",
];

/// Words to a sentence, at most: a full stop follows after 6 to this many.
const SENTENCE: usize = 14;

/// The words, with what each costs in tokens.
#[derive(Clone, Debug)]
pub struct Words {
    /// At the start of a text, and after a space.
    costs: Vec<(usize, usize)>,
    stop: usize,
}

impl Words {
    /// Measures the words: `count` says how many tokens a text has.
    #[must_use]
    pub fn measured(mut count: impl FnMut(&str) -> usize) -> Self {
        let costs = WORDS.iter().map(|word| (count(word), count(&format!(" {word}")))).collect();
        Self { costs, stop: count(".") }
    }

    /// The words by `codec`'s tokens.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    pub fn of<C: Codec>(codec: &C) -> Result<Self, C::Error> {
        let mut failed = None;
        let words = Self::measured(|text| match codec.encode(text) {
            Ok(tokens) => tokens.len(),
            Err(error) => {
                failed.get_or_insert(error);
                0
            }
        });
        failed.map_or(Ok(words), Err)
    }

    /// Sentences of at least `tokens` tokens, and no whole word more.
    pub fn text(&self, dice: &mut impl Dice, tokens: usize) -> String {
        let mut out = String::with_capacity(tokens * 5);
        let (mut have, mut words, mut stop_after) = (0, 0, 0);
        while have < tokens {
            if words > 0 && words == stop_after {
                out.push('.');
                have += self.stop;
                words = 0;
                continue;
            }
            if words == 0 {
                stop_after = 6 + dice.below(SENTENCE - 5);
            }
            let pick = dice.below(WORDS.len());
            let (first, later) = self.costs[pick];
            if out.is_empty() {
                have += first;
            } else {
                out.push(' ');
                have += later;
            }
            out.push_str(WORDS[pick]);
            words += 1;
            if first == 0 && later == 0 {
                // A tokenizer for which words cost nothing would keep this loop going forever.
                have += 1;
            }
        }
        out
    }

    /// What the model answers to `prompt`: exactly `tokens` tokens (fewer only if the codec makes fewer
    /// of the text than was measured). Decoded and sent back, they encode to the same tokens.
    ///
    /// # Errors
    /// As [`Codec::encode`].
    pub fn reply<C: Codec>(
        &self,
        codec: &C,
        prompt: &[u32],
        tokens: usize,
    ) -> Result<Vec<u32>, C::Error> {
        let mut dice = SplitMix::new(HashSpace::default().local(prompt).0);
        let mut reply = codec.encode(&self.text(&mut dice, tokens))?;
        reply.truncate(tokens);
        Ok(reply)
    }
}

/// One token per byte, with a template of two control characters: for tests of everything else.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes;

#[cfg(test)]
impl Codec for Bytes {
    type Error = std::convert::Infallible;

    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, Self::Error> {
        let open = |role: &str| format!("\u{1}{role}\n");
        let text: String =
            messages.iter().map(|m| format!("{}{}\u{2}", open(m.role), m.content)).collect();
        self.encode(&(text + &open("assistant")))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Self::Error> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Self::Error> {
        Ok(tokens.iter().filter_map(|t| char::from_u32(*t)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_long_as_asked_to_within_a_word() {
        let words = Words::measured(str::len);
        for wanted in [1, 7, 50, 1000] {
            let text = words.text(&mut SplitMix::new(wanted as u64), wanted);
            assert!((wanted..wanted + 12).contains(&text.len()), "{wanted}: {}", text.len());
        }
        assert_eq!(words.text(&mut SplitMix::new(1), 0), "");
    }

    #[test]
    fn a_reply_follows_from_the_prompt_alone() {
        let words = Words::of(&Bytes).expect("cannot fail");
        let reply = |prompt: &[u32]| words.reply(&Bytes, prompt, 40).expect("cannot fail");
        assert_eq!(reply(&[1, 2, 3]).len(), 40);
        assert_eq!(reply(&[1, 2, 3]), reply(&[1, 2, 3]));
        assert_ne!(reply(&[1, 2, 3]), reply(&[1, 2, 4]));
        let long: Vec<u32> = (0..5000).collect();
        assert_ne!(reply(&long), reply(&long[..4999]));
    }

    #[test]
    fn words_that_cost_nothing_end_too() {
        assert!(!Words::measured(|_| 0).text(&mut SplitMix::new(1), 5).is_empty());
    }
}
