//! R07: a bound worker that is Down, though discovery still knows it, by `on_down`.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause, Failure};
use homing_core::fleet::{FleetChange, Probe};
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnDown, OnFailure, OnOverload};
use std::time::Duration;

type Departure = fn(&mut World, WorkerId);

fn reject() -> CoreSettings {
    let mut settings = settings();
    settings.affinity.on_down = OnDown::Reject;
    settings
}

#[test]
fn r07_down_rebinds_or_is_refused() {
    let mut w = World::with(reject(), 3);
    let (home, _) = w.turn(w.hard("s"));
    let before = w.session("s").unwrap();
    w.down(home);
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert!(refusal.bound, "so `reject_as` applies");
    assert_eq!(w.session("s"), Some(before), "kept, and as idle as it was");
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_down_and_refused_until_discovery_drops_it_or_it_lives_again() {
    let gone: [Departure; 3] = [
        |w, id| w.remove(id),
        |w, id| {
            w.probe(id, Probe::Refused);
            w.back(id);
        },
        |w, id| _ = w.fleet(FleetChange::Restarted(id)),
    ];
    for depart in gone {
        let mut w = World::with(reject(), 3);
        let (home, _) = w.turn(w.hard("s"));
        w.down(home);
        assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
        depart(&mut w, home);
        let (worker, outcome) = w.turn(w.hard("s"));
        assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
        w.quiesce();
    }
}

#[test]
fn r07_down_and_refused_for_hard_requests_only() {
    let mut w = World::with(reject(), 3);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    let (worker, outcome) = w.turn(w.soft("s"));
    assert_ne!(worker, home);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(worker), [0, 0, 1, 0]));
    w.quiesce();
}

#[test]
fn r07_a_refusal_for_the_target_comes_before_one_for_want_of_workers() {
    let mut w = World::with(reject(), 1);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    assert_eq!(w.refused(w.soft("s")).cause, Cause::NoWorker);
    assert_eq!(w.home("s"), Some(home), "neither dropped it");
    w.quiesce();
}

#[test]
fn r07_a_refused_port_is_a_departure_at_once_or_a_refusal() {
    let w = World::with(reject(), 2);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let refusal = refused(w.retry(checked, Failure::Refused));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert_eq!(w.home("s"), Some(home));
    w.quiesce();
}

#[test]
fn r07_a_refused_turn_does_not_keep_an_idle_session_alive() {
    let mut w = World::with(reject(), 2);
    let (home, _) = w.turn(w.hard("s"));
    w.pass(TTL - Duration::from_secs(1));
    w.down(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    w.pass(Duration::from_secs(1));
    assert_eq!(w.home("s"), None);
    w.back(home);
    let grant = w.grant(w.hard("s"));
    assert_eq!(grant.placement().considered, 2);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r07_down_under_rebind_moves_hard_and_soft_alike() {
    for mode in MODES {
        let mut w = World::new(3);
        let (home, _) = w.turn(w.hard("s"));
        w.down(home);
        let (worker, outcome) = w.turn(w.ask("s", mode));
        assert_ne!(worker, home);
        assert_eq!(
            (outcome, w.home("s"), w.moves()),
            (Outcome::Rebound, Some(worker), [1, 0, 0, 0])
        );
        w.back(home);
        assert_eq!(w.turn(w.hard("s")), (worker, Outcome::Hit), "it has a new home");
        w.quiesce();
    }
}

#[test]
fn r07_a_first_turn_avoids_who_is_down_whatever_on_down_says() {
    for settings in [settings(), reject()] {
        let mut w = World::with(settings, 2);
        let down = w.core.worker_named("w0").unwrap();
        w.down(down);
        for i in 0..10 {
            assert_ne!(w.turn(w.hard(&format!("s{i}"))).0, down);
        }
        w.quiesce();
    }
}

#[test]
fn r07_a_refused_port_under_rebind_moves_within_the_same_request() {
    for mode in MODES {
        let w = World::new(2);
        let (home, _) = w.turn(w.hard("s"));
        let requests = w.requests();
        let moved = granted(w.retry(w.go(w.grant(w.ask("s", mode))), Failure::Refused));
        assert_eq!(w.stats().bookings, 1);
        let (live, outcome) = w.commit(w.go(moved));
        assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]), "departed, not failed");
        assert_eq!((w.requests(), w.home("s") == Some(home)), (requests + 1, false));
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_a_refused_port_is_the_target_s_refusal_whatever_attempts_are_left() {
    for retry_attempts in [0, 1, 3] {
        let mut s = CoreSettings { retry_attempts, ..reject() };
        s.affinity.on_failure = OnFailure::Reject;
        s.affinity.on_overload = OnOverload::Reject;
        let w = World::with(s, 2);
        let (home, _) = w.turn(w.hard("s"));
        let before = w.session("s").map(|v| (v.target, v.version));
        let refusal = refused(w.retry(w.go(w.grant(w.hard("s"))), Failure::Refused));
        assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, true));
        assert_eq!((refusal.outcome, refusal.retry_after), (Outcome::Rejected, None));
        assert_eq!(w.session("s").map(|v| (v.target, v.version)), before);
        assert_eq!(w.refused(w.hard("s")), refusal, "and so is the next one's");
        assert_eq!(w.home("s"), Some(home));
        w.quiesce();
    }
}
