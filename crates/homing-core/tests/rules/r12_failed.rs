//! R12: a failed dispatch binds nothing, and keeps what is bound.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause, Failure, Held};
use homing_core::settings::CoreSettings;
use std::time::Duration;

const WHY: [Abandon; 3] = [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone];

#[test]
fn r12_a_failed_first_turn_binds_nothing() {
    for why in WHY {
        for look in [false, true] {
            let w = World::new(2);
            let grant = w.grant(w.hard("s"));
            let held: Held = if look { w.go(grant).into() } else { grant.into() };
            assert_eq!(w.core.abandon(w.now, held, why), Outcome::Unbound);
            assert_eq!((w.home("s"), w.stats().bindings, w.stats().bookings), (None, 0, 0));
            assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
            w.quiesce();
        }
    }
}

#[test]
fn r12_a_failed_later_turn_keeps_the_binding() {
    for why in WHY {
        let w = World::new(2);
        let (home, _) = w.turn(w.hard("s"));
        let before = w.session("s").unwrap();
        let checked = w.go(w.grant(w.hard("s")));
        assert_eq!(w.core.abandon(w.now, checked, why), Outcome::Unbound);
        assert_eq!(w.session("s"), Some(before), "version too");
        assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
        w.quiesce();
    }
}

#[test]
fn r12_idle_time_restarts_with_a_failed_dispatch_and_not_before_one() {
    let half = TTL / 2;
    for why in WHY {
        let mut w = World::new(2);
        w.turn(w.hard("s"));
        w.pass(half);
        let checked = w.go(w.grant(w.hard("s")));
        let _ = w.core.abandon(w.now, checked, why);
        let idle = if why == Abandon::NotDispatched { half } else { Duration::ZERO };
        assert_eq!(w.session("s").unwrap().idle, idle, "{why:?}");
        w.pass(half);
        assert_eq!(w.home("s").is_some(), why != Abandon::NotDispatched, "{why:?}");
        w.quiesce();
    }
}

#[test]
fn r12_idle_time_restarts_however_the_retries_end() {
    for (attempts, workers) in [(0, 2), (1, 1)] {
        for failure in [Failure::Broken, Failure::Unreachable] {
            let settings = CoreSettings { retry_attempts: attempts, ..settings() };
            let mut w = World::with(settings, workers);
            let (home, _) = w.turn(w.hard("s"));
            w.pass(TTL / 2);
            let checked = w.go(w.grant(w.hard("s")));
            let refusal = refused(w.retry(checked, failure));
            assert_eq!((refusal.cause, refusal.outcome), (Cause::WorkerFailed, Outcome::Unbound));
            let session = w.session("s").unwrap();
            assert_eq!((session.target.worker, session.idle), (home, Duration::ZERO), "{workers}");
            w.quiesce();
        }
    }
}

#[test]
fn r12_attempts_are_bounded_and_each_tries_another_worker() {
    let w = World::with(CoreSettings { retry_attempts: 2, ..settings() }, 5);
    let mut grant = w.grant(w.hard("s"));
    let mut tried = vec![grant.worker().id];
    for _ in 0..2 {
        grant = granted(w.retry(w.go(grant), Failure::Unreachable));
        assert!(!tried.contains(&grant.worker().id), "not where it failed");
        tried.push(grant.worker().id);
    }
    let refusal = refused(w.retry(w.go(grant), Failure::Unreachable));
    assert_eq!(refusal.cause, Cause::WorkerFailed);
    assert_eq!(w.outcomes(Outcome::Unbound), 1, "one request, one outcome");
    w.quiesce();
}

#[test]
fn r12_a_port_that_refused_everywhere_is_as_if_nobody_had_been_there() {
    let w = World::new(1);
    let checked = w.go(w.grant(w.hard("s")));
    assert_eq!(refused(w.retry(checked, Failure::Refused)).cause, Cause::NoWorker);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::NoWorker, "it is Down at once");
    w.quiesce();
}

#[test]
fn r12_nothing_is_bound_before_the_answer_has_begun_and_a_dropped_grant_leaves_nothing() {
    for policy in POLICIES {
        for mode in MODES {
            let w = World::with(CoreSettings { policy, ..settings() }, 3);
            let fresh = (w.core.sessions(w.now, 9), w.stats().bindings, w.stats().leases);
            let state = || (w.core.sessions(w.now, 9), w.stats().bindings, w.stats().leases);
            let grant = w.grant(w.ask("s", mode));
            assert_eq!(state(), fresh);
            let checked = w.go(grant);
            assert_eq!(state(), fresh);
            let moved = granted(w.retry(checked, Failure::Broken));
            assert_eq!(state(), fresh);
            let _ = w.core.abandon(w.now, moved, Abandon::ClientGone);
            assert_eq!((state(), w.stats().bookings), (fresh, 0));
            assert_eq!(w.core.poll_timeout(), None, "not even something to expire");
            w.quiesce();
        }
    }
}
