//! Recorded agent sessions, one a line (WEKA's `kv-cache-tester`): `block_size`, `hash_id_scope: "local"`,
//! `tool_tokens`, `system_tokens`, and `requests` with `in`, `out`, `hash_ids` of full blocks, `t`, `api_time`,
//! `think_time`. An entry of `type: "subagent"` has requests of its own, with times of its own, in the id space of
//! its session.
//!
//! They are closed loops: a turn is sent so long after the one before has ended as its client thought. A subagent
//! begins when the turn before it has ended, beside the session's next one. When sessions begin is not recorded:
//! they are a Poisson process. Nor is what two of them share: those with equally long tools and system prompt are
//! taken to have the same, which is what their recorders found of most.

use super::lines::Lines;
use super::read::{Options, json, length, time};
use super::{Builder, Format, Told, Trace, TraceError, in_blocks, mix};
use homing_core::dice::{Dice, SplitMix};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Deserialize)]
struct Session {
    block_size: u32,
    hash_id_scope: String,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
    requests: Vec<Entry>,
}

/// How long what all requests begin with is.
#[derive(Clone, Copy, Debug)]
struct Opener {
    tool_tokens: u64,
    system_tokens: u64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(default)]
    t: f64,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(rename = "in", default)]
    input: u64,
    #[serde(rename = "out", default)]
    output: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    api_time: Option<f64>,
    #[serde(default)]
    think_time: Option<f64>,
    /// A subagent's.
    #[serde(default)]
    requests: Vec<Self>,
    #[serde(default)]
    tool_tokens: u64,
    #[serde(default)]
    system_tokens: u64,
}

pub(super) fn read(
    first: u64,
    text: &[u8],
    mut lines: Lines<'_>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let session: Session = json(first, text)?;
    let unit = session.block_size;
    if unit == 0 {
        return Err(TraceError::Line { line: first, what: "block_size must not be 0".to_owned() });
    }
    let size = options.size(unit).map_err(TraceError::File)?;
    let mut all = Reading {
        unit,
        size,
        builder: Builder::new(size),
        limit: options.limit,
        line: first,
        contents: HashMap::new(),
    };
    let mut dice = SplitMix::new(options.seed ^ 0x5e55_1025);
    let mut start = Duration::ZERO;
    all.session(session, start)?;
    while all.builder.told.len() < options.limit
        && let Some((number, text)) = lines.next()?
    {
        start += options.session_gap.mul_f64(-(1.0 - dice.unit()).ln());
        all.line = number;
        all.session(json(number, text)?, start)?;
    }
    all.builder.finish(Format::Sessions)
}

struct Reading {
    unit: u32,
    size: u32,
    builder: Builder,
    limit: usize,
    line: u64,
    /// What each of a session's ids means everywhere.
    contents: HashMap<u64, u64>,
}

/// The turn before, as far as the next one must know it.
#[derive(Clone, Copy)]
struct Before {
    place: u32,
    /// When it ended, as recorded, from the start of the session.
    ended: f64,
}

impl Reading {
    fn session(&mut self, session: Session, start: Duration) -> Result<(), TraceError> {
        if session.block_size != self.unit {
            let what = format!("block_size is {}, and {} before", session.block_size, self.unit);
            return Err(TraceError::Line { line: self.line, what });
        }
        if session.hash_id_scope != "local" {
            let what =
                format!("hash_id_scope {:?} is not known; \"local\" is", session.hash_id_scope);
            return Err(TraceError::Line { line: self.line, what });
        }
        self.contents.clear();
        let Session { tool_tokens, system_tokens, requests, .. } = session;
        self.turns(&requests, Opener { tool_tokens, system_tokens }, (start, 0.0), None)
    }

    /// The turns of a session or, with the turn before it, of a subagent. `origin`: when the session began, and
    /// how long after that its own times do.
    fn turns(
        &mut self,
        entries: &[Entry],
        opener: Opener,
        origin: (Duration, f64),
        parent: Option<Before>,
    ) -> Result<(), TraceError> {
        let number = self.builder.session();
        let (line, subagent) = (self.line, parent.is_some());
        let mut last = parent;
        let mut first = true;
        for entry in entries {
            if self.builder.told.len() >= self.limit {
                break;
            }
            let begins = origin.1 + entry.t;
            if entry.kind == "subagent" {
                if !subagent {
                    let &Entry { tool_tokens, system_tokens, .. } = entry;
                    let opener = Opener { tool_tokens, system_tokens };
                    self.turns(&entry.requests, opener, (origin.0, begins), last)?;
                }
                continue;
            }
            let pause = last.map_or(0.0, |before| begins - before.ended).max(0.0);
            // A subagent's own first think time counts from nothing.
            let think = entry.think_time.filter(|_| !(subagent && first)).unwrap_or(pause);
            let told = Told {
                at: origin.0 + time(line, begins, 1.0)?,
                after: last.map(|before| before.place),
                think: last.map(|_| time(line, think, 1.0)).transpose()?,
                session: Some(number),
                prompt_tokens: length(line, entry.input)?,
                output_tokens: length(line, entry.output.max(1))?,
                ..Told::default()
            };
            let ids = self.global(&entry.hash_ids, opener);
            let Some(contents) = in_blocks(&ids, self.unit, self.size) else { break };
            let place = self.builder.put(line, told, contents)?;
            last = Some(Before { place, ended: begins + entry.api_time.unwrap_or(0.0) });
            first = false;
        }
        Ok(())
    }

    /// A session's ids as everybody's: of the opener by what it is, of the rest by whose they are.
    fn global(&mut self, ids: &[u64], opener: Opener) -> Vec<u64> {
        let shared = opener.tool_tokens.saturating_add(opener.system_tokens) / u64::from(self.unit);
        let who = mix(mix(opener.tool_tokens, opener.system_tokens), u64::MAX);
        let line = self.line;
        let global = |(i, id): (u64, &u64)| {
            let own = || if i < shared { mix(who, i) } else { mix(mix(line, 0), *id) };
            *self.contents.entry(*id).or_insert_with(own)
        };
        (0..).zip(ids).map(global).collect()
    }
}
