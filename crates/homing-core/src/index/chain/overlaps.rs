//! How far a prompt goes. It is walked once for all targets: who is still in is a bit each, and a target's
//! answer is where it falls out. Where ranks have more than their device memory, there are three such
//! fields of bits: who holds every block near, or in host memory at least, or anywhere.

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
            0 => self.flat(prompt, &mut found, |words, field, falls| field.narrow(words, falls)),
            _ if none(Lane::Host) && none(Lane::Disk) => {
                self.flat(prompt, &mut found, |words, field, falls| {
                    field.narrow(&self.near(words), falls);
                });
            }
            _ => self.tiered(prompt, &mut found),
        }
        found.sort_unstable_by_key(|o| (o.worker, o.rank));
        found
    }

    /// Calls `step` with the set of each block from the first on, where it is another than the last one's,
    /// and how many blocks came before, until that says it is enough. How many blocks there were.
    fn walk(&self, prompt: &Prompt, mut step: impl FnMut(SetId, u32) -> bool) -> u32 {
        let most = (prompt.reusable_blocks() as usize).min(prompt.chain.len());
        let (mut before, mut set, mut page) = (None, SetId::EMPTY, u32::MAX);
        let mut depth = 0;
        for chain in &prompt.chain[..most] {
            let Some(slot) = self.nodes.find(*chain, before) else { break };
            let Some(node) = self.nodes.get(slot) else { break };
            if slot / PAGE != page {
                page = slot / PAGE;
                self.nodes.touch(page);
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

    /// Where there is only one tier. `narrow` reads a set.
    fn flat(
        &self,
        prompt: &Prompt,
        found: &mut Overlaps,
        narrow: impl Fn(&[u64], &mut Field, &mut dyn FnMut(TargetNo)),
    ) {
        let mut field = Field::default();
        let depth = self.walk(prompt, |set, depth| {
            narrow(self.sets.words(set), &mut field, &mut |n| self.found(n, depth, found));
            !field.is_empty()
        });
        field.narrow(&[], |n| self.found(n, depth, found));
    }

    fn tiered(&self, prompt: &Prompt, found: &mut Overlaps) {
        // By where each fell out: near, of host memory, of everything.
        let mut ends: SmallVec<[(TargetNo, [u32; 3]); 8]> = SmallVec::new();
        let mut fields: [Field; 3] = Default::default();
        let mut narrow = |fields: &mut [Field; 3], words: &[Alive; 3], depth: u32| {
            for (i, (field, words)) in fields.iter_mut().zip(words).enumerate() {
                field.narrow(words, |n| match ends.iter_mut().find(|(who, _)| *who == n) {
                    Some((_, end)) => end[i..].fill(depth),
                    None => ends.push((n, [0; 3].map(|_| depth))),
                });
            }
        };
        let depth = self.walk(prompt, |set, depth| {
            let words = self.fold(self.sets.words(set));
            if depth == 0 {
                // Who holds the first block anywhere is in, and may fall out at once.
                let all = words[2].clone();
                narrow(&mut fields, &[all.clone(), all.clone(), all], 0);
            }
            narrow(&mut fields, &words, depth);
            !fields[2].is_empty()
        });
        narrow(&mut fields, &Default::default(), depth);
        for (number, [near, host, all]) in ends.into_iter().filter(|(_, end)| end[2] > 0) {
            if let Some(Some(m)) = self.targets.get(number as usize) {
                let (worker, rank) = m.key;
                let (host, disk) = (host - near, all - host);
                found.push(Overlap { worker, rank, blocks: near, host, disk });
            }
        }
    }

    fn found(&self, number: TargetNo, blocks: u32, found: &mut Overlaps) {
        if let (Some(Some(m)), 1..) = (self.targets.get(number as usize), blocks) {
            found.push(Overlap { worker: m.key.0, rank: m.key.1, blocks, host: 0, disk: 0 });
        }
    }

    /// The ranks that hold a block in device memory, or will. Those who have gone are in no mask.
    fn near(&self, words: &[u64]) -> Alive {
        let mut near: Alive = self.of(words, Lane::Device).collect();
        self.add_ranks(&mut near, words, Lane::Predicted);
        near
    }

    /// The ranks that hold a block near, in host memory at least, anywhere.
    fn fold(&self, words: &[u64]) -> [Alive; 3] {
        let near = self.near(words);
        let mut host = near.clone();
        self.add_ranks(&mut host, words, Lane::Host);
        let mut all = host.clone();
        self.add_ranks(&mut all, words, Lane::Disk);
        [near, host, all]
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
