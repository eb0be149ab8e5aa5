//! F61 to F66, R07's row for workers that are unwell: bytes are life, green is not.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Ask, Cause, Failure, Step};
use homing_core::explain::record::{Report, Stage};
use homing_core::fleet::{FleetChange, Probe, State};
use homing_core::ids::WorkerId;
use homing_core::partition::Ailment;
use homing_core::settings::{CoreSettings, OnDown, PolicyKind, VitalSettings};

fn alive() -> CoreSettings {
    CoreSettings { vitals: VitalSettings::default(), policy: PolicyKind::LeastLoaded, ..settings() }
}

/// A dispatch there that comes to nothing, by the worker's fault.
fn fails_at(w: &World, id: WorkerId) {
    let checked = w.go(w.grant(at(w.plain(), &w.name_of(id), None)));
    let _ = w.core.abandon(w.now, checked, Abandon::Failed);
    w.core.check();
}

fn failing(w: &World, id: WorkerId) {
    (0..5).for_each(|_| fails_at(w, id));
    assert_eq!(w.part(id).ailment, Some(Ailment::Failing));
}

/// Where so many requests go that are all open at once.
fn spread(w: &World, ask: impl Fn() -> Ask, n: usize) -> Vec<WorkerId> {
    let grants: Vec<_> = (0..n).map(|_| w.grant(ask())).collect();
    let ids = grants.iter().map(|g| g.worker().id).collect();
    grants.into_iter().for_each(|g| _ = w.core.abandon(w.now, g, Abandon::NotDispatched));
    ids
}

#[test]
fn f61_who_answers_with_faults_alone_attracts_nothing() {
    let mut w = World::with(alive(), 3);
    let bad = w.view_named("w1");
    failing(&w, bad);
    assert!(!spread(&w, || w.plain(), 30).contains(&bad), "idle, and left alone");
    w.pass(SECOND);
    let ids = spread(&w, || w.plain(), 30);
    assert_eq!(ids.iter().filter(|id| **id == bad).count(), 1, "one tries it");
    // It was never sent, and says nothing; the next waits two seconds.
    assert!(!spread(&w, || w.plain(), 30).contains(&bad));
    w.pass(SECOND * 2);
    let (at, _, live) = w.start(at(w.plain(), "w1", None));
    assert_eq!((at, w.part(bad).ailment), (bad, None), "it answers: it is well");
    assert!(spread(&w, || w.plain(), 30).contains(&bad));
    w.finish(live);
    w.quiesce();
}

#[test]
fn f33_load_and_a_clients_mistakes_are_no_faults() {
    let w = World::with(alive(), 2);
    let id = w.view_named("w0");
    for _ in 0..20 {
        w.overload(id, Some(std::time::Duration::ZERO));
        let checked = w.go(w.grant(at(w.plain(), "w0", None)));
        let _ = w.core.abandon(w.now, checked, Abandon::Answered);
        let checked = w.go(w.grant(at(w.plain(), "w0", None)));
        let _ = w.core.abandon(w.now, checked, Abandon::ClientGone);
    }
    assert_eq!(w.part(id).ailment, None);
    w.quiesce();
}

#[test]
fn f61_streams_that_all_break_off_count() {
    let w = World::with(alive(), 2);
    let id = w.view_named("w0");
    for _ in 0..5 {
        let (_, _, mut live) = w.start(at(w.plain(), "w0", None));
        live.report(Report { stage: Some(Stage::WorkerBroke), ..Report::default() });
        w.finish(live);
    }
    assert_eq!(w.part(id).ailment, Some(Ailment::Failing));
    assert!(!spread(&w, || w.plain(), 10).contains(&id));
    w.quiesce();
}

#[test]
fn f62_a_worker_of_which_nothing_comes_is_left_alone() {
    let mut w = World::with(alive(), 2);
    let id = w.view_named("w0");
    let stuck = w.go(w.grant(at(w.plain(), "w0", None)));
    w.pass(SECOND * 9);
    w.tick();
    assert_eq!(w.part(id).ailment, None);
    w.pass(SECOND * 3);
    w.tick();
    assert_eq!(w.part(id).ailment, Some(Ailment::Stalled), "though probes are green");
    assert!(!spread(&w, || w.plain(), 10).contains(&id));
    // Its client gives up: idle, and still not trusted.
    let _ = w.core.abandon(w.now, stuck, Abandon::ClientGone);
    assert!(!spread(&w, || w.plain(), 10).contains(&id));
    w.pass(SECOND * 2);
    let (_, _, live) = w.start(at(w.plain(), "w0", None));
    assert_eq!(w.part(id).ailment, None);
    w.pass(SECOND * 30);
    w.tick();
    assert_eq!(w.part(id).ailment, Some(Ailment::Stalled), "mute in the middle, too");
    w.core.progress(w.now, &live, Step::Output(1));
    assert_eq!(w.part(id).ailment, None, "a byte is life");
    w.finish(live);
    w.quiesce();
}

#[test]
fn f62_an_answer_that_comes_whole_is_given_its_time() {
    let mut w = World::with(alive(), 2);
    let id = w.view_named("w0");
    let mut ask = at(w.plain(), "w0", None);
    ask.whole = true;
    let checked = w.go(w.grant(ask));
    w.pass(SECOND * 30);
    w.tick();
    assert_eq!(w.part(id).ailment, None, "a long answer");
    w.pass(SECOND * 3600);
    w.tick();
    assert_eq!(w.part(id).ailment, Some(Ailment::Stalled), "no answer is that long");
    let _ = w.core.abandon(w.now, checked, Abandon::Failed);
    w.quiesce();
}

#[test]
fn r07_unwell_is_as_down_for_sessions_and_its_trial_may_be_a_bound_one() {
    for on_down in [OnDown::Rebind, OnDown::Reject] {
        let mut settings = alive();
        settings.affinity.on_down = on_down;
        let mut w = World::with(settings, 3);
        let (home, _) = w.turn(w.hard("s"));
        failing(&w, home);
        match on_down {
            OnDown::Rebind => {
                let (worker, outcome) = w.turn(w.hard("s"));
                assert_eq!(outcome, Outcome::Rebound);
                assert_ne!(worker, home);
            }
            OnDown::Reject => {
                let refusal = w.refused(w.hard("s"));
                assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, true));
                w.pass(SECOND);
                assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "the trial");
                assert_eq!(w.part(home).ailment, None);
            }
        }
        w.quiesce();
    }
}

#[test]
fn f33_the_last_workers_are_never_shut_out() {
    let mut w = World::with(alive(), 2);
    for name in ["w0", "w1"] {
        failing(&w, w.view_named(name));
    }
    assert_eq!(spread(&w, || w.plain(), 10).len(), 10, "everybody is unwell: all are tried");
    w.probe(w.view_named("w1"), Probe::Refused);
    assert_eq!(spread(&w, || w.plain(), 10).len(), 10, "and the last one is");
    w.quiesce();
}

#[test]
fn f66_when_most_of_a_pool_goes_silent_at_once_bindings_stay_and_all_are_tried() {
    let mut w = World::with(alive(), 3);
    let (home, _) = w.turn(w.hard("s"));
    let others = w.others(home);
    w.down(home);
    assert_eq!(w.view(home).state, State::Down);
    assert!(!spread(&w, || w.plain(), 9).contains(&home), "one of three is down");
    w.down(others[0]);
    assert!(spread(&w, || w.plain(), 9).contains(&home), "two of three: the network, more likely");
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.pass(SECOND * 61);
    w.tick();
    assert!(!spread(&w, || w.plain(), 9).contains(&home), "it was no blink");
    w.down(others[1]);
    assert!(spread(&w, || w.plain(), 9).contains(&home), "whoever is left to try");
    w.pass(SECOND * 1000);
    assert!(spread(&w, || w.plain(), 9).contains(&home));
    w.back(others[1]);
    assert!(!spread(&w, || w.plain(), 9).contains(&home));
    w.quiesce();
}

#[test]
fn f66_a_port_that_refuses_is_an_answer() {
    let mut w = World::with(alive(), 3);
    for name in ["w0", "w1"] {
        let id = w.view_named(name);
        w.down(id);
        w.probe(id, Probe::Refused);
    }
    let left = w.view_named("w2");
    assert!(spread(&w, || w.plain(), 9).iter().all(|id| *id == left));
    w.quiesce();
}

#[test]
fn f67_who_wants_a_key_is_no_worker_and_no_unknown_model() {
    let mut w = World::with(alive(), 2);
    let (home, _) = w.turn(w.hard("s"));
    w.fleet(FleetChange::Barred(home, true));
    assert_eq!(w.view(home).state, State::Unauthorized);
    assert!(!spread(&w, || w.plain(), 9).contains(&home));
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Rebound, "as Down");
    w.fleet(FleetChange::Barred(home, false));
    assert_eq!(w.view(home).state, State::Ready);
    w.quiesce();
}

#[test]
fn retries_are_a_share_of_what_comes() {
    let w = World::with(CoreSettings { retry_budget: 0.1, ..settings() }, 3);
    let moved = (0..200).filter(|_| {
        let admission = w.retry(w.go(w.grant(w.plain())), Failure::Broken);
        match admission {
            homing_core::ask::Admission::Granted(grant) => {
                let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
                true
            }
            other => {
                assert_eq!(refused(other).cause, Cause::WorkerFailed);
                false
            }
        }
    });
    assert_eq!(moved.count(), 20);
    // Nobody has had any work of one that refused.
    let free = w.retry(w.go(w.grant(w.plain())), Failure::Refused);
    let _ = w.core.abandon(w.now, granted(free), Abandon::NotDispatched);
    w.quiesce();
}
