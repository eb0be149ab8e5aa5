//! The way out: a batch as vLLM 0.30 and later write it, for the mock engine.
//!
//! Maps, in the order of vLLM's fields. Fields without a default are always there, if only as nil
//! (`parent_block_hash`, `lora_id`, `medium`, `lora_name`); those with one are left out when they equal
//! it (`extra_keys`, `group_idx`, `kv_cache_spec_kind`, ..). Read off the captures of vLLM 0.32.0.

use super::Batch;
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_f64, write_map_len, write_nil, write_str,
    write_uint,
};
use std::convert::Infallible;

type Written = Result<(), ValueWriteError<Infallible>>;

/// Writes a batch.
///
/// Not written, because vLLM has no place for it: `skipped`; the salt of blocks that don't begin a
/// sequence; what it is that makes blocks opaque (a made-up image stands in, so that readers see them
/// as opaque too; blocks without tokens and block size need nothing).
#[must_use]
pub fn encode_batch(batch: &Batch) -> Vec<u8> {
    let mut out = ByteBuf::new();
    match write_batch(&mut out, batch) {
        Ok(()) => out.into_vec(),
        // Memory does not fail to be written to, and the types know.
        Err(ValueWriteError::InvalidMarkerWrite(no) | ValueWriteError::InvalidDataWrite(no)) => {
            match no {}
        }
    }
}

fn write_batch(out: &mut ByteBuf, batch: &Batch) -> Written {
    write_array_len(out, if batch.dp_rank.is_some() { 3 } else { 2 })?;
    write_f64(out, batch.ts)?;
    write_array_len(out, count(&batch.events))?;
    for event in &batch.events {
        match event {
            KvEvent::Stored(stored) => write_stored(out, stored)?,
            KvEvent::Removed(removed) => write_removed(out, removed)?,
            KvEvent::Cleared => {
                write_map_len(out, 1)?;
                write_field(out, "type", "AllBlocksCleared")?;
            }
        }
    }
    batch.dp_rank.map_or(Ok(()), |rank| write_uint(out, rank.into()).map(drop))
}

fn write_stored(out: &mut ByteBuf, event: &BlockStored) -> Written {
    let hash_only = event.token_ids.is_empty() && event.block_size == 0;
    let extra_keys = !event.block_hashes.is_empty() && !hash_only;
    // vLLM names the kind of cache together with the group; alone only where it says something.
    let kind = event.group.is_some() || !event.full_attention;
    let optional = [extra_keys, event.group.is_some(), kind].iter().filter(|on| **on).count();
    write_map_len(out, 8 + u32::try_from(optional).unwrap_or(3))?;
    write_field(out, "type", "BlockStored")?;
    write_hashes(out, &event.block_hashes)?;
    write_str(out, "parent_block_hash")?;
    match event.parent {
        Some(parent) => write_uint(out, parent.0).map(drop)?,
        None => write_none(out)?,
    }
    write_str(out, "token_ids")?;
    write_array_len(out, count(&event.token_ids))?;
    for token in &event.token_ids {
        write_uint(out, (*token).into())?;
    }
    write_number(out, "block_size", event.block_size)?;
    write_str(out, "lora_id")?;
    write_none(out)?;
    write_field(out, "medium", medium(event.medium))?;
    write_str(out, "lora_name")?;
    write_optional(out, &event.lora_name)?;
    if extra_keys {
        write_extra_keys(out, event)?;
    }
    if let Some(group) = event.group {
        write_number(out, "group_idx", group)?;
    }
    if kind {
        let name = if event.full_attention { "full_attention" } else { "sliding_window" };
        write_field(out, "kv_cache_spec_kind", name)?;
    }
    Ok(())
}

/// Per block nil or its keys, in vLLM's order: adapter, image, salt.
fn write_extra_keys(out: &mut ByteBuf, event: &BlockStored) -> Written {
    write_str(out, "extra_keys")?;
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

fn write_removed(out: &mut ByteBuf, event: &BlockRemoved) -> Written {
    write_map_len(out, 3 + u32::from(event.group.is_some()))?;
    write_field(out, "type", "BlockRemoved")?;
    write_hashes(out, &event.block_hashes)?;
    write_field(out, "medium", medium(event.medium))?;
    event.group.map_or(Ok(()), |group| write_number(out, "group_idx", group))
}

fn write_hashes(out: &mut ByteBuf, hashes: &[EngineHash]) -> Written {
    write_str(out, "block_hashes")?;
    write_array_len(out, count(hashes))?;
    hashes.iter().try_for_each(|hash| write_uint(out, hash.0).map(drop))
}

fn write_field(out: &mut ByteBuf, name: &str, value: &str) -> Written {
    write_str(out, name)?;
    write_str(out, value)
}

fn write_number(out: &mut ByteBuf, name: &str, value: u32) -> Written {
    write_str(out, name)?;
    write_uint(out, value.into()).map(drop)
}

fn write_optional(out: &mut ByteBuf, text: &str) -> Written {
    if text.is_empty() { write_none(out) } else { write_str(out, text) }
}

fn write_none(out: &mut ByteBuf) -> Written {
    write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)
}

/// vLLM's names, and SGLang's for what vLLM has no name for.
const fn medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Device => "GPU",
        Medium::Host => "CPU",
        Medium::Disk => "STORAGE",
        Medium::Shared => "EXTERNAL",
        Medium::Unknown => "UNKNOWN",
    }
}

/// A length as msgpack counts; what memory holds of these is far below 2^32.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).unwrap_or(u32::MAX)
}
