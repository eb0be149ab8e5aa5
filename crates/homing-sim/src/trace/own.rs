//! Homing's own trace, `homing.trace.v1`: JSON lines of hashes, lengths and times, never text.
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
//! passed over. `t_ms` is the time since the first line, `session` a digest of the session and not its id.

use super::blocks::Blocks;
use super::lines::Lines;
use super::read::{MAX_BLOCK_SIZE, Options, json, length, time};
use super::{Builder, Format, Told, Trace, TraceError, in_blocks};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The name and version of the format.
pub const SCHEMA: &str = "homing.trace.v1";
/// Digits of a hash.
const DIGITS: usize = 16;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// Tokens per block, at least 1.
    pub block_size: u32,
}

/// Every other line: one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds since the first request.
    pub t_ms: f64,
    /// A digest of its session, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Length of the prompt in tokens, at least 1.
    pub prompt_tokens: u64,
    /// Length of the answer in tokens.
    pub output_tokens: u64,
    /// The last block of the prompt's beginning, where an earlier line has that already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Chain hashes of its (other) full blocks, 16 digits each.
    #[serde(default)]
    pub blocks: String,
}

pub(super) fn read(
    header: &[u8],
    mut lines: Lines<'_>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let Header { block_size: unit, .. } = json(1, header)?;
    if !(1..=MAX_BLOCK_SIZE).contains(&unit) {
        let what = format!("block_size must be 1 to {MAX_BLOCK_SIZE}");
        return Err(TraceError::Line { line: 1, what });
    }
    let wanted = if options.block_size.is_none() { Ok(unit) } else { options.size(unit) };
    let size = wanted.map_err(TraceError::File)?;
    let mut builder = Builder::new(size);
    // The blocks as they were recorded, whatever size is wanted.
    let mut recorded = Blocks::new(unit);
    let mut known: HashMap<u64, u32> = HashMap::new();
    let mut sessions: BTreeMap<String, (u32, Option<u32>)> = BTreeMap::new();
    while builder.told.len() < options.limit
        && let Some((number, text)) = lines.next()?
    {
        let bad = |what: String| TraceError::Line { line: number, what };
        let line: Line = json(number, text)?;
        let mut ids = Vec::new();
        let mut parent = None;
        if let Some(after) = &line.after {
            let last = hash(after.as_bytes()).and_then(|h| known.get(&h)).copied();
            let unseen = || bad(format!("after {after:?} names no block of an earlier line"));
            let last = last.ok_or_else(unseen)?;
            let content = |b: u32| recorded.content(b);
            ids.extend(recorded.path(last).into_iter().filter_map(content));
            parent = Some(last);
        }
        if !line.blocks.len().is_multiple_of(DIGITS) {
            return Err(bad(format!("blocks must be hashes of {DIGITS} digits each")));
        }
        for digits in line.blocks.as_bytes().chunks_exact(DIGITS) {
            let id = hash(digits).ok_or_else(|| bad("blocks has other than digits".to_owned()))?;
            let block = recorded.child(parent, id).map_err(bad)?;
            known.insert(id, block);
            parent = Some(block);
            ids.push(id);
        }
        let mut told = Told {
            at: time(number, line.t_ms, 1e3)?,
            prompt_tokens: length(number, line.prompt_tokens)?,
            output_tokens: length(number, line.output_tokens.max(1))?,
            ..Told::default()
        };
        let session =
            line.session.map(|id| sessions.entry(id).or_insert_with(|| (builder.session(), None)));
        if let Some((session, last)) = &session {
            (told.session, told.after) = (Some(*session), *last);
        }
        let Some(contents) = in_blocks(&ids, unit, size) else { break };
        let place = builder.put(number, told, contents)?;
        if let Some((_, last)) = session {
            *last = Some(place);
        }
    }
    builder.finish(Format::Own)
}

fn hash(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == DIGITS)?;
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}
