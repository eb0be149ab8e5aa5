//! R15: a full table, at resolve and at commit, by `on_full`. Counted, and never an error.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Failure};
use homing_core::settings::{CoreSettings, OnFull};
use std::time::Duration;

fn room_for(n: usize) -> CoreSettings {
    let mut settings = settings();
    settings.affinity.max_sessions = n;
    settings
}

#[test]
fn r15_a_full_table_routes_without_affinity_and_counts_it() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..room_for(1) }, 3);
        let (home, _) = w.turn(w.hard("first"));
        let (_, outcome) = w.turn(w.hard("second"));
        assert_eq!((outcome, w.home("second")), (Outcome::UnboundFull, None));
        assert_eq!((w.stats().table.full, w.stats().leases), (1, 0));
        assert_eq!(w.turn(w.hard("first")), (home, Outcome::Hit), "who has room keeps it");
        assert_eq!(w.outcomes(Outcome::UnboundFull), 1);
        w.quiesce();
    }
}

#[test]
fn r15_first_turns_under_way_take_no_room_and_the_first_to_commit_has_it() {
    let w = World::with(room_for(1), 3);
    let first = w.go(w.grant(w.hard("first")));
    assert_eq!(w.turn(w.hard("second")).1, Outcome::New);
    let (live, outcome) = w.commit(first);
    assert_eq!((outcome, w.home("first"), w.stats().leases), (Outcome::UnboundFull, None, 0));
    assert_eq!((w.stats().table.full, w.outcomes(Outcome::UnboundFull)), (1, 1));
    assert_eq!(w.stats().bookings, 1, "it runs all the same");
    w.finish(live);
    w.quiesce();
}

fn evicting(n: usize) -> CoreSettings {
    let mut settings = room_for(n);
    settings.affinity.on_full = OnFull::EvictIdle;
    settings
}

#[test]
fn r15_evict_idle_replaces_the_longest_idle_binding_at_commit() {
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..evicting(3) }, 3);
        for id in ["a", "b", "c"] {
            w.turn(w.hard(id));
            w.pass(SECOND);
        }
        w.turn(w.hard("a"));
        let checked = w.go(w.grant(w.hard("d")));
        assert_eq!(w.stats().bindings, 3, "not before it runs");
        assert!(w.home("b").is_some());
        let (live, outcome) = w.commit(checked);
        assert_eq!(outcome, Outcome::New);
        let held = ["a", "b", "c", "d"].map(|id| w.home(id).is_some());
        assert_eq!(held, [true, false, true, true]);
        let table = w.stats().table;
        assert_eq!((table.evicted, table.full, w.stats().bindings), (1, 0, 3));
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r15_evict_idle_spares_whoever_has_a_lease_or_a_hold() {
    let mut w = World::with(evicting(3), 3);
    let (_, _, leased) = w.start(w.hard("leased"));
    w.turn(w.hard("held"));
    let held = w.grant(w.hard("held"));
    w.pass(SECOND);
    w.turn(w.hard("idle"));
    assert_eq!(w.turn(w.hard("new")).1, Outcome::New);
    assert_eq!((w.home("idle"), w.stats().table.evicted), (None, 1));
    let (_, _, third) = w.start(w.hard("new"));
    // All three are in use.
    let (_, outcome, fourth) = w.start(w.hard("one more"));
    assert_eq!((outcome, w.stats().table.full), (Outcome::UnboundFull, 1));
    assert!(["leased", "held", "new"].iter().all(|id| w.home(id).is_some()));
    let _ = w.core.abandon(w.now, held, Abandon::NotDispatched);
    [leased, third, fourth].into_iter().for_each(|l| w.finish(l));
    assert_eq!(w.turn(w.hard("one more")).1, Outcome::New);
    w.quiesce();
}

#[test]
fn r15_evict_idle_takes_what_is_due_before_what_is_not() {
    let mut w = World::with(evicting(2), 3);
    w.turn(w.hard("due"));
    w.pass(SECOND);
    w.turn(w.hard("idle"));
    w.pass(TTL - SECOND);
    assert_eq!(w.turn(w.hard("new")).1, Outcome::New);
    assert_eq!((w.home("idle").is_some(), w.stats().table.evicted), (true, 0));
    assert_eq!(w.stats().table.expired, 1);
    w.quiesce();
}

#[test]
fn r15_a_full_table_in_the_middle_of_a_failover_routes_unbound() {
    // A first turn that fails, and finds the table full when it resolves anew.
    let w = World::with(room_for(1), 3);
    let first = w.go(w.grant(w.hard("s")));
    w.turn(w.hard("other"));
    let moved = granted(w.retry(first, Failure::Broken));
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, w.home("s"), w.stats().leases), (Outcome::UnboundFull, None, 0));
    w.finish(live);
    w.quiesce();
    // A bound one whose worker departs under it, and whose place another one takes before it commits.
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..room_for(1) }, 3);
        let (home, _) = w.turn(w.hard("s"));
        let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Refused));
        assert_eq!((moved.worker().id == home, w.home("s")), (false, None));
        let (_, outcome, other) = w.start(w.hard("other"));
        assert_eq!(outcome, Outcome::New);
        let (live, outcome) = w.commit(w.go(moved));
        assert_eq!((outcome, w.home("s")), (Outcome::UnboundFull, None));
        assert_eq!((w.stats().table.full, w.moves()), (1, [0; 4]));
        w.finish(live);
        w.finish(other);
        w.quiesce();
    }
}

#[test]
fn r15_a_rebinding_needs_no_room() {
    for settings in [room_for(1), evicting(1)] {
        let mut w = World::with(settings, 3);
        let (home, _) = w.turn(w.hard("s"));
        let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
        let (live, outcome) = w.commit(w.go(moved));
        assert_eq!(outcome, Outcome::Rebound);
        w.finish(live);
        w.remove(w.home("s").unwrap());
        assert_ne!(w.home("s"), Some(home));
        assert_eq!(w.turn(w.hard("s")).1, Outcome::Rebound);
        assert_eq!((w.stats().table.full, w.stats().table.evicted), (0, 0));
        w.quiesce();
    }
}

#[test]
fn r15_room_is_made_by_expiry_without_anybody_sweeping() {
    let mut w = World::with(room_for(2), 3);
    w.turn(w.hard("a"));
    w.turn(w.hard("b"));
    w.pass(TTL);
    assert_eq!(w.turn(w.hard("c")).1, Outcome::New);
    assert_eq!(w.turn(w.hard("d")).1, Outcome::New);
    assert_eq!((w.stats().table.full, w.stats().bindings), (0, 2));
    w.quiesce();
}

#[test]
fn r15_what_is_due_behind_requests_under_way_is_room_too() {
    let mut w = World::with(room_for(5), 3);
    // These began to idle first, and are in use again when their time comes.
    let held = ["a", "b", "c", "d"];
    let _ = held.map(|id| w.turn(w.hard(id)));
    w.turn(w.hard("due"));
    w.pass(TTL - Duration::from_micros(1));
    let grants = held.map(|id| w.grant(w.hard(id)));
    w.pass(TTL);
    assert_eq!(w.turn(w.hard("e")).1, Outcome::New);
    for grant in grants {
        let _ = w.core.abandon(w.now, grant, Abandon::Failed);
    }
    w.quiesce();
}

#[test]
fn r15_without_any_room_everything_still_runs() {
    let w = World::with(room_for(0), 2);
    for _ in 0..4 {
        assert_eq!(w.turn(w.hard("s")).1, Outcome::UnboundFull);
    }
    let grant = w.grant(w.soft("s"));
    assert_eq!(w.core.abandon(w.now, grant, Abandon::Failed), Outcome::Unbound);
    w.quiesce();
}

#[test]
fn r15_a_request_is_counted_once_it_is_served_and_once_only() {
    let mut s = queueing(8);
    s.affinity.max_sessions = 1;
    let w = World::with(s, 2);
    w.turn(w.hard("other"));
    let full = |w: &World| w.stats().table.full;
    let (_, _, first) = w.start(w.plain());
    let (_, _, second) = w.start(w.plain());
    let mut ticket = w.waiting(w.hard("s"));
    for _ in 0..3 {
        let Admission::Waiting(again) = w.claim(ticket) else { panic!("both are busy") };
        ticket = again;
    }
    assert_eq!(full(&w), 0, "it waits");
    while w.woken().is_some() {}
    w.finish(first);
    let checked = w.go(w.claimed(ticket));
    let moved = granted({
        w.finish(second);
        w.retry(checked, Failure::Broken)
    });
    assert_eq!(full(&w), 0, "it has not been served yet");
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, full(&w)), (Outcome::UnboundFull, 1));
    w.finish(live);
    for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
        let checked = w.go(w.grant(w.hard("s")));
        let _ = w.core.abandon(w.now, checked, why);
    }
    let _ = w.core.preview(w.now, &w.hard("s"));
    assert_eq!((full(&w), w.outcomes(Outcome::UnboundFull)), (1, 1));
    w.quiesce();
}
