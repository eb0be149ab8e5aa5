//! R07: discovered, but not to be used at the moment. No departure: discovery's gaps and lists drop
//! nothing.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause};
use homing_core::fleet::{FleetChange, FleetEvent, Ranks, State};
use std::time::Duration;

#[test]
fn r07_a_gap_in_discoverys_watch_is_not_a_departure() {
    let mut w = World::new(3);
    let (home, _, running) = w.start(w.hard("s"));
    let events = w.fleet(FleetChange::Unsure(home));
    assert_eq!(events, [FleetEvent::State(home, State::Starting)]);
    let before = w.session("s");
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert!(refusal.bound);
    assert_eq!((w.session("s"), w.moves()), (before, [0; 4]), "kept");
    for i in 0..5 {
        assert_ne!(w.turn(w.hard(&format!("new{i}"))).0, home, "nothing new goes there");
    }
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.finish(running);
    w.quiesce();
}

#[test]
fn r07_in_a_gap_soft_goes_elsewhere_and_rebinds() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    w.fleet(FleetChange::Unsure(home));
    let (worker, outcome) = w.turn(w.soft("s"));
    assert_ne!(worker, home);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(worker), [0, 0, 1, 0]));
    w.quiesce();
}

#[test]
fn r07_a_re_list_is_not_a_departure() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let (_, _, running) = w.start(w.hard("s"));
    let specs: Vec<_> = w.core.workers().iter().map(|v| v.info.spec.clone()).collect();
    let before = w.traces();
    for _ in 0..3 {
        for spec in &specs {
            assert_eq!(w.fleet(FleetChange::Register(spec.clone())), []);
        }
    }
    assert_eq!(w.traces(), before);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.finish(running);
    w.quiesce();
}

#[test]
fn r07_a_gap_and_a_re_list_after_it_keep_every_session() {
    let mut w = World::new(3);
    let homes: Vec<_> = (0..12).map(|i| w.turn(w.hard(&format!("s{i}"))).0).collect();
    let all = w.core.workers();
    for v in &all {
        w.fleet(FleetChange::Unsure(v.info.id));
    }
    assert_eq!(w.refused(w.plain()).cause, Cause::NoWorker);
    assert_eq!(w.refused(w.hard("s0")).cause, Cause::TargetUnavailable, "before `no_worker`");
    for v in &all {
        w.fleet(FleetChange::Register(v.info.spec.clone()));
        w.back(v.info.id);
    }
    for (i, home) in homes.into_iter().enumerate() {
        assert_eq!(w.turn(w.hard(&format!("s{i}"))), (home, Outcome::Hit));
    }
    assert_eq!(w.moves(), [0; 4]);
    w.quiesce();
}

#[test]
fn r07_a_registration_with_another_mark_is_a_departure() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    let mut spec = w.view(home).info.spec.clone();
    spec.generation += 1000;
    w.fleet(FleetChange::Register(spec));
    let (worker, outcome) = w.turn(w.hard("s"));
    assert!(worker != home && outcome == Outcome::Rebound);
    w.quiesce();
}

#[test]
fn r07_a_request_under_way_into_a_gap_keeps_its_binding_however_it_ends() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    let (a, b) = (w.grant(w.hard("s")), w.go(w.grant(w.hard("s"))));
    w.fleet(FleetChange::Unsure(home));
    let (live, outcome) = w.commit(w.go(a));
    assert_eq!(outcome, Outcome::Hit);
    let _ = w.core.abandon(w.now, b, Abandon::Failed);
    assert_eq!(w.home("s"), Some(home));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r07_a_gap_does_not_stop_the_idle_time() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    w.fleet(FleetChange::Unsure(home));
    w.pass(TTL - SECOND);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    w.pass(Duration::from_secs(1));
    assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
    w.quiesce();
}

#[test]
fn r07_a_re_list_takes_back_nothing_that_was_learned_since() {
    let mut w = World::new(1);
    let id = w.up_with_ranks("a", 0, 1);
    // The worker has told of more ranks than discovery knows, and people drain it.
    w.fleet(FleetChange::Ranks(id, Ranks::new(0, 4)));
    w.turn(at(w.hard("s"), "a", Some(3)));
    w.drain(id, None);
    w.fleet(FleetChange::Register(w.view(id).info.spec.clone()));
    let view = w.view(id);
    assert_eq!((view.ranks, view.state), (Ranks::new(0, 4), State::Ready));
    assert!(view.drain.is_some());
    assert_eq!(w.turn(w.hard("s")), (id, Outcome::Hit));
    // What discovery itself has changed counts.
    let mut spec = view.info.spec.clone();
    spec.ranks = Ranks::new(0, 2);
    w.fleet(FleetChange::Register(spec));
    assert_eq!(w.view(id).ranks, Ranks::new(0, 2));
    let (worker, outcome) = w.turn(w.hard("s"));
    assert!(worker != id && outcome == Outcome::Rebound, "its rank is gone");
    w.quiesce();
}
