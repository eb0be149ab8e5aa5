//! Requests as lines. A conversation's next turn begins with what an earlier line has said: the last blocks of the
//! latest lines are remembered, and a line only has what comes behind one of them.

use super::Recorded;
use super::file::TraceFile;
use homing_core::hash::ChainHash;
use homing_wire::trace::{Line, digits};
use std::collections::{HashMap, VecDeque};

/// Last blocks that are remembered: those of the latest lines.
const TAILS: usize = 1 << 16;
/// No prompt and no answer is longer, as far as readers are concerned.
const LONGEST: u64 = 1 << 26;

/// See the module.
#[derive(Debug)]
pub struct Compressor {
    /// Tokens per block of the header, if the first line doesn't know better.
    usual: u32,
    /// Last blocks by their size, and how many of the latest lines end with them.
    tails: HashMap<(u32, ChainHash), u32>,
    order: VecDeque<(u32, ChainHash)>,
}

impl Compressor {
    /// Nothing is remembered yet.
    #[must_use]
    pub fn new(usual: u32) -> Self {
        Self { usual, tails: HashMap::new(), order: VecDeque::new() }
    }

    /// Earlier lines are not there.
    pub fn forget(&mut self) {
        self.tails.clear();
        self.order.clear();
    }

    /// Writes a request's line.
    pub fn add(&mut self, request: &Recorded, file: &mut TraceFile) {
        let prompt = &request.prompt;
        let known = prompt.block_size > 0;
        let unit = if known { prompt.block_size } else { self.usual };
        let first = if prompt.exact && known { unit } else { self.usual };
        let header = file.header(first);
        let chain = if known { &*prompt.chain } else { &[] };
        let begins = |hash: &ChainHash| self.tails.contains_key(&(unit, *hash));
        let after = chain.iter().rposition(begins);
        let new = &chain[after.map_or(0, |i| i + 1)..];
        let began = file.began_ms() as f64;
        let line = Line {
            // To the microsecond, which is what it is known to.
            t_ms: ((request.came.as_micros() as f64 / 1e3 - began).max(0.0) * 1e3).round() / 1e3,
            session: request.session.map(|s| s.to_string()),
            prompt_tokens: u64::from(prompt.tokens).clamp(1, LONGEST),
            output_tokens: request.output_tokens.min(LONGEST),
            block_size: (unit != header && known).then_some(unit),
            after: after.map(|i| digits(std::iter::once(chain[i].0))),
            blocks: digits(new.iter().map(|hash| hash.0)),
        };
        file.line(&line);
        if let Some(last) = chain.last() {
            self.remember((unit, *last));
        }
    }

    fn remember(&mut self, tail: (u32, ChainHash)) {
        *self.tails.entry(tail).or_default() += 1;
        self.order.push_back(tail);
        if self.order.len() > TAILS
            && let Some(oldest) = self.order.pop_front()
            && let Some(n) = self.tails.get_mut(&oldest)
        {
            *n -= 1;
            if *n == 0 {
                self.tails.remove(&oldest);
            }
        }
    }
}
