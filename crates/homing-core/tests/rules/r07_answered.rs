//! R07: a worker's own 429 or 503. It counts as overloaded from then on, and the request that met it is
//! tried once elsewhere, or has its answer.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Cause, Failure, Grant};
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnOverload};
use std::time::Duration;

const BUSY: Failure = Failure::Overloaded(None);

fn by(on_overload: OnOverload, retry_attempts: u32) -> CoreSettings {
    let mut settings = CoreSettings { retry_attempts, ..settings() };
    settings.affinity.on_overload = on_overload;
    settings
}

fn is_shed(w: &World, id: WorkerId) -> bool {
    w.tick();
    w.part(id).shed
}

fn answered(w: &World, grant: Grant) -> homing_core::ask::Refusal {
    let refusal = refused(w.retry(w.go(grant), BUSY));
    assert_eq!(refusal.cause, Cause::Answered);
    refusal
}

#[test]
fn r07_it_counts_as_overloaded_for_as_long_as_it_says_within_bounds() {
    let says = [(None, 1), (Some(0), 1), (Some(1), 1), (Some(10), 10), (Some(86_400), 60)];
    for (says, lasts) in says {
        let mut w = World::new(2);
        let retry_after = says.map(Duration::from_secs);
        let checked = w.go(w.grant(w.plain()));
        let id = checked.grant().worker().id;
        let moved = granted(w.retry(checked, Failure::Overloaded(retry_after)));
        assert_ne!(moved.worker().id, id);
        w.pass(SECOND * lasts - Duration::from_micros(1));
        assert!(is_shed(&w, id), "{says:?}");
        w.pass(Duration::from_micros(1));
        assert!(!is_shed(&w, id), "{says:?}");
        let _ = w.core.abandon(w.now, moved, Abandon::NotDispatched);
        w.quiesce();
    }
}

#[test]
fn r07_a_later_word_never_shortens_an_earlier_one() {
    let mut w = World::new(2);
    let id = w.core.worker_named("w0").unwrap();
    w.overload(id, Some(SECOND * 10));
    w.overload(id, None);
    w.pass(SECOND * 9);
    assert!(is_shed(&w, id));
    w.pass(SECOND);
    assert!(!is_shed(&w, id));
    w.quiesce();
}

#[test]
fn r07_a_new_life_is_not_overloaded_by_the_old_one_s_word() {
    let mut w = World::new(1);
    let id = w.core.worker_named("w0").unwrap();
    w.overload(id, Some(SECOND * 10));
    let new = w.up("w0", &[MODEL]);
    assert!(!is_shed(&w, new));
    assert_eq!(w.turn(w.plain()).0, new);
    w.quiesce();
}

#[test]
fn r07_unbound_and_soft_turns_are_tried_once_elsewhere_and_the_second_answer_stands() {
    // However many attempts there are.
    for on_overload in
        [OnOverload::Spill, OnOverload::Reject, OnOverload::Wait, OnOverload::Dispatch]
    {
        let w = World::with(by(on_overload, 5), 4);
        w.turn(w.soft("bound"));
        for ask in [w.plain(), w.hard("new"), w.soft("new"), w.soft("bound")] {
            let has_session = ask.session.is_some();
            let checked = w.go(w.grant(ask.clone()));
            let first = checked.grant().worker().id;
            let grant = granted(w.retry(checked, BUSY));
            assert_ne!(grant.worker().id, first);
            let (second, requests) = (grant.worker().id, w.requests());
            let refusal = answered(&w, grant);
            let unbound = if has_session { Outcome::Unbound } else { Outcome::None };
            assert_eq!((refusal.outcome, refusal.bound), (unbound, false));
            assert_eq!((refusal.retry_after, w.requests()), (None, requests + 1));
            assert!(w.part(first).shed && w.part(second).shed);
            assert_eq!(w.stats().bindings, 1, "nothing is bound by it, and nothing dropped");
            assert_eq!(w.stats().bookings, 0);
            w.others(first).into_iter().chain([first]).for_each(|id| assert_idle(&w, id));
            forget(&w);
        }
        assert_eq!(w.moves(), [0; 4]);
        w.quiesce();
    }
}

fn assert_idle(w: &World, id: WorkerId) {
    assert_eq!(w.part(id).load.active_requests, 0);
}

/// The overloaded ones are themselves again: the world's clock stands, so a tick of another one.
fn forget(w: &World) {
    w.core.handle_timeout(w.now + SECOND);
}

#[test]
fn r07_one_that_is_answered_elsewhere_runs_there() {
    for (mode, bound) in [(0, false), (0, true), (1, false), (1, true)] {
        let mode = MODES[mode];
        let w = World::with(by(OnOverload::Spill, 1), 3);
        if bound {
            w.turn(w.hard("s"));
        }
        let home = w.home("s");
        let moved = granted(w.retry(w.go(w.grant(w.ask("s", mode))), BUSY));
        let worker = moved.worker().id;
        assert_eq!((w.stats().bookings, w.home("s")), (1, home));
        let (live, outcome) = w.commit(w.go(moved));
        use homing_core::settings::Mode::{Hard, Soft};
        let want = match (mode, bound) {
            (_, false) => (Outcome::New, Some(worker), [0; 4]),
            (Hard, true) => (Outcome::Spilled, home, [0; 4]),
            (Soft, true) => (Outcome::Rebound, Some(worker), [0, 0, 1, 0]),
        };
        assert_eq!((outcome, w.home("s"), w.moves()), want);
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_without_attempts_the_first_answer_stands() {
    let w = World::with(by(OnOverload::Spill, 0), 3);
    w.turn(w.hard("bound"));
    for ask in [w.plain(), w.hard("new"), w.soft("bound"), w.hard("bound")] {
        answered(&w, w.grant(ask));
        forget(&w);
    }
    w.quiesce();
}

#[test]
fn r07_a_hard_session_s_own_worker_has_the_last_word_under_reject_and_dispatch() {
    for on_overload in [OnOverload::Reject, OnOverload::Dispatch] {
        let w = World::with(by(on_overload, 5), 3);
        let (home, _) = w.turn(w.hard("s"));
        let before = w.session("s").map(|v| (v.target, v.version));
        let refusal = answered(&w, w.grant(w.hard("s")));
        assert_eq!((refusal.outcome, refusal.bound), (Outcome::Unbound, false));
        assert_eq!(w.session("s").map(|v| (v.target, v.version)), before);
        assert!(w.part(home).shed && w.stats().bookings == 0);
        w.quiesce();
    }
}

#[test]
fn r07_under_wait_a_hard_turn_queues_for_home_until_it_is_itself_again() {
    for retry_attempts in [0, 1] {
        let mut w = World::with(by(OnOverload::Wait, retry_attempts), 3);
        let (home, _) = w.turn(w.hard("s"));
        let checked = w.go(w.grant(w.hard("s")));
        let Admission::Waiting(ticket) = w.retry(checked, Failure::Overloaded(Some(SECOND * 5)))
        else {
            panic!("it waits for its home")
        };
        assert_eq!((w.stats().bookings, w.stats().leases), (0, 0));
        w.pass(SECOND * 5);
        w.tick();
        let grant = w.claimed(ticket);
        assert_eq!(grant.worker().id, home);
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!(outcome, Outcome::Hit);
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_an_explicit_target_s_answer_stands_at_once() {
    for on_overload in
        [OnOverload::Spill, OnOverload::Reject, OnOverload::Wait, OnOverload::Dispatch]
    {
        let w = World::with(by(on_overload, 5), 3);
        w.turn(at(w.hard("bound"), "w1", None));
        for ask in [w.plain(), w.hard("new"), w.soft("bound"), w.hard("bound")] {
            answered(&w, w.grant(at(ask, "w1", None)));
        }
        assert_eq!(w.stats().waiting, 0);
        w.quiesce();
    }
}

#[test]
fn r07_who_spilled_and_met_a_second_one_leaves_the_binding_and_the_count_alone() {
    let w = World::with(by(OnOverload::Spill, 5), 4);
    let (home, _) = w.turn(w.hard("s"));
    for _ in 0..4 {
        let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), BUSY));
        answered(&w, moved);
        forget(&w);
    }
    w.overload(home, None);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled, "the first that was");
    w.quiesce();
}

#[test]
fn r07_a_break_and_an_answer_share_the_attempts() {
    let w = World::with(by(OnOverload::Spill, 1), 4);
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
    answered(&w, moved);
    let w = World::with(by(OnOverload::Spill, 1), 4);
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), BUSY));
    assert_eq!(refused(w.retry(w.go(moved), Failure::Broken)).cause, Cause::WorkerFailed);
    w.quiesce();
}

#[test]
fn r07_who_has_waited_since_is_told_what_it_met_then_and_not_the_old_answer() {
    let mut w = World::with(CoreSettings { queue: queueing(4).queue, ..settings() }, 2);
    let mut ask = only(w.hard("s"), &["w0"]);
    ask.deadline = Some(w.now + SECOND * 5);
    let checked = w.go(w.grant(ask));
    let Admission::Waiting(ticket) = w.retry(checked, Failure::Overloaded(Some(SECOND * 30)))
    else {
        panic!("the only one that it allows is overloaded")
    };
    w.pass(SECOND * 5);
    w.tick();
    assert_eq!(w.woken(), Some(ticket.id()));
    let refusal = refused(w.claim(ticket));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::Timeout, Outcome::Rejected));
    w.quiesce();
}

#[test]
fn r07_waiting_for_home_uses_up_no_attempt() {
    for waits in 1..4 {
        let mut w = World::with(by(OnOverload::Wait, 1), 3);
        let (home, _) = w.turn(w.hard("s"));
        let mut grant = w.grant(w.hard("s"));
        for _ in 0..waits {
            let Admission::Waiting(ticket) = w.retry(w.go(grant), BUSY) else {
                panic!("it waits for its home")
            };
            w.pass(SECOND);
            w.tick();
            grant = w.claimed(ticket);
            assert_eq!(grant.worker().id, home);
        }
        // The one attempt that it has is for another worker.
        let moved = granted(w.retry(w.go(grant), Failure::Unreachable));
        assert_ne!(moved.worker().id, home);
        let refusal = refused(w.retry(w.go(moved), Failure::Unreachable));
        assert_eq!((refusal.cause, w.home("s")), (Cause::WorkerFailed, Some(home)));
        w.quiesce();
    }
}

#[test]
fn r07_who_waited_for_home_has_not_been_sent_elsewhere() {
    let mut w = World::with(by(OnOverload::Wait, 1), 3);
    let (home, _) = w.turn(w.hard("s"));
    let Admission::Waiting(ticket) = w.retry(w.go(w.grant(w.hard("s"))), BUSY) else {
        panic!("it waits for its home")
    };
    w.remove(home);
    // Unbound now: one answer of another worker's is tried once elsewhere.
    let first = w.claimed(ticket);
    let id = first.worker().id;
    let second = granted(w.retry(w.go(first), BUSY));
    assert!(![home, id].contains(&second.worker().id));
    answered(&w, second);
    w.quiesce();
}
