//! R08: who waits, for what, and for how long. Lines of single workers stand in nobody's way.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Cause, Ticket};
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnOverload};
use std::time::Duration;

/// One request at a time each, and nobody waits but for one worker in particular.
fn no_queue() -> CoreSettings {
    queueing(0)
}

/// Both kinds of settings under which an explicit target is waited for.
fn waits() -> [CoreSettings; 2] {
    [queueing(8), no_queue()]
}

/// Still waiting: if it was woken, it looks in vain.
fn still(w: &World, ticket: Ticket) -> Ticket {
    let Some(id) = w.woken() else { return ticket };
    assert_eq!(id, ticket.id());
    match w.claim(ticket) {
        Admission::Waiting(ticket) => ticket,
        other => panic!("not waiting any more: {other:?}"),
    }
}

#[test]
fn r08_a_bound_turn_does_not_wait_for_its_own_busy_worker() {
    for mode in MODES {
        let w = World::with(queueing(4), 2);
        let (home, _, first) = w.start(w.hard("s"));
        for _ in 0..3 {
            let (worker, outcome, live) = w.start(w.ask("s", mode));
            assert_eq!((worker, outcome), (home, Outcome::Hit), "it queues in the engine");
            w.finish(live);
        }
        w.finish(first);
        w.quiesce();
    }
}

#[test]
fn r08_a_bound_turn_waits_when_every_eligible_target_is_busy() {
    type Occupy = fn(&mut World, WorkerId) -> Option<homing_core::ask::Live>;
    // Busy, or not eligible: then home's own load decides alone.
    let others: [Occupy; 4] = [
        |w, id| Some(w.start(at(w.plain(), &w.name_of(id), None)).2),
        |w, id| {
            w.drain(id, None);
            None
        },
        |w, id| {
            w.down(id);
            None
        },
        |w, id| {
            w.overload(id, Some(SECOND * 20));
            None
        },
    ];
    for (i, occupy) in others.into_iter().enumerate() {
        let mut w = World::with(queueing(4), 2);
        let (home, _, busy) = w.start(w.hard("s"));
        let other = w.others(home)[0];
        let live = occupy(&mut w, other);
        let ticket = w.waiting(w.hard("s"));
        let ticket = still(&w, ticket);
        w.finish(busy);
        let grant = w.claimed(ticket);
        assert_eq!(grant.worker().id, home, "others {i}");
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        live.into_iter().for_each(|l| w.finish(l));
        w.quiesce();
    }
}

#[test]
fn r08_without_a_queue_a_bound_turn_never_waits() {
    let w = World::with(no_queue(), 1);
    let (home, _, first) = w.start(w.hard("s"));
    let (worker, outcome, second) = w.start(w.hard("s"));
    assert_eq!((worker, outcome), (home, Outcome::Hit));
    w.finish(first);
    w.finish(second);
    w.quiesce();
}

#[test]
fn r08_an_explicit_one_waits_for_its_worker_though_others_are_free() {
    for settings in waits() {
        let w = World::with(settings, 3);
        w.turn(at(w.hard("s"), "w1", None));
        for (ask, outcome) in
            [(w.plain(), Outcome::None), (w.hard("s"), Outcome::Hit), (w.soft("s"), Outcome::Hit)]
        {
            let (there, _, busy) = w.start(at(w.plain(), "w1", None));
            let ticket = w.waiting(at(ask, "w1", None));
            assert_eq!(w.stats().leases, 0, "it holds nothing");
            let ticket = still(&w, ticket);
            w.finish(busy);
            let grant = w.claimed(ticket);
            assert_eq!(grant.worker().id, there);
            let (live, got) = w.commit(w.go(grant));
            assert_eq!(got, outcome);
            w.finish(live);
        }
        w.quiesce();
    }
}

#[test]
fn r08_explicit_ones_are_served_in_order() {
    for settings in waits() {
        let queues = settings.queue.max_requests > 0;
        let w = World::with(settings, 2);
        let (_, _, mut running) = w.start(at(w.plain(), "w0", None));
        let tickets: Vec<_> = (0..3).map(|_| w.waiting(at(w.plain(), "w0", None))).collect();
        for ticket in tickets {
            w.finish(running);
            // Free, and promised: a newcomer goes behind, or elsewhere.
            let newcomer = w.waiting(at(w.plain(), "w0", None));
            if queues {
                assert_ne!(w.turn(w.plain()).0, w.core.worker_named("w0").unwrap());
            }
            let grant = w.claimed(ticket);
            w.core.cancel(w.now, newcomer);
            running = w.commit(w.go(grant)).0;
        }
        w.finish(running);
        w.quiesce();
    }
}

#[test]
fn r08_an_explicit_one_leaves_at_once_when_its_worker_departs() {
    type Departure = fn(&mut World, WorkerId);
    let departures: [Departure; 4] = [
        |w, id| w.remove(id),
        |w, id| w.down(id),
        |w, id| _ = w.up(&w.name_of(id), &[MODEL]),
        |w, id| _ = w.fleet(homing_core::fleet::FleetChange::Restarted(id)),
    ];
    for settings in waits() {
        for (i, depart) in departures.into_iter().enumerate() {
            for bound in [false, true] {
                let mut w = World::with(settings.clone(), 2);
                let id = w.core.worker_named("w0").unwrap();
                if bound {
                    w.turn(at(w.hard("s"), "w0", None));
                }
                let (_, _, busy) = w.start(at(w.plain(), "w0", None));
                let ask = if bound { w.hard("s") } else { w.plain() };
                let ticket = w.waiting(at(ask, "w0", None));
                depart(&mut w, id);
                assert_eq!(w.woken(), Some(ticket.id()), "departure {i}");
                let refusal = refused(w.claim(ticket));
                assert_eq!(refusal.cause, Cause::TargetUnavailable, "departure {i}");
                w.finish(busy);
                w.quiesce();
            }
        }
    }
}

#[test]
fn r08_a_bound_one_that_waits_with_everybody_leaves_by_the_first_row() {
    let mut w = World::with(queueing(4), 2);
    let (home, _, first) = w.start(w.hard("s"));
    let (other, _, second) = w.start(w.plain());
    let ticket = w.waiting(w.hard("s"));
    w.finish(second);
    // The other one is free now, which is not its home; home departs before it has looked.
    w.remove(home);
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, other);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
    w.finish(first);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r08_a_deadline_in_a_worker_s_line_is_a_timeout() {
    for settings in waits() {
        let mut w = World::with(settings, 2);
        w.turn(at(w.hard("s"), "w0", None));
        let (_, _, busy) = w.start(at(w.plain(), "w0", None));
        let before = w.session("s").map(|v| (v.target, v.version, v.leases));
        let mut soon = at(w.hard("s"), "w0", None);
        soon.deadline = Some(w.now + SECOND);
        let (soon, patient) = (w.waiting(soon), w.waiting(at(w.hard("s"), "w0", None)));
        for (ticket, passes) in [(soon, 1), (patient, 29)] {
            w.pass(SECOND * passes);
            assert_eq!(w.core.poll_timeout(), Some(w.now));
            w.tick();
            assert_eq!(w.woken(), Some(ticket.id()));
            let refusal = refused(w.claim(ticket));
            assert_eq!((refusal.cause, refusal.outcome), (Cause::Timeout, Outcome::Rejected));
            assert_eq!(w.session("s").map(|v| (v.target, v.version, v.leases)), before);
        }
        w.finish(busy);
        w.quiesce();
    }
}

#[test]
fn r08_without_a_queue_at_most_1024_wait_for_single_workers() {
    let w = World::with(no_queue(), 2);
    let (_, _, busy) = w.start(at(w.plain(), "w0", None));
    // Without the world's checks, which walk all lines each time.
    let wait = || match w.core.admit(w.now, at(w.plain(), "w0", None)) {
        Admission::Waiting(ticket) => Some(ticket),
        Admission::Refused(refusal) => {
            assert_eq!(refusal.cause, Cause::QueueFull);
            None
        }
        Admission::Granted(grant) => panic!("granted: {grant:?}"),
    };
    let tickets: Vec<_> = std::iter::from_fn(wait).take(5000).collect();
    assert_eq!((tickets.len(), w.stats().waiting), (1024, 1024));
    // In all, not in each line.
    let (_, _, other) = w.start(at(w.plain(), "w1", None));
    assert_eq!(w.refused(at(w.plain(), "w1", None)).cause, Cause::QueueFull);
    for ticket in tickets {
        w.core.cancel(w.now, ticket);
    }
    w.finish(busy);
    w.finish(other);
    w.quiesce();
}

#[test]
fn r08_the_queue_s_bound_is_for_all_lines_together() {
    let w = World::with(queueing(2), 2);
    let (a, b) = (w.start(at(w.plain(), "w0", None)).2, w.start(at(w.plain(), "w1", None)).2);
    let tickets = [w.waiting(at(w.plain(), "w0", None)), w.waiting(w.plain())];
    for ask in [w.plain(), at(w.plain(), "w0", None), at(w.plain(), "w1", None)] {
        assert_eq!(w.refused(ask).cause, Cause::QueueFull);
    }
    tickets.into_iter().for_each(|t| w.core.cancel(w.now, t));
    w.finish(a);
    w.finish(b);
    w.quiesce();
}

#[test]
fn r08_no_line_stands_in_another_s_way() {
    for settings in waits() {
        let w = World::with(settings, 3);
        let (_, _, on_0) = w.start(at(w.plain(), "w0", None));
        let (_, _, on_1) = w.start(at(w.plain(), "w1", None));
        let (for_0, for_1) =
            (w.waiting(at(w.plain(), "w0", None)), w.waiting(at(w.plain(), "w1", None)));
        // Those who take any are served by w2; those for w2 too; and w1's line before w0's.
        assert_eq!(w.name_of(w.turn(w.plain()).0), "w2");
        assert_eq!(w.name_of(w.turn(at(w.plain(), "w2", None)).0), "w2");
        assert_eq!(w.name_of(w.turn(w.hard("s")).0), "w2");
        w.finish(on_1);
        let grant = w.claimed(for_1);
        assert_eq!(w.name_of(grant.worker().id), "w1");
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        w.finish(on_0);
        let grant = w.claimed(for_0);
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        w.quiesce();
    }
}

#[test]
fn r08_who_takes_any_is_not_stuck_behind_who_takes_one() {
    // One waits for w0 before the other waits for anybody; w1 gets free.
    let w = World::with(queueing(8), 2);
    let (_, _, on_0) = w.start(at(w.plain(), "w0", None));
    let (_, _, on_1) = w.start(at(w.plain(), "w1", None));
    let (one, any) = (w.waiting(at(w.plain(), "w0", None)), w.waiting(w.plain()));
    w.finish(on_1);
    let grant = w.claimed(any);
    assert_eq!(w.name_of(grant.worker().id), "w1");
    // And w0, when it gets free, is for the one that waits for it, not for the next that takes any.
    let next = w.waiting(w.plain());
    w.finish(on_0);
    let first = w.claimed(one);
    assert_eq!(w.name_of(first.worker().id), "w0");
    let next = still(&w, next);
    let _ = w.core.abandon(w.now, first, Abandon::NotDispatched);
    let grant_2 = w.claimed(next);
    assert_eq!(w.name_of(grant_2.worker().id), "w0", "it is anybody's again");
    for grant in [grant, grant_2] {
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    }
    w.quiesce();
}

#[test]
fn r08_who_waits_for_an_overloaded_home_stands_in_nobody_s_way() {
    let mut s = queueing(8);
    s.affinity.on_overload = OnOverload::Wait;
    let mut w = World::with(s, 2);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(SECOND * 5));
    let ticket = w.waiting(w.hard("s"));
    for ask in [w.plain(), w.hard("new"), w.soft("s")] {
        let (worker, _) = w.turn(ask);
        assert_ne!(worker, home);
    }
    // The soft one has moved the session: who waits looks at it anew, when its turn comes.
    let moved = w.home("s").unwrap();
    w.pass(SECOND * 5);
    w.tick();
    let grant = w.claimed(ticket);
    assert_eq!(grant.worker().id, moved);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r08_session_and_liveness_are_read_when_an_explicit_one_is_granted() {
    for settings in waits() {
        let w = World::with(settings, 2);
        let (_, _, busy) = w.start(at(w.plain(), "w0", None));
        let ticket = w.waiting(at(w.hard("s"), "w0", None));
        // Bound elsewhere while it waits: its own fault now.
        assert_eq!(w.turn(at(w.hard("s"), "w1", None)).1, Outcome::New);
        w.finish(busy);
        assert_eq!(w.woken(), Some(ticket.id()));
        let refusal = refused(w.claim(ticket));
        assert_eq!((refusal.cause, refusal.bound), (Cause::Conflict, true));
        w.quiesce();
    }
}

#[test]
fn r08_an_explicit_one_that_leaves_its_line_lets_others_in() {
    let w = World::with(queueing(8), 1);
    let (_, _, busy) = w.start(w.plain());
    let (one, any) = (w.waiting(at(w.plain(), "w0", None)), w.waiting(w.plain()));
    w.finish(busy);
    assert_eq!(w.woken(), Some(one.id()));
    w.core.cancel(w.now, one);
    let grant = w.claimed(any);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r08_each_rank_is_busy_by_itself() {
    let mut w = World::with(queueing(4), 0);
    w.up_with_ranks("a", 0, 2);
    let (_, _, first) = w.start(at(w.plain(), "a", Some(1)));
    let (_, _, second) = w.start(at(w.plain(), "a", Some(0)));
    let ticket = w.waiting(at(w.plain(), "a", Some(1)));
    w.finish(second);
    let ticket = still(&w, ticket);
    w.pass(Duration::from_millis(1));
    w.finish(first);
    let grant = w.claimed(ticket);
    assert_eq!(grant.target().rank.unwrap().0, 1);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r08_who_waits_for_one_rank_stands_in_no_other_rank_s_way() {
    for settings in waits() {
        let mut w = World::with(settings, 0);
        w.up_with_ranks("a", 0, 2);
        let (_, _, busy) = w.start(at(w.plain(), "a", Some(0)));
        let first = w.waiting(at(w.plain(), "a", Some(0)));
        let first = still(&w, first);
        // Behind it, if at all, for no longer than it takes to look.
        let grant = match w.admit(at(w.plain(), "a", Some(1))) {
            Admission::Granted(grant) => grant,
            Admission::Waiting(ticket) => w.claimed(ticket),
            Admission::Refused(refusal) => panic!("{refusal:?}"),
        };
        assert_eq!(grant.target().rank.unwrap().0, 1);
        w.finish(busy);
        let other = w.claimed(first);
        for grant in [grant, other] {
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        w.quiesce();
    }
}

#[test]
fn r08_waiting_does_not_keep_an_idle_session_alive() {
    let mut w = World::with(queueing(4), 1);
    w.turn(w.hard("s"));
    let (_, _, busy) = w.start(w.plain());
    w.pass(SECOND * 20);
    let tickets = [w.waiting(w.hard("s")), w.waiting(at(w.hard("s"), "w0", None))];
    assert_eq!(w.session("s").unwrap().idle, SECOND * 20);
    tickets.into_iter().for_each(|t| w.core.cancel(w.now, t));
    assert_eq!(w.session("s").unwrap().idle, SECOND * 20);
    w.finish(busy);
    w.quiesce();
}
