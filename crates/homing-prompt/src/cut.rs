//! Where a text may be cut so that its parts, encoded alone, give the ids of the whole.
//!
//! A tokenizer of Hugging Face's takes the added tokens out of a text before anything else, leftmost
//! and longest first; what lies between two of them is normalized, split and encoded by itself. So
//! the end of an added token is a cut, if the token is found there *whatever stands around it*. That
//! is what [`Cuts::of`] proves from the list of added tokens, once per tokenizer:
//!
//! * no other added token overlaps it, holds it, or begins inside it;
//! * it doesn't swallow the blanks behind it (`rstrip`), nor is it or its edge made of blanks, which
//!   another token's `lstrip` or `rstrip` could swallow;
//! * it is matched before normalization, or there is none (a normalized token is looked for in text
//!   that an accent before it may have changed);
//! * no token at all is `single_word`: such a token looks at the character before it, beyond a cut.
//!
//! One thing still depends on the place: `Metaspace` with `prepend_scheme: first` treats the very
//! beginning of a text apart. Hence a part that is not the first is encoded behind a cutting token,
//! the *anchor*, whose id is dropped. At the end a few probes compare parts with wholes; where one
//! differs, nothing is ever cut.

use std::collections::HashSet;

use tokenizers::{AddedToken, Tokenizer};

use crate::UNBROKEN_LIMIT;
use crate::error::PromptError;

/// The most tokens that cut; DeepSeek-V3's list, mostly placeholders, has 818. The rest just don't cut.
const TOKENS_MAX: usize = 1024;

/// The longest added token, in bytes. A list with a longer one cuts nothing:
/// looking at all pieces of each token takes the square of its length.
const TOKEN_BYTES_MAX: usize = 256;

/// A part is at least so many bytes, but for the last: shorter ones would be more bookkeeping than
/// text.
const PART_MIN: usize = 256;

/// The tokens behind which a text may be cut, and what encoding its parts needs.
pub(crate) struct Cuts {
    /// Sorted. None begins another, so at most one stands at any place.
    tokens: Vec<String>,
    /// The first bytes of the tokens, at most three: what `memchr` can look for at once. Repeated
    /// where there are fewer.
    first: [u8; 3],
    /// Which bytes come second.
    second: [bool; 256],
    /// The shortest of the tokens; it encodes to one id.
    anchor: Option<String>,
    /// [`PART_MIN`], but in tests.
    pub(crate) part_min: usize,
    /// [`UNBROKEN_LIMIT`], but in tests.
    pub(crate) part_max: usize,
    /// The ids before and behind a text's own where special tokens are added; `None` if they are
    /// not always the same.
    pub(crate) affixes: Option<(Vec<u32>, Vec<u32>)>,
}

impl Cuts {
    /// Where texts for this tokenizer may be cut.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let mut cuts = Self::behind(cutting(tokenizer));
        if !cuts.holds(tokenizer) {
            cuts = Self::behind(Vec::new());
        }
        cuts.affixes = affixes(tokenizer);
        cuts
    }

    fn behind(mut tokens: Vec<String>) -> Self {
        tokens.sort_unstable();
        let mut first: Vec<u8> = tokens.iter().filter_map(|t| t.bytes().next()).collect();
        first.dedup();
        let byte = |at: usize| first.get(at).or(first.first()).copied().unwrap_or(0);
        let mut second = [false; 256];
        for token in &tokens {
            if let Some(&b) = token.as_bytes().get(1) {
                second[usize::from(b)] = true;
            }
        }
        Self {
            anchor: tokens.iter().min_by_key(|t| t.len()).cloned(),
            first: [byte(0), byte(1), byte(2)],
            second,
            tokens,
            part_min: PART_MIN,
            part_max: UNBROKEN_LIMIT,
            affixes: None,
        }
    }

    /// The parts of a text, in order; joined they are the text.
    pub(crate) fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (part, after) = rest.split_at(self.part_end(rest));
            rest = after;
            Some(part)
        })
    }

    /// Whether each part of a text is short enough to be encoded; before the first one is.
    pub(crate) fn are_short(&self, text: &str) -> Result<(), PromptError> {
        let limit = self.part_max;
        let fits = text.len() <= limit || self.parts(text).all(|part| part.len() <= limit);
        if fits { Ok(()) } else { Err(PromptError::Unbroken { limit }) }
    }

    /// What an encoding of a part must start with where the part isn't a text's first.
    pub(crate) fn anchor(&self) -> Option<&str> {
        self.anchor.as_deref()
    }

    /// The end of the first token that ends at `part_min` or later, else of the text.
    fn part_end(&self, text: &str) -> usize {
        let [a, b, c] = self.first;
        if self.tokens.is_empty() {
            return text.len();
        }
        let bytes = text.as_bytes();
        let mut from = 0;
        while let Some(at) = memchr::memchr3(a, b, c, &bytes[from..]).map(|at| from + at) {
            let end = self.token_at(&bytes[at..]).map(|token| at + token);
            match end {
                Some(end) if end >= self.part_min => return end,
                Some(end) => from = end,
                None => from = at + 1,
            }
        }
        text.len()
    }

    /// The length of the token that a text starts with. In a sorted list where none begins another
    /// it can only be the last one that isn't greater than the text.
    fn token_at(&self, text: &[u8]) -> Option<usize> {
        if !self.second[usize::from(*text.get(1)?)] {
            return None;
        }
        let after = self.tokens.partition_point(|t| t.as_bytes() <= text);
        let token = self.tokens.get(after.checked_sub(1)?)?;
        text.starts_with(token.as_bytes()).then_some(token.len())
    }

    /// Whether parts give the ids of the whole on a few texts that are hard to cut.
    fn holds(&self, tokenizer: &Tokenizer) -> bool {
        const HARD: [&str; 5] = ["", " a ", "\n\n1", "\u{301}e\u{301}\u{1100}", "word  "];
        let Some(anchor) = self.anchor() else { return true };
        let encode = |text: &str| {
            tokenizer.encode_fast(text, false).map(|e| e.get_ids().to_vec()).unwrap_or_default()
        };
        self.tokens.iter().take(4).all(|token| {
            HARD.iter().all(|before| {
                HARD.iter().all(|behind| {
                    let mut parts = encode(&format!("{before}{token}"));
                    let tail = encode(&format!("{anchor}{behind}"));
                    parts.extend(tail.get(1..).unwrap_or_default());
                    parts == encode(&format!("{before}{token}{behind}"))
                })
            })
        })
    }
}

/// The added tokens that are found wherever they stand, as the file's introduction says.
fn cutting(tokenizer: &Tokenizer) -> Vec<String> {
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    if added.values().any(|t| t.single_word || t.content.len() > TOKEN_BYTES_MAX) {
        return Vec::new();
    }
    let unchanged = normalizes_nothing(tokenizer);
    let crowd = Crowd::of(added.values());
    let mut found: Vec<&AddedToken> = added
        .values()
        .filter(|t| (unchanged || !t.normalized) && !t.rstrip && crowd.leaves_alone(t))
        .collect();
    // Special tokens are what templates write; the others are placeholders and words.
    found.sort_unstable_by_key(|t| (!t.special, t.content.as_str()));
    found.truncate(TOKENS_MAX);
    let mut first: Vec<u8> = Vec::new();
    found.retain(|t| match t.content.bytes().next() {
        Some(byte) if first.contains(&byte) => true,
        Some(byte) if first.len() < 3 => {
            first.push(byte);
            true
        }
        _ => false,
    });
    found.into_iter().map(|t| t.content.clone()).collect()
}

fn normalizes_nothing(tokenizer: &Tokenizer) -> bool {
    use tokenizers::NormalizerWrapper::Sequence;
    match tokenizer.get_normalizer() {
        None => true,
        Some(Sequence(steps)) => steps.as_ref().is_empty(),
        Some(_) => false,
    }
}

/// All added tokens, by how they can get in each other's way.
struct Crowd<'a> {
    whole: HashSet<&'a [u8]>,
    prefixes: HashSet<&'a [u8]>,
    /// Sorted; one for each place in each token.
    suffixes: Vec<&'a [u8]>,
}

impl<'a> Crowd<'a> {
    fn of(tokens: impl Iterator<Item = &'a AddedToken>) -> Self {
        let whole: HashSet<&[u8]> = tokens.map(|t| t.content.as_bytes()).collect();
        let prefixes = whole.iter().flat_map(|t| (1..=t.len()).map(|n| &t[..n])).collect();
        let mut suffixes: Vec<&[u8]> =
            whole.iter().flat_map(|t| (0..t.len()).map(|n| &t[n..])).collect();
        suffixes.sort_unstable();
        Self { whole, prefixes, suffixes }
    }

    /// Whether the token is matched at each of its occurrences. Stricter than need be: a token
    /// inside this one would lose against it in the same search, but not in an earlier one.
    fn leaves_alone(&self, token: &AddedToken) -> bool {
        let bytes = token.content.as_bytes();
        let blank = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let n = bytes.len();
        if n < 2 || blank(token.content.chars().next()) || blank(token.content.chars().last()) {
            return false;
        }
        let runs_on = (1..n).any(|at| self.prefixes.contains(&bytes[at..]));
        let is_run_into = (1..n).any(|at| self.suffixes.binary_search(&&bytes[..at]).is_ok());
        let from = self.suffixes.partition_point(|s| *s < bytes);
        let holders = self.suffixes[from..].iter().take_while(|s| s.starts_with(bytes)).count();
        let holds =
            (0..n).any(|a| (a + 1..=n).any(|b| b - a < n && self.whole.contains(&bytes[a..b])));
        !runs_on && !is_run_into && holders == 1 && !holds
    }
}

/// What the post-processor puts around a text, if two quite different texts get the same.
fn affixes(tokenizer: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let around = |text: &str| {
        let ids = |add| tokenizer.encode_fast(text, add).ok().map(|e| e.get_ids().to_vec());
        let (bare, whole) = (ids(false)?, ids(true)?);
        let at = (0..=whole.len().checked_sub(bare.len())?)
            .find(|&at| whole[at..].starts_with(&bare))?;
        Some((whole[..at].to_vec(), whole[at + bare.len()..].to_vec()))
    };
    let found = around("a b\nc 1")?;
    (around("Zürich, 2\n")? == found).then_some(found)
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
