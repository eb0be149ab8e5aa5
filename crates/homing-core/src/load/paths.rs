//! Which blocks the requests of one target occupy together. A prefix that several of them share is in its cache
//! once, and counts once.
//!
//! Prompts are chains of hashes, each of which names all before it; together they form a tree. Kept in the order
//! of a walk through that tree, a chain shares most with a neighbour: so what it adds, or takes away, is its
//! length less the longer of the two prefixes that it shares with them. Nothing is walked block by block.

use crate::hash::ChainHash;
use std::cmp::Ordering;
use std::sync::Arc;

type Chain = Arc<[ChainHash]>;

/// The chains of one target's requests, each under a number of its request's.
#[derive(Debug, Default)]
pub(super) struct Paths(Vec<(Chain, usize)>);

impl Paths {
    /// Adds a chain; how many of its blocks nobody else has.
    pub(super) fn add(&mut self, chain: &Chain, id: usize) -> usize {
        if chain.is_empty() {
            return 0;
        }
        let at = self.0.partition_point(|(c, i)| order(c, chain).then(i.cmp(&id)).is_lt());
        let own = chain.len() - self.shared(at.checked_sub(1), Some(at), chain);
        self.0.insert(at, (chain.clone(), id));
        own
    }

    /// Takes one away again; how many of its blocks nobody else had.
    pub(super) fn remove(&mut self, chain: &Chain, id: usize) -> usize {
        let at = self.0.partition_point(|(c, i)| order(c, chain).then(i.cmp(&id)).is_lt());
        if self.0.get(at).is_none_or(|(_, i)| *i != id) {
            return 0;
        }
        self.0.remove(at);
        chain.len() - self.shared(at.checked_sub(1), Some(at), chain)
    }

    fn shared(&self, before: Option<usize>, behind: Option<usize>, chain: &Chain) -> usize {
        let with = |at: Option<usize>| at.and_then(|at| Some(common(&self.0.get(at)?.0, chain)));
        with(before).max(with(behind)).unwrap_or(0)
    }
}

/// How many leading blocks two chains have in common.
fn common(a: &Chain, b: &Chain) -> usize {
    let most = a.len().min(b.len());
    if Arc::ptr_eq(a, b) || most == 0 || a[most - 1] == b[most - 1] {
        return most;
    }
    if a[0] != b[0] {
        return 0;
    }
    // Equal at 0, different at the end: where they part lies between.
    let (mut same, mut other) = (0, most - 1);
    while other - same > 1 {
        let middle = usize::midpoint(same, other);
        if a[middle] == b[middle] { same = middle } else { other = middle }
    }
    other
}

/// The order of a walk: a prefix comes before what goes on from it.
fn order(a: &Chain, b: &Chain) -> Ordering {
    let at = common(a, b);
    a.get(at).cmp(&b.get(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A chain through a small tree: equal beginnings, equal hashes.
    fn chain(path: &[u8]) -> Chain {
        let mut all = 0u64;
        path.iter()
            .map(|step| {
                all = all
                    .wrapping_mul(31)
                    .wrapping_add(u64::from(*step) + 1)
                    .wrapping_mul(0x9E37_79B9_7F4A_7C15);
                ChainHash(all)
            })
            .collect()
    }

    proptest! {
        /// The model: how many chains have each block.
        #[test]
        fn what_is_shared_counts_once(steps in prop::collection::vec(
            (any::<bool>(), any::<usize>(), prop::collection::vec(0u8..3, 0..9)), 0..60)) {
            let (mut paths, mut model) = (Paths::default(), BTreeMap::<ChainHash, usize>::new());
            let mut held: Vec<(Chain, usize)> = Vec::new();
            for (id, (add, which, path)) in steps.into_iter().enumerate() {
                if add {
                    let it = chain(&path);
                    let own = it.iter().filter(|hash| !model.contains_key(hash)).count();
                    it.iter().for_each(|hash| *model.entry(*hash).or_default() += 1);
                    prop_assert_eq!(paths.add(&it, id), own);
                    held.push((it, id));
                } else if let Some(at) = which.checked_rem(held.len()) {
                    let (it, id) = held.swap_remove(at);
                    for hash in it.iter() {
                        *model.get_mut(hash).unwrap() -= 1;
                    }
                    let before = model.len();
                    model.retain(|_, n| *n > 0);
                    prop_assert_eq!(paths.remove(&it, id), before - model.len());
                }
                prop_assert_eq!(paths.0.len(), held.iter().filter(|(c, _)| !c.is_empty()).count());
            }
        }
    }
}
