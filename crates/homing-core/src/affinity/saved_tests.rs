//! R25: what is kept of bindings over a restart, and how they come back.

use super::*;
use crate::affinity::by_hand::{ByHand, SECOND, TTL, at, key, rules};
use crate::affinity::version::AHEAD;
use crate::affinity::{Outcome, Plan};
use proptest::prelude::*;
use std::time::Duration;

impl ByHand {
    /// All that is kept now.
    fn keep(&self) -> Vec<Kept> {
        let (mut all, mut cursor) = (Vec::new(), 0);
        while self.table.walk(self.now, &mut cursor, 7, |view| all.push(Kept::of(self.now, &view)))
        {
        }
        all
    }

    /// A new process, at this one's time: how many came back.
    fn restarted(&self, kept: &[Kept]) -> (Self, usize) {
        let table = Table::new(self.table.rules, 1);
        let mut next = Self { table, now: self.now, quota: None };
        let back = kept.iter().filter(|k| next.table.restore(next.now, k)).count();
        next.table.restored();
        next.table.check();
        (next, back)
    }

    /// The sessions in the order in which they idle out.
    fn expiry(&mut self, n: u32) -> Vec<u32> {
        let (mut order, mut bound) = (Vec::new(), self.bound(n));
        while let Some(next) = self.table.next_expiry() {
            self.now = self.now.max(next);
            self.table.expire(self.now, 1);
            let left: Vec<_> = bound.iter().copied().filter(|k| self.home(*k).is_some()).collect();
            order.extend(bound.iter().filter(|k| !left.contains(k)));
            bound = left;
        }
        order
    }
}

#[test]
fn r25_bindings_come_back_with_what_is_left_of_their_idle_time() {
    let mut t = ByHand::new(rules(100));
    t.turn(0, 3);
    t.pass(SECOND * 40);
    t.turn(1, 4);
    let lease = t.begin(2, 5);
    t.pass(SECOND * 10);
    let kept = t.keep();
    assert_eq!(kept.len(), 3);
    // The process is down for a while.
    t.pass(SECOND * 5);
    let (mut next, back) = t.restarted(&kept);
    assert_eq!((back, next.table.bindings(), next.table.leases()), (3, 3, 0));
    for (k, worker, idle) in [(0, 3, 55), (1, 4, 15), (2, 5, 5)] {
        let (view, was) = (next.view(k).unwrap(), t.view(k).unwrap());
        assert_eq!((view.target, view.idle), (at(worker), SECOND * idle), "session {k}");
        assert_eq!((view.version, view.leases, view.last), (was.version, 0, false));
    }
    assert_eq!(next.table.bindings_of(at(3).worker), 1);
    next.pass(SECOND * 5);
    assert_eq!(next.bound(3), [1, 2]);
    let hold = next.sent(2, 5, Plan::Home);
    assert_eq!(next.commit(hold, 5).1, Outcome::Hit);
    t.end(lease);
}

#[test]
fn r25_a_moment_of_its_time_is_enough_to_come_back_and_none_is_not() {
    let mut t = ByHand::new(rules(100));
    t.turn(0, 3);
    let kept = t.keep();
    for (down, back) in [(TTL - Duration::from_micros(1), 1), (TTL, 0), (TTL * 9, 0)] {
        let mut t = ByHand::new(rules(100));
        t.pass(down);
        assert_eq!(t.restarted(&kept).1, back, "after {down:?}");
    }
}

#[test]
fn r25_a_clock_that_was_ahead_gives_nobody_a_longer_life() {
    let t = ByHand::new(rules(100));
    // And what is written from now on surpasses what was written then (R23), unless nobody could believe that.
    for (ahead, surpassed) in [(TTL * 100, true), (AHEAD, true), (AHEAD * 2, false)] {
        let idle_since = t.now + ahead;
        let version = Version { sequence: idle_since.as_micros(), writer: 1 };
        let kept = Kept { key: key(0), target: at(1), version, idle_since, last: false };
        let (mut next, back) = t.restarted(&[kept]);
        assert_eq!((back, next.view(0).unwrap().idle), (1, Duration::ZERO));
        next.pass(TTL);
        assert_eq!((next.home(0), next.table.expire(next.now, 9)), (None, 1));
        next.turn(0, 2);
        let written = next.view(0).unwrap().version;
        assert_eq!(written > version, surpassed);
        assert!(written.is_credible(next.now));
    }
}

#[test]
fn r25_r19_what_had_ended_but_for_its_leases_stays_away() {
    let mut t = ByHand::new(rules(100));
    let lease = t.begin_last(0, 3);
    t.turn(1, 3);
    let kept = t.keep();
    assert_eq!(kept.iter().filter(|k| k.last).count(), 1);
    let (next, back) = t.restarted(&kept);
    assert_eq!((back, next.bound(2)), (1, vec![1]));
    t.end(lease);
}

#[test]
fn r25_what_is_there_already_is_newer_and_what_finds_no_room_stays_away() {
    let mut t = ByHand::new(rules(100));
    (0..5).for_each(|k| t.turn(k, 3));
    let kept = t.keep();
    let mut next = ByHand::new(rules(3));
    next.turn(1, 7);
    let hold = next.hold(2);
    let back: Vec<_> = kept.iter().map(|k| next.table.restore(next.now, k)).collect();
    next.table.restored();
    next.table.check();
    assert_eq!(back, [true, false, false, true, false]);
    assert_eq!((next.bound(5), next.home(1)), (vec![0, 1, 3], Some(7)));
    assert!(!next.table.restore(next.now, &kept[0]), "twice");
    next.table.restored();
    next.table.release(next.now, hold, false);
    next.table.check();
}

#[test]
fn r25_requests_that_come_while_bindings_come_back_disorder_nothing() {
    let mut t = ByHand::new(rules(100));
    for k in 0..6 {
        t.turn(k, 3);
        t.pass(SECOND);
    }
    let mut kept = t.keep();
    kept.reverse();
    let mut next = ByHand::new(rules(100));
    next.now = t.now;
    let (early, late) = kept.split_at(4);
    assert!(early.iter().all(|k| next.table.restore(next.now, k)));
    // 5, 4, 3 and 2 are back: one is used, one is looked at, one goes, one comes.
    next.turn(4, 3);
    let hold = next.hold(3);
    next.table.release(next.now, hold, false);
    assert!(next.table.unbind(next.now, key(5)));
    next.turn(9, 1);
    let hold = next.hold(2);
    next.pass(SECOND);
    assert!(late.iter().all(|k| next.table.restore(next.now, k)));
    next.table.restored();
    next.table.check();
    next.table.release(next.now, hold, false);
    next.table.check();
    assert_eq!(next.expiry(10), [0, 1, 2, 3, 4, 9]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The order of a walk is not the order of idling; what comes back idles out as it would have.
    #[test]
    fn r25_what_came_back_idles_out_in_the_order_in_which_it_would_have(
        uses in prop::collection::vec((0..20u32, 1..3000u64), 1..60),
        down in 0..30u64,
        kept in any::<prop::sample::Index>(),
    ) {
        let mut t = ByHand::new(rules(100));
        for (k, ms) in uses {
            t.turn(k, k % 4);
            t.pass(Duration::from_millis(ms));
        }
        let mut all = t.keep();
        t.pass(Duration::from_secs(down));
        // In any order of the file.
        if !all.is_empty() {
            let n = all.len();
            all.rotate_left(kept.index(n));
        }
        let (mut next, _) = t.restarted(&all);
        for k in 0..20 {
            let view = |t: &ByHand| t.view(k).map(|v| (v.target, v.version, v.idle));
            prop_assert_eq!(view(&next), view(&t));
        }
        prop_assert_eq!(next.expiry(20), t.expiry(20));
    }
}

#[test]
fn r25_what_lives_throughout_a_walk_is_kept_once_though_requests_go_on() {
    let mut t = ByHand::new(rules(100_000));
    const N: u32 = 5000;
    (0..N).for_each(|k| t.turn_unchecked(k, 0));
    let (mut kept, mut cursor, mut slices) = (Vec::new(), 0, 0u32);
    while t.table.walk(t.now, &mut cursor, 64, |v| kept.push(Kept::of(t.now, &v))) {
        t.pass(Duration::from_millis(1));
        // Every fifth goes, the one beside it is used, others come.
        t.table.unbind(t.now, key(slices * 5 % N));
        t.turn_unchecked(N - 1 - slices * 5 % N, 0);
        t.turn_unchecked(N + slices, 0);
        slices += 1;
    }
    assert!(slices > 70);
    kept.sort_by_key(|k| k.key);
    assert!(kept.windows(2).all(|w| w[0].key != w[1].key), "nothing is kept twice");
    let gone: Vec<_> = (0..slices).map(|s| s * 5 % N).collect();
    for k in (0..N).filter(|k| !gone.contains(k)) {
        assert!(kept.binary_search_by_key(&key(k), |k| k.key).is_ok(), "session {k}");
    }
    let (next, back) = t.restarted(&kept);
    assert_eq!(back, kept.len());
    assert_eq!(next.table.bindings(), back);
}

#[test]
fn r25_one_that_was_kept_twice_comes_back_as_it_was_bound_last() {
    let mut t = ByHand::new(rules(10));
    t.turn(0, 3);
    let first = t.keep();
    t.table.unbind(t.now, key(0));
    t.pass(SECOND);
    t.turn(0, 4);
    let second = t.keep();
    for order in [[&first[0], &second[0]], [&second[0], &first[0]]] {
        let kept: Vec<Kept> = order.into_iter().copied().collect();
        let (mut next, _) = t.restarted(&kept);
        assert_eq!((next.home(0), next.table.bindings()), (Some(4), 1));
        assert_eq!(next.expiry(1), [0]);
    }
}
