//! Each guard, dropped at each stage, releases what it holds: once, and all of it.

use super::Unsent;
use crate::testing::{ask, assert_quiet, fleet, now, register, shell, state, stats};
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Failure, Step};
use homing_core::fleet::{FleetChange, State};

/// One request at a time on each worker; a few may wait.
const NARROW: &str = "queue.max_requests = 4\nqueue.busy_active_requests = 1\n";

#[tokio::test]
async fn f41_a_grant_that_is_dropped_holds_nothing() {
    let shell = shell("", &["a"]);
    let granted = shell.admit(ask(&shell, "s")).await.unwrap();
    assert_eq!(stats(&shell).bookings, 1, "F12: it counts from selection on");
    drop(granted);
    assert_quiet(&shell, 1);
    assert_eq!(stats(&shell).bindings, 0);
}

#[tokio::test]
async fn r12_a_checked_one_that_is_dropped_binds_nothing_whether_or_not_it_was_sent() {
    let shell = shell("", &["a"]);
    for sent in [false, true] {
        let mut checked = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap();
        if sent {
            checked.dispatching();
        }
        assert_eq!(stats(&shell).bookings, 1);
        drop(checked);
        assert_quiet(&shell, 1 + u64::from(sent));
        assert_eq!(stats(&shell).bindings, 0);
    }
}

#[tokio::test]
async fn r13_a_live_one_holds_its_lease_and_booking_until_it_is_dropped() {
    let shell = shell("", &["a"]);
    let checked = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap();
    assert_eq!(&*checked.worker().spec.name, "a");
    assert_eq!((checked.placement().eligible, checked.placement().cached_tokens), (1, 0));
    let (live, outcome) = checked.begin();
    assert_eq!(outcome, Outcome::New);
    let load = || shell.core().workers()[0].part.load;
    assert_eq!((load().active_requests, load().prefill_tokens, load().blocks), (1, 100, 7));
    live.progress(Step::FirstToken);
    live.progress(Step::Output(60));
    assert_eq!((load().active_requests, load().prefill_tokens, load().blocks), (1, 0, 10));
    assert_eq!((stats(&shell).leases, stats(&shell).bindings), (1, 1));
    drop(live);
    assert_quiet(&shell, 1);
    assert_eq!((stats(&shell).bindings, load().active_requests), (1, 0), "the binding stays");
}

#[tokio::test]
async fn r12_a_bad_answer_releases_at_once_and_says_so() {
    let shell = shell("", &["a"]);
    for (session, outcome) in [("s", Outcome::Unbound), ("", Outcome::None)] {
        let checked = shell.admit(ask(&shell, session)).await.unwrap().check().await.unwrap();
        assert_eq!(checked.answered_badly(), outcome);
    }
    assert_quiet(&shell, 2);
    assert_eq!(stats(&shell).bindings, 0);
}

#[tokio::test]
async fn r22_a_failed_dispatch_moves_and_holds_one_place_at_a_time() {
    let shell = shell("", &["a", "b"]);
    let checked = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap();
    let first = checked.worker().spec.name.clone();
    let granted = checked.failed(Failure::Broken).await.unwrap();
    assert_eq!(stats(&shell).bookings, 1, "the old place is free");
    let checked = granted.check().await.unwrap();
    assert_ne!(checked.worker().spec.name, first);
    assert_eq!(state(&shell, &first), Some(State::Ready), "a broken connection is no departure");
    // And nobody else is left.
    let refusal = checked.failed(Failure::Unreachable).await.unwrap_err();
    assert_eq!((refusal.cause, refusal.outcome), (Cause::WorkerFailed, Outcome::Unbound));
    assert_quiet(&shell, 1);
    let text = shell.metrics().text().unwrap();
    assert!(text.contains("homing_retries_total{reason=\"broken\"} 1\n"), "{text}");
    let unreachable = "homing_retries_total{reason=\"unreachable\"} 0\n";
    assert!(text.contains(unreachable), "what was not moved was not tried again: {text}");
}

#[tokio::test]
async fn r07_a_refused_dispatch_marks_its_worker_down() {
    let shell = shell("", &["a", "b"]);
    let checked = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap();
    let first = checked.worker().spec.name.clone();
    let (live, outcome) =
        checked.failed(Failure::Refused).await.unwrap().check().await.unwrap().begin();
    assert_eq!((outcome, state(&shell, &first)), (Outcome::New, Some(State::Down)));
    drop(live);
    assert_quiet(&shell, 1);
}

#[tokio::test]
async fn f40_a_waiting_request_that_is_dropped_leaves_its_place_to_the_next() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let mut first = Box::pin(shell.admit(ask(&shell, "s")));
    let mut second = Box::pin(shell.admit(ask(&shell, "t")));
    assert!(now(&mut first).await.is_none() && now(&mut second).await.is_none());
    assert_eq!(stats(&shell).waiting, 2);
    drop(first);
    assert_eq!(stats(&shell).waiting, 1);
    drop(running);
    let granted = now(&mut second).await.expect("it was woken").unwrap();
    drop(granted);
    assert_quiet(&shell, 3);
}

#[tokio::test]
async fn f40_one_that_is_dropped_between_its_wake_up_and_its_claim_passes_it_on() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let mut first = Box::pin(shell.admit(ask(&shell, "s")));
    let mut second = Box::pin(shell.admit(ask(&shell, "t")));
    assert!(now(&mut first).await.is_none() && now(&mut second).await.is_none());
    // The first is called, and never polled again.
    drop(running);
    drop(first);
    assert!(now(&mut second).await.is_some_and(|r| r.is_ok()));
    assert_quiet(&shell, 3);
}

#[tokio::test]
async fn f41_a_task_that_panics_or_is_aborted_holds_nothing() {
    let shell = shell("", &["a"]);
    let theirs = shell.clone();
    let panicking = tokio::spawn(async move {
        let checked = theirs.admit(ask(&theirs, "s")).await.unwrap().check().await.unwrap();
        let (_live, _) = checked.begin();
        panic!("on purpose");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert_quiet(&shell, 1);
    let (theirs, (there, here)) = (shell.clone(), tokio::sync::oneshot::channel::<()>());
    let aborted = tokio::spawn(async move {
        let _checked = theirs.admit(ask(&theirs, "s")).await.unwrap().check().await.unwrap();
        there.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    here.await.unwrap();
    assert_eq!(stats(&shell).bookings, 1);
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn f41_what_a_worker_has_to_do_ends_even_if_it_has_departed_and_come_again() {
    let shell = shell("", &["a"]);
    let id = shell.core().worker_named("a").unwrap();
    let (live, _) = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap().begin();
    let granted = shell.admit(ask(&shell, "t")).await.unwrap();
    fleet(&shell, FleetChange::Remove(id));
    register(&shell, "a");
    assert_eq!(shell.core().workers()[0].part.load.active_requests, 0, "another life");
    assert_eq!((stats(&shell).leases, stats(&shell).bookings), (1, 2));
    drop((live, granted));
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn r10_a_session_that_has_moved_is_asked_for_again() {
    let shell = shell("", &["a", "b"]);
    let turn = || ask(&shell, "s");
    // A turn that is granted at home, and one that moves the session away before it is sent.
    let (live, _) = shell.admit(turn()).await.unwrap().check().await.unwrap().begin();
    drop(live);
    let granted = shell.admit(turn()).await.unwrap();
    let mover = shell.admit(turn()).await.unwrap().check().await.unwrap();
    let home = mover.worker().spec.name.clone();
    let (live, outcome) =
        mover.failed(Failure::Broken).await.unwrap().check().await.unwrap().begin();
    assert_eq!(outcome, Outcome::Rebound);
    let again = granted.check().await.unwrap_err();
    let Unsent::Again(again) = again else { panic!("{again:?}") };
    assert_eq!(stats(&shell).bookings, 1, "only the mover's");
    let checked = shell.admit(again).await.unwrap().check().await.unwrap();
    assert_ne!(checked.worker().spec.name, home);
    assert_eq!(checked.begin().1, Outcome::Hit);
    drop(live);
    assert_quiet(&shell, 3);
}
