//! R08: who waits for home since all are busy has a line of its own there, and is woken by whatever lets
//! it go: its home, though nobody else may use that, or any other worker that has nothing to do.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Cause, Live, Ticket, TicketId};
use homing_core::fleet::FleetChange;
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnOverload};
use std::time::Duration;

const TEN: Duration = Duration::from_secs(10);

/// One of two workers is `s`'s home, and each has one request, which is all that it takes.
struct Full {
    w: World,
    home: WorkerId,
    other: WorkerId,
    at_home: Live,
    elsewhere: Live,
}

/// `before` comes between the session's first turn and the requests that make both busy.
fn full(settings: CoreSettings, before: impl Fn(&mut World, WorkerId)) -> Full {
    let mut w = World::with(settings, 2);
    let (home, _) = w.turn(w.hard("s"));
    let other = w.others(home)[0];
    before(&mut w, home);
    let (_, _, at_home) = w.start(at(w.plain(), &w.name_of(home), None));
    let (_, _, elsewhere) = w.start(at(w.plain(), &w.name_of(other), None));
    Full { w, home, other, at_home, elsewhere }
}

fn dispatching() -> CoreSettings {
    let mut settings = queueing(8);
    settings.affinity.on_overload = OnOverload::Dispatch;
    settings
}

fn nobody_is_awake(w: &World) {
    assert_eq!(w.woken(), None);
}

/// All that are woken now.
fn all_woken(w: &World) -> Vec<TicketId> {
    std::iter::from_fn(|| w.woken()).collect()
}

fn in_vain(w: &World, ticket: Ticket) -> Ticket {
    match w.claim(ticket) {
        Admission::Waiting(ticket) => ticket,
        other => panic!("not waiting any more: {other:?}"),
    }
}

/// Still waiting: if it was woken, it looks in vain.
fn still(w: &World, ticket: Ticket) -> Ticket {
    let Some(id) = w.woken() else { return ticket };
    assert_eq!(id, ticket.id());
    let ticket = in_vain(w, ticket);
    nobody_is_awake(w);
    ticket
}

#[test]
fn r08_a_bound_one_is_woken_by_its_home_though_that_takes_nothing_new() {
    type Trouble = fn(&mut World, WorkerId);
    let nothing: Trouble = |_, _| ();
    let drained: Trouble = |w, id| w.drain(id, None);
    let shed: Trouble = |w, id| w.overload(id, Some(SECOND * 20));
    for (what, settings, before, after) in [
        ("nothing", queueing(8), nothing, nothing),
        ("draining", queueing(8), nothing, drained),
        ("overloaded, and that is ignored", dispatching(), shed, nothing),
    ] {
        let Full { mut w, home, at_home, elsewhere, .. } = full(settings, before);
        after(&mut w, home);
        let ticket = w.waiting(w.hard("s"));
        let ticket = still(&w, ticket);
        w.finish(at_home);
        let grant = w.claimed(ticket);
        assert_eq!(grant.worker().id, home, "{what}");
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!(outcome, Outcome::Hit, "{what}");
        w.finish(live);
        w.finish(elsewhere);
        w.quiesce();
    }
}

#[test]
fn r08_a_bound_one_is_woken_by_its_rank_though_another_one_waits_for_another_rank() {
    let mut w = World::with(queueing(8), 0);
    let id = w.up_with_ranks("w0", 0, 2);
    assert_eq!(w.turn(at(w.hard("s"), "w0", Some(1))).1, Outcome::New);
    let [(_, _, first), (_, _, second)] =
        [0, 1].map(|rank| w.start(at(w.plain(), "w0", Some(rank))));
    let named = w.waiting(at(w.plain(), "w0", Some(0)));
    let bound = w.waiting(w.hard("s"));
    let (named, bound) = (still(&w, named), still(&w, bound));
    w.finish(second);
    let woken = all_woken(&w);
    assert!(woken.contains(&bound.id()), "{woken:?}");
    let named = if woken.contains(&named.id()) { in_vain(&w, named) } else { named };
    let grant = granted(w.claim(bound));
    assert_eq!(grant.target(), target(id, 1));
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::Hit);
    w.core.cancel(w.now, named);
    w.finish(first);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r08_a_bound_one_goes_to_its_busy_home_as_soon_as_any_other_worker_is_free() {
    type Free = fn(&mut World, Live) -> Option<Live>;
    let ways: [Free; 2] = [
        |w, live| {
            w.finish(live);
            None
        },
        |w, live| {
            w.up("new", &[MODEL]);
            Some(live)
        },
    ];
    for free in ways {
        let Full { mut w, home, at_home, elsewhere, .. } = full(queueing(8), |_, _| ());
        let ticket = w.waiting(w.hard("s"));
        let ticket = still(&w, ticket);
        let left = free(&mut w, elsewhere);
        let grant = w.claimed(ticket);
        assert_eq!((grant.worker().id, w.part(home).load.active_requests), (home, 2));
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!(outcome, Outcome::Hit);
        [Some(at_home), Some(live), left].into_iter().flatten().for_each(|l| w.finish(l));
        w.quiesce();
    }
    // One that was draining, and does so no longer; one whose grant came to nothing.
    let Full { mut w, home, other, at_home, elsewhere } = full(queueing(8), |_, _| ());
    w.drain(other, None);
    w.finish(elsewhere);
    let ticket = w.waiting(w.hard("s"));
    let ticket = still(&w, ticket);
    w.fleet(FleetChange::Drain(other, None));
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    let booked = w.grant(at(w.plain(), &w.name_of(other), None));
    let ticket = w.waiting(w.hard("s"));
    let ticket = still(&w, ticket);
    let _ = w.core.abandon(w.now, booked, Abandon::NotDispatched);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, home);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.finish(at_home);
    w.quiesce();
}

#[test]
fn r08_all_bound_ones_go_home_once_somebody_is_free_each_to_its_own() {
    let Full { w, home, other, at_home, elsewhere } = full(queueing(8), |_, _| ());
    let tickets = [(); 3].map(|()| w.waiting(w.hard("s")));
    let tickets = tickets.map(|t| if w.woken().is_some() { in_vain(&w, t) } else { t });
    while w.woken().is_some() {}
    w.finish(elsewhere);
    // One after the other: each sees the other worker free, and takes nothing of it.
    let grants = tickets.map(|ticket| w.claimed(ticket));
    assert!(grants.iter().all(|g| g.worker().id == home));
    assert_eq!(w.part(other).load.active_requests, 0);
    for grant in grants {
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    }
    w.finish(at_home);
    w.quiesce();
}

#[test]
fn r08_a_busy_home_is_waited_for_as_long_as_any_worker() {
    let Full { mut w, at_home, elsewhere, .. } = full(queueing(8), |_, _| ());
    let mut soon = w.hard("s");
    soon.deadline = Some(w.now + TEN);
    let mut late = w.hard("s");
    late.deadline = Some(w.now + SECOND * 600);
    let before = w.session("s").map(|v| (v.target, v.version, v.leases));
    let tickets = [(w.waiting(soon), 10), (w.waiting(late), 20), (w.waiting(w.hard("s")), 0)];
    for (ticket, passes) in tickets {
        w.pass(SECOND * passes);
        w.tick();
        let woken = w.woken();
        assert_eq!(woken, Some(ticket.id()), "30 s, or its client's time");
        let refusal = refused(w.claim(ticket));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::Timeout, Outcome::Rejected));
        assert_eq!(w.session("s").map(|v| (v.target, v.version, v.leases)), before);
    }
    w.finish(at_home);
    w.finish(elsewhere);
    w.quiesce();
}

#[test]
fn r08_who_waits_for_one_rank_closes_no_other_rank_to_new_work() {
    for settings in [queueing(8), queueing(0)] {
        let mut w = World::with(settings, 0);
        let id = w.up_with_ranks("w0", 0, 8);
        let (_, _, busy) = w.start(at(w.plain(), "w0", Some(0)));
        let ticket = w.waiting(at(w.plain(), "w0", Some(0)));
        let lives: Vec<_> = [w.plain(), w.hard("a"), w.soft("b"), w.plain()]
            .map(|ask| {
                let grant = w.grant(ask);
                assert_ne!(grant.target(), target(id, 0));
                w.commit(w.go(grant)).0
            })
            .into();
        w.finish(busy);
        // The rank that is waited for is no newcomer's.
        let next = w.grant(w.plain());
        assert_ne!(next.target(), target(id, 0));
        let grant = granted(w.claim(ticket));
        assert_eq!(grant.target(), target(id, 0));
        for grant in [grant, next] {
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        lives.into_iter().for_each(|l| w.finish(l));
        w.quiesce();
    }
}

/// Found by a storm (seed 197): a home that is one again stands in the way of who waits elsewhere by name.
#[test]
fn r08_a_drain_that_is_taken_back_wakes_who_waits_for_another_worker() {
    for moved in [true, false] {
        let Full { mut w, home, other, at_home, elsewhere } = full(queueing(8), |_, _| ());
        w.drain(home, Some(w.now + if moved { Duration::ZERO } else { TEN }));
        if !moved {
            w.pass(TEN);
            w.tick();
        }
        let named = w.waiting(at(w.hard("s"), &w.name_of(other), None));
        nobody_is_awake(&w);
        w.fleet(FleetChange::Drain(home, None));
        assert!(all_woken(&w).contains(&named.id()));
        assert_eq!(refused(w.claim(named)).cause, Cause::Conflict);
        w.finish(at_home);
        w.finish(elsewhere);
        w.quiesce();
    }
}

#[test]
fn r08_a_drain_that_comes_to_its_deadline_wakes_who_waits_for_that_worker() {
    // Whoever tells the time: a tick, or another request.
    let tells: [fn(&World); 2] = [
        |w| w.tick(),
        |w| assert_eq!(w.refused(at(w.plain(), "nobody", None)).cause, Cause::UnknownWorker),
    ];
    for tell in tells {
        let Full { mut w, home, other, at_home, elsewhere } = full(queueing(8), |_, _| ());
        let named = w.waiting(at(w.hard("s"), &w.name_of(home), None));
        let bound = w.waiting(w.hard("s"));
        w.drain(home, Some(w.now + TEN));
        let woken = all_woken(&w);
        let look = |ticket: Ticket| {
            if woken.contains(&ticket.id()) { in_vain(&w, ticket) } else { ticket }
        };
        let (named, bound) = (look(named), look(bound));
        nobody_is_awake(&w);
        assert_eq!(w.core.poll_timeout(), Some(w.now + TEN));
        w.pass(TEN - Duration::from_micros(1));
        tell(&w);
        nobody_is_awake(&w);
        w.pass(Duration::from_micros(1));
        tell(&w);
        let woken = all_woken(&w);
        assert!(woken.contains(&named.id()) && woken.contains(&bound.id()), "{woken:?}");
        assert_eq!(refused(w.claim(named)).cause, Cause::TargetUnavailable);
        // The bound one waits for anybody from now on, as its home has departed.
        let bound = in_vain(&w, bound);
        let bound = still(&w, bound);
        w.finish(at_home);
        let bound = still(&w, bound);
        w.finish(elsewhere);
        let grant = w.claimed(bound);
        assert_eq!(grant.worker().id, other);
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
        w.finish(live);
        w.quiesce();
    }
}
