//! Homing's own trace of requests, `homing.trace.v1`: JSON lines of hashes, lengths and times, never text. Written
//! by the gateway (`gateway.record`), read by `homing replay`.
//!
//! ```text
//! {"schema":"homing.trace.v1","block_size":16}
//! {"t_ms":0,"session":"9f31c2d4a6b80517","prompt_tokens":1034,"output_tokens":200,"blocks":"0f..."}
//! {"t_ms":5120.5,"session":"9f31c2d4a6b80517","prompt_tokens":1290,"output_tokens":80,"after":"a1...","blocks":"77..."}
//! ```
//!
//! `blocks` are the chain hashes of the prompt's full blocks, 16 hexadecimal digits each, without anything in
//! between. A chain hash names all before it; so `after`, a hash that some earlier line has, stands for the whole
//! prompt up to there, and a long conversation costs a line only what is new. Fields that are not known here are
//! passed over.

use serde::{Deserialize, Serialize};

/// The name and version of the format.
pub const SCHEMA: &str = "homing.trace.v1";
/// Digits of a hash.
pub const DIGITS: usize = 16;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// Tokens per block, at least 1.
    pub block_size: u32,
    /// When the times begin, in Unix milliseconds: for whoever appends. Left out where nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_ms: Option<u64>,
}

/// Every other line: one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When it came, in milliseconds since the trace began.
    pub t_ms: f64,
    /// A digest of its session, if it has one; never its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Length of the prompt in tokens, at least 1.
    pub prompt_tokens: u64,
    /// Length of the answer in tokens.
    pub output_tokens: u64,
    /// Tokens per block of this line, where they are not the header's. Such blocks are compared with others of
    /// their own size only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The last block of the prompt's beginning, where an earlier line has that already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Chain hashes of its (other) full blocks, 16 digits each.
    #[serde(default)]
    pub blocks: String,
}

/// Hashes as they are written.
#[must_use]
pub fn digits(hashes: impl ExactSizeIterator<Item = u64>) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(hashes.len() * DIGITS);
    for hash in hashes {
        // To a string: it can't fail.
        let _ = write!(text, "{hash:016x}");
    }
    text
}

/// A hash of exactly [`DIGITS`] digits; `None`: it is none.
#[must_use]
pub fn hash(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == DIGITS)?;
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_back_from_their_digits_and_nothing_else_does() {
        let hashes = [0, 1, u64::MAX, 0x00aa_13f0_8e6b_2cd4];
        let text = digits(hashes.into_iter());
        let back: Vec<_> = text.as_bytes().chunks(DIGITS).map(hash).collect();
        assert_eq!(back, hashes.map(Some));
        let wrong = ["", "12", "+000000000000001", "00aa13f08e6b2cd4a", "\u{e9}0000000000000"];
        assert!(wrong.iter().all(|text| hash(text.as_bytes()).is_none()));
    }

    #[test]
    fn a_line_leaves_out_what_it_has_not() {
        let line = Line { t_ms: 1.5, prompt_tokens: 2, output_tokens: 3, ..Line::default() };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"t_ms":1.5,"prompt_tokens":2,"output_tokens":3,"blocks":""}"#);
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}
