//! Making room. The index has a budget, and what nobody asked for of late goes first (F22): the blocks
//! that wait for parents, which nobody can ask for; then pages that the clock finds cold. Each step is
//! short, so that whoever reads waits for one step at most.
//!
//! A target's own names lead to nodes by their numbers. Where such a node is dropped, its page is a ghost
//! until each of these names has been looked at, shard by shard; until then the number is nobody else's.

use super::ChainIndex;
use super::lanes::Lane;
use super::sets::members;
use super::target::Names;

/// Orphans that one step drops.
const ORPHANS: usize = 256;
/// Pages that one step looks at.
const PAGES: usize = 32;
/// Ghosts are laid when they are so many, or so large a part of all pages.
const GHOSTS: usize = 64;
const PART: usize = 16;

/// A round over all own names.
#[derive(Debug)]
pub(super) struct Purge {
    /// Ghosts that no name leads to afterwards.
    ghosts: usize,
    number: usize,
    shard: usize,
}

impl ChainIndex {
    /// Blocks that were dropped to make room, each once a target.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// One step towards `goal` bytes. True: there is more to do.
    pub fn make_room(&mut self, goal: usize) -> bool {
        let more = self.one_step(goal);
        self.show();
        more
    }

    fn one_step(&mut self, goal: usize) -> bool {
        if self.purge.is_some() {
            self.purge_some();
            return true;
        }
        let (ghosts, over) = (self.nodes.ghosts(), self.bytes() > goal);
        let many = ghosts >= GHOSTS.max(self.nodes.pages() as usize / PART);
        if ghosts > 0 && (many || !over || self.nodes.len() == 0) {
            self.purge = Some(Purge { ghosts, number: 0, shard: 0 });
            return true;
        }
        if !over {
            self.nodes.rest();
            return false;
        }
        self.drop_orphans() || self.drop_cold()
    }

    fn drop_orphans(&mut self) -> bool {
        let waits = |m: &&mut super::Member| !m.target.orphans.is_empty();
        let Some(member) = self.targets.iter_mut().flatten().find(waits) else { return false };
        let target = &mut member.target;
        for _ in 0..ORPHANS {
            let Some(hash) = target.any_orphan() else { break };
            target.stop_waiting(hash);
            self.dropped += 1;
        }
        if target.orphans.is_empty() {
            target.orphans.shrink_to_fit();
        }
        self.forget_block_size_if_empty();
        true
    }

    fn drop_cold(&mut self) -> bool {
        for _ in 0..PAGES {
            if let Some(page) = self.nodes.tick() {
                self.drop_page(page);
            }
        }
        if self.nodes.len() == 0 {
            self.tidy();
            self.forget_block_size_if_empty();
        }
        self.nodes.len() > 0 || self.nodes.ghosts() > 0
    }

    fn drop_page(&mut self, page: u32) {
        let mut ghost = false;
        for (slot, node) in self.nodes.of_page(page) {
            for number in members(self.sets.words(node.set)) {
                let Some(Some(member)) = self.targets.get_mut(number as usize) else { continue };
                let names = match &mut member.target.names {
                    Names::Common { copies } => {
                        copies.remove(&node.engine);
                        1
                    }
                    Names::Own { more, old, .. } => {
                        ghost = true;
                        if let Some(old) = old {
                            old.gone(slot, node.engine);
                        }
                        more.remove(&slot).unwrap_or(1) as usize
                    }
                };
                member.target.standing -= names;
                if member.lane != Lane::Predicted {
                    self.dropped += names as u64;
                }
            }
            self.sets.drop_user(node.set);
        }
        self.nodes.drop_page(page, ghost);
    }

    fn purge_some(&mut self) {
        let Some(purge) = &mut self.purge else { return };
        let nodes = &self.nodes;
        while let Some(member) = self.targets.get_mut(purge.number) {
            if let Some(member) = member
                && let Names::Own { blocks, .. } = &mut member.target.names
                && blocks.purge(purge.shard, |slot| nodes.lives(slot))
            {
                purge.shard += 1;
                return;
            }
            (purge.number, purge.shard) = (purge.number + 1, 0);
        }
        let ghosts = purge.ghosts;
        self.purge = None;
        self.nodes.lay_ghosts(ghosts);
        self.tidy();
    }
}
