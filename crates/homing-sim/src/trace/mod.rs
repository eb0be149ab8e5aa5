//! Request traces: when somebody asked, how long prompts and answers were, and which prompts began alike.
//! Never what was said.
//!
//! * [`read()`]: any of the known formats, told by their content, from bytes that may be compressed;
//! * [`blocks`]: which blocks are the same, as small numbers and as the hashes that the core knows;
//! * `mooncake`, `sessions`, `azure`, [`own`]: the formats.
//!
//! What a trace doesn't say is not made up: the answers take room in an engine's cache, but no later prompt is
//! taken to have one in it beyond what its own blocks say.

pub mod blocks;
pub mod own;
pub mod read;

mod azure;
mod lines;
mod mooncake;
mod sessions;

use blocks::Blocks;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

pub use read::{Options, read};

/// How a trace was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Mooncake's JSON lines, with session ids or without.
    Mooncake,
    /// Agent sessions, one a line.
    Sessions,
    /// Azure's CSV: lengths alone.
    Azure,
    /// Homing's own (`homing.trace.v1`).
    Own,
}

impl Format {
    /// As people read it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Sessions => "sessions",
            Self::Azure => "azure",
            Self::Own => "homing",
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it came, from the start of the trace, as recorded.
    pub at: Duration,
    /// The request before it in its session, which must have ended.
    pub after: Option<u32>,
    /// It comes so long after that one has ended; `None`: when it came by `at`, or as soon as that has ended.
    pub think: Option<Duration>,
    /// Its session, by number.
    pub session: Option<u32>,
    /// Length of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Length of the answer, at least 1.
    pub output_tokens: u32,
    /// Its runs in the trace.
    runs: Range<u32>,
}

/// A trace, in blocks of one size.
#[derive(Clone, Debug)]
pub struct Trace {
    /// How it was written.
    pub format: Format,
    /// Requests in the order in which they came.
    pub requests: Vec<Request>,
    /// Sessions that they belong to.
    pub sessions: u32,
    /// Full blocks of all prompts together.
    pub prompt_blocks: u64,
    runs: Vec<Range<u32>>,
    blocks: Blocks,
}

impl Trace {
    /// A request's full blocks, as runs of their numbers.
    #[must_use]
    pub fn runs(&self, request: &Request) -> &[Range<u32>] {
        self.runs.get(request.runs.start as usize..request.runs.end as usize).unwrap_or_default()
    }

    /// What its blocks are.
    #[must_use]
    pub const fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.blocks.size()
    }

    /// Tokens of all prompts together.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|r| u64::from(r.prompt_tokens)).sum()
    }
}

/// Why a trace can't be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The bytes don't come.
    #[error("{0}; is the file complete?")]
    Io(#[from] std::io::Error),
    /// One line is wrong.
    #[error("line {line}: {what}")]
    Line {
        /// The first one is 1.
        line: u64,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The file as a whole is wrong.
    #[error("{0}")]
    File(String),
}

/// A request as formats tell it.
#[derive(Clone, Debug, Default)]
struct Told {
    at: Duration,
    /// The place of the request before it, among those told.
    after: Option<u32>,
    think: Option<Duration>,
    session: Option<u32>,
    prompt_tokens: u32,
    output_tokens: u32,
    runs: Range<u32>,
}

/// Requests that are being told.
#[derive(Debug)]
struct Builder {
    told: Vec<Told>,
    runs: Vec<Range<u32>>,
    blocks: Blocks,
    prompt_blocks: u64,
    sessions: u32,
}

/// Requests of one trace, at most.
const MAX_REQUESTS: usize = 50_000_000;

impl Builder {
    fn new(block_size: u32) -> Self {
        Self {
            told: Vec::new(),
            runs: Vec::new(),
            blocks: Blocks::new(block_size),
            prompt_blocks: 0,
            sessions: 0,
        }
    }

    /// Adds a request whose full blocks have these contents, in order; its place.
    fn add(&mut self, mut told: Told, contents: impl Iterator<Item = u64>) -> Result<u32, String> {
        let mut parent = None;
        let full = (told.prompt_tokens / self.blocks.size()) as usize;
        let from = self.runs.len();
        let mut open: Option<Range<u32>> = None;
        for content in contents.take(full) {
            let id = self.blocks.child(parent, content)?;
            self.prompt_blocks += 1;
            parent = Some(id);
            match &mut open {
                Some(run) if run.end == id => run.end += 1,
                _ => self.runs.extend(open.replace(id..id + 1)),
            }
        }
        self.runs.extend(open);
        let place = |n: usize| u32::try_from(n).map_err(|_| "the trace is too long".to_owned());
        told.runs = place(from)?..place(self.runs.len())?;
        told.output_tokens = told.output_tokens.max(1);
        if self.told.len() >= MAX_REQUESTS {
            return Err(format!("a trace has at most {MAX_REQUESTS} requests; cut it"));
        }
        self.told.push(told);
        place(self.told.len() - 1)
    }

    fn session(&mut self) -> u32 {
        self.sessions += 1;
        self.sessions - 1
    }

    /// The trace, in the order of time; those of one instant in the order in which they were told.
    fn finish(self, format: Format) -> Result<Trace, TraceError> {
        if self.told.is_empty() {
            return Err(TraceError::File("there is no request in it".to_owned()));
        }
        let mut order: Vec<u32> = (0..self.told.len() as u32).collect();
        order.sort_by_key(|i| self.told[*i as usize].at);
        let mut place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old as usize] = new as u32;
        }
        let start = self.told[order[0] as usize].at;
        let request = |old: &u32| {
            let t = &self.told[*old as usize];
            Request {
                at: t.at - start,
                after: t.after.map(|a| place[a as usize]),
                think: t.think,
                session: t.session,
                prompt_tokens: t.prompt_tokens,
                output_tokens: t.output_tokens,
                runs: t.runs.clone(),
            }
        };
        Ok(Trace {
            format,
            requests: order.iter().map(request).collect(),
            sessions: self.sessions,
            prompt_blocks: self.prompt_blocks,
            runs: self.runs,
            blocks: self.blocks,
        })
    }
}

/// Blocks of `size` tokens out of ids of pieces of `unit` tokens: each piece is several blocks, or several
/// pieces are one. `None`: neither goes into the other.
fn in_blocks(ids: &[u64], unit: u32, size: u32) -> Option<Box<dyn Iterator<Item = u64> + '_>> {
    if unit == size {
        Some(Box::new(ids.iter().copied()))
    } else if unit.is_multiple_of(size) {
        let parts = u64::from(unit / size);
        Some(Box::new(ids.iter().flat_map(move |id| (0..parts).map(move |j| mix(*id, j)))))
    } else if size.is_multiple_of(unit) {
        let pieces = ids.chunks_exact((size / unit) as usize);
        Some(Box::new(pieces.map(|ids| ids.iter().fold(0, |all, id| mix(all, *id)))))
    } else {
        None
    }
}

/// One number of two: SplitMix64's finaliser.
const fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
