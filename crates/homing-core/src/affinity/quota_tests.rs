//! What counts for a tenant, and what doesn't; that it agrees with the plainest count in every history is the model's
//! to say (`contract_tests.rs`).

use super::*;
use crate::affinity::by_hand::{ByHand, SECOND, TTL, at, key, rules};
use crate::affinity::merge::{Merged, Update, What};
use crate::affinity::saved::Kept;
use crate::affinity::version::Version;
use crate::affinity::{Outcome, Plan, Resolved, Rules};
use crate::settings::OnFull;

fn quota(tenant: u64, most: u32) -> Option<Quota> {
    Some(Quota { tenant, most })
}

/// One that has resolved sessions as tenant 1 with room for `most`.
fn limited(most: u32) -> ByHand {
    let mut t = ByHand::new(rules(100));
    t.quota = quota(1, most);
    t
}

#[test]
fn r15_a_tenant_at_its_quota_gets_no_further_session_and_others_do() {
    let mut t = limited(2);
    (0..2).for_each(|k| t.turn(k, k));
    assert!(t.table.would_be_full(t.now, key(2), t.quota));
    assert!(matches!(t.resolve(2), Resolved::Full));
    t.turn(1, 1);
    assert_eq!(t.table.bindings_for(1), 2, "a later turn is no further session");
    t.quota = quota(2, 1);
    t.turn(2, 2);
    t.quota = None;
    t.turn(3, 3);
    assert_eq!((t.bound(5), t.table.bindings_for(2)), (vec![0, 1, 2, 3], 1));
    t.quota = quota(1, 2);
    assert!(t.table.unbind(t.now, key(0)));
    t.turn(4, 0);
    assert_eq!(t.bound(5), [1, 2, 3, 4]);
}

#[test]
fn r15_first_turns_under_way_count_when_they_commit() {
    let mut t = limited(1);
    let holds = [0, 1].map(|k| t.sent(k, 0, Plan::Home));
    let [first, second] = holds.map(|hold| t.commit(hold, 0));
    assert_eq!((first.1, second.1), (Outcome::New, Outcome::UnboundFull));
    assert!(second.0.is_none());
    assert_eq!((t.table.bindings_for(1), t.table.counters().full), (1, 1));
    first.0.into_iter().for_each(|lease| t.end(lease));
}

#[test]
fn r15_nobody_else_makes_room_for_a_tenant_at_its_quota() {
    let mut t = ByHand::new(Rules { on_full: OnFull::EvictIdle, ..rules(2) });
    t.turn(0, 0);
    t.quota = quota(1, 1);
    t.turn(1, 1);
    assert!(matches!(t.resolve(2), Resolved::Full));
    assert_eq!((t.bound(3), t.table.counters().evicted), (vec![0, 1], 0));
    // Another tenant takes the longest-idle one's place, and then this one's: that counts for nobody any more.
    t.quota = quota(2, 9);
    t.turn(3, 0);
    t.turn(4, 0);
    assert_eq!((t.bound(5), t.table.bindings_for(1)), (vec![3, 4], 0));
    t.quota = quota(1, 1);
    t.turn(2, 2);
    assert_eq!(t.bound(5), [2, 4]);
}

#[test]
fn r14_what_has_idled_out_counts_no_longer_swept_or_not() {
    let mut t = limited(2);
    t.turn(0, 0);
    t.pass(SECOND);
    t.turn(1, 1);
    t.pass(TTL - SECOND);
    assert_eq!(t.table.bindings_for(1), 2, "nobody has looked yet");
    assert!(!t.table.would_be_full(t.now, key(2), t.quota));
    t.turn(2, 2);
    assert_eq!((t.bound(3), t.table.bindings_for(1)), (vec![1, 2], 2));
}

#[test]
fn r19_the_last_release_takes_a_session_off_and_a_move_does_not() {
    let mut t = limited(1);
    let lease = t.begin_last(0, 0);
    assert_eq!(t.table.bindings_for(1), 1);
    t.end(lease);
    assert_eq!(t.table.bindings_for(1), 0);
    t.turn(1, 0);
    let moved = t.sent(1, 3, Plan::Move(crate::affinity::MoveReason::Departed));
    let (lease, outcome) = t.commit(moved, 3);
    assert_eq!((outcome, t.home(1), t.table.bindings_for(1)), (Outcome::Rebound, Some(3), 1));
    lease.into_iter().for_each(|lease| t.end(lease));
}

#[test]
fn r23_r25_what_comes_without_a_request_counts_from_its_first_use_here() {
    let mut t = limited(2);
    let version = |sequence| Version { sequence, writer: 9 };
    let what = What::Bound(at(0));
    let merged = Update { key: key(0), version: version(1), what, used: t.now };
    assert_eq!(t.table.merge(t.now, merged), Merged::Applied);
    for k in [1, 2] {
        let (key, version, idle_since) = (key(k), version(2), t.now);
        let kept = Kept { key, target: at(1), version, idle_since, last: false };
        assert!(t.table.restore(t.now, &kept));
    }
    t.table.restored();
    assert_eq!((t.table.bindings(), t.table.bindings_for(1)), (3, 0));
    [(0, 0), (1, 1), (2, 1)].into_iter().for_each(|(k, home)| t.turn(k, home));
    assert_eq!(t.table.bindings_for(1), 3, "none is dropped for it");
    assert!(matches!(t.resolve(3), Resolved::Full));
    // Somebody else's later word takes one of them away from it.
    let (version, what) = (Version { sequence: u64::MAX >> 8, writer: 9 }, What::Bound(at(5)));
    let _ = t.table.merge(t.now, Update { key: key(0), version, what, used: t.now });
    t.table.check();
}

#[test]
fn seats_are_used_again_and_run_out_without_harm() {
    let mut seats = Seats::default();
    let all: Vec<u16> = (1..=u64::from(u16::MAX)).map(|tenant| seats.add(tenant)).collect();
    assert_eq!((all[0], all.last().copied()), (1, Some(u16::MAX)));
    assert_eq!((seats.add(1_000_000), seats.bound(1_000_000)), (NOBODY, 0), "it isn't counted");
    assert_eq!(seats.add(7), 7);
    seats.take_off(7);
    assert_eq!(seats.bound(7), 1);
    seats.take_off(7);
    assert_eq!((seats.add(1_000_000), seats.bound(7)), (7, 0));
    seats.check(all.into_iter());
    seats.take_off(NOBODY);
}

#[test]
fn without_quotas_nothing_is_kept_of_anybody() {
    let mut t = ByHand::new(rules(100));
    (0..50).for_each(|k| t.turn(k, k));
    assert_eq!(t.table.seats.bytes(), 0);
}
