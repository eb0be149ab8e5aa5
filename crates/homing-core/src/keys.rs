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

/// Cells of a segment, as a power of two.
const BITS: u32 = 12;
const CELLS: usize = 1 << BITS;
/// A segment splits when it has more than this: linear probing gets slow beyond 7/8.
const FULL: u16 = (CELLS / 8 * 7) as u16;
/// Two segments become one when both together have at most this, and one of them at most half of it: then
/// there is room for as many again before that one splits.
const SPARSE: u16 = (CELLS / 2) as u16;
/// Bits of the hash that choose the segment, at most: the others choose the cell.
const DEEPEST: u8 = 32 - BITS as u8;

const EMPTY: u64 = 0;

#[derive(Debug)]
struct Segment {
    /// `hash << 32 | entry + 1`.
    cells: Box<[u64; CELLS]>,
    /// The leading bits of the hash that its keys share, and how many these are.
    prefix: u32,
    depth: u8,
    len: u16,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Keys {
    /// By the first `depth` bits of the hash: the segment.
    directory: Vec<u32>,
    depth: u8,
    segments: Vec<Segment>,
    len: usize,
}

/// The hash of a key. Keys are keyed hashes already (nobody can aim); this only mixes both halves, so
/// that small numbers in tests spread too.
fn hash(key: u128) -> u32 {
    let folded = (key as u64) ^ ((key >> 64) as u64);
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
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

impl Segment {
    fn new(prefix: u32, depth: u8) -> Self {
        Self { cells: Box::new([EMPTY; CELLS]), prefix, depth, len: 0 }
    }

    /// Puts a cell that is not there yet into a segment that has room.
    fn put(&mut self, cell: u64) {
        let mut at = home(hash_of(cell));
        while self.cells[at] != EMPTY {
            at = (at + 1) & (CELLS - 1);
        }
        self.cells[at] = cell;
        self.len += 1;
    }

    fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<usize> {
        let mut at = home(hash);
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            if hash_of(cell) == hash && is(entry_of(cell)) {
                return Some(at);
            }
            at = (at + 1) & (CELLS - 1);
        }
    }

    /// Empties a cell, and moves up what would not be found behind the gap.
    fn clear(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = (at + 1) & (CELLS - 1);
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let way = |from: usize, to: usize| to.wrapping_sub(from) & (CELLS - 1);
            // It may move into the gap unless its home lies behind it.
            if way(home(hash_of(cell)), at) >= way(gap, at) {
                self.cells[gap] = cell;
                gap = at;
            }
        }
        self.cells[gap] = EMPTY;
        self.len -= 1;
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self { directory: vec![0], depth: 0, segments: vec![Segment::new(0, 0)], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.segments.len() * CELLS * size_of::<u64>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.directory.capacity() * size_of::<u32>()
    }

    fn place(&self, hash: u32) -> usize {
        // A shift by all 32 bits has no meaning: widened.
        (u64::from(hash) >> (32 - u32::from(self.depth))) as usize
    }

    fn segment(&self, hash: u32) -> usize {
        self.directory[self.place(hash)] as usize
    }

    /// The entry of `key`; `is` says whether an entry is of this very key.
    pub(crate) fn find(&self, key: u128, is: impl FnMut(u32) -> bool) -> Option<u32> {
        let hash = hash(key);
        let segment = &self.segments[self.segment(hash)];
        segment.find(hash, is).map(|at| entry_of(segment.cells[at]))
    }

    /// Adds a key that is not there. False: it has no place, since 3,584 keys share the first
    /// [`DEEPEST`] bits of their hashes, which keyed ones never do.
    pub(crate) fn insert(&mut self, key: u128, entry: u32) -> bool {
        let hash = hash(key);
        loop {
            let number = self.segment(hash);
            if self.segments[number].len < FULL {
                self.segments[number].put(cell(hash, entry));
                self.len += 1;
                return true;
            }
            if self.segments[number].depth == DEEPEST {
                return false;
            }
            self.split(number, hash);
        }
    }

    /// Forgets a key.
    pub(crate) fn remove(&mut self, key: u128, entry: u32) {
        let hash = hash(key);
        let number = self.segment(hash);
        let segment = &mut self.segments[number];
        if let Some(at) = segment.find(hash, |e| e == entry) {
            segment.clear(at);
            self.len -= 1;
            if self.segments[number].len <= SPARSE / 2 {
                self.merge(number);
            }
        }
    }

    fn split(&mut self, number: usize, hash: u32) {
        let Segment { depth, prefix, .. } = self.segments[number];
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|s| [*s, *s]).collect();
            self.depth += 1;
        }
        debug_assert_eq!(self.segment(hash), number, "a foreign segment");
        let bit = 1 << (31 - depth);
        let (mut low, mut high) =
            (Segment::new(prefix, depth + 1), Segment::new(prefix | bit, depth + 1));
        for cell in self.segments[number].cells.iter().copied().filter(|c| *c != EMPTY) {
            if hash_of(cell) & bit == 0 { &mut low } else { &mut high }.put(cell);
        }
        self.segments[number] = low;
        self.segments.push(high);
        self.point_to(self.segments.len() - 1);
    }

    /// Joins a nearly empty segment with its other half, and the result with its own, as far as that goes.
    fn merge(&mut self, mut number: usize) {
        loop {
            let Segment { depth, prefix, len, .. } = self.segments[number];
            if depth == 0 || len > SPARSE / 2 {
                return;
            }
            let other = self.segment(prefix ^ 1 << (32 - u32::from(depth)));
            let half = &self.segments[other];
            if half.depth != depth || half.len + len > SPARSE {
                return;
            }
            let gone = std::mem::replace(&mut self.segments[number], Segment::new(0, 0));
            let whole = &mut self.segments[other];
            gone.cells.iter().copied().filter(|c| *c != EMPTY).for_each(|c| whole.put(c));
            (whole.depth, whole.prefix) = (depth - 1, prefix.min(whole.prefix));
            self.point_to(other);
            // The last one takes the number that is free now.
            let last = self.segments.len() - 1;
            self.segments.swap_remove(number);
            if number != last {
                self.point_to(number);
            }
            if other != last {
                number = other;
            }
        }
    }

    /// Its places lead to the segment: they lie together.
    fn point_to(&mut self, number: usize) {
        let Segment { depth, prefix, .. } = self.segments[number];
        let first = self.place(prefix);
        let spread = 1usize << (self.depth - depth);
        self.directory[first..first + spread].fill(number as u32);
    }

    /// Invariants.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self, key_of: impl Fn(u32) -> Option<u128>) {
        let mut all = 0;
        for (number, segment) in self.segments.iter().enumerate() {
            let used = || segment.cells.iter().filter(|c| **c != EMPTY);
            assert_eq!(used().count(), usize::from(segment.len), "the length of a segment");
            assert_eq!(self.segment(segment.prefix), number, "a segment that nothing leads to");
            all += usize::from(segment.len);
            for cell in used() {
                assert_eq!(self.segment(hash_of(*cell)), number, "a cell in a foreign segment");
                let key = key_of(entry_of(*cell));
                assert_eq!(key.map(hash), Some(hash_of(*cell)), "a cell of another key");
                let found = segment.find(hash_of(*cell), |e| e == entry_of(*cell));
                assert!(found.is_some(), "a cell that is not found");
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

    proptest! {
        /// Few distinct hashes, so that they collide, wrap around and leave gaps.
        #[test]
        fn it_equals_a_map(ops in prop::collection::vec((any::<bool>(), 0u8..40), 0..400)) {
            let mut keys = Keys::new();
            let mut model = BTreeMap::new();
            let key = |k: u8| u128::from(k % 8) << 64 | u128::from(k) << 96 | u128::from(k) << 32;
            for (entry, (put, k)) in ops.into_iter().enumerate() {
                let entry = entry as u32;
                match model.get(&k).copied() {
                    None if put => {
                        prop_assert!(keys.insert(key(k), entry));
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
