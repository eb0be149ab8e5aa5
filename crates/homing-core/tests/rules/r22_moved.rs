//! R22, before the answer has begun: moved requests bind where they ran.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Failure;
use homing_core::fleet::{FleetEvent, State};
use homing_core::settings::CoreSettings;

#[test]
fn r22_a_moved_first_turn_always_binds_where_it_ran() {
    for failure in [Failure::Refused, Failure::Unreachable, Failure::Broken] {
        let w = World::with(CoreSettings { retry_attempts: 2, ..settings() }, 3);
        let mut grant = w.grant(w.hard("s"));
        for _ in 0..2 {
            grant = granted(w.retry(w.go(grant), failure));
        }
        let ran = grant.worker().id;
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::New, Some(ran), [0, 0, 0, 0]));
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r22_a_session_moves_once_however_often_its_request_did() {
    let w = World::with(CoreSettings { retry_attempts: 3, ..settings() }, 4);
    w.turn(w.hard("s"));
    let mut grant = w.grant(w.hard("s"));
    for failure in [Failure::Refused, Failure::Broken, Failure::Unreachable] {
        grant = granted(w.retry(w.go(grant), failure));
    }
    let ran = grant.worker().id;
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(ran)));
    assert_eq!(w.moves().iter().sum::<u64>(), 1);
    w.finish(live);
    assert_eq!(w.turn(w.hard("s")), (ran, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r22_a_refused_port_marks_the_worker_down_and_the_others_avoid_it() {
    let w = World::new(3);
    let checked = w.go(w.grant(w.plain()));
    let dead = checked.grant().worker().id;
    let (admission, events) = w.core.retry(w.now, checked, Failure::Refused);
    assert_eq!(events, [FleetEvent::State(dead, State::Down)]);
    let moved = granted(admission);
    assert_ne!(moved.worker().id, dead);
    for _ in 0..20 {
        assert_ne!(w.turn(w.plain()).0, dead);
    }
    let (live, _) = w.commit(w.go(moved));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r22_a_failure_excludes_for_the_very_request_only() {
    let w = World::new(2);
    let checked = w.go(w.grant(w.hard("s")));
    let failed = checked.grant().worker().id;
    let moved = granted(w.retry(checked, Failure::Broken));
    let lives: Vec<_> = (0..20).map(|_| w.start(w.plain())).collect();
    assert!(lives.iter().any(|l| l.0 == failed));
    lives.into_iter().for_each(|l| w.finish(l.2));
    let (live, _) = w.commit(w.go(moved));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r22_a_failure_at_a_worker_that_departed_meanwhile_is_an_ordinary_move() {
    for failure in [Failure::Refused, Failure::Unreachable, Failure::Broken] {
        let mut w = World::new(2);
        let checked = w.go(w.grant(w.hard("s")));
        let gone = checked.grant().worker().id;
        w.remove(gone);
        let (admission, events) = w.core.retry(w.now, checked, failure);
        assert!(events.is_empty());
        let moved = granted(admission);
        assert_ne!(moved.worker().id, gone);
        let (live, outcome) = w.commit(w.go(moved));
        assert_eq!(outcome, Outcome::New);
        w.finish(live);
        w.quiesce();
    }
}
