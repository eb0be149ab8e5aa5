//! The admin server: it keeps web pages out, shows sessions and removes them, drains workers.

use super::client::{chat, get, turn, turn_with};
use super::worker::{Act, Worker, gate, ok};
use super::world::{World, eventually, in_time};
use homing_core::fleet::State;
use serde_json::Value;

fn call(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn a_request_by_a_name_that_is_not_ours_reads_and_changes_nothing() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let calls = [
        "GET /health",
        "GET /ready",
        "GET /metrics",
        "GET /admin/workers",
        "GET /admin/sessions",
        "DELETE /admin/workers/w",
        "GET /nothing",
    ];
    for call in calls {
        let request = format!("{call} HTTP/1.1\r\nhost: evil.example:9464\r\n\r\n");
        let answer = world.admin(request.as_bytes()).await;
        assert_eq!(answer.status, 403, "{call}");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["code"], "host_not_allowed", "{call}");
    }
    assert_eq!(world.state("w"), Some(State::Ready), "nobody was removed");
    let whole = b"GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(world.admin(whole).await.status, 403);
    for host in ["localhost", "127.0.0.1", "[::1]:9464", "192.0.2.1:80"] {
        let request = format!("GET /admin/workers HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(world.admin(request.as_bytes()).await.status, 200, "{host}");
    }
    assert_eq!(world.admin(&get("/metrics")).await.status, 200);
    world.end().await;
}

#[tokio::test]
async fn sessions_are_listed_by_digests_and_asked_for_by_their_ids() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| [vec![Act::Hold(held.clone())], ok()].concat()).await;
    let world = World::start(&[], &[&worker]).await;
    open.add_permits(1);
    assert_eq!(world.ask(&turn("my-secret-id")).await.affinity(), "new");
    let mut running = world.client().await;
    running.send(&turn("my-secret-id")).await;
    eventually("it is at work", || worker.busy() == 1).await;
    let (status, all) = world.api(&get("/admin/sessions")).await;
    assert_eq!((status, &all["count"], &all["leases"]), (200, &1.into(), &1.into()));
    let one = &all["sessions"][0];
    assert_eq!(
        (one["worker"].as_str(), one["partition"].as_str()),
        (Some("w"), Some("m/aggregated"))
    );
    assert_eq!(
        (&one["leases"], &one["dp_rank"], &one["final"]),
        (&1.into(), &0.into(), &false.into())
    );
    assert!(one["idle_seconds"].as_f64().is_some_and(|s| s >= 0.0), "{one}");
    assert!(one["version"].is_string() && one["key_digest"].is_string(), "{one}");
    assert!(!all.to_string().contains("my-secret-id"), "{all}");
    let (status, same) = world.api(&get("/admin/sessions/my-secret-id")).await;
    assert_eq!(
        (status, &same["key_digest"], &same["version"]),
        (200, &one["key_digest"], &one["version"])
    );
    open.add_permits(1);
    assert_eq!(in_time("its answer", running.answer()).await.affinity(), "hit");
    world.quiet().await;
    assert_eq!(world.api(&get("/admin/sessions")).await.1["leases"], 0);
    for i in 0..5 {
        open.add_permits(1);
        world.ask(&turn(&format!("s{i}"))).await;
    }
    for (query, shown) in [("?limit=2", 2), ("?limit=0", 0), ("", 6), ("?limit=100000000", 6)] {
        let (_, all) = world.api(&get(&format!("/admin/sessions{query}"))).await;
        let sessions = all["sessions"].as_array().unwrap();
        assert_eq!((all["count"].as_u64(), sessions.len()), (Some(6), shown), "{query}");
    }
    for wrong in ["?limit=-1", "?limit=x", "?limits=3", "/s?mode=m", "/s?role=both", "/s?group=1"] {
        let path = format!("/admin/sessions{wrong}");
        assert_eq!(world.admin(&get(&path)).await.status, 400, "{wrong}");
    }
    world.end().await;
}

#[tokio::test]
async fn r19_a_session_that_is_deleted_is_gone_at_once_and_its_requests_keep_their_streams() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |asked| match asked.header("x-slow").is_empty() {
        true => ok(),
        false => {
            let mut acts = super::worker::begun(&[b"data: 1\n\n"]);
            acts.push(Act::Hold(held.clone()));
            acts.push(Act::Send(
                [super::worker::chunk(b"data: 2\n\n"), b"0\r\n\r\n".to_vec()].concat(),
            ));
            acts
        }
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let slow = super::client::streamed(&[("x-homing-session-id", "s"), ("x-slow", "1")]);
    let mut running = world.client().await;
    running.send(&slow).await;
    let mut answer = in_time("its head", running.head()).await;
    assert_eq!(answer.affinity(), "new");
    for (status, count) in [(204, 0), (404, 0)] {
        assert_eq!(world.admin(&call("DELETE", "/admin/sessions/s")).await.status, status);
        assert_eq!(world.stats().bindings, count);
        let (status, problem) = world.api(&get("/admin/sessions/s")).await;
        assert_eq!((status, problem["error"]["code"].as_str()), (404, Some("not_found")));
    }
    assert_eq!(world.stats().leases, 1, "it stays with its stream");
    assert_eq!(world.ask(&turn("s")).await.affinity(), "new");
    open.add_permits(1);
    in_time("the rest", running.rest(&mut answer)).await;
    assert!(answer.clean && answer.text().ends_with("data: 2\n\n"), "{}", answer.text());
    world.quiet().await;
    assert_eq!(world.stats().bindings, 1, "the new one is another's");
    world.end().await;
}

#[tokio::test]
async fn a_session_is_found_by_its_whole_id_model_and_group() {
    let models = r#"{"data":[{"id":"m"},{"id":"alias","root":"m"},{"id":"lora","parent":"m"}]}"#;
    let worker = Worker::at("w", "", models, |_| ok()).await;
    let world = World::start(&[("affinity.subagents", "'group'")], &[&worker]).await;
    for id in ["a/b", "a b", "\u{e9}", "a%2Fb", "..", "?x=1#y"] {
        let encoded: String = id.bytes().map(|b| format!("%{b:02X}")).collect();
        let path = format!("/admin/sessions/{encoded}");
        assert_eq!(world.admin(&get(&path)).await.status, 404, "{id}");
        assert_eq!(world.ask(&turn(id)).await.affinity(), "new", "{id}");
        assert_eq!(world.admin(&get(&path)).await.status, 200, "{id}");
        assert_eq!(world.admin(&call("DELETE", &path)).await.status, 204, "{id}");
        assert_eq!(world.ask(&turn(id)).await.affinity(), "new", "{id}");
        assert_eq!(world.admin(&call("DELETE", &path)).await.status, 204, "{id}");
    }
    // One id, two sessions: the base model's and the adapter's.
    let lora = br#"{"model":"lora","messages":[]}"#;
    let of_lora =
        super::client::post("/v1/chat/completions", &[("x-homing-session-id", "s")], lora);
    assert_eq!(world.ask(&of_lora).await.affinity(), "new");
    for (query, status) in [
        ("?model=m", 404),
        ("?model=alias", 404),
        ("?model=nothing", 404),
        ("?tenant=somebody", 404),
        ("?role=decode", 404),
        ("?group=true", 404),
        ("?model=lora&role=aggregated&group=false&tenant=", 200),
        ("", 200),
    ] {
        assert_eq!(
            world.admin(&get(&format!("/admin/sessions/s{query}"))).await.status,
            status,
            "{query}"
        );
    }
    // And a parent's group is not its own session.
    let child = [("x-homing-parent-session-id", "p")];
    assert_eq!(world.ask(&chat(&child)).await.affinity(), "new");
    assert_eq!(world.admin(&get("/admin/sessions/p")).await.status, 404);
    assert_eq!(world.admin(&get("/admin/sessions/p?group=true")).await.status, 200);
    assert_eq!(world.admin(&call("DELETE", "/admin/sessions/p?group=true")).await.status, 204);
    assert_eq!(world.ask(&chat(&child)).await.affinity(), "new");
    world.end().await;
}

/// Two workers, and a session `s` at `a`.
async fn with_a_session() -> ([Worker; 2], World) {
    let workers = [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await];
    let world = World::start(&[], &workers.each_ref()).await;
    let first = world.ask(&turn_with("s", "x-homing-worker", "a")).await;
    assert_eq!((first.worker(), first.affinity()), ("a", "new"));
    (workers, world)
}

async fn drain(world: &World, what: &str) -> (u16, Value) {
    world.api(&call("POST", &format!("/admin/workers/a/{what}"))).await
}

#[tokio::test]
async fn r07_a_draining_worker_keeps_its_sessions_and_gets_no_new_ones() {
    let (_workers, world) = with_a_session().await;
    for query in ["drain", "drain?move_sessions=false", "drain?deadline=1h"] {
        let (status, worker) = drain(&world, query).await;
        assert_eq!((status, worker["id"].as_str()), (200, Some("a")));
        assert_eq!(worker["state"], "draining");
        let moves = worker["sessions_move_in_seconds"].as_f64();
        assert_eq!(moves.is_some(), query.contains("1h"), "{worker}");
        assert!(moves.is_none_or(|s| s > 3_000.0 && s <= 3_600.0), "{worker}");
        assert_eq!(world.told("a").await, "draining");
        for i in 0..12 {
            assert_eq!(world.ask(&chat(&[])).await.worker(), "b");
            assert_eq!(world.ask(&turn(&format!("{query}-{i}"))).await.worker(), "b");
            let (bound, soft) = (turn("s"), turn_with("s", "x-homing-affinity", "soft"));
            for request in [bound, soft] {
                let answer = world.ask(&request).await;
                assert_eq!((answer.worker(), answer.affinity()), ("a", "hit"));
            }
        }
        let named = world.ask(&chat(&[("x-homing-worker", "a")])).await;
        named.assert_refused(503, "affinity_target_unavailable", "none");
    }
    // Undrained it is as it was.
    let (status, worker) = drain(&world, "undrain").await;
    assert_eq!((status, worker["state"].as_str()), (200, Some("ready")));
    assert_eq!(world.ask(&chat(&[("x-homing-worker", "a")])).await.status, 200);
    assert_eq!(world.ask(&turn("s")).await.affinity(), "hit");
    world.end().await;
}

#[tokio::test]
async fn r07_sessions_move_from_a_draining_worker_with_their_next_turn() {
    for query in ["drain?move_sessions=true", "drain?deadline=0s"] {
        let (_workers, world) = with_a_session().await;
        assert_eq!(drain(&world, query).await.1["sessions_move_in_seconds"], 0.0);
        assert_eq!(world.home("s").await.unwrap(), "a", "not before it has a turn");
        for affinity in ["rebound", "hit"] {
            let answer = world.ask(&turn("s")).await;
            assert_eq!((answer.worker(), answer.affinity()), ("b", affinity), "{query}");
        }
        let moved = "homing_affinity_moves_total{reason=\"departed\"}";
        assert_eq!(world.metric(moved).await, 1.0);
        world.end().await;
    }
}

#[tokio::test]
async fn r07_past_the_drains_deadline_sessions_move() {
    let (_workers, world) = with_a_session().await;
    assert_eq!(drain(&world, "drain?deadline=100ms").await.0, 200);
    in_time("the deadline", async {
        loop {
            let answer = world.ask(&turn("s")).await;
            match answer.affinity() {
                "hit" => assert_eq!(answer.worker(), "a"),
                moved => return assert_eq!((moved, answer.worker()), ("rebound", "b")),
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    // And nobody is left over when it is undrained.
    assert_eq!(drain(&world, "undrain").await.0, 200);
    assert_eq!(world.ask(&turn("s")).await.affinity(), "hit");
    world.end().await;
}

#[tokio::test]
async fn a_drain_that_makes_no_sense_changes_nothing() {
    let (_workers, world) = with_a_session().await;
    for wrong in [
        "drain?deadline=soon",
        "drain?deadline=",
        "drain?deadline=-1s",
        "drain?deadline=400days",
        "drain?deadline=99999999999999999999y",
        "drain?move_sessions=true&deadline=1s",
    ] {
        let (status, problem) = drain(&world, wrong).await;
        assert_eq!(
            (status, problem["error"]["code"].as_str()),
            (400, Some("invalid_request")),
            "{wrong}"
        );
    }
    for wrong in ["drain?move_sessions=yes", "drain?move=true", "undo"] {
        let path = format!("/admin/workers/a/{wrong}");
        assert!(matches!(world.admin(&call("POST", &path)).await.status, 400 | 404), "{wrong}");
    }
    assert_eq!(world.admin(&get("/admin/workers/a/drain")).await.status, 405);
    for unknown in ["drain", "undrain", "drain?move_sessions=true"] {
        let path = format!("/admin/workers/nobody/{unknown}");
        let (status, problem) = world.api(&call("POST", &path)).await;
        assert_eq!((status, problem["error"]["code"].as_str()), (404, Some("unknown_worker")));
    }
    assert_eq!((world.told("a").await, world.told("b").await), ("ready".into(), "ready".into()));
    world.end().await;
}

#[tokio::test]
async fn every_error_has_the_apis_shape_whoever_makes_it() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let json = "content-type: application/json\r\n";
    let calls = [
        ("GET /nothing", "", "", 404, "not_found"),
        ("GET /admin/workers/w/drain", "", "", 405, "invalid_request"),
        ("POST /admin/workers", json, "{", 400, "invalid_request"),
        ("POST /admin/workers", json, "[1]", 422, "invalid_request"),
        ("POST /admin/workers", "", "{}", 415, "invalid_request"),
        ("POST /admin/workers", "content-type: text/plain\r\n", "{}", 415, "invalid_request"),
        ("POST /admin/workers?tll=5s", json, "{}", 400, "invalid_request"),
        ("GET /admin/sessions?limit=many", "", "", 400, "invalid_request"),
        ("GET /admin/sessions/%ff", "", "", 400, "invalid_request"),
        ("POST /admin/preview", json, "{", 400, "invalid_request"),
    ];
    for (call, headers, body, status, code) in calls {
        let length = body.len();
        let request = format!(
            "{call} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        let answer = world.admin(request.as_bytes()).await;
        assert_eq!(answer.status, status, "{call}");
        assert_eq!(answer.header("content-type"), ["application/json"], "{call}");
        let said: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(said["error"]["code"], code, "{call}: {said}");
        assert!(said["error"]["message"].as_str().is_some_and(|m| m.len() > 5), "{call}: {said}");
        assert_eq!(answer.header("allow").is_empty(), status != 405, "{call}");
    }
    world.end().await;
}
