//! Readiness, health, the admin server, metrics, and the end.

use super::client::{Answer, chat, get, post, streamed};
use super::worker::{Act, LAST, Worker, begun, chunk, gate, ok};
use super::world::{World, eventually, in_time};
use homing_core::fleet::State;
use serde_json::Value;

fn delete(worker: &str) -> Vec<u8> {
    format!("DELETE /admin/workers/{worker} HTTP/1.1\r\nhost: [::1]\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn f39_readiness_comes_with_the_first_worker_and_latches() {
    let dead = Worker::start("dead", |_| ok()).await;
    dead.die().await;
    let world = World::cold(&[], &[&dead]).await;
    for path in ["/", "/health", "/livez"] {
        assert_eq!(world.ask(&get(path)).await.status, 200, "{path}: alive without workers");
    }
    assert_eq!(world.admin(&get("/health")).await.status, 200);
    assert_eq!(world.ask(&get("/readyz")).await.status, 503);
    let why = world.admin(&get("/ready")).await;
    assert_eq!(why.status, 503);
    assert!(why.text().contains("dead"), "it says which: {}", why.text());
    world.end().await;

    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    for path in ["/readyz", "/readyz?strict=1"] {
        assert_eq!(world.ask(&get(path)).await.status, 200, "{path}");
    }
    assert_eq!(world.admin(&get("/ready")).await.status, 200);
    worker.die().await;
    eventually("it is down", || world.state("w") == Some(State::Down)).await;
    assert_eq!(world.ask(&get("/readyz")).await.status, 200, "latched");
    assert_eq!(world.ask(&get("/readyz?strict=1")).await.status, 503);
    assert_eq!(world.ask(&get("/readyz?x&strict=1")).await.status, 503);
    assert_eq!(world.admin(&get("/ready")).await.status, 200, "latched");
    world.end().await;
}

#[tokio::test]
async fn the_models_are_those_of_ready_workers() {
    let models = r#"{"data":[{"id":"m"},{"id":"alias"}]}"#;
    let a = Worker::at("a", "", models, |_| ok()).await;
    let b = Worker::at("b", "", r#"{"data":[{"id":"m"}]}"#, |_| ok()).await;
    let world = World::start(&[], &[&a, &b]).await;
    let ids = |answer: Answer| -> Vec<String> {
        let list: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(list["object"], "list");
        let one = |m: &Value| {
            assert_eq!(m["object"], "model");
            m["id"].as_str().unwrap().to_owned()
        };
        let mut ids: Vec<_> = list["data"].as_array().unwrap().iter().map(one).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(world.ask(&get("/v1/models")).await), ["alias", "m"]);
    a.die().await;
    eventually("it is down", || world.state("a") == Some(State::Down)).await;
    assert_eq!(ids(world.ask(&get("/v1/models")).await), ["m"]);
    world.end().await;
}

#[tokio::test]
async fn the_admin_server_shows_workers_and_sessions_and_no_clear_id() {
    let a = Worker::start("a", |_| ok()).await;
    let b = Worker::start("b", |_| ok()).await;
    let world = World::start(&[], &[&a, &b]).await;
    let bound = world.ask(&chat(&[("x-homing-session-id", "secret-session")])).await;
    let home = bound.worker().to_owned();
    world.quiet().await;
    let workers: Value =
        serde_json::from_slice(&world.admin(&get("/admin/workers")).await.body).unwrap();
    let workers = workers.as_array().unwrap();
    assert_eq!(workers.len(), 2);
    for w in workers {
        assert_eq!((w["role"].as_str(), w["state"].as_str()), (Some("aggregated"), Some("ready")));
        assert_eq!(
            (w["models"].clone(), w["index"].as_str()),
            (serde_json::json!(["m"]), Some("off"))
        );
        for gauge in ["active_requests", "active_prefill_tokens", "active_blocks", "cached_blocks"]
        {
            assert_eq!(w[gauge], 0, "{gauge}");
        }
        assert_eq!(w["bindings"], u64::from(w["id"] == *home));
    }
    let sessions = world.admin(&get("/admin/sessions")).await;
    assert!(!sessions.text().contains("secret"));
    let sessions: Value = serde_json::from_slice(&sessions.body).unwrap();
    assert_eq!((sessions["count"].as_u64(), sessions["leases"].as_u64()), (Some(1), Some(0)));
    let one = &sessions["sessions"][0];
    assert_eq!(
        (one["worker"].as_str(), one["partition"].as_str()),
        (Some(&*home), Some("m/aggregated"))
    );
    assert_eq!(
        world.admin(&get("/admin/sessions?limit=0")).await.text().matches("key_digest").count(),
        0
    );
    assert!((400..500).contains(&world.admin(&get("/admin/sessions?limit=x")).await.status));
    assert_eq!(world.admin(&get("/admin/nothing")).await.status, 404);
    assert_eq!(world.admin(&delete("nobody")).await.status, 404);
    world.end().await;
}

#[tokio::test]
async fn r07_a_deleted_worker_has_departed_its_streams_finish_and_f56_its_series_vanish() {
    let open = gate();
    let held = open.clone();
    let script = move |_: &super::worker::Asked| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([
            Act::Hold(held.clone()),
            Act::Send(chunk(b"data: 2\n\n")),
            Act::Send(LAST.into()),
        ]);
        acts
    };
    let a = Worker::start("a", script.clone()).await;
    let b = Worker::start("b", script).await;
    let world = World::start(&[("index.source", "'auto'")], &[&a, &b]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[("x-homing-session-id", "s")])).await;
    let mut answer = in_time("the head", client.head()).await;
    in_time("an event", client.until(&mut answer, b"data: 1")).await;
    let home = answer.worker().to_owned();
    let label = format!("worker=\"{home}\"");
    assert!(world.metrics().await.matches(&label).count() >= 3, "{}", world.metrics().await);
    assert_eq!(world.metric(&format!("homing_worker_active_requests{{{label}}}")).await, 1.0);
    assert_eq!(world.admin(&delete(&home)).await.status, 204);
    assert_eq!(world.admin(&delete(&home)).await.status, 404);
    assert!(!world.metrics().await.contains(&label), "{}", world.metrics().await);
    assert_eq!(world.stats().leases, 1, "R13: the stream goes on");
    open.add_permits(1);
    in_time("the rest", client.rest(&mut answer)).await;
    assert!(answer.clean && answer.text().ends_with("data: 2\n\n"));
    world.quiet().await;
    assert!(!world.metrics().await.contains(&label));
    open.add_permits(1);
    let next = world.ask(&streamed(&[("x-homing-session-id", "s")])).await;
    assert_eq!(next.affinity(), "rebound");
    assert_ne!(next.worker(), home);
    world.end().await;
}

#[tokio::test]
async fn f56_labels_are_bounded_whatever_clients_send() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    for n in 0..20 {
        let body = format!("{{\"model\":\"model-{n}\",\"messages\":[]}}");
        assert_eq!(
            world.ask(&post("/v1/chat/completions", &[], body.as_bytes())).await.status,
            404
        );
        assert_eq!(world.ask(&get(&format!("/path-{n}?q={n}"))).await.status, 404);
        world.ask(&chat(&[("x-homing-session-id", &format!("id-{n}"))])).await;
        world.ask(&post("/v1/completions", &[], b"no")).await;
    }
    let text = world.metrics().await;
    for leak in ["model-", "path-", "id-", "q="] {
        assert!(!text.contains(leak), "{leak}");
    }
    let series: Vec<_> = text.lines().filter(|l| l.starts_with("homing_requests_total")).collect();
    assert_eq!(series.len(), 4, "{series:#?}");
    for (labels, n) in [
        (
            "model=\"other\",endpoint=\"chat_completions\",status=\"404\",code=\"model_not_found\"",
            20,
        ),
        ("model=\"other\",endpoint=\"other\",status=\"404\",code=\"not_found\"", 20),
        ("model=\"m\",endpoint=\"chat_completions\",status=\"200\",code=\"\"", 20),
        ("model=\"other\",endpoint=\"completions\",status=\"400\",code=\"invalid_request\"", 20),
    ] {
        let line = format!("homing_requests_total{{{labels}}} {n}");
        assert!(series.contains(&line.as_str()), "{line} of {series:#?}");
    }
    world.end().await;
}

#[tokio::test]
async fn every_metric_of_this_version_is_there_under_its_name() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let worker = Worker::start("w", move |_| {
        match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => vec![Act::Close],
            _ => super::worker::stream(&[b"data: 1\n\n", b"data: 2\n\n"]),
        }
    })
    .await;
    let other =
        Worker::start("v", |_| super::worker::stream(&[b"data: 1\n\n", b"data: 2\n\n"])).await;
    let world = World::start(&[("index.source", "'auto'")], &[&worker, &other]).await;
    for _ in 0..8 {
        world.ask(&streamed(&[("x-homing-session-id", "s")])).await;
        world.ask(&streamed(&[])).await;
    }
    let text = world.metrics().await;
    for series in [
        "homing_requests_total{",
        "homing_request_duration_seconds_bucket{",
        "homing_time_to_first_token_seconds_bucket{",
        "homing_inter_token_latency_seconds_bucket{",
        "homing_selection_duration_seconds_bucket{",
        "homing_affinity_resolutions_total{outcome=\"hit\"}",
        "homing_affinity_resolutions_total{outcome=\"none\"}",
        "homing_affinity_bindings ",
        "homing_affinity_leases ",
        "homing_affinity_full_table_fallbacks_total ",
        "homing_affinity_waiters ",
        "homing_affinity_moves_total{reason=",
        "homing_index_blocks{worker=\"w\"}",
        "homing_index_lookup_seconds_bucket{",
        "homing_kv_events_total{worker=\"w\",kind=\"stored\"}",
        "homing_kv_event_gaps_total{worker=\"w\"}",
        "homing_predicted_cached_tokens_total ",
        "homing_queue_depth ",
        "homing_queue_wait_seconds_bucket{",
        "homing_worker_active_requests{worker=\"w\"}",
        "homing_worker_up{worker=\"w\"} 1",
        "homing_retries_total{reason=\"broken\"}",
        "homing_build_info{version=",
    ] {
        assert!(text.lines().any(|l| l.starts_with(series)), "{series} is missing:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    world.end().await;
}

#[tokio::test]
async fn the_outcomes_that_are_counted_are_those_that_were_told() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut told = std::collections::BTreeMap::<String, u32>::new();
    for id in ["a", "b", "a", "", "c", "a"] {
        let answer = world.ask(&chat(&[("x-homing-session-id", id)])).await;
        *told.entry(answer.affinity().to_owned()).or_default() += 1;
    }
    assert_eq!(told["new"], 3);
    for (outcome, n) in told {
        let series = format!("homing_affinity_resolutions_total{{outcome=\"{outcome}\"}}");
        assert_eq!(world.metric(&series).await, f64::from(n), "R26: {outcome}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_shutdown_says_so_lets_streams_finish_and_takes_nothing_new() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([
            Act::Hold(held.clone()),
            Act::Send(chunk(b"data: 2\n\n")),
            Act::Send(LAST.into()),
        ]);
        acts
    })
    .await;
    let world = World::start(&[("gateway.shutdown_delay", "'2s'")], &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let admin = world.server.admin_address();
    let shell = world.server.shell().clone();
    let mut client = world.client().await;
    client.send(&streamed(&[("x-homing-session-id", "s")])).await;
    let mut answer = in_time("the head", client.head()).await;
    in_time("an event", client.until(&mut answer, b"data: 1")).await;
    let mut idle = world.client().await;
    let mut ready = world.client().await;
    assert_eq!(in_time("ready", ready.ask(&get("/readyz"))).await.status, 200);

    let ended = tokio::spawn(world.server.shut_down());
    // Unready at once, and still serving; whoever has been served is sent to where somebody will be.
    let says_close = |answer: &Answer| answer.header("connection") == ["close"];
    in_time("unready", async {
        loop {
            let answer = ready.ask(&get("/readyz")).await;
            if answer.status == 503 {
                assert!(says_close(&answer));
                return;
            }
            if says_close(&answer) {
                // It came in the very moment.
                ready = super::client::Client::connect(address).await;
            }
        }
    })
    .await;
    assert!(in_time("the used connection's end", ready.closed()).await);
    let mut operator = super::client::Client::connect(admin).await;
    let draining = in_time("the admin server", operator.ask(&get("/ready"))).await;
    assert_eq!(draining.status, 503);
    assert!(draining.text().contains("draining"));
    let mut late = super::client::Client::connect(address).await;
    assert_eq!(in_time("models", late.ask(&get("/v1/models"))).await.status, 200);
    // Then nothing new, and idle connections are closed; the stream goes on.
    assert!(in_time("the idle connection's end", idle.closed()).await);
    eventually("the port is closed", || std::net::TcpStream::connect(address).is_err()).await;
    assert!(!ended.is_finished());
    assert_eq!(shell.core().partitions()[0].stats.leases, 1);
    open.add_permits(1);
    in_time("the rest", client.rest(&mut answer)).await;
    assert!(answer.clean && answer.text().ends_with("data: 2\n\n"));
    assert!(in_time("the end", ended).await.unwrap(), "nothing was cut off");
    assert_eq!(shell.core().partitions()[0].stats.leases, 0);
}

#[tokio::test]
async fn after_the_grace_period_what_still_runs_is_cut_off_and_releases_what_it_held() {
    let worker = Worker::start("w", |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.push(super::worker::stall());
        acts
    })
    .await;
    let world = World::start(&[("gateway.shutdown_grace", "'50ms'")], &[&worker]).await;
    let shell = world.server.shell().clone();
    let mut client = world.client().await;
    client.send(&streamed(&[("x-homing-session-id", "s")])).await;
    let mut answer = in_time("the head", client.head()).await;
    in_time("an event", client.until(&mut answer, b"data: 1")).await;
    assert!(!in_time("the end", world.server.shut_down()).await, "it was cut off");
    in_time("the rest", client.rest(&mut answer)).await;
    assert!(!answer.clean);
    eventually("the worker is free", || worker.busy() == 0 && worker.left() == 1).await;
    let stats = shell.core().partitions()[0].stats;
    assert_eq!((stats.leases, stats.bookings), (0, 0));
    shell.core().check();
}
