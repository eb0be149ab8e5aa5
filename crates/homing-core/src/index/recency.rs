//! What workers have that publish nothing: the prompts that were sent there, the least recently used ones
//! forgotten as their caches would forget them.
//!
//! A prompt is its text here, in chunks ([`crate::hash::Prompt::from_text`]): no tokenizer is needed. Who
//! holds which chunk is kept by the same structure as in the exact index; a list a rank says what was used
//! last. Ends are older than what they stand on, so they go first, as in the engines (vLLM frees the
//! blocks of a request from its last to its first).

use super::chain::ChainReader;
use super::{ChainIndex, Overlaps};
use crate::fleet::{Cache, CacheSource};
use crate::hash::{ChainHash, Prompt, TEXT_BLOCK};
use crate::ids::{DpRank, WorkerId};
use crate::time::Time;
use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Chunks that one step of [`RecencyIndex::make_room`] drops.
const STEP: usize = 256;
/// A list that has so much more room than it needs gives it back.
const SPARSE: usize = 4;
/// What a rank's cache holds where nobody has told, in tokens: that of a 70 GB accelerator with a model
/// that leaves it some 40 GB, at the usual 128 KB a token.
pub const USUAL_CAPACITY: u64 = 1 << 18;

/// The approximate index of one partition.
#[derive(Debug)]
pub struct RecencyIndex {
    chains: ChainIndex,
    lists: BTreeMap<(WorkerId, DpRank), List>,
    /// Shown to readers as a whole.
    caches: Arc<ArcSwap<Caches>>,
    dropped: u64,
}

type Caches = BTreeMap<WorkerId, Cache>;

/// The index for those who look prompts up: they never wait for the one who writes it.
#[derive(Clone, Debug)]
pub struct TextReader {
    chains: ChainReader,
    caches: Arc<ArcSwap<Caches>>,
}

impl TextReader {
    /// Each target's overlap with a prompt's text, in chunks.
    #[must_use]
    pub fn overlaps(&self, text: &Prompt) -> Overlaps {
        self.chains.overlaps(text)
    }

    /// How a worker's cache is known.
    #[must_use]
    pub fn cache(&self, worker: WorkerId) -> Cache {
        self.caches.load().get(&worker).copied().unwrap_or_default()
    }
}

impl Default for RecencyIndex {
    fn default() -> Self {
        let (lists, caches, dropped) = Default::default();
        Self { chains: ChainIndex::nameless(TEXT_BLOCK), lists, caches, dropped }
    }
}

impl RecencyIndex {
    /// How a worker's cache is known, and how large it is. One whose cache is known otherwise keeps what it
    /// was sent: it may be all that is known of requests without tokens.
    pub fn set_cache(&mut self, worker: WorkerId, cache: Cache) {
        self.change_caches(|caches| caches.insert(worker, cache));
    }

    /// How a worker's cache is known.
    #[must_use]
    pub fn cache(&self, worker: WorkerId) -> Cache {
        self.caches.load().get(&worker).copied().unwrap_or_default()
    }

    /// For look-ups beside whoever changes it.
    #[must_use]
    pub fn reader(&self) -> TextReader {
        TextReader { chains: self.chains.reader(), caches: self.caches.clone() }
    }

    fn change_caches<T>(&self, change: impl FnOnce(&mut Caches) -> T) {
        let mut caches = Caches::clone(&self.caches.load());
        change(&mut caches);
        self.caches.store(Arc::new(caches));
    }

    /// Whether somebody is known by nothing but what was sent there.
    #[must_use]
    pub fn any_routed(&self) -> bool {
        self.caches.load().values().any(|cache| cache.source == CacheSource::Routed)
    }

    /// A prompt has been computed there: it is what was used last, and beyond the cache's capacity what was
    /// used longest ago is forgotten.
    pub fn routed(&mut self, worker: WorkerId, rank: DpRank, text: &Prompt) {
        let key = (worker, rank);
        let capacity = self.cache(worker).capacity.unwrap_or(USUAL_CAPACITY);
        if text.block_size != TEXT_BLOCK || text.chain.is_empty() || !self.chains.put(key, text) {
            return;
        }
        let list = self.lists.entry(key).or_default();
        text.chain.iter().rev().for_each(|chain| list.touch(*chain));
        let most = usize::try_from(capacity / u64::from(TEXT_BLOCK)).unwrap_or(usize::MAX).max(1);
        while list.len() > most {
            let Some(oldest) = list.pop() else { break };
            self.chains.take(key, oldest);
        }
    }

    /// See [`ChainIndex::bound_predictions`].
    pub fn bound_predictions(&mut self, bytes: usize) {
        self.chains.bound_predictions(bytes);
    }

    /// A prompt goes there: see [`ChainIndex::predict`].
    pub fn predict(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        text: &Prompt,
        from: usize,
        until: Time,
    ) {
        self.chains.predict(worker, rank, text, from, until);
    }

    /// See [`ChainIndex::next_expiry`].
    #[must_use]
    pub fn next_expiry(&self) -> Option<Time> {
        self.chains.next_expiry()
    }

    /// See [`ChainIndex::expire`].
    pub fn expire(&mut self, now: Time) -> bool {
        self.chains.expire(now)
    }

    /// Each target's overlap with a prompt's text, in chunks.
    #[must_use]
    pub fn overlaps(&self, text: &Prompt) -> Overlaps {
        self.chains.overlaps(text)
    }

    /// How many chunks a worker is thought to hold, over all its ranks.
    #[must_use]
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.chains.blocks(worker)
    }

    /// Forgets everything about a worker; what is left to do is [`Self::sweep`]'s.
    pub fn forget(&mut self, worker: WorkerId) {
        self.lists.retain(|(w, _), _| *w != worker);
        self.change_caches(|caches| caches.remove(&worker));
        self.chains.forget(worker);
    }

    /// See [`ChainIndex::sweep`].
    pub fn sweep(&mut self, pages: u32) -> bool {
        self.chains.sweep(pages)
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chains.bytes() + self.lists.values().map(List::bytes).sum::<usize>()
    }

    /// Chunks that were forgotten to make room, each once a target.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// One step towards `goal` bytes: the longest list loses what was used longest ago. True: there is more
    /// to do.
    pub fn make_room(&mut self, goal: usize) -> bool {
        if self.bytes() <= goal {
            return false;
        }
        let longest = self.lists.iter_mut().max_by_key(|(_, list)| list.len());
        let Some((key, list)) = longest else { return false };
        let key = *key;
        for _ in 0..STEP {
            let Some(oldest) = list.pop() else { break };
            self.chains.take(key, oldest);
            self.dropped += 1;
        }
        if list.len() == 0 {
            self.lists.remove(&key);
        } else if list.len() * SPARSE < list.links.len() {
            list.compact();
        }
        true
    }

    /// Invariants, for tests and debug builds.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        self.chains.check();
        for ((worker, _), list) in &self.lists {
            assert_eq!(list.links.len() - list.free.len(), list.len(), "links that are lost");
            assert!(list.len() <= self.blocks(*worker), "chunks that nobody holds");
        }
    }
}

const NONE: u32 = u32::MAX;

/// Chunks in the order of their use.
#[derive(Debug)]
struct List {
    at: HashMap<ChainHash, u32, FixedState>,
    links: Vec<Link>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    chain: ChainHash,
    older: u32,
    newer: u32,
}

impl Default for List {
    fn default() -> Self {
        let (at, links, free) = Default::default();
        Self { at, links, free, oldest: NONE, newest: NONE }
    }
}

impl List {
    fn len(&self) -> usize {
        self.at.len()
    }

    fn bytes(&self) -> usize {
        self.at.capacity() * (size_of::<(ChainHash, u32)>() + 1)
            + self.links.capacity() * size_of::<Link>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// It is used now.
    fn touch(&mut self, chain: ChainHash) {
        let link = Link { chain, older: self.newest, newer: NONE };
        let number = match self.at.get(&chain) {
            Some(number) if *number == self.newest => return,
            Some(number) => {
                let number = *number;
                self.unlink(number);
                number
            }
            None => {
                let number = self.free.pop().unwrap_or_else(|| {
                    self.links.push(link);
                    (self.links.len() - 1) as u32
                });
                self.at.insert(chain, number);
                number
            }
        };
        self.links[number as usize] = Link { older: self.newest, ..link };
        match self.links.get_mut(self.newest as usize) {
            Some(before) => before.newer = number,
            None => self.oldest = number,
        }
        self.newest = number;
    }

    /// The one that was used longest ago, which leaves.
    fn pop(&mut self) -> Option<ChainHash> {
        let number = self.oldest;
        let chain = self.links.get(number as usize)?.chain;
        self.unlink(number);
        self.at.remove(&chain);
        self.free.push(number);
        if self.at.is_empty() {
            *self = Self::default();
        }
        Some(chain)
    }

    /// Gives back the room of those that have left.
    fn compact(&mut self) {
        let (mut kept, mut next) = (Self::default(), self.oldest);
        while let Some(link) = self.links.get(next as usize) {
            kept.touch(link.chain);
            next = link.newer;
        }
        *self = kept;
    }

    fn unlink(&mut self, number: u32) {
        let Link { older, newer, .. } = self.links[number as usize];
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
#[path = "recency_tests.rs"]
mod tests;
