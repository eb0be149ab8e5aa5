//! A preview says what would become of a request, and changes nothing (R16).

use super::client::{chat, turn, turn_with};
use super::worker::{Act, Asked, Mood, Worker, feels, gate, ok};
use super::world::{World, eventually, in_time};
use serde_json::{Value, json};

/// What is told of a chat with these headers.
async fn preview(world: &World, headers: &[(&str, &str)]) -> Value {
    let headers: serde_json::Map<_, _> =
        headers.iter().map(|(k, v)| ((*k).to_owned(), Value::from(*v))).collect();
    asked(world, &json!({"headers": headers, "body": {"model": "m", "messages": []}})).await
}

async fn asked(world: &World, question: &Value) -> Value {
    let (status, told) = world.api(&post_it(question.to_string().as_bytes())).await;
    assert_eq!(status, 200, "{told}");
    told
}

fn post_it(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /admin/preview HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn names(told: &Value) -> Vec<&str> {
    told["candidates"].as_array().unwrap().iter().map(|c| c["worker"].as_str().unwrap()).collect()
}

/// What speaks against a worker's first rank.
fn against<'a>(told: &'a Value, worker: &str) -> Vec<&'a str> {
    let all = told["candidates"].as_array().unwrap();
    let one = all.iter().find(|c| c["worker"] == worker).unwrap();
    one["against"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect()
}

const S: (&str, &str) = ("x-homing-session-id", "s");

async fn fleet() -> [Worker; 2] {
    [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await]
}

#[tokio::test]
async fn a_preview_tells_what_a_request_then_gets() {
    let workers = fleet().await;
    let world = World::start(&[], &workers.each_ref()).await;
    let free = preview(&world, &[]).await;
    assert_eq!(
        (free["model"].as_str(), free["session"]["affinity"].as_str()),
        (Some("m"), Some("none"))
    );
    assert_eq!((&free["session"]["key_digest"], &free["error"]), (&Value::Null, &Value::Null));
    assert_eq!((names(&free), &free["waits"]), (vec!["a", "b"], &false.into()));
    assert!(free["worker"].is_string(), "{free}");
    let first = preview(&world, &[S]).await;
    assert_eq!(first["session"]["affinity"], "new");
    assert_eq!(
        (&first["session"]["home"], &first["session"]["steer"]),
        (&Value::Null, &Value::Null)
    );
    let digest = first["session"]["key_digest"].as_str().unwrap().to_owned();
    assert_eq!(world.stats().bindings, 0);
    assert_eq!(world.ask(&turn_with("s", "x-homing-worker", "b")).await.affinity(), "new");
    for (mode, steer) in [("hard", "pin"), ("soft", "prefer")] {
        let bound = preview(&world, &[S, ("x-homing-affinity", mode)]).await;
        assert_eq!(
            (bound["worker"].as_str(), bound["session"]["affinity"].as_str()),
            (Some("b"), Some("hit"))
        );
        assert_eq!(
            (bound["session"]["steer"].as_str(), &bound["session"]["home"]["worker"]),
            (Some(steer), &"b".into())
        );
        assert_eq!(bound["session"]["key_digest"], digest);
    }
    let off = preview(&world, &[S, ("x-homing-affinity", "off")]).await;
    assert_eq!(
        (off["session"]["affinity"].as_str(), &off["session"]["key_digest"]),
        (Some("none"), &Value::Null)
    );
    let named = preview(&world, &[("x-homing-worker", "a")]).await;
    assert_eq!((named["worker"].as_str(), &named["dp_rank"]), (Some("a"), &0.into()));
    let only = preview(&world, &[("x-homing-allowed-workers", "a")]).await;
    assert_eq!((only["worker"].as_str(), against(&only, "b")), (Some("a"), vec!["forbidden"]));
    world.end().await;
}

#[tokio::test]
async fn what_a_candidate_costs_adds_up_with_its_sessions_at_home() {
    let workers = fleet().await;
    let world = World::start(&[("routing.policy", "'kv'")], &workers.each_ref()).await;
    for session in ["s", "t"] {
        world.ask(&turn_with(session, "x-homing-worker", "b")).await;
    }
    world.quiet().await;
    let told = preview(&world, &[]).await;
    let of = |worker: &str| {
        let all = told["candidates"].as_array().unwrap();
        let c = all.iter().find(|c| c["worker"] == worker).unwrap();
        (c["homes"].as_u64().unwrap(), c["cost"].as_f64().unwrap())
    };
    let ((homes_a, cost_a), (homes_b, cost_b)) = (of("a"), of("b"));
    assert_eq!((homes_a, homes_b), (0, 2), "{told}");
    // Both are idle and hold nothing of the prompt: the homes are all that tells them apart.
    assert!((cost_b - cost_a - 2.0 * 16.0).abs() < 1e-9, "{told}");
    world.end().await;
}

#[tokio::test]
async fn a_preview_tells_each_refusal_in_the_words_of_its_answer() {
    let workers = fleet().await;
    let world = World::start(&[], &workers.each_ref()).await;
    world.ask(&turn_with("s", "x-homing-worker", "a")).await;
    for headers in [
        &[("x-homing-worker", "nobody")][..],
        &[S, ("x-homing-worker", "b")],
        &[S, ("x-homing-allowed-workers", "b")],
        &[("x-homing-allowed-workers", "nobody")],
        &[S, ("x-homing-affinity", "on")],
        &[("x-homing-worker", "a"), ("x-homing-dp-rank", "9")],
        &[("x-homing-session-id", "tab\there")],
        &[S, ("x-homing-nonsense", "1")],
    ] {
        let told = preview(&world, headers).await;
        let answer = world.ask(&chat(headers)).await;
        let error: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(told["error"]["status"], answer.status, "{headers:?}");
        assert_eq!(told["error"]["code"], error["error"]["code"], "{headers:?}");
        assert_eq!(told["error"]["message"], error["error"]["message"], "{headers:?}");
        assert_eq!(told["session"]["affinity"], answer.affinity(), "{headers:?}");
        assert_eq!(told["worker"], Value::Null);
    }
    for (body, code) in [
        (json!({"model": "nothing", "messages": []}), "model_not_found"),
        (json!({"model": "m"}), "invalid_request"),
        (json!({"messages": []}), "invalid_request"),
        (json!([1, 2]), "invalid_request"),
        (json!("text"), "invalid_request"),
    ] {
        let told =
            asked(&world, &json!({"headers": {"x-homing-session-id": "s"}, "body": body})).await;
        assert_eq!(told["error"]["code"], code, "{body}: {told}");
        assert_eq!(told["session"]["affinity"], "rejected", "{body}");
    }
    let other = json!({"endpoint": "/v1/completions", "body": {"model": "m", "prompt": "x"}});
    assert_eq!(asked(&world, &other).await["error"], Value::Null);
    world.end().await;
}

#[tokio::test]
async fn a_question_that_is_none_is_400() {
    let workers = fleet().await;
    let world = World::start(&[], &workers.each_ref()).await;
    for wrong in [
        "",
        "{",
        "[]",
        "{}",
        "null",
        r#"{"headers": {}}"#,
        r#"{"body": {}, "header": {}}"#,
        r#"{"body": {}, "headers": {"a b": "x"}}"#,
        r#"{"body": {}, "headers": {"": "x"}}"#,
        r#"{"body": {}, "headers": {"a": "x\ny"}}"#,
        r#"{"body": {}, "headers": {"a": 1}}"#,
        r#"{"body": {}, "headers": [["a", "b"]]}"#,
        r#"{"body": {}, "endpoint": "/v1/models"}"#,
        r#"{"body": {}, "endpoint": ""}"#,
        r#"{"body": {}, "endpoint": 1}"#,
    ] {
        let (status, told) = world.api(&post_it(wrong.as_bytes())).await;
        assert_eq!(
            (status, told["error"]["code"].as_str()),
            (400, Some("invalid_request")),
            "{wrong}"
        );
    }
    let many: Vec<String> = (0..30_000).map(|i| format!(r#""h{i}": "x""#)).collect();
    let many = format!(r#"{{"body": {{}}, "headers": {{{}}}}}"#, many.join(","));
    assert_eq!(
        world.api(&post_it(many.as_bytes())).await.0,
        400,
        "more headers than a request may have"
    );
    let invalid = world.api(&post_it(b"{\"body\": \"\xff\"}")).await;
    assert_eq!(invalid.0, 400);
    world.end().await;
}

#[tokio::test]
async fn a_preview_foresees_spills_moves_and_refusals_for_overload() {
    for (on_overload, outcome, code) in [
        ("'spill'", "spilled", None),
        ("'dispatch'", "hit", None),
        ("'reject'", "rejected", Some("affinity_target_overloaded")),
        ("'wait'", "unbound", None),
    ] {
        let setting = [("affinity.on_overload", on_overload), ("gateway.request_timeout", "'1s'")];
        let two = super::overload::two(&setting).await;
        feels(&two.homes, Mood::Full(429, 60));
        // Whatever becomes of this one: home is known to be overloaded after it.
        two.world.ask(&chat(&[("x-homing-worker", two.home.name)])).await;
        let told = preview(&two.world, &[S]).await;
        assert_eq!(told["session"]["affinity"], outcome, "{on_overload}: {told}");
        assert_eq!(told["session"]["home"]["worker"], two.home.name);
        assert_eq!(told["error"]["code"].as_str(), code);
        assert_eq!(told["waits"], on_overload == "'wait'");
        assert_eq!(against(&told, two.home.name), ["overloaded"]);
        assert_eq!(against(&told, two.other.name), [""; 0]);
        let soft = preview(&two.world, &[S, ("x-homing-affinity", "soft")]).await;
        assert_eq!(
            (soft["worker"].as_str(), soft["session"]["affinity"].as_str()),
            (Some(two.other.name), Some("rebound"))
        );
        two.world.end().await;
    }
}

#[tokio::test]
async fn a_preview_foresees_waiting_joining_surplus_a_full_table_and_departures() {
    let open = gate();
    let held = open.clone();
    let script = move |asked: &Asked| match asked.header("x-slow").is_empty() {
        true => ok(),
        false => [vec![Act::Hold(held.clone())], ok()].concat(),
    };
    let worker = Worker::start("w", script).await;
    let settings = [
        ("queue.max_requests", "1"),
        ("queue.busy_active_requests", "2"),
        ("affinity.max_sessions", "1"),
        ("affinity.max_parallel", "1"),
        ("affinity.on_down", "'reject'"),
    ];
    let world = World::start(&settings, &[&worker]).await;
    let told = |told: &Value| told["session"]["affinity"].as_str().unwrap().to_owned();
    let slow = |id: &str| turn_with(id, "x-slow", "1");
    let mut first = world.client().await;
    first.send(&slow("s")).await;
    eventually("it is at work", || worker.busy() == 1).await;
    assert_eq!(told(&preview(&world, &[S]).await), "surplus");
    let mut second = world.client().await;
    second.send(&slow("")).await;
    eventually("both are at work", || worker.busy() == 2).await;
    let waits = preview(&world, &[]).await;
    assert_eq!((&waits["waits"], &waits["worker"]), (&true.into(), &Value::Null));
    assert_eq!(against(&waits, "w"), ["busy"]);
    open.add_permits(2);
    for client in [&mut first, &mut second] {
        assert_eq!(in_time("an answer", client.answer()).await.status, 200);
    }
    world.quiet().await;
    assert_eq!(told(&preview(&world, &[S]).await), "hit");
    let full = preview(&world, &[("x-homing-session-id", "t")]).await;
    assert_eq!((full["worker"].as_str(), told(&full)), (Some("w"), "unbound_full".to_owned()));
    worker.die().await;
    eventually("it is down", || world.state("w") == Some(homing_core::fleet::State::Down)).await;
    let down = preview(&world, &[S]).await;
    assert_eq!(
        (down["error"]["code"].as_str(), told(&down)),
        (Some("affinity_target_unavailable"), "rejected".to_owned())
    );
    assert_eq!(against(&down, "w"), ["not_ready"]);
    let nobody = preview(&world, &[]).await;
    assert_eq!(nobody["error"]["code"], "no_worker");
    world.end().await;
}

#[tokio::test]
async fn a_first_turn_under_way_is_foreseen_to_be_joined() {
    let open = gate();
    let script = |open: &super::worker::Gate| {
        let open = open.clone();
        move |_: &Asked| [vec![Act::Hold(open.clone())], ok()].concat()
    };
    let (a, b) = (Worker::start("a", script(&open)).await, Worker::start("b", script(&open)).await);
    let world = World::start(&[], &[&a, &b]).await;
    let mut first = world.client().await;
    first.send(&turn("s")).await;
    eventually("it is at work", || a.busy() + b.busy() == 1).await;
    let at = if a.busy() == 1 { "a" } else { "b" };
    for _ in 0..8 {
        let told = preview(&world, &[S]).await;
        assert_eq!(
            (told["worker"].as_str(), told["session"]["steer"].as_str()),
            (Some(at), Some("join"))
        );
        assert_eq!(told["session"]["affinity"], "joined");
    }
    open.add_permits(1);
    assert_eq!(in_time("its answer", first.answer()).await.affinity(), "new");
    world.end().await;
}

#[tokio::test]
async fn r16_a_preview_leaves_tables_turns_and_metrics_as_they_were() {
    let workers = fleet().await;
    let world = World::start(&[("routing.policy", "'round_robin'")], &workers.each_ref()).await;
    world.ask(&turn("s")).await;
    world.quiet().await;
    let (metrics, stats) = (world.metrics().await, world.stats());
    let session = world.api(&super::client::get("/admin/sessions/s")).await.1;
    let next = preview(&world, &[]).await;
    let too_long = "x".repeat(5000);
    for headers in [
        &[][..],
        &[S],
        &[S, ("x-homing-session-final", "true")],
        &[S, ("x-homing-affinity", "soft"), ("x-homing-allowed-workers", "a")],
        &[S, ("x-homing-affinity", "soft"), ("x-homing-allowed-workers", "b")],
        &[("x-homing-session-id", "new")],
        &[("x-session-id", &too_long)],
        &[("x-homing-worker", "nobody")],
        &[("x-homing-affinity", "none")],
    ] {
        for _ in 0..3 {
            preview(&world, headers).await;
        }
        assert_eq!(preview(&world, &[]).await["worker"], next["worker"], "nobody's turn was taken");
    }
    assert_eq!(world.metrics().await, metrics);
    assert_eq!(world.stats(), stats);
    let same = world.api(&super::client::get("/admin/sessions/s")).await.1;
    assert_eq!((&same["version"], &same["worker"]), (&session["version"], &session["worker"]));
    let idle = |s: &Value| s["idle_seconds"].as_f64().unwrap();
    assert!(idle(&same) >= idle(&session), "its idle time was not begun anew");
    assert_eq!(world.ask(&chat(&[])).await.worker(), next["worker"].as_str().unwrap());
    let all: usize = workers.iter().map(Worker::asked_now).sum();
    assert_eq!(all, 2, "nothing was sent");
    world.end().await;
}
