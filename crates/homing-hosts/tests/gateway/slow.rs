//! Slow readers: the worker feels them (F49), and they lose nothing.

use super::client::{chat, streamed};
use super::worker::{Act, LAST, STREAM, Worker, begun, chunk};
use super::world::{World, eventually, in_time};
use std::time::{Duration, Instant};

/// More than all buffers on the way: two sockets' on each side, hyper's and the relay's.
const ALL: usize = 96 << 20;
const BOUND: usize = 48 << 20;
const EVENT: usize = 64 << 10;

fn event() -> Vec<u8> {
    chunk(&[b"data: ".as_slice(), &vec![b'x'; EVENT - 8], b"\n\n"].concat())
}

/// Until a worker's writes have stood still for a while, and how much it has written by then.
async fn stuck(worker: &Worker) -> usize {
    let (mut last, mut since) = (0, Instant::now());
    eventually("the worker can't write on", || {
        let now = worker.flooded();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        last > 0 && since.elapsed() > Duration::from_millis(300)
    })
    .await;
    last
}

#[tokio::test]
async fn f49_a_slow_reader_stops_its_worker() {
    let times = ALL / EVENT;
    let plain = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", times * event().len());
    let kinds = [
        (vec![Act::Send(STREAM.into()), Act::Flood(event(), times), Act::Send(LAST.into())], ALL),
        (vec![Act::Send(plain.into()), Act::Flood(event(), times)], times * event().len()),
    ];
    for (acts, length) in kinds {
        let worker = Worker::start("w", move |_| acts.clone()).await;
        let world = World::start(&[], &[&worker]).await;
        let mut client = world.client().await;
        client.send(&streamed(&[])).await;
        let mut answer = in_time("the head", client.head()).await;
        let written = stuck(&worker).await;
        assert!(written < BOUND, "{written} bytes were taken off the worker's hands");
        assert_eq!(world.stats().bookings, 1);
        // It has lost nothing when it comes back.
        in_time("the rest", client.rest(&mut answer)).await;
        assert!(answer.clean);
        assert_eq!(answer.body.len(), length);
        world.end().await;
    }
}

#[tokio::test]
async fn f49_f40_a_reader_that_never_reads_and_leaves_frees_its_worker() {
    let worker = Worker::start("w", |_| {
        vec![Act::Send(STREAM.into()), Act::Flood(event(), ALL / EVENT), Act::Send(LAST.into())]
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[("x-homing-session-id", "s")])).await;
    in_time("the head", client.head()).await;
    stuck(&worker).await;
    assert_eq!(world.stats().leases, 1);
    client.reset();
    eventually("the worker is free", || worker.busy() == 0 && worker.left() == 1).await;
    world.end().await;
}

#[tokio::test]
async fn a_reader_that_never_reads_holds_its_worker_no_longer_than_a_request_may_take() {
    let worker = Worker::start("w", |_| {
        vec![Act::Send(STREAM.into()), Act::Flood(event(), ALL / EVENT), Act::Send(LAST.into())]
    })
    .await;
    let world = World::start(&[("gateway.request_timeout", "'1s'")], &[&worker]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[("x-homing-session-id", "s")])).await;
    in_time("the head", client.head()).await;
    eventually("the worker is free", || worker.busy() == 0 && worker.left() == 1).await;
    world.quiet().await;
    drop(client);
    world.end().await;
}

#[tokio::test]
async fn f46_a_slow_reader_too_is_told_that_its_worker_broke_off() {
    // How much the sockets on the way hold is the system's affair: so every length up to where the router
    // still has to read when its client does nothing, in steps smaller than what hyper holds on its own.
    let whole = [b"data: ".as_slice(), &vec![b'x'; EVENT - 8], b"\n\n"].concat();
    let worker = Worker::start("w", |asked| {
        let times = std::str::from_utf8(asked.header("x-times")[0]).unwrap();
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([Act::Flood(event(), times.parse().unwrap()), Act::Close]);
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut all_read = 0;
    for times in (1..).map(|n| 3 * n) {
        let mut client = world.client().await;
        client.send(&streamed(&[("x-times", &times.to_string())])).await;
        let mut answer = in_time("the head", client.head()).await;
        in_time("an event", client.until(&mut answer, b"data: 1\n\n")).await;
        let (mut before, mut since) = (0, Instant::now());
        eventually("the router has read all, or stands still", || {
            let now = worker.flooded();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            world.stats().bookings == 0 || since.elapsed() > Duration::from_millis(300)
        })
        .await;
        let read = world.stats().bookings == 0;
        in_time("the rest", client.rest(&mut answer)).await;
        assert!(!answer.clean);
        let sent = [b"data: 1\n\n".as_slice(), &whole.repeat(times)].concat();
        let rest = answer.body.strip_prefix(sent.as_slice());
        let rest = rest.unwrap_or_else(|| panic!("{} of {}", answer.body.len(), sent.len()));
        assert!(rest.starts_with(b"data: {\"error\":"), "{times}: {rest:?}");
        assert!(rest.ends_with(b"\n\n"), "{times}: {rest:?}");
        if !read {
            break;
        }
        all_read += 1;
    }
    assert!(all_read > 0);
    world.end().await;
}

#[tokio::test]
async fn a_reader_that_pauses_longer_than_the_idle_time_is_no_idle_worker() {
    let worker = Worker::start("w", |_| {
        vec![Act::Send(STREAM.into()), Act::Flood(event(), ALL / EVENT), Act::Send(LAST.into())]
    })
    .await;
    let world = World::start(&[("upstream.idle_timeout", "'1s'")], &[&worker]).await;
    let mut client = world.client().await;
    client.send(&chat(&[])).await;
    let mut answer = in_time("the head", client.head()).await;
    stuck(&worker).await;
    // The pause is what is tested here: longer than the idle time, without a byte.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    in_time("the rest", client.rest(&mut answer)).await;
    assert!(answer.clean, "{} bytes", answer.body.len());
    assert_eq!(answer.body.len(), ALL);
    world.end().await;
}
