//! Where events are found, by what different engines answer.

use super::discovery::static_list;
use super::tests::{Engine, World, neighbours, publisher};
use crate::ingest::Ingest;
use crate::testing::{Lines, eventually};
use homing_core::fleet::FleetChange;
use homing_wire::engine::Kind;

const RANKS: &str = "the worker has other ranks than are known here";

/// A router with ingest, following one worker of so many ranks.
fn follow(engine: &Engine, dp_size: impl Into<Option<u16>>) -> World {
    let world = World::empty("", |shell| Some(Ingest::start(shell.clone()).unwrap()));
    let mut worker = engine.worker("w");
    worker.dp_size = dp_size.into();
    world.life.spawn(world.fleet.clone().follow(static_list(vec![worker])));
    world
}

async fn is_subscribed_to((socket, port): &(zmq::Socket, u16)) {
    eventually(&format!("{port} has its subscriber"), || {
        socket.recv_bytes(zmq::DONTWAIT).is_ok_and(|told| told == [1])
    })
    .await;
}

async fn is_asked_again(engine: &Engine) {
    let asked = engine.says.lock().asked;
    eventually("it is asked again", || engine.says.lock().asked >= asked + 2).await;
}

#[tokio::test]
async fn the_events_of_sglang_are_found_in_its_server_info() {
    let (engine, ports) = (Engine::up(), neighbours());
    let page = format!(
        r#"{{"page_size": 16, "dp_size": 2, "kv_events": {{"publisher": "zmq", "endpoint_host": "*",
            "endpoint_port_base": {}, "topic": "", "block_size": 16, "dp_size": 2}}}}"#,
        ports[0].1
    );
    engine.say(|s| s.pages = vec![("/server_info", 200, page)]);
    let world = follow(&engine, 2);
    eventually("both are connected", || world.fleet.index_state("w") == "events").await;
    for port in &ports {
        is_subscribed_to(port).await;
    }
    world.end().await;
}

#[tokio::test]
async fn an_older_sglang_has_them_under_its_older_name() {
    let (engine, port) = (Engine::up(), publisher("*").unwrap());
    let page = format!(
        r#"{{"page_size": 1, "dp_size": 1,
            "kv_events_config": "{{\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:{}\"}}"}}"#,
        port.1
    );
    engine.say(|s| s.pages = vec![("/get_server_info", 200, page)]);
    let world = follow(&engine, 1);
    eventually("it is connected", || world.fleet.index_state("w") == "events").await;
    is_subscribed_to(&port).await;
    world.end().await;
}

#[tokio::test]
async fn each_kind_of_engine_is_told_its_own_switch() {
    let (lines, _guard) = Lines::listen();
    let sglang = r#"{"page_size": 1, "kv_events": null, "kv_events_config": null}"#;
    for (page, kind) in
        [(sglang, Kind::Sglang), (r#"{"vllm_config": {}}"#, Kind::Vllm), ("<html>", Kind::Vllm)]
    {
        let engine = Engine::up();
        engine.say(|s| s.pages = vec![("/server_info", 200, page.into())]);
        let switch = format!(
            "the worker tells nothing of its cache: what it has is guessed by what it is sent, unless \
             index.source says otherwise; {}",
            kind.events_switch()
        );
        let switch = switch.as_str();
        let before = lines.count(switch);
        let world = follow(&engine, 1);
        eventually("it is said", || lines.count(switch) == before + 1).await;
        is_asked_again(&engine).await;
        assert_eq!(
            (lines.count(switch), world.fleet.index_state("w")),
            (before + 1, "approximate")
        );
        world.end().await;
    }
}

#[tokio::test]
async fn f68_more_ranks_than_configured_are_said_once_with_the_setting() {
    let (lines, _guard) = Lines::listen();
    let port = publisher("*").unwrap();
    let sglang = format!(
        r#"{{"page_size": 1, "kv_events": {{"publisher": "zmq", "endpoint_host": "*",
            "endpoint_port_base": {}, "dp_size": 4}}}}"#,
        port.1
    );
    let vllm = format!(
        r#"{{"0": {{"endpoint": "tcp://*:{}"}}, "3": {{"endpoint": "tcp://*:1"}}}}"#,
        port.1
    );
    let off = r#"{"page_size": 1, "dp_size": 4, "kv_events": null}"#;
    let said = |w: &World| (lines.count(RANKS), w.fleet.index_state("w"));
    for (n, (sources, page, state)) in
        [("", sglang.as_str(), "events"), (vllm.as_str(), "", "events"), ("", off, "approximate")]
            .into_iter()
            .enumerate()
    {
        let engine = Engine::up();
        engine.say(|s| {
            s.sources = sources.into();
            s.pages = vec![("/server_info", 200, page.into())];
        });
        let world = follow(&engine, 1);
        eventually("it is said", || said(&world) == (n + 1, state)).await;
        is_asked_again(&engine).await;
        assert_eq!(said(&world), (n + 1, state));
        world.end().await;
        // As many as there are.
        let world = follow(&engine, 4);
        is_asked_again(&engine).await;
        assert_eq!(lines.count(RANKS), n + 1);
        world.end().await;
    }
}

#[tokio::test]
async fn f68_ranks_that_are_not_given_are_the_engines_word() {
    let ranks = |w: &World| w.shell.core().workers().first().map_or(0, |w| w.ranks.count());
    let (vllm, ports) = (Engine::up(), neighbours());
    let listed = |ranks: u32| {
        let one =
            |rank| format!(r#""{rank}": {{"endpoint": "tcp://*:{}"}}"#, ports[rank as usize % 2].1);
        format!("{{{}}}", (0..ranks).map(one).collect::<Vec<_>>().join(","))
    };
    vllm.say(|s| s.sources = listed(2));
    let world = follow(&vllm, None);
    eventually("both are known and connected", || {
        (ranks(&world), world.fleet.index_state("w")) == (2, "events")
    })
    .await;
    for port in &ports {
        is_subscribed_to(port).await;
    }
    // Another word within a life changes nothing, and is told once.
    let (lines, _guard) = Lines::listen();
    vllm.say(|s| s.sources = listed(3));
    eventually("it is said", || lines.count(RANKS) == 1).await;
    is_asked_again(&vllm).await;
    assert_eq!((ranks(&world), lines.count(RANKS)), (2, 1));
    // In the next life it is the first.
    let id = world.shell.core().worker_named("w").unwrap();
    let now = world.shell.now();
    world.shell.core().handle_fleet(now, FleetChange::Restarted(id)).unwrap();
    eventually("it is believed", || ranks(&world) == 3).await;
    world.end().await;
    // What isn't all of them from 0 on is no count.
    let part = Engine::up();
    part.say(|s| s.sources = format!(r#"{{"1": {{"endpoint": "tcp://*:{}"}}}}"#, ports[0].1));
    let world = follow(&part, None);
    is_asked_again(&part).await;
    assert_eq!(ranks(&world), 1);
    world.end().await;
    // SGLang says it even where it tells of no events.
    let sglang = Engine::up();
    let page = r#"{"page_size": 1, "dp_size": 4, "kv_events": null}"#;
    sglang.say(|s| s.pages = vec![("/server_info", 200, page.into())]);
    let world = follow(&sglang, None);
    eventually("they are known", || ranks(&world) == 4).await;
    world.end().await;
}

#[tokio::test]
async fn tensorrt_llm_is_asked_for_its_events_for_as_long_as_it_is_tended() {
    let engine = Engine::up();
    let tokens: Vec<_> =
        (0..4).map(|id| format!(r#"{{"token_id": {id}, "token_extra_id": 0}}"#)).collect();
    let block = |hash: u32| {
        format!(r#"{{"block_hash": {hash}, "cache_level": 0, "tokens": [{}]}}"#, tokens.join(","))
    };
    let stored = |id: u32, parent: &str, first: u32| {
        let blocks = [block(first), block(first + 1)].join(",");
        format!(
            r#"[{{"event_id": {id}, "data": {{"type": "stored", "parent_hash": {parent}, "blocks": [{blocks}]}}}}]"#
        )
    };
    engine.say(|s| s.polled = Some([stored(0, "null", 1), "<html>".into()].into()));
    let world = follow(&engine, 1);
    let blocks = |w: &World| w.shell.core().workers().first().map_or(0, |w| w.cached_blocks);
    eventually("its blocks are known", || blocks(&world) == 2).await;
    eventually("they are known by events", || world.fleet.index_state("w") == "events").await;
    engine.say(|s| s.polled.as_mut().unwrap().push_back(stored(1, "2", 3)));
    eventually("so are the next", || blocks(&world) == 4).await;
    // A hole.
    engine.say(|s| s.polled.as_mut().unwrap().push_back(stored(5, "4", 5)));
    eventually("it is seen", || world.fleet.index_state("w") == "uncertain").await;
    assert!(world.fleet.remove("w"));
    assert_eq!(world.fleet.index_state("w"), "none", "F56");
    let rest = "[]".to_owned();
    engine.say(|s| s.polled.as_mut().unwrap().push_back(rest));
    world.end().await;
    assert_eq!(engine.says.lock().polled.as_ref().unwrap().len(), 1, "nobody asks any more (F44)");
}
