//! R07: a live home that has just failed this very request, by `on_failure`; and what failover never
//! does: leave the workers that a request allows, move who may not move, leave an explicit target.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Failure};
use homing_core::settings::{CoreSettings, Mode, OnFailure};
use std::time::Duration;

const FAILURES: [Failure; 2] = [Failure::Unreachable, Failure::Broken];

fn reject() -> CoreSettings {
    let mut settings = CoreSettings { retry_attempts: 3, ..settings() };
    settings.affinity.on_failure = OnFailure::Reject;
    settings
}

#[test]
fn r07_a_home_that_just_failed_this_request_is_left_under_rebind() {
    for failure in FAILURES {
        for mode in MODES {
            let w = World::new(3);
            let (home, _) = w.turn(w.hard("s"));
            let (before, requests) = (w.session("s").unwrap().version, w.requests());
            let moved = granted(w.retry(w.go(w.grant(w.ask("s", mode))), failure));
            let worker = moved.worker().id;
            assert!(worker != home && w.stats().bookings == 1);
            let kept = w.session("s").unwrap();
            assert_eq!(
                (kept.target.worker, kept.version),
                (home, before),
                "until it runs elsewhere"
            );
            let (live, outcome) = w.commit(w.go(moved));
            assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
            assert_eq!((w.moves(), w.requests()), ([0, 1, 0, 0], requests + 1), "{mode:?}");
            w.finish(live);
            w.quiesce();
        }
    }
}

#[test]
fn r07_a_home_that_just_failed_this_request_is_not_left_by_hard_under_reject() {
    for failure in FAILURES {
        let mut w = World::with(reject(), 3);
        let (home, _) = w.turn(w.hard("s"));
        w.pass(SECOND);
        let before = w.session("s").unwrap();
        let refusal = refused(w.retry(w.go(w.grant(w.hard("s"))), failure));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
        assert!(refusal.bound, "though attempts are left");
        let after = w.session("s").unwrap();
        assert_eq!((after.target, after.version, after.leases), (before.target, before.version, 0));
        assert_eq!((after.idle, w.stats().bookings, w.moves()), (Duration::ZERO, 0, [0; 4]));
        assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "it may come again at once");
        w.quiesce();
    }
}

#[test]
fn r07_on_failure_reject_is_for_hard_turns_at_home_only() {
    for failure in FAILURES {
        let w = World::with(reject(), 3);
        // A first turn, a joiner, and one without a session move.
        for ask in [w.hard("s"), w.hard("s"), w.plain()] {
            let first = w.grant(w.hard("s"));
            let checked = w.go(w.grant(ask));
            let failed = checked.grant().worker().id;
            let moved = granted(w.retry(checked, failure));
            assert_ne!(moved.worker().id, failed);
            for grant in [first, moved] {
                let _ = w.core.abandon(w.now, grant, homing_core::ask::Abandon::Failed);
            }
        }
        let (home, _) = w.turn(w.hard("s"));
        let moved = granted(w.retry(w.go(w.grant(w.soft("s"))), failure));
        let worker = moved.worker().id;
        let (live, outcome) = w.commit(w.go(moved));
        assert!(worker != home && w.home("s") == Some(worker));
        assert_eq!(outcome, Outcome::Rebound);
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_a_refused_port_is_down_whatever_on_failure_says() {
    let w = World::with(reject(), 3);
    let (home, _) = w.turn(w.hard("s"));
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Refused));
    assert_ne!(moved.worker().id, home);
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r07_with_nobody_else_left_the_failure_stands_and_so_does_the_binding() {
    for mode in MODES {
        for (workers, attempts) in [(1, 3), (3, 0)] {
            let settings = CoreSettings { retry_attempts: attempts, ..settings() };
            let w = World::with(settings, workers);
            let (home, _) = w.turn(w.hard("s"));
            let refusal = refused(w.retry(w.go(w.grant(w.ask("s", mode))), Failure::Broken));
            assert_eq!((refusal.cause, refusal.outcome), (Cause::WorkerFailed, Outcome::Unbound));
            assert!(!refusal.bound, "nothing of the session's doing");
            assert_eq!((w.home("s"), w.moves()), (Some(home), [0; 4]));
            w.quiesce();
        }
    }
}

#[test]
fn r07_exclusion_by_failover_never_widens_an_allow_list() {
    let w = World::with(CoreSettings { retry_attempts: 9, ..settings() }, 4);
    for session in [None, Some(("s", Mode::Hard)), Some(("s", Mode::Soft))] {
        let mut grant = w.grant(only(w.ask_for(MODEL, session), &["w1", "w2"]));
        let first = w.name_of(grant.worker().id);
        grant = granted(w.retry(w.go(grant), Failure::Broken));
        let second = w.name_of(grant.worker().id);
        let mut both = [first, second];
        both.sort();
        assert_eq!(both, ["w1", "w2"]);
        let refusal = refused(w.retry(w.go(grant), Failure::Broken));
        assert_eq!(refusal.cause, Cause::WorkerFailed, "w0 and w3 are free, and not allowed");
    }
    assert_eq!(w.stats().bindings, 0);
    w.quiesce();
}

#[test]
fn r07_exclusion_by_failover_never_widens_required_labels() {
    let mut w = World::with(CoreSettings { retry_attempts: 9, ..settings() }, 3);
    w.up_as("l", |spec| _ = spec.labels.insert("gpu".into(), "h100".into()));
    for ask in [w.plain(), w.hard("s"), w.soft("s")] {
        let grant = w.grant(labelled(ask, "gpu", "h100"));
        assert_eq!(w.name_of(grant.worker().id), "l");
        let refusal = refused(w.retry(w.go(grant), Failure::Broken));
        assert_eq!(refusal.cause, Cause::WorkerFailed);
    }
    w.quiesce();
}

#[test]
fn r07_exclusion_by_failover_never_moves_a_hard_session_that_may_not_move() {
    let w = World::with(CoreSettings { queue: queueing(4).queue, ..reject() }, 2);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let refusal = refused(w.retry(checked, Failure::Broken));
    assert_eq!(refusal.cause, Cause::TargetUnavailable);
    let others: Vec<_> = w.others(home).iter().map(|id| w.part(*id).load.active_requests).collect();
    assert_eq!((others, w.stats().waiting), (vec![0], 0), "nothing has run elsewhere");
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_a_first_turn_that_failed_where_its_session_got_bound_meanwhile_obeys_on_failure() {
    for (settings, stays) in [(settings(), false), (reject(), true)] {
        let w = World::with(CoreSettings { retry_attempts: 3, ..settings }, 3);
        let (a, b) = (w.go(w.grant(w.hard("s"))), w.go(w.grant(w.hard("s"))));
        let (live, _) = w.commit(a);
        let home = w.home("s").unwrap();
        // The other one breaks at the same worker, which is its session's home by now.
        match w.core.retry(w.now, b, Failure::Broken).0 {
            homing_core::ask::Admission::Refused(r) if stays => {
                assert_eq!((r.cause, r.bound), (Cause::TargetUnavailable, true));
            }
            homing_core::ask::Admission::Granted(grant) if !stays => {
                assert_ne!(grant.worker().id, home);
                let (moved, outcome) = w.commit(w.go(grant));
                assert_eq!((outcome, w.moves()), (Outcome::Rebound, [0, 1, 0, 0]));
                w.finish(moved);
            }
            other => panic!("{other:?}"),
        }
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_exclusion_by_failover_does_not_apply_to_an_explicit_target() {
    for settings in [settings(), reject()] {
        let w = World::with(CoreSettings { retry_attempts: 2, ..settings }, 3);
        w.turn(at(w.hard("s"), "w1", None));
        for ask in [w.plain(), w.hard("s"), w.soft("s"), w.hard("new")] {
            let mut grant = w.grant(at(ask, "w1", None));
            for failure in FAILURES {
                grant = granted(w.retry(w.go(grant), failure));
                assert_eq!(w.name_of(grant.worker().id), "w1", "tried again there");
            }
            let refusal = refused(w.retry(w.go(grant), Failure::Broken));
            assert_eq!(refusal.cause, Cause::WorkerFailed, "never moved");
        }
        assert_eq!(w.home("s"), w.core.worker_named("w1"));
        w.quiesce();
    }
}
