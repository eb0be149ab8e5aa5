//! Numbered places that one thread fills and empties, while others look into them and never wait for it.
//! What is taken out stays whole for whoever is looking at it.
//!
//! Places lie on boards, each twice as long as the one before, that are made when they are needed: no place
//! ever moves, so finding one takes no lock.

use arc_swap::{ArcSwapOption, Guard};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// Places of the first board, as a power of two; and boards, so that every number of 32 bits has its place.
const FIRST: u32 = 6;
const BOARDS: usize = 33 - FIRST as usize;

/// What was found in a place, which stays whole as long as this is kept.
pub(crate) type Found<T> = Guard<Option<Arc<T>>>;

type Board<T> = Box<[ArcSwapOption<T>]>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    boards: [OnceLock<Board<T>>; BOARDS],
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { boards: std::array::from_fn(|_| OnceLock::new()) }
    }
}

/// The board of a place, and where on it: board `b` has `64 << b` places, and `(64 << b) - 64` come before.
fn place(number: u32) -> (usize, usize) {
    let n = u64::from(number) + (1 << FIRST);
    let board = 63 - n.leading_zeros() - FIRST;
    (board as usize, (n - (1 << (FIRST + board))) as usize)
}

impl<T> Shelf<T> {
    /// What is in a place; `None` where there never was anything.
    pub(crate) fn look(&self, number: u32) -> Option<Found<T>> {
        let (board, at) = place(number);
        Some(self.boards[board].get()?[at].load())
    }

    /// Puts something in a place, instead of what was there.
    pub(crate) fn put(&self, number: u32, what: Option<Arc<T>>) {
        let (board, at) = place(number);
        let places = 1_usize << (FIRST as usize + board);
        let empty = || (0..places).map(|_| ArcSwapOption::empty()).collect();
        self.boards[board].get_or_init(empty)[at].store(what);
    }

    /// Bytes of its places.
    pub(crate) fn bytes(&self) -> usize {
        let places: usize = self.boards.iter().filter_map(OnceLock::get).map(|b| b.len()).sum();
        size_of::<Self>() + places * size_of::<ArcSwapOption<T>>()
    }
}

/// A mark for each number, 0 at first: one thread sets them, while others read them.
#[derive(Debug)]
pub(crate) struct Marks {
    boards: [OnceLock<Box<[AtomicU32]>>; BOARDS],
}

impl Default for Marks {
    fn default() -> Self {
        Self { boards: std::array::from_fn(|_| OnceLock::new()) }
    }
}

impl Marks {
    pub(crate) fn get(&self, number: u32) -> u32 {
        let (board, at) = place(number);
        self.boards[board].get().map_or(0, |marks| marks[at].load(Relaxed))
    }

    pub(crate) fn set(&self, number: u32, mark: u32) {
        let (board, at) = place(number);
        let places = 1_usize << (FIRST as usize + board);
        let empty = || (0..places).map(|_| AtomicU32::new(0)).collect();
        self.boards[board].get_or_init(empty)[at].store(mark, Relaxed);
    }

    /// Bytes of its boards.
    pub(crate) fn bytes(&self) -> usize {
        let marks: usize = self.boards.iter().filter_map(OnceLock::get).map(|b| b.len()).sum();
        size_of::<Self>() + marks * size_of::<AtomicU32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_place() {
        assert_eq!([0, 63, 64, 191, 192].map(place), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
        assert_eq!(place(u32::MAX).0, BOARDS - 1);
        let shelf = Shelf::default();
        for n in (0..500_u32).rev() {
            shelf.put(n, (n % 3 > 0).then(|| Arc::new(n)));
        }
        for n in 0..500 {
            let found = shelf.look(n).expect("a board");
            assert_eq!(found.as_deref(), (n % 3 > 0).then_some(&n));
        }
        assert!(shelf.look(5_000).is_none());
        let marks = Marks::default();
        (0..500).for_each(|n| marks.set(n, n * 3));
        assert!((0..500).all(|n| marks.get(n) == n * 3));
        assert_eq!(marks.get(5_000), 0);
    }

    #[test]
    fn what_is_taken_out_stays_whole_for_whoever_looks_at_it() {
        let shelf = Shelf::default();
        shelf.put(7, Some(Arc::new("seven")));
        let found = shelf.look(7).expect("a board");
        shelf.put(7, None);
        assert_eq!(found.as_deref(), Some(&"seven"));
        assert_eq!(shelf.look(7).expect("a board").as_deref(), None);
    }
}
