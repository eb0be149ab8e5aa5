//! R07: a live home that is shed as overloaded, by `on_overload`. What a worker's own 429 or 503 does to
//! the request that met it: `r07_answered`.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Ask, Cause, Failure};
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnOverload};
use std::time::Duration;

const TEN: Duration = Duration::from_secs(10);
const ALL: [OnOverload; 4] =
    [OnOverload::Spill, OnOverload::Reject, OnOverload::Wait, OnOverload::Dispatch];

fn by(on_overload: OnOverload) -> CoreSettings {
    let mut settings = settings();
    settings.affinity.on_overload = on_overload;
    settings
}

/// A session whose home counts as overloaded for ten seconds.
fn shed(on_overload: OnOverload, workers: usize) -> (World, WorkerId) {
    let w = World::with(by(on_overload), workers);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(TEN));
    (w, home)
}

#[test]
fn r07_spill_serves_elsewhere_and_keeps_the_binding() {
    let (w, home) = shed(OnOverload::Spill, 3);
    let (before, requests) = (w.session("s").unwrap(), w.requests());
    let grant = w.grant(w.hard("s"));
    assert_ne!(grant.worker().id, home);
    assert_eq!((w.stats().bookings, w.part(home).load.active_requests), (1, 0));
    let (live, outcome) = w.commit(w.go(grant));
    let held = w.session("s").unwrap();
    assert_eq!(
        (outcome, held.target, held.version),
        (Outcome::Spilled, before.target, before.version)
    );
    assert_eq!((held.leases, w.moves()), (1, [0; 4]), "a lease all the same");
    w.finish(live);
    assert_eq!((w.outcomes(Outcome::Spilled), w.requests()), (1, requests + 1));
    w.quiesce();
}

#[test]
fn r07_a_spilled_turn_keeps_its_session_alive() {
    let (mut w, home) = shed(OnOverload::Spill, 2);
    let (_, outcome, live) = w.start(w.hard("s"));
    assert_eq!(outcome, Outcome::Spilled);
    w.pass(TTL * 2);
    w.tick();
    assert_eq!(w.home("s"), Some(home));
    w.finish(live);
    w.pass(TTL - SECOND);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_the_third_spilled_turn_in_a_row_rebinds() {
    let (w, home) = shed(OnOverload::Spill, 3);
    for _ in 0..2 {
        assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
        assert_eq!((w.home("s"), w.moves()), (Some(home), [0; 4]));
    }
    let (worker, outcome) = w.turn(w.hard("s"));
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(worker), [0, 0, 0, 1]));
    assert_eq!(w.turn(w.hard("s")), (worker, Outcome::Hit));
    // And the new binding has spilled never.
    w.overload(worker, Some(TEN));
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Rebound);
    w.quiesce();
}

#[test]
fn r07_a_hit_in_between_resets_the_count() {
    type Hit = fn(&mut World) -> Ask;
    let hits: [Hit; 3] = [
        |w| {
            w.pass(TEN);
            w.hard("s")
        },
        |w| {
            w.pass(TEN);
            w.soft("s")
        },
        // An explicit target outranks the verdict, so it hits at once.
        |w| at(w.hard("s"), &w.name_of(w.home("s").unwrap()), None),
    ];
    for hit in hits {
        let (mut w, home) = shed(OnOverload::Spill, 3);
        for _ in 0..3 {
            w.overload(home, Some(TEN));
            assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
            assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
            let ask = hit(&mut w);
            assert_eq!(w.turn(ask), (home, Outcome::Hit));
        }
        w.quiesce();
    }
}

#[test]
fn r07_spilled_turns_that_came_to_nothing_do_not_count() {
    let (w, home) = shed(OnOverload::Spill, 3);
    for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
        for _ in 0..2 {
            let checked = w.go(w.grant(w.hard("s")));
            assert_eq!(w.core.abandon(w.now, checked, why), Outcome::Unbound);
        }
    }
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Spilled);
    assert_eq!(w.home("s"), Some(home));
    w.quiesce();
}

#[test]
fn r07_spill_with_everybody_shed_is_refused_and_the_binding_kept() {
    let (w, home) = shed(OnOverload::Spill, 2);
    w.overload(w.others(home)[0], Some(TEN * 2));
    let before = w.session("s");
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::Overloaded, Outcome::Rejected));
    assert_eq!((refusal.retry_after, refusal.bound), (Some(TEN), true), "when the first is back");
    assert_eq!(w.session("s"), before);
    w.quiesce();
}

#[test]
fn r07_reject_refuses_hard_and_says_when_to_come_again() {
    let (mut w, home) = shed(OnOverload::Reject, 3);
    // Another one is back sooner, which is nothing to a session that doesn't live there.
    w.overload(w.others(home)[0], Some(SECOND * 5));
    w.pass(SECOND * 3);
    let before = w.session("s");
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetOverloaded, Outcome::Rejected));
    assert_eq!((refusal.bound, refusal.retry_after), (true, Some(SECOND * 7)));
    assert_eq!((w.session("s"), w.stats().bookings, w.moves()), (before, 0, [0; 4]));
    w.pass(SECOND * 7);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "and then it is served");
    w.quiesce();
}

#[test]
fn r07_dispatch_ignores_the_verdict() {
    let (w, home) = shed(OnOverload::Dispatch, 3);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    assert_ne!(w.turn(w.hard("new")).0, home, "which is for bound turns only");
    assert!(w.part(home).shed);
    w.quiesce();
}

#[test]
fn r07_wait_is_for_home_until_it_counts_no_longer_as_overloaded() {
    let (mut w, home) = shed(OnOverload::Wait, 3);
    let before = w.session("s").unwrap();
    let ticket = w.waiting(w.hard("s"));
    assert_eq!((w.stats().waiting, w.session("s"), w.woken()), (1, Some(before), None));
    assert_eq!(w.core.poll_timeout(), Some(w.now + TEN), "when it may go");
    w.pass(TEN - Duration::from_micros(1));
    w.tick();
    assert_eq!(w.woken(), None);
    w.pass(Duration::from_micros(1));
    w.tick();
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, home);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.session("s").unwrap().version), (Outcome::Hit, before.version));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r07_wait_goes_on_when_home_says_it_again() {
    let (mut w, home) = shed(OnOverload::Wait, 3);
    let ticket = w.waiting(w.hard("s"));
    w.pass(SECOND * 8);
    w.overload(home, Some(TEN));
    while w.woken().is_some() {}
    w.pass(SECOND * 2);
    w.tick();
    assert_eq!(w.woken(), None, "not by the first word");
    w.pass(SECOND * 8);
    w.tick();
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r07_wait_ends_at_the_request_s_deadline_and_changes_no_binding() {
    let (mut w, _) = shed(OnOverload::Wait, 2);
    w.overload(w.home("s").unwrap(), Some(SECOND * 60));
    let before = w.session("s").map(|v| (v.target, v.version, v.leases));
    let with_deadline = |w: &World, secs: u32| {
        let mut ask = w.hard("s");
        ask.deadline = Some(w.now + SECOND * secs);
        w.waiting(ask)
    };
    // Longer than any other may wait (30 s), as its client does.
    let (short, long) = (with_deadline(&w, 5), with_deadline(&w, 50));
    for (ticket, passes) in [(short, 5), (long, 45)] {
        w.pass(SECOND * passes - Duration::from_micros(1));
        w.tick();
        assert_eq!(w.woken(), None);
        w.pass(Duration::from_micros(1));
        w.tick();
        assert_eq!(w.woken(), Some(ticket.id()));
        let refusal = refused(w.claim(ticket));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::Timeout, Outcome::Rejected));
        assert_eq!(w.session("s").map(|v| (v.target, v.version, v.leases)), before);
    }
    w.quiesce();
}

#[test]
fn r07_wait_ends_at_once_when_home_departs() {
    type Departure = fn(&mut World, WorkerId);
    let departures: [Departure; 4] = [
        |w, id| w.remove(id),
        |w, id| w.down(id),
        |w, id| _ = w.up(&w.name_of(id), &[MODEL]),
        |w, id| w.drain(id, Some(w.now)),
    ];
    for (i, depart) in departures.into_iter().enumerate() {
        let (mut w, home) = shed(OnOverload::Wait, 2);
        let ticket = w.waiting(w.hard("s"));
        depart(&mut w, home);
        let grant = w.claimed(ticket);
        assert_ne!(grant.worker().id, home, "departure {i}");
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_soft_goes_elsewhere_and_rebinds_whatever_on_overload_says() {
    for on_overload in ALL {
        let (w, home) = shed(on_overload, 3);
        let (worker, outcome) = w.turn(w.soft("s"));
        assert_ne!(worker, home, "{on_overload:?}");
        assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
        assert_eq!(w.moves(), [0, 0, 1, 0]);
        w.quiesce();
    }
}

#[test]
fn r07_unbound_requests_avoid_who_is_shed_and_are_refused_when_all_are() {
    for on_overload in ALL {
        let (w, home) = shed(on_overload, 3);
        for i in 0..10 {
            assert_ne!(w.turn(w.hard(&format!("new{i}"))).0, home);
            assert_ne!(w.turn(w.plain()).0, home);
        }
        w.others(home).into_iter().for_each(|id| w.overload(id, Some(TEN)));
        for ask in [w.plain(), w.hard("one more")] {
            let refusal = w.refused(ask);
            assert_eq!((refusal.cause, refusal.retry_after), (Cause::Overloaded, Some(TEN)));
        }
        w.quiesce();
    }
}

#[test]
fn r07_with_a_queue_they_wait_for_the_first_that_is_back() {
    let mut w = World::with(CoreSettings { queue: queueing(4).queue, ..by(OnOverload::Spill) }, 1);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(TEN));
    let (plain, spilled) = (w.waiting(w.plain()), w.waiting(w.hard("s")));
    w.pass(TEN);
    w.tick();
    let grant = w.claimed(plain);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    let (live, outcome) = w.commit(w.go(w.claimed(spilled)));
    assert_eq!((outcome, w.home("s")), (Outcome::Hit, Some(home)));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r07_three_spilled_at_once_are_three_in_a_row() {
    let (w, home) = shed(OnOverload::Spill, 4);
    let checked: Vec<_> = (0..4).map(|_| w.go(w.grant(w.hard("s")))).collect();
    let targets: Vec<_> = checked.iter().map(|c| c.grant().worker().id).collect();
    let (lives, outcomes): (Vec<_>, Vec<_>) = checked.into_iter().map(|c| w.commit(c)).unzip();
    use Outcome::{Conflict, Hit, Rebound, Spilled};
    // The third has moved it; the fourth ran there by chance, or is in conflict with it.
    let fourth = if targets[3] == targets[2] { Hit } else { Conflict };
    assert_eq!(outcomes, [Spilled, Spilled, Rebound, fourth]);
    assert_eq!(w.home("s"), Some(targets[2]));
    assert_ne!(w.home("s"), Some(home));
    lives.into_iter().for_each(|l| w.finish(l));
    w.quiesce();
}

#[test]
fn r07_wait_is_as_patient_as_its_client_wherever_it_waited_before() {
    let mut w = World::with(CoreSettings { queue: queueing(4).queue, ..by(OnOverload::Wait) }, 2);
    let (home, _) = w.turn(w.hard("s"));
    let [at_home, elsewhere] =
        [home, w.others(home)[0]].map(|id| w.go(w.grant(at(w.plain(), &w.name_of(id), None))));
    let mut ask = w.hard("s");
    ask.deadline = Some(w.now + SECOND * 50);
    // For anybody who is free; the one who gets free is not its home, which is overloaded by then.
    let ticket = w.waiting(ask);
    let busy = Failure::Overloaded(Some(SECOND * 45));
    assert_eq!(refused(w.retry(at_home, busy)).cause, Cause::Answered);
    let _ = w.core.abandon(w.now, elsewhere, Abandon::Failed);
    assert_eq!(w.woken(), Some(ticket.id()), "to see that its home is overloaded");
    let Admission::Waiting(ticket) = w.claim(ticket) else { panic!("its client is patient") };
    // Beyond the time for which a busy home is waited for.
    w.pass(SECOND * 31);
    w.tick();
    assert_eq!(w.woken(), None);
    w.pass(SECOND * 14);
    w.tick();
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}
