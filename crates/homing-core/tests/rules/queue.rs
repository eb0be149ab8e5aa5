//! Who waits holds nothing, is read anew when its turn comes, and leaves at its deadline.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Cause, Failure, Ticket};
use homing_core::fleet::Probe;
use homing_core::settings::Mode;
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn queue_a_waiting_request_holds_nothing() {
    let mut w = World::with(queueing(4), 1);
    w.turn(w.hard("bound"));
    let (_, _, busy) = w.start(w.plain());
    let before = (w.stats().leases, w.stats().bookings, w.session("bound").unwrap().leases);
    let tickets = [w.waiting(w.hard("bound")), w.waiting(w.hard("new")), w.waiting(w.plain())];
    assert_eq!((w.stats().leases, w.stats().bookings, w.session("bound").unwrap().leases), before);
    assert_eq!(w.stats().waiting, 3);
    w.pass(TTL);
    assert_eq!(w.home("bound"), None, "it expires meanwhile");
    for ticket in tickets {
        w.core.cancel(w.now, ticket);
    }
    w.finish(busy);
    w.quiesce();
}

#[test]
fn queue_first_come_first_served_one_at_a_time() {
    let w = World::with(queueing(4), 1);
    let (_, _, mut running) = w.start(w.plain());
    let tickets: Vec<_> = (0..3).map(|_| w.waiting(w.plain())).collect();
    for ticket in tickets {
        assert_eq!(w.woken(), None, "nobody is woken in vain");
        w.finish(running);
        running = w.commit(w.go(w.claimed(ticket))).0;
    }
    w.finish(running);
    w.quiesce();
}

#[test]
fn queue_newcomers_do_not_overtake() {
    let w = World::with(queueing(4), 1);
    let (_, _, busy) = w.start(w.plain());
    let first = w.waiting(w.plain());
    w.finish(busy);
    // Free now, and promised to the one that waits.
    let newcomer = w.waiting(w.plain());
    let grant = w.claimed(first);
    assert_eq!(w.woken(), None);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    let grant = w.claimed(newcomer);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn queue_the_session_is_read_when_the_request_is_granted() {
    let w = World::with(queueing(4), 2);
    let (there, _, a) = w.start(w.plain());
    let (_, _, b) = w.start(w.plain());
    let ticket = w.waiting(w.hard("s"));
    // Another turn of the session, which came earlier and took longer, binds it meanwhile.
    w.finish(a);
    let first = w.claimed(ticket);
    assert_eq!(first.worker().id, there);
    let second = w.waiting(w.hard("s"));
    let (c, _) = w.commit(w.go(first));
    w.finish(b);
    let grant = w.claimed(second);
    assert_eq!(grant.worker().id, there, "home, though the other one is free and home is busy");
    let (d, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::Hit);
    w.finish(c);
    w.finish(d);
    w.quiesce();
}

#[test]
fn queue_the_fleet_is_read_when_the_request_is_granted() {
    let mut w = World::with(queueing(4), 1);
    let (old, _, busy) = w.start(w.hard("s"));
    let ticket = w.waiting(w.hard("s"));
    w.remove(old);
    let new = w.up("new", &[MODEL]);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, new);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(new)));
    w.finish(busy);
    w.finish(live);
    w.quiesce();
}

#[test]
fn queue_a_departure_noticed_before_waiting_is_not_forgotten_while_waiting() {
    let mut w = World::with(queueing(4), 2);
    let (old, _) = w.turn(w.hard("s"));
    w.remove(old);
    let (_, _, busy) = w.start(w.plain());
    let ticket = w.waiting(w.hard("s"));
    assert_eq!(w.home("s"), Some(old), "a request that goes nowhere changes nothing");
    w.finish(busy);
    let (live, outcome) = w.commit(w.go(w.claimed(ticket)));
    assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
    w.finish(live);
    w.quiesce();
}

#[test]
fn queue_a_deadline_is_a_timeout_and_changes_no_binding() {
    let mut w = World::with(queueing(4), 1);
    w.turn(w.hard("s"));
    let (_, _, busy) = w.start(w.plain());
    let before = w.session("s").map(|v| (v.target, v.version, v.leases));
    let mut ask = w.hard("s");
    ask.deadline = Some(w.now + Duration::from_secs(1));
    let (mine, patient) = (w.waiting(ask), w.waiting(w.hard("s")));
    let (id, deadline) = (mine.id(), w.core.poll_timeout().unwrap());
    assert_eq!(deadline, w.now + Duration::from_secs(1), "the request's own, if it is the earlier");
    w.pass(Duration::from_secs(1));
    w.core.handle_timeout(w.now);
    assert_eq!((w.woken(), w.woken()), (Some(id), None));
    let refusal = refused(w.claim(mine));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::Timeout, Outcome::Rejected));
    assert_eq!(w.session("s").map(|v| (v.target, v.version, v.leases)), before);

    w.pass(Duration::from_secs(29));
    w.core.handle_timeout(w.now);
    assert_eq!(w.woken(), Some(patient.id()), "nobody waits longer than `max_wait`");
    assert_eq!(refused(w.claim(patient)).cause, Cause::Timeout);
    w.finish(busy);
    w.quiesce();
}

#[test]
fn queue_cancelling_lets_the_next_one_try() {
    let w = World::with(queueing(4), 1);
    let (_, _, busy) = w.start(w.plain());
    let (first, second, third) =
        (w.waiting(w.plain()), w.waiting(w.plain()), w.waiting(w.hard("s")));
    w.core.cancel(w.now, second);
    w.finish(busy);
    assert_eq!(w.woken(), Some(first.id()));
    // Awake, and leaves instead of claiming.
    w.core.cancel(w.now, first);
    let grant = w.claimed(third);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    assert_eq!((w.outcomes(Outcome::None), w.outcomes(Outcome::Unbound)), (3, 1));
    w.quiesce();
}

#[test]
fn queue_one_that_cannot_be_served_now_blocks_nobody() {
    let mut w = World::with(queueing(8), 0);
    let a = w.up("a", &[MODEL, "x-lora"]);
    let _b = w.up("b", &[MODEL]);
    let adapter = |w: &World| w.ask_for("x-lora", None);
    let (at, _, on_a) = w.start(adapter(&w));
    assert_eq!(at, a);
    let (_, _, on_b) = w.start(w.plain());
    let (blocked, behind) = (w.waiting(adapter(&w)), w.waiting(w.plain()));
    w.finish(on_b);
    assert_eq!(w.woken(), Some(blocked.id()));
    let Admission::Waiting(blocked) = w.claim(blocked) else { panic!("its worker is busy") };
    let (live, _) = w.commit(w.go(w.claimed(behind)));
    assert_eq!(w.woken(), None);
    w.finish(on_a);
    assert_eq!(claimed_at(&w, blocked), a);
    w.finish(live);
}

fn claimed_at(w: &World, ticket: Ticket) -> homing_core::ids::WorkerId {
    let (live, _) = w.commit(w.go(w.claimed(ticket)));
    let busy = w
        .core
        .workers()
        .into_iter()
        .find(|v| v.part.load.active_requests > 0 && v.info.spec.name.as_ref() == "a");
    w.finish(live);
    busy.unwrap().info.id
}

#[test]
fn queue_a_hard_bound_request_does_not_wait_for_its_own_worker() {
    let w = World::with(queueing(4), 2);
    let (home, _, live) = w.start(w.hard("s"));
    let (worker, outcome, second) = w.start(w.hard("s"));
    assert_eq!((worker, outcome), (home, Outcome::Hit), "it queues in the engine");
    w.finish(live);
    w.finish(second);
    w.quiesce();
}

#[test]
fn f42_the_queue_is_bounded_and_its_refusal_holds_nothing() {
    let w = World::with(queueing(1), 1);
    w.turn(w.hard("s"));
    let (_, _, busy) = w.start(w.plain());
    let ticket = w.waiting(w.plain());
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::QueueFull, Outcome::Rejected));
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (0, 0));
    w.core.cancel(w.now, ticket);
    w.finish(busy);
    w.quiesce();
}

#[test]
fn f43_nobody_hangs_when_the_workers_go() {
    for mode in [None, Some(Mode::Hard)] {
        let mut w = World::with(queueing(4), 1);
        let (only, _, busy) = w.start(w.plain());
        let session = mode.map(|m| ("s", m));
        let tickets = [w.waiting(w.ask_for(MODEL, session)), w.waiting(w.ask_for(MODEL, session))];
        w.remove(only);
        for ticket in tickets {
            assert_eq!(w.woken(), Some(ticket.id()));
            assert_eq!(refused(w.claim(ticket)).cause, Cause::NoWorker);
        }
        w.finish(busy);
        w.quiesce();
    }
}

#[test]
fn f43_nobody_hangs_when_the_workers_come() {
    let mut w = World::with(queueing(4), 1);
    let (_, _, busy) = w.start(w.plain());
    let ticket = w.waiting(w.plain());
    let new = w.up("new", &[MODEL]);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, new);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.finish(busy);
    w.quiesce();
}

#[test]
fn f43_a_request_whose_workers_have_gone_learns_it_at_once_though_others_are_busy() {
    let mut w = World::with(queueing(8), 0);
    let a = w.up("a", &[MODEL, "x-lora"]);
    w.up("b", &[MODEL]);
    let (_, _, on_a) = w.start(w.ask_for("x-lora", None));
    let (_, _, on_b) = w.start(w.plain());
    let (plain, adapter) = (w.waiting(w.plain()), w.waiting(w.ask_for("x-lora", None)));
    w.remove(a);
    // Each looks once, in order.
    assert_eq!(w.woken(), Some(plain.id()));
    let Admission::Waiting(plain) = w.claim(plain) else { panic!("b is busy") };
    assert_eq!(w.woken(), Some(adapter.id()));
    assert_eq!(refused(w.claim(adapter)).cause, Cause::NoWorker);
    w.core.cancel(w.now, plain);
    w.finish(on_a);
    w.finish(on_b);
    w.quiesce();
}

#[test]
fn queue_a_failed_request_that_must_wait_keeps_its_exclusions() {
    let mut w = World::with(queueing(4), 2);
    let checked = w.go(w.grant(w.hard("s")));
    let failed = checked.grant().worker().id;
    let (other, _, busy) = w.start(w.plain());
    assert_ne!(other, failed);
    let Admission::Waiting(ticket) = w.retry(checked, Failure::Broken) else {
        panic!("the one that has not failed it is busy");
    };
    assert_eq!(w.woken(), Some(ticket.id()), "the failed one is free");
    let Admission::Waiting(ticket) = w.claim(ticket) else { panic!("but not for this request") };
    w.finish(busy);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, other);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.pass(Duration::ZERO);
    w.quiesce();
}

#[test]
fn queue_freeing_by_any_end_wakes() {
    let mut w = World::with(CoreSettingsExt::no_retry(queueing(4)), 1);
    type End = fn(&mut World, homing_core::ask::Grant);
    let ends: [End; 5] = [
        |w, g| _ = w.core.abandon(w.now, g, Abandon::NotDispatched),
        |w, g| _ = w.core.abandon(w.now, w.go(g), Abandon::ClientGone),
        |w, g| _ = refused(w.retry(w.go(g), Failure::Broken)),
        |w, g| w.finish(w.commit(w.go(g)).0),
        |w, g| {
            let id = g.worker().id;
            w.fleet(homing_core::fleet::FleetChange::Restarted(id));
            let _ = w.core.abandon(w.now, g, Abandon::Failed);
        },
    ];
    for end in ends {
        let grant = w.grant(w.hard("s"));
        let ticket = w.waiting(w.plain());
        end(&mut w, grant);
        let grant = w.claimed(ticket);
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        while w.woken().is_some() {}
    }
    w.quiesce();
}

#[test]
fn queue_a_probe_that_changes_nothing_wakes_nobody() {
    let mut w = World::with(queueing(8), 0);
    let (a, b) = (w.up("a", &[MODEL, "x-lora"]), w.up("b", &[MODEL]));
    let (_, _, busy) = w.start(w.ask_for("x-lora", None));
    // It waits for a, and has learned that b, though free, is not for it.
    let ticket = w.waiting(w.ask_for("x-lora", None));
    assert_eq!(w.woken(), Some(ticket.id()));
    let Admission::Waiting(ticket) = w.claim(ticket) else { panic!("its worker is busy") };
    for id in [a, b, a, b] {
        w.probe(id, Probe::Good);
        w.probe(id, Probe::Bad);
    }
    w.serves(b, &[MODEL]);
    assert_eq!(w.woken(), None);
    w.serves(b, &[MODEL, "x-lora"]);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, b, "a name more, without any other event, does wake");
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.finish(busy);
    w.quiesce();
}

#[test]
fn queue_a_tick_wakes_a_bounded_number_and_says_that_there_are_more() {
    const WAITING: usize = 2500;
    let mut w = World::with(queueing(WAITING), 1);
    let (_, _, busy) = w.start(w.plain());
    let mut tickets: BTreeMap<_, _> = (0..WAITING)
        .map(|_| match w.core.admit(w.now, w.plain()) {
            Admission::Waiting(ticket) => (ticket.id(), ticket),
            other => panic!("not waiting: {other:?}"),
        })
        .collect();
    w.pass(Duration::from_secs(30));
    let mut ticks = 0;
    while w.core.poll_timeout().is_some_and(|due| due <= w.now) {
        w.core.handle_timeout(w.now);
        ticks += 1;
        let mut now_awake = 0;
        while let Some(id) = w.woken() {
            let claim = w.core.claim(w.now, tickets.remove(&id).unwrap());
            assert_eq!(refused(claim).cause, Cause::Timeout);
            now_awake += 1;
        }
        assert!((1..=1024).contains(&now_awake), "{now_awake}");
    }
    assert_eq!((ticks, tickets.len()), (3, 0));
    w.finish(busy);
    w.quiesce();
}

struct CoreSettingsExt;

impl CoreSettingsExt {
    fn no_retry(
        mut settings: homing_core::settings::CoreSettings,
    ) -> homing_core::settings::CoreSettings {
        settings.retry_attempts = 0;
        settings
    }
}
