//! The ids of parts of texts that were encoded before, bounded in bytes.
//!
//! Keyed by what a part says, not by what precedes it: [`crate::cut`] sees to it that a part's ids
//! depend on its text alone. So a conversation that goes on finds all of itself but its end, two that
//! share a system prompt keep it once, and of one that was edited in the middle only the edited part
//! is encoded anew. The text is kept beside its ids and compared: a hash only finds, it never decides
//! (F30).
//!
//! Threads share it by up to [`SHARDS_MAX`] locks, each held for a map lookup; texts are compared and
//! freed outside of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The most locks. Each guards an equal share of the bytes.
const SHARDS_MAX: usize = 16;

/// The least bytes of a share: a part that is larger than one is not kept, and parts of some
/// megabytes happen (a whole file in a message).
const SHARE_MIN: usize = 4 << 20;

/// What an entry takes besides its text and ids, at most: places in the map and the ring, three
/// allocations with their headers and rounding. An estimate from the types' sizes.
const ENTRY: usize = 176;

/// How many used entries an insertion passes over before it drops the next one anyway: bounds the
/// time under a lock.
const GRACE: usize = 64;

/// A bounded store of encoded parts of prompts, for one model; see [`crate::ModelPrompt::with_cache`].
pub struct PromptCache {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes a shard may hold.
    share: usize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// What a [`PromptCache`] holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Parts that were found.
    pub hits: u64,
    /// Parts that had to be encoded.
    pub misses: u64,
    /// Parts that were dropped for others.
    pub evictions: u64,
    /// Parts that are held.
    pub entries: u64,
    /// Bytes that they take, an estimate of the bookkeeping included.
    pub bytes: u64,
}

/// One encoded part.
pub(crate) struct Part {
    text: Box<str>,
    ids: Box<[u32]>,
    /// Found again since it came, or since the ring came by.
    used: AtomicBool,
}

#[derive(Default)]
struct Shard {
    map: HashMap<u64, Arc<Part>>,
    /// The keys of the map, in the order in which they may go.
    ring: VecDeque<u64>,
    bytes: usize,
}

impl std::fmt::Debug for PromptCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PromptCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Default for PromptCache {
    /// Of [`Self::DEFAULT_BYTES`].
    fn default() -> Self {
        Self::new(Self::DEFAULT_BYTES)
    }
}

impl PromptCache {
    /// 64 MiB a model: some 7 million tokens, which are 70 conversations of 100 000 tokens each that
    /// share nothing. A token takes its 4 bytes of id and about as much text.
    pub const DEFAULT_BYTES: usize = 64 << 20;

    /// An empty cache of at most so many bytes; with 0 it keeps nothing. It takes memory only as it
    /// fills.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let shards = (bytes / SHARE_MIN).clamp(1, SHARDS_MAX);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            share: bytes / shards,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// What it holds and has done so far. Takes each lock in turn, so the sums are those of no one
    /// moment.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            ..CacheStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.entries += shard.map.len() as u64;
            stats.bytes += shard.bytes as u64;
        }
        stats
    }

    /// The name of a part's entry. The first part of a text is apart from the others.
    pub(crate) fn key(text: &str, first: bool) -> u64 {
        xxh3_64_with_seed(text.as_bytes(), u64::from(first))
    }

    /// A part, if it is here.
    pub(crate) fn get(&self, key: u64, text: &str) -> Option<Arc<Part>> {
        let part = self.shard(key).lock().map.get(&key).cloned();
        let Some(part) = part.filter(|part| *part.text == *text) else {
            self.misses.fetch_add(1, Relaxed);
            return None;
        };
        // Written only when it changes: a shared opener's line stays in every core's cache.
        if !part.used.load(Relaxed) {
            part.used.store(true, Relaxed);
        }
        self.hits.fetch_add(1, Relaxed);
        Some(part)
    }

    /// Keeps a part. An entry of the same key goes: it is the same part from another thread, or its
    /// hash collides.
    pub(crate) fn insert(&self, key: u64, text: &str, ids: &[u32]) {
        let part = Part { text: text.into(), ids: ids.into(), used: AtomicBool::new(false) };
        let size = part.size();
        if size > self.share {
            return;
        }
        // Declared before the lock is taken, so dropped after it is released.
        let mut gone = Vec::new();
        let mut evictions = 0;
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        match shard.map.insert(key, Arc::new(part)) {
            Some(old) => {
                shard.bytes -= old.size();
                gone.push(old);
            }
            None => shard.ring.push_back(key),
        }
        shard.bytes += size;
        let mut grace = GRACE;
        while shard.bytes > self.share {
            let Some(oldest) = shard.ring.pop_front() else { break };
            let used = shard.map.get(&oldest).is_some_and(|p| p.used.swap(false, Relaxed));
            let newest = oldest == key && !shard.ring.is_empty();
            if (used && grace > 0) || newest {
                grace = grace.saturating_sub(1);
                shard.ring.push_back(oldest);
            } else if let Some(old) = shard.map.remove(&oldest) {
                shard.bytes -= old.size();
                evictions += 1;
                gone.push(old);
            }
        }
        self.evictions.fetch_add(evictions, Relaxed);
    }

    fn shard(&self, key: u64) -> &Mutex<Shard> {
        // The map takes the key as a whole; which bits choose the shard doesn't matter to it.
        &self.shards[(key >> 32) as usize % self.shards.len()]
    }
}

impl Part {
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    fn size(&self) -> usize {
        self.text.len() + 4 * self.ids.len() + ENTRY
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
