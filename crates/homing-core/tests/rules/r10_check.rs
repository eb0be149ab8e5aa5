//! R10: the last look before dispatch, which changes nothing but who runs where.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Dispatch, Failure, Grant};
use homing_core::ids::WorkerId;
use std::time::Duration;

/// The session is bound at the first of these workers; the grant is for the second.
fn bound_elsewhere(w: &mut World, soft: bool) -> (WorkerId, Grant, homing_core::ask::Live) {
    let second = if soft { w.soft("s") } else { w.hard("s") };
    let (a, b) = w.split(w.hard("s"), second);
    let home = a.worker().id;
    let (live, _) = w.commit(w.go(a));
    (home, b, live)
}

#[test]
fn r10_an_unbound_session_goes_on() {
    let mut w = World::new(3);
    let (a, b) = w.split(w.hard("s"), w.hard("s"));
    let a = w.go(a);
    let b = w.go(b);
    let _ = w.core.abandon(w.now, a, Abandon::Failed);
    let _ = w.core.abandon(w.now, b, Abandon::Failed);
    w.quiesce();
}

#[test]
fn r10_a_match_goes_on() {
    let w = World::new(3);
    let (a, b) = (w.grant(w.hard("s")), w.grant(w.hard("s")));
    let (live, _) = w.commit(w.go(a));
    let (joined, outcome) = w.commit(w.go(b));
    assert_eq!(outcome, Outcome::Joined);
    w.finish(live);
    w.finish(joined);
    w.quiesce();
}

#[test]
fn r10_changed_to_another_live_target_asks_again_and_nothing_has_run() {
    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, false);
    let (before, picked) = (w.session("s"), grant.worker().id);
    let requests: u64 = w.stats().outcomes.iter().sum();
    let ask = w.again(grant);
    assert_eq!(w.session("s"), before, "the table is not changed here");
    assert_eq!((w.stats().bookings, w.part(picked).load.active_requests), (1, 0), "freed");
    let grant = w.grant(ask);
    assert_eq!(grant.worker().id, home);
    let (hit, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::Hit);
    assert_eq!(w.stats().outcomes.iter().sum::<u64>(), requests + 1, "one request");
    w.finish(live);
    w.finish(hit);
    w.quiesce();
}

#[test]
fn r10_the_second_change_goes_on_and_r11_decides() {
    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, false);
    let grant = w.grant(w.again(grant));
    assert_eq!(grant.worker().id, home);
    // It moves once more, while this one is on its way home.
    w.down(home);
    let (new_home, outcome, other) = w.start(w.hard("s"));
    assert_eq!(outcome, Outcome::Rebound);
    w.back(home);
    let before = w.session("s");
    let checked = w.go(grant);
    assert_eq!(w.session("s"), before);
    let (conflict, outcome) = w.commit(checked);
    assert_eq!((outcome, w.home("s")), (Outcome::Conflict, Some(new_home)));
    [live, other, conflict].into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r10_soft_goes_on() {
    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, true);
    let checked = w.go(grant);
    assert_eq!(w.home("s"), Some(home), "the table is not changed here");
    let (moved, outcome) = w.commit(checked);
    assert_eq!(outcome, Outcome::Rebound);
    w.finish(live);
    w.finish(moved);
    w.quiesce();
}

#[test]
fn r10_changed_to_a_departed_target_goes_on() {
    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, false);
    w.remove(home);
    let (moved, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::Rebound);
    w.finish(live);
    w.finish(moved);
    w.quiesce();
}

#[test]
fn r10_off_home_on_purpose_goes_on() {
    let w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let moved = granted(w.retry(checked, Failure::Broken));
    assert_ne!(moved.worker().id, home);
    // Hits meanwhile change nothing about the version.
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Hit);
    let checked = w.go(moved);
    let _ = w.core.abandon(w.now, checked, Abandon::Failed);
    w.quiesce();
}

#[test]
fn r10_rebound_to_the_same_target_goes_on() {
    let w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let grant = w.grant(w.hard("s"));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    // Bound anew, and by chance at the same worker.
    let lives: Vec<_> = std::iter::from_fn(|| {
        let (worker, _, live) = w.start(w.hard("s"));
        let there = worker == home;
        if !there {
            w.core.unbind(w.now, w.partition(), key("s"));
        }
        (!there).then_some(live)
    })
    .take(1000)
    .collect();
    assert_eq!(w.home("s"), Some(home));
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::Hit);
    w.finish(live);
    lives.into_iter().for_each(|l| w.finish(l));
}

#[test]
fn r10_a_binding_that_has_idled_out_is_none_whether_swept_or_not() {
    let mut w = World::new(3);
    let (_, grant, live) = bound_elsewhere(&mut w, false);
    w.finish(live);
    w.pass(TTL - Duration::from_micros(1));
    let Dispatch::Again(ask) = w.check(grant) else { panic!("bound elsewhere") };
    let _ = w.core.abandon(w.now, w.grant(*ask), Abandon::NotDispatched);

    let mut w = World::new(3);
    let (_, grant, live) = bound_elsewhere(&mut w, false);
    w.finish(live);
    w.pass(TTL);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::New);
    w.finish(live);
    w.quiesce();
}

/// Passes: match, New, Soft, departed. Sends back: a binding that changed to another live target, once.
/// In every case the table is as it was.
#[test]
fn r10_check_dispatch_changes_nothing() {
    type Case = fn(&mut World) -> (Grant, Vec<homing_core::ask::Live>);
    let passes: [(&str, Case); 5] = [
        ("new", |w| (w.grant(w.hard("s")), Vec::new())),
        ("match", |w| {
            w.turn(w.hard("s"));
            (w.grant(w.hard("s")), Vec::new())
        }),
        ("joined", |w| {
            let b = w.grant(w.hard("s"));
            (b, vec![w.start(w.hard("s")).2])
        }),
        ("soft", |w| {
            let (_, grant, live) = bound_elsewhere(w, true);
            (grant, vec![live])
        }),
        ("departed", |w| {
            let (home, grant, live) = bound_elsewhere(w, false);
            w.remove(home);
            (grant, vec![live])
        }),
    ];
    for (what, case) in passes {
        let mut w = World::new(3);
        let (grant, lives) = case(&mut w);
        let before = w.traces();
        let checked = w.go(grant);
        assert_eq!(w.traces(), before, "{what}");
        let _ = w.core.abandon(w.now, checked, Abandon::NotDispatched);
        lives.into_iter().for_each(|l| w.finish(l));
        w.quiesce();
    }
    let mut w = World::new(3);
    let (_, grant, live) = bound_elsewhere(&mut w, false);
    let (sessions, outcomes) = (w.core.sessions(w.now, 9), w.stats().outcomes);
    let table = w.stats().table;
    let _ = w.again(grant);
    assert_eq!((w.core.sessions(w.now, 9), w.stats().outcomes), (sessions, outcomes));
    assert_eq!(w.stats().table, table);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r10_selecting_once_more_is_under_the_new_binding() {
    // R06 answers where it can be used; R07 where it can't; R09 for an explicit target.
    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, false);
    let ask = w.again(grant);
    w.overload(home, None);
    let grant = w.grant(ask);
    assert_ne!(grant.worker().id, home);
    let (spilled, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.home("s")), (Outcome::Spilled, Some(home)));
    w.finish(live);
    w.finish(spilled);
    w.quiesce();

    let mut w = World::new(3);
    let (home, grant, live) = bound_elsewhere(&mut w, false);
    let ask = only(w.again(grant), &["nobody", &w.name_of(w.others(home)[0])]);
    assert_eq!(w.refused(ask).cause, homing_core::ask::Cause::Conflict);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r10_a_spilled_grant_goes_on_until_its_binding_changes() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(SECOND * 9));
    let (a, b) = (w.grant(w.hard("s")), w.grant(w.hard("s")));
    assert_eq!(w.turn(w.soft("t")).1, Outcome::New, "other sessions don't matter");
    let (spilled, outcome) = w.commit(w.go(a));
    assert_eq!(outcome, Outcome::Spilled);
    // Now the session moves, to where the other one doesn't go.
    let third = w.others(home).into_iter().find(|id| *id != b.worker().id).unwrap();
    let moved = w.turn(only(w.soft("s"), &[&w.name_of(third)]));
    assert_eq!(moved, (third, Outcome::Rebound));
    let (worker, outcome) = w.turn(w.again(b));
    assert_eq!((worker, outcome), (third, Outcome::Hit));
    w.finish(spilled);
    w.pass(SECOND);
    w.quiesce();
}
