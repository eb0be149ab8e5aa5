//! Wake-ups that come early, late, twice or for nobody; and deadlines.

use super::*;
use crate::testing::{ask, assert_quiet, eventually, fleet, now, register, shell, stats};
use homing_core::ask::Cause;
use homing_core::fleet::FleetChange;

const NARROW: &str = "queue.max_requests = 64\nqueue.busy_active_requests = 1\n";

/// A ticket whose owner has not lain down yet.
fn ticket(shell: &Shell) -> Admission {
    let admission = shell.core().admit(shell.now(), ask(shell, ""));
    assert!(matches!(admission, Admission::Waiting(_)), "{admission:?}");
    admission
}

#[tokio::test]
async fn a_call_that_comes_before_its_sleeper_lies_down_is_not_lost() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let admission = ticket(&shell);
    drop(running);
    assert_eq!(shell.sleepers.lock().len(), 1, "called");
    let Settled::Later(mut settled) = shell.settle(admission) else { panic!("it waits") };
    assert!(now(&mut settled).await.is_some_and(|r| r.is_ok()), "it never slept");
    assert!(shell.sleepers.lock().is_empty());
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn a_call_that_its_ticket_did_not_wait_for_stays_nowhere() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.core().admit(shell.now(), ask(&shell, ""));
    let Admission::Granted(running) = running else { panic!("{running:?}") };
    let mut waiting = Box::pin(shell.admit(ask(&shell, "")));
    assert!(now(&mut waiting).await.is_none());
    // The place becomes free, and before anybody has pumped that, the client goes away.
    shell.core().abandon(shell.now(), running, homing_core::ask::Abandon::NotDispatched);
    drop(waiting);
    assert!(shell.sleepers.lock().is_empty(), "{:?}", shell.sleepers.lock());
    assert_quiet(&shell, 2);
    // The same where the call was already made.
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let Admission::Waiting(ticket) = ticket(&shell) else { unreachable!() };
    drop(running);
    drop(Waiting::new(shell.clone(), ticket));
    assert!(shell.sleepers.lock().is_empty());
    assert_quiet(&shell, 4);
}

#[tokio::test]
async fn who_tried_in_vain_sleeps_on_and_is_called_again() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let mut waiting = Box::pin(shell.admit(ask(&shell, "")));
    assert!(now(&mut waiting).await.is_none());
    // A second worker, gone again before anybody has looked.
    let id = register(&shell, "b");
    fleet(&shell, FleetChange::Remove(id));
    assert!(now(&mut waiting).await.is_none());
    assert_eq!(stats(&shell).waiting, 1);
    drop(running);
    assert!(now(&mut waiting).await.is_some_and(|r| r.is_ok()));
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn a_selection_is_measured_once_and_before_any_waiting() {
    let shell = shell(NARROW, &["a"]);
    let measured = |wanted: u32| {
        let line = format!("homing_selection_duration_seconds_count {wanted}");
        let text = shell.metrics().text().unwrap();
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    };
    measured(0);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    measured(1);
    let mut waiting = Box::pin(shell.admit(ask(&shell, "")));
    assert!(now(&mut waiting).await.is_none());
    measured(2);
    drop(running);
    assert!(now(&mut waiting).await.is_some_and(|r| r.is_ok()));
    measured(2);
}

#[tokio::test]
async fn r08_a_new_worker_calls_who_waits() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let mut waiting = Box::pin(shell.admit(ask(&shell, "")));
    assert!(now(&mut waiting).await.is_none());
    register(&shell, "b");
    let granted = now(&mut waiting).await.unwrap().unwrap();
    assert_eq!(&*granted.check().await.unwrap().worker().spec.name, "b");
    drop(running);
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn f43_who_waits_is_refused_when_nobody_is_left() {
    let shell = shell(NARROW, &["a"]);
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let mut waiting = Box::pin(shell.admit(ask(&shell, "")));
    assert!(now(&mut waiting).await.is_none());
    fleet(&shell, FleetChange::Remove(shell.core().worker_named("a").unwrap()));
    let refusal = now(&mut waiting).await.unwrap().unwrap_err();
    assert_eq!(refusal.cause, Cause::NoWorker);
    drop(running);
    assert_quiet(&shell, 2);
}

#[tokio::test]
async fn r08_a_deadline_in_the_queue_is_kept_by_the_clock() {
    let shell = shell(&format!("{NARROW}queue.max_wait = '1ms'\n"), &["a"]);
    let clock = tokio::spawn(shell.clone().keep_time());
    let running = shell.admit(ask(&shell, "")).await.unwrap();
    let refusal = shell.admit(ask(&shell, "s")).await.unwrap_err();
    assert_eq!(refusal.cause, Cause::Timeout);
    assert_eq!(stats(&shell).bindings, 0);
    drop(running);
    assert_quiet(&shell, 2);
    clock.abort();
}

#[tokio::test]
async fn r14_the_clock_ends_idle_sessions() {
    let shell = shell("affinity.ttl = '1s'\n", &["a"]);
    let (live, _) = shell.admit(ask(&shell, "s")).await.unwrap().check().await.unwrap().begin();
    let clock = tokio::spawn(shell.clone().keep_time());
    drop(live);
    assert_eq!(stats(&shell).bindings, 1);
    eventually("it has idled out", || stats(&shell).bindings == 0).await;
    assert_eq!(stats(&shell).table.expired, 1);
    clock.abort();
}

#[tokio::test]
async fn nobody_is_lost_among_many_that_come_run_and_leave_on_several_threads() {
    const EACH: usize = 300;
    let shell = shell(NARROW, &["a", "b"]);
    let clock = tokio::spawn(shell.clone().keep_time());
    let threads: Vec<_> = (0..4usize)
        .map(|thread| {
            let shell = shell.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async {
                    let mut tasks = Vec::new();
                    for i in 0..EACH {
                        let shell = shell.clone();
                        tasks.push(tokio::spawn(async move {
                            let session = format!("s{}", (thread + i) % 5);
                            let admitted = shell.admit(ask(&shell, &session)).await;
                            let Ok(granted) = admitted else { return };
                            tokio::task::yield_now().await;
                            let Ok(checked) = granted.check().await else { return };
                            let (_live, _) = checked.begin();
                            tokio::task::yield_now().await;
                        }));
                        if i % 3 == 0 {
                            // Wherever it stands.
                            tasks[i - i % 7].abort();
                            tokio::task::yield_now().await;
                        }
                    }
                    for task in tasks {
                        let _ = task.await;
                    }
                });
            })
        })
        .collect();
    eventually("all threads have ended", || threads.iter().all(|t| t.is_finished())).await;
    for thread in threads {
        thread.join().unwrap();
    }
    let s = stats(&shell);
    assert_eq!((s.leases, s.bookings, s.waiting), (0, 0, 0), "{s:?}");
    assert!(shell.sleepers.lock().is_empty(), "{:?}", shell.sleepers.lock());
    assert!(shell.admit(ask(&shell, "")).await.is_ok(), "and it serves on");
    clock.abort();
}
