//! How far a prompt goes. It is walked once for all targets: who is still in is a bit each, and a target's
//! answer is where it falls out. Where ranks hold blocks in more ways than in device memory, there is such a
//! field of bits for each: who holds every block there, or will, or in host memory at least, or anywhere.

use super::lanes::Lane;
use super::sets::members_at;
use super::view::{Order, View};
use crate::hash::Prompt;
use crate::index::{Overlap, Overlaps};
use smallvec::SmallVec;

type Alive = SmallVec<[u64; 4]>;

/// Who is still in, or was when it was counted.
#[derive(Default)]
struct Field {
    alive: Alive,
    began: bool,
}

impl Field {
    /// Those who are not in `words` fall out: `falls` is given them by words, with the place of each.
    fn narrow(&mut self, words: &[u64], mut falls: impl FnMut(usize, u64)) {
        if !std::mem::replace(&mut self.began, true) {
            self.alive = words.into();
            return;
        }
        for (i, word) in self.alive.iter_mut().enumerate() {
            let stay = words.get(i).copied().unwrap_or(0);
            let fallen = *word & !stay;
            *word &= stay;
            if fallen != 0 {
                falls(i, fallen);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.alive.iter().all(|w| *w == 0)
    }
}

/// It has not fallen out.
const IN: u32 = u32::MAX;

/// Where each rank falls out, of so many fields, by its place in the order of all: so what is found needs no
/// sorting.
struct Ends<'a, const N: usize> {
    order: &'a Order,
    /// Empty until somebody falls.
    ends: Vec<[u32; N]>,
    /// How many have fallen, at most.
    fallen: usize,
}

impl<'a, const N: usize> Ends<'a, N> {
    fn new(order: &'a Order) -> Self {
        Self { order, ends: Vec::new(), fallen: 0 }
    }

    /// The ranks of a word's numbers fall out of field `i`, and of those behind it no sooner.
    fn fall(&mut self, at: usize, fallen: u64, i: usize, depth: u32) {
        if self.ends.is_empty() {
            self.ends = vec![[IN; N]; self.order.keys.len()];
        }
        self.fallen += fallen.count_ones() as usize;
        for number in members_at(at, fallen) {
            if let Some(end) = self.ends.get_mut(self.order.place(number)) {
                let from = if end[0] == IN { 0 } else { i };
                end[from..].fill(depth);
            }
        }
    }

    /// What is found, in the order of ranks. No more than so many blocks are believed.
    fn found(&self, believed: u32) -> Overlaps {
        let mut found = Overlaps::with_capacity(self.fallen.min(self.ends.len()));
        for (end, &(worker, rank)) in self.ends.iter().zip(&self.order.keys) {
            if end[0] == IN || end[N - 1].min(believed) == 0 {
                continue;
            }
            let end = end.map(|depth| depth.min(believed));
            let told = end[0];
            let blocks = end.get(1).copied().unwrap_or(told);
            let behind = |i: usize| if i < N { end[i] - end[i - 1] } else { 0 };
            let (host, disk) = (behind(2), behind(3));
            found.push(Overlap { worker, rank, blocks, told, host, disk });
        }
        found
    }
}

impl View {
    /// Each target's overlap with `prompt`, in the order of ranks.
    pub(super) fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        if self.block_size != Some(prompt.block_size) {
            return Overlaps::new();
        }
        let none = |lane: Lane| self.roster.masks[lane as usize].iter().all(|word| *word == 0);
        match self.roster.special {
            0 => self.plain(prompt),
            _ if none(Lane::Host) && none(Lane::Disk) => {
                self.layered(prompt, |words| self.near(words))
            }
            _ => self.layered(prompt, |words| self.tiers(words)),
        }
    }

    /// Where each number is a rank's.
    fn plain(&self, prompt: &Prompt) -> Overlaps {
        let begin = || (Ends::<1>::new(&self.order), Field::default());
        let ((mut ends, mut field), walked) =
            self.walk(prompt, begin, |(ends, field), words, depth| {
                field.narrow(words, |at, fallen| ends.fall(at, fallen, 0, depth));
                !field.is_empty()
            });
        field.narrow(&[], |at, fallen| ends.fall(at, fallen, 0, walked.depth));
        ends.found(walked.believed)
    }

    /// Where ranks hold blocks in several ways: `fold` makes a set into who holds it in the first, in the
    /// first or second, and so on.
    fn layered<const N: usize>(
        &self,
        prompt: &Prompt,
        fold: impl Fn(&[u64]) -> [Alive; N],
    ) -> Overlaps {
        // By where each fell out of each field.
        let begin = || (Ends::<N>::new(&self.order), std::array::from_fn(|_| Field::default()));
        let narrow =
            |(ends, fields): &mut (Ends<'_, N>, [Field; N]), words: &[Alive; N], depth: u32| {
                for (i, (field, words)) in fields.iter_mut().zip(words).enumerate() {
                    field.narrow(words, |at, fallen| ends.fall(at, fallen, i, depth));
                }
            };
        let (mut state, walked) = self.walk(prompt, begin, |state, words, depth| {
            let words = fold(words);
            if depth == 0 {
                // Who holds the first block anywhere is in, and may fall out at once.
                narrow(state, &std::array::from_fn(|_| words[N - 1].clone()), 0);
            }
            narrow(state, &words, depth);
            !state.1[N - 1].is_empty()
        });
        narrow(&mut state, &std::array::from_fn(|_| Alive::new()), walked.depth);
        state.0.found(walked.believed)
    }

    /// The ranks that hold a block in device memory; and those that do or will. Those who have gone are in no
    /// mask.
    fn near(&self, words: &[u64]) -> [Alive; 2] {
        let told: Alive = self.of(words, Lane::Device).collect();
        let mut near = told.clone();
        self.add_ranks(&mut near, words, Lane::Predicted);
        [told, near]
    }

    /// The same; and those that hold it in host memory at least, and anywhere.
    fn tiers(&self, words: &[u64]) -> [Alive; 4] {
        let [told, near] = self.near(words);
        let mut host = near.clone();
        self.add_ranks(&mut host, words, Lane::Host);
        let mut all = host.clone();
        self.add_ranks(&mut all, words, Lane::Disk);
        [told, near, host, all]
    }

    fn of<'a>(&'a self, words: &'a [u64], lane: Lane) -> impl Iterator<Item = u64> + 'a {
        words.iter().zip(&self.roster.masks[lane as usize]).map(|(a, b)| a & b)
    }

    /// Adds the ranks whose numbers of this lane are in the set.
    fn add_ranks(&self, ranks: &mut Alive, words: &[u64], lane: Lane) {
        for (i, word) in self.of(words, lane).enumerate().filter(|(_, w)| *w != 0) {
            for number in members_at(i, word) {
                let seat = self.roster.get(number);
                let Some(rank) = seat.map(|seat| seat.device) else { continue };
                let at = rank as usize / 64;
                if ranks.len() <= at {
                    ranks.resize(at + 1, 0);
                }
                ranks[at] |= 1 << (rank % 64);
            }
        }
    }
}
