//! Pools, names, lives and states: what the registry makes of what the world says.

use super::*;
use crate::fleet::worker::{Probe, WorkerSpec};

fn spec(name: &str) -> WorkerSpec {
    WorkerSpec::new(name, &format!("http://{name}"))
}

fn base(name: &str) -> ServedName {
    ServedName { name: name.into(), adapter: false }
}

fn adapter(name: &str) -> ServedName {
    ServedName { name: name.into(), adapter: true }
}

fn register(r: &mut Registry, name: &str) -> WorkerId {
    r.apply(FleetChange::Register(spec(name))).unwrap();
    r.by_name(name).unwrap()
}

fn up(r: &mut Registry, name: &str, names: &[ServedName]) -> WorkerId {
    let id = register(r, name);
    r.apply(FleetChange::Serves(id, names.to_vec())).unwrap();
    r.apply(FleetChange::Probed(id, Probe::Good)).unwrap();
    id
}

fn state(r: &Registry, id: WorkerId) -> State {
    r.workers().find(|w| w.0.info.id == id).unwrap().0.state
}

#[test]
fn f69_aliases_and_adapters_are_names_of_one_pool() {
    let mut r = Registry::new(3, 1);
    up(&mut r, "a", &[base("qwen"), base("sonnet"), adapter("qwen-sql")]);
    up(&mut r, "b", &[base("qwen")]);
    up(&mut r, "c", &[base("sonnet")]);
    up(&mut r, "d", &[base("llama")]);
    let at = |m: &str| r.route(m, Role::Aggregated).unwrap();
    assert_eq!(at("qwen").partition, at("sonnet").partition);
    assert_eq!(at("qwen").partition, at("qwen-sql").partition);
    assert_ne!(at("qwen").partition, at("llama").partition);
    assert_eq!((&*at("qwen").adapter, &*at("sonnet").adapter), ("", ""));
    assert_eq!(&*at("qwen-sql").adapter, "qwen-sql");
}

#[test]
fn a_name_of_another_pool_stays_there() {
    let mut r = Registry::new(3, 1);
    up(&mut r, "a", &[base("qwen")]);
    up(&mut r, "b", &[base("llama")]);
    let id = register(&mut r, "c");
    let served = vec![base("llama"), base("qwen")];
    let events = r.apply(FleetChange::Serves(id, served)).unwrap();
    assert!(events.contains(&FleetEvent::NameTaken(id, "qwen".into())), "{events:?}");
    assert_ne!(
        r.route("qwen", Role::Aggregated).unwrap().partition,
        r.route("llama", Role::Aggregated).unwrap().partition
    );
}

#[test]
fn a_model_that_was_ever_served_is_no_404() {
    let mut r = Registry::new(3, 1);
    assert_eq!(
        r.route("qwen", Role::Aggregated),
        Err(RouteError::NotYet),
        "nobody is known at all"
    );
    let id = up(&mut r, "a", &[base("qwen")]);
    assert_eq!(r.route("other", Role::Aggregated), Err(RouteError::Unknown));
    let b = register(&mut r, "b");
    assert_eq!(r.route("other", Role::Aggregated), Err(RouteError::NotYet), "b may serve it");
    r.apply(FleetChange::Remove(b)).unwrap();
    r.apply(FleetChange::Remove(id)).unwrap();
    assert!(r.route("qwen", Role::Aggregated).is_ok());
    r.declare("promised");
    assert_eq!(r.route("promised", Role::Aggregated), Err(RouteError::NoWorker));
    up(&mut r, "c", &[base("promised")]);
    assert!(r.route("promised", Role::Aggregated).is_ok());
}

#[test]
fn probes_move_a_worker_between_its_states() {
    let mut r = Registry::new(2, 2);
    let id = register(&mut r, "a");
    assert_eq!(state(&r, id), State::Starting);
    let probe = |r: &mut Registry, p| r.apply(FleetChange::Probed(id, p)).unwrap();
    probe(&mut r, Probe::Good);
    assert_eq!(state(&r, id), State::Starting, "what it serves is unknown");
    r.apply(FleetChange::Serves(id, vec![base("m")])).unwrap();
    assert_eq!(state(&r, id), State::Ready);
    probe(&mut r, Probe::Bad);
    assert_eq!(state(&r, id), State::Ready, "f65: one slow probe is nothing");
    probe(&mut r, Probe::Bad);
    assert_eq!(state(&r, id), State::Down);
    probe(&mut r, Probe::Good);
    assert_eq!(state(&r, id), State::Down, "one success of two");
    let events = probe(&mut r, Probe::Good);
    assert_eq!(events, [FleetEvent::State(id, State::Ready)], "time-outs are the same life");
}

#[test]
fn f21_a_refused_port_ends_a_life_and_the_next_good_probe_begins_another() {
    let mut r = Registry::new(3, 1);
    let old = up(&mut r, "a", &[base("m")]);
    let down = r.apply(FleetChange::Probed(old, Probe::Refused)).unwrap();
    assert_eq!(down, [FleetEvent::State(old, State::Down)], "at once");
    let events = r.apply(FleetChange::Probed(old, Probe::Good)).unwrap();
    let new = r.by_name("a").unwrap();
    assert_ne!(old, new);
    assert_eq!(events, [FleetEvent::Reborn { old, new }, FleetEvent::State(new, State::Ready)]);
    assert_eq!(r.row(new).unwrap().1.state, State::Ready);
    assert!(r.row(old).is_none());
    assert_eq!(
        r.apply(FleetChange::Probed(old, Probe::Good)),
        Err(FleetError::UnknownWorker),
        "a late word about the old life changes nothing"
    );
}

#[test]
fn a_worker_that_was_refused_before_it_was_ever_up_has_lived_no_life() {
    let mut r = Registry::new(3, 1);
    let id = register(&mut r, "a");
    r.apply(FleetChange::Probed(id, Probe::Refused)).unwrap();
    assert_eq!(state(&r, id), State::Down);
    r.apply(FleetChange::Serves(id, vec![base("m")])).unwrap();
    let events = r.apply(FleetChange::Probed(id, Probe::Good)).unwrap();
    assert_eq!(events, [FleetEvent::State(id, State::Ready)]);
}

#[test]
fn a_registration_under_a_name_in_use_replaces_it() {
    let mut r = Registry::new(3, 1);
    let old = up(&mut r, "a", &[base("m")]);
    let events = r.apply(FleetChange::Register(WorkerSpec { generation: 1, ..spec("a") })).unwrap();
    let new = r.by_name("a").unwrap();
    assert_eq!(events, [FleetEvent::Removed(old), FleetEvent::Registered(new)]);
    assert_eq!(state(&r, new), State::Starting);
    assert_eq!(r.workers().count(), 1);
}

#[test]
fn a_worker_without_a_base_model_is_refused_and_nothing_changes() {
    let mut r = Registry::new(3, 1);
    let id = register(&mut r, "a");
    let only = vec![adapter("x")];
    assert_eq!(r.apply(FleetChange::Serves(id, only)), Err(FleetError::NoModel));
    assert_eq!(r.apply(FleetChange::Serves(id, vec![])), Err(FleetError::NoModel));
    assert!(r.row(id).is_none());
}

#[test]
fn a_worker_that_comes_back_with_another_model_changes_its_pool() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m"), base("alias")]);
    let first = r.row(id).unwrap().0;
    assert_eq!(r.apply(FleetChange::Serves(id, vec![base("new"), base("alias")])).unwrap(), []);
    assert_eq!(
        r.route("new", Role::Aggregated).unwrap().partition,
        first,
        "one name holds it there"
    );
    let events = r.apply(FleetChange::Serves(id, vec![base("other")])).unwrap();
    let second = r.row(id).unwrap().0;
    assert_ne!(first, second);
    assert_eq!(events, [FleetEvent::Placed(id, second)]);
}

#[test]
fn a_route_carries_the_names_themselves_and_copies_none() {
    let mut r = Registry::new(3, 1);
    up(&mut r, "a", &[base("m"), base("alias"), adapter("x")]);
    for (name, means) in [("m", ""), ("alias", ""), ("x", "x")] {
        let (route, again) =
            (r.route(name, Role::Aggregated).unwrap(), r.route(name, Role::Aggregated).unwrap());
        assert_eq!((&*route.model, &*route.adapter), (name, means));
        assert!(Arc::ptr_eq(&route.model, &again.model), "one string for all requests");
        assert!(Arc::ptr_eq(&route.adapter, &again.adapter));
        assert_eq!(Arc::ptr_eq(&route.adapter, &route.model), !means.is_empty());
    }
    let adapters = [
        r.route("m", Role::Aggregated).unwrap().adapter,
        r.route("alias", Role::Aggregated).unwrap().adapter,
    ];
    assert!(Arc::ptr_eq(&adapters[0], &adapters[1]), "base names share theirs");
}

// === lives ===

fn apply(r: &mut Registry, change: FleetChange) -> Vec<FleetEvent> {
    r.apply(change).unwrap()
}

#[test]
fn a_registration_that_is_seen_again_is_the_same_life() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m")]);
    apply(&mut r, FleetChange::Ranks(id, Ranks::new(0, 4)));
    assert_eq!(apply(&mut r, FleetChange::Register(spec("a"))), []);
    let row = r.row(id).unwrap().1;
    assert_eq!((row.state, row.ranks), (State::Ready, Ranks::new(0, 4)), "all that was learned");
    // What it says of itself besides may change: that is news, and no departure.
    let labelled = WorkerSpec {
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        ranks: Ranks::new(0, 2),
        ..spec("a")
    };
    assert_eq!(apply(&mut r, FleetChange::Register(labelled.clone())), []);
    assert_eq!(r.by_name("a"), Some(id));
    let row = r.row(id).unwrap().1;
    assert_eq!((&row.info.spec, row.ranks), (&labelled, Ranks::new(0, 2)));
}

#[test]
fn another_generation_place_or_role_is_another_life_and_so_is_gone_and_come() {
    let other: [fn(&mut WorkerSpec); 3] =
        [|s| s.generation = 7, |s| s.url = "http://elsewhere".into(), |s| s.role = Role::Prefill];
    for change in other {
        let mut r = Registry::new(3, 1);
        let old = up(&mut r, "a", &[base("m")]);
        let mut spec = spec("a");
        change(&mut spec);
        let events = apply(&mut r, FleetChange::Register(spec.clone()));
        let new = r.by_name("a").unwrap();
        assert_eq!(events, [FleetEvent::Removed(old), FleetEvent::Registered(new)]);
        assert!(r.row(new).is_none() && r.info(old).is_none(), "nothing is known of it yet");
        assert_eq!(apply(&mut r, FleetChange::Register(spec)), [], "seen again in its turn");
    }
    let mut r = Registry::new(3, 1);
    let old = up(&mut r, "a", &[base("m")]);
    apply(&mut r, FleetChange::Remove(old));
    assert_ne!(register(&mut r, "a"), old);
}

#[test]
fn whoever_discovery_is_unsure_of_is_not_used_until_it_answers_and_lives_on() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m")]);
    let events = apply(&mut r, FleetChange::Unsure(id));
    assert_eq!(events, [FleetEvent::State(id, State::Starting)]);
    assert_eq!(apply(&mut r, FleetChange::Unsure(id)), []);
    assert_eq!(apply(&mut r, FleetChange::Register(spec("a"))), []);
    assert_eq!(state(&r, id), State::Starting, "that it is listed is no answer");
    let events = apply(&mut r, FleetChange::Probed(id, Probe::Good));
    assert_eq!(events, [FleetEvent::State(id, State::Ready)]);
    // One that is Down stays so.
    apply(&mut r, FleetChange::Probed(id, Probe::Refused));
    assert_eq!(apply(&mut r, FleetChange::Unsure(id)), []);
    assert_eq!(state(&r, id), State::Down);
}

#[test]
fn f21_a_port_that_refuses_ends_a_life_though_discovery_was_unsure_of_it() {
    let mut r = Registry::new(3, 1);
    let old = up(&mut r, "a", &[base("m")]);
    apply(&mut r, FleetChange::Unsure(old));
    apply(&mut r, FleetChange::Probed(old, Probe::Refused));
    let events = apply(&mut r, FleetChange::Probed(old, Probe::Good));
    let new = r.by_name("a").unwrap();
    assert_eq!(events, [FleetEvent::Reborn { old, new }, FleetEvent::State(new, State::Ready)]);
}

#[test]
fn another_start_time_is_another_life_and_the_first_is_not() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m")]);
    let started = |r: &mut Registry, id, at| apply(r, FleetChange::Started(id, at));
    assert_eq!(started(&mut r, id, 1000), [], "it was not known");
    assert_eq!(started(&mut r, id, 1000), []);
    let events = started(&mut r, id, 2000);
    let second = r.by_name("a").unwrap();
    assert_eq!(events, [FleetEvent::Reborn { old: id, new: second }]);
    assert_eq!(r.row(second).unwrap().1.state, State::Ready, "at the same place, as it was");
    assert_eq!(started(&mut r, second, 2000), [], "that is this one's");
    // Where something else has told of the new life, its start is not another one.
    let events = apply(&mut r, FleetChange::Restarted(second));
    let third = r.by_name("a").unwrap();
    assert_eq!(events, [FleetEvent::Reborn { old: second, new: third }]);
    assert_eq!(started(&mut r, third, 3000), []);
    let known: Vec<_> = r.lives().map(|l| (l.id, l.started)).collect();
    assert_eq!(known, [(third, Some(3000))]);
    let late = r.apply(FleetChange::Started(second, 9));
    assert_eq!(late, Err(FleetError::UnknownWorker));
}

#[test]
fn ranks_and_drain_are_told_and_survive_a_rebirth() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m")]);
    assert_eq!(r.row(id).unwrap().1.ranks, Ranks::default());
    let drain = Drain { moves_at: Some(crate::time::Time::from_micros(5)) };
    assert_eq!(apply(&mut r, FleetChange::Ranks(id, Ranks::new(8, 4))), []);
    assert_eq!(apply(&mut r, FleetChange::Drain(id, Some(drain))), []);
    apply(&mut r, FleetChange::Restarted(id));
    let id = r.by_name("a").unwrap();
    let row = r.row(id).unwrap().1;
    assert_eq!((row.ranks, row.drain), (Ranks::new(8, 4), Some(drain)));
    apply(&mut r, FleetChange::Drain(id, None));
    assert_eq!(r.row(id).unwrap().1.drain, None);
    // Whoever replaces it begins anew.
    apply(&mut r, FleetChange::Drain(id, Some(drain)));
    let next = WorkerSpec { generation: 1, ranks: Ranks::new(0, 2), ..spec("a") };
    apply(&mut r, FleetChange::Register(next));
    let (row, ..) = r.workers().next().unwrap();
    assert_eq!((row.ranks, row.drain), (Ranks::new(0, 2), None));
}

#[test]
fn ranks_are_never_none_and_none_lies_beyond_what_a_number_holds() {
    let all = |r: Ranks| r.iter().map(|r| r.0).collect::<Vec<_>>();
    assert_eq!(all(Ranks::new(8, 3)), [8, 9, 10]);
    assert_eq!((all(Ranks::new(4, 0)), Ranks::new(4, 0).count()), (vec![4], 1));
    assert_eq!(all(Ranks::new(u16::MAX, 9)), [u16::MAX - 1]);
    let wide = Ranks::new(1, u16::MAX);
    assert_eq!((wide.count(), wide.iter().count()), (u16::MAX - 1, usize::from(u16::MAX - 1)));
    let has = |r: Ranks, rank| r.has(crate::ids::DpRank(rank));
    assert!(has(wide, 1) && has(wide, u16::MAX - 1) && !has(wide, 0) && !has(wide, u16::MAX));
}

#[test]
fn nobody_that_is_unknown_can_be_told_anything() {
    let mut r = Registry::new(3, 1);
    let id = register(&mut r, "a");
    apply(&mut r, FleetChange::Remove(id));
    let changes = [
        FleetChange::Unsure(id),
        FleetChange::Remove(id),
        FleetChange::Serves(id, vec![base("m")]),
        FleetChange::Probed(id, Probe::Good),
        FleetChange::Restarted(id),
        FleetChange::Started(id, 1),
        FleetChange::Ranks(id, Ranks::default()),
        FleetChange::Drain(id, None),
    ];
    for change in changes {
        assert_eq!(r.apply(change.clone()), Err(FleetError::UnknownWorker), "{change:?}");
    }
    assert_eq!((r.workers().count(), r.lives().count()), (0, 0));
}

#[test]
fn workers_are_bounded_and_a_full_house_still_lets_one_be_replaced() {
    let mut r = Registry::new(3, 1);
    for i in 0..MAX_WORKERS {
        register(&mut r, &format!("w{i}"));
    }
    let one_more = r.apply(FleetChange::Register(spec("one more")));
    assert_eq!(one_more, Err(FleetError::TooManyWorkers));
    let old = r.by_name("w7").unwrap();
    let next = WorkerSpec { generation: 1, ..spec("w7") };
    let events = apply(&mut r, FleetChange::Register(next));
    let new = r.by_name("w7").unwrap();
    assert_eq!(events, [FleetEvent::Removed(old), FleetEvent::Registered(new)]);
    assert_eq!(r.workers().count(), MAX_WORKERS);
}

// === roles ===

#[test]
fn r17_the_roles_of_a_model_are_partitions_of_one_pool() {
    let mut r = Registry::new(3, 1);
    let roles = [("p", Role::Prefill), ("d", Role::Decode), ("x", Role::Aggregated)];
    let mut places = Vec::new();
    for (name, role) in roles {
        apply(&mut r, FleetChange::Register(WorkerSpec { role, ..spec(name) }));
        let id = r.by_name(name).unwrap();
        assert!(r.route("m", role).is_err(), "nobody serves it in that role yet");
        let served = vec![base("m"), adapter("lora")];
        let events = apply(&mut r, FleetChange::Serves(id, served));
        let (place, row) = r.row(id).unwrap();
        assert_eq!(events, [FleetEvent::Placed(id, place)]);
        assert_eq!(row.info.spec.role, role);
        for name in ["m", "lora"] {
            assert_eq!(r.route(name, role).unwrap().partition, place);
        }
        assert_eq!(r.partition(place).map(|(pool, role)| (&**pool, role)), Some(("m", role)));
        assert_eq!(r.partition_of("m", role), Some(place));
        places.push(place);
    }
    places.dedup();
    assert_eq!(places.len(), 3);
    assert_eq!(r.partition_of("lora", Role::Decode), None, "an adapter has no pool of its own");
    // One that serves in another role from now on is another life.
    let old = r.by_name("p").unwrap();
    apply(&mut r, FleetChange::Register(WorkerSpec { role: Role::Decode, ..spec("p") }));
    let id = r.by_name("p").unwrap();
    apply(&mut r, FleetChange::Serves(id, vec![base("m")]));
    assert_eq!((r.place(id), r.place(old)), (Some(places[1]), None));
}

#[test]
fn r17_a_role_that_nobody_has_is_no_404() {
    let mut r = Registry::new(3, 1);
    up(&mut r, "a", &[base("m")]);
    assert_eq!(r.route("m", Role::Decode), Err(RouteError::NoWorker));
    assert_eq!(r.route("other", Role::Decode), Err(RouteError::Unknown));
}

// === what an earlier process knew ===

#[test]
fn r25_whoever_registers_under_a_promised_name_is_that_life() {
    let mut r = Registry::new(3, 1);
    let before = r.promise_worker("a", Some(1000));
    assert_eq!(r.promise_worker("a", Some(1000)), before);
    assert_ne!(r.promise_worker("b", None), before);
    let lives: Vec<_> = r.lives().map(|l| (l.name.to_string(), l.started)).collect();
    assert_eq!(lives, [("a".to_owned(), Some(1000)), ("b".to_owned(), None)]);
    assert_eq!((r.by_name("a"), r.workers().count()), (None, 0), "nobody is there yet");
    let id = up(&mut r, "a", &[base("m")]);
    assert_eq!(id, before);
    assert_eq!(apply(&mut r, FleetChange::Started(id, 1000)), [], "it is that very process");
    assert_eq!(r.lives().count(), 2);
    // Once kept, the promise is over: who comes later is somebody else.
    apply(&mut r, FleetChange::Remove(id));
    assert_ne!(register(&mut r, "a"), before);
}

#[test]
fn r25_a_process_that_started_at_another_time_is_another_life() {
    let mut r = Registry::new(3, 1);
    let before = r.promise_worker("a", Some(1000));
    let id = up(&mut r, "a", &[base("m")]);
    assert_eq!(id, before, "not known to be another yet");
    let events = apply(&mut r, FleetChange::Started(id, 2000));
    let now = r.by_name("a").unwrap();
    assert_eq!(events, [FleetEvent::Reborn { old: before, new: now }]);
    // Nor is one of whom no start was known refuted by the first that it tells.
    let before = r.promise_worker("b", None);
    let id = up(&mut r, "b", &[base("m")]);
    assert_eq!((id, apply(&mut r, FleetChange::Started(id, 7))), (before, vec![]));
}

#[test]
fn r25_a_promise_after_the_registration_is_kept_unless_the_start_refutes_it() {
    let mut r = Registry::new(3, 1);
    let id = up(&mut r, "a", &[base("m")]);
    assert_eq!(r.promise_worker("a", None), id);
    apply(&mut r, FleetChange::Started(id, 1000));
    assert_eq!(r.promise_worker("a", Some(1000)), id);
    assert_eq!(r.promise_worker("a", None), id);
    let gone = r.promise_worker("a", Some(999));
    assert!(gone != id && r.info(gone).is_none(), "what was bound to it has departed");
    assert_eq!(r.by_name("a"), Some(id));
    assert_eq!(r.lives().count(), 1, "a life that is over is not kept again");
    // The worker's start comes last.
    let id = up(&mut r, "b", &[base("m")]);
    assert_eq!(r.promise_worker("b", Some(1000)), id);
    assert_eq!(r.lives().find(|l| l.id == id).unwrap().started, Some(1000));
    let events = apply(&mut r, FleetChange::Started(id, 2000));
    let new = r.by_name("b").unwrap();
    assert_eq!(events, [FleetEvent::Reborn { old: id, new }]);
}

#[test]
fn r25_promises_are_bounded() {
    let mut r = Registry::new(3, 1);
    for i in 0..MAX_WORKERS + 10 {
        r.promise_worker(&format!("w{i}"), None);
    }
    assert_eq!(r.lives().count(), MAX_WORKERS);
}

#[test]
fn r25_a_promised_partition_is_the_one_that_its_workers_find() {
    let mut r = Registry::new(3, 1);
    let promised = r.promise_partition("m", Role::Aggregated).unwrap();
    let decode = r.promise_partition("m", Role::Decode).unwrap();
    assert_ne!(promised, decode);
    assert_eq!(r.promise_partition("m", Role::Aggregated), Some(promised));
    assert_eq!(r.partition_of("m", Role::Aggregated), Some(promised));
    let id = up(&mut r, "a", &[base("m"), base("alias"), adapter("lora")]);
    assert_eq!(r.place(id), Some(promised));
    assert_eq!(r.route("alias", Role::Aggregated).unwrap().partition, promised);
    // After the registration too; and by the pool's name alone.
    assert_eq!(r.promise_partition("m", Role::Aggregated), Some(promised));
    assert_eq!(r.promise_partition("lora", Role::Aggregated), None, "it is an adapter by now");
    // A name that only the configuration knows.
    r.declare("declared");
    let declared = r.promise_partition("declared", Role::Aggregated).unwrap();
    let id = up(&mut r, "b", &[base("declared")]);
    assert_eq!(r.place(id), Some(declared));
}
