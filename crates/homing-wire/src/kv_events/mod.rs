//! KV-cache events as engines publish them: one msgpack batch a message.
//!
//! Three spellings of the same facts are in the field: arrays (vLLM up to 0.23, SGLang up to 0.5.19),
//! maps (later ones), and what third parties make of both; `wire-formats.md` 3 lists them by version.
//! They differ only in how a *field* is found, so there is one list of fields, filled by position or by
//! name, and one place (`event`) that judges what was found.
//!
//! Broken msgpack fails the batch, since nothing behind the break can be trusted. An event that is well
//! formed and makes no sense is skipped and counted; the rest of the batch stands.

mod encode;
mod event;
mod layout;
pub mod trtllm;

pub use crate::msgpack::DecodeError;
pub use encode::{Encoding, EncodingError, Hashes, encode_batch};
pub use layout::{LAYOUTS, Layout};

use crate::msgpack::{Item, Reader};
use event::{Fault, read_event};
use homing_core::index::event::KvEvent;

/// One published message: what changed in one rank's cache during one scheduler step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// When the engine made it: seconds since the Unix epoch, by the engine's clock.
    pub ts: f64,
    /// The data-parallel rank that it says it is from; `None` where the engine leaves it out.
    pub dp_rank: Option<u32>,
    /// The events, in the order in which they happened.
    pub events: Vec<KvEvent>,
    /// Events left out: an unknown kind, or one that contradicts itself.
    pub skipped: u32,
}

/// Why an event of a kind that this version doesn't know is skipped: it is a newer engine's, not wrong.
pub const UNKNOWN_KIND: &str = "an event of an unknown kind";

/// How many events room is made for before any was read; more grow as they come.
const EVENTS_AT_FIRST: usize = 256;
/// Most events of a batch. A step of an engine has thousands where all of a cache is evicted; events of a few bytes each
/// would take many times their message here.
pub const EVENTS_MAX: usize = 1 << 17;

/// Reads one batch.
///
/// # Errors
/// Where `payload` is not exactly one msgpack array `[ts, events, rank?, ..]`. Single bad events are
/// no errors: they are counted in [`Batch::skipped`].
pub fn decode_batch(payload: &[u8]) -> Result<Batch, DecodeError> {
    decode_batch_noting(payload, |_| ())
}

/// Like [`decode_batch`], and tells `note` why each skipped event was skipped (for one log line).
///
/// # Errors
/// As [`decode_batch`].
pub fn decode_batch_noting(
    payload: &[u8],
    mut note: impl FnMut(&'static str),
) -> Result<Batch, DecodeError> {
    let mut reader = Reader::new(payload);
    let fields = match reader.item()? {
        Item::Array(n) if n >= 2 => n,
        _ => {
            return Err(DecodeError::NotABatch("an array of at least a time and a list of events"));
        }
    };
    let mut batch = Batch { ts: read_time(&mut reader)?, ..Batch::default() };
    let Item::Array(count) = reader.item()? else {
        return Err(DecodeError::NotABatch("a list of events in second place"));
    };
    batch.events.reserve((count as usize).min(EVENTS_AT_FIRST));
    for _ in 0..count {
        let start = reader;
        match read_event(&mut reader) {
            Ok(_) if batch.events.len() == EVENTS_MAX => {
                return Err(DecodeError::NotABatch("at most 131,072 events"));
            }
            Ok(event) => batch.events.push(event),
            Err(Fault::Broken(error)) => return Err(error),
            Err(Fault::Senseless(why)) => {
                reader = start;
                reader.skip()?;
                batch.skipped += 1;
                note(why);
            }
        }
    }
    for position in 2..fields {
        match reader.item()? {
            Item::UInt(rank) if position == 2 => batch.dp_rank = u32::try_from(rank).ok(),
            item => reader.rest_of(item)?,
        }
    }
    reader.finish()?;
    Ok(batch)
}

/// `time.time()` of the engine; whole seconds may come as an integer.
#[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit 53 bits")]
fn read_time(reader: &mut Reader<'_>) -> Result<f64, DecodeError> {
    match reader.item()? {
        Item::Float(ts) => Ok(ts),
        Item::UInt(ts) => Ok(ts as f64),
        _ => Err(DecodeError::NotABatch("a time in seconds in first place")),
    }
}

#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden_tests;
#[cfg(test)]
#[path = "index_tests.rs"]
mod index_tests;
#[cfg(test)]
#[path = "layout_tests.rs"]
mod layout_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
