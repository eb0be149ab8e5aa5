//! What workers are known to have cached, from whichever source: looked up before a request is placed,
//! foreseen when it is dispatched, and noted when its worker has begun. And what all of it may take.
//!
//! A worker that publishes its events is known by them, block by block. Any other is known by what was
//! sent to it, as text. A request that has no exact tokens is compared with texts everywhere.

use super::{Cell, SelectionCore};
use crate::ask::{Ask, Grant};
use crate::fleet::{Cache, CacheSource};
use crate::hash::{Prompt, TEXT_BLOCK};
use crate::ids::{PartitionId, WorkerId};
use crate::index::Overlaps;
use crate::time::Time;
use std::sync::atomic::Ordering;

/// Pages of an index that are swept while others wait.
pub(super) const PAGES: u32 = 32;
/// Steps towards more room that a request's thread takes; ingest and the timer take as many as it needs.
const STEPS: usize = 4;
/// Once there is no room, this part of the budget is freed at once.
const SLACK: usize = 32;
/// The index of texts is measured with each so many of its changes, and after any long one.
const MEASURE_EACH: u64 = 64;
const LONG: usize = 1024;

/// What the indexes take, and have dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// Bytes, about.
    pub bytes: usize,
    /// Blocks and chunks that were dropped to stay within the budget, each once a target.
    pub dropped: u64,
}

impl SelectionCore {
    /// Whether requests should bring their text: somebody there is known by nothing else.
    #[must_use]
    pub fn wants_text(&self, partition: PartitionId) -> bool {
        self.cell(partition).is_some_and(|cell| cell.wants_text.load(Ordering::Relaxed))
    }

    /// Who holds how much of the request's prompt, into `ask.overlaps`. On the caller's thread, beside the
    /// partition's lock.
    pub fn look_up(&self, ask: &mut Ask) {
        let Some(cell) = self.cell(ask.partition) else { return };
        let exact = ask.prompt.exact;
        let mut found = if exact { cell.reader.overlaps(&ask.prompt) } else { Overlaps::new() };
        if !ask.text.chain.is_empty() {
            let texts = &cell.text_reader;
            for mut o in texts.overlaps(&ask.text) {
                if !compares_text(ask, texts.cache(o.worker).source) {
                    continue;
                }
                o.blocks = in_blocks(o.blocks, &ask.text, &ask.prompt);
                o.told = in_blocks(o.told, &ask.text, &ask.prompt);
                if o.blocks > 0 {
                    found.push(o);
                }
            }
            // Two sources of one worker: what says more comes first, and stays.
            found.sort_unstable_by_key(|o| (o.worker, o.rank, std::cmp::Reverse(o.total())));
            found.dedup_by_key(|o| (o.worker, o.rank));
        }
        ask.overlaps = found;
    }

    /// A prompt goes to its target: it counts as cached there for a while.
    pub(super) fn foresee(&self, now: Time, cell: &Cell, grant: &Grant) {
        if self.predict.is_zero() {
            return;
        }
        let (ask, worker, rank) = (&grant.ask, grant.worker.id, grant.rank);
        let until = now + self.predict;
        let source = cell.text_reader.cache(worker).source;
        if !ask.prompt.chain.is_empty() && source == CacheSource::Events {
            let here = |o: &&crate::index::Overlap| (o.worker, o.rank) == (worker, rank);
            let from = ask.overlaps.iter().find(here).map_or(0, |o| o.blocks as usize);
            cell.index(|index| index.predict(worker, rank, &ask.prompt, from, until));
        } else if compares_text(ask, source) {
            cell.text(|texts| texts.predict(worker, rank, &ask.text, 0, until));
        } else {
            return;
        }
        cell.expiry.fetch_min(until.as_micros(), Ordering::Relaxed);
    }

    /// The worker has begun with a prompt: it is in its cache.
    pub(super) fn note_routed(&self, cell: &Cell, grant: &Grant) {
        let (ask, worker) = (&grant.ask, grant.worker.id);
        if ask.text.chain.is_empty() {
            return;
        }
        let noted = cell.text(|texts| {
            let compares = compares_text(ask, texts.cache(worker).source);
            if compares {
                texts.routed(worker, grant.rank, &ask.text);
            }
            compares
        });
        if !noted {
            return;
        }
        let changes = cell.changes.fetch_add(1, Ordering::Relaxed);
        if changes.is_multiple_of(MEASURE_EACH) || ask.text.chain.len() >= LONG {
            self.measure(cell);
            self.make_room(STEPS);
        }
    }

    /// How a worker's cache is known from now on.
    pub(super) fn set_cache(&self, cell: &Cell, worker: WorkerId, cache: Cache) {
        cell.text(|texts| {
            texts.set_cache(worker, cache);
            cell.wants_text.store(texts.any_routed(), Ordering::Relaxed);
        });
    }

    /// Nothing is known of a worker any more. What is left to do is [`Self::sweep`]'s.
    pub(super) fn forget_cache(&self, cell: &Cell, worker: WorkerId) {
        cell.index(|index| index.forget(worker));
        cell.text(|texts| {
            texts.forget(worker);
            cell.wants_text.store(texts.any_routed(), Ordering::Relaxed);
        });
    }

    /// Takes what is left of those who have gone out of the indexes, a few pages at a time.
    pub(super) fn sweep(&self) {
        let cells = self.cells.read().clone();
        for cell in cells {
            while cell.index(|index| index.sweep(PAGES)) {}
            while cell.text(|texts| texts.sweep(PAGES)) {}
            self.measure(&cell);
        }
    }

    /// Ends the predictions that have not come true by now.
    pub(super) fn expire_predictions(&self, now: Time, cell: &Cell) {
        if cell.expiry.load(Ordering::Relaxed) > now.as_micros() {
            return;
        }
        // Before they are looked at: one that is made meanwhile is not lost.
        cell.expiry.store(u64::MAX, Ordering::Relaxed);
        while cell.index(|index| index.expire(now)) {}
        while cell.text(|texts| texts.expire(now)) {}
        let ends = [cell.index.lock().next_expiry(), cell.text.lock().next_expiry()];
        let next = ends.into_iter().flatten().min().map_or(u64::MAX, Time::as_micros);
        cell.expiry.fetch_min(next, Ordering::Relaxed);
        self.measure(cell);
    }

    /// What all indexes take.
    #[must_use]
    pub fn index_use(&self) -> IndexUse {
        let cells = self.cells.read();
        let dropped = cells.iter().map(|c| c.index.lock().dropped() + c.text.lock().dropped());
        IndexUse { bytes: self.index_bytes.load(Ordering::Relaxed), dropped: dropped.sum() }
    }

    /// Notes what a partition's indexes take.
    pub(super) fn measure(&self, cell: &Cell) {
        let bytes = cell.index.lock().bytes() + cell.text.lock().bytes();
        let before = cell.bytes.swap(bytes, Ordering::Relaxed);
        // Less is more by a wrapped number; adding wraps too.
        self.index_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// While all indexes together take more than they may, the largest loses what is cold; in so many
    /// steps at most, between which others get at it.
    pub(super) fn make_room(&self, steps: usize) {
        let budget = self.index_memory;
        if self.index_bytes.load(Ordering::Relaxed) <= budget {
            return;
        }
        let cells = self.cells.read().clone();
        for _ in 0..steps {
            let over =
                self.index_bytes.load(Ordering::Relaxed).saturating_sub(budget - budget / SLACK);
            let largest = cells.iter().max_by_key(|c| c.bytes.load(Ordering::Relaxed));
            let Some(cell) = largest.filter(|_| over > 0) else { return };
            let (blocks, texts) = (cell.index.lock().bytes(), cell.text.lock().bytes());
            let more = if blocks >= texts {
                cell.index(|index| index.make_room(blocks.saturating_sub(over)))
            } else {
                cell.text(|index| index.make_room(texts.saturating_sub(over)))
            };
            self.measure(cell);
            if !more {
                return;
            }
        }
    }
}

/// Whether the request's text says anything about a worker that is known like that.
fn compares_text(ask: &Ask, source: CacheSource) -> bool {
    !ask.text.chain.is_empty()
        && match source {
            CacheSource::Routed => true,
            CacheSource::Events => !ask.prompt.exact,
            CacheSource::Nothing => false,
        }
}

/// So many chunks of the text, in blocks of the prompt: the same part of both.
fn in_blocks(chunks: u32, text: &Prompt, prompt: &Prompt) -> u32 {
    if !prompt.exact {
        return chunks;
    }
    let part = u64::from(chunks) * u64::from(TEXT_BLOCK) * u64::from(prompt.tokens);
    let tokens = part / u64::from(text.tokens.max(1));
    let blocks = tokens / u64::from(prompt.block_size.max(1));
    u32::try_from(blocks).unwrap_or(u32::MAX).min(prompt.reusable_blocks())
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
