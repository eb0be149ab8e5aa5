//! R09: a request that names its worker, and perhaps a rank.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause, Failure};
use homing_core::fleet::{FleetChange, Ranks};
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnDown, OnFailure, OnOverload};
use std::time::Duration;

/// w0 with one rank, `two` with ranks 4 and 5.
fn world() -> World {
    let mut w = World::new(1);
    w.up_with_ranks("two", 4, 2);
    w
}

#[test]
fn r09_without_a_session_it_goes_where_it_says() {
    let w = World::new(4);
    for _ in 0..5 {
        let (worker, outcome) = w.turn(at(w.plain(), "w2", None));
        assert_eq!((w.name_of(worker).as_str(), outcome), ("w2", Outcome::None));
    }
    w.quiesce();
}

#[test]
fn r09_its_own_faults_come_first_and_touch_nothing() {
    let mut w = world();
    w.turn(at(w.hard("s"), "w0", None));
    w.pass(SECOND);
    let before = w.session("s");
    for (mode, session) in [(0, false), (0, true), (1, true)] {
        let ask = if session { w.ask("s", MODES[mode]) } else { w.plain() };
        let cause = |ask| {
            let refusal = w.refused(ask);
            assert!(!refusal.bound, "no fault of the session's");
            let want = if session { Outcome::Rejected } else { Outcome::None };
            assert_eq!(refusal.outcome, want);
            refusal.cause
        };
        assert_eq!(cause(at(ask.clone(), "nobody", None)), Cause::UnknownWorker);
        assert_eq!(cause(at(ask.clone(), "two", Some(3))), Cause::BadRank);
        assert_eq!(cause(at(ask.clone(), "two", Some(6))), Cause::BadRank);
        assert_eq!(cause(at(ask.clone(), "w0", Some(1))), Cause::BadRank);
        assert_eq!(cause(only(at(ask.clone(), "two", Some(4)), &["w0"])), Cause::NotAllowed);
        assert_eq!(cause(labelled(at(ask.clone(), "w0", None), "gpu", "x")), Cause::NotAllowed);
        assert_eq!(w.session("s"), before);
    }
    w.quiesce();
}

#[test]
fn r09_a_worker_of_another_model_is_unknown_here() {
    let mut w = World::new(1);
    w.up("other", &["another"]);
    assert_eq!(w.refused(at(w.plain(), "other", None)).cause, Cause::UnknownWorker);
    w.quiesce();
}

#[test]
fn r09_a_request_with_a_constraint_that_its_target_meets_goes_there() {
    let w = world();
    let (worker, _) = w.turn(only(at(w.plain(), "w0", None), &["w0", "two"]));
    assert_eq!(w.name_of(worker), "w0");
    w.quiesce();
}

#[test]
fn r09_worker_only_on_several_ranks_needs_a_session_or_a_rank() {
    let w = world();
    assert_eq!(w.refused(at(w.plain(), "two", None)).cause, Cause::RankRequired);
    let grant = w.grant(at(w.plain(), "two", Some(5)));
    assert_eq!(grant.target().rank.unwrap().0, 5);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    // Where sessions are passive, one counts as none.
    let mut s = settings();
    s.affinity.ttl = None;
    let mut passive = World::with(s, 0);
    passive.up_with_ranks("two", 4, 2);
    let ask = at(passive.hard("s"), "two", None);
    assert_eq!(passive.refused(ask).cause, Cause::RankRequired);
    w.quiesce();
}

#[test]
fn r09_worker_only_with_a_session_the_scheduler_chooses_the_rank_and_the_binding_keeps_it() {
    let w = world();
    let two = w.core.worker_named("two").unwrap();
    // The one rank has much to do: the other one is chosen.
    let busy: Vec<_> = (0..20).map(|_| w.start(at(w.plain(), "two", Some(4))).2).collect();
    let (_, outcome) = w.turn(at(w.hard("s"), "two", None));
    assert_eq!((outcome, w.session("s").unwrap().target), (Outcome::New, target(two, 5)));
    busy.into_iter().for_each(|live| w.finish(live));
    let (_, _, busy) = w.start(at(w.plain(), "two", Some(5)));
    for mode in MODES {
        let grant = w.grant(at(w.ask("s", mode), "two", None));
        assert_eq!(grant.target(), target(two, 5), "the session's own, though it is the busier");
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!(outcome, Outcome::Hit);
        w.finish(live);
    }
    w.finish(busy);
    w.quiesce();
}

#[test]
fn r09_a_new_session_binds_to_its_explicit_target_on_success_only() {
    for mode in MODES {
        let w = World::new(3);
        let checked = w.go(w.grant(at(w.ask("s", mode), "w1", Some(0))));
        let _ = w.core.abandon(w.now, checked, Abandon::Failed);
        assert_eq!(w.home("s"), None);
        let (worker, outcome) = w.turn(at(w.ask("s", mode), "w1", Some(0)));
        assert_eq!((outcome, w.session("s").unwrap().target), (Outcome::New, target(worker, 0)));
        assert_eq!(w.turn(w.hard("s")), (worker, Outcome::Hit));
        w.quiesce();
    }
}

#[test]
fn r09_hard_must_agree_with_its_binding() {
    let mut w = world();
    let two = w.core.worker_named("two").unwrap();
    w.turn(at(w.hard("s"), "two", Some(5)));
    w.pass(SECOND);
    let before = w.session("s");
    for (name, rank) in [("w0", None), ("w0", Some(0)), ("two", Some(4))] {
        let refusal = w.refused(at(w.hard("s"), name, rank));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::Conflict, Outcome::Rejected));
        assert!(refusal.bound);
        assert_eq!((w.session("s"), w.stats().bookings), (before, 0), "nothing ran");
    }
    assert_eq!(w.turn(at(w.hard("s"), "two", Some(5))), (two, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r09_soft_goes_to_its_explicit_target_and_rebinds() {
    let w = world();
    w.turn(at(w.hard("s"), "two", Some(5)));
    for (moves, (name, rank)) in [("two", Some(4)), ("w0", None)].into_iter().enumerate() {
        let (worker, outcome) = w.turn(at(w.soft("s"), name, rank));
        assert_eq!(outcome, Outcome::Rebound);
        assert_eq!(w.session("s").unwrap().target, target(worker, rank.unwrap_or(0)));
        assert_eq!((w.name_of(worker).as_str(), w.moves()), (name, [0, 0, moves as u64 + 1, 0]));
    }
    w.quiesce();
}

#[test]
fn r09_explicit_turns_refresh_the_idle_time_like_any_other() {
    let mut w = World::new(2);
    w.turn(at(w.hard("s"), "w1", None));
    for _ in 0..4 {
        w.pass(TTL - SECOND);
        w.tick();
        assert_eq!(w.turn(at(w.hard("s"), "w1", None)).1, Outcome::Hit);
        assert_eq!(w.session("s").unwrap().idle, Duration::ZERO);
    }
    // And hold it while they run.
    let (_, _, live) = w.start(at(w.hard("s"), "w1", None));
    w.pass(TTL * 2);
    w.tick();
    assert_eq!(w.session("s").unwrap().leases, 1);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r09_it_outranks_the_overload_verdict() {
    for on_overload in
        [OnOverload::Spill, OnOverload::Reject, OnOverload::Wait, OnOverload::Dispatch]
    {
        let mut s = settings();
        s.affinity.on_overload = on_overload;
        let w = World::with(s, 2);
        let (home, _) = w.turn(at(w.hard("s"), "w1", None));
        w.overload(home, Some(SECOND * 10));
        for (ask, outcome) in [
            (w.plain(), Outcome::None),
            (w.hard("s"), Outcome::Hit),
            (w.soft("s"), Outcome::Hit),
            (w.hard("new"), Outcome::New),
        ] {
            assert_eq!(w.turn(at(ask, "w1", None)), (home, outcome));
        }
        w.quiesce();
    }
}

#[test]
fn r09_it_is_tried_again_there_and_never_moved() {
    let mut s = CoreSettings { retry_attempts: 1, ..settings() };
    s.affinity.on_failure = OnFailure::Reject;
    let w = World::with(s, 3);
    w.turn(at(w.hard("s"), "w1", None));
    for ask in [w.plain(), w.hard("s"), w.soft("s"), w.hard("new")] {
        let grant = granted(w.retry(w.go(w.grant(at(ask, "w1", None))), Failure::Broken));
        assert_eq!(w.name_of(grant.worker().id), "w1");
        let (live, _) = w.commit(w.go(grant));
        w.finish(live);
    }
    assert_eq!(w.moves(), [0; 4]);
    w.quiesce();
}

#[test]
fn r09_down_or_not_sure_of_it_is_unavailable() {
    for on_down in [OnDown::Rebind, OnDown::Reject] {
        for mode in MODES {
            let mut s = settings();
            s.affinity.on_down = on_down;
            let mut w = World::with(s, 2);
            let (home, _) = w.turn(at(w.hard("s"), "w1", None));
            w.fleet(FleetChange::Unsure(home));
            for ask in [w.plain(), w.hard("new"), w.ask("s", mode)] {
                // Of these three only a Hard session's live home is a reason of its own.
                let bound = ask.session == w.hard("s").session;
                let refusal = w.refused(at(ask, "w1", None));
                assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, bound));
            }
            assert_eq!(w.home("s"), Some(home));
            w.down(home);
            for ask in [w.plain(), w.hard("new"), w.ask("s", mode)] {
                let refusal = w.refused(at(ask, "w1", None));
                assert_eq!(refusal.cause, Cause::TargetUnavailable);
            }
            assert_eq!(w.home("new"), None);
            assert_eq!(w.home("s"), Some(home), "a refusal changes no binding");
            w.quiesce();
        }
    }
}

#[test]
fn r09_registered_and_not_known_to_serve_anything_is_unavailable() {
    let mut w = World::new(1);
    w.register("w9");
    assert_eq!(w.refused(at(w.plain(), "w9", None)).cause, Cause::TargetUnavailable);
    w.quiesce();
}

#[test]
fn r09_a_refused_port_makes_it_unavailable_at_once() {
    let w = World::with(CoreSettings { retry_attempts: 5, ..settings() }, 2);
    let checked = w.go(w.grant(at(w.hard("s"), "w1", None)));
    let refusal = refused(w.retry(checked, Failure::Refused));
    assert_eq!(refusal.cause, Cause::TargetUnavailable);
    assert_eq!((w.home("s"), w.stats().bookings), (None, 0));
    w.quiesce();
}

#[test]
fn r09_a_session_whose_home_has_departed_agrees_with_any() {
    for mode in MODES {
        let mut w = World::new(3);
        let (home, _) = w.turn(at(w.hard("s"), "w1", None));
        w.remove(home);
        let (worker, outcome) = w.turn(at(w.ask("s", mode), "w2", None));
        assert_eq!((w.name_of(worker).as_str(), outcome), ("w2", Outcome::Rebound));
        assert_eq!(w.moves(), [1, 0, 0, 0]);
        w.quiesce();
    }
}

#[test]
fn r09_a_first_turn_that_names_another_worker_than_the_tentative_one_goes_there() {
    let w = World::new(3);
    let first = w.grant(at(w.hard("s"), "w0", None));
    let second = w.grant(at(w.hard("s"), "w2", None));
    assert_eq!(w.name_of(second.worker().id), "w2");
    // The first commit wins; the other one, which must be elsewhere, is asked once more and in conflict.
    let (live, outcome) = w.commit(w.go(first));
    assert_eq!(outcome, Outcome::New);
    let refusal = w.refused(w.again(second));
    assert_eq!((refusal.cause, refusal.bound), (Cause::Conflict, true));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r09_it_is_served_without_room_and_without_a_session_s_share_too() {
    let mut s = settings();
    s.affinity.max_sessions = 1;
    let w = World::with(s, 3);
    w.turn(w.hard("other"));
    let (worker, outcome) = w.turn(at(w.hard("s"), "w1", None));
    assert_eq!((w.name_of(worker).as_str(), outcome), ("w1", Outcome::UnboundFull));
    w.quiesce();
}

#[test]
fn r09_a_draining_target_is_for_the_sessions_that_live_there() {
    let mut w = World::new(2);
    let (home, _) = w.turn(at(w.hard("s"), "w1", None));
    w.turn(at(w.hard("other"), "w0", None));
    w.drain(home, None);
    for mode in MODES {
        assert_eq!(w.turn(at(w.ask("s", mode), "w1", None)), (home, Outcome::Hit));
    }
    for ask in [w.plain(), w.hard("new"), w.soft("other")] {
        assert_eq!(w.refused(at(ask, "w1", None)).cause, Cause::TargetUnavailable);
    }
    w.quiesce();
}

#[test]
fn r09_its_own_faults_come_first_though_it_is_starting() {
    let mut w = World::new(1);
    let id = w.register_as("w9", |spec| spec.ranks = Ranks::new(0, 2));
    let known: [fn(&mut World, WorkerId); 2] = [|_, _| (), |w, id| w.serves(id, &[MODEL])];
    for known in known {
        known(&mut w, id);
        for ask in [w.plain(), w.hard("s"), w.soft("s")] {
            let cause = |ask| w.refused(ask).cause;
            let one = at(ask.clone(), "w9", Some(0));
            assert_eq!(cause(only(one.clone(), &["w0"])), Cause::NotAllowed);
            assert_eq!(cause(labelled(one.clone(), "gpu", "x")), Cause::NotAllowed);
            assert_eq!(cause(at(ask.clone(), "w9", Some(2))), Cause::BadRank);
            assert_eq!(cause(only(one, &["w9"])), Cause::TargetUnavailable);
            let whole = cause(at(ask.clone(), "w9", None));
            let wants_rank = ask.session.is_none();
            let want = if wants_rank { Cause::RankRequired } else { Cause::TargetUnavailable };
            assert_eq!(whole, want);
        }
    }
    w.quiesce();
}
