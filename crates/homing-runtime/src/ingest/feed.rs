//! One stream of KV events: its sequence and its messages. The sequence is the feed's; the events are the
//! rank's that the message names, so what a hole makes doubtful are all ranks that the feed told of.

use super::Feed;
use super::book::{FeedBook, FeedStats};
use crate::shell::Shell;
use homing_core::fleet::FleetChange;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::event::KvEvent;
use homing_core::index::naive::Applied;
use homing_wire::frames::parse_frames;
use homing_wire::kv_events::{UNKNOWN_KIND, decode_batch_noting};
use std::collections::BTreeSet;

/// Where a stream stands.
#[derive(Debug)]
pub(super) struct Stream {
    worker: String,
    rank: DpRank,
    /// How many ranks the worker has.
    ranks: u16,
    /// The ranks that it told of, its own always among them; as many as the worker has, at most.
    told: BTreeSet<DpRank>,
    /// The last sequence number, and the life that it was of.
    last: Option<(WorkerId, u64)>,
}

impl Stream {
    pub(super) fn new(feed: &Feed) -> Self {
        let rank = DpRank(feed.rank);
        Self {
            worker: feed.worker.clone(),
            rank,
            ranks: feed.ranks,
            told: BTreeSet::from([rank]),
            last: None,
        }
    }

    /// Takes in one message.
    pub(super) fn take(&mut self, shell: &Shell, book: &FeedBook, frames: &[Vec<u8>]) {
        let message = match parse_frames(frames) {
            Ok(message) => message,
            Err(error) => return self.malformed(book, &error.to_string()),
        };
        // Of a worker that has departed: the order to unsubscribe is on its way.
        let Some(id) = shell.core().worker_named(&self.worker) else { return };
        let Some(id) = self.follow(shell, book, id, message.seq) else { return };
        let mut seen = FeedStats::default();
        let mut senseless = Vec::new();
        let batch = decode_batch_noting(message.payload, |why| match why {
            UNKNOWN_KIND => seen.ignored += 1,
            _ => senseless.push(why),
        });
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return self.malformed(book, &error.to_string()),
        };
        for why in senseless {
            self.malformed(book, why);
        }
        let Some(rank) = self.rank_of(batch.dp_rank) else {
            let why = "the worker has no rank of that number; see `dp_size` in its [[workers]]";
            return self.refused(book, batch.events.len() as u64, why);
        };
        self.told.insert(rank);
        let mut mismatch = None;
        shell.core().handle_kv(shell.now(), id, rank, &batch.events, |event, applied| {
            let kind = match (applied, event) {
                (Applied::Yes, KvEvent::Stored(_)) => &mut seen.stored,
                (Applied::Yes, KvEvent::Removed(_)) => &mut seen.removed,
                (Applied::Yes, KvEvent::Cleared) => &mut seen.cleared,
                (Applied::Ignored, _) => &mut seen.ignored,
                (Applied::BlockSizeMismatch { known, got }, _) => {
                    mismatch = Some((known, got));
                    &mut seen.refused
                }
                (Applied::CountMismatch | Applied::TooMany, _) => &mut seen.refused,
            };
            *kind += 1;
        });
        book.with(&self.worker, |page| {
            page.stats.stored += seen.stored;
            page.stats.removed += seen.removed;
            page.stats.cleared += seen.cleared;
            page.stats.ignored += seen.ignored;
        });
        match mismatch {
            Some((known, got)) => {
                let why = format!("its block size is {got}, and the pool's is {known}");
                self.refused(book, seen.refused, &why);
            }
            None if seen.refused > 0 => {
                self.refused(
                    book,
                    seen.refused,
                    "too many blocks, or tokens that don't fit the hashes",
                );
            }
            None => {}
        }
    }

    /// Nothing that it told is believed any more.
    pub(super) fn forget(&self, shell: &Shell) {
        let Some(id) = shell.core().worker_named(&self.worker) else { return };
        for rank in &self.told {
            shell.core().handle_kv(shell.now(), id, *rank, &[KvEvent::Cleared], |_, _| {});
        }
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

    /// Checks the sequence; gives the life that the message is of, or `None` where it says nothing new.
    fn follow(
        &mut self,
        shell: &Shell,
        book: &FeedBook,
        id: WorkerId,
        seq: u64,
    ) -> Option<WorkerId> {
        let mut now = id;
        match self.last {
            // The same message twice; but a first one twice is rather two publishers'.
            Some((life, last)) if life == id && seq == last && seq > 0 => return None,
            Some((life, last)) if life == id && seq <= last => {
                if book.may_be_reborn(&self.worker, shell.now()) {
                    // A publisher counts from 0 for as long as it lives.
                    let change = FleetChange::Restarted(id);
                    if let Ok(events) = shell.core().handle_fleet(shell.now(), change) {
                        shell.note_fleet(&self.worker, &events);
                        shell.pump();
                    }
                    now = shell.core().worker_named(&self.worker)?;
                } else {
                    self.forget(shell);
                }
            }
            Some((life, last)) if life == id && seq > last + 1 => {
                self.forget(shell);
                let first = book.with(&self.worker, |page| {
                    page.stats.gaps += 1;
                    !std::mem::replace(&mut page.told_gap, true)
                });
                if first {
                    let (worker, rank, lost) = (&self.worker, self.rank.0, seq - last - 1);
                    tracing::warn!(
                        worker,
                        rank,
                        lost,
                        "a hole in the worker's event stream: what was known of this rank's cache \
                         is forgotten and learned anew (said once)"
                    );
                }
            }
            _ => {}
        }
        self.last = Some((now, seq));
        Some(now)
    }

    fn malformed(&self, book: &FeedBook, why: &str) {
        let first = book.with(&self.worker, |page| {
            page.stats.malformed += 1;
            !std::mem::replace(&mut page.told_malformed, true)
        });
        if first {
            let (worker, rank) = (&self.worker, self.rank.0);
            tracing::warn!(worker, rank, why, "a malformed KV event was dropped (said once)");
        }
    }

    fn refused(&self, book: &FeedBook, n: u64, why: &str) {
        let first = book.with(&self.worker, |page| {
            page.stats.refused += n;
            !std::mem::replace(&mut page.told_refused, true)
        });
        if first {
            let (worker, rank) = (&self.worker, self.rank.0);
            tracing::warn!(worker, rank, why, "a KV event was refused (said once)");
        }
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
