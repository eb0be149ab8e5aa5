//! Sets of targets, each distinct one stored once: blocks that are held by the same targets, which is
//! what most neighbours are, share one set, and comparing two of them is comparing two numbers.
//!
//! Readers look at a set while others are made and dropped: one that they look at stays whole, and whether its
//! number was another one's meanwhile they tell by [`Shared::reused`].

use crate::shelf::{Found, Shelf};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The number of a target.
pub(super) type TargetNo = u16;

/// The number of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SetId(u32);

impl SetId {
    /// The one that nobody is in.
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn numbered(number: u32) -> Self {
        Self(number)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// A bit a target, without zero words at the end.
pub(super) type Words = SmallVec<[u64; 2]>;

/// What an `Arc` takes besides.
const COUNTS: usize = 2 * size_of::<usize>();

#[derive(Debug)]
struct Entry {
    words: Arc<Words>,
    /// Nodes that have it.
    users: usize,
}

/// What readers see of all sets.
#[derive(Debug, Default)]
pub(super) struct Shared {
    shelf: Shelf<Words>,
    reused: AtomicU64,
}

impl Shared {
    /// How often a number was given to another set: as long as it is the same, so is the set of each number
    /// that a node has.
    pub(super) fn reused(&self) -> u64 {
        self.reused.load(Acquire)
    }

    /// Who is in the set of this number now.
    pub(super) fn look(&self, set: SetId) -> Option<Found<Words>> {
        self.shelf.look(set.0)
    }
}

/// All sets of an index.
#[derive(Debug)]
pub(super) struct Sets {
    entries: Vec<Entry>,
    shared: Arc<Shared>,
    free: Vec<u32>,
    by_words: HashMap<Arc<Words>, u32, FixedState>,
    /// Bytes of the words that don't fit their entries.
    spilled: usize,
    /// The last change: neighbours change alike.
    last: Option<(SetId, TargetNo, SetId)>,
}

impl Default for Sets {
    fn default() -> Self {
        let empty = Entry { words: Arc::default(), users: 0 };
        let (free, by_words, last, shared) = Default::default();
        Self { entries: vec![empty], shared, free, by_words, spilled: 0, last }
    }
}

impl Sets {
    /// What readers need.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn words(&self, set: SetId) -> &[u64] {
        &self.entries[set.0 as usize].words
    }

    pub(super) fn has(&self, set: SetId, target: TargetNo) -> bool {
        let word = self.words(set).get(target as usize / 64);
        word.is_some_and(|w| w >> (target % 64) & 1 == 1)
    }

    /// A node with `set` gets or loses `target`; the set that it has from then on.
    pub(super) fn flip(&mut self, set: SetId, target: TargetNo) -> SetId {
        let next = match self.last {
            Some((from, who, to)) if (from, who) == (set, target) => to,
            _ => self.flipped(set, target),
        };
        self.last = Some((set, target, next));
        if next != SetId::EMPTY {
            self.entries[next.0 as usize].users += 1;
        }
        self.drop_user(set);
        next
    }

    fn flipped(&mut self, set: SetId, target: TargetNo) -> SetId {
        let mut words = Words::clone(&self.entries[set.0 as usize].words);
        let at = target as usize / 64;
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        words[at] ^= 1 << (target % 64);
        while words.last() == Some(&0) {
            words.pop();
        }
        if words.is_empty() {
            return SetId::EMPTY;
        }
        if let Some(known) = self.by_words.get(&words) {
            return SetId(*known);
        }
        self.spilled += spilled(&words);
        let words = Arc::new(words);
        let entry = Entry { words: words.clone(), users: 0 };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                // Before readers can find it.
                let reused = &self.shared.reused;
                reused.store(reused.load(Relaxed) + 1, Release);
                number
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.shared.shelf.put(number, Some(words.clone()));
        self.by_words.insert(words, number);
        SetId(number)
    }

    /// One node less has it.
    pub(super) fn drop_user(&mut self, set: SetId) {
        if set == SetId::EMPTY {
            return;
        }
        let entry = &mut self.entries[set.0 as usize];
        entry.users -= 1;
        if entry.users == 0 {
            let words = std::mem::take(&mut entry.words);
            self.spilled -= spilled(&words);
            self.by_words.remove(&*words);
            self.shared.shelf.put(set.0, None);
            self.free.push(set.0);
            self.last = None;
        }
    }

    /// Nothing was ever kept in it.
    pub(super) fn is_bare(&self) -> bool {
        self.entries.len() == 1
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * size_of::<u32>()
            + self.spilled
            + self.by_words.len() * (size_of::<Words>() + COUNTS)
            + self.by_words.capacity() * size_of::<(Arc<Words>, u32)>()
            + self.shared.shelf.bytes()
    }

    /// Invariants; `users` counts the nodes that have a set.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self, users: impl Fn(SetId) -> usize) {
        for (number, entry) in self.entries.iter().enumerate().skip(1) {
            let free = self.free.contains(&(number as u32));
            assert_eq!(entry.users == 0, free, "a set that nobody has and nobody frees");
            assert_eq!(entry.users, users(SetId(number as u32)), "the users of a set");
            let found = self.by_words.get(&*entry.words).copied();
            assert!(free || found == Some(number as u32), "a set that is not found");
            let shown = self.shared.look(SetId(number as u32)).and_then(|w| w.as_ref().cloned());
            assert!(free || shown.is_some_and(|w| Arc::ptr_eq(&w, &entry.words)), "readers' set");
        }
        let sum: usize = self.entries.iter().map(|e| spilled(&e.words)).sum();
        assert_eq!(sum, self.spilled, "words beside their entries");
    }
}

/// Bytes of the words that don't fit their entry. Counted by length: a clone has no more than it needs.
fn spilled(words: &Words) -> usize {
    if words.len() > words.inline_size() { words.len() * size_of::<u64>() } else { 0 }
}

/// The targets of some words.
pub(super) fn members(words: &[u64]) -> impl Iterator<Item = TargetNo> + use<'_> {
    words.iter().enumerate().flat_map(|(i, word)| members_at(i, *word))
}

/// The targets of the word at this place.
pub(super) fn members_at(place: usize, word: u64) -> impl Iterator<Item = TargetNo> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros())?;
        rest &= rest - 1;
        Some((place * 64) as TargetNo + bit as TargetNo)
    })
}

/// Puts a target in, or out.
pub(super) fn set_member(words: &mut Words, target: TargetNo, member: bool) {
    let at = target as usize / 64;
    if words.len() <= at && member {
        words.resize(at + 1, 0);
    }
    if let Some(word) = words.get_mut(at) {
        let bit = 1 << (target % 64);
        *word = if member { *word | bit } else { *word & !bit };
    }
}
