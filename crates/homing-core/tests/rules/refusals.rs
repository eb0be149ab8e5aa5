//! The contract's last sentence: where several refusals fit, the request's own fault comes first, then
//! its target's, then overload, then the want of workers.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Failure};
use homing_core::fleet::FleetChange;
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnDown, OnFailure, OnOverload};

/// Everything that can be refused is: the strict set of R07.
fn strict() -> CoreSettings {
    let mut settings = CoreSettings { retry_attempts: 3, ..settings() };
    settings.affinity.on_overload = OnOverload::Reject;
    settings.affinity.on_failure = OnFailure::Reject;
    settings.affinity.on_down = OnDown::Reject;
    settings
}

type Trouble = fn(&mut World, WorkerId);
const SHED: Trouble = |w, id| w.overload(id, Some(SECOND * 30));
const DOWN: Trouble = |w, id| w.down(id);
const UNSURE: Trouble = |w, id| _ = w.fleet(FleetChange::Unsure(id));
const DRAINED: Trouble = |w, id| w.drain(id, None);

#[test]
fn refusals_the_request_s_own_fault_comes_first() {
    for trouble in [SHED, DOWN, UNSURE] {
        let mut w = World::with(strict(), 2);
        let (home, _) = w.turn(w.hard("s"));
        let (name, other) = (w.name_of(home), w.others(home)[0]);
        trouble(&mut w, home);
        trouble(&mut w, other);
        let excluded = [w.name_of(other)];
        let excluded = [excluded[0].as_str()];
        for (ask, cause) in [
            (at(w.hard("s"), "nobody", None), Cause::UnknownWorker),
            (at(w.hard("s"), &name, Some(9)), Cause::BadRank),
            (only(at(w.hard("s"), &name, None), &excluded), Cause::NotAllowed),
            (only(w.hard("s"), &excluded), Cause::Conflict),
            (at(w.hard("s"), excluded[0], None), Cause::Conflict),
        ] {
            assert_eq!(w.refused(ask).cause, cause);
        }
        assert_eq!(w.home("s"), Some(home));
        w.quiesce();
    }
}

#[test]
fn refusals_then_its_target_s() {
    for (at_home, cause) in [
        (SHED, Cause::TargetOverloaded),
        (DOWN, Cause::TargetUnavailable),
        (UNSURE, Cause::TargetUnavailable),
    ] {
        for elsewhere in [SHED, DOWN, UNSURE, DRAINED] {
            let mut w = World::with(strict(), 2);
            let (home, _) = w.turn(w.hard("s"));
            let other = w.others(home)[0];
            elsewhere(&mut w, other);
            at_home(&mut w, home);
            let refusal = w.refused(w.hard("s"));
            assert_eq!((refusal.cause, refusal.bound), (cause, true));
            w.quiesce();
        }
    }
}

#[test]
fn refusals_then_overload_then_the_want_of_workers() {
    for (other, cause) in [
        (SHED, Cause::Overloaded),
        (DOWN, Cause::Overloaded),
        (UNSURE, Cause::Overloaded),
        (DRAINED, Cause::Overloaded),
    ] {
        let mut w = World::with(strict(), 2);
        let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
        SHED(&mut w, ids[0]);
        other(&mut w, ids[1]);
        for ask in [w.plain(), w.hard("new"), w.soft("new")] {
            let refusal = w.refused(ask);
            assert_eq!((refusal.cause, refusal.bound), (cause, false));
            assert!(refusal.retry_after.is_some());
        }
        // Overloaded is who could serve it otherwise.
        DRAINED(&mut w, ids[0]);
        DRAINED(&mut w, ids[1]);
        let refusal = w.refused(w.plain());
        assert_eq!((refusal.cause, refusal.retry_after), (Cause::NoWorker, None));
        w.quiesce();
    }
}

#[test]
fn refusals_the_strict_set_never_lets_a_hard_session_run_anywhere_but_at_home() {
    type Step = fn(&mut World, WorkerId);
    let steps: [Step; 8] = [
        SHED,
        DOWN,
        UNSURE,
        DRAINED,
        |w, _| {
            let _ = w.core.retry(w.now, w.go(w.grant(w.hard("s"))), Failure::Broken);
        },
        |w, _| {
            let _ = w.core.retry(w.now, w.go(w.grant(w.hard("s"))), Failure::Unreachable);
        },
        |w, _| {
            let _ = w.core.retry(w.now, w.go(w.grant(w.hard("s"))), Failure::Overloaded(None));
        },
        |w, _| {
            let _ = w.core.retry(w.now, w.go(w.grant(w.hard("s"))), Failure::Refused);
        },
    ];
    for (i, step) in steps.into_iter().enumerate() {
        let mut w = World::with(strict(), 4);
        let (home, _) = w.turn(w.hard("s"));
        step(&mut w, home);
        for id in w.others(home) {
            assert_eq!(w.part(id).load.active_requests, 0, "step {i}");
        }
        assert_eq!(w.stats().bookings, 0);
        for ask in [w.hard("s"), only(w.hard("s"), &["w3", "w2", "w1", "w0"])] {
            match w.admit(ask) {
                homing_core::ask::Admission::Granted(grant) => {
                    assert_eq!(grant.worker().id, home, "step {i}");
                    let (live, outcome) = w.commit(w.go(grant));
                    assert_eq!(outcome, Outcome::Hit);
                    w.finish(live);
                }
                homing_core::ask::Admission::Refused(refusal) => {
                    assert!(refusal.bound, "step {i}: so `reject_as` applies");
                }
                homing_core::ask::Admission::Waiting(_) => panic!("step {i}"),
            }
        }
        assert_eq!((w.home("s"), w.moves()), (Some(home), [0; 4]), "step {i}");
        w.quiesce();
    }
}

#[test]
fn refusals_a_departed_worker_s_word_is_no_reason_to_come_again_sooner() {
    let mut w = World::with(strict(), 2);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    w.overload(ids[0], Some(SECOND * 2));
    w.overload(ids[1], Some(SECOND * 30));
    assert_eq!(w.refused(w.plain()).retry_after, Some(SECOND * 2));
    w.remove(ids[0]);
    assert_eq!(w.refused(w.plain()).retry_after, Some(SECOND * 30));
    w.quiesce();
}
