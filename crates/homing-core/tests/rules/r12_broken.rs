//! R12: a request that a worker broke off may have run. Nobody is told to send it again, whatever stood in
//! its way afterwards.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Cause, Failure, Grant, Refusal, Ticket};
use homing_core::ids::WorkerId;
use homing_core::settings::CoreSettings;

/// It is told that its worker failed, not to come again, and its session is as before.
fn failed(w: &World, refusal: Refusal, session: bool) {
    assert_eq!(refusal.cause, Cause::WorkerFailed);
    assert_eq!(refusal.outcome, if session { Outcome::Unbound } else { Outcome::None });
    assert_eq!((refusal.retry_after, refusal.bound), (None, false));
    assert_eq!(w.home("s"), None);
}

/// Two workers; the other one of them is busy, too, when the first breaks off.
fn both(settings: CoreSettings, session: bool) -> (World, Grant, Grant) {
    let w = World::with(settings, 2);
    let mine = w.grant(if session { w.hard("s") } else { w.plain() });
    let other = w.grant(w.plain());
    assert_ne!(mine.worker().id, other.worker().id);
    (w, mine, other)
}

fn waits(w: &World, mine: Grant, failure: Failure) -> Ticket {
    let Admission::Waiting(ticket) = w.retry(w.go(mine), failure) else {
        panic!("the other one is busy")
    };
    // The one that failed it is free, and not for this request.
    assert_eq!(w.woken(), Some(ticket.id()));
    let Admission::Waiting(ticket) = w.claim(ticket) else { panic!("its failure is forgotten") };
    ticket
}

#[test]
fn r12_broken_and_the_queue_is_full() {
    for session in [false, true] {
        let (w, mine, other) = both(queueing(1), session);
        let ticket = w.waiting(w.plain());
        failed(&w, refused(w.retry(w.go(mine), Failure::Broken)), session);
        w.core.cancel(w.now, ticket);
        let _ = w.core.abandon(w.now, other, Abandon::NotDispatched);
        w.quiesce();
    }
}

#[test]
fn r12_broken_and_nobody_else_is_there_or_all_are_overloaded() {
    type Trouble = fn(&mut World, WorkerId);
    let troubles: [Trouble; 4] = [
        |w, id| w.remove(id),
        |w, id| w.down(id),
        |w, id| w.drain(id, None),
        |w, id| w.overload(id, Some(SECOND * 30)),
    ];
    for trouble in troubles {
        for session in [false, true] {
            let mut w = World::new(2);
            let mine = w.go(w.grant(if session { w.hard("s") } else { w.plain() }));
            let other = w.others(mine.grant().worker().id)[0];
            trouble(&mut w, other);
            failed(&w, refused(w.retry(mine, Failure::Broken)), session);
            w.quiesce();
        }
    }
}

#[test]
fn r12_broken_and_it_waited_since() {
    type End = fn(&mut World, WorkerId);
    let ends: [End; 3] = [
        |w, id| w.remove(id),
        |w, id| w.drain(id, None),
        |w, _| {
            w.pass(SECOND * 30);
            w.tick();
        },
    ];
    for end in ends {
        for session in [false, true] {
            let (mut w, mine, other) = both(queueing(4), session);
            let id = other.worker().id;
            let ticket = waits(&w, mine, Failure::Broken);
            end(&mut w, id);
            assert_eq!(w.woken(), Some(ticket.id()));
            failed(&w, refused(w.claim(ticket)), session);
            let _ = w.core.abandon(w.now, other, Abandon::NotDispatched);
            w.quiesce();
        }
    }
}

#[test]
fn r12_broken_and_then_a_port_that_refused() {
    let w = World::with(CoreSettings { retry_attempts: 3, ..settings() }, 2);
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
    failed(&w, refused(w.retry(w.go(moved), Failure::Refused)), true);
    w.quiesce();
}

#[test]
fn r12_what_cannot_have_run_may_come_again() {
    // The same ways, without a byte that was sent.
    for failure in [Failure::Refused, Failure::Unreachable] {
        let (mut w, mine, other) = both(queueing(1), false);
        let ticket = w.waiting(w.plain());
        assert_eq!(refused(w.retry(w.go(mine), failure)).cause, Cause::QueueFull);
        w.core.cancel(w.now, ticket);
        let _ = w.core.abandon(w.now, other, Abandon::NotDispatched);
        w.pass(SECOND);
        w.quiesce();
    }
    let (mut w, mine, other) = both(queueing(4), false);
    let ticket = waits(&w, mine, Failure::Unreachable);
    w.pass(SECOND * 30);
    w.tick();
    assert_eq!(w.woken(), Some(ticket.id()));
    assert_eq!(refused(w.claim(ticket)).cause, Cause::Timeout);
    let _ = w.core.abandon(w.now, other, Abandon::NotDispatched);
    w.quiesce();
}
