//! Reading a trace: what it is, is told by its first line.

use super::lines::Lines;
use super::{Builder, Trace, TraceError, azure, mooncake, own, sessions};
use serde::Deserialize;
use std::io::Read;
use std::time::Duration;

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tokens per block; `None`: 64, or the trace's own where that doesn't go into it.
    pub block_size: Option<u32>,
    /// So many requests at most, by the order of their lines.
    pub limit: usize,
    /// Mean time between the beginnings of sessions, where the trace doesn't say: they are a Poisson process.
    pub session_gap: Duration,
    /// Seeds that.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { block_size: None, limit: usize::MAX, session_gap: Duration::from_secs(25), seed: 0 }
    }
}

/// Blocks are of this size unless somebody wants another.
const USUAL: u32 = 64;
/// The largest that may be asked for.
pub const MAX_BLOCK_SIZE: u32 = 16_384;

impl Options {
    /// Tokens per block of a trace that names pieces of `unit` tokens.
    pub(super) fn size(&self, unit: u32) -> Result<u32, String> {
        let fits = |size: u32| unit.is_multiple_of(size) || size.is_multiple_of(unit);
        match self.block_size {
            Some(size) if size > 0 && size <= MAX_BLOCK_SIZE && fits(size) => Ok(size),
            Some(size) => Err(format!(
                "blocks of {size} tokens can't be made of the trace's pieces of {unit}; choose a divisor \
                 or a multiple of {unit} with --block-size"
            )),
            None if fits(USUAL) => Ok(USUAL),
            None => Ok(unit),
        }
    }
}

/// What the first line has, as far as it tells formats apart.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Marks {
    schema: Option<String>,
    hash_id_scope: Option<serde::de::IgnoredAny>,
    requests: Option<serde::de::IgnoredAny>,
    timestamp: Option<serde::de::IgnoredAny>,
    input_length: Option<serde::de::IgnoredAny>,
}

/// Reads a trace. `from` may be compressed by gzip or zstd.
///
/// # Errors
/// [`TraceError`].
pub fn read(from: impl Read, options: &Options) -> Result<Trace, TraceError> {
    let mut lines = Lines::new(from)?;
    let Some((number, first)) = lines.next()? else {
        return Err(TraceError::File("it is empty".to_owned()));
    };
    let first = first.to_vec();
    if first.starts_with(b"TIMESTAMP,") {
        return azure::read(&first, lines, options);
    }
    let unknown = || {
        TraceError::Line {
        line: number,
        what: "not a trace that is known: Mooncake (timestamp, input_length, hash_ids), agent sessions \
               (requests, hash_id_scope), Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or \
               homing.trace.v1; docs/replay.md has the fields"
            .to_owned(),
    }
    };
    let marks: Marks = serde_json::from_slice(&first).map_err(|_| unknown())?;
    match marks {
        Marks { schema: Some(schema), .. } if schema == own::SCHEMA => {
            own::read(&first, lines, options)
        }
        Marks { schema: Some(schema), .. } => Err(TraceError::Line {
            line: number,
            what: format!("schema {schema:?} is not known here; {:?} is", own::SCHEMA),
        }),
        Marks { requests: Some(_), hash_id_scope: Some(_), .. } => {
            sessions::read(number, &first, lines, options)
        }
        Marks { timestamp: Some(_), input_length: Some(_), .. } => {
            mooncake::read(number, &first, lines, options)
        }
        _ => Err(unknown()),
    }
}

/// A line of JSON.
pub(super) fn json<'a, T: Deserialize<'a>>(line: u64, text: &'a [u8]) -> Result<T, TraceError> {
    serde_json::from_slice(text).map_err(|error| {
        let what = if text.last() == Some(&b'}') {
            format!("{error}; every line must be one whole JSON object with the format's fields")
        } else {
            format!("{error}; the line is cut off: fetch the file anew, or remove the line")
        };
        TraceError::Line { line, what }
    })
}

/// A time of so many units per second.
pub(super) fn time(line: u64, value: f64, per_second: f64) -> Result<Duration, TraceError> {
    /// A century: it must not overflow what counts microseconds.
    const LONGEST: f64 = 3.2e9;
    let seconds = value / per_second;
    if !(0.0..LONGEST).contains(&seconds) {
        let what = format!("{value} is no time; a number that is not negative is one");
        return Err(TraceError::Line { line, what });
    }
    Ok(Duration::from_micros((seconds * 1e6).round() as u64))
}

/// A prompt's length.
pub(super) fn length(line: u64, tokens: u64) -> Result<u32, TraceError> {
    const LONGEST: u64 = 1 << 26;
    match u32::try_from(tokens) {
        Ok(tokens) if (1..=LONGEST).contains(&u64::from(tokens)) => Ok(tokens),
        _ => {
            let what = format!("a prompt or an answer of {tokens} tokens; 1 to {LONGEST} are read");
            Err(TraceError::Line { line, what })
        }
    }
}

impl Builder {
    /// Adds one, and says where it went wrong.
    pub(super) fn put(
        &mut self,
        line: u64,
        told: super::Told,
        contents: impl Iterator<Item = u64>,
    ) -> Result<u32, TraceError> {
        self.add(told, contents).map_err(|what| TraceError::Line { line, what })
    }
}
