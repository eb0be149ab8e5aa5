//! Where nodes lie: pages that one thread writes, while others read in them and never wait for it.
//!
//! All that can be read is in atomics. A reader makes sure of what it has read by the page's number of losses,
//! which grows when a node of the page goes, or loses one of its holders: as long as it hasn't, each node is
//! what it was, and whoever held one holds it still. What comes needs no such care: a node shows its holders
//! last, and one that shows none is nobody's.
//!
//! A page knows which of its nodes follow the one before them, and which have the same holders. A chain stands for
//! all that precedes it: so where each node follows the one before it, a prompt that agrees with the last one agrees
//! with all of them, and of a page of 64 nodes a reader looks at two or three.

use super::nodes::{PAGE, Slot};
use super::sets::SetId;
use crate::hash::{ChainHash, EngineHash};
use crate::shelf::{Marks, Shelf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A node, as it is at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) chain: ChainHash,
    /// What its engines call it, where [`Self::named`].
    pub(super) engine: EngineHash,
    /// Who holds it.
    pub(super) set: SetId,
    /// Which hash space its children are in, unless they say so themselves.
    pub(super) space: u16,
    /// `engine` leads here.
    pub(super) named: bool,
}

const NODES: usize = PAGE as usize;

/// See the module. What readers need first comes first, and lies together.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Page {
    /// The number of the last loss in it; no two pages have the same one.
    lost: AtomicU64,
    /// By bits: nodes that follow the one before them.
    follows: AtomicU64,
    /// By bits: nodes that have the set of the one before them.
    alike: AtomicU64,
    /// Until when it is warm. Readers set it, and nothing hangs on the order.
    warm: AtomicU32,
    chains: [AtomicU64; NODES],
    sets: [AtomicU32; NODES],
    /// By bits: nodes whose names are somebody's. It and what comes are for the one who writes.
    named: AtomicU64,
    engines: [AtomicU64; NODES],
    spaces: [AtomicU16; NODES],
}

const _: () = assert!(size_of::<Page>() == 40 + 22 * NODES, "a node is 22 bytes");

fn at(slot: Slot) -> usize {
    (slot % PAGE) as usize
}

/// The bits of a node and of the one behind it.
fn two(slot: Slot) -> u64 {
    3 << at(slot)
}

/// How many bits behind that of `slot` are set.
fn behind(bits: u64, slot: Slot) -> u32 {
    // Twice, since by all 64 bits there is no shift.
    (bits >> at(slot) >> 1).trailing_ones()
}

impl Page {
    pub(super) fn new(lost: u64, warm: u32) -> Self {
        Self {
            lost: AtomicU64::new(lost),
            follows: AtomicU64::new(0),
            alike: AtomicU64::new(0),
            warm: AtomicU32::new(warm),
            chains: [const { AtomicU64::new(0) }; NODES],
            sets: [const { AtomicU32::new(0) }; NODES],
            named: AtomicU64::new(0),
            engines: [const { AtomicU64::new(0) }; NODES],
            spaces: [const { AtomicU16::new(0) }; NODES],
        }
    }

    /// For the one who writes.
    pub(super) fn node(&self, slot: Slot) -> Node {
        Node {
            chain: self.chain(slot),
            engine: EngineHash(self.engines[at(slot)].load(Relaxed)),
            set: self.set(slot),
            space: self.spaces[at(slot)].load(Relaxed),
            named: self.is_named(slot),
        }
    }

    /// Parts of it, for the same.
    pub(super) fn chain(&self, slot: Slot) -> ChainHash {
        ChainHash(self.chains[at(slot)].load(Relaxed))
    }

    pub(super) fn set(&self, slot: Slot) -> SetId {
        SetId::numbered(self.sets[at(slot)].load(Relaxed))
    }

    fn is_named(&self, slot: Slot) -> bool {
        self.named.load(Relaxed) >> at(slot) & 1 == 1
    }

    pub(super) fn is_called(&self, slot: Slot, engine: EngineHash) -> bool {
        self.engines[at(slot)].load(Relaxed) == engine.0 && self.is_named(slot)
    }

    /// Writes a node where nobody's is. `follows`: it comes behind the one before it.
    pub(super) fn begin(&self, slot: Slot, chain: ChainHash, space: u16, follows: bool) {
        self.chains[at(slot)].store(chain.0, Release);
        self.spaces[at(slot)].store(space, Relaxed);
        if follows {
            self.follows.store(self.follows.load(Relaxed) | 1 << at(slot), Release);
        }
    }

    pub(super) fn name(&self, slot: Slot, engine: EngineHash) {
        self.engines[at(slot)].store(engine.0, Relaxed);
        self.named.store(self.named.load(Relaxed) | 1 << at(slot), Relaxed);
    }

    /// `loss`: its number, where somebody holds it no longer.
    pub(super) fn hold(&self, slot: Slot, set: SetId, loss: Option<u64>) {
        // Nobody may take a set that is new for that of its neighbours too. Who read an old one before it sees these
        // bits again has read something that is still true, or sees the loss, which comes before them.
        let alike = self.alike.load(Relaxed) & !two(slot);
        self.alike.store(alike, Release);
        self.sets[at(slot)].store(set.number(), Release);
        if let Some(loss) = loss {
            self.lost.store(loss, Release);
        }
        if set == SetId::EMPTY {
            return;
        }
        let is = |n: usize| self.sets.get(n).is_some_and(|s| s.load(Relaxed) == set.number());
        let before = u64::from(at(slot).checked_sub(1).is_some_and(is));
        let after = u64::from(is(at(slot) + 1));
        let bits = before << at(slot) | (after << at(slot) << 1);
        self.alike.store(alike | bits, Release);
    }

    /// It is nobody's any more. Its chain is wiped out, or a reader could take the next one's holders for its own.
    pub(super) fn end(&self, slot: Slot, loss: u64) {
        for bits in [&self.alike, &self.follows] {
            bits.store(bits.load(Relaxed) & !two(slot), Release);
        }
        self.named.store(self.named.load(Relaxed) & !(1 << at(slot)), Relaxed);
        self.sets[at(slot)].store(SetId::EMPTY.number(), Release);
        self.chains[at(slot)].store(0, Release);
        self.lost.store(loss, Release);
    }

    /// The number of its last loss. Of what was read before, all is still true if it is what it was before that.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Acquire)
    }

    /// Brings near the processor what will be read to find how many of these blocks are the node and those that
    /// follow it, and who holds them. What it returns says nothing.
    pub(super) fn touch(&self, slot: Slot, chain: &[ChainHash]) -> u64 {
        let last = chain.len().min(NODES - at(slot)).saturating_sub(1);
        let asked = |n: usize| chain.get(n).map_or(0, |chain| chain.0);
        let ends = [at(slot), at(slot) + last].map(|n| self.chains[n].load(Relaxed));
        let set = u64::from(self.sets[at(slot)].load(Relaxed));
        ends[0] ^ ends[1] ^ set ^ asked(0) ^ asked(last)
    }

    /// The node is this one, and somebody's. True as long as [`Self::lost`] is the same as before, as all of what
    /// readers read is.
    pub(super) fn is(&self, slot: Slot, chain: ChainHash) -> bool {
        self.chains[at(slot)].load(Acquire) == chain.0
            && self.sets[at(slot)].load(Acquire) != SetId::EMPTY.number()
    }

    /// How many of these blocks, of which the first is the node, are it and those that follow it.
    pub(super) fn run(&self, slot: Slot, chain: &[ChainHash]) -> u32 {
        let follow = behind(self.follows.load(Acquire), slot) as usize;
        let is = |n: usize| {
            let there = self.chains.get(at(slot) + n).map(|c| c.load(Acquire));
            there.is_some_and(|there| chain.get(n).is_some_and(|chain| chain.0 == there))
        };
        let last = follow.min(chain.len().saturating_sub(1));
        if is(last) {
            return last as u32 + 1;
        }
        // In a row: what is read next is near by the time it is needed, as it would not be if halves were tried.
        (1..last).take_while(|n| is(*n)).count() as u32 + 1
    }

    /// Who holds the node, and how many nodes from it on have the same holders, or did and have more.
    pub(super) fn held(&self, slot: Slot) -> (SetId, u32) {
        let set = self.sets[at(slot)].load(Acquire);
        (SetId::numbered(set), behind(self.alike.load(Acquire), slot) + 1)
    }

    pub(super) fn warm(&self) -> u32 {
        self.warm.load(Relaxed)
    }

    pub(super) fn warm_until(&self, until: u32) {
        if self.warm() < until {
            self.warm.store(until, Relaxed);
        }
    }

    /// Invariants; `lives` says which nodes are somebody's.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self, lives: impl Fn(u32) -> bool) {
        let (follows, alike) = (self.follows.load(Relaxed), self.alike.load(Relaxed));
        for slot in 0..PAGE {
            let both = slot > 0 && lives(slot) && lives(slot - 1);
            assert!(both || follows >> slot & 1 == 0, "a node follows nobody's");
            let same = both && self.set(slot) == self.set(slot - 1);
            assert_eq!(alike >> slot & 1 == 1, same, "neighbours with the same holders");
        }
    }
}

/// What readers see of all pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) shelf: Shelf<Page>,
    /// By page: where what followed its last node was put, when something last did. No more than a hint; beside each
    /// other they stay near the processor, so that a reader is told of pages to come before it has any.
    nexts: Marks,
    /// The number of the last loss in any of them.
    losses: AtomicU64,
    /// The clock by which they are warm.
    pub(super) now: AtomicU32,
}

impl Pages {
    /// Where what follows the last node of a page may be.
    pub(super) fn next(&self, number: u32) -> Option<Slot> {
        Some(self.nexts.get(number)).filter(|slot| *slot != 0)
    }

    pub(super) fn goes_on(&self, number: u32, next: Slot) {
        self.nexts.set(number, next);
    }

    /// Bytes beside the pages.
    pub(super) fn bytes(&self) -> usize {
        self.shelf.bytes() + self.nexts.bytes()
    }

    /// One more loss; its number is to be stored when it is done.
    pub(super) fn next_loss(&self) -> u64 {
        self.losses.load(Relaxed) + 1
    }

    /// It is done.
    pub(super) fn lost(&self, loss: u64) {
        self.losses.store(loss, Release);
    }

    /// Losses so far.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u64) -> Vec<ChainHash> {
        (1..=n).map(ChainHash).collect()
    }

    /// Nodes 0 to 9 are one sequence, and 10 to 19 another; of each, the last five have a set of their own.
    fn page() -> Page {
        let page = Page::new(1, 0);
        for (slot, chain) in (0..).zip(chain(20)) {
            page.begin(slot, chain, 0, slot % 10 > 0);
            page.hold(slot, SetId::numbered(1 + slot % 10 / 5), None);
        }
        page.check(|slot| slot < 20);
        page
    }

    #[test]
    fn a_run_goes_on_until_a_prompt_parts_or_another_sequence_begins() {
        let (page, all) = (page(), chain(20));
        for from in 0..20 {
            let left = 10 - from % 10;
            let rest = &all[from as usize..];
            assert_eq!(page.run(from, rest), left, "all that follow {from}");
            for parts in 1..=rest.len() {
                let mut other = rest.to_vec();
                assert_eq!(page.run(from, &rest[..parts]), left.min(parts as u32));
                other[parts..].iter_mut().for_each(|chain| chain.0 += 100);
                assert_eq!(page.run(from, &other), left.min(parts as u32), "{from} and {parts}");
            }
        }
        assert_eq!(page.held(2), (SetId::numbered(1), 3));
        assert_eq!(page.held(7), (SetId::numbered(2), 3));
    }

    #[test]
    fn what_goes_ends_a_run_and_what_comes_in_its_place_begins_one() {
        let (page, all) = (page(), chain(20));
        page.end(4, 2);
        page.check(|slot| slot < 20 && slot != 4);
        assert_eq!((page.lost(), page.run(0, &all), page.held(0).1), (2, 4, 4));
        page.begin(4, ChainHash(5), 0, true);
        page.hold(4, SetId::numbered(1), None);
        page.check(|slot| slot < 20);
        assert_eq!((page.run(0, &all), page.run(5, &all[5..])), (5, 5));
        // One more holder of one in the middle, and one less.
        page.hold(2, SetId::numbered(2), None);
        assert_eq!((page.lost(), page.held(0).1, page.held(2).1), (2, 2, 1));
        page.hold(2, SetId::numbered(1), Some(3));
        assert_eq!((page.lost(), page.held(0).1), (3, 5));
        page.check(|slot| slot < 20);
    }
}
