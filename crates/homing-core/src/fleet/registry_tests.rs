//! Pools, names, lives and states: what the registry makes of what the world says.

use super::*;

fn spec(name: &str) -> WorkerSpec {
    WorkerSpec {
        name: name.into(),
        url: format!("http://{name}").into(),
        labels: BTreeMap::default(),
    }
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
    r.workers().find(|w| w.0.id == id).unwrap().1
}

#[test]
fn f69_aliases_and_adapters_are_names_of_one_pool() {
    let mut r = Registry::new(3, 1);
    up(&mut r, "a", &[base("qwen"), base("sonnet"), adapter("qwen-sql")]);
    up(&mut r, "b", &[base("qwen")]);
    up(&mut r, "c", &[base("sonnet")]);
    up(&mut r, "d", &[base("llama")]);
    let at = |m: &str| r.route(m).unwrap();
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
    assert_ne!(r.route("qwen").unwrap().partition, r.route("llama").unwrap().partition);
}

#[test]
fn a_model_that_was_ever_served_is_no_404() {
    let mut r = Registry::new(3, 1);
    assert_eq!(r.route("qwen"), Err(RouteError::NotYet), "nobody is known at all");
    let id = up(&mut r, "a", &[base("qwen")]);
    assert_eq!(r.route("other"), Err(RouteError::Unknown));
    let b = register(&mut r, "b");
    assert_eq!(r.route("other"), Err(RouteError::NotYet), "b may serve it");
    r.apply(FleetChange::Remove(b)).unwrap();
    r.apply(FleetChange::Remove(id)).unwrap();
    assert!(r.route("qwen").is_ok());
    r.declare("promised");
    assert_eq!(r.route("promised"), Err(RouteError::NoWorker));
    up(&mut r, "c", &[base("promised")]);
    assert!(r.route("promised").is_ok());
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
    let events = r.apply(FleetChange::Register(spec("a"))).unwrap();
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
    assert_eq!(r.route("new").unwrap().partition, first, "one name holds it there");
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
        let (route, again) = (r.route(name).unwrap(), r.route(name).unwrap());
        assert_eq!((&*route.model, &*route.adapter), (name, means));
        assert!(Arc::ptr_eq(&route.model, &again.model), "one string for all requests");
        assert!(Arc::ptr_eq(&route.adapter, &again.adapter));
        assert_eq!(Arc::ptr_eq(&route.adapter, &route.model), !means.is_empty());
    }
    let adapters = [r.route("m").unwrap().adapter, r.route("alias").unwrap().adapter];
    assert!(Arc::ptr_eq(&adapters[0], &adapters[1]), "base names share theirs");
}
