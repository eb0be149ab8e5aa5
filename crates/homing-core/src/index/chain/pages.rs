//! Where nodes lie: pages that one thread writes, while others read in them and never wait for it.
//!
//! All that can be read is in atomics. A reader makes sure of what it has read by the page's number of losses,
//! which grows when a node of the page goes, or loses one of its holders: as long as it hasn't, each node is
//! what it was, and whoever held one holds it still. What comes needs no such care: a node shows its holders
//! last, and one that shows none is nobody's.

use super::nodes::{PAGE, Slot};
use super::sets::SetId;
use crate::hash::{ChainHash, EngineHash};
use crate::shelf::Shelf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

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

/// Where it is kept: 24 bytes.
#[derive(Debug, Default)]
struct Cell {
    chain: AtomicU64,
    engine: AtomicU64,
    /// `named << 48 | space << 32 | set`.
    word: AtomicU64,
}

const _: () = assert!(size_of::<Cell>() == 24, "a node is three words");

fn set_of(word: u64) -> SetId {
    SetId::numbered(word as u32)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Page {
    /// The number of the last loss in it; no two pages have the same one.
    lost: AtomicU64,
    /// Until when it is warm. Readers set it, and nothing hangs on the order.
    warm: AtomicU32,
    cells: [Cell; PAGE as usize],
}

impl Page {
    pub(super) fn new(lost: u64, warm: u32) -> Self {
        let cells = std::array::from_fn(|_| Cell::default());
        Self { lost: AtomicU64::new(lost), warm: AtomicU32::new(warm), cells }
    }

    fn cell(&self, slot: Slot) -> &Cell {
        &self.cells[(slot % PAGE) as usize]
    }

    /// For the one who writes.
    pub(super) fn node(&self, slot: Slot) -> Node {
        let cell = self.cell(slot);
        let word = cell.word.load(Relaxed);
        Node {
            chain: ChainHash(cell.chain.load(Relaxed)),
            engine: EngineHash(cell.engine.load(Relaxed)),
            set: set_of(word),
            space: (word >> 32) as u16,
            named: word >> 48 & 1 == 1,
        }
    }

    /// Parts of it, for the same.
    pub(super) fn chain(&self, slot: Slot) -> ChainHash {
        ChainHash(self.cell(slot).chain.load(Relaxed))
    }

    pub(super) fn set(&self, slot: Slot) -> SetId {
        set_of(self.cell(slot).word.load(Relaxed))
    }

    pub(super) fn is_called(&self, slot: Slot, engine: EngineHash) -> bool {
        let cell = self.cell(slot);
        cell.engine.load(Relaxed) == engine.0 && cell.word.load(Relaxed) >> 48 & 1 == 1
    }

    /// Writes a node where nobody's is.
    pub(super) fn begin(&self, slot: Slot, chain: ChainHash, space: u16) {
        let cell = self.cell(slot);
        cell.chain.store(chain.0, Release);
        cell.word.store(u64::from(space) << 32, Release);
    }

    pub(super) fn name(&self, slot: Slot, engine: EngineHash) {
        let cell = self.cell(slot);
        cell.engine.store(engine.0, Relaxed);
        cell.word.store(cell.word.load(Relaxed) | 1 << 48, Release);
    }

    /// `loss`: its number, where somebody holds it no longer.
    pub(super) fn hold(&self, slot: Slot, set: SetId, loss: Option<u64>) {
        let word = &self.cell(slot).word;
        let rest = word.load(Relaxed) & !u64::from(u32::MAX);
        word.store(rest | u64::from(set.number()), Release);
        if let Some(loss) = loss {
            self.lost.store(loss, Release);
        }
    }

    /// It is nobody's any more. Its chain is wiped out, or a reader could take the next one's holders for its own.
    pub(super) fn end(&self, slot: Slot, loss: u64) {
        let cell = self.cell(slot);
        cell.word.store(0, Release);
        cell.chain.store(0, Release);
        self.lost.store(loss, Release);
    }

    /// The number of its last loss. Of what was read before, all is still true if it is what it was before that.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Acquire)
    }

    /// Who holds the node, if it is this one. True as long as [`Self::lost`] is the same as before.
    pub(super) fn holders(&self, slot: Slot, chain: ChainHash) -> Option<SetId> {
        let cell = self.cell(slot);
        let it = cell.chain.load(Acquire) == chain.0;
        let set = set_of(cell.word.load(Acquire));
        (it && set != SetId::EMPTY).then_some(set)
    }

    pub(super) fn warm(&self) -> u32 {
        self.warm.load(Relaxed)
    }

    pub(super) fn warm_until(&self, until: u32) {
        if self.warm() < until {
            self.warm.store(until, Relaxed);
        }
    }
}

/// What readers see of all pages.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) shelf: Shelf<Page>,
    /// The number of the last loss in any of them.
    losses: AtomicU64,
    /// The clock by which they are warm.
    pub(super) now: AtomicU32,
}

impl Pages {
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
