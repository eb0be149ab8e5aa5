//! What a table does at its bounds: when it is full, when much is due at once, when it is walked while
//! it changes. That it follows the contract in between is the model's to say (`contract_tests.rs`).

use super::*;
use crate::affinity::by_hand::{ByHand, SECOND, TTL, at, key, live, rules};
use crate::affinity::{Check, MoveReason, Outcome, Plan, Resolved, Standing};
use crate::settings::Mode;

fn evicting(max_sessions: usize) -> Rules {
    Rules { on_full: OnFull::EvictIdle, ..rules(max_sessions) }
}

#[test]
fn r15_the_longest_idle_makes_room_and_never_one_in_use() {
    let mut t = ByHand::new(evicting(3));
    for k in [1, 0, 2] {
        t.turn(k, k);
        t.pass(SECOND);
    }
    // In use, it is no longer the longest idle; and what is used again goes to the end.
    let lease = t.begin(1, 1);
    t.turn(0, 0);
    t.turn(3, 3);
    assert_eq!(t.bound(5), [0, 1, 3]);
    t.turn(4, 4);
    assert_eq!(t.bound(5), [1, 3, 4]);
    let others = [t.begin(3, 3), t.begin(4, 4)];
    let hold = t.sent(0, 0, Plan::Home);
    let (lease_of_none, outcome) = t.commit(hold, 0);
    assert!(lease_of_none.is_none());
    assert_eq!((outcome, t.bound(5)), (Outcome::UnboundFull, vec![1, 3, 4]), "all are in use");
    assert_eq!((t.table.counters().evicted, t.table.counters().full), (2, 1));
    t.end(lease);
    others.into_iter().for_each(|lease| t.end(lease));
    t.turn(0, 0);
    assert_eq!(t.bound(5), [0, 3, 4]);
}

#[test]
fn r15_what_is_due_makes_room_first_though_it_stands_behind_what_is_in_use() {
    for rules in [rules(2), evicting(2)] {
        let mut t = ByHand::new(rules);
        t.turn(0, 0);
        t.turn(1, 1);
        let hold = t.hold(0);
        t.pass(TTL);
        assert!(!t.table.would_be_full(t.now, key(2), None));
        t.turn(2, 2);
        assert_eq!(t.bound(3), [0, 2]);
        assert_eq!((t.table.counters().expired, t.table.counters().evicted), (1, 0));
        t.table.release(t.now, hold, false);
        assert_eq!(t.bound(3), [2], "its time was over, but for the hold");
        t.table.check();
    }
}

#[test]
fn r15_first_turns_under_way_take_no_room_and_the_first_commits_get_it() {
    let mut t = ByHand::new(rules(1));
    let a = t.sent(0, 0, Plan::Home);
    let b = t.sent(1, 1, Plan::Home);
    assert_eq!((t.table.bindings(), t.table.leases()), (0, 0));
    let (lease, outcome) = t.commit(b, 1);
    assert_eq!(outcome, Outcome::New);
    assert!(
        t.table.would_be_full(t.now, key(2), None) && !t.table.would_be_full(t.now, key(0), None)
    );
    assert!(matches!(t.resolve(2), Resolved::Full));
    let (none, outcome) = t.commit(a, 0);
    assert!(none.is_none());
    assert_eq!((outcome, t.table.counters().full), (Outcome::UnboundFull, 1));
    t.end(lease.unwrap());
    t.turn(1, 1);
    assert_eq!(t.bound(3), [1]);
}

#[test]
fn r15_a_search_for_room_is_bounded_and_the_next_goes_on_behind_it() {
    let many = u32::try_from(SEARCH).unwrap() + 10;
    let mut t = ByHand::new(evicting(SEARCH + 11));
    (0..=many).for_each(|k| t.turn_unchecked(k, 0));
    let holds: Vec<_> = (0..many).map(|k| t.hold(k)).collect();
    let hold = t.sent(many + 1, 0, Plan::Home);
    assert_eq!(t.commit(hold, 0).1, Outcome::UnboundFull);
    t.turn(many + 2, 0);
    assert_eq!((t.home(many), t.home(many + 2)), (None, Some(0)));
    holds.into_iter().for_each(|hold| t.table.release(t.now, hold, false));
    t.table.check();
    assert_eq!(t.table.expire(t.now + TTL, usize::MAX), SEARCH + 11);
}

#[test]
fn r14_much_that_is_due_at_once_goes_in_parts_and_is_gone_for_whoever_looks() {
    let mut t = ByHand::new(rules(100_000));
    (0..5000).for_each(|k| t.turn_unchecked(k, k % 7));
    assert_eq!(t.table.next_expiry(), Some(t.now + TTL));
    t.pass(TTL - Duration::from_micros(1));
    assert_eq!((t.table.expire(t.now, 10), t.home(0)), (0, Some(0)));
    t.pass(Duration::from_micros(1));
    assert_eq!((t.table.bindings(), t.bound(5000)), (5000, vec![]));
    let (mut walked, mut cursor) = (0, 0);
    while t.table.walk(t.now, &mut cursor, 100, |_| walked += 1) {}
    assert_eq!(walked, 0);
    // Whoever comes meanwhile helps a little.
    let hold = t.hold(9999);
    assert_eq!(t.table.bindings(), 4998);
    t.table.release(t.now, hold, false);
    let mut parts = Vec::new();
    while t.table.next_expiry().is_some_and(|next| next <= t.now) {
        parts.push(t.table.expire(t.now, 1024));
    }
    assert_eq!(parts, [1024, 1024, 1024, 1024, 902]);
    assert_eq!((t.table.bindings(), t.table.entries.len()), (0, 0));
    t.table.check();
}

#[test]
fn r14_a_moment_before_at_and_after_the_end_of_its_time() {
    let moment = Duration::from_micros(1);
    for (idle, lives) in [(TTL - moment, true), (TTL, false), (TTL + moment, false)] {
        let mut t = ByHand::new(rules(10));
        t.turn(0, 3);
        t.pass(idle);
        assert_eq!(t.home(0).is_some(), lives);
        let mut hold = t.hold(0);
        assert_eq!(hold.home().is_some(), lives);
        t.table.selected(t.now, &mut hold, at(3), Plan::Home);
        // From now on it can't expire (R05), however long it takes.
        t.pass(TTL * 3);
        let (lease, outcome) = t.commit(hold, 3);
        assert_eq!(outcome, if lives { Outcome::Hit } else { Outcome::New });
        t.pass(TTL * 3);
        t.table.expire(t.now, usize::MAX);
        assert_eq!(t.home(0), Some(3), "a lease lives");
        t.end(lease.unwrap());
        t.pass(TTL - moment);
        assert_eq!(t.home(0), Some(3), "its time began anew with the end");
        t.pass(moment);
        assert_eq!(t.home(0), None);
    }
}

#[test]
fn r13_a_lease_of_a_binding_that_is_gone_ends_into_nothing_whoever_has_its_place() {
    let mut t = ByHand::new(rules(10));
    let first = t.begin(0, 0);
    assert!(t.table.unbind(t.now, key(0)) && !t.table.unbind(t.now, key(0)));
    assert_eq!((t.table.leases(), t.table.entries.len()), (1, 0));
    // Another session gets the very entry.
    let other = t.begin(1, 1);
    assert_eq!(other.slot, first.slot);
    t.end(first);
    assert_eq!((t.table.leases(), t.view(1).unwrap().leases), (1, 1));
    t.table.unbind(t.now, key(1));
    let again = t.begin(1, 2);
    t.end(other);
    assert_eq!(t.view(1).map(|v| (v.target, v.leases)), Some((at(2), 1)));
    t.end(again);
    assert_eq!(t.table.leases(), 0);
}

#[test]
fn r27_one_claim_more_than_may_be_is_surplus_and_one_that_ends_makes_room() {
    for (most, claims) in [(3, 3), (0, CLAIMS_MOST), (u32::MAX, CLAIMS_MOST)] {
        let mut t = ByHand::new(Rules { max_parallel: most, ..rules(10) });
        let mut leases = vec![t.begin(0, 0)];
        leases.extend((2..claims).map(|_| {
            let hold = t.hold(0);
            t.table.commit(t.now, hold, at(0), false, live).lease.unwrap()
        }));
        let hold = t.hold(0);
        assert_eq!((t.table.claims(key(0)), t.table.is_hot(key(0), false)), (claims, true));
        assert!(matches!(t.resolve(0), Resolved::Surplus));
        t.end(leases.pop().unwrap());
        let one_more = t.hold(0);
        assert!(matches!(t.resolve(0), Resolved::Surplus));
        t.table.release(t.now, hold, true);
        t.table.release(t.now, one_more, true);
        leases.into_iter().for_each(|lease| t.table.end(t.now, lease));
        assert_eq!((t.table.leases(), t.table.claims(key(0))), (0, 0));
        t.table.check();
    }
}

#[test]
fn r19_the_mark_stands_until_the_last_lease_ends_and_later_turns_hit() {
    let mut t = ByHand::new(rules(10));
    let first = t.begin_last(0, 3);
    assert!(t.view(0).unwrap().last);
    let hold = t.sent(0, 3, Plan::Home);
    let (later, outcome) = t.commit(hold, 3);
    assert_eq!(outcome, Outcome::Hit);
    t.end(first);
    assert!(t.view(0).unwrap().last, "a later turn doesn't clear it");
    let refused = t.hold(0);
    t.end(later.unwrap());
    assert_eq!(t.home(0), Some(3), "a turn under way holds it too");
    t.table.release(t.now, refused, false);
    assert_eq!((t.home(0), t.table.entries.len()), (None, 0));
    assert_eq!(t.table.counters(), Counters::default(), "it neither expired nor moved");
}

#[test]
fn r19_a_group_ends_with_its_parent() {
    let mut t = ByHand::new(rules(10));
    t.turn(0, 0);
    let lease = t.begin(1, 1);
    for k in [0, 1, 2] {
        t.table.end_group(t.now, key(k));
    }
    assert_eq!(t.bound(3), [1], "an idle one at once, one in use with its last lease");
    t.end(lease);
    assert_eq!((t.bound(3), t.table.entries.len()), (vec![], 0));
    // A later turn doesn't clear the mark, wherever it runs.
    let lease = t.begin_last(1, 1);
    let mut hold = t.hold(1);
    t.table.selected(t.now, &mut hold, at(2), Plan::Move(MoveReason::Failed));
    let (moved, outcome) = t.commit(hold, 2);
    assert_eq!((outcome, t.view(1).unwrap().last), (Outcome::Rebound, true));
    t.end(lease);
    assert_eq!(t.home(1), Some(2), "the lease on its old binding is none on this");
    t.end(moved.unwrap());
    assert_eq!(t.home(1), None);
}

#[test]
fn r07_the_third_spilled_turn_in_a_row_binds_and_a_hit_begins_the_count_anew() {
    let mut t = ByHand::new(rules(10));
    t.turn(0, 0);
    let mut outcomes = Vec::new();
    for to in [1, 1, 0, 1, 2, 1, 0, 0] {
        let home = t.home(0).unwrap();
        let plan = if to == home { Plan::Home } else { Plan::Spill };
        let hold = t.sent(0, to, plan);
        assert_eq!(t.table.check_dispatch(t.now, &hold, at(to), live), Check::Go, "R10");
        let (lease, outcome) = t.commit(hold, to);
        t.end(lease.expect("a spilled turn has a lease all the same"));
        outcomes.push(outcome);
    }
    use Outcome::{Hit, Rebound, Spilled};
    assert_eq!(outcomes, [Spilled, Spilled, Hit, Spilled, Spilled, Rebound, Spilled, Spilled]);
    assert_eq!(t.home(0), Some(1));
    assert_eq!(t.table.counters().moves[MoveReason::Overloaded as usize], 1);
}

#[test]
fn r07_a_departed_binding_is_dropped_once_and_whoever_binds_next_moves_it() {
    let mut t = ByHand::new(rules(10));
    t.turn(0, 0);
    let gone = |target: Target| match target.worker.0 {
        0 => Standing::Departed,
        _ => Standing::Live,
    };
    let resolve = |t: &mut ByHand| {
        let Resolved::Hold(mut hold) =
            t.table.resolve(t.now, key(0), Mode::Hard, false, None, gone)
        else {
            panic!("no hold");
        };
        t.table.selected(t.now, &mut hold, at(2), Plan::Home);
        hold
    };
    let (first, second) = (resolve(&mut t), resolve(&mut t));
    assert!(first.home().is_none() && t.home(0).is_none());
    let (lease, outcome) = t.commit(first, 2);
    assert_eq!(outcome, Outcome::Rebound);
    let (joined, outcome) = t.commit(second, 2);
    assert_eq!(outcome, Outcome::Joined);
    assert_eq!(t.table.counters().moves, [1, 0, 0, 0], "one move");
    t.end(lease.unwrap());
    t.end(joined.unwrap());
    // Who selects nothing changes nothing; a failed attempt leaves no trace but that the binding is gone.
    for selects in [false, true] {
        t.turn(1, 0);
        let Resolved::Hold(mut hold) =
            t.table.resolve(t.now, key(1), Mode::Soft, false, None, gone)
        else {
            panic!("no hold");
        };
        if selects {
            t.table.selected(t.now, &mut hold, at(2), Plan::Home);
        }
        t.table.release(t.now, hold, selects);
        let kept = (!selects).then_some(0);
        assert_eq!((t.home(1), t.table.bindings_of(WorkerId(0))), (kept, u32::from(!selects)));
    }
}

#[test]
fn a_walk_meets_what_lives_throughout_once_whatever_comes_and_goes() {
    let mut t = ByHand::new(rules(100_000));
    (0..6000).for_each(|k| t.turn_unchecked(k, 0));
    let (mut met, mut cursor, mut round) = (vec![0; 20_000], 0, 0u32);
    loop {
        let more = t.table.walk(t.now, &mut cursor, 100, |v| met[v.key.0 as usize] += 1);
        if !more {
            break;
        }
        // Odd ones go, some come, and those that stay are used or even move.
        let k = round * 100;
        (k..k + 100).filter(|k| k % 2 == 0).for_each(|k| {
            t.table.unbind(t.now, key(5999 - k % 6000));
        });
        t.turn(10_000 + round, 1);
        t.turn(round * 4 % 6000, 0);
        let hold = t.sent(round * 2, 3, Plan::Move(MoveReason::Failed));
        let lease = t.commit(hold, 3).0.unwrap();
        t.end(lease);
        round += 1;
    }
    assert!(round > 50);
    let stayed: Vec<_> = t.bound(6000);
    assert!(stayed.len() > 1000 && stayed.iter().all(|k| met[*k as usize] == 1));
    assert!(met.iter().all(|n| *n <= 1), "nothing is met twice");
    assert!(!t.table.walk(t.now, &mut cursor, 100, |_| panic!("it is over")));
}

#[test]
fn what_it_takes_follows_what_it_holds() {
    let mut t = ByHand::new(rules(1_000_000));
    t.turn(0, 0);
    let empty = t.table.bytes();
    (1..50_000).for_each(|k| t.turn_unchecked(k, 0));
    let full = t.table.bytes();
    let each = (full - empty) / 50_000;
    assert!((64..128).contains(&each), "{each} bytes a session");
    // The same room for the next ones.
    t.pass(TTL);
    t.table.expire(t.now, usize::MAX);
    (0..50_000).for_each(|k| t.turn_unchecked(60_000 + k, 0));
    assert!(t.table.bytes() <= full + full / 4);
    t.table.check();
}
