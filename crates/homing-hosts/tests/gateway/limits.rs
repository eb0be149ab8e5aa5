//! Bounds in size and time, and requests that are refused before a worker is reached.

use super::client::{Answer, chat, get, post, streamed};
use super::worker::{Act, LAST, STREAM, Worker, begun, ok, stall};
use super::world::{World, eventually, in_time};

const CHATS: &str = "/v1/chat/completions";

/// Asserts a status and code in OpenAI's shape, and that a retry is not asked for.
fn assert_final(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
    assert_eq!(answer.header("content-type"), ["application/json"]);
    assert_eq!(answer.header("x-should-retry"), ["false"]);
    assert!(answer.header("retry-after").is_empty());
    assert!(answer.clean);
}

/// Asserts that a retry is asked for, within bounds, in both units alike.
fn assert_retry(answer: &Answer, status: u16, code: &str) -> u64 {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text());
    let seconds: u64 = answer.header("retry-after")[0].parse().unwrap();
    let ms: u64 = answer.header("retry-after-ms")[0].parse().unwrap();
    assert!((1..=60).contains(&seconds) && (1..=60_000).contains(&ms), "{seconds} s, {ms} ms");
    assert_eq!(seconds, ms.div_ceil(1000));
    assert!(answer.header("x-should-retry").is_empty());
    ms
}

/// A valid body of this length.
fn body(length: usize) -> Vec<u8> {
    let mut body = br#"{"model":"m","messages":[]}"#.to_vec();
    body.resize(length, b' ');
    body
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let head = format!("POST {CHATS} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut request = head.into_bytes();
    for piece in body.chunks(100) {
        request.extend(super::worker::chunk(piece));
    }
    request.extend(LAST.as_bytes());
    request
}

#[tokio::test]
async fn f52_a_body_up_to_the_bound_passes_and_one_beyond_it_is_413() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[("gateway.max_body", "'1KiB'")], &[&worker]).await;
    assert_eq!(world.ask(&post(CHATS, &[], &body(1024))).await.status, 200);
    assert_eq!(world.ask(&chunked(&body(1024))).await.status, 200);
    assert_eq!(worker.asked().await.len(), 2);
    for too_long in [post(CHATS, &[], &body(1025)), chunked(&body(1025)), chunked(&body(5000))] {
        assert_final(&world.ask(&too_long).await, 413, "body_too_large");
    }
    // A length that is only told, and one beyond all numbers.
    let told = |n: &str| format!("POST {CHATS} HTTP/1.1\r\nhost: r\r\ncontent-length: {n}\r\n\r\n");
    let expecting = told("2000").replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    assert_final(&world.ask(expecting.as_bytes()).await, 413, "body_too_large");
    for n in ["99999999999999999999999999", "-1", "1 0", "0x10"] {
        let answer = world.ask(told(n).as_bytes()).await;
        assert!((400..500).contains(&answer.status), "F57: {n}");
    }
    assert_eq!(worker.asked().await.len(), 2, "the worker was not reached");
    world.end().await;
}

#[tokio::test]
async fn a_client_in_the_middle_of_sending_too_much_can_read_why() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[("gateway.max_body", "'1MiB'")], &[&worker]).await;
    for request in [post(CHATS, &[], &body(12 << 20)), chunked(&body(4 << 20))] {
        for _ in 0..5 {
            // Sent whole before the answer is looked at, as simple clients do.
            assert_final(&world.ask(&request).await, 413, "body_too_large");
        }
    }
    assert!(worker.asked().await.is_empty());
    world.end().await;
}

#[tokio::test]
async fn f58_a_stream_that_lets_its_first_token_wait_is_504() {
    let phases = [
        vec![stall()],
        vec![Act::Send(STREAM.into()), stall()],
        begun(&[b": ping\n\ndata: torn"]).into_iter().chain([stall()]).collect(),
    ];
    for acts in phases {
        let worker = Worker::start("w", move |_| acts.clone()).await;
        let quick = [("upstream.first_token_timeout", "'1s'")];
        let world = World::start(&quick, &[&worker]).await;
        let answer = world.ask(&streamed(&[("x-homing-session-id", "s")])).await;
        assert_final(&answer, 504, "timeout");
        assert_eq!(answer.affinity(), "unbound");
        eventually("the worker was left", || worker.left() == 1).await;
        assert_eq!(world.stats().bindings, 0);
        worker.only().await;
        world.end().await;
    }
}

#[tokio::test]
async fn f58_a_request_that_takes_too_long_is_504() {
    let worker = Worker::start("w", |_| vec![stall()]).await;
    let world = World::start(&[("gateway.request_timeout", "'1s'")], &[&worker]).await;
    for request in [chat, streamed] {
        let answer = world.ask(&request(&[("x-homing-session-id", "s")])).await;
        assert_final(&answer, 504, "timeout");
        assert_eq!(answer.affinity(), "unbound", "R26: refusals too");
    }
    eventually("the worker was left", || worker.left() == 2).await;
    world.end().await;
}

#[tokio::test]
async fn a_stream_that_stands_still_or_takes_too_long_ends_with_an_error_event() {
    for limit in ["upstream.idle_timeout", "gateway.request_timeout"] {
        let worker = Worker::start("w", |_| {
            let mut acts = begun(&[b"data: 1\n\ndata: torn"]);
            acts.push(stall());
            acts
        })
        .await;
        let world = World::start(&[(limit, "'1s'")], &[&worker]).await;
        let answer = world.ask(&streamed(&[])).await;
        assert_eq!((answer.status, answer.clean), (200, false), "{limit}");
        let event = answer.text().strip_prefix("data: 1\n\ndata: ").unwrap();
        let event = event.strip_suffix("\n\n").unwrap();
        let error: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(error["error"]["code"], "timeout", "{limit}");
        eventually("the worker was left", || worker.left() == 1).await;
        world.end().await;
    }
}

#[tokio::test]
async fn a_plain_answer_that_stands_still_is_cut() {
    let worker = Worker::start("w", |_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345";
        vec![Act::Send(head.into()), stall()]
    })
    .await;
    let world = World::start(&[("upstream.idle_timeout", "'1s'")], &[&worker]).await;
    let answer = world.ask(&chat(&[])).await;
    assert_eq!((answer.status, answer.text(), answer.clean), (200, "12345", false));
    world.end().await;
}

#[tokio::test]
async fn a_malformed_body_is_400_and_reaches_nobody() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let deep = "[".repeat(200_000);
    for (path, body, param) in [
        (CHATS, "", None),
        (CHATS, "x", None),
        (CHATS, "{", None),
        (CHATS, "[]", None),
        (CHATS, "null", None),
        (CHATS, r#"{"model":"m","messages":[]} {}"#, None),
        (CHATS, deep.as_str(), None),
        (CHATS, "\u{feff}{\"model\":\"m\",\"messages\":[]}", None),
        (CHATS, "{}", Some("model")),
        (CHATS, r#"{"model":7,"messages":[]}"#, Some("model")),
        (CHATS, r#"{"model":"m"}"#, Some("messages")),
        (CHATS, r#"{"model":"m","messages":"hi"}"#, Some("messages")),
        (CHATS, r#"{"model":"m","messages":[],"stream":"yes"}"#, Some("stream")),
        ("/v1/completions", r#"{"model":"m"}"#, Some("prompt")),
        ("/v1/completions", r#"{"prompt":"m"}"#, Some("model")),
    ] {
        let answer = world.ask(&post(path, &[], body.as_bytes())).await;
        assert_final(&answer, 400, "invalid_request");
        let error: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert_eq!(error["error"]["param"].as_str(), param, "{}", answer.text());
        assert_eq!(answer.affinity(), "none");
    }
    let not_utf8 = world.ask(&post(CHATS, &[], b"{\"model\":\"\xff\",\"messages\":[]}")).await;
    assert_final(&not_utf8, 400, "invalid_request");
    assert!(worker.asked().await.is_empty());
    assert_eq!(world.stats().bookings, 0);
    world.end().await;
}

#[tokio::test]
async fn steering_that_is_not_built_is_400_and_reaches_nobody() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    for header in [
        "x-homing-prefill-worker",
        "x-homing-prefill-dp-rank",
        "x-dynamo-prefill-instance-id",
        "x-dynamo-prefill-dp-rank",
        // A typing error in one of ours.
        "x-homing-sesion-id",
    ] {
        let answer = world.ask(&chat(&[(header, "w")])).await;
        assert_final(&answer, 400, "invalid_request");
        assert!(answer.text().contains(header));
    }
    assert!(worker.asked().await.is_empty());
    world.end().await;
}

#[tokio::test]
async fn f58_an_unknown_model_is_404_and_one_without_workers_503() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[("models", "[{ name = 'configured' }]")], &[&worker]).await;
    let of = |model: &str| {
        let body = format!("{{\"model\":{model:?},\"messages\":[]}}");
        post(CHATS, &[("x-homing-session-id", "s")], body.as_bytes())
    };
    assert_final(&world.ask(&of("nobody's")).await, 404, "model_not_found");
    assert_final(&world.ask(&of(&"x".repeat(100_000))).await, 404, "model_not_found");
    assert_retry(&world.ask(&of("configured")).await, 503, "no_worker");
    worker.die().await;
    eventually("it is seen to be down", || {
        world.state("w") == Some(homing_core::fleet::State::Down)
    })
    .await;
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let answer = world.ask(&of("m")).await;
        waits.insert(assert_retry(&answer, 503, "no_worker"));
        assert_eq!(answer.affinity(), "rejected", "R26");
    }
    assert!(waits.len() > 10, "jittered: {waits:?}");
    // A worker that has departed is one that was there: still no 404.
    let gone = b"DELETE /admin/workers/w HTTP/1.1\r\nhost: [::1]\r\n\r\n";
    assert_eq!(world.admin(gone).await.status, 204);
    assert_retry(&world.ask(&of("m")).await, 503, "no_worker");
    world.end().await;
}

#[tokio::test]
async fn f39_before_a_worker_has_told_what_it_serves_a_model_is_503_starting() {
    let dead = Worker::start("w", |_| ok()).await;
    dead.die().await;
    let world = World::cold(&[], &[&dead]).await;
    assert_retry(&world.ask(&chat(&[])).await, 503, "starting");
    world.end().await;
}

#[tokio::test]
async fn what_is_not_served_is_said_so() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    for path in ["/nothing", "/v1", "/v1/chat/completions/", "/v1/rerank", "/metrics", "//"] {
        assert_final(&world.ask(&get(path)).await, 404, "not_found");
        assert_final(&world.ask(&post(path, &[], b"{}")).await, 404, "not_found");
    }
    assert_eq!(world.ask(&get(CHATS)).await.status, 405);
    assert_eq!(world.ask(&get("/v1/completions")).await.status, 405);
    assert_eq!(world.ask(&post("/health", &[], b"")).await.status, 404);
    assert!(worker.asked().await.is_empty(), "F38");
    world.end().await;
}

#[tokio::test]
async fn requests_one_behind_the_other_on_a_connection_are_answered_in_order() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    let three =
        [chat(&[("x-request-id", "1")]), get("/v1/models"), post(CHATS, &[], b"no")].concat();
    client.send(&three).await;
    for (status, has) in [(200, "choices"), (200, "\"object\":\"list\""), (400, "error")] {
        let answer = in_time("an answer", client.answer()).await;
        assert_eq!(answer.status, status);
        assert!(answer.text().contains(has), "{}", answer.text());
    }
    world.end().await;
}

#[tokio::test]
async fn an_old_client_gets_its_answers_too() {
    let worker = Worker::start("w", |asked| match asked.body.len() {
        27 => ok(),
        _ => super::worker::stream(&[b"data: 1\n\n", b"data: [DONE]\n\n"]),
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    for (request, text) in [
        (chat(&[]), "{\"id\":\"x\",\"choices\":[]}"),
        (streamed(&[]), "data: 1\n\ndata: [DONE]\n\n"),
    ] {
        let request = String::from_utf8(request).unwrap().replace("HTTP/1.1", "HTTP/1.0");
        let answer = world.ask(request.as_bytes()).await;
        assert_eq!((answer.status, answer.text(), answer.clean), (200, text, true));
        assert!(answer.header("transfer-encoding").is_empty());
    }
    world.end().await;
}
