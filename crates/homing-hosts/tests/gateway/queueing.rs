//! The admission queue as clients see it: who waits, who is refused, who leaves.

use super::client::{Client, chat};
use super::worker::{Act, Gate, Worker, gate, ok};
use super::world::{World, eventually, in_time};

/// One request at a time, and one that waits.
const NARROW: [(&str, &str); 2] =
    [("queue.max_requests", "1"), ("queue.busy_active_requests", "1")];

/// A worker whose answers wait for the gate.
async fn gated() -> (Worker, Gate) {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| [vec![Act::Hold(held.clone())], ok()].concat()).await;
    (worker, open)
}

/// A client whose request is at the worker, and one whose request waits.
async fn one_runs_one_waits(world: &World, worker: &Worker) -> (Client, Client) {
    let mut running = world.client().await;
    running.send(&chat(&[])).await;
    eventually("one runs", || worker.busy() == 1).await;
    let mut waiting = world.client().await;
    waiting.send(&chat(&[("x-homing-session-id", "s")])).await;
    eventually("one waits", || world.stats().waiting == 1).await;
    (running, waiting)
}

#[tokio::test]
async fn the_second_waits_the_third_is_429_and_f42_the_bound_holds() {
    let (worker, open) = gated().await;
    let world = World::start(&NARROW, &[&worker]).await;
    let (mut running, mut waiting) = one_runs_one_waits(&world, &worker).await;
    assert_eq!(world.metric("homing_queue_depth").await, 1.0);
    for _ in 0..3 {
        let third = world.ask(&chat(&[("x-homing-session-id", "s")])).await;
        assert_eq!((third.status, third.code().as_str()), (429, "queue_full"), "F58");
        assert_eq!(third.affinity(), "rejected");
        assert!(!third.header("retry-after").is_empty());
        assert!(!third.header("retry-after-ms").is_empty());
    }
    assert_eq!(worker.asked().await.len(), 1, "the worker has one at a time");
    open.add_permits(1);
    assert_eq!(in_time("the first", running.answer()).await.status, 200);
    eventually("the second runs", || worker.busy() == 1).await;
    assert_eq!((world.stats().waiting, world.stats().bookings), (0, 1));
    open.add_permits(1);
    let second = in_time("the second", waiting.answer()).await;
    assert_eq!((second.status, second.affinity()), (200, "new"));
    assert_eq!(world.metric("homing_queue_depth").await, 0.0);
    assert_eq!(world.metric("homing_queue_wait_seconds_count").await, 1.0, "only the one");
    world.end().await;
}

#[tokio::test]
async fn f40_a_waiting_client_that_leaves_frees_its_place() {
    let (worker, open) = gated().await;
    let world = World::start(&NARROW, &[&worker]).await;
    let (mut running, waiting) = one_runs_one_waits(&world, &worker).await;
    drop(waiting);
    eventually("its place is free", || world.stats().waiting == 0).await;
    let mut next = world.client().await;
    next.send(&chat(&[])).await;
    eventually("the next waits", || world.stats().waiting == 1).await;
    open.add_permits(2);
    assert_eq!(in_time("the first", running.answer()).await.status, 200);
    assert_eq!(in_time("the next", next.answer()).await.status, 200);
    assert_eq!(worker.asked().await.len(), 2, "who has left reached nobody");
    world.end().await;
}

#[tokio::test]
async fn f40_a_running_client_that_leaves_lets_the_next_one_in() {
    let (worker, open) = gated().await;
    let world = World::start(&NARROW, &[&worker]).await;
    let (running, mut waiting) = one_runs_one_waits(&world, &worker).await;
    drop(running);
    eventually("the second runs", || worker.asked_now() == 2).await;
    // The worker may not have seen yet that the first has left: it may take one, too.
    open.add_permits(2);
    assert_eq!(in_time("the second", waiting.answer()).await.status, 200);
    world.end().await;
}

#[tokio::test]
async fn f58_who_waits_too_long_is_504_and_binds_nothing() {
    let (worker, open) = gated().await;
    let short = [&NARROW[..], &[("queue.max_wait", "'50ms'")]].concat();
    let world = World::start(&short, &[&worker]).await;
    let (mut running, mut waiting) = one_runs_one_waits(&world, &worker).await;
    let late = in_time("the refusal", waiting.answer()).await;
    assert_eq!((late.status, late.code().as_str()), (504, "timeout"));
    assert_eq!((late.affinity(), world.stats().bindings), ("rejected", 0));
    assert_eq!(world.stats().waiting, 0);
    open.add_permits(1);
    assert_eq!(in_time("the first", running.answer()).await.status, 200);
    assert_eq!(worker.asked().await.len(), 1);
    world.end().await;
}

#[tokio::test]
async fn f58_a_request_gives_up_waiting_at_its_own_deadline() {
    let (worker, open) = gated().await;
    let short = [&NARROW[..], &[("gateway.request_timeout", "'1s'")]].concat();
    let world = World::start(&short, &[&worker]).await;
    let (mut running, mut waiting) = one_runs_one_waits(&world, &worker).await;
    for client in [&mut running, &mut waiting] {
        let late = in_time("a refusal", client.answer()).await;
        assert_eq!((late.status, late.code().as_str()), (504, "timeout"));
    }
    open.add_permits(1);
    world.end().await;
}

#[tokio::test]
async fn f43_who_waits_is_refused_when_the_last_worker_departs() {
    let (worker, open) = gated().await;
    let world = World::start(&NARROW, &[&worker]).await;
    let (mut running, mut waiting) = one_runs_one_waits(&world, &worker).await;
    let gone = b"DELETE /admin/workers/w HTTP/1.1\r\nhost: [::1]\r\n\r\n";
    assert_eq!(world.admin(gone).await.status, 204);
    let refused = in_time("the refusal", waiting.answer()).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "no_worker"));
    // What runs there finishes.
    open.add_permits(1);
    assert_eq!(in_time("the first", running.answer()).await.status, 200);
    world.end().await;
}

#[tokio::test]
async fn many_clients_on_few_places_are_all_served_in_turn() {
    let (worker, open) = gated().await;
    let wide = [("queue.max_requests", "100"), ("queue.busy_active_requests", "2")];
    let world = World::start(&wide, &[&worker]).await;
    let mut clients = Vec::new();
    for n in 0..40 {
        let mut client = world.client().await;
        client.send(&chat(&[("x-homing-session-id", &format!("s{}", n % 7))])).await;
        clients.push(client);
    }
    eventually("the others wait", || worker.busy() == 2 && world.stats().waiting == 38).await;
    // Every fifth leaves, wherever it stands.
    let mut left = 0;
    let mut stay = Vec::new();
    for (i, client) in clients.into_iter().enumerate() {
        if i % 5 == 4 {
            drop(client);
            left += 1;
        } else {
            stay.push(client);
        }
    }
    eventually("they have left", || world.stats().waiting + world.stats().bookings == 40 - left)
        .await;
    open.add_permits(40);
    for client in &mut stay {
        assert_eq!(in_time("an answer", client.answer()).await.status, 200);
    }
    world.quiet().await;
    assert_eq!(world.stats().bindings, 7);
    world.end().await;
}
