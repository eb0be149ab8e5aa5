//! What other routers have booked on the workers that we share with them, as they say it themselves: sums per target,
//! so that whatever was lost on the way is mended by the next word.
//!
//! Apart from the ledger, whose sums are of our own bookings, and from [`super::report`], which tells of what no router
//! has booked.

use super::Load;
use crate::fleet::Ranks;
use crate::ids::{DpRank, WorkerId};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};

/// What one router has booked on one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLoad {
    /// Requests placed and not ended,
    pub active_requests: u32,
    /// those of them whose first token has come,
    pub decoding: u32,
    /// prompt tokens to compute before the others' first tokens,
    pub prefill_tokens: u64,
    /// KV blocks that they occupy,
    pub blocks: u64,
    /// and tokens of context that each step of those that decode reads.
    pub context: u64,
}

impl From<Load> for PeerLoad {
    fn from(load: Load) -> Self {
        let Load { active_requests, decoding, prefill_tokens, blocks, context, .. } = load;
        Self { active_requests, decoding, prefill_tokens, blocks, context }
    }
}

impl From<PeerLoad> for Load {
    fn from(load: PeerLoad) -> Self {
        // What a peer says may be anything: sums of many must not overflow.
        let most = |n: u64| n.min(1 << 44);
        Self {
            active_requests: load.active_requests.min(1 << 20),
            decoding: load.decoding.min(load.active_requests).min(1 << 20),
            prefill_tokens: most(load.prefill_tokens),
            blocks: most(load.blocks),
            context: most(load.context),
            ..Self::default()
        }
    }
}

type At = (WorkerId, DpRank);

/// What the peers of one partition say.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// By target and writer; nothing is kept of who has nothing there.
    said: BTreeMap<At, SmallVec<[(u32, PeerLoad); 2]>>,
    /// Sums: every candidate of every request is looked up here.
    sums: HashMap<At, Load, FixedState>,
}

impl Peers {
    /// A router's word on one target. True if the target shows less load than before.
    pub(crate) fn hear(
        &mut self,
        writer: u32,
        worker: WorkerId,
        rank: DpRank,
        load: PeerLoad,
    ) -> bool {
        let at = (worker, rank);
        let of = self.said.entry(at).or_default();
        of.retain(|(by, _)| *by != writer);
        if load != PeerLoad::default() {
            of.push((writer, load));
        }
        self.sum(at)
    }

    /// A router is gone, or has begun anew: what it said counts no more. Whose load that changes.
    pub(crate) fn forget(&mut self, writer: u32) -> SmallVec<[WorkerId; 4]> {
        let mut whose = SmallVec::new();
        let mut changed: SmallVec<[At; 8]> = SmallVec::new();
        for (at, of) in &mut self.said {
            let before = of.len();
            of.retain(|(by, _)| *by != writer);
            if of.len() < before {
                changed.push(*at);
                if whose.last() != Some(&at.0) {
                    whose.push(at.0);
                }
            }
        }
        for at in changed {
            let _ = self.sum(at);
        }
        whose
    }

    /// Adds up anew. True if it is less than before.
    fn sum(&mut self, at: At) -> bool {
        let of = self.said.get(&at).map(SmallVec::as_slice).unwrap_or_default();
        let now: Load = of.iter().map(|(_, load)| Load::from(*load)).sum();
        let before = self.of(at.0, at.1).active_requests;
        if of.is_empty() {
            self.said.remove(&at);
            self.sums.remove(&at);
        } else {
            self.sums.insert(at, now);
        }
        now.active_requests < before
    }

    /// What others have booked on a target.
    pub(crate) fn of(&self, worker: WorkerId, rank: DpRank) -> Load {
        if self.sums.is_empty() {
            return Load::default();
        }
        self.sums.get(&(worker, rank)).copied().unwrap_or_default()
    }

    /// A worker has these ranks now, or none.
    pub(crate) fn keep(&mut self, worker: WorkerId, ranks: Option<Ranks>) {
        let stays = |at: &At| at.0 != worker || ranks.is_some_and(|ranks| ranks.has(at.1));
        self.said.retain(|at, _| stays(at));
        self.sums.retain(|at, _| stays(at));
    }

    /// Invariants, given who has which ranks.
    ///
    /// # Panics
    /// When one is violated.
    pub(crate) fn check(&self, has: impl Fn(WorkerId, DpRank) -> bool) {
        assert_eq!(self.said.len(), self.sums.len(), "a sum of nothing");
        for (at, of) in &self.said {
            assert!(has(at.0, at.1), "a peer's load of nobody");
            let sum: Load = of.iter().map(|(_, load)| Load::from(*load)).sum();
            assert_eq!(self.sums.get(at), Some(&sum), "sums are of what was said");
            assert!(of.iter().all(|(_, load)| *load != PeerLoad::default()), "load that is none");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId(3);
    const R: DpRank = DpRank(0);

    fn booked(n: u32) -> PeerLoad {
        PeerLoad {
            active_requests: n,
            decoding: n,
            blocks: 10 * u64::from(n),
            ..PeerLoad::default()
        }
    }

    fn active(peers: &Peers) -> u32 {
        peers.check(|worker, _| worker == W);
        peers.of(W, R).active_requests
    }

    #[test]
    fn each_routers_last_word_counts() {
        let mut peers = Peers::default();
        assert!(!peers.hear(1, W, R, booked(3)) && !peers.hear(2, W, R, booked(4)));
        assert_eq!((active(&peers), peers.of(W, R).blocks), (7, 70));
        assert!(peers.hear(1, W, R, booked(1)), "there is less to do");
        assert_eq!(active(&peers), 5);
        assert!(peers.hear(1, W, R, booked(0)));
        assert_eq!(active(&peers), 4);
        assert_eq!(peers.forget(2).as_slice(), [W]);
        assert_eq!((active(&peers), peers.said.len()), (0, 0));
        assert!(peers.forget(2).is_empty());
    }

    #[test]
    fn what_has_departed_has_no_load() {
        let mut peers = Peers::default();
        (0..3).for_each(|rank| _ = peers.hear(1, W, DpRank(rank), booked(2)));
        peers.keep(W, Some(Ranks::new(1, 1)));
        assert_eq!((active(&peers), peers.of(W, DpRank(1)).active_requests), (0, 2));
        peers.keep(W, None);
        peers.check(|_, _| false);
    }

    #[test]
    fn f57_no_word_is_too_large() {
        let mut peers = Peers::default();
        let most = PeerLoad {
            active_requests: u32::MAX,
            decoding: u32::MAX,
            prefill_tokens: u64::MAX,
            blocks: u64::MAX,
            context: u64::MAX,
        };
        (0..100).for_each(|writer| _ = peers.hear(writer, W, R, most));
        let load = peers.of(W, R);
        assert!(load.blocks < 1 << 60 && load.active_requests >= 1 << 20);
    }
}
