//! One stream of KV events: its sequence, its messages, and the book that all streams keep.

use crate::shell::Shell;
use homing_core::fleet::FleetChange;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::event::KvEvent;
use homing_core::index::naive::Applied;
use homing_core::time::Time;
use homing_wire::frames::parse_frames;
use homing_wire::kv_events::{UNKNOWN_KIND, decode_batch_noting};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one worker's stream has brought so far.
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
    /// Events that the index can't take: their block size is not the pool's.
    pub refused: u64,
    /// Messages, or single events of one, that could not be read.
    pub malformed: u64,
    /// Holes in the sequence.
    pub gaps: u64,
    connected: bool,
    no_events: bool,
    told_malformed: bool,
    told_refused: bool,
    told_gap: bool,
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
}

/// The counts of all streams, by worker.
#[derive(Debug, Default)]
pub struct FeedBook(Mutex<BTreeMap<String, FeedStats>>);

impl FeedBook {
    /// A copy of all counts.
    #[must_use]
    pub fn stats(&self) -> BTreeMap<String, FeedStats> {
        self.0.lock().clone()
    }

    pub(super) fn open(&self, worker: &str) {
        self.0.lock().entry(worker.to_owned()).or_default();
    }

    pub(super) fn remove(&self, worker: &str) {
        self.0.lock().remove(worker);
    }

    pub(super) fn connected(&self, worker: &str, connected: bool) {
        self.with(worker, |s| s.connected = connected);
    }

    /// True the first time.
    pub(super) fn without_events(&self, worker: &str) -> bool {
        let mut book = self.0.lock();
        let stats = book.entry(worker.to_owned()).or_default();
        !std::mem::replace(&mut stats.no_events, true)
    }

    pub(super) fn state(&self, worker: &str) -> &'static str {
        match self.0.lock().get(worker) {
            Some(s) if s.connected => "events",
            Some(s) if !s.no_events => "connecting",
            _ => "none",
        }
    }

    /// Changes a worker's entry, if it has one: a worker that was removed gets none back.
    fn with<T: Default>(&self, worker: &str, change: impl FnOnce(&mut FeedStats) -> T) -> T {
        self.0.lock().get_mut(worker).map(change).unwrap_or_default()
    }
}

/// The shortest life of an engine.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// Where a stream stands.
#[derive(Debug)]
pub(super) struct Stream {
    worker: String,
    rank: DpRank,
    /// The last sequence number, and the life that it was of.
    last: Option<(WorkerId, u64)>,
    /// When the stream last said that a new life has begun.
    reborn: Option<Time>,
}

impl Stream {
    pub(super) fn new(worker: String, rank: u16) -> Self {
        Self { worker, rank: DpRank(rank), last: None, reborn: None }
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
        let mut mismatch = None;
        shell.core().handle_kv(shell.now(), id, self.rank, &batch.events, |event, applied| {
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
        book.with(&self.worker, |s| {
            s.stored += seen.stored;
            s.removed += seen.removed;
            s.cleared += seen.cleared;
            s.ignored += seen.ignored;
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

    /// Nothing of the rank's cache is believed any more.
    pub(super) fn forget(&self, shell: &Shell) {
        if let Some(id) = shell.core().worker_named(&self.worker) {
            shell.core().handle_kv(shell.now(), id, self.rank, &[KvEvent::Cleared], |_, _| {});
        }
    }

    /// No engine starts more often: a stream that says so is broken, and ends nobody's sessions.
    fn may_be_reborn(&mut self, now: Time) -> bool {
        let may = self.reborn.is_none_or(|last| now.since(last) >= LIFE_MIN);
        if may {
            self.reborn = Some(now);
        }
        may
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
                if self.may_be_reborn(shell.now()) {
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
                let first = book.with(&self.worker, |s| {
                    s.gaps += 1;
                    !std::mem::replace(&mut s.told_gap, true)
                });
                if first {
                    let (worker, lost) = (&self.worker, seq - last - 1);
                    tracing::warn!(
                        worker,
                        lost,
                        "a hole in the worker's event stream: what was known of its cache is \
                         forgotten and learned anew (said once)"
                    );
                }
            }
            _ => {}
        }
        self.last = Some((now, seq));
        Some(now)
    }

    fn malformed(&self, book: &FeedBook, why: &str) {
        let first = book.with(&self.worker, |s| {
            s.malformed += 1;
            !std::mem::replace(&mut s.told_malformed, true)
        });
        if first {
            let worker = &self.worker;
            tracing::warn!(worker, why, "a malformed KV event was dropped (said once)");
        }
    }

    fn refused(&self, book: &FeedBook, n: u64, why: &str) {
        let first = book.with(&self.worker, |s| {
            s.refused += n;
            !std::mem::replace(&mut s.told_refused, true)
        });
        if first {
            let worker = &self.worker;
            tracing::warn!(worker, why, "a KV event was refused (said once)");
        }
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
