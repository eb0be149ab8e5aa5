//! Which prefixes came by lately, whoever holds them now: what a cache has lost looks like news to the index,
//! and only this tells the one from the other.
//!
//! Two generations of a filter: what comes by is marked in the young one, and is known while either has it.
//! When the young one has [`GENERATION`] marks it becomes the old one and the old one is emptied. So the last
//! million blocks at least are known, and two million at most. A chain hash names its whole prefix and is
//! as good as random: four of its six-bit pieces are a pattern in the one word that its upper bits name, a cache
//! line a look. About one block in two hundred that never came is taken for one that did.
//!
//! Prompts come by again and again, longer by a turn: whoever marks one asks first how much of it is marked already,
//! which takes a few looks, since with a block all those before it are.

use crate::hash::ChainHash;

/// Marks of one generation.
pub const GENERATION: usize = 1 << 20;
/// Words of 64 bits of one: 2 MiB.
const WORDS: usize = GENERATION / 4;

/// Blocks in a row that are no accident.
const SURE: usize = 4;

/// See the module. Takes no room until the first block comes, and 4 MiB from then on.
#[derive(Debug, Default)]
pub struct Seen {
    young: Vec<u64>,
    old: Vec<u64>,
    /// Blocks that are marked in the young one.
    marks: usize,
}

impl Seen {
    /// How many of the leading blocks came by.
    #[must_use]
    pub fn leading(&self, chain: &[ChainHash]) -> usize {
        if self.young.is_empty() {
            return 0;
        }
        let known = |hash: &&ChainHash| {
            let (word, bits) = place(**hash);
            self.young[word] & bits == bits || self.old[word] & bits == bits
        };
        chain.iter().take_while(known).count()
    }

    /// How many of the leading blocks were marked so lately that they need not be marked again: where the first of them
    /// are, and some in a row, all between them are.
    #[must_use]
    pub fn fresh(&self, chain: &[ChainHash]) -> usize {
        if self.young.is_empty() {
            return 0;
        }
        let marked = |hash: &ChainHash| {
            let (word, bits) = place(*hash);
            self.young[word] & bits == bits
        };
        let up_to = |n: usize| chain[n.saturating_sub(SURE)..n].iter().all(marked);
        if up_to(chain.len()) && up_to(SURE.min(chain.len())) {
            return chain.len();
        }
        let (mut known, mut unknown) = (SURE.min(chain.len()), chain.len());
        if !up_to(known) {
            return 0;
        }
        while unknown - known > 1 {
            let middle = usize::midpoint(known, unknown);
            if up_to(middle) { known = middle } else { unknown = middle }
        }
        known
    }

    /// These come by.
    pub fn mark(&mut self, chain: &[ChainHash]) {
        if self.young.is_empty() && !chain.is_empty() {
            (self.young, self.old) = (vec![0; WORDS], vec![0; WORDS]);
        }
        for hash in chain {
            let (word, bits) = place(*hash);
            if self.young[word] & bits == bits {
                continue;
            }
            if self.marks == GENERATION {
                std::mem::swap(&mut self.young, &mut self.old);
                self.young.fill(0);
                self.marks = 0;
            }
            self.young[word] |= bits;
            self.marks += 1;
        }
    }
}

/// A block's word and its bits there.
fn place(hash: ChainHash) -> (usize, u64) {
    let word = (hash.0 >> 32) as usize % WORDS;
    let bits = [0, 6, 12, 18].map(|at| 1u64 << ((hash.0 >> at) & 63));
    (word, bits.iter().fold(0, |all, bit| all | bit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::{Dice, SplitMix};

    fn chain(seed: u64, n: usize) -> Vec<ChainHash> {
        let mut dice = SplitMix::new(seed);
        (0..n).map(|_| ChainHash(dice.roll())).collect()
    }

    #[test]
    fn what_came_by_is_known_from_its_front() {
        let (mut seen, a) = (Seen::default(), chain(1, 100));
        assert_eq!(seen.leading(&a), 0);
        seen.mark(&a[..60]);
        assert_eq!(seen.leading(&a), 60);
        seen.mark(&a);
        assert_eq!(seen.leading(&a), 100);
        assert_eq!(seen.leading(&a[1..]), 99);
        assert_eq!(seen.leading(&[]), 0);
    }

    #[test]
    fn the_last_generation_is_known_and_what_is_older_than_two_is_not() {
        let (mut seen, first) = (Seen::default(), chain(1, 1000));
        seen.mark(&first);
        seen.mark(&chain(2, GENERATION));
        assert_eq!(seen.leading(&first), 1000, "the old generation still has it");
        seen.mark(&chain(3, GENERATION + GENERATION / 8));
        let still = first.iter().filter(|h| seen.leading(&[**h]) == 1).count();
        assert!(still < 50, "{still} of 1000 are still known");
        assert_eq!((seen.young.len(), seen.old.len()), (WORDS, WORDS), "it doesn't grow");
    }

    #[test]
    fn what_comes_again_and_again_stays_known() {
        let (mut seen, kept) = (Seen::default(), chain(1, 500));
        for round in 0..30 {
            seen.mark(&kept);
            seen.mark(&chain(2 + round, GENERATION / 8));
        }
        assert_eq!(seen.leading(&kept), 500);
    }

    #[test]
    fn what_was_marked_lately_is_told_by_a_few_looks() {
        let (mut seen, a) = (Seen::default(), chain(1, 1000));
        assert_eq!(seen.fresh(&a), 0);
        for n in [1, 2, 3, 4, 5, 63, 64, 65, 999, 1000] {
            seen.mark(&a[..n]);
            assert_eq!(seen.fresh(&a[..n]), n, "all of {n}");
            let next = seen.fresh(&a);
            assert!(next == n || n < SURE && next == 0, "{next} of {n}");
        }
        assert_eq!(seen.fresh(&[]), 0);
        // What only the old generation has is marked anew, as is what has lost its front.
        seen.mark(&chain(2, GENERATION + GENERATION / 32));
        assert_eq!((seen.fresh(&a), seen.leading(&a)), (0, 1000));
        seen.mark(&a[500..]);
        assert_eq!(seen.fresh(&a), 0);
    }

    #[test]
    fn few_that_never_came_are_taken_for_seen() {
        let mut seen = Seen::default();
        seen.mark(&chain(1, GENERATION));
        let strangers = chain(2, 100_000);
        let wrong = strangers.iter().filter(|h| seen.leading(&[**h]) == 1).count();
        assert!(wrong < 1500, "{wrong} of 100,000");
    }
}
