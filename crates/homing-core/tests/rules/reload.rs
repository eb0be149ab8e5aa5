//! Settings that change while requests run and wait: nothing is lost, and what is decided from now on is decided
//! by the new ones.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Cause;
use homing_core::settings::{CoreSettings, OnDown, OnOverload, OverloadSettings};

#[test]
fn what_a_session_does_without_its_home_changes_at_once() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    let mut strict = settings();
    strict.affinity.on_down = OnDown::Reject;
    w.core.reconfigure(&strict);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    w.core.reconfigure(&settings());
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Rebound);
    w.quiesce();
}

#[test]
fn who_waits_for_an_overloaded_home_looks_again_when_it_need_not() {
    let mut waiting = settings();
    waiting.affinity.on_overload = OnOverload::Wait;
    let w = World::with(waiting, 2);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(SECOND * 60));
    let ticket = w.waiting(w.hard("s"));
    w.core.reconfigure(&settings());
    assert_eq!(w.woken(), Some(ticket.id()));
    let grant = granted(w.claim(ticket));
    assert_ne!(grant.worker().id, home, "it spills now");
    w.finish(w.commit(w.go(grant)).0);
    w.quiesce();
}

#[test]
fn bounds_of_load_change_for_those_who_wait() {
    let w = World::with(queueing(4), 1);
    let (_, _, live) = w.start(w.plain());
    let ticket = w.waiting(w.plain());
    let mut roomy = queueing(4);
    roomy.queue.busy_active_requests = 2;
    w.core.reconfigure(&roomy);
    assert_eq!(w.woken(), Some(ticket.id()));
    let second = granted(w.claim(ticket));
    w.finish(w.commit(w.go(second)).0);
    // What can't change doesn't: as many may wait as before.
    let fewer = queueing(1);
    w.core.reconfigure(&fewer);
    let tickets: Vec<_> = (0..4).map(|_| w.waiting(w.plain())).collect();
    tickets.into_iter().for_each(|t| w.core.cancel(w.now, t));
    w.finish(live);
    w.quiesce();
}

#[test]
fn the_detector_is_turned_on_and_off() {
    let w = World::new(2);
    let (busy, _, live) = w.start(w.plain());
    let overload = OverloadSettings { active_requests: 1, ..OverloadSettings::default() };
    w.core.reconfigure(&CoreSettings { overload, ..settings() });
    assert!(w.part(busy).shed);
    assert!((0..9).all(|_| w.turn(w.plain()).0 != busy));
    w.core.reconfigure(&settings());
    assert!(!w.part(busy).shed);
    w.finish(live);
    let grant = w.grant(w.plain());
    let _ = w.core.abandon(w.now, grant, homing_core::ask::Abandon::NotDispatched);
    w.quiesce();
}
