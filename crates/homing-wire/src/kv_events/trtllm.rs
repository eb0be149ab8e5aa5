//! TensorRT-LLM's KV events, as `trtllm-serve` answers them to `POST /kv_cache_events`: a JSON list of what
//! happened since the last one asked, which is gone from the engine once it was told.
//!
//! The facts are the ones of the other engines, in another shape, and some of them only make sense together
//! with earlier ones: how long a block is (nobody says it: partial blocks are told like whole ones), which
//! attention window is the largest, and what a block held that comes back from host memory. So there is a
//! [`Translator`] that remembers, a rank at a time, and all that it remembers is bounded.
//!
//! * `json`: the shape on the wire;
//! * `blocks`: what is remembered of blocks.

mod blocks;
mod json;

use crate::engine::MAX_RANKS;
use blocks::{Blocks, Space};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};
use homing_core::index::naive::MAX_BLOCK_SIZE;
use json::{Data, Diff, Hash, Number, Stored};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, VecDeque};

/// Why an answer can't be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer of /kv_cache_events is no list of events: {detail}")]
pub struct AnswerError {
    /// Where and how.
    pub detail: String,
}

/// What an event came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Something for the index.
    Event(KvEvent),
    /// So many of the rank's events before this one are lost for good.
    Lost(u64),
    /// The numbers go back: another process speaks, and what was told of all ranks is over.
    Reborn,
    /// An event that makes no sense, and why.
    Senseless(&'static str),
    /// An event that says nothing about prefixes.
    Ignored,
}

/// Events that wait until it is known how long a block is, each of a block of so many tokens at most.
const MAX_UNSIZED: usize = 64;
const MAX_UNSIZED_TOKENS: usize = 1024;
/// The longest name of an adapter, or salt, in bytes.
const MAX_TEXT: usize = 256;

/// Turns one engine's answers into events. See the module.
#[derive(Debug, Default)]
pub struct Translator {
    ranks: BTreeMap<u32, Rank>,
    /// Tokens per block, once an event has shown it.
    block_size: Option<usize>,
}

/// One attention-DP rank: it has a cache and numbers of its own.
#[derive(Debug, Default)]
struct Rank {
    last: Option<u64>,
    /// The largest attention window that was told of. Blocks of smaller ones say nothing about prefixes,
    /// and have the same names.
    window: Option<u64>,
    blocks: Blocks,
    /// What can't be judged before the size of a block is known.
    waiting: VecDeque<Data>,
}

impl Translator {
    /// Reads one answer; `tell` gets what it comes to, in order, with the rank, event by event: never more than one
    /// is held.
    ///
    /// # Errors
    /// Where it is no JSON list, or none any more from some place on: what was before that has been told, and what
    /// is behind it will be missed by its numbers. Single bad events are no errors.
    pub fn read(
        &mut self,
        answer: &[u8],
        mut tell: impl FnMut(u32, Told),
    ) -> Result<(), AnswerError> {
        json::each(answer, |raw| self.event(raw, &mut tell))
            .map_err(|error| AnswerError { detail: error.to_string() })
    }

    fn event(&mut self, raw: &RawValue, tell: &mut impl FnMut(u32, Told)) {
        let number = serde_json::from_str::<Number>(raw.get());
        let Ok(Number { event_id, attention_dp_rank, window_size }) = number else {
            return tell(0, Told::Senseless("an event whose number, rank or window is none"));
        };
        let rank = attention_dp_rank.unwrap_or(0);
        // An event without sense still has its number, or it would look like a lost one.
        let Some((state, size)) = self.next_of(rank, event_id, tell) else { return };
        let mut tell = |told| tell(rank, told);
        let Ok(data) = json::data(raw.get()) else {
            return tell(Told::Senseless("an event without the fields of its type"));
        };
        if state.is_of_largest_window(window_size, &mut tell) {
            state.waiting.push_back(data);
            *size = state.settle(*size, &mut tell);
        } else {
            tell(Told::Ignored);
        }
    }

    /// How long a block is, where that is known.
    #[must_use]
    pub const fn block_size(&self) -> Option<usize> {
        self.block_size
    }

    /// Forgets everything that it was told: another life begins.
    pub fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// The rank of an event, after a look at its number, and the size of a block. `None`: there is no room
    /// for another rank.
    fn next_of(
        &mut self,
        rank: u32,
        id: Option<u64>,
        tell: &mut impl FnMut(u32, Told),
    ) -> Option<(&mut Rank, &mut Option<usize>)> {
        if !self.ranks.contains_key(&rank) && self.ranks.len() >= MAX_RANKS {
            tell(rank, Told::Senseless("an event of more ranks than an engine can have"));
            return None;
        }
        let last = self.ranks.get(&rank).and_then(|state| state.last);
        let lost = match (last, id) {
            (Some(last), Some(id)) if id <= last => {
                self.begin_anew();
                tell(rank, Told::Reborn);
                0
            }
            (Some(last), Some(id)) => id - last - 1,
            _ => 0,
        };
        let state = self.ranks.entry(rank).or_default();
        state.last = id.or(last);
        if lost > 0 {
            state.forget_blocks();
            tell(rank, Told::Lost(lost));
        }
        Some((state, &mut self.block_size))
    }
}

impl Rank {
    /// Nothing that was told is believed any more.
    fn forget_blocks(&mut self) {
        self.blocks.forget();
        self.waiting.clear();
    }

    /// False for events of smaller windows. Engines announce all of theirs at the start (`created`), but
    /// whoever came later learns of them as they are told of.
    fn is_of_largest_window(&mut self, window: Option<u64>, tell: &mut impl FnMut(Told)) -> bool {
        let Some(window) = window else { return true };
        match self.window {
            Some(largest) if window <= largest => return window == largest,
            // What was taken so far was a smaller window's.
            Some(_) if !self.blocks.are_untouched() => tell(Told::Event(KvEvent::Cleared)),
            _ => {}
        }
        if self.window.replace(window).is_some() {
            self.forget_blocks();
        }
        true
    }

    /// Tells of what waits, as far as it can be judged; gives the size of a block, if it is known.
    fn settle(&mut self, known: Option<usize>, tell: &mut impl FnMut(Told)) -> Option<usize> {
        let size = known.or_else(|| self.shown_block_size());
        while let Some(data) = self.waiting.pop_front() {
            match data {
                Data::Stored(stored) => match size {
                    Some(size) => self.stored(stored, size, tell),
                    None if self.can_wait(&stored) => {
                        self.waiting.push_front(Data::Stored(stored));
                        break;
                    }
                    // As good as partial: what follows it will have no parent.
                    None => {
                        stored.blocks.iter().for_each(|b| self.blocks.add_partial(b.block_hash.0));
                        tell(Told::Ignored);
                    }
                },
                Data::Created(created) => {
                    let mut beyond = created.num_blocks_per_cache_level.iter().skip(1);
                    self.blocks.may_move(beyond.any(|blocks| *blocks > 0));
                    tell(Told::Ignored);
                }
                Data::Removed(removed) => self.removed(&removed.block_hashes, tell),
                Data::Updated(updated) => {
                    self.updated(updated.block_hash.0, updated.cache_level, tell);
                }
                Data::Unknown => tell(Told::Ignored),
            }
        }
        size
    }

    fn can_wait(&self, stored: &Stored) -> bool {
        self.waiting.len() < MAX_UNSIZED
            && stored.blocks.iter().all(|block| block.tokens.len() <= MAX_UNSIZED_TOKENS)
    }

    /// How long a block is, if the newest event shows it: one that has a successor is whole.
    fn shown_block_size(&self) -> Option<usize> {
        let Data::Stored(newest) = self.waiting.back()? else { return None };
        let whole = match newest.blocks.as_slice() {
            [first, _, ..] => first,
            _ => self.waiting.iter().find_map(|earlier| {
                let Data::Stored(earlier) = earlier else { return None };
                earlier.blocks.iter().find(|block| Some(block.block_hash) == newest.parent_hash)
            })?,
        };
        Some(whole.tokens.len()).filter(|size| (1..=MAX_BLOCK_SIZE as usize).contains(size))
    }

    /// Whole blocks become events, one a run of those that are in one place and alike.
    fn stored(&mut self, stored: Stored, size: usize, tell: &mut impl FnMut(Told)) {
        let text = |text: Option<String>| text.unwrap_or_default();
        let (lora_name, cache_salt) = (text(stored.lora_name), text(stored.cache_salt));
        if lora_name.len() > MAX_TEXT || cache_salt.len() > MAX_TEXT {
            return tell(Told::Senseless("the name of an adapter, or a salt, is too long"));
        }
        let space = Space { lora_name: lora_name.into(), cache_salt: cache_salt.into() };
        let mut parent = stored.parent_hash.map(|hash| hash.0);
        let mut run: Option<BlockStored> = None;
        // What follows a block that is more than its tokens is so too.
        let (mut opaque, mut partial) = (false, false);
        for block in stored.blocks {
            if partial || block.tokens.len() > size {
                tell(Told::Senseless("a block in mid-sequence is shorter or longer than others"));
                break;
            }
            let hash = block.block_hash.0;
            if block.tokens.len() < size {
                self.blocks.add_partial(hash);
                partial = true;
                continue;
            }
            opaque |= block.is_opaque();
            let medium = medium(block.cache_level);
            let tokens: Vec<u32> = block.tokens.into_iter().map(|token| token.id).collect();
            if !opaque {
                self.blocks.add(hash, parent, &tokens, &space, medium);
            }
            if let Some(done) = run.take_if(|run| run.medium != medium || run.opaque != opaque) {
                tell(Told::Event(KvEvent::Stored(done)));
            }
            let run = run.get_or_insert_with(|| BlockStored {
                parent,
                block_size: u32::try_from(size).unwrap_or(u32::MAX),
                lora_name: space.lora_name.to_string(),
                cache_salt: space.cache_salt.to_string(),
                opaque,
                medium,
                full_attention: true,
                ..BlockStored::default()
            });
            run.block_hashes.push(hash);
            run.token_ids.extend(tokens);
            parent = Some(hash);
        }
        match run {
            Some(run) => tell(Told::Event(KvEvent::Stored(run))),
            None => tell(Told::Ignored),
        }
    }

    fn removed(&mut self, hashes: &[Hash], tell: &mut impl FnMut(Told)) {
        let mut from: BTreeMap<Medium, Vec<EngineHash>> = BTreeMap::new();
        for Hash(hash) in hashes {
            if !self.blocks.remove_partial(*hash) {
                from.entry(self.blocks.remove(*hash)).or_default().push(*hash);
            }
        }
        if from.is_empty() {
            return tell(Told::Ignored);
        }
        for (medium, block_hashes) in from {
            let removed = BlockRemoved { block_hashes, medium, group: None };
            tell(Told::Event(KvEvent::Removed(removed)));
        }
    }

    /// A block has moved between the levels of the cache.
    fn updated(&mut self, hash: EngineHash, levels: Option<Diff>, tell: &mut impl FnMut(Told)) {
        let moved = levels.filter(|levels| levels.old_value != levels.new_value);
        let Some(levels) = moved.filter(|_| !self.blocks.is_partial(hash)) else {
            return tell(Told::Ignored);
        };
        let (old, new) = (medium(levels.old_value), medium(levels.new_value));
        let block_hashes = vec![hash];
        tell(Told::Event(KvEvent::Removed(BlockRemoved {
            block_hashes,
            medium: old,
            group: None,
        })));
        if let Some(stored) = self.blocks.moved(hash, new) {
            tell(Told::Event(KvEvent::Stored(stored)));
        }
    }
}

/// Level 0 is the GPU, level 1 host memory.
const fn medium(level: u32) -> Medium {
    match level {
        0 => Medium::Device,
        1 => Medium::Host,
        _ => Medium::Unknown,
    }
}

#[cfg(test)]
#[path = "trtllm_tests.rs"]
mod tests;
