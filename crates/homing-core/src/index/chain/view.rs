//! What readers see of an index. One thread writes it, and any number read it meanwhile: they take the view
//! that is shown, and look nodes and sets up in what the writer goes on to change. None ever waits for it, be
//! it in the middle of a long event, and none sees what it has only half done: `walk` says how.

use super::ChainIndex;
use super::lanes::{Lane, Lanes};
use super::pages::Pages;
use super::sets::{Shared, TargetNo, Words, set_member};
use crate::hash::Prompt;
use crate::ids::{DpRank, WorkerId};
use crate::index::Overlaps;
use crate::keys::Finder;
use arc_swap::ArcSwap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Whose a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) key: (WorkerId, DpRank),
    /// The number of the rank's device memory.
    pub(super) device: TargetNo,
    /// Tells it from whoever else has the number another time.
    pub(super) serial: u64,
}

/// Whose which number is. A changed one is shown as a copy: ranks come and go seldom.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    seats: Vec<Option<Seat>>,
    /// By [`Lane`]: whose numbers are of it.
    pub(super) masks: [Words; Lane::COUNT],
    /// Numbers that are not a rank's device memory: while there are none, sets need no reading.
    pub(super) special: usize,
    /// Changes so far.
    changes: u64,
}

impl Roster {
    pub(super) fn get(&self, number: TargetNo) -> Option<&Seat> {
        self.seats.get(number as usize)?.as_ref()
    }

    pub(super) fn seat(&mut self, number: TargetNo, lane: Lane, seat: Option<Seat>) {
        let at = number as usize;
        if self.seats.len() <= at {
            self.seats.resize(at + 1, None);
        }
        set_member(&mut self.masks[lane as usize], number, seat.is_some());
        self.seats[at] = seat;
        self.changes += 1;
    }

    /// Nobody has a number of so many or more.
    pub(super) fn shrink(&mut self, numbers: usize) {
        self.seats.truncate(numbers);
        self.seats.shrink_to(2 * numbers);
        if numbers == 0 {
            self.masks = Default::default();
        }
        self.changes += 1;
    }

    /// Bytes that it takes, with the copy that is shown and the order.
    pub(super) fn bytes(&self) -> usize {
        let order = size_of::<(WorkerId, DpRank)>() + size_of::<u32>();
        self.seats.capacity() * (2 * size_of::<Option<Seat>>() + order)
    }
}

/// The order of all ranks, which answers come in.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) keys: Vec<(WorkerId, DpRank)>,
    /// A rank's place among them, by the number of its device memory.
    places: Vec<u32>,
}

/// The place of a number that is no rank's.
const NOWHERE: u32 = u32::MAX;

impl Order {
    /// `ranks` come in their order.
    fn new(ranks: impl Iterator<Item = ((WorkerId, DpRank), TargetNo)>) -> Self {
        let mut order = Self::default();
        for (key, number) in ranks {
            let at = usize::from(number);
            if order.places.len() <= at {
                order.places.resize(at + 1, NOWHERE);
            }
            order.places[at] = order.keys.len() as u32;
            order.keys.push(key);
        }
        order
    }

    /// A place in [`Self::keys`], or beyond them where nobody has the number.
    pub(super) fn place(&self, number: TargetNo) -> usize {
        self.places.get(usize::from(number)).copied().unwrap_or(NOWHERE) as usize
    }
}

/// All that a look-up needs. What is in it stays, and is written on; what takes its place is shown anew.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) block_size: Option<u32>,
    pub(super) roster: Arc<Roster>,
    pub(super) order: Arc<Order>,
    /// The nodes, and who finds them; and the sets that these nodes have.
    pub(super) pages: Arc<Pages>,
    pub(super) chains: Arc<Finder>,
    pub(super) sets: Arc<Shared>,
}

/// Looks prompts up in an index that another thread writes, and never waits for it. A clone reads the same.
#[derive(Clone, Debug, Default)]
pub struct ChainReader {
    pub(super) shared: Arc<Shown>,
}

#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) view: ArcSwap<View>,
    /// Rosters that were shown so far.
    rosters: AtomicU64,
}

impl ChainReader {
    /// Each target's overlap with `prompt`: as it was at one moment during the call, or less where what was
    /// read went away over and over.
    #[must_use]
    pub fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        let rosters = self.shared.rosters.load(Acquire);
        let view = self.shared.view.load();
        let mut found = view.overlaps(prompt);
        if self.shared.rosters.load(Acquire) != rosters {
            // Whoever has departed meanwhile is left out; who has its number since holds nothing of this.
            let now = self.shared.view.load();
            let stays = view.roster.seats.iter().zip(&now.roster.seats).filter(|(a, b)| a == b);
            let stays: BTreeSet<_> =
                stays.filter_map(|(seat, _)| Some(seat.as_ref()?.key)).collect();
            found.retain(|o| stays.contains(&(o.worker, o.rank)));
        }
        found
    }
}

impl ChainIndex {
    /// For those who look prompts up while this is written.
    #[must_use]
    pub fn reader(&self) -> ChainReader {
        self.reader.clone()
    }

    /// Each target's overlap with `prompt`.
    #[must_use]
    pub fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        self.reader.overlaps(prompt)
    }

    /// Readers see from now on what has taken another's place: each call that changes anything ends with it.
    pub(super) fn show(&mut self) {
        let (pages, chains) = self.nodes.shared();
        let shown = &self.shown;
        let same_roster = shown.roster.changes == self.roster.changes
            && shown.roster.special == self.roster.special;
        if same_roster
            && shown.block_size == self.block_size
            && Arc::ptr_eq(&shown.pages, pages)
            && Arc::ptr_eq(&shown.sets, self.sets.shared())
        {
            return;
        }
        let (roster, order) = if same_roster {
            (shown.roster.clone(), shown.order.clone())
        } else {
            let device = |lanes: &Lanes| lanes.of(Lane::Device);
            let ranks = self.numbers.iter().filter_map(|(key, l)| Some((*key, device(l)?)));
            (Arc::new(self.roster.clone()), Arc::new(Order::new(ranks)))
        };
        self.shown = Arc::new(View {
            block_size: self.block_size,
            roster,
            order,
            pages: pages.clone(),
            chains: chains.clone(),
            sets: self.sets.shared().clone(),
        });
        let shared = &self.reader.shared;
        shared.view.store(self.shown.clone());
        if !same_roster {
            shared.rosters.store(shared.rosters.load(Relaxed) + 1, Release);
        }
    }

    /// Invariants of what is shown.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check_view(&self) {
        let shown = self.reader.shared.view.load();
        let (pages, chains) = self.nodes.shared();
        let never = self.nodes.pages() == 0 && self.numbers.is_empty();
        assert!(never || Arc::ptr_eq(&shown.pages, pages), "readers see other pages");
        assert!(never || Arc::ptr_eq(&shown.chains, chains), "readers see other prefixes");
        assert!(never || Arc::ptr_eq(&shown.sets, self.sets.shared()), "readers see other sets");
        assert_eq!(shown.block_size, self.block_size, "the block size that readers see");
        assert_eq!(shown.roster.special, self.roster.special, "readers' special numbers");
        assert!(shown.order.keys.is_sorted(), "the order of ranks");
        for number in 0..=self.targets.len() as TargetNo {
            let member = self.targets.get(number as usize).and_then(Option::as_ref);
            let seat = member.map(|m| Seat { key: m.key, device: m.device, serial: m.serial });
            assert_eq!(shown.roster.get(number), seat.as_ref(), "whose a number is");
            let rank = seat.filter(|seat| seat.device == number).map(|seat| seat.key);
            let place = shown.order.keys.get(shown.order.place(number)).copied();
            assert_eq!(place, rank, "a rank's place");
        }
    }
}
