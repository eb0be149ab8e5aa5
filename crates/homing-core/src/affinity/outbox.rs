//! What other routers are to hear of our bindings (R23), and when: what was written at once, what was only used a little
//! later, so that a session whose turns follow each other is told of once and not twice a turn.
//!
//! That wait is a small part of the time-to-live, after which others would take the session for idle, and it doesn't
//! begin anew with each use: what others know of the last use is never older than that.

use super::entry::flag;
use super::merge::{Update, What};
use super::table::Table;
use super::version::Version;
use crate::ids::SessionKey;
use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Updates that wait to be published, at most: the oldest go first. Of those that were only used as many may wait until
/// they are due, and twice as many for who takes them.
pub(super) const OUTBOX: usize = 65_536;
/// Entries that one look for live leases passes at most.
const LOOK: u32 = 4096;
/// A use is told of after this part of the time-to-live,
const WAIT_PART: u32 = 16;
/// or this.
const WAIT_MOST: Duration = Duration::from_secs(15);

/// What is to be published.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    updates: VecDeque<Update>,
    /// Sessions that were used: when that is told, and of which entry.
    used: VecDeque<(Time, u32, SessionKey)>,
    /// Something has been added since [`Table::take_news`].
    news: bool,
    /// Where the walk that tells of live leases stands, and when the next step is due.
    cursor: u32,
    due: Time,
}

impl Table {
    /// To be told at once.
    pub(super) fn publish(&mut self, used: Time, key: SessionKey, version: Version, what: What) {
        if !self.rules.shared {
            return;
        }
        self.outbox.news = true;
        if self.outbox.updates.len() >= OUTBOX {
            self.outbox.updates.pop_front();
            self.counters.unpublished += 1;
        }
        self.outbox.updates.push_back(Update { key, version, what, used });
    }

    /// A binding that others know already was used: to be told once its wait is over.
    pub(super) fn publish_use(&mut self, now: Time, slot: u32) {
        if !self.rules.shared || self.entries[slot].is(flag::WAITS) {
            return;
        }
        // Whoever sleeps until something is due knows of all but the first.
        self.outbox.news |= self.outbox.used.is_empty();
        self.latest = self.latest.max(now);
        if self.outbox.used.len() >= 2 * OUTBOX
            && let Some((_, oldest, key)) = self.outbox.used.pop_front()
        {
            self.counters.unpublished += 1;
            if let Some(entry) = self.entries.get_mut(oldest).filter(|entry| entry.key() == key) {
                entry.set(flag::WAITS, false);
            }
        }
        let entry = &mut self.entries[slot];
        entry.set(flag::WAITS, true);
        let wait = (self.rules.ttl / WAIT_PART).min(WAIT_MOST);
        self.outbox.used.push_back((now + wait, slot, entry.key()));
    }

    /// The next update for other routers, of what was written, and of what was used and has waited until `by`.
    pub fn poll_update(&mut self, by: Time) -> Option<Update> {
        if let Some(update) = self.outbox.updates.pop_front() {
            return Some(update);
        }
        // The more are used, the less each waits.
        let full = |all: &VecDeque<_>| all.len() > OUTBOX;
        while self.outbox.used.front().is_some_and(|(due, ..)| *due <= by)
            || full(&self.outbox.used)
        {
            let (_, slot, key) = self.outbox.used.pop_front()?;
            let Some(entry) = self.entries.get_mut(slot).filter(|entry| entry.key() == key) else {
                continue;
            };
            let waits = entry.is(flag::WAITS);
            entry.set(flag::WAITS, false);
            // What is about to go is told when it goes.
            let stands = entry.bound().filter(|_| waits && !entry.is(flag::LAST));
            if let Some(target) = stands {
                let used = if entry.pinned() { self.latest } else { entry.idle_since };
                let (version, what) = (entry.version(), What::Bound(target));
                return Some(Update { key, version, what, used });
            }
        }
        None
    }

    /// When the next one that was only used is due.
    #[must_use]
    pub fn next_update(&self) -> Option<Time> {
        self.outbox.used.front().map(|(due, ..)| *due)
    }

    /// Whether there is something new to poll, or to wait for.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.outbox.news)
    }

    /// Somebody has missed what came later than what it tells, and would go on with that for as long as
    /// its sessions come: it hears it once more.
    pub(super) fn tell_again(&mut self, now: Time, slot: u32) {
        let entry = &self.entries[slot];
        let what = entry.bound().map_or(What::Removed, What::Bound);
        let used = if entry.pinned() { now } else { entry.idle_since };
        // What is about to go is told when it goes.
        if !entry.is(flag::LAST) {
            self.publish(used, entry.key(), entry.version(), what);
        }
    }

    /// Tells other routers of the bindings in use, a third of the time-to-live after the last time, a
    /// part of the table at each call.
    pub fn tell(&mut self, now: Time) {
        if !self.rules.shared || now < self.outbox.due {
            return;
        }
        let end = self.entries.end();
        let to = end.min(self.outbox.cursor.saturating_add(LOOK));
        for slot in self.outbox.cursor..to {
            let Some(entry) = self.entries.get(slot) else { continue };
            let Some(target) = entry.bound() else { continue };
            if entry.leases > 0 && !entry.is(flag::LAST) {
                let (key, version) = (entry.key(), entry.version());
                self.publish(now, key, version, What::Bound(target));
            }
        }
        self.outbox.cursor = to;
        if to == end {
            (self.outbox.cursor, self.outbox.due) = (0, now + self.rules.ttl / 3);
        }
    }

    /// When [`Self::tell`] has something to do next.
    #[must_use]
    pub fn next_tell(&self) -> Option<Time> {
        (self.rules.shared && self.leases > 0).then_some(self.outbox.due)
    }
}
