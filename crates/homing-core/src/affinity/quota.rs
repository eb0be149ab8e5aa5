//! Sessions of one tenant's that are bound: how many there may be, and how many there are.
//!
//! A tenant has a seat, a small number, for as long as bindings of its stand; each entry says in two bytes whose its
//! binding is. One place counts a binding, `Table::charge`, when a request that has a quota gets a lease on it; one
//! takes it off, `Table::drop_binding`, whatever ends it. So whatever comes without a request (from other routers,
//! from a snapshot, from a time without quotas) belongs to nobody until its tenant uses it, and a table in which
//! nobody has a quota counts nothing.

use super::entry::{Entry, flag};
use super::table::{SWEEP_WHEN_FULL, Table};
use crate::ids::SessionKey;
use crate::time::Time;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// How many sessions of a tenant's may be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Whose ([`crate::ids::tenant_number`]).
    pub tenant: u64,
    /// So many. Bindings that stand already aren't dropped for it.
    pub most: u32,
}

/// What an entry says whose binding is nobody's.
pub(super) const NOBODY: u16 = 0;

#[derive(Clone, Copy, Debug)]
struct Seat {
    tenant: u64,
    bound: u32,
}

/// The tenants of whom bindings stand.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Looked up, never walked.
    numbers: HashMap<u64, u16, FixedState>,
    /// Number `n` is the one at `n - 1`.
    seats: Vec<Seat>,
    free: Vec<u16>,
}

impl Seats {
    fn bound(&self, tenant: u64) -> u32 {
        let seat = self.numbers.get(&tenant).map(|n| self.seats[usize::from(*n) - 1]);
        seat.map_or(0, |seat| seat.bound)
    }

    /// One binding more; whose it is. [`NOBODY`]: 65,535 tenants have some, and this one's aren't counted.
    fn add(&mut self, tenant: u64) -> u16 {
        if let Some(number) = self.numbers.get(&tenant) {
            self.seats[usize::from(*number) - 1].bound += 1;
            return *number;
        }
        let seat = Seat { tenant, bound: 1 };
        let number = match self.free.pop() {
            Some(number) => {
                self.seats[usize::from(number) - 1] = seat;
                number
            }
            None => {
                let Ok(number) = u16::try_from(self.seats.len() + 1) else { return NOBODY };
                self.seats.push(seat);
                number
            }
        };
        self.numbers.insert(tenant, number);
        number
    }

    /// One less.
    pub(super) fn take_off(&mut self, number: u16) {
        if number == NOBODY {
            return;
        }
        let seat = &mut self.seats[usize::from(number) - 1];
        seat.bound -= 1;
        if seat.bound == 0 {
            self.numbers.remove(&seat.tenant);
            self.free.push(number);
        }
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<(u64, u16)>()
            + self.seats.capacity() * size_of::<Seat>()
            + self.free.capacity() * size_of::<u16>()
    }

    /// Invariants, given whose each binding is.
    pub(super) fn check(&self, owners: impl Iterator<Item = u16>) {
        let mut counted = vec![0; self.seats.len()];
        for owner in owners.filter(|owner| *owner != NOBODY) {
            counted[usize::from(owner) - 1] += 1;
        }
        for (number, (seat, counted)) in (1..=u16::MAX).zip(self.seats.iter().zip(counted)) {
            let free = self.free.contains(&number);
            assert_eq!(counted, if free { 0 } else { seat.bound }, "bindings of one tenant");
            assert!(free || self.numbers.get(&seat.tenant) == Some(&number), "a seat of nobody");
        }
        assert_eq!(self.numbers.len() + self.free.len(), self.seats.len(), "seats");
    }
}

impl Table {
    /// Sessions of a tenant's that are bound and counted.
    #[must_use]
    pub fn bindings_for(&self, tenant: u64) -> u32 {
        self.seats.bound(tenant)
    }

    fn exhausted(&self, quota: Quota) -> bool {
        self.seats.bound(quota.tenant) >= quota.most
    }

    /// Whether a tenant may have one more session bound, now or by what is due.
    pub(super) fn within(&mut self, now: Time, quota: Option<Quota>) -> bool {
        let Some(quota) = quota else { return true };
        if self.exhausted(quota) {
            self.expire(now, SWEEP_WHEN_FULL);
        }
        !self.exhausted(quota)
    }

    /// The same, without sweeping.
    pub(super) fn would_be_within(&self, now: Time, quota: Option<Quota>) -> bool {
        let Some(quota) = quota.filter(|quota| self.exhausted(*quota)) else { return true };
        let its = self.seats.numbers.get(&quota.tenant).copied();
        let too_many = self.seats.bound(quota.tenant) - quota.most;
        self.due_of(now, |e| Some(e.tenant) == its) > too_many
    }

    /// A request has a lease on an entry's binding: from now on that is its tenant's.
    pub(super) fn charge(&mut self, slot: u32, quota: Option<Quota>) {
        let Some(quota) = quota else { return };
        let entry = &mut self.entries[slot];
        if entry.tenant == NOBODY && entry.is(flag::BOUND) {
            entry.tenant = self.seats.add(quota.tenant);
        }
    }

    /// Whether a first turn of `key` would find no room (R15), or its tenant none.
    #[must_use]
    pub fn would_be_full(&self, now: Time, key: SessionKey, quota: Option<Quota>) -> bool {
        let gone = |e: &Entry| self.expired(now, e) && e.is(flag::BOUND) && e.claims() == 0;
        self.find(key).is_none_or(|slot| gone(&self.entries[slot]))
            && !(self.would_have_room(now) && self.would_be_within(now, quota))
    }

    /// How many bindings of a kind a sweep of a full table would drop.
    pub(super) fn due_of(&self, now: Time, which: impl Fn(&Entry) -> bool) -> u32 {
        let (mut slot, mut due) = (self.first, 0);
        for _ in 0..SWEEP_WHEN_FULL {
            let late = |e: &&Entry| now >= e.idle_since + self.rules.ttl;
            let Some(entry) = self.entries.get(slot).filter(late) else { break };
            due += u32::from(entry.is(flag::BOUND) && !entry.pinned() && which(entry));
            slot = entry.after;
        }
        due
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
