//! What must always be true of an index, looked at by tests and debug builds.

use super::ChainIndex;
use super::lanes::Lane;
use super::nodes::Slot;
use super::sets::{SetId, TargetNo};
use super::target::Names;
use crate::hash::EngineHash;
use std::collections::BTreeMap;

impl ChainIndex {
    /// Invariants, for tests and debug builds.
    ///
    /// # Panics
    /// When one is violated.
    pub fn check(&self) {
        self.nodes.check();
        self.sets.check(|set| self.nodes.iter().filter(|(_, n)| n.set == set).count());
        for (slot, node) in self.nodes.iter() {
            assert_ne!(node.set, SetId::EMPTY, "node {slot} is nobody's");
            assert!(self.spaces.knows(&node), "a space that is not known");
        }
        for (key, lanes) in &self.numbers {
            assert!(lanes.of(Lane::Device).is_some(), "a rank without its own number");
            for number in lanes.all() {
                let member = self.targets[number as usize].as_ref().expect("a numbered one");
                assert_eq!((member.key, lanes.of(member.lane)), (*key, Some(number)), "a number");
                assert_eq!(Some(member.device), lanes.of(Lane::Device), "the rank's own number");
                member.target.check();
                self.check_target(number, member.lane);
            }
        }
        let numbered: usize = self.numbers.values().map(|lanes| lanes.all().count()).sum();
        assert_eq!(numbered, self.targets.iter().flatten().count(), "numbers");
        let swept = self.sweep.as_ref().map_or(0, |s| s.numbers());
        let gone = self.retired.len() + swept;
        assert_eq!(self.targets.len(), numbered + self.free.len() + gone, "numbers that are lost");
        let not_device = |m: &&super::Member| m.lane != Lane::Device;
        let special = self.targets.iter().flatten().filter(not_device).count() + gone;
        assert_eq!(self.roster.special, special, "numbers that are not a rank's own");
        self.check_view();
    }

    fn check_target(&self, number: TargetNo, lane: Lane) {
        let Some(target) = self.target(number) else { return };
        let held = self.nodes.iter().filter(|(_, n)| self.sets.has(n.set, number));
        let held: BTreeMap<Slot, EngineHash> = held.map(|(s, n)| (s, n.engine)).collect();
        match &target.names {
            Names::Common { copies } => {
                assert_eq!(held.len(), target.standing, "blocks that stand");
                assert!(copies.values().all(|n| *n > 0));
                for hash in held.values().filter(|_| lane != Lane::Predicted && !self.nameless) {
                    let called = self.nodes.called(*hash);
                    assert!(self.standing(number, *hash, called).is_some(), "a name of its own");
                }
            }
            Names::Own { blocks, more, old } => {
                let mut count: BTreeMap<Slot, u32> = BTreeMap::new();
                let stands = blocks.iter().filter(|(_, at)| self.nodes.get(at.0).is_some());
                stands.for_each(|(_, (slot, _))| *count.entry(*slot).or_default() += 1);
                let left = old.as_ref().map_or(0, |old| old.left());
                let ghostly = self.nodes.ghosts() > 0;
                assert!(
                    ghostly || blocks.iter().count() + left == target.standing,
                    "names that lead away"
                );
                let old = old.as_ref().map(|old| self.check_old(number, old)).unwrap_or_default();
                old.into_iter().for_each(|slot| *count.entry(slot).or_default() += 1);
                assert_eq!(
                    count.values().sum::<u32>() as usize,
                    target.standing,
                    "blocks that stand"
                );
                assert!(count.keys().eq(held.keys()), "names and prefixes");
                let several: BTreeMap<_, _> = count.into_iter().filter(|c| c.1 > 1).collect();
                assert_eq!(several, more.iter().map(|(s, n)| (*s, *n)).collect());
            }
        }
    }
}
