//! What all streams have brought, by worker. Apart from a stream, since readers of metrics and of a
//! worker's state look at it from other threads. Counts are a worker's; how a feed is (connected,
//! uncertain) is kept by rank.

use homing_core::time::Time;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one worker's streams have brought so far, all its ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedStats {
    /// `BlockStored` events that the index reflects.
    pub stored: u64,
    /// `BlockRemoved` events likewise.
    pub removed: u64,
    /// `AllBlocksCleared` events.
    pub cleared: u64,
    /// Events that say nothing about prefixes in device memory.
    pub ignored: u64,
    /// Events that the index can't take: their block size is not the pool's, or the worker has no such
    /// rank.
    pub refused: u64,
    /// Messages, or single events of one, that could not be read.
    pub malformed: u64,
    /// Holes in the sequences; a message that can't be read is one.
    pub gaps: u64,
    /// Of these, the ones that no replay filled: what was known of a rank's cache was forgotten.
    pub lost: u64,
    /// Replays by how they ended: everything came, or some of it, or nothing of use.
    pub filled: u64,
    /// See `filled`.
    pub partial: u64,
    /// See `filled`.
    pub failed: u64,
    /// Ranks whose cache is being learned anew after a hole that was not filled.
    pub uncertain: u64,
}

impl FeedStats {
    /// The counts with their names.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("stored", self.stored),
            ("removed", self.removed),
            ("cleared", self.cleared),
            ("ignored", self.ignored),
            ("refused", self.refused),
            ("malformed", self.malformed),
        ]
        .into_iter()
    }

    /// How often replays ended how, with the words for it.
    pub fn replays(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [("filled", self.filled), ("partial", self.partial), ("failed", self.failed)].into_iter()
    }
}

/// The shortest life of an engine.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// How a rank's feed is.
#[derive(Clone, Debug, Default)]
struct RankState {
    connected: bool,
    uncertain: bool,
    /// Why it can't be followed at all.
    failed: Option<String>,
}

/// One worker's page.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) stats: FeedStats,
    /// The ranks that are followed.
    ranks: BTreeMap<u16, RankState>,
    no_events: bool,
    /// When one of its streams last said that a new life has begun.
    reborn: Option<Time>,
    pub(super) told_malformed: bool,
    pub(super) told_refused: bool,
    pub(super) told_gap: bool,
}

/// The counts of all streams, by worker.
#[derive(Debug, Default)]
pub struct FeedBook(Mutex<BTreeMap<String, Page>>);

impl FeedBook {
    /// A copy of all counts.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, FeedStats> {
        let book = self.0.lock();
        let stats = book.iter().map(|(worker, page)| {
            let uncertain = page.ranks.values().filter(|rank| rank.uncertain).count() as u64;
            (worker.clone(), FeedStats { uncertain, ..page.stats })
        });
        stats.collect()
    }

    /// A rank of a worker with so many `ranks` is followed from now on; those beyond are no more.
    pub(super) fn open(&self, worker: &str, rank: u16, ranks: u16) {
        let mut book = self.0.lock();
        let page = book.entry(worker.to_owned()).or_default();
        page.ranks.entry(rank).or_default();
        page.ranks.retain(|rank, _| *rank < ranks);
    }

    pub(super) fn remove(&self, worker: &str) {
        self.0.lock().remove(worker);
    }

    pub(super) fn connected(&self, worker: &str, rank: u16, connected: bool) {
        self.with(worker, |page| {
            if let Some(known) = page.ranks.get_mut(&rank) {
                known.connected = connected;
            }
        });
    }

    /// Whether a rank's cache is being learned anew.
    pub(super) fn uncertain(&self, worker: &str, rank: u16, uncertain: bool) {
        self.with(worker, |page| {
            if let Some(known) = page.ranks.get_mut(&rank) {
                known.uncertain = uncertain;
            }
        });
    }

    /// Why a rank can't be followed at all; `None`: it can.
    pub(super) fn failed(&self, worker: &str, rank: u16, why: Option<String>) {
        self.with(worker, |page| {
            if let Some(known) = page.ranks.get_mut(&rank) {
                known.failed = why;
            }
        });
    }

    /// Why the first of a worker's ranks that can't be followed can't be.
    pub(super) fn failure(&self, worker: &str) -> Option<String> {
        let book = self.0.lock();
        book.get(worker)?.ranks.values().find_map(|rank| rank.failed.clone())
    }

    /// True the first time.
    pub(super) fn without_events(&self, worker: &str) -> bool {
        let mut book = self.0.lock();
        let page = book.entry(worker.to_owned()).or_default();
        !std::mem::replace(&mut page.no_events, true)
    }

    /// No engine starts more often, whichever of its ranks says so: such a stream is broken, and ends
    /// nobody's sessions.
    pub(super) fn may_be_reborn(&self, worker: &str, now: Time) -> bool {
        self.with(worker, |page| {
            let may = page.reborn.is_none_or(|last| now.since(last) >= LIFE_MIN);
            if may {
                page.reborn = Some(now);
            }
            may
        })
    }

    pub(super) fn state(&self, worker: &str) -> &'static str {
        let book = self.0.lock();
        let Some(page) = book.get(worker) else { return "none" };
        let connected = page.ranks.values().filter(|rank| rank.connected).count();
        match page.ranks.len() {
            1.. if connected == page.ranks.len() && page.ranks.values().any(|r| r.uncertain) => {
                "uncertain"
            }
            1.. if connected == page.ranks.len() => "events",
            _ if connected == 0 && page.no_events => "none",
            _ => "connecting",
        }
    }

    /// As if one of a worker's `ranks` had a hole that was asked for in vain.
    #[cfg(test)]
    pub(crate) fn note_hole(&self, worker: &str, ranks: u16) {
        self.open(worker, 0, ranks);
        self.uncertain(worker, 0, true);
        self.with(worker, |page| {
            page.stats.gaps += 1;
            page.stats.lost += 1;
            page.stats.failed += 1;
        });
    }

    /// Changes a worker's page, if it has one: a worker that was removed gets none back.
    pub(super) fn with<T: Default>(&self, worker: &str, change: impl FnOnce(&mut Page) -> T) -> T {
        self.0.lock().get_mut(worker).map(change).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: &str = "w";

    #[test]
    fn the_state_of_a_feed_follows_its_connection() {
        let book = FeedBook::default();
        assert_eq!(book.state(W), "none");
        book.open(W, 0, 1);
        assert_eq!(book.state(W), "connecting");
        book.connected(W, 0, true);
        assert_eq!(book.state(W), "events");
        book.connected(W, 0, false);
        assert_eq!(book.state(W), "connecting");
        assert!(book.without_events(W) && !book.without_events(W), "said once");
        assert_eq!(book.state(W), "none");
        assert!(book.without_events("other"));
        assert_eq!(book.state("other"), "none");
    }

    #[test]
    fn f24_one_uncertain_rank_makes_its_worker_so() {
        let book = FeedBook::default();
        book.open(W, 0, 2);
        book.open(W, 1, 2);
        book.uncertain(W, 1, true);
        book.connected(W, 0, true);
        assert_eq!((book.state(W), book.stats()[W].uncertain), ("connecting", 1));
        book.connected(W, 1, true);
        assert_eq!(book.state(W), "uncertain");
        book.uncertain(W, 0, true);
        book.uncertain(W, 1, false);
        assert_eq!((book.state(W), book.stats()[W].uncertain), ("uncertain", 1));
        book.uncertain(W, 0, false);
        book.uncertain(W, 7, true);
        assert_eq!((book.state(W), book.stats()[W].uncertain), ("events", 0));
    }

    #[test]
    fn a_worker_is_known_by_its_events_once_each_rank_that_is_followed_is() {
        let book = FeedBook::default();
        // Rank 1 goes without.
        for rank in [0, 2, 3] {
            book.open(W, rank, 4);
        }
        for rank in [3, 0] {
            book.connected(W, rank, true);
            book.open(W, rank, 4);
            assert_eq!(book.state(W), "connecting", "and to be told again changes nothing");
        }
        book.connected(W, 1, true);
        assert_eq!(book.state(W), "connecting", "nobody follows that one");
        book.connected(W, 2, true);
        assert_eq!(book.state(W), "events");
        book.connected(W, 0, false);
        assert_eq!(book.state(W), "connecting");
        // It has fewer ranks now, and those beyond hold nothing up.
        book.connected(W, 3, false);
        book.open(W, 0, 2);
        book.connected(W, 0, true);
        assert_eq!(book.state(W), "events");
        book.connected(W, 3, false);
        assert_eq!(book.state(W), "events");
        book.remove(W);
        book.connected(W, 0, true);
        assert_eq!((book.state(W), book.stats().len()), ("none", 0));
    }
}
