//! Homing's own trace, `homing.trace.v1` ([`homing_wire::trace`]), on its way in.
//!
//! Lines may have blocks of other sizes than the header's: a gateway that knows a prompt only by its text says so.
//! Each size is a world of its own, and all of them become blocks of the size that is wanted.

use super::blocks::Blocks;
use super::lines::Lines;
use super::read::{MAX_BLOCK_SIZE, Options, json, length, time};
use super::{Builder, Format, Told, Trace, TraceError, in_blocks};
use homing_wire::trace::{DIGITS, hash};
use std::collections::{BTreeMap, HashMap};

pub use homing_wire::trace::{Header, Line, SCHEMA};

/// The blocks of one size as they were recorded, whatever size is wanted.
struct Recorded {
    blocks: Blocks,
    known: HashMap<u64, u32>,
}

impl Recorded {
    fn new(unit: u32) -> Self {
        Self { blocks: Blocks::new(unit), known: HashMap::new() }
    }

    /// The hashes of a line's full blocks, first to last.
    fn ids(&mut self, line: &Line) -> Result<Vec<u64>, String> {
        let mut ids = Vec::new();
        let mut parent = None;
        if let Some(after) = &line.after {
            let last = hash(after.as_bytes()).and_then(|h| self.known.get(&h)).copied();
            let unseen = || format!("after {after:?} names no block of an earlier line");
            let last = last.ok_or_else(unseen)?;
            let content = |b: u32| self.blocks.content(b);
            ids.extend(self.blocks.path(last).into_iter().filter_map(content));
            parent = Some(last);
        }
        if !line.blocks.len().is_multiple_of(DIGITS) {
            return Err(format!("blocks must be hashes of {DIGITS} digits each"));
        }
        for digits in line.blocks.as_bytes().chunks_exact(DIGITS) {
            let id = hash(digits).ok_or_else(|| "blocks has other than digits".to_owned())?;
            let block = self.blocks.child(parent, id)?;
            self.known.insert(id, block);
            parent = Some(block);
            ids.push(id);
        }
        Ok(ids)
    }
}

fn sized(unit: u32) -> Result<u32, String> {
    let fits = (1..=MAX_BLOCK_SIZE).contains(&unit);
    fits.then_some(unit).ok_or_else(|| format!("block_size must be 1 to {MAX_BLOCK_SIZE}"))
}

pub(super) fn read(
    header: &[u8],
    mut lines: Lines<'_>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let Header { block_size: usual, .. } = json(1, header)?;
    sized(usual).map_err(|what| TraceError::Line { line: 1, what })?;
    let wanted = if options.block_size.is_none() { Ok(usual) } else { options.size(usual) };
    let size = wanted.map_err(TraceError::File)?;
    let mut builder = Builder::new(size);
    let mut recorded: BTreeMap<u32, Recorded> = BTreeMap::new();
    let mut sessions: BTreeMap<String, (u32, Option<u32>)> = BTreeMap::new();
    while builder.told.len() < options.limit
        && let Some((number, text)) = lines.next()?
    {
        let bad = |what: String| TraceError::Line { line: number, what };
        let line: Line = json(number, text)?;
        let unit = sized(line.block_size.unwrap_or(usual)).map_err(bad)?;
        let ids = recorded.entry(unit).or_insert_with(|| Recorded::new(unit)).ids(&line);
        let ids = ids.map_err(bad)?;
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
        let unfit = || {
            let what = "can't be made into blocks of";
            bad(format!("its blocks of {unit} {what} {size}; choose another --block-size"))
        };
        let contents = in_blocks(&ids, unit, size).ok_or_else(unfit)?;
        let place = builder.put(number, told, contents)?;
        if let Some((_, last)) = session {
            *last = Some(place);
        }
    }
    builder.finish(Format::Own)
}
