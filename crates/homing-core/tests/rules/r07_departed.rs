//! R07, the first rows: a bound target that has departed is replaced, in the request that finds out.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Failure};
use homing_core::fleet::{FleetChange, Probe, Ranks};
use homing_core::ids::WorkerId;
use homing_core::settings::Mode;

type Departure = fn(&mut World, WorkerId);

/// Everything that is a departure for a session bound at the worker.
const DEPARTURES: [Departure; 9] = [
    |w, id| w.remove(id),
    |w, id| w.down(id),
    |w, id| w.probe(id, Probe::Refused),
    |w, id| _ = w.fleet(FleetChange::Restarted(id)),
    |w, id| _ = w.up(&w.name_of(id), &[MODEL]),
    |w, id| {
        w.fleet(FleetChange::Started(id, 1000));
        w.fleet(FleetChange::Started(id, 2000));
    },
    |w, id| w.serves(id, &["another"]),
    |w, id| w.drain(id, Some(w.now)),
    |w, id| {
        w.probe(id, Probe::Refused);
        w.back(id);
    },
];

#[test]
fn r07_a_departed_worker_is_replaced_in_one_decision() {
    for (i, depart) in DEPARTURES.into_iter().enumerate() {
        for mode in [Mode::Hard, Mode::Soft] {
            let mut w = World::new(3);
            let (home, _) = w.turn(w.hard("s"));
            depart(&mut w, home);
            let requests: u64 = w.stats().outcomes.iter().sum();
            let grant = w.grant(w.ask_for(MODEL, Some(("s", mode))));
            assert_eq!((w.stats().bookings, w.home("s")), (1, None), "one booking, nothing bound");
            let worker = grant.worker().id;
            let (live, outcome) = w.commit(w.go(grant));
            assert_ne!(worker, home, "departure {i}");
            assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
            assert_eq!(w.moves(), [1, 0, 0, 0]);
            assert_eq!(w.stats().outcomes.iter().sum::<u64>(), requests + 1, "one request");
            w.finish(live);
            assert_eq!(w.turn(w.hard("s")), (worker, Outcome::Hit));
            w.quiesce();
        }
    }
}

#[test]
fn r07_a_blip_between_two_turns_costs_nothing() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_a_departure_while_its_request_is_under_way_rebinds_at_commit() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let moved = granted(w.retry(checked, Failure::Refused));
    let ran = moved.worker().id;
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(ran), [1, 0, 0, 0]));
    // And the other way round: moved first, departed later.
    let checked = w.go(w.grant(w.hard("s")));
    let moved = w.go(granted(w.retry(checked, Failure::Broken)));
    w.remove(ran);
    let (other, outcome) = w.commit(moved);
    assert_eq!((outcome, w.moves()), (Outcome::Rebound, [2, 0, 0, 0]));
    assert!(![Some(home), Some(ran), None].contains(&w.home("s")));
    w.finish(live);
    w.finish(other);
    w.quiesce();
}

#[test]
fn r07_whoever_binds_a_session_that_lost_its_worker_has_moved_it() {
    for first in 0..2 {
        let mut w = World::new(3);
        let (home, _) = w.turn(w.hard("s"));
        w.remove(home);
        // The first of the two drops the binding; either may be the first to run.
        let mut checked = vec![w.go(w.grant(w.hard("s"))), w.go(w.grant(w.hard("s")))];
        let (a, one) = w.commit(checked.remove(first));
        let (b, other) = w.commit(checked.remove(0));
        assert_eq!((one, other), (Outcome::Rebound, Outcome::Joined));
        assert_eq!(w.moves(), [1, 0, 0, 0]);
        w.finish(a);
        w.finish(b);
        w.quiesce();
    }
}

#[test]
fn r07_without_the_adapter_the_worker_has_departed_for_the_adapters_key() {
    for mode in [Mode::Hard, Mode::Soft] {
        let mut w = World::new(0);
        let workers = [w.up("a", &[MODEL, "x-lora"]), w.up("b", &[MODEL, "x-lora"])];
        let ask = |w: &World| w.ask_for("x-lora", Some(("s", mode)));
        let (home, _) = w.turn(ask(&w));
        w.serves(home, &[MODEL]);
        let (worker, outcome) = w.turn(ask(&w));
        assert!(worker != home && workers.contains(&worker));
        assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]), "departed, not failed");
        w.quiesce();
    }
}

#[test]
fn r07_nobody_left_refuses_and_changes_nothing() {
    let mut w = World::new(1);
    let (home, _) = w.turn(w.hard("s"));
    w.remove(home);
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::NoWorker, Outcome::Rejected));
    assert_eq!((w.home("s"), w.stats().bindings), (Some(home), 1));
    w.quiesce();
}

#[test]
fn r07_a_fleet_that_seems_down_for_a_moment_takes_no_home_from_those_who_come_meanwhile() {
    let mut w = World::new(1);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::NoWorker);
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_a_bound_rank_that_fell_out_of_range_recovers_within_the_same_request() {
    for mode in MODES {
        let mut w = World::new(0);
        let id = w.up_with_ranks("a", 0, 2);
        w.turn(at(w.hard("s"), "a", Some(1)));
        assert_eq!(w.session("s").unwrap().target, target(id, 1));
        w.fleet(FleetChange::Ranks(id, Ranks::new(0, 1)));
        let requests = w.requests();
        let grant = w.grant(w.ask("s", mode));
        assert_eq!((grant.target(), w.stats().bookings), (target(id, 0), 1), "one decision");
        let (live, outcome) = w.commit(w.go(grant));
        assert_eq!((outcome, w.session("s").unwrap().target), (Outcome::Rebound, target(id, 0)));
        assert_eq!((w.moves(), w.requests()), ([1, 0, 0, 0], requests + 1), "one request");
        let aborted = [Outcome::Unbound, Outcome::Rejected, Outcome::Conflict];
        assert_eq!(aborted.map(|o| w.outcomes(o)), [0; 3]);
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r07_ranks_that_change_around_a_bound_one_are_no_departure() {
    let mut w = World::new(0);
    let id = w.up_with_ranks("a", 0, 4);
    w.turn(at(w.hard("s"), "a", Some(2)));
    for ranks in [Ranks::new(2, 1), Ranks::new(1, 2), Ranks::new(0, 8)] {
        w.fleet(FleetChange::Ranks(id, ranks));
        assert_eq!(w.turn(w.hard("s")).1, Outcome::Hit);
    }
    assert_eq!(w.session("s").unwrap().target, target(id, 2));
    w.quiesce();
}

#[test]
fn r07_other_sessions_of_a_departed_worker_are_dropped_one_by_one() {
    let mut w = World::new(1);
    let home = w.core.worker_named("w0").unwrap();
    ["a", "b", "c"].into_iter().for_each(|id| _ = w.turn(w.hard(id)));
    w.up("w1", &[MODEL]);
    w.remove(home);
    assert_eq!(w.stats().bindings, 3, "not when the event comes");
    assert_eq!(w.turn(w.hard("b")).1, Outcome::Rebound);
    assert_eq!((w.home("a"), w.home("c")), (Some(home), Some(home)));
    w.quiesce();
}

#[test]
fn r07_a_departed_home_is_replaced_among_those_that_the_request_allows() {
    for mode in MODES {
        let mut w = World::new(3);
        let (home, _) = w.turn(w.hard("s"));
        w.remove(home);
        let allowed = w.name_of(w.others(home)[1]);
        let (worker, outcome) = w.turn(only(w.ask("s", mode), &[&allowed]));
        assert_eq!((w.name_of(worker), outcome), (allowed, Outcome::Rebound));
        w.quiesce();
    }
}

#[test]
fn r07_who_found_nobody_leaves_it_to_the_next_one_to_move_the_session() {
    let mut w = World::new(1);
    let (home, _) = w.turn(w.hard("s"));
    w.remove(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::NoWorker);
    w.up("w1", &[MODEL]);
    assert_eq!((w.turn(w.hard("s")).1, w.moves()), (Outcome::Rebound, [1, 0, 0, 0]));
    w.quiesce();
}

#[test]
fn r07_an_adapter_that_is_gone_is_no_departure_for_the_base_model_s_sessions() {
    let mut w = World::new(0);
    ["a", "b"].into_iter().for_each(|name| _ = w.up(name, &[MODEL, "x-lora"]));
    let mut adapter = at(w.hard("adapter"), "a", None);
    adapter.name = w.core.route("x-lora").unwrap().name;
    let (a, _) = w.turn(adapter.clone());
    assert_eq!(w.turn(at(w.hard("base"), "a", None)).0, a);
    w.serves(a, &[MODEL]);
    assert_eq!(w.turn(w.hard("base")), (a, Outcome::Hit));
    adapter.explicit = None;
    let (worker, outcome) = w.turn(adapter);
    assert!(worker != a && outcome == Outcome::Rebound);
    w.quiesce();
}

/// What a departure would take away, and what would bring it back.
type Blip = (fn(&mut World, WorkerId), fn(&mut World, WorkerId));

const BLIPS: [Blip; 2] = [
    (|w, id| w.down(id), |w, id| w.back(id)),
    (|w, id| w.drain(id, Some(w.now)), |w, id| _ = w.fleet(FleetChange::Drain(id, None))),
];

#[test]
fn r07_a_refusal_while_home_seems_departed_changes_no_binding() {
    for (away, back) in BLIPS {
        for mode in MODES {
            let mut w = World::new(2);
            let (home, _) = w.turn(w.hard("s"));
            let other = w.others(home)[0];
            w.overload(other, Some(SECOND * 30));
            away(&mut w, home);
            let before = w.session("s");
            for ask in [
                w.ask("s", mode),
                only(w.ask("s", mode), &["nobody"]),
                at(w.ask("s", mode), "nobody", None),
            ] {
                assert_eq!(w.refused(ask).outcome, Outcome::Rejected);
                assert_eq!((w.session("s"), w.stats().bindings), (before, 1));
            }
            back(&mut w, home);
            assert_eq!((w.turn(w.hard("s")), w.moves()), ((home, Outcome::Hit), [0; 4]));
            w.quiesce();
        }
    }
}

#[test]
fn r07_a_wait_in_vain_while_home_seems_departed_changes_no_binding() {
    for (away, back) in BLIPS {
        for gives_up in [false, true] {
            let mut w = World::with(queueing(4), 2);
            let (home, _) = w.turn(w.hard("s"));
            let other = w.name_of(w.others(home)[0]);
            let (_, _, busy) = w.start(at(w.plain(), &other, None));
            away(&mut w, home);
            let before = w.session("s").map(|v| (v.target, v.version, v.leases));
            let ticket = w.waiting(w.hard("s"));
            if gives_up {
                w.core.cancel(w.now, ticket);
            } else {
                w.pass(SECOND * 30);
                w.tick();
                while w.woken().is_some() {}
                assert_eq!(refused(w.claim(ticket)).cause, Cause::Timeout);
            }
            assert_eq!(w.session("s").map(|v| (v.target, v.version, v.leases)), before);
            back(&mut w, home);
            assert_eq!((w.turn(w.hard("s")), w.moves()), ((home, Outcome::Hit), [0; 4]));
            w.finish(busy);
            w.quiesce();
        }
    }
}
