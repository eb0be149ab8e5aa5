//! Hash spaces by number: a node keeps that of its children, unless they say so themselves. Salts come and
//! go with tenants and sessions: where all numbers are taken, those that no node has any more are found.

use super::ChainIndex;
use super::pages::Node;
use super::target::Map;
use crate::hash::HashSpace;

/// Hash spaces of one index at a time, at most: adapters and salts. Blocks of those beyond are left out.
const MAX_SPACES: usize = u16::MAX as usize;
/// So many nodes must have gone before unused numbers are looked for again: all nodes are looked at.
const GONE: u64 = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spaces {
    known: Vec<HashSpace>,
    numbers: Map<HashSpace, u16>,
    free: Vec<u16>,
    /// The one that was asked for last: neighbours are in the same.
    last: Option<(HashSpace, u16)>,
    /// Nodes that had gone when unused numbers were last looked for.
    looked: u64,
}

impl Spaces {
    pub(super) fn of(&self, node: &Node) -> HashSpace {
        self.known[node.space as usize]
    }

    pub(super) fn knows(&self, node: &Node) -> bool {
        self.known.get(node.space as usize).is_some_and(|s| self.numbers.contains_key(s))
    }

    pub(super) fn bytes(&self) -> usize {
        self.known.capacity() * size_of::<HashSpace>()
            + self.numbers.capacity() * (size_of::<(HashSpace, u16)>() + 1)
            + self.free.capacity() * size_of::<u16>()
    }
}

impl ChainIndex {
    /// The number of a space, which gets one if need be. `None`: there are too many.
    pub(super) fn space(&mut self, space: HashSpace) -> Option<u16> {
        // Where nobody announces blocks, none has children that would ask.
        let space = if self.nameless { HashSpace::default() } else { space };
        if let Some((last, number)) = self.spaces.last
            && last == space
        {
            return Some(number);
        }
        if let Some(&number) = self.spaces.numbers.get(&space) {
            self.spaces.last = Some((space, number));
            return Some(number);
        }
        if self.spaces.free.is_empty() && self.spaces.known.len() >= MAX_SPACES {
            self.find_unused_spaces();
        }
        let spaces = &mut self.spaces;
        let number = match spaces.free.pop() {
            Some(number) => number,
            None if spaces.known.len() >= MAX_SPACES => return None,
            None => {
                spaces.known.push(space);
                (spaces.known.len() - 1) as u16
            }
        };
        spaces.known[number as usize] = space;
        spaces.numbers.insert(space, number);
        Some(number)
    }

    fn find_unused_spaces(&mut self) {
        let removed = self.nodes.removed();
        if removed.saturating_sub(self.spaces.looked) < GONE {
            return;
        }
        (self.spaces.looked, self.spaces.last) = (removed, None);
        let mut used = vec![false; self.spaces.known.len()];
        self.nodes.iter().for_each(|(_, node)| used[node.space as usize] = true);
        for (number, used) in used.into_iter().enumerate() {
            let space = self.spaces.known[number];
            if !used && self.spaces.numbers.remove(&space).is_some() {
                self.spaces.free.push(number as u16);
            }
        }
    }
}
