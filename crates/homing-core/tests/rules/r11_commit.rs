//! R11: first commit wins, nobody waits, and nobody's stream is cut for bookkeeping.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Dispatch};

#[test]
fn r11_a_conflict_keeps_its_stream_and_takes_no_lease() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), w.hard("s"));
    let (home, other) = (a.worker().id, b.worker().id);
    let (a, b) = (w.go(a), w.go(b));
    let (first, _) = w.commit(a);
    let bound = w.session("s");
    let (second, outcome) = w.commit(b);
    assert_eq!((outcome, w.session("s")), (Outcome::Conflict, bound), "the binding is left alone");
    assert_eq!(w.stats().leases, 1);
    assert_eq!(w.part(other).load.active_requests, 1, "it runs");
    assert_eq!(w.outcomes(Outcome::Conflict), 1);
    w.finish(second);
    assert_eq!((w.home("s"), w.stats().leases), (Some(home), 1));
    w.finish(first);
    w.quiesce();
}

#[test]
fn r11_soft_rebinds() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), w.soft("s"));
    let other = b.worker().id;
    let (a, b) = (w.go(a), w.go(b));
    let (first, _) = w.commit(a);
    let (second, outcome) = w.commit(b);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(other), [0, 0, 1, 0]));
    w.finish(first);
    w.finish(second);
    w.quiesce();
}

#[test]
fn r11_behind_anothers_commit_to_the_same_target_is_a_lease() {
    let w = World::new(3);
    let (a, b) = (w.go(w.grant(w.hard("s"))), w.go(w.grant(w.hard("s"))));
    let (a, first) = w.commit(a);
    let (b, second) = w.commit(b);
    assert_eq!((first, second), (Outcome::New, Outcome::Joined));
    assert_eq!(w.session("s").unwrap().leases, 2);
    w.finish(a);
    w.finish(b);
    w.quiesce();
}

#[test]
fn r11_behind_anothers_initialization_binds_at_once_and_makes_the_other_a_joiner() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let old = w.go(w.grant(w.hard("s")));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    // Another first turn begins, elsewhere.
    w.down(home);
    let initializer = w.grant(w.hard("s"));
    w.back(home);
    let (live, outcome) = w.commit(old);
    assert_eq!((outcome, w.home("s")), (Outcome::New, Some(home)));
    let Dispatch::Again(ask) = w.check(initializer) else { panic!("bound at {home:?} meanwhile") };
    let (worker, outcome, joiner) = w.start(*ask);
    assert_eq!((worker, outcome), (home, Outcome::Hit));
    w.finish(live);
    w.finish(joiner);
    w.quiesce();
}

#[test]
fn r11_a_departed_home_is_no_reason_for_a_conflict() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), w.hard("s"));
    let (home, other) = (a.worker().id, b.worker().id);
    let (a, b) = (w.go(a), w.go(b));
    let (first, _) = w.commit(a);
    w.remove(home);
    let (second, outcome) = w.commit(b);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(other), [1, 0, 0, 0]));
    w.finish(first);
    w.finish(second);
    w.quiesce();
}

#[test]
fn r11_unbound_meanwhile_binds_where_it_ran() {
    let w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    assert!(!w.core.unbind(w.now, w.partition(), key("s")), "it is gone at once");
    let (live, outcome) = w.commit(checked);
    assert_eq!((outcome, w.home("s")), (Outcome::New, Some(home)));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r11_a_home_that_went_down_and_still_answers_is_a_hit() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    w.down(home);
    let (live, outcome) = w.commit(checked);
    assert_eq!((outcome, w.home("s")), (Outcome::Hit, Some(home)));
    w.finish(live);
    // The next turn looks, and finds it departed.
    let grant = w.grant(w.hard("s"));
    assert_ne!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r11_a_joiner_behind_another_s_initialization_gets_its_lease_without_waiting() {
    let w = World::new(3);
    let (initializer, joiner) = (w.go(w.grant(w.hard("s"))), w.go(w.grant(w.hard("s"))));
    let (live, outcome) = w.commit(joiner);
    assert_eq!((outcome, w.session("s").unwrap().leases), (Outcome::New, 1));
    let _ = w.core.abandon(w.now, initializer, Abandon::Failed);
    assert_eq!(w.session("s").unwrap().leases, 1);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r11_changed_to_the_same_target_is_a_lease() {
    for mode in MODES {
        let w = World::new(1);
        w.turn(w.hard("s"));
        let checked = w.go(w.grant(w.ask("s", mode)));
        let before = w.session("s").unwrap().version;
        w.core.unbind(w.now, w.partition(), key("s"));
        w.turn(w.hard("s"));
        assert_ne!(w.session("s").unwrap().version, before);
        let (live, outcome) = w.commit(checked);
        assert_eq!((outcome, w.moves()), (Outcome::Hit, [0; 4]));
        assert_eq!(w.session("s").unwrap().leases, 1);
        w.finish(live);
        w.quiesce();
    }
}
