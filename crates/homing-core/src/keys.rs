//! Which entry a key has (a session's, a block's): an extendible hash table (Fagin and others, 1979) of
//! small segments.
//!
//! A plain hash map moves everything when it grows, and with ten million keys that stalls every request
//! for a second. Here a full segment splits in two, and two that are half empty become one: the most that
//! one call ever does is to move 4,096 cells and, each time the keys have doubled, to copy the directory of
//! 4 bytes a segment.
//!
//! A cell holds 32 bits of the key's hash and the entry's number, so a look-up touches one cache line
//! here and one there, and nothing but cells is read when a segment splits.
//!
//! One thread changes it. Others may look keys up meanwhile, and never wait: a segment that they look into
//! stays whole, and they notice where a cell may have slipped past them, and look again.

use crate::shelf::Shelf;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

/// Cells of a segment, as a power of two.
const BITS: u32 = 12;
const CELLS: usize = 1 << BITS;
/// Cells of a line of the cache.
const LINE: usize = 8;
/// A segment splits when it has more than this: linear probing gets slow beyond 7/8.
const FULL: u16 = (CELLS / 8 * 7) as u16;
/// Two segments become one when both together have at most this, and one of them at most half of it: then
/// there is room for as many again before that one splits.
const SPARSE: u16 = (CELLS / 2) as u16;
/// Bits of the hash that choose the segment, at most: the others choose the cell.
const DEEPEST: u8 = 32 - BITS as u8;

const EMPTY: u64 = 0;
/// So often a reader looks again where keys were moving about; then it has found nothing.
const TRIES: usize = 32;

#[derive(Debug)]
struct Segment {
    /// `hash << 32 | entry + 1`.
    cells: [AtomicU64; CELLS],
}

/// A segment, and what its writer knows of it: beside its cells that would be one more wait for memory.
#[derive(Clone, Debug)]
struct Kept {
    segment: Arc<Segment>,
    prefix: u32,
    depth: u8,
    len: u16,
}

/// By the first `depth` bits of the hash: the segment. Readers of the last one, which was half as long, notice
/// that it leads them astray.
#[derive(Debug, Default)]
struct Directory {
    depth: AtomicU8,
    /// By depth. Those before the last are only kept: they take as much as that one.
    places: [OnceLock<Box<[AtomicU32]>>; DEEPEST as usize + 1],
}

/// Where readers look keys up, who never wait for the one who changes them.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    directory: Directory,
    segments: Shelf<Segment>,
    /// Cells and segments that were moved: a reader may have passed by where one is now. Counted for all
    /// together, since beside the cells it would be one more wait for memory.
    moves: AtomicU64,
}

/// See the module. It belongs to one writer; [`Finder`] is for others.
#[derive(Debug)]
pub(crate) struct Keys {
    /// By the first `depth` bits of the hash: the segment.
    directory: Vec<u32>,
    depth: u8,
    segments: Vec<Kept>,
    finder: Arc<Finder>,
    /// One whose keys are in others now.
    spare: Option<Arc<Segment>>,
    len: usize,
    /// Keys that came or went so far.
    changes: u64,
}

/// The hash of a key. Keys are keyed hashes already (nobody can aim); this only mixes both halves, so
/// that small numbers in tests spread too.
fn hash(key: u128) -> u32 {
    let folded = (key as u64) ^ ((key >> 64) as u64);
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

/// Where a key goes that was not there: worth something until the table changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    hash: u32,
    at: usize,
    changes: u64,
}

fn cell(hash: u32, entry: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(entry + 1)
}

fn hash_of(cell: u64) -> u32 {
    (cell >> 32) as u32
}

fn entry_of(cell: u64) -> u32 {
    (cell as u32) - 1
}

fn home(hash: u32) -> usize {
    hash as usize & (CELLS - 1)
}

/// A shift by all 32 bits has no meaning: widened.
fn place(hash: u32, depth: u8) -> usize {
    (u64::from(hash) >> (32 - u32::from(depth))) as usize
}

impl Directory {
    fn segment(&self, hash: u32) -> Option<u32> {
        let depth = self.depth.load(Acquire);
        let places = self.places.get(usize::from(depth))?.get()?;
        Some(places.get(place(hash, depth))?.load(Acquire))
    }

    /// Another one takes its place, of twice the length.
    fn grow(&self, depth: u8, places: &[u32]) {
        // Each depth comes once in the life of a table: no directory ever shrinks.
        self.places[usize::from(depth)]
            .get_or_init(|| places.iter().map(|number| AtomicU32::new(*number)).collect());
        self.depth.store(depth, Release);
    }

    fn point(&self, depth: u8, range: Range<usize>, number: u32) {
        if let Some(places) = self.places[usize::from(depth)].get() {
            places[range].iter().for_each(|place| place.store(number, Release));
        }
    }
}

impl Segment {
    fn new() -> Self {
        let cells = [const { AtomicU64::new(EMPTY) }; CELLS];
        Self { cells }
    }

    fn used(&self) -> impl Iterator<Item = u64> {
        self.cells.iter().map(|c| c.load(Relaxed)).filter(|c| *c != EMPTY)
    }

    /// Puts a cell that is not there yet into a segment that has room.
    fn put(&self, cell: u64) {
        let mut at = home(hash_of(cell));
        while self.cells[at].load(Relaxed) != EMPTY {
            at = (at + 1) & (CELLS - 1);
        }
        self.cells[at].store(cell, Release);
    }

    /// The entry of a key, and the cell that leads to it; or else the empty one where the search ended.
    fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Result<(usize, u32), usize> {
        let mut at = home(hash);
        // Bounded, since under a reader cells may move on for ever.
        for _ in 0..CELLS {
            let cell = self.cells[at].load(Acquire);
            if cell == EMPTY {
                break;
            }
            if hash_of(cell) == hash && is(entry_of(cell)) {
                return Ok((at, entry_of(cell)));
            }
            at = (at + 1) & (CELLS - 1);
        }
        Err(at)
    }

    /// Empties a cell, and moves up what would not be found behind the gap.
    fn clear(&self, mut gap: usize, finder: &Finder) {
        let mut at = gap;
        loop {
            at = (at + 1) & (CELLS - 1);
            let cell = self.cells[at].load(Relaxed);
            if cell == EMPTY {
                break;
            }
            let way = |from: usize, to: usize| to.wrapping_sub(from) & (CELLS - 1);
            // It may move into the gap unless its home lies behind it.
            if way(home(hash_of(cell)), at) >= way(gap, at) {
                self.cells[gap].store(cell, Release);
                // Before its old place has another: so it is in one of them at each moment, and who saw it
                // in neither sees that it moved.
                finder.moved();
                gap = at;
            }
        }
        self.cells[gap].store(EMPTY, Release);
    }
}

impl Kept {
    fn new(segment: Arc<Segment>, prefix: u32, depth: u8) -> Self {
        Self { segment, prefix, depth, len: 0 }
    }

    fn put(&mut self, cell: u64) {
        self.segment.put(cell);
        self.len += 1;
    }
}

impl Finder {
    /// The entry of `key`, as [`Keys::find`] says it; `is` must be sure of what it says, since entries come and
    /// go meanwhile.
    pub(crate) fn find(&self, key: u128, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = hash(key);
        for _ in 0..TRIES {
            let moves = self.moves.load(Acquire);
            let number = self.directory.segment(hash)?;
            let found = self.segments.look(number)?;
            if let Some(Ok((_, entry))) = found.as_ref().map(|s| s.find(hash, &mut is)) {
                return Some(entry);
            }
            // Nothing was missed: no cell moved, and no segment.
            if self.moves.load(Acquire) == moves {
                return None;
            }
        }
        None
    }

    fn moved(&self) {
        self.moves.store(self.moves.load(Relaxed) + 1, Release);
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    pub(crate) fn new() -> Self {
        let finder = Finder::default();
        finder.directory.grow(0, &[0]);
        let keys = Self {
            directory: vec![0],
            depth: 0,
            segments: vec![Kept::new(Arc::new(Segment::new()), 0, 0)],
            finder: Arc::new(finder),
            spare: None,
            len: 0,
            changes: 0,
        };
        keys.show(0);
        keys
    }

    /// For readers, until this is dropped.
    pub(crate) fn finder(&self) -> &Arc<Finder> {
        &self.finder
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        (self.segments.len() + usize::from(self.spare.is_some())) * size_of::<Segment>()
            + self.segments.capacity() * size_of::<Kept>()
            + (self.directory.capacity() + 2 * self.directory.len()) * size_of::<u32>()
            + self.finder.segments.bytes()
    }

    fn segment(&self, hash: u32) -> usize {
        self.directory[place(hash, self.depth)] as usize
    }

    /// Brings what [`Self::find`] will read of a key near the processor. What it returns says nothing.
    pub(crate) fn touch(&self, key: u128) -> u64 {
        let hash = hash(key);
        let cells = &self.segments[self.segment(hash)].segment.cells;
        // Where segments are full the search goes on beyond one line of the cache.
        [home(hash), (home(hash) + LINE) & (CELLS - 1)]
            .iter()
            .fold(0, |seen, at| seen ^ cells[*at].load(Relaxed))
    }

    /// The entry of `key`; `is` says whether an entry is of this very key.
    pub(crate) fn find(&self, key: u128, is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.find_or_gap(key, is).ok()
    }

    /// The same; or else where the key goes.
    pub(crate) fn find_or_gap(&self, key: u128, is: impl FnMut(u32) -> bool) -> Result<u32, Gap> {
        let hash = hash(key);
        let found = self.segments[self.segment(hash)].segment.find(hash, is);
        found.map(|(_, entry)| entry).map_err(|at| Gap { hash, at, changes: self.changes })
    }

    /// Adds a key that is not there. False: it has no place, since 3,584 keys share the first
    /// [`DEEPEST`] bits of their hashes, which keyed ones never do.
    pub(crate) fn insert(&mut self, key: u128, entry: u32) -> bool {
        self.put(hash(key), entry)
    }

    /// The same, of a key that was just looked for: most often there is no need to search for its place again.
    pub(crate) fn insert_at(&mut self, gap: Gap, entry: u32) -> bool {
        let number = self.segment(gap.hash);
        let kept = &mut self.segments[number];
        if gap.changes != self.changes || kept.len >= FULL {
            return self.put(gap.hash, entry);
        }
        kept.segment.cells[gap.at].store(cell(gap.hash, entry), Release);
        kept.len += 1;
        (self.len, self.changes) = (self.len + 1, self.changes + 1);
        true
    }

    fn put(&mut self, hash: u32, entry: u32) -> bool {
        loop {
            let number = self.segment(hash);
            let kept = &mut self.segments[number];
            if kept.len < FULL {
                kept.put(cell(hash, entry));
                (self.len, self.changes) = (self.len + 1, self.changes + 1);
                return true;
            }
            if kept.depth == DEEPEST {
                return false;
            }
            self.split(number, hash);
        }
    }

    /// Forgets a key.
    pub(crate) fn remove(&mut self, key: u128, entry: u32) {
        let hash = hash(key);
        let number = self.segment(hash);
        let kept = &mut self.segments[number];
        if let Ok((at, _)) = kept.segment.find(hash, |e| e == entry) {
            kept.segment.clear(at, &self.finder);
            kept.len -= 1;
            (self.len, self.changes) = (self.len - 1, self.changes + 1);
            if self.segments[number].len <= SPARSE / 2 {
                self.merge(number);
            }
        }
    }

    /// An empty segment: the spare one, unless a reader still looks into it.
    fn fresh(&mut self) -> Arc<Segment> {
        if let Some(mut spare) = self.spare.take()
            && let Some(segment) = Arc::get_mut(&mut spare)
        {
            segment.cells.iter_mut().for_each(|cell| *cell.get_mut() = EMPTY);
            return spare;
        }
        Arc::new(Segment::new())
    }

    /// In such an order that a reader finds each key at each moment, in the old segment or in a new one.
    fn split(&mut self, number: usize, hash: u32) {
        let Kept { segment: old, prefix, depth, .. } = self.segments[number].clone();
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|s| [*s, *s]).collect();
            self.depth += 1;
            self.finder.directory.grow(self.depth, &self.directory);
        }
        debug_assert_eq!(self.segment(hash), number, "a foreign segment");
        let bit = 1 << (31 - depth);
        let mut low = Kept::new(self.fresh(), prefix, depth + 1);
        let mut high = Kept::new(self.fresh(), prefix | bit, depth + 1);
        for cell in old.used() {
            if hash_of(cell) & bit == 0 { &mut low } else { &mut high }.put(cell);
        }
        self.segments.push(high);
        self.show(self.segments.len() - 1);
        self.point_to(self.segments.len() - 1);
        self.segments[number] = low;
        self.show(number);
        self.spare = Some(old);
    }

    /// Joins a nearly empty segment with its other half, and the result with its own, as far as that goes.
    fn merge(&mut self, mut number: usize) {
        loop {
            let Kept { segment: gone, prefix, depth, len } = self.segments[number].clone();
            if depth == 0 || len > SPARSE / 2 {
                return;
            }
            let other = self.segment(prefix ^ 1 << (32 - u32::from(depth)));
            let whole = &mut self.segments[other];
            if whole.depth != depth || whole.len + len > SPARSE {
                return;
            }
            gone.used().for_each(|c| whole.put(c));
            (whole.depth, whole.prefix) = (depth - 1, prefix.min(whole.prefix));
            self.point_to(other);
            // The last one takes the number that is free now.
            let last = self.segments.len() - 1;
            self.segments.swap_remove(number);
            if number != last {
                self.show(number);
                self.point_to(number);
            }
            // Whoever finds nothing there was led there before the places led elsewhere, and notices.
            self.finder.moved();
            self.finder.segments.put(last as u32, None);
            self.spare = Some(gone);
            if other != last {
                number = other;
            }
        }
    }

    /// Readers find the segment under its number. Who was led there and means another notices it.
    fn show(&self, number: usize) {
        self.finder.moved();
        self.finder.segments.put(number as u32, Some(self.segments[number].segment.clone()));
    }

    /// Its places lead to the segment: they lie together.
    fn point_to(&mut self, number: usize) {
        let Kept { depth, prefix, .. } = self.segments[number];
        let first = place(prefix, self.depth);
        let range = first..first + (1usize << (self.depth - depth));
        self.directory[range.clone()].fill(number as u32);
        self.finder.directory.point(self.depth, range, number as u32);
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self, key_of: impl Fn(u32) -> Option<u128>) {
        let mut all = 0;
        for (number, kept) in self.segments.iter().enumerate() {
            let segment = &kept.segment;
            assert_eq!(segment.used().count(), usize::from(kept.len), "a segment's length");
            assert_eq!(self.segment(kept.prefix), number, "a segment that nothing leads to");
            all += usize::from(kept.len);
            for cell in segment.used() {
                let hash_of = hash_of(cell);
                assert_eq!(self.segment(hash_of), number, "a cell in a foreign segment");
                let key = key_of(entry_of(cell));
                assert_eq!(key.map(hash), Some(hash_of), "a cell of another key");
                let is = |entry| entry == entry_of(cell);
                assert!(segment.find(hash_of, is).is_ok(), "a cell that is not found");
                let key = key.unwrap_or_default();
                assert!(self.finder.find(key, is).is_some(), "a cell that readers don't find");
            }
        }
        assert_eq!(all, self.len, "the number of keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn it_grows_and_shrinks_and_finds_everything_on_the_way() {
        let mut keys = Keys::new();
        let key = |i: u32| u128::from(i).wrapping_mul(0x1234_5678_9abc_def1_0fed_cba9_8765_4321);
        const N: u32 = 100_000;
        for i in 0..N {
            assert!(keys.insert(key(i), i));
        }
        keys.check(|e| Some(key(e)));
        assert!(keys.segments.len() > 16);
        for i in 0..N {
            assert_eq!(keys.find(key(i), |e| e == i), Some(i));
            assert_eq!(keys.find(key(i + N), |e| e == i + N), None);
        }
        for i in (0..N).filter(|i| i % 3 > 0) {
            keys.remove(key(i), i);
        }
        keys.check(|e| Some(key(e)));
        for i in 0..N {
            assert_eq!(keys.find(key(i), |e| e == i), (i % 3 == 0).then_some(i));
        }
        assert_eq!(keys.len(), (N as usize).div_ceil(3));
        let (full, most) = (keys.bytes(), keys.segments.len());
        for i in (0..N).filter(|i| i % 3 == 0) {
            keys.remove(key(i), i);
            if i % 999 == 0 {
                keys.check(|e| Some(key(e)));
            }
        }
        assert!(keys.segments.len() * 20 <= most, "{} of {most} are left", keys.segments.len());
        assert!(keys.bytes() * 10 < full);
        assert!(keys.insert(key(7), 7) && keys.find(key(7), |e| e == 7) == Some(7));
    }

    #[test]
    fn keys_that_all_collide_are_refused_at_last_and_nothing_breaks() {
        let mut keys = Keys::new();
        // Equal halves fold to zero: one hash for all.
        let key = |i: u128| i << 64 | i;
        let mut held = 0;
        while keys.insert(key(held), held as u32) {
            held += 1;
        }
        assert_eq!(held, u128::from(FULL));
        assert_eq!(keys.find(key(7), |e| e == 7), Some(7));
        assert!(keys.insert(1, 9_999), "another hash still has room");
        keys.remove(key(0), 0);
        assert!(keys.insert(key(0), 0));
        keys.check(|e| Some(if e == 9_999 { 1 } else { key(u128::from(e)) }));
    }

    /// Whatever comes and goes around them, keys that stay are found by readers.
    #[test]
    fn readers_find_what_stays_while_the_table_grows_and_shrinks() {
        const STAY: u32 = 2_000;
        let key = |i: u32| u128::from(i).wrapping_mul(0x1234_5678_9abc_def1_0fed_cba9_8765_4321);
        let mut keys = Keys::new();
        (0..STAY).for_each(|i| assert!(keys.insert(key(i), i)));
        let (finder, over) = (keys.finder().clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let read = || {
                while !over.load(Relaxed) {
                    for i in 0..STAY {
                        assert_eq!(finder.find(key(i), |e| e == i), Some(i));
                        assert_eq!(finder.find(key(i + 900_000), |e| e == i + 900_000), None);
                    }
                }
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            for round in 1..6 {
                (STAY..round * 20_000).for_each(|i| assert!(keys.insert(key(i), i)));
                (STAY..round * 20_000).for_each(|i| keys.remove(key(i), i));
            }
            over.store(true, Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        keys.check(|e| Some(key(e)));
    }

    proptest! {
        /// Few distinct hashes, so that they collide, wrap around and leave gaps.
        #[test]
        fn it_equals_a_map(ops in prop::collection::vec((any::<bool>(), 0u8..40), 0..400)) {
            let mut keys = Keys::new();
            let (mut model, mut gaps) = (BTreeMap::new(), BTreeMap::new());
            let key = |k: u8| u128::from(k % 8) << 64 | u128::from(k) << 96 | u128::from(k) << 32;
            for (entry, (put, k)) in ops.into_iter().enumerate() {
                let entry = entry as u32;
                match model.get(&k).copied() {
                    None if put => {
                        // Of another time, too: it is worth nothing, and does no harm.
                        let gap = gaps.entry(k).or_insert_with(|| {
                            keys.find_or_gap(key(k), |_| false).unwrap_err()
                        });
                        let put = match entry % 2 {
                            0 => keys.insert(key(k), entry),
                            _ => keys.insert_at(*gap, entry),
                        };
                        prop_assert!(put);
                        model.insert(k, entry);
                    }
                    Some(there) if !put => {
                        keys.remove(key(k), there);
                        model.remove(&k);
                    }
                    _ => {}
                }
                for k in 0..40 {
                    let want = model.get(&k).copied();
                    let found = keys.find(key(k), |e| model.iter().any(|(m, there)| *there == e && key(*m) == key(k)));
                    prop_assert_eq!(found, want);
                }
            }
            let of = |e: u32| model.iter().find(|m| *m.1 == e).map(|m| key(*m.0));
            keys.check(of);
        }
    }
}
