//! What a number in a set stands for. A rank has one for its device memory, which is what most blocks are
//! in, and gets one for each other way of holding a block with the first that it holds so.

use super::ChainIndex;
use super::sets::TargetNo;
use super::target::Target;
use super::view::Seat;
use crate::ids::{DpRank, WorkerId};
use crate::index::event::Tier;

/// How a rank holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Device,
    Host,
    Disk,
    /// It is about to compute it.
    Predicted,
}

impl Lane {
    pub(super) const COUNT: usize = 4;
}

impl From<Tier> for Lane {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Device => Self::Device,
            Tier::Host => Self::Host,
            Tier::Disk => Self::Disk,
        }
    }
}

/// The numbers of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes([Option<TargetNo>; Lane::COUNT]);

impl Lanes {
    pub(super) fn of(&self, lane: Lane) -> Option<TargetNo> {
        self.0[lane as usize]
    }

    /// Its tiers, the nearest first.
    pub(super) fn tiers(self) -> impl Iterator<Item = TargetNo> {
        Tier::ALL.into_iter().filter_map(move |tier| self.of(tier.into()))
    }

    /// All of them.
    pub(super) fn all(self) -> impl Iterator<Item = TargetNo> {
        self.0.into_iter().flatten()
    }
}

/// Whose number it is.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: (WorkerId, DpRank),
    pub(super) lane: Lane,
    /// The number of the rank's device memory, under which the rank itself goes.
    pub(super) device: TargetNo,
    /// Tells it from whoever else has the number another time.
    pub(super) serial: u64,
    pub(super) target: Target,
}

impl ChainIndex {
    pub(super) fn target(&self, number: TargetNo) -> Option<&Target> {
        self.targets.get(number as usize)?.as_ref().map(|m| &m.target)
    }

    pub(super) fn target_mut(&mut self, number: TargetNo) -> Option<&mut Target> {
        self.targets.get_mut(number as usize)?.as_mut().map(|m| &mut m.target)
    }

    /// A rank's numbers, with that of `lane`, which it gets if need be. `None`: there are too many.
    pub(super) fn lanes(
        &mut self,
        key: (WorkerId, DpRank),
        lane: Lane,
    ) -> Option<(Lanes, TargetNo)> {
        let mut lanes = self.numbers.get(&key).copied().unwrap_or_default();
        if let Some(number) = lanes.of(lane) {
            return Some((lanes, number));
        }
        let mut number = 0;
        for lane in [Lane::Device, lane] {
            if let Some(known) = lanes.of(lane) {
                number = known;
                continue;
            }
            number = match self.free.pop() {
                Some(number) => number,
                None => {
                    let number = TargetNo::try_from(self.targets.len()).ok()?;
                    self.targets.push(None);
                    number
                }
            };
            self.serials += 1;
            let device = lanes.of(Lane::Device).unwrap_or(number);
            let target = Target::default();
            let member = Member { key, lane, device, serial: self.serials, target };
            self.targets[number as usize] = Some(member);
            self.roster.seat(number, lane, Some(Seat { key, device, serial: self.serials }));
            self.roster.special += usize::from(lane != Lane::Device);
            lanes.0[lane as usize] = Some(number);
            self.numbers.insert(key, lanes);
        }
        Some((lanes, number))
    }
}
