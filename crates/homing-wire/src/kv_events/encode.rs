//! The way out: batches as an engine of some version writes them, for the mock engine.
//!
//! One writer for all layouts: which fields there are, and in which order, is data (`layout`). Fields without a
//! default are always there, if only as nil (`parent_block_hash`, `lora_id`, `medium`, `lora_name`); in the map
//! form those with one are left out when they equal it. Read off the captures, which it reproduces byte for
//! byte.

use super::Batch;
use super::layout::{Column, Form, Layout};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_bin, write_f64, write_map_len, write_nil,
    write_sint, write_str, write_uint,
};
use std::convert::Infallible;

type Written = Result<(), ValueWriteError<Infallible>>;

/// How block hashes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashes {
    /// As numbers of 64 bits.
    #[default]
    Int,
    /// As digests of 32 bytes, whose last 8 are the number.
    Bytes,
}

/// Why events can't be written so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodingError {
    /// The version knows numbers only.
    #[error("{0} writes block hashes as numbers only; choose vllm-0.10.2 or a later one for bytes")]
    NoDigests(&'static str),
}

/// How batches are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    layout: &'static Layout,
    hashes: Hashes,
    window: u32,
}

impl Encoding {
    /// `window`: tokens of a sliding window, for groups without full attention; 0 is not told.
    ///
    /// # Errors
    /// Where the layout has no such hashes.
    pub const fn new(
        layout: &'static Layout,
        hashes: Hashes,
        window: u32,
    ) -> Result<Self, EncodingError> {
        match hashes {
            Hashes::Bytes if !layout.digests => Err(EncodingError::NoDigests(layout.name)),
            _ => Ok(Self { layout, hashes, window }),
        }
    }

    /// The engine version whose events they are.
    #[must_use]
    pub const fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// Writes a batch.
    ///
    /// Not written, because the version has no place for it: `skipped`; a salt of blocks that don't begin a
    /// sequence; what it is that makes blocks opaque (where there are extra keys a made-up image stands in, so
    /// that readers see them as opaque too; blocks without tokens and block size need nothing).
    #[must_use]
    pub fn encode(&self, batch: &Batch) -> Vec<u8> {
        let mut out = ByteBuf::new();
        match self.write_batch(&mut out, batch) {
            Ok(()) => out.into_vec(),
            // Memory does not fail to be written to, and the types know.
            Err(
                ValueWriteError::InvalidMarkerWrite(no) | ValueWriteError::InvalidDataWrite(no),
            ) => match no {},
        }
    }

    fn write_batch(&self, out: &mut ByteBuf, batch: &Batch) -> Written {
        write_array_len(out, if batch.dp_rank.is_some() { 3 } else { 2 })?;
        write_f64(out, batch.ts)?;
        write_array_len(out, count(&batch.events))?;
        for event in &batch.events {
            match event {
                KvEvent::Stored(stored) => self.write_stored(out, stored)?,
                KvEvent::Removed(removed) => self.write_removed(out, removed)?,
                KvEvent::Cleared => self.head(out, "AllBlocksCleared", 0)?,
            }
        }
        batch.dp_rank.map_or(Ok(()), |rank| write_uint(out, rank.into()).map(drop))
    }

    fn write_stored(&self, out: &mut ByteBuf, event: &BlockStored) -> Written {
        let written = |column: &&Column| self.says(**column, event) || self.must(**column);
        let columns = self.layout.stored.iter().filter(written);
        self.head(out, "BlockStored", columns.clone().count())?;
        for column in columns {
            self.key(out, *column)?;
            if self.says(*column, event) {
                self.stored_field(out, *column, event)?;
            } else {
                write_none(out)?;
            }
        }
        Ok(())
    }

    fn write_removed(&self, out: &mut ByteBuf, event: &BlockRemoved) -> Written {
        let written = |column: &&Column| {
            **column != Column::Group || event.group.is_some() || self.must(**column)
        };
        let columns = self.layout.removed.iter().filter(written);
        self.head(out, "BlockRemoved", columns.clone().count())?;
        for column in columns {
            self.key(out, *column)?;
            match column {
                Column::Hashes => self.write_hashes(out, &event.block_hashes)?,
                Column::Group => write_number(out, event.group)?,
                _ => write_str(out, self.medium(event.medium))?,
            }
        }
        Ok(())
    }

    fn head(&self, out: &mut ByteBuf, tag: &str, fields: usize) -> Written {
        let len = u32::try_from(fields).unwrap_or(u32::MAX) + 1;
        match self.layout.form {
            Form::Array => write_array_len(out, len)?,
            Form::Map => write_map_len(out, len)?,
        };
        if self.layout.form == Form::Map {
            write_str(out, "type")?;
        }
        write_str(out, tag)
    }

    fn key(&self, out: &mut ByteBuf, column: Column) -> Written {
        match self.layout.form {
            Form::Array => Ok(()),
            Form::Map => write_str(out, column.name()),
        }
    }

    /// Whether it is there also where it has nothing to say.
    fn must(&self, column: Column) -> bool {
        !self.layout.optional.contains(&column)
    }

    /// Whether an event has something to say in a field.
    fn says(&self, column: Column, event: &BlockStored) -> bool {
        let hash_only = event.token_ids.is_empty() && event.block_size == 0;
        match column {
            Column::Parent => event.parent.is_some(),
            Column::LoraId => false,
            Column::LoraName => !event.lora_name.is_empty(),
            Column::ExtraKeys => !event.block_hashes.is_empty() && !hash_only,
            Column::Group => event.group.is_some(),
            // vLLM names the kind of cache together with the group; alone only where it says something.
            Column::Kind => event.group.is_some() || !event.full_attention,
            Column::Window => !event.full_attention && self.window > 0,
            Column::CacheSalt | Column::Metadata => !event.cache_salt.is_empty(),
            Column::Hashes | Column::Tokens | Column::BlockSize | Column::Medium => true,
        }
    }

    fn stored_field(&self, out: &mut ByteBuf, column: Column, event: &BlockStored) -> Written {
        match column {
            Column::Hashes => self.write_hashes(out, &event.block_hashes),
            Column::Parent => event.parent.map_or(Ok(()), |parent| self.write_hash(out, parent)),
            Column::Tokens => {
                write_array_len(out, count(&event.token_ids))?;
                let mut tokens = event.token_ids.iter();
                tokens.try_for_each(|token| write_uint(out, (*token).into()).map(drop))
            }
            Column::BlockSize => write_number(out, Some(event.block_size)),
            Column::LoraId => write_none(out),
            Column::Medium => write_str(out, self.medium(event.medium)),
            Column::LoraName => write_str(out, &event.lora_name),
            Column::ExtraKeys => write_extra_keys(out, event),
            Column::Group => write_number(out, event.group),
            Column::Kind => {
                let sliding = !event.full_attention;
                write_str(out, if sliding { "sliding_window" } else { "full_attention" })
            }
            Column::Window => write_number(out, Some(self.window)),
            Column::CacheSalt => write_str(out, &event.cache_salt),
            Column::Metadata => {
                write_map_len(out, 1)?;
                write_str(out, "cache_salt")?;
                write_str(out, &event.cache_salt)
            }
        }
    }

    fn medium(&self, medium: Medium) -> &'static str {
        self.layout.media[medium as usize]
    }

    fn write_hashes(&self, out: &mut ByteBuf, hashes: &[EngineHash]) -> Written {
        write_array_len(out, count(hashes))?;
        hashes.iter().try_for_each(|hash| self.write_hash(out, *hash))
    }

    fn write_hash(&self, out: &mut ByteBuf, hash: EngineHash) -> Written {
        match self.hashes {
            Hashes::Int if self.layout.signed => write_sint(out, hash.0.cast_signed()).map(drop),
            Hashes::Int => write_uint(out, hash.0).map(drop),
            Hashes::Bytes => write_bin(out, &digest(hash)),
        }
    }
}

impl Default for Encoding {
    /// As vLLM's latest does it unless told otherwise.
    fn default() -> Self {
        Self { layout: Layout::latest(), hashes: Hashes::Int, window: 0 }
    }
}

/// Writes a batch as vLLM's latest does.
#[must_use]
pub fn encode_batch(batch: &Batch) -> Vec<u8> {
    Encoding::default().encode(batch)
}

/// 32 bytes that end with the hash, and look like a digest before.
fn digest(hash: EngineHash) -> [u8; 32] {
    let mut bytes = [0; 32];
    let (mut word, chunks) = (hash.0, bytes.rchunks_exact_mut(8));
    for chunk in chunks {
        chunk.copy_from_slice(&word.to_be_bytes());
        word = (word ^ (word >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    }
    bytes
}

/// Per block nil or its keys, in vLLM's order: adapter, image, salt.
fn write_extra_keys(out: &mut ByteBuf, event: &BlockStored) -> Written {
    write_array_len(out, count(&event.block_hashes))?;
    for block in 0..event.block_hashes.len() {
        let adapter = !event.lora_name.is_empty();
        let salt = block == 0 && event.parent.is_none() && !event.cache_salt.is_empty();
        match u32::from(adapter) + u32::from(event.opaque) + u32::from(salt) {
            0 => write_none(out)?,
            n => write_array_len(out, n).map(drop)?,
        }
        if adapter {
            write_str(out, &event.lora_name)?;
        }
        if event.opaque {
            write_array_len(out, 2)?;
            write_str(out, "opaque")?;
            write_uint(out, 0)?;
        }
        if salt {
            write_str(out, &event.cache_salt)?;
        }
    }
    Ok(())
}

fn write_number(out: &mut ByteBuf, value: Option<u32>) -> Written {
    match value {
        Some(value) => write_uint(out, value.into()).map(drop),
        None => write_none(out),
    }
}

fn write_none(out: &mut ByteBuf) -> Written {
    write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)
}

/// A length as msgpack counts; what memory holds of these is far below 2^32.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}
