//! Which blocks of a trace are the same. A block is its content *and* all before it, as in a prefix cache; each
//! gets the next number when it first appears, so the numbers of one prompt mostly follow each other.

use foldhash::fast::FixedState;
use homing_core::hash::{ChainHash, HashSpace};
use std::collections::HashMap;

/// Blocks by number. See the module.
#[derive(Clone, Debug)]
pub struct Blocks {
    size: u32,
    nodes: Vec<Node>,
    /// Children besides the first of their parent. No parent is the largest number.
    more: HashMap<(u32, u64), u32, FixedState>,
    /// The first block of all without a parent.
    first: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    content: u64,
    chain: ChainHash,
    parent: u32,
    /// The first child; mostly there is no other.
    child: u32,
}

const NONE: u32 = u32::MAX;
/// Numbers above are engines' own (`BlockId::ANSWER`).
const MOST: usize = 1 << 31;

impl Blocks {
    /// None yet, of `size` tokens each (at least 1).
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { size: size.max(1), nodes: Vec::new(), more: HashMap::default(), first: NONE }
    }

    /// Tokens per block.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The block of this content behind `parent`.
    ///
    /// # Errors
    /// There are too many.
    pub fn child(&mut self, parent: Option<u32>, content: u64) -> Result<u32, String> {
        let parent = parent.unwrap_or(NONE);
        let first = self.nodes.get(parent as usize).map_or(self.first, |n| n.child);
        if let Some(known) = self.nodes.get(first as usize) {
            if known.content == content {
                return Ok(first);
            }
            if let Some(known) = self.more.get(&(parent, content)) {
                return Ok(*known);
            }
        }
        let id = self.nodes.len();
        if id >= MOST {
            return Err(format!("more than {MOST} different blocks; cut the trace"));
        }
        let id = id as u32;
        let local = HashSpace::default().local(&tokens_of(u64::from(id), self.size));
        let before = self.nodes.get(parent as usize).map(|n| n.chain);
        let chain = ChainHash::after(before, local);
        self.nodes.push(Node { content, chain, parent, child: NONE });
        match self.nodes.get_mut(parent as usize) {
            Some(node) if node.child == NONE => node.child = id,
            None if self.first == NONE => self.first = id,
            _ => {
                self.more.insert((parent, content), id);
            }
        }
        Ok(id)
    }

    /// The hash by which the core knows a block.
    #[must_use]
    pub fn chain(&self, block: u32) -> Option<ChainHash> {
        self.nodes.get(block as usize).map(|n| n.chain)
    }

    /// The content that it was made of.
    #[must_use]
    pub fn content(&self, block: u32) -> Option<u64> {
        self.nodes.get(block as usize).map(|n| n.content)
    }

    /// The blocks up to this one, from the first on.
    #[must_use]
    pub fn path(&self, block: u32) -> Vec<u32> {
        let parent = |b: &u32| self.nodes.get(*b as usize).map(|n| n.parent);
        let mut path: Vec<u32> = std::iter::successors(Some(block), parent)
            .take_while(|b| (*b as usize) < self.nodes.len())
            .collect();
        path.reverse();
        path
    }
}

/// Tokens that stand for a block: a trace says none, and an engine's events have some. Nobody else's block has
/// the same.
#[must_use]
pub fn tokens_of(block: u64, size: u32) -> Vec<u32> {
    let mut tokens = vec![0; size as usize];
    put_tokens(block, &mut tokens);
    tokens
}

/// The same, into zeros.
pub fn put_tokens(block: u64, zeros: &mut [u32]) {
    // A block of one token has room for half of it; replays take two at least.
    for (token, part) in zeros.iter_mut().zip([block as u32, (block >> 32) as u32]) {
        *token = part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homing_core::hash::Prompt;

    #[test]
    fn equal_prefixes_are_equal_blocks_and_nothing_else_is() {
        let mut it = Blocks::new(4);
        let mut path = |contents: &[u64]| {
            let mut parent = None;
            let step = |c: &u64| {
                parent = Some(it.child(parent, *c).expect("few"));
                parent.expect("just set")
            };
            contents.iter().map(step).collect::<Vec<_>>()
        };
        assert_eq!(path(&[7, 8, 9]), [0, 1, 2]);
        assert_eq!(path(&[7, 8, 10]), [0, 1, 3]);
        assert_eq!(path(&[8, 9]), [4, 5], "another prefix");
        assert_eq!(path(&[7, 8, 10, 9]), [0, 1, 3, 6]);
        assert_eq!(path(&[7, 8, 9]), [0, 1, 2]);
        assert_eq!(it.path(6), [0, 1, 3, 6]);
        assert_eq!((it.content(6), it.content(99), it.len()), (Some(9), None, 7));
    }

    #[test]
    fn a_chain_is_what_the_core_makes_of_the_tokens_that_events_carry() {
        let mut it = Blocks::new(4);
        let a = it.child(None, 70).expect("few");
        let b = it.child(Some(a), 71).expect("few");
        let tokens = [tokens_of(u64::from(a), 4), tokens_of(u64::from(b), 4)].concat();
        let prompt = Prompt::from_tokens(&tokens, 4, HashSpace::default());
        assert_eq!(prompt.chain[..], [it.chain(a).expect("known"), it.chain(b).expect("known")]);
    }
}
