//! A prompt that was just dispatched will be in its target's cache soon. It counts at once, so that others
//! like it go to the same place, until its engine's events say so or a few seconds have passed.

use super::ChainIndex;
use super::lanes::Lane;
use super::sets::TargetNo;
use crate::hash::{ChainHash, Prompt};
use crate::ids::{DpRank, WorkerId};
use crate::time::Time;
use std::collections::VecDeque;

/// Blocks that are predicted at a time, at most: beyond it the oldest are believed no longer. 8 MiB.
const MAX_PREDICTED: usize = 1 << 20;
/// What such a block takes at most: here, and where it had no node.
const BYTES: usize = 64;
/// So large a part of all room may be theirs: what is only on its way must not push out what is there.
const PART: usize = 8;

/// What is predicted, in the order in which it ends.
#[derive(Debug)]
pub(super) struct Predictions {
    queue: VecDeque<Prediction>,
    /// Blocks of all of them.
    blocks: usize,
    /// Blocks at a time, at most.
    most: usize,
}

impl Default for Predictions {
    fn default() -> Self {
        Self { queue: VecDeque::new(), blocks: 0, most: MAX_PREDICTED }
    }
}

#[derive(Debug)]
struct Prediction {
    until: Time,
    number: TargetNo,
    /// Whose number it was.
    serial: u64,
    blocks: Box<[ChainHash]>,
}

impl Predictions {
    pub(super) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Prediction>() + self.blocks * size_of::<ChainHash>()
    }
}

impl ChainIndex {
    /// Predictions take no more than their part of so many bytes.
    pub fn bound_predictions(&mut self, bytes: usize) {
        self.predictions.most = MAX_PREDICTED.min(bytes / PART / BYTES);
    }

    /// A prompt goes to a target: what that doesn't hold of it, from block `from` on, counts as held until
    /// then. Calls come in the order of `until`; one that doesn't is put off.
    pub fn predict(
        &mut self,
        worker: WorkerId,
        rank: DpRank,
        prompt: &Prompt,
        from: usize,
        until: Time,
    ) {
        if self.block_size != Some(prompt.block_size) || prompt.chain.len() <= from {
            return;
        }
        let Some((lanes, number)) = self.lanes((worker, rank), Lane::Predicted) else { return };
        let Some(device) = lanes.of(Lane::Device) else { return };
        let mut new = Vec::new();
        self.hold_unnamed(number, Some(device), prompt, from, |chain| new.push(chain));
        let serial = self.targets.get(number as usize).and_then(Option::as_ref).map(|m| m.serial);
        let Some(serial) = serial.filter(|_| !new.is_empty()) else { return self.show() };
        let until = self.predictions.queue.back().map_or(until, |last| last.until.max(until));
        self.predictions.blocks += new.len();
        self.predictions.queue.push_back(Prediction { until, number, serial, blocks: new.into() });
        while self.predictions.blocks > self.predictions.most && self.end_first().is_some() {}
        self.show();
    }

    /// When the first prediction ends.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Time> {
        self.predictions.queue.front().map(|p| p.until)
    }

    /// Predictions that have not come true by now are believed no longer: some of them. True: there are
    /// more.
    pub fn expire(&mut self, now: Time) -> bool {
        if self.next_expiry().is_some_and(|until| until <= now) {
            self.end_first();
            self.show();
        }
        self.next_expiry().is_some_and(|until| until <= now)
    }

    fn end_first(&mut self) -> Option<()> {
        let Prediction { number, serial, blocks, .. } = self.predictions.queue.pop_front()?;
        self.predictions.blocks -= blocks.len();
        if self.predictions.queue.is_empty() {
            self.predictions.queue = VecDeque::new();
        }
        let member = self.targets.get(number as usize).and_then(Option::as_ref);
        if member.is_none_or(|m| m.serial != serial) {
            return Some(());
        }
        blocks.iter().fold(None, |before, chain| self.let_go(number, *chain, before));
        Some(())
    }
}
