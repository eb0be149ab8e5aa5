//! R25: workers and pools that an earlier process knew, until this one's fleet has told. What was promised
//! is no claim against what is really served.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::affinity::saved::Kept;
use homing_core::ask::Cause;
use homing_core::core::Cursor;
use homing_core::fleet::{FleetChange, FleetEvent, Probe, Ranks, RouteError, ServedName};
use homing_core::ids::{PartitionId, Role, WorkerId};
use homing_core::settings::{CoreSettings, OnDown};

/// A router that has just been started again, and has read that `s` lives at `w0`. Nobody has registered.
fn restored(settings: CoreSettings) -> (World, WorkerId) {
    let old = World::new(1);
    old.turn(old.hard("s"));
    restored_from(&old, settings)
}

fn restored_from(old: &World, settings: CoreSettings) -> (World, WorkerId) {
    let mut kept: Vec<Kept> = Vec::new();
    let mut cursor = Cursor::default();
    while let Some(part) = old.core.snapshot(old.now, &mut cursor) {
        kept.extend(part.into_iter().map(|(_, kept)| kept));
    }
    let mut w = World::router(settings, 8, 0);
    w.now = old.now + SECOND;
    let pool = promise(&w, MODEL);
    let id = w.core.promise_worker("w0", None);
    kept.iter_mut().for_each(|k| k.target.worker = id);
    assert_eq!(w.core.restore(w.now, pool, &kept), 1);
    w.core.restored();
    w.core.check();
    (w, id)
}

fn promise(w: &World, pool: &str) -> PartitionId {
    w.core.promise_partition(pool, Role::Aggregated).unwrap()
}

fn names(names: &[&str]) -> Vec<ServedName> {
    let name = |n: &&str| ServedName { name: (*n).into(), adapter: n.ends_with("-lora") };
    names.iter().map(name).collect()
}

fn partition_of(w: &World, model: &str) -> PartitionId {
    w.core.route(model).unwrap().partition
}

type Down = fn(&mut World, WorkerId);
const DOWN: [Down; 2] = [|w, id| w.probe(id, Probe::Refused), |w, id| w.down(id)];

#[test]
fn r25_a_home_that_is_down_at_the_start_has_departed_at_once_by_on_down() {
    for mode in MODES {
        for down in DOWN {
            let (mut w, home) = restored(settings());
            assert_eq!(w.register("w0"), home);
            let other = w.up("w1", &[MODEL]);
            down(&mut w, home);
            let requests = w.requests();
            assert_eq!(w.turn(w.ask("s", mode)), (other, Outcome::Rebound), "and no 503");
            assert_eq!((w.moves(), w.requests()), ([1, 0, 0, 0], requests + 1));
            w.quiesce();
        }
    }
}

#[test]
fn r25_a_home_that_is_down_at_the_start_is_unavailable_and_kept_by_on_down() {
    for down in DOWN {
        let mut s = settings();
        s.affinity.on_down = OnDown::Reject;
        let (mut w, home) = restored(s);
        w.register("w0");
        w.up("w1", &[MODEL]);
        down(&mut w, home);
        let before = w.session("s");
        let refusal = w.refused(w.hard("s"));
        assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, true));
        assert_eq!((refusal.outcome, w.session("s")), (Outcome::Rejected, before));
        assert_eq!(w.home("s"), Some(home));
        w.quiesce();
    }
}

#[test]
fn r25_a_promised_worker_whose_port_refused_comes_back_as_another_life() {
    for (down, outcome) in DOWN.into_iter().zip([Outcome::Rebound, Outcome::Hit]) {
        for on_down in [OnDown::Rebind, OnDown::Reject] {
            let mut s = settings();
            s.affinity.on_down = on_down;
            let (mut w, home) = restored(s);
            w.register("w0");
            down(&mut w, home);
            w.back(home);
            let now = w.core.worker_named("w0").unwrap();
            assert_eq!(now == home, outcome == Outcome::Hit, "time-outs are the same life");
            w.serves(now, &[MODEL]);
            assert_eq!(w.turn(w.hard("s")), (now, outcome));
            w.quiesce();
        }
    }
}

#[test]
fn r25_one_that_registered_before_the_file_was_read_has_lived_too() {
    let (mut w, _) = restored(settings());
    let id = w.register("w9");
    assert_eq!(w.core.promise_worker("w9", None), id);
    w.probe(id, Probe::Refused);
    w.probe(id, Probe::Good);
    assert_ne!(w.core.worker_named("w9"), Some(id), "the life that was promised is over");
}

#[test]
fn r25_a_promised_pool_s_name_may_be_an_adapter_s_by_now() {
    let mut w = World::router(settings(), 8, 0);
    promise(&w, "x-lora");
    let id = w.register("w0");
    let events = w.fleet(FleetChange::Serves(id, names(&["base", "x-lora"])));
    let taken = |e: &FleetEvent| matches!(e, FleetEvent::NameTaken(..));
    assert!(!events.iter().any(taken), "{events:?}");
    w.probe(id, Probe::Good);
    let route = w.core.route("x-lora").unwrap();
    assert_eq!((&*route.adapter, route.partition), ("x-lora", partition_of(&w, "base")));
    let served = [("x-lora", true), ("base", false)].map(|(n, a)| (n.into(), a));
    assert_eq!(w.core.served_models(), served);
    assert_eq!(w.turn(w.ask_for("x-lora", None)).0, id);
    assert_eq!(w.core.promise_partition("x-lora", Role::Aggregated), None, "no pool any more");
}

#[test]
fn r25_two_promised_pools_may_be_one_by_now() {
    for order in [["m", "alias"], ["alias", "m"]] {
        let mut w = World::router(settings(), 8, 0);
        let pools = [promise(&w, "m"), promise(&w, "alias")];
        assert_ne!(pools[0], pools[1]);
        let id = w.register("w0");
        let events = w.fleet(FleetChange::Serves(id, names(&order)));
        assert!(!events.iter().any(|e| matches!(e, FleetEvent::NameTaken(..))), "{events:?}");
        w.probe(id, Probe::Good);
        assert_eq!(partition_of(&w, "m"), partition_of(&w, "alias"));
        // A second one finds it, whatever it names first.
        w.up("w1", &["alias", "m"]);
        for model in order {
            let ask = at(w.ask_for(model, None), "w1", None);
            assert_eq!(w.name_of(w.turn(ask).0), "w1");
            assert_eq!(w.turn(at(w.ask_for(model, None), "w0", None)).0, id);
        }
    }
}

#[test]
fn r25_a_promise_parts_nobody_from_the_pool_that_is_served() {
    let mut w = World::router(settings(), 8, 0);
    promise(&w, "alias");
    w.up("w0", &["m"]);
    // Without the promise its second name would lead it to the first one's pool.
    let id = w.register("w1");
    let events = w.fleet(FleetChange::Serves(id, names(&["alias", "m"])));
    assert!(!events.iter().any(|e| matches!(e, FleetEvent::NameTaken(..))), "{events:?}");
    w.probe(id, Probe::Good);
    assert_eq!(partition_of(&w, "m"), partition_of(&w, "alias"));
    assert_eq!(w.turn(at(w.ask_for("m", None), "w1", None)).0, id);
}

#[test]
fn r25_a_promised_pool_is_starting_while_somebody_has_not_told_what_it_serves() {
    let (mut w, id) = restored(settings());
    w.register("w0");
    let other = w.register("w1");
    assert_eq!(w.core.route(MODEL), Err(RouteError::NotYet));
    w.serves(other, &["another"]);
    assert_eq!(w.core.route(MODEL), Err(RouteError::NotYet), "w0 may serve it");
    let mut elsewhere = World::router(settings(), 8, 0);
    promise(&elsewhere, MODEL);
    elsewhere.up("w0", &["another"]);
    assert!(elsewhere.core.route(MODEL).is_ok(), "everybody has told");
    assert_eq!(elsewhere.refused(elsewhere.plain()).cause, Cause::NoWorker);
    // Served, it is a pool like any: who has not told yet is not waited for.
    w.serves(id, &[MODEL]);
    w.back(id);
    w.register("w2");
    assert_eq!(w.turn(w.hard("s")), (id, Outcome::Hit));
}

#[test]
fn r25_whether_a_home_has_its_rank_still_is_known_once_it_serves() {
    for (ranks, outcome) in [(4, Outcome::Hit), (2, Outcome::Rebound)] {
        let mut old = World::new(0);
        old.up_with_ranks("w0", 0, 4);
        old.turn(at(old.hard("s"), "w0", Some(3)));
        let (mut w, home) = restored_from(&old, settings());
        // How many it has it will tell: until then it is said to have one.
        assert_eq!(w.register("w0"), home);
        w.up("w1", &[MODEL]);
        let refusal = w.refused(w.hard("s"));
        assert_eq!((refusal.cause, refusal.bound), (Cause::TargetUnavailable, true));
        assert_eq!(w.home("s"), Some(home));
        w.fleet(FleetChange::Ranks(home, Ranks::new(0, ranks)));
        w.serves(home, &[MODEL]);
        w.back(home);
        assert_eq!(w.turn(w.hard("s")).1, outcome, "{ranks}");
        w.quiesce();
    }
}
