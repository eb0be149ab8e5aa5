//! R15: a full table routes without affinity, counts it, and is never an error.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Abandon;
use homing_core::settings::CoreSettings;
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
        assert_eq!((w.stats().full_table, w.stats().leases), (1, 0));
        assert_eq!(w.turn(w.hard("first")), (home, Outcome::Hit), "who has room keeps it");
        assert_eq!(w.outcomes(Outcome::UnboundFull), 1);
        w.quiesce();
    }
}

#[test]
fn r15_first_turns_under_way_count_too_and_give_their_room_back() {
    let w = World::with(room_for(1), 3);
    let first = w.grant(w.hard("first"));
    assert_eq!(w.turn(w.hard("second")).1, Outcome::UnboundFull);
    let _ = w.core.abandon(w.now, first, Abandon::Failed);
    assert_eq!(w.turn(w.hard("second")).1, Outcome::New);
    w.quiesce();
}

#[test]
fn r15_room_is_made_by_expiry_without_anybody_sweeping() {
    let mut w = World::with(room_for(2), 3);
    w.turn(w.hard("a"));
    w.turn(w.hard("b"));
    w.pass(TTL);
    assert_eq!(w.turn(w.hard("c")).1, Outcome::New);
    assert_eq!(w.turn(w.hard("d")).1, Outcome::New);
    assert_eq!((w.stats().full_table, w.stats().bindings), (0, 2));
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
