//! What engines say of our predictions, besides each answer's usage; and what came by before.

use super::{Cell, SelectionCore};
use crate::ask::Ask;
use crate::blame::Reuse;
use crate::hash::Prompt;
use crate::ids::{DpRank, WorkerId};
use crate::trust::{Counters, Shape, Turn};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks that are looked at, or marked, before others get at them.
const SLICE: usize = 1024;

impl Cell {
    /// Leading blocks of the prompt that came by before, or that somebody holds.
    pub(super) fn seen_of(&self, ask: &Ask) -> u32 {
        let held = ask.overlaps.iter().map(|o| o.blocks).max().unwrap_or(0) as usize;
        let mut known = held.min(ask.prompt.chain.len());
        for slice in ask.prompt.chain[known..].chunks(SLICE) {
            let seen = self.seen.read();
            let leading = seen.leading(slice);
            RwLockReadGuard::unlock_fair(seen);
            known += leading;
            if leading < slice.len() {
                break;
            }
        }
        u32::try_from(known).unwrap_or(u32::MAX)
    }

    /// A worker has begun with the prompt.
    pub(super) fn note_seen(&self, prompt: &Prompt) {
        let fresh = self.seen.read().fresh(&prompt.chain);
        for slice in prompt.chain[fresh..].chunks(SLICE) {
            let mut seen = self.seen.write();
            seen.mark(slice);
            RwLockWriteGuard::unlock_fair(seen);
        }
    }
}

impl SelectionCore {
    /// Whether the engine's counters would tell something that its answers don't: requests have ended of
    /// which it didn't say what it reused.
    #[must_use]
    pub fn wants_counters(&self, worker: WorkerId) -> bool {
        self.placed(worker).is_some_and(|cell| cell.state.lock().wants_counters(worker))
    }

    /// What an engine counts now: against what was predicted since it was last told. Gives whose trust
    /// has turned.
    pub fn counted(&self, worker: WorkerId, counters: Counters) -> Vec<Turn> {
        let told = |cell: Arc<Cell>| self.with(&cell, |state| state.counted(worker, counters));
        self.placed(worker).map(told).unwrap_or_default()
    }

    /// The engine has tokenized a fixed request of this shape as we do, or not: then its predictions of that
    /// shape begin with little trust.
    pub fn tokenized(&self, worker: WorkerId, shape: Shape, same: bool) {
        if let Some(cell) = self.placed(worker) {
            self.with(&cell, |state| state.tokenized(worker, shape, same));
        }
    }

    /// What is known of a rank's cache is being learned anew, after a hole in its events; or has been.
    pub fn uncertain(&self, worker: WorkerId, rank: DpRank, uncertain: bool) {
        if let Some(cell) = self.placed(worker) {
            self.with(&cell, |state| state.uncertain(worker, rank, uncertain));
        }
    }

    /// What became of all prompt tokens, by the served name that they came under.
    #[must_use]
    pub fn reuse(&self) -> BTreeMap<Arc<str>, Reuse> {
        let registry = self.registry.read();
        let mut all = BTreeMap::<Arc<str>, Reuse>::new();
        for cell in self.cells.read().iter() {
            for (name, reuse) in cell.state.lock().reuse() {
                *all.entry(registry.name(name)).or_default() += reuse;
            }
        }
        all
    }

    /// The partition that a worker is in.
    pub(super) fn placed(&self, worker: WorkerId) -> Option<Arc<Cell>> {
        let registry = self.registry.read();
        self.cell(registry.place(worker)?)
    }
}
