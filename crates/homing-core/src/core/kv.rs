//! KV events on their way into an index, in slices: a message can be megabytes long, and whoever waits
//! for the registry or the index waits for one slice of it at most. What may have changed in between
//! (whether the worker still lives, and where) is looked at anew for each.

use super::SelectionCore;
use super::known::PAGES;
use crate::ids::{DpRank, WorkerId};
use crate::index::event::KvEvent;
use crate::index::naive::Applied;
use crate::time::Time;
use smallvec::SmallVec;

/// Blocks of KV events that are applied before others get at the locks: some 10 us.
const SLICE: usize = 64;
/// What an event costs besides its blocks.
const EVENT: usize = 4;
/// Tokens that cost as much to hash as a block costs otherwise.
const LONG_BLOCK: usize = 64;

/// Slices after which the index is measured.
const MEASURE_EACH: usize = 64;

/// What a block of the event counts for: long ones are hashed for longer.
fn weight(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored(stored) => 1 + stored.block_size as usize / LONG_BLOCK,
        KvEvent::Removed(_) | KvEvent::Cleared => 1,
    }
}

/// What became of a slice of KV events.
struct Slice {
    /// Of each event that is over.
    results: SmallVec<[Applied; SLICE / EVENT]>,
    /// Blocks of the next one that are applied already.
    part: usize,
}

impl SelectionCore {
    /// A worker's cache has changed. Events of a life that has ended, or of a worker that serves
    /// nothing yet, are ignored. They are applied in slices, so that requests need not wait for the
    /// last of many; `applied` is called in between, in the order of the events.
    pub fn handle_kv(
        &self,
        _now: Time,
        worker: WorkerId,
        rank: DpRank,
        events: &[KvEvent],
        mut applied: impl FnMut(&KvEvent, Applied),
    ) {
        let (mut rest, mut done, mut slices) = (events, 0, 0_usize);
        while !rest.is_empty() {
            let Some(slice) = self.kv_slice(worker, rank, rest, done) else {
                return rest.iter().for_each(|e| applied(e, Applied::Ignored));
            };
            let (over, left) = rest.split_at(slice.results.len());
            over.iter().zip(slice.results).for_each(|(e, result)| applied(e, result));
            (rest, done) = (left, slice.part);
            slices += 1;
            if slices.is_multiple_of(MEASURE_EACH) {
                self.keep_within(worker, false);
            }
        }
        self.keep_within(worker, events.iter().any(|e| matches!(e, KvEvent::Cleared)));
    }

    /// Makes room if the worker's index has grown too large. `cleared`: something is to be swept out of it.
    fn keep_within(&self, worker: WorkerId, cleared: bool) {
        let place = self.registry.read().place(worker);
        let Some(cell) = place.and_then(|p| self.cell(p)) else { return };
        if cleared {
            while cell.index(|index| index.sweep(PAGES)) {}
        }
        self.measure(&cell);
        self.make_room(usize::MAX);
    }

    /// Applies events until a slice is full; of the first one `done` blocks have been applied before.
    /// `None`: the worker has no place.
    fn kv_slice(
        &self,
        worker: WorkerId,
        rank: DpRank,
        events: &[KvEvent],
        done: usize,
    ) -> Option<Slice> {
        // Kept while the index is written: a worker that departs in between would leave its blocks (F21).
        let registry = self.registry.read();
        let cell = self.cell(registry.place(worker)?)?;
        cell.index(|index| {
            let mut slice = Slice { results: SmallVec::new(), part: done };
            let mut room = SLICE;
            for event in events {
                let (all, from, each) = (event.blocks(), slice.part, weight(event));
                let to = all.min(from + (room / each).max(1));
                let result = index.apply_part(worker, rank, event, from..to);
                if result == Applied::Yes && to < all {
                    slice.part = to;
                    break;
                }
                slice.results.push(result);
                slice.part = 0;
                room = room.saturating_sub((to - from) * each + EVENT);
                if room == 0 {
                    break;
                }
            }
            // What was cleared is swept out as it goes, or one message of nothing but that takes all numbers.
            index.sweep(PAGES);
            Some(slice)
        })
    }
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
