//! Mooncake's JSON lines: `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one for each piece
//! of the prompt, the last of which may be incomplete. Other traces in the same words name smaller pieces, and
//! say whose session a request is of.
//!
//! How long pieces are is not said. It follows from how many there are: the first lines are kept until only one
//! usual size explains all of them.

use super::lines::Lines;
use super::read::{Options, json, length, time};
use super::{Builder, Format, Told, Trace, TraceError, in_blocks};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
    session_id: Option<String>,
    block_size: Option<u32>,
}

/// Pieces that traces name, the likeliest first.
const UNITS: [u32; 7] = [512, 64, 16, 32, 128, 256, 1024];
/// Lines that are kept until the size of their pieces is clear.
const KEPT: usize = 1000;

/// Whether the request has as many ids as it has pieces of this size.
fn fits(line: &Line, unit: u32) -> bool {
    line.hash_ids.len() as u64 == line.input_length.div_ceil(u64::from(unit))
}

pub(super) fn read(
    first: u64,
    text: &[u8],
    mut lines: Lines<'_>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let mut kept: Vec<(u64, Line)> = vec![(first, json(first, text)?)];
    let mut units = UNITS.to_vec();
    if let Some(said) = kept[0].1.block_size.filter(|size| *size > 0) {
        units = vec![said];
    } else {
        units.retain(|unit| fits(&kept[0].1, *unit));
    }
    while units.len() > 1
        && kept.len() < KEPT.min(options.limit)
        && let Some((number, text)) = lines.next()?
    {
        let line: Line = json(number, text)?;
        units.retain(|unit| fits(&line, *unit));
        kept.push((number, line));
    }
    let Some(unit) = units.first().copied() else {
        let line = kept.last().map_or(first, |(number, _)| *number);
        let what = format!(
            "hash_ids are not one for each 512, 64, ... of input_length's tokens (sizes tried: {UNITS:?}); say \
             \"block_size\" in the first line"
        );
        return Err(TraceError::Line { line, what });
    };
    let size = options.size(unit).map_err(TraceError::File)?;
    let mut all = Reading { unit, size, builder: Builder::new(size), sessions: BTreeMap::new() };
    for (number, line) in kept.into_iter().take(options.limit) {
        all.take(number, line)?;
    }
    while all.builder.told.len() < options.limit
        && let Some((number, text)) = lines.next()?
    {
        all.take(number, json(number, text)?)?;
    }
    all.builder.finish(Format::Mooncake)
}

struct Reading {
    unit: u32,
    size: u32,
    builder: Builder,
    /// By its id: its number and its last request.
    sessions: BTreeMap<String, (u32, Option<u32>)>,
}

impl Reading {
    fn take(&mut self, number: u64, line: Line) -> Result<(), TraceError> {
        let mut told = Told {
            at: time(number, line.timestamp, 1e3)?,
            prompt_tokens: length(number, line.input_length)?,
            output_tokens: length(number, line.output_length.max(1))?,
            ..Told::default()
        };
        let session = line.session_id.map(|id| {
            let builder = &mut self.builder;
            self.sessions.entry(id).or_insert_with(|| (builder.session(), None))
        });
        if let Some((session, last)) = &session {
            (told.session, told.after) = (Some(*session), *last);
        }
        let Some(contents) = in_blocks(&line.hash_ids, self.unit, self.size) else {
            return Ok(());
        };
        let place = self.builder.put(number, told, contents)?;
        if let Some((_, last)) = session {
            *last = Some(place);
        }
        Ok(())
    }
}
