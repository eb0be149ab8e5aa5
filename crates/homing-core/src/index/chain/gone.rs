//! Who has gone is out of every answer at once: its numbers are in no mask any more. Its bits stay in sets
//! until a sweep has taken them out, page by page, and only then its numbers are given out again. So a
//! worker with a million blocks departs without holding anybody up.

use super::ChainIndex;
use super::nodes::Slot;
use super::sets::{SetId, Sets, TargetNo, Words, set_member};
use super::spaces::Spaces;
use crate::ids::{DpRank, WorkerId};

/// So many free numbers are kept in any case.
const FEW: usize = 256;

/// A round over all pages.
#[derive(Debug)]
pub(super) struct Sweep {
    numbers: Vec<TargetNo>,
    mask: Words,
    /// The next page.
    page: u32,
}

impl Sweep {
    /// How many numbers it is for.
    pub(super) fn numbers(&self) -> usize {
        self.numbers.len()
    }
}

impl ChainIndex {
    /// Forgets everything about a worker. What is left to do is [`Self::sweep`]'s.
    pub fn forget(&mut self, worker: WorkerId) {
        let ranks = (worker, DpRank(0))..=(worker, DpRank(u16::MAX));
        let gone: Vec<_> = self.numbers.range(ranks).map(|(k, _)| *k).collect();
        gone.into_iter().for_each(|key| self.clear(key));
        self.forget_block_size_if_empty();
        self.show();
    }

    pub(super) fn clear(&mut self, key: (WorkerId, DpRank)) {
        let Some(lanes) = self.numbers.remove(&key) else { return };
        for number in lanes.all() {
            let Some(member) = self.targets[number as usize].take() else { continue };
            self.roster.seat(number, member.lane, None);
            // One that holds nothing is in no set.
            if member.target.standing == 0 {
                self.roster.special -= usize::from(member.device != number);
                self.free.push(number);
            } else {
                self.roster.special += usize::from(member.device == number);
                self.retired.push(number);
            }
        }
        self.tidy();
    }

    /// Looks through some pages for what is left of those who have gone, and for what is to be written down of
    /// those who have names of their own. True: there is more to do.
    pub fn sweep(&mut self, pages: u32) -> bool {
        let renames = self.rename_some(pages);
        let more = self.sweep_some(pages);
        self.show();
        more || renames
    }

    fn sweep_some(&mut self, pages: u32) -> bool {
        let mut sweep = match self.sweep.take() {
            Some(sweep) => sweep,
            None if self.retired.is_empty() => return false,
            None => {
                let numbers = std::mem::take(&mut self.retired);
                let mut mask = Words::new();
                numbers.iter().for_each(|n| set_member(&mut mask, *n, true));
                Sweep { numbers, mask, page: 0 }
            }
        };
        let to = sweep.page.saturating_add(pages).min(self.nodes.pages());
        for page in sweep.page..to {
            let of = |set: SetId| self.sets.words(set).iter().zip(&sweep.mask);
            let its = |set: SetId| of(set).any(|(a, b)| a & b != 0);
            let held: Vec<(Slot, SetId)> = self
                .nodes
                .of_page(page)
                .filter(|(_, n)| its(n.set))
                .map(|(slot, n)| (slot, n.set))
                .collect();
            for (slot, mut set) in held {
                for &number in &sweep.numbers {
                    if self.sets.has(set, number) {
                        set = self.sets.flip(set, number);
                    }
                }
                self.nodes.hold(slot, set, true);
                if set == SetId::EMPTY {
                    self.nodes.remove(slot);
                }
            }
        }
        sweep.page = to;
        if to < self.nodes.pages() {
            self.sweep = Some(sweep);
            return true;
        }
        self.roster.special -= sweep.numbers.len();
        self.free.append(&mut sweep.numbers);
        self.tidy();
        !self.retired.is_empty()
    }

    /// Where nothing is held, nothing is kept.
    pub(super) fn tidy(&mut self) {
        if self.nodes.len() == 0 {
            self.spaces = Spaces::default();
        }
        // Both or none: a reader must never look up in one set of sets what it has read in other pages.
        if self.nodes.is_bare() && (self.nodes.pages() > 0 || !self.sets.is_bare()) {
            self.nodes.reset();
            self.sets = Sets::default();
        }
        if self.free.len() == self.targets.len() && !self.targets.is_empty() {
            (self.free, self.targets) = Default::default();
            self.roster.shrink(0);
        } else if self.free.len() > FEW.max(self.targets.len() / 2)
            && self.retired.is_empty()
            && self.sweep.is_none()
        {
            // The numbers at the end that nobody has any more.
            let all = self.targets.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            self.targets.truncate(all);
            self.targets.shrink_to(2 * all);
            self.roster.shrink(all);
            self.free.retain(|number| usize::from(*number) < all);
            self.free.shrink_to(2 * self.free.len());
        }
    }
}
