//! The production index: one node a distinct prefix, whoever holds it.
//!
//! It says exactly what [`super::NaiveIndex`] says, which is kept as its oracle, and differs in where the
//! work is. The naive one asks for each target in turn how far a prompt goes; here the prompt is walked
//! once, for all targets, and not even block by block: prefixes lie in pages, and of one that holds a run of the
//! prompt a few comparisons tell how far it goes and where its holders change. Prefixes that several hold are
//! stored once, and most of their names too.
//!
//! * `nodes`: the prefixes; `pages`: where they lie;
//! * `sets`: who holds them; `spaces`: what else they are apart by;
//! * `lanes`: what a number in a set stands for: a tier of a rank, or what it is predicted to hold;
//! * `target`: what each of them says in its own words; `rename`: how it comes to have some;
//! * `store`, `remove`: what engines say; `ahead`: so that they don't wait for memory block by block;
//! * `predict`: what they are about to say;
//! * `routed`: what nobody says;
//! * `view`: what readers see, who never wait for the one who writes; `walk`: their way along a prompt;
//! * `overlaps`: how far a prompt goes;
//! * `gone`: those who have gone, and what is left of them;
//! * `room`: making some;
//! * `check`: what must always be true.

mod ahead;
mod check;
mod gone;
mod lanes;
mod nodes;
mod overlaps;
mod pages;
mod predict;
mod remove;
mod rename;
mod room;
mod routed;
mod sets;
mod spaces;
mod store;
mod target;
mod view;
mod walk;

use super::event::{KvEvent, Tier};
use super::naive::Applied;
use crate::ids::{DpRank, WorkerId};
use gone::Sweep;
use lanes::{Lane, Lanes, Member};
use nodes::Nodes;
use predict::Predictions;
use room::Purge;
use sets::{Sets, TargetNo};
use spaces::Spaces;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use target::Target;
use view::{Roster, View};

pub use view::ChainReader;

/// The exact index of one partition.
#[derive(Debug, Default)]
pub struct ChainIndex {
    nodes: Nodes,
    sets: Sets,
    /// In the order of ids: same seed, same run.
    numbers: BTreeMap<(WorkerId, DpRank), Lanes>,
    targets: Vec<Option<Member>>,
    /// The same, for readers.
    roster: Roster,
    /// Numbers that nobody has, nor any set.
    free: Vec<TargetNo>,
    /// Numbers that nobody has, and sets may.
    retired: Vec<TargetNo>,
    sweep: Option<Sweep>,
    /// Whose own names are to be written down.
    renamed: VecDeque<TargetNo>,
    serials: u64,
    predictions: Predictions,
    purge: Option<Purge>,
    dropped: u64,
    spaces: Spaces,
    block_size: Option<u32>,
    /// Nobody announces its blocks.
    nameless: bool,
    /// What readers see, and where they find it.
    shown: Arc<View>,
    reader: ChainReader,
}

impl ChainIndex {
    /// Tokens per block, once an event has told.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// Applies one event of a target.
    pub fn apply(&mut self, worker: WorkerId, rank: DpRank, event: &KvEvent) -> Applied {
        self.apply_part(worker, rank, event, 0..event.blocks())
    }

    /// Applies some blocks of an event. One part after the other, until one is not [`Applied::Yes`], does
    /// what [`Self::apply`] does at once: a long event need not hold a lock all the while.
    pub fn apply_part(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        event: &KvEvent,
        blocks: Range<usize>,
    ) -> Applied {
        let applied = match event {
            KvEvent::Stored(stored) => self.store((worker, rank), stored, blocks),
            KvEvent::Removed(removed) => self.remove((worker, rank), removed, blocks),
            KvEvent::Cleared => {
                self.clear((worker, rank));
                self.forget_block_size_if_empty();
                Applied::Yes
            }
        };
        self.show();
        applied
    }

    /// How many blocks a worker holds in device memory, over all its ranks (each once, whatever its
    /// copies).
    #[must_use]
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.held(worker)[0]
    }

    /// How many blocks a worker holds in each [`Tier`].
    #[must_use]
    pub fn held(&self, worker: WorkerId) -> [usize; 3] {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let mut sums = [0; 3];
        for (_, lanes) in self.numbers.range(ranks) {
            for (sum, tier) in sums.iter_mut().zip(Tier::ALL) {
                let target = lanes.of(tier.into()).and_then(|n| self.target(n));
                *sum += target.map_or(0, Target::len);
            }
        }
        sums
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let targets = self.targets.iter().flatten().map(|m| m.target.bytes()).sum::<usize>();
        let members = self.targets.capacity() * size_of::<Option<Member>>();
        self.nodes.bytes()
            + self.sets.bytes()
            + targets
            + members
            + self.roster.bytes()
            + self.renamed.capacity() * size_of::<TargetNo>()
            + self.predictions.bytes()
            + self.spaces.bytes()
    }

    /// An empty index has no opinion: the engines may come back with another block size.
    fn forget_block_size_if_empty(&mut self) {
        let holds = |m: &Member| m.lane != Lane::Predicted && m.target.len() > 0;
        if !self.nameless && !self.targets.iter().flatten().any(holds) {
            self.block_size = None;
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
#[path = "room_tests.rs"]
mod room_tests;

#[cfg(test)]
#[path = "readers_tests.rs"]
mod readers_tests;
