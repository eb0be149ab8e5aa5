//! A target turns out to have names of its own. What it holds so far is called as its nodes are, and nothing but
//! a look at all nodes tells what that is: so its names are written down a few pages at a time, and until
//! then both are asked.

use super::ChainIndex;
use super::nodes::{PAGE, Slot};
use super::sets::TargetNo;
use super::target::{Map, Names, Shards};
use crate::hash::EngineHash;
use foldhash::fast::FixedState;
use std::collections::HashSet;

/// What a target held before it had names of its own, as far as these are not written down yet.
#[derive(Debug, Default)]
pub(super) struct Old {
    /// The next page to be looked through.
    page: u32,
    /// Nodes that are held under their own names still.
    left: usize,
    /// Copies of these beyond the first.
    pub(super) copies: Map<EngineHash, u32>,
    /// Nodes from that page on that are held under the target's names alone.
    new: HashSet<Slot, FixedState>,
}

impl Old {
    /// Whether a node, which the target holds, is held under the node's own name.
    pub(super) fn covers(&self, slot: Slot) -> bool {
        slot / PAGE >= self.page && !self.new.contains(&slot)
    }

    /// A node that it didn't hold is held under a name of the target's.
    pub(super) fn held(&mut self, slot: Slot) {
        if slot / PAGE >= self.page {
            self.new.insert(slot);
        }
    }

    /// A node is held no longer, of which nothing but its own name may be known.
    pub(super) fn gone(&mut self, slot: Slot, engine: EngineHash) {
        if self.covers(slot) {
            self.copies.remove(&engine);
            self.left -= 1;
        } else {
            self.new.remove(&slot);
        }
    }

    /// A node goes by its own name no longer, but by one of the target's.
    pub(super) fn lose_name(&mut self, slot: Slot) {
        self.left -= 1;
        self.new.insert(slot);
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn bytes(&self) -> usize {
        self.copies.capacity() * size_of::<(EngineHash, u32)>()
            + self.new.capacity() * (size_of::<Slot>() + 1)
    }
}

impl ChainIndex {
    /// The target has names of its own from now on. What is left to do is [`Self::rename_some`]'s.
    pub(super) fn rename(&mut self, number: TargetNo) {
        let Some(target) = self.target_mut(number) else { return };
        let Names::Common { copies } = &mut target.names else { return };
        let (copies, left) = (std::mem::take(copies), target.standing);
        let old = (left > 0).then(|| Box::new(Old { left, copies, ..Old::default() }));
        let pending = old.is_some();
        target.names = Names::Own { blocks: Shards::default(), more: Map::default(), old };
        // Somebody who had the number before may be waited for still.
        if pending && !self.renamed.contains(&number) {
            self.renamed.push_back(number);
        }
    }

    /// Writes down the names of what lies in so many pages. True: there is more to do.
    pub(super) fn rename_some(&mut self, pages: u32) -> bool {
        let Some(number) = self.renamed.front().copied() else { return false };
        let (nodes, sets) = (&self.nodes, &self.sets);
        let member = self.targets.get_mut(number as usize).and_then(Option::as_mut);
        // Whoever it was may have gone since.
        let names = member.map(|member| &mut member.target.names);
        if let Some(Names::Own { blocks, old: rest, .. }) = names
            && let Some(old) = rest
        {
            let to = old.page.saturating_add(pages).min(nodes.pages());
            for (slot, node) in (old.page..to).flat_map(|page| nodes.of_page(page)) {
                if sets.has(node.set, number) && !old.new.remove(&slot) {
                    let more = old.copies.remove(&node.engine).unwrap_or(0);
                    blocks.insert(node.engine, (slot, more.saturating_add(1)));
                    old.left -= 1;
                }
            }
            old.page = to;
            if old.left > 0 && to < nodes.pages() {
                return true;
            }
            debug_assert_eq!(old.left, 0, "blocks without a name");
            *rest = None;
        }
        self.renamed.pop_front();
        !self.renamed.is_empty()
    }

    /// Invariants of what a target's own names don't tell yet: the nodes that it holds by theirs.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check_old(&self, number: TargetNo, old: &Old) -> Vec<Slot> {
        let held = self.nodes.iter().filter(|(_, n)| self.sets.has(n.set, number));
        let (by_theirs, own): (Vec<_>, Vec<_>) = held.partition(|(slot, _)| old.covers(*slot));
        let new = own.iter().filter(|(slot, _)| slot / PAGE >= old.page);
        assert!(new.clone().all(|(slot, _)| old.new.contains(slot)), "held by a lost name");
        assert_eq!(new.count(), old.new.len(), "names of what is not held");
        assert_eq!(by_theirs.len(), old.left, "blocks that go by their nodes' names");
        for (_, node) in &by_theirs {
            let stands = self.standing(number, node.engine, self.nodes.called(node.engine));
            assert!(node.named && stands.is_some(), "a name that leads nowhere");
        }
        assert!(self.renamed.contains(&number), "names that nobody writes down");
        by_theirs.into_iter().map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
#[path = "rename_tests.rs"]
mod tests;
