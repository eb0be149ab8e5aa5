//! R07: what happens where the bound target can't be used, row by row.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Ask, Cause, Dispatch, Failure};
use homing_core::dice::{Dice, SplitMix};
use homing_core::fleet::registry::Row;
use homing_core::fleet::{FleetChange, Probe, State, WorkerInfo, WorkerSpec};
use homing_core::hash::Prompt;
use homing_core::ids::{NameId, PartitionId, WorkerId};
use homing_core::partition::Partition;
use homing_core::settings::{CoreSettings, Mode, OnDown};
use homing_core::time::Time;
use std::sync::Arc;
use std::time::Duration;

fn reject() -> CoreSettings {
    let mut settings = settings();
    settings.affinity.on_down = OnDown::Reject;
    settings
}

type Departure = fn(&mut World, WorkerId);

/// Everything that is a departure for a session bound at the worker.
const DEPARTURES: [Departure; 6] = [
    |w, id| w.remove(id),
    |w, id| w.down(id),
    |w, id| w.probe(id, Probe::Refused),
    |w, id| _ = w.fleet(FleetChange::Restarted(id)),
    |w, id| {
        let name =
            w.core.workers().iter().find(|v| v.info.id == id).unwrap().info.spec.name.clone();
        w.up(&name, &[MODEL]);
    },
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
            assert_eq!(w.stats().bookings, 1, "one booking");
            let worker = grant.worker().id;
            let (live, outcome) = w.commit(w.go(grant));
            assert_ne!(worker, home, "departure {i}");
            assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
            assert_eq!(w.moves(), [1, 0, 0]);
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
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(ran), [1, 0, 0]));
    // And the other way round: moved first, departed later.
    let checked = w.go(w.grant(w.hard("s")));
    let moved = w.go(granted(w.retry(checked, Failure::Broken)));
    w.remove(ran);
    let (other, outcome) = w.commit(moved);
    assert_eq!((outcome, w.moves()), (Outcome::Rebound, [2, 0, 0]));
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
        assert_eq!(w.moves(), [1, 0, 0]);
        w.finish(a);
        w.finish(b);
        w.quiesce();
    }
}

#[test]
fn r07_down_rebinds_or_is_refused() {
    let mut w = World::with(reject(), 3);
    let (home, _) = w.turn(w.hard("s"));
    let before = w.session("s").unwrap();
    w.down(home);
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert_eq!(w.session("s"), Some(before), "kept, and as idle as it was");
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_down_and_refused_until_discovery_drops_it_or_it_lives_again() {
    let gone: [Departure; 3] = [
        |w, id| w.remove(id),
        |w, id| {
            w.probe(id, Probe::Refused);
            w.back(id);
        },
        |w, id| _ = w.fleet(FleetChange::Restarted(id)),
    ];
    for depart in gone {
        let mut w = World::with(reject(), 3);
        let (home, _) = w.turn(w.hard("s"));
        w.down(home);
        assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
        depart(&mut w, home);
        let (worker, outcome) = w.turn(w.hard("s"));
        assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
        w.quiesce();
    }
}

#[test]
fn r07_down_and_refused_for_hard_requests_only() {
    let mut w = World::with(reject(), 3);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    let (worker, outcome) = w.turn(w.soft("s"));
    assert_ne!(worker, home);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(worker), [0, 0, 1]));
    w.quiesce();
}

#[test]
fn r07_a_refusal_for_the_target_comes_before_one_for_want_of_workers() {
    let mut w = World::with(reject(), 1);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    assert_eq!(w.refused(w.soft("s")).cause, Cause::NoWorker);
    assert_eq!(w.home("s"), Some(home), "neither dropped it");
    w.quiesce();
}

#[test]
fn r07_worker_that_just_failed_this_request_rebinds() {
    for failure in [Failure::Unreachable, Failure::Broken] {
        for mode in [Mode::Hard, Mode::Soft] {
            let w = World::new(3);
            let (home, _) = w.turn(w.hard("s"));
            let checked = w.go(w.grant(w.ask_for(MODEL, Some(("s", mode)))));
            let moved = granted(w.retry(checked, failure));
            let worker = moved.worker().id;
            assert_ne!(worker, home);
            assert_eq!(w.home("s"), Some(home), "not before it runs elsewhere");
            let (live, outcome) = w.commit(w.go(moved));
            assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(worker)));
            assert_eq!(w.moves(), if mode == Mode::Hard { [0, 1, 0] } else { [0, 0, 1] });
            w.finish(live);
            w.quiesce();
        }
    }
}

#[test]
fn r07_a_refused_port_is_a_departure_at_once_or_a_refusal() {
    let w = World::with(reject(), 2);
    let (home, _) = w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let refusal = refused(w.retry(checked, Failure::Refused));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert_eq!(w.home("s"), Some(home));
    w.quiesce();
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
        assert_eq!((outcome, w.moves()), (Outcome::Rebound, [1, 0, 0]), "departed, not failed");
        w.quiesce();
    }
}

#[test]
fn r07_nobody_left_refuses_and_a_departed_binding_stays_dropped() {
    let mut w = World::new(1);
    let (home, _) = w.turn(w.hard("s"));
    w.remove(home);
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::NoWorker, Outcome::Rejected));
    assert_eq!((w.home("s"), w.stats().bindings), (None, 0));
    w.quiesce();
}

/// A worker that is discovered and not usable yet. The registry gives such a row only to a life that
/// was bound by another router or before a restart; so the partition is told here.
#[test]
fn r07_starting_is_no_departure() {
    let row = |id: u32, state| Row {
        info: Arc::new(WorkerInfo {
            id: WorkerId(id),
            spec: WorkerSpec {
                name: format!("w{id}").as_str().into(),
                url: "".into(),
                labels: Default::default(),
            },
        }),
        state,
        serves: [NameId(0)].into_iter().collect(),
    };
    let mut p = Partition::new(PartitionId(0), settings(), SplitMix::new(1).roll(), 0);
    (0..2).for_each(|id| p.set_row(row(id, State::Ready)));
    let now = Time::from_micros(1);
    let ask = |mode| {
        let mut ask = Ask::new(PartitionId(0), NameId(0), Prompt::of_length(1));
        ask.session = Some((key("s"), mode));
        ask
    };
    let turn = |p: &mut Partition, mode| {
        let grant = granted(p.admit(now, ask(mode)));
        let worker = grant.worker().id;
        let Dispatch::Go(checked) = p.check_dispatch(now, grant) else { panic!("again") };
        let (live, outcome) = p.commit(now, checked);
        p.finish(now, live);
        (worker, outcome)
    };
    let (home, _) = turn(&mut p, Mode::Hard);
    p.set_row(row(home.0, State::Starting));
    let before = p.table().unwrap().get(now, key("s"));
    let refusal = match p.admit(now, ask(Mode::Hard)) {
        Admission::Refused(r) => r,
        other => panic!("{other:?}"),
    };
    assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
    assert_eq!(p.table().unwrap().get(now, key("s")), before, "binding kept");
    p.set_row(row(home.0, State::Ready));
    assert_eq!(turn(&mut p, Mode::Hard), (home, Outcome::Hit));
    p.set_row(row(home.0, State::Starting));
    let (elsewhere, outcome) = turn(&mut p, Mode::Soft);
    assert_ne!(elsewhere, home);
    assert_eq!(outcome, Outcome::Rebound);
    p.check();
}

#[test]
fn r07_a_refused_turn_does_not_keep_an_idle_session_alive() {
    let mut w = World::with(reject(), 2);
    let (home, _) = w.turn(w.hard("s"));
    w.pass(TTL - Duration::from_secs(1));
    w.down(home);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    w.pass(Duration::from_secs(1));
    assert_eq!(w.home("s"), None);
    w.back(home);
    let grant = w.grant(w.hard("s"));
    assert_eq!(grant.placement().considered, 2);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
}
