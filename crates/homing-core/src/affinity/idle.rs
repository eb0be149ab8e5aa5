//! The idle list: bindings (and the marks of removals) in the order in which they will expire. Apart from
//! the table's other work, since it is all links; what is on the list, and why nothing is ever sorted, is
//! said there.

use super::entry::{NONE, flag};
use super::table::Table;
use crate::time::Time;

impl Table {
    /// The binding's idle time starts anew. Even while it is in use: should those who use it end without
    /// a refresh, this one counts.
    pub(super) fn refresh(&mut self, now: Time, slot: u32) {
        // Callers read the clock before they have the lock: a step back must not disorder the list.
        self.latest = self.latest.max(now);
        self.entries[slot].idle_since = self.latest;
        self.unlink(slot);
        self.link_last(slot);
    }

    /// The last claim on a binding has ended without a refresh: back to its old place, if it was taken
    /// off the list while it was in use; or away, if it is due.
    pub(super) fn idle_again(&mut self, now: Time, slot: u32) {
        if self.entries[slot].is(flag::LINKED) {
            return;
        }
        self.drop_if_expired(now, slot);
        if !self.entries[slot].is(flag::BOUND) {
            return;
        }
        // What was taken off stood at the head, so its place is there or close by.
        let since = self.entries[slot].idle_since;
        let mut behind = self.first;
        while let Some(entry) = self.entries.get(behind).filter(|e| e.idle_since < since) {
            behind = entry.after;
        }
        self.link_before(slot, behind);
    }

    pub(super) fn link_last(&mut self, slot: u32) {
        self.link_before(slot, NONE);
    }

    pub(super) fn link_before(&mut self, slot: u32, after: u32) {
        let before = match self.entries.get_mut(after) {
            Some(next) => std::mem::replace(&mut next.before, slot),
            None => std::mem::replace(&mut self.last, slot),
        };
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = slot,
            None => self.first = slot,
        }
        let entry = &mut self.entries[slot];
        (entry.before, entry.after) = (before, after);
        entry.set(flag::LINKED, true);
    }

    pub(super) fn unlink(&mut self, slot: u32) {
        let entry = &mut self.entries[slot];
        if !entry.is(flag::LINKED) {
            return;
        }
        entry.set(flag::LINKED, false);
        let (before, after) = (entry.before, entry.after);
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = after,
            None => self.first = after,
        }
        match self.entries.get_mut(after) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
    }
}
