//! Who goes away: clients, in every phase of a request; and workers, whose connections are refused or
//! stale.

use super::client::{Client, chat, streamed};
use super::worker::{Act, STREAM, Worker, begun, ok, stall};
use super::world::{World, eventually, in_time};
use homing_core::fleet::State;

#[tokio::test]
async fn f40_a_client_that_leaves_in_a_silent_prefill_takes_its_worker_along() {
    let phases = [
        ("before the head", vec![stall()]),
        ("after the head", vec![Act::Send(STREAM.into()), stall()]),
        ("after a comment", begun(&[b": ping\n\n"]).into_iter().chain([stall()]).collect()),
    ];
    for (phase, acts) in phases {
        let worker = Worker::start("w", move |_| acts.clone()).await;
        let world = World::start(&[], &[&worker]).await;
        let leave: [fn(Client); 2] = [drop, Client::reset];
        for (round, leave) in leave.into_iter().enumerate() {
            for (i, request) in [chat, streamed].into_iter().enumerate() {
                let mut client = world.client().await;
                client.send(&request(&[("x-homing-session-id", "s")])).await;
                eventually("the worker is at work", || worker.busy() == 1).await;
                assert_eq!(world.stats().bookings, 1, "{phase}: F12");
                leave(client);
                let so_far = 2 * round + i + 1;
                eventually(phase, || worker.left() == so_far && worker.busy() == 0).await;
                world.quiet().await;
            }
        }
        assert_eq!(world.stats().bindings, 0, "{phase}: nothing had begun (R12)");
        assert_eq!(world.state("w"), Some(State::Ready), "{phase}");
        let gone = "homing_requests_total{model=\"m\",endpoint=\"chat_completions\",\
                    status=\"499\",code=\"\"}";
        assert_eq!(world.metric(gone).await, 4.0, "{phase}: F58, no server error");
        world.end().await;
    }
}

#[tokio::test]
async fn f40_bytes_behind_a_request_hide_no_client_that_leaves() {
    // The next request, part of one, and more than hyper reads ahead at first.
    let behind = [chat(&[]), b"POST /v1".to_vec(), vec![b'x'; 32 << 10]];
    let worker = Worker::start("w", |_| vec![stall()]).await;
    let world = World::start(&[], &[&worker]).await;
    let mut so_far = 0;
    for bytes in behind {
        let leave: [fn(Client); 2] = [drop, Client::reset];
        for (leave, request) in leave.into_iter().zip([chat, streamed]) {
            let mut client = world.client().await;
            client.send(&request(&[("x-homing-session-id", "s")])).await;
            eventually("the worker is at work", || worker.busy() == 1).await;
            client.send(&bytes).await;
            leave(client);
            so_far += 1;
            eventually("the worker is free", || worker.left() == so_far && worker.busy() == 0)
                .await;
            world.quiet().await;
        }
    }
    let gone = "homing_requests_total{model=\"m\",endpoint=\"chat_completions\",\
                status=\"499\",code=\"\"}";
    assert_eq!(world.metric(gone).await, 6.0, "none of what came behind has begun");
    world.end().await;
}

#[tokio::test]
async fn requests_behind_each_other_are_answered_in_their_order() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    let names = ["a", "b", "c", "d"];
    let all: Vec<u8> = names.iter().flat_map(|n| chat(&[("x-request-id", n)])).collect();
    client.send(&all).await;
    for name in names {
        let answer = in_time("an answer", client.answer()).await;
        assert_eq!((answer.status, answer.header("x-request-id")), (200, vec![name]));
    }
    world.end().await;
}

#[tokio::test]
async fn f40_a_client_that_leaves_in_mid_stream_takes_its_worker_along() {
    let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345".to_vec();
    let kinds = [
        ("a stream", begun(&[b"data: 12345\n\n"])),
        ("a stream within an event", begun(&[b"data: 12345\n\ndata: 6"])),
        ("a plain answer", vec![Act::Send(plain)]),
    ];
    for (kind, mut acts) in kinds {
        acts.push(stall());
        let worker = Worker::start("w", move |_| acts.clone()).await;
        let world = World::start(&[], &[&worker]).await;
        let leave: [fn(Client); 2] = [drop, Client::reset];
        for (round, leave) in leave.into_iter().enumerate() {
            let mut client = world.client().await;
            client.send(&streamed(&[("x-homing-session-id", "s")])).await;
            let mut answer = in_time("the head", client.head()).await;
            in_time("the beginning", client.until(&mut answer, b"12345")).await;
            assert_eq!((world.stats().leases, world.stats().bookings), (1, 1), "{kind}: R13");
            leave(client);
            eventually(kind, || worker.left() == round + 1 && worker.busy() == 0).await;
            world.quiet().await;
            assert_eq!(world.stats().bindings, 1, "{kind}");
        }
        world.end().await;
    }
}

#[tokio::test]
async fn f40_a_client_that_leaves_within_its_own_body_reaches_nobody() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let request = chat(&[]);
    for cut in [1, request.len() / 2, request.len() - 1] {
        let mut client = world.client().await;
        client.send(&request[..cut]).await;
        drop(client);
    }
    // Behind them the router is as good as before.
    assert_eq!(world.ask(&request).await.status, 200);
    worker.only().await;
    world.end().await;
}

#[tokio::test]
async fn r07_a_refused_connection_marks_its_worker_down_at_once_and_the_request_moves() {
    let [a, b] = [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await];
    // No probe comes in between: what marks the worker is the request.
    let slow = [("health.interval", "'1h'")];
    let world = World::start(&slow, &[&a, &b]).await;
    let turn = || chat(&[("x-homing-session-id", "s")]);
    let first = world.ask(&turn()).await;
    let (home, other) = if first.worker() == "a" { (&a, &b) } else { (&b, &a) };
    home.die().await;
    let second = world.ask(&turn()).await;
    assert_eq!((second.status, second.worker()), (200, other.name));
    assert_eq!(second.affinity(), "rebound");
    assert_eq!(world.state(home.name), Some(State::Down));
    assert_eq!(world.metric("homing_retries_total{reason=\"refused\"}").await, 1.0);
    assert_eq!(world.metric(&format!("homing_worker_up{{worker=\"{}\"}}", home.name)).await, 0.0);
    let third = world.ask(&turn()).await;
    assert_eq!((third.affinity(), third.worker()), ("hit", other.name));
    // And when nobody is left: not the client's fault, and worth another try.
    other.die().await;
    let last = world.ask(&turn()).await;
    assert_eq!((last.status, last.code().as_str()), (503, "no_worker"));
    assert!(!last.header("retry-after").is_empty() && last.header("x-should-retry").is_empty());
    assert_eq!(world.metric("homing_retries_total{reason=\"refused\"}").await, 1.0);
    world.end().await;
}

#[tokio::test]
async fn f36_a_kept_connection_that_its_worker_has_closed_costs_nothing_and_marks_nobody() {
    let worker = Worker::start("w", |_| {
        let mut acts = ok();
        acts.push(Act::Close);
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    // One client: one thread of the router, and its pool.
    let mut client = world.client().await;
    for n in 1..=200 {
        let request = chat(&[("x-homing-session-id", "s")]);
        let answer = in_time("an answer", client.ask(&request)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.affinity(), if n == 1 { "new" } else { "hit" });
        // Its end is on its way to the router before the next request is.
        eventually("the worker has closed", || worker.closed() == n).await;
    }
    let asked = worker.asked().await;
    assert_eq!(asked.len(), 200, "none was sent twice (F37)");
    assert!(asked.iter().all(|a| a.earlier == 0));
    assert_eq!(world.state("w"), Some(State::Ready));
    let metrics = world.metrics().await;
    let retries = metrics.lines().filter(|l| l.starts_with("homing_retries_total{"));
    assert!(
        retries.clone().count() > 0 && retries.clone().all(|l| l.ends_with(" 0")),
        "no attempt"
    );
    world.end().await;
}
