//! Fair turns: who of several tenants is next, by start-time fair queueing (Goyal, Vin, Cheng, 1996).
//!
//! Each request gets a number when it comes, its *start*: one more than its tenant's last, or the number of
//! the request that was served last, whichever is later. Smaller is served first. So a tenant with a
//! thousand requests has numbers up to a thousand, another's first one stands beside those served now, and
//! both are served in turns. Who was away for long has no credit. Every request weighs one.
//!
//! Priorities are apart: each has its own count, which begins anew when nobody of that priority waits.

use std::collections::{BTreeMap, BTreeSet};

/// Tenants that wait for nothing and whose turn would not be due yet, remembered at most; the one that is due
/// soonest is forgotten, and so forgiven what it is ahead.
const REMEMBERED: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turns {
    levels: BTreeMap<i32, Level>,
    /// Of all levels.
    remembered: usize,
}

#[derive(Debug, Default)]
struct Level {
    /// The start of the request that was served last.
    now: u64,
    waiting: usize,
    tenants: BTreeMap<u64, Tenant>,
    /// Those of them that wait for nothing, by their next start: later than `now`.
    ahead: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    /// The start of its next request.
    next: u64,
    waiting: usize,
}

impl Turns {
    /// A request begins to wait; its start.
    pub(super) fn enter(&mut self, priority: i32, tenant: u64) -> u64 {
        let level = self.levels.entry(priority).or_default();
        let start = level.tenants.get(&tenant).map_or(0, |t| t.next).max(level.now);
        self.put(priority, tenant, start);
        start
    }

    /// A request that has left waits again, where it was.
    pub(super) fn resume(&mut self, priority: i32, tenant: u64, start: u64) {
        // If it was the only one, the count begins where it stands.
        self.levels.entry(priority).or_insert_with(|| Level { now: start, ..Level::default() });
        self.put(priority, tenant, start);
    }

    fn put(&mut self, priority: i32, tenant: u64, start: u64) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        level.waiting += 1;
        let t = level.tenants.entry(tenant).or_insert(Tenant { next: 0, waiting: 0 });
        if t.waiting == 0 && level.ahead.remove(&(t.next, tenant)) {
            self.remembered -= 1;
        }
        t.waiting += 1;
        t.next = t.next.max(start + 1);
    }

    /// A request waits no longer. If it was its tenant's last, its number is free again: it costs nothing,
    /// unless it is served.
    pub(super) fn leave(&mut self, priority: i32, tenant: u64, start: u64) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        level.waiting -= 1;
        if level.waiting == 0 {
            self.remembered -= level.ahead.len();
            self.levels.remove(&priority);
            return;
        }
        let Some(t) = level.tenants.get_mut(&tenant) else { return };
        t.waiting -= 1;
        if t.next == start + 1 {
            t.next = start;
        }
        self.rest(priority, tenant);
    }

    /// A request that has left is served.
    pub(super) fn served(&mut self, priority: i32, tenant: u64, start: u64) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        level.now = level.now.max(start);
        let t = level.tenants.entry(tenant).or_insert(Tenant { next: 0, waiting: 0 });
        if level.ahead.remove(&(t.next, tenant)) {
            self.remembered -= 1;
        }
        t.next = t.next.max(start + 1);
        self.rest(priority, tenant);
        let Some(level) = self.levels.get_mut(&priority) else { return };
        while let Some((_, tenant)) = level.ahead.first().copied().filter(|a| a.0 <= level.now) {
            level.ahead.pop_first();
            level.tenants.remove(&tenant);
            self.remembered -= 1;
        }
    }

    /// What is kept of a tenant that may wait for nothing any more.
    fn rest(&mut self, priority: i32, tenant: u64) {
        let Some(level) = self.levels.get_mut(&priority) else { return };
        let Some(t) = level.tenants.get(&tenant).copied().filter(|t| t.waiting == 0) else {
            return;
        };
        if t.next <= level.now {
            level.tenants.remove(&tenant);
            return;
        }
        level.ahead.insert((t.next, tenant));
        self.remembered += 1;
        if self.remembered > REMEMBERED
            && let Some((_, soonest)) = level.ahead.pop_first()
        {
            level.tenants.remove(&soonest);
            self.remembered -= 1;
        }
    }

    /// Invariants, given how many wait.
    ///
    /// # Panics
    /// When one is violated.
    pub(super) fn check(&self, waiting: usize) {
        let levels = || self.levels.values();
        assert_eq!(levels().map(|l| l.waiting).sum::<usize>(), waiting, "turns of nobody");
        assert_eq!(levels().map(|l| l.ahead.len()).sum::<usize>(), self.remembered);
        assert!(self.remembered <= REMEMBERED, "too many tenants are remembered");
        for level in levels() {
            assert!(level.waiting > 0, "a priority that nobody waits with");
            let theirs: usize = level.tenants.values().map(|t| t.waiting).sum();
            assert_eq!(theirs, level.waiting, "requests of no tenant");
            let idle = level.tenants.iter().filter(|(_, t)| t.waiting == 0);
            let idle: BTreeSet<_> = idle.map(|(tenant, t)| (t.next, *tenant)).collect();
            assert_eq!(idle, level.ahead, "tenants that are kept for nothing");
            assert!(level.ahead.first().is_none_or(|a| a.0 > level.now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Serves the first of those that wait, by start and arrival, and gives its tenant.
    fn serve(turns: &mut Turns, queue: &mut Vec<(u64, usize, u64)>) -> u64 {
        queue.sort_unstable();
        let (start, _, tenant) = queue.remove(0);
        turns.leave(0, tenant, start);
        turns.served(0, tenant, start);
        turns.check(queue.len());
        tenant
    }

    #[test]
    fn many_requests_of_one_tenant_stand_behind_no_other_s_first() {
        let (mut turns, mut queue) = (Turns::default(), Vec::new());
        let come = |turns: &mut Turns, queue: &mut Vec<_>, tenant| {
            let arrival = queue.len() + 1000;
            queue.push((turns.enter(0, tenant), arrival, tenant));
        };
        (0..20).for_each(|_| come(&mut turns, &mut queue, 1));
        let first: Vec<_> = (0..5).map(|_| serve(&mut turns, &mut queue)).collect();
        assert_eq!(first, [1; 5]);
        (0..3).for_each(|_| come(&mut turns, &mut queue, 2));
        come(&mut turns, &mut queue, 3);
        // Turns from here on, and no credit for the time before.
        let next: Vec<_> = (0..8).map(|_| serve(&mut turns, &mut queue)).collect();
        assert_eq!(next, [2, 3, 1, 2, 1, 2, 1, 1]);
    }

    #[test]
    fn what_is_cancelled_costs_nothing() {
        let mut turns = Turns::default();
        let _other = turns.enter(0, 2);
        for _ in 0..9 {
            let start = turns.enter(0, 1);
            assert_eq!(start, 0);
            turns.leave(0, 1, start);
            turns.check(1);
        }
    }

    #[test]
    fn priorities_have_counts_of_their_own() {
        let mut turns = Turns::default();
        assert_eq!([turns.enter(1, 7), turns.enter(1, 7), turns.enter(1, 7)], [0, 1, 2]);
        assert_eq!(turns.enter(0, 7), 0);
        for start in 0..3 {
            turns.leave(1, 7, start);
            turns.served(1, 7, start);
        }
        turns.check(1);
        assert_eq!(turns.enter(1, 7), 0, "nobody has waited with it since");
    }

    #[test]
    fn f42_so_many_tenants_are_remembered() {
        let mut turns = Turns::default();
        // Somebody waits all the time, so that the count goes on.
        let keeper = turns.enter(0, u64::MAX);
        let mut held = VecDeque::new();
        for tenant in 0..3 * REMEMBERED as u64 {
            held.push_back((tenant, turns.enter(0, tenant)));
            if held.len() > 2 {
                let (tenant, start) = held.pop_front().unwrap();
                turns.leave(0, tenant, start);
                turns.served(0, tenant, start);
            }
        }
        assert_eq!(turns.remembered, REMEMBERED);
        turns.check(3);
        turns.leave(0, u64::MAX, keeper);
        held.into_iter().for_each(|(tenant, start)| turns.leave(0, tenant, start));
        assert!(turns.levels.is_empty() && turns.remembered == 0);
    }
}
