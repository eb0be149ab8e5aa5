//! Numbered places that one thread fills and empties, while others look into them and never wait for it.
//! What is taken out stays whole for whoever is looking at it.
//!
//! Places lie on boards, each twice as long as the one before, that are made when they are needed: no place
//! ever moves, so finding one takes no lock.

use arc_swap::{ArcSwapOption, Guard};
use std::sync::Arc;

/// Places of the first board, as a power of two; and boards, so that every number of 32 bits has its place.
const FIRST: u32 = 6;
const BOARDS: usize = 33 - FIRST as usize;

/// What was found in a place, which stays whole as long as this is kept.
pub(crate) type Found<T> = Guard<Option<Arc<T>>>;

type Board<T> = Box<[ArcSwapOption<T>]>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    boards: [ArcSwapOption<Board<T>>; BOARDS],
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { boards: std::array::from_fn(|_| ArcSwapOption::empty()) }
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
        Some(self.boards[board].load().as_ref()?[at].load())
    }

    /// Puts something in a place, instead of what was there.
    pub(crate) fn put(&self, number: u32, what: Option<Arc<T>>) {
        let (board, at) = place(number);
        if self.boards[board].load().is_none() {
            let places = 1_usize << (FIRST as usize + board);
            let places: Board<T> = (0..places).map(|_| ArcSwapOption::empty()).collect();
            self.boards[board].store(Some(Arc::new(places)));
        }
        if let Some(board) = &*self.boards[board].load() {
            board[at].store(what);
        }
    }

    /// Bytes of its places.
    pub(crate) fn bytes(&self) -> usize {
        let on = |board: &ArcSwapOption<Board<T>>| board.load().as_ref().map_or(0, |b| b.len());
        let places: usize = self.boards.iter().map(on).sum();
        size_of::<Self>() + places * size_of::<ArcSwapOption<T>>()
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
