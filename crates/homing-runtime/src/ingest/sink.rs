//! Where the messages of one stream go, once their order is known: decoded, applied to the index, counted.
//! Streams of TensorRT-LLM come decoded, and go the same way from there. The sequence is the feed's; the events are the rank's that the message names, so what a hole makes
//! doubtful are all ranks that the feed told of.

use super::Here;
use super::book::FeedStats;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::event::KvEvent;
use homing_core::index::naive::Applied;
use homing_wire::kv_events::{UNKNOWN_KIND, decode_batch_noting};
use std::collections::BTreeSet;

/// See the module.
#[derive(Debug)]
pub(super) struct Sink {
    worker: String,
    rank: DpRank,
    /// How many ranks the worker has.
    ranks: u16,
    /// The ranks that it told of, its own always among them; as many as the worker has, at most.
    told: BTreeSet<DpRank>,
    /// Blocks that it told of and that are there, about: copies count, and so do those elsewhere.
    known: u64,
    /// Blocks to be stored until the cache counts as known again. What was known before a hole is the
    /// best guess of how much is there; with as much again, little of it can be missing.
    doubt: u64,
    /// What would have saved a hole from being lost.
    remedy: &'static str,
}

/// See [`Sink::remedy`].
pub(super) const REPLAY: &str = "an engine with a replay endpoint can fill such holes";

impl Sink {
    /// Of one rank of a worker that has so many.
    pub(super) fn new(worker: &str, rank: u16, ranks: u16, remedy: &'static str) -> Self {
        let (worker, rank) = (worker.to_owned(), DpRank(rank));
        Self { worker, rank, ranks, told: BTreeSet::from([rank]), known: 0, doubt: 0, remedy }
    }

    pub(super) fn worker(&self) -> &str {
        &self.worker
    }

    /// The worker has another number of ranks.
    pub(super) const fn set_ranks(&mut self, ranks: u16) {
        self.ranks = ranks;
    }

    /// Applies the payload of a message of that life. False where it can't be read.
    pub(super) fn take(&mut self, here: Here<'_>, id: WorkerId, payload: &[u8]) -> bool {
        let mut seen = FeedStats::default();
        let (mut senseless, mut reason) = (0, None);
        let batch = decode_batch_noting(payload, |why| match why {
            UNKNOWN_KIND => seen.ignored += 1,
            _ => {
                senseless += 1;
                reason.get_or_insert(why);
            }
        });
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                self.malformed(here, &error.to_string());
                return false;
            }
        };
        if let Some(why) = reason {
            self.malformed_so_often(here, senseless, why);
        }
        let Some(rank) = self.rank_of(batch.dp_rank) else {
            self.no_such_rank(here, batch.events.len() as u64);
            return true;
        };
        self.told.insert(rank);
        self.apply(here, id, rank, &batch.events, seen);
        true
    }

    /// Applies events of this rank, in their order.
    pub(super) fn take_events(&mut self, here: Here<'_>, id: WorkerId, events: &[KvEvent]) {
        self.apply(here, id, self.rank, events, FeedStats::default());
    }

    /// Counts events that say nothing about prefixes.
    pub(super) fn ignored(&self, here: Here<'_>, n: u64) {
        here.book.with(&self.worker, |page| page.stats.ignored += n);
    }

    fn apply(
        &mut self,
        here: Here<'_>,
        id: WorkerId,
        rank: DpRank,
        events: &[KvEvent],
        mut seen: FeedStats,
    ) {
        let (mut known, mut doubt) = (self.known, self.doubt);
        let mut mismatch = None;
        here.shell.core().handle_kv(here.shell.now(), id, rank, events, |event, applied| {
            let blocks = event.blocks() as u64;
            let kind = match (applied, event) {
                (Applied::Yes, KvEvent::Stored(_)) => {
                    known = known.saturating_add(blocks);
                    doubt = doubt.saturating_sub(blocks);
                    &mut seen.stored
                }
                (Applied::Yes, KvEvent::Removed(_)) => {
                    known = known.saturating_sub(blocks);
                    &mut seen.removed
                }
                (Applied::Yes, KvEvent::Cleared) => {
                    (known, doubt) = (0, 0);
                    &mut seen.cleared
                }
                (Applied::Ignored, _) => &mut seen.ignored,
                (Applied::BlockSizeMismatch { known, got }, _) => {
                    mismatch = Some((known, got));
                    &mut seen.refused
                }
                (Applied::CountMismatch | Applied::TooMany, _) => &mut seen.refused,
            };
            *kind += 1;
        });
        self.known = known;
        self.doubt_is(here, doubt);
        here.book.with(&self.worker, |page| {
            page.stats.stored += seen.stored;
            page.stats.removed += seen.removed;
            page.stats.cleared += seen.cleared;
            page.stats.ignored += seen.ignored;
        });
        match mismatch {
            Some((known, got)) => {
                let why = format!("its block size is {got}, and the pool's is {known}");
                self.refused(here, seen.refused, &why);
            }
            None if seen.refused > 0 => {
                let why = "too many blocks, or tokens that don't fit the hashes";
                self.refused(here, seen.refused, why);
            }
            None => {}
        }
    }

    /// Nothing that it told is believed any more.
    pub(super) fn forget(&mut self, here: Here<'_>) {
        self.known = 0;
        let Some(id) = here.shell.core().worker_named(&self.worker) else { return };
        for rank in &self.told {
            let clear = [KvEvent::Cleared];
            here.shell.core().handle_kv(here.shell.now(), id, *rank, &clear, |_, _| {});
        }
    }

    /// So many messages are lost for good: nothing is believed, and the cache is uncertain until as much
    /// was told again as had been.
    pub(super) fn lose(&mut self, here: Here<'_>, lost: u64) {
        let before = self.known;
        self.forget(here);
        self.doubt_is(here, self.doubt.max(before));
        let first = here.book.with(&self.worker, |page| {
            page.stats.lost += 1;
            !std::mem::replace(&mut page.told_gap, true)
        });
        if first {
            let (worker, rank, remedy) = (&self.worker, self.rank.0, self.remedy);
            tracing::warn!(
                worker,
                rank,
                lost,
                "a hole in the worker's event stream: what was known of this rank's cache is \
                 forgotten and learned anew (said once); {remedy}"
            );
        }
    }

    /// Another life, or another look at this one: an empty cache is known well.
    pub(super) fn begin(&mut self, here: Here<'_>) {
        self.known = 0;
        self.doubt_is(here, 0);
    }

    fn doubt_is(&mut self, here: Here<'_>, doubt: u64) {
        if (self.doubt > 0) != (doubt > 0) {
            here.book.uncertain(&self.worker, self.rank.0, doubt > 0);
            if let Some(id) = here.shell.core().worker_named(&self.worker) {
                here.shell.core().uncertain(id, self.rank, doubt > 0);
            }
        }
        self.doubt = doubt;
    }

    /// Whose events those of a batch are, which may name a rank itself; `None`: nobody's. A worker of one
    /// rank has nobody to confuse it with: behind an outer balancer (vLLM's external one) each engine has
    /// an URL of its own, and its batches still name its place among all.
    fn rank_of(&self, named: Option<u32>) -> Option<DpRank> {
        match named {
            Some(named) if self.ranks > 1 => {
                u16::try_from(named).ok().filter(|rank| *rank < self.ranks).map(DpRank)
            }
            _ => Some(self.rank),
        }
    }

    pub(super) fn malformed(&self, here: Here<'_>, why: &str) {
        self.malformed_so_often(here, 1, why);
    }

    fn malformed_so_often(&self, here: Here<'_>, times: u64, why: &str) {
        let first = here.book.with(&self.worker, |page| {
            page.stats.malformed += times;
            !std::mem::replace(&mut page.told_malformed, true)
        });
        if first {
            let (worker, rank) = (&self.worker, self.rank.0);
            tracing::warn!(worker, rank, why, "a malformed KV event was dropped (said once)");
        }
    }

    /// Events of a rank that the worker is not known to have.
    pub(super) fn no_such_rank(&self, here: Here<'_>, n: u64) {
        let why = "the worker has no rank of that number; see `dp_size` in its [[workers]]";
        self.refused(here, n, why);
    }

    fn refused(&self, here: Here<'_>, n: u64, why: &str) {
        let first = here.book.with(&self.worker, |page| {
            page.stats.refused += n;
            !std::mem::replace(&mut page.told_refused, true)
        });
        if first {
            let (worker, rank) = (&self.worker, self.rank.0);
            tracing::warn!(worker, rank, why, "a KV event was refused (said once)");
        }
    }
}
