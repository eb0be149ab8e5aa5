//! R07: a draining home keeps its sessions, unless they are to move, or until they are.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause};
use homing_core::fleet::FleetChange;
use homing_core::settings::OnOverload;
use std::time::Duration;

const TEN: Duration = Duration::from_secs(10);

#[test]
fn r07_a_draining_home_is_used_while_its_sessions_may_finish() {
    for mode in MODES {
        let mut w = World::new(2);
        let (home, _) = w.turn(w.hard("s"));
        w.drain(home, None);
        for _ in 0..5 {
            w.pass(TTL - SECOND);
            assert_eq!(w.turn(w.ask("s", mode)), (home, Outcome::Hit));
        }
        for i in 0..10 {
            assert_ne!(w.turn(w.hard(&format!("new{i}"))).0, home, "nothing new");
            assert_ne!(w.turn(w.plain()).0, home);
        }
        w.quiesce();
    }
}

#[test]
fn r07_with_move_sessions_a_draining_home_has_departed() {
    for mode in MODES {
        let mut w = World::new(3);
        let (home, _, running) = w.start(w.hard("s"));
        w.drain(home, Some(w.now));
        let (worker, outcome) = w.turn(w.ask("s", mode));
        assert_ne!(worker, home);
        assert_eq!(
            (outcome, w.home("s"), w.moves()),
            (Outcome::Rebound, Some(worker), [1, 0, 0, 0])
        );
        assert_eq!(w.part(home).load.active_requests, 1, "what runs there goes on");
        w.finish(running);
        w.quiesce();
    }
}

#[test]
fn r07_past_the_drain_s_deadline_it_has_departed_and_not_before() {
    for mode in MODES {
        let mut w = World::new(3);
        let (home, _) = w.turn(w.hard("s"));
        w.drain(home, Some(w.now + TEN));
        w.pass(TEN - Duration::from_micros(1));
        assert_eq!(w.turn(w.ask("s", mode)), (home, Outcome::Hit));
        w.pass(Duration::from_micros(1));
        let (worker, outcome) = w.turn(w.ask("s", mode));
        assert!(worker != home && outcome == Outcome::Rebound);
        assert_eq!(w.moves(), [1, 0, 0, 0]);
        w.quiesce();
    }
}

#[test]
fn r07_undrained_it_is_a_worker_like_any() {
    let mut w = World::new(1);
    let (home, _) = w.turn(w.hard("s"));
    w.drain(home, None);
    let refusal = w.refused(w.hard("new"));
    assert_eq!((refusal.cause, refusal.bound), (Cause::NoWorker, false), "nobody else is there");
    w.fleet(FleetChange::Drain(home, None));
    assert_eq!(w.turn(w.hard("new")), (home, Outcome::New));
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_a_drain_that_is_called_off_in_time_moves_nobody() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    w.drain(home, Some(w.now + TEN));
    w.fleet(FleetChange::Drain(home, None));
    w.pass(TEN);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_a_tentative_target_that_drains_is_replaced() {
    let mut w = World::new(2);
    let first = w.grant(w.hard("s"));
    let draining = first.worker().id;
    w.drain(draining, None);
    let second = w.grant(w.hard("s"));
    assert_ne!(second.worker().id, draining);
    // The first is under way there already, and binds; the second one is told, and follows.
    let (live, outcome) = w.commit(w.go(first));
    assert_eq!((outcome, w.home("s")), (Outcome::New, Some(draining)));
    let (worker, outcome, other) = w.start(w.again(second));
    assert_eq!((worker, outcome), (draining, Outcome::Hit));
    w.finish(live);
    w.finish(other);
    w.quiesce();
}

#[test]
fn r07_a_new_life_of_a_draining_worker_drains_on() {
    let mut w = World::new(2);
    let home = w.core.worker_named("w0").unwrap();
    w.drain(home, None);
    w.fleet(FleetChange::Restarted(home));
    let new = w.core.worker_named("w0").unwrap();
    assert_ne!(new, home);
    for i in 0..10 {
        assert_ne!(w.turn(w.hard(&format!("new{i}"))).0, new);
    }
    w.quiesce();
}

#[test]
fn r07_who_waits_for_a_home_whose_drain_comes_to_its_deadline_goes_elsewhere_then() {
    let mut s = settings();
    s.affinity.on_overload = OnOverload::Wait;
    let mut w = World::with(s, 2);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(TTL));
    let ticket = w.waiting(w.hard("s"));
    w.drain(home, Some(w.now + TEN));
    // It may look, and sees that it still has to wait.
    let ticket = match w.woken() {
        None => ticket,
        Some(id) => {
            assert_eq!(id, ticket.id());
            match w.claim(ticket) {
                homing_core::ask::Admission::Waiting(ticket) => ticket,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(w.core.poll_timeout(), Some(w.now + TEN));
    w.pass(TEN);
    w.tick();
    let grant = w.claimed(ticket);
    assert_ne!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}
