//! How far a prompt goes. It is walked once for all targets: who is still in is a bit each, and a target's
//! answer is where it falls out. Where ranks hold blocks in more ways than in device memory, there is such a
//! field of bits for each: who holds every block there, or will, or in host memory at least, or anywhere.

use super::ChainIndex;
use super::lanes::Lane;
use super::nodes::PAGE;
use super::sets::{SetId, TargetNo, members};
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
    /// Those who are not in `words` fall out.
    fn narrow(&mut self, words: &[u64], mut falls: impl FnMut(TargetNo)) {
        if !std::mem::replace(&mut self.began, true) {
            self.alive = words.into();
            return;
        }
        for (i, word) in self.alive.iter_mut().enumerate() {
            let stay = words.get(i).copied().unwrap_or(0);
            let fallen = *word & !stay;
            *word &= stay;
            if fallen != 0 {
                members(&[fallen]).for_each(|bit| falls((i * 64) as TargetNo + bit));
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.alive.iter().all(|w| *w == 0)
    }
}

impl ChainIndex {
    /// Each target's overlap with `prompt`.
    #[must_use]
    pub fn overlaps(&self, prompt: &Prompt) -> Overlaps {
        let mut found = Overlaps::new();
        if self.block_size != Some(prompt.block_size) {
            return found;
        }
        let none = |lane: Lane| self.masks[lane as usize].iter().all(|word| *word == 0);
        match self.special {
            0 => self.plain(prompt, &mut found),
            _ if none(Lane::Host) && none(Lane::Disk) => {
                self.layered(prompt, &mut found, |words| self.near(words));
            }
            _ => self.layered(prompt, &mut found, |words| self.tiers(words)),
        }
        found.sort_unstable_by_key(|o| (o.worker, o.rank));
        found
    }

    /// Calls `step` with the set of each block from the first on, where it is another than the last one's,
    /// and how many blocks came before, until that says it is enough. How many blocks there were.
    fn walk(&self, prompt: &Prompt, mut step: impl FnMut(SetId, u32) -> bool) -> u32 {
        let most = (prompt.reusable_blocks() as usize).min(prompt.chain.len());
        let (mut before, mut set, mut page) = (None, SetId::EMPTY, u32::MAX);
        let mut pages = 0_u32;
        let mut depth = 0;
        for chain in &prompt.chain[..most] {
            let Some(slot) = self.nodes.find(*chain, before) else { break };
            let Some(node) = self.nodes.get(slot) else { break };
            if slot / PAGE != page {
                page = slot / PAGE;
                self.nodes.touch(page, pages);
                pages += 1;
            }
            if node.set != set {
                set = node.set;
                if !step(set, depth) {
                    break;
                }
            }
            before = Some(slot);
            depth += 1;
        }
        depth
    }

    /// Where each number is a rank's.
    fn plain(&self, prompt: &Prompt, found: &mut Overlaps) {
        let mut field = Field::default();
        let mut at = |number: TargetNo, depth: u32| {
            if let (Some(Some(m)), 1..) = (self.targets.get(number as usize), depth) {
                let (worker, rank) = m.key;
                let (blocks, told, host, disk) = (depth, depth, 0, 0);
                found.push(Overlap { worker, rank, blocks, told, host, disk });
            }
        };
        let depth = self.walk(prompt, |set, depth| {
            field.narrow(self.sets.words(set), |n| at(n, depth));
            !field.is_empty()
        });
        field.narrow(&[], |n| at(n, depth));
    }

    /// Where ranks hold blocks in several ways: `fold` makes a set into who holds it in the first, in the
    /// first or second, and so on.
    fn layered<const N: usize>(
        &self,
        prompt: &Prompt,
        found: &mut Overlaps,
        fold: impl Fn(&[u64]) -> [Alive; N],
    ) {
        // By where each fell out of each field.
        let mut ends: SmallVec<[(TargetNo, [u32; N]); 8]> = SmallVec::new();
        let mut fields: [Field; N] = std::array::from_fn(|_| Field::default());
        let mut narrow = |fields: &mut [Field; N], words: &[Alive; N], depth: u32| {
            for (i, (field, words)) in fields.iter_mut().zip(words).enumerate() {
                field.narrow(words, |n| match ends.iter_mut().find(|(who, _)| *who == n) {
                    Some((_, end)) => end[i..].fill(depth),
                    None => ends.push((n, [depth; N])),
                });
            }
        };
        let depth = self.walk(prompt, |set, depth| {
            let words = fold(self.sets.words(set));
            if depth == 0 {
                // Who holds the first block anywhere is in, and may fall out at once.
                narrow(&mut fields, &std::array::from_fn(|_| words[N - 1].clone()), 0);
            }
            narrow(&mut fields, &words, depth);
            !fields[N - 1].is_empty()
        });
        narrow(&mut fields, &std::array::from_fn(|_| Alive::new()), depth);
        for (number, end) in ends.into_iter().filter(|(_, end)| end[N - 1] > 0) {
            if let Some(Some(m)) = self.targets.get(number as usize) {
                let (worker, rank) = m.key;
                let (told, blocks) = (end[0], end[1]);
                let behind = |i: usize| if i < N { end[i] - end[i - 1] } else { 0 };
                let (host, disk) = (behind(2), behind(3));
                found.push(Overlap { worker, rank, blocks, told, host, disk });
            }
        }
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
        words.iter().zip(&self.masks[lane as usize]).map(|(a, b)| a & b)
    }

    /// Adds the ranks whose numbers of this lane are in the set.
    fn add_ranks(&self, ranks: &mut Alive, words: &[u64], lane: Lane) {
        for (i, word) in self.of(words, lane).enumerate().filter(|(_, w)| *w != 0) {
            for bit in members(&[word]) {
                let member = self.targets.get(i * 64 + bit as usize);
                let Some(rank) = member.and_then(|m| Some(m.as_ref()?.device)) else { continue };
                let at = rank as usize / 64;
                if ranks.len() <= at {
                    ranks.resize(at + 1, 0);
                }
                ranks[at] |= 1 << (rank % 64);
            }
        }
    }
}
