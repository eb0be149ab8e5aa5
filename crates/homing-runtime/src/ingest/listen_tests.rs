//! Engines that connect to us: one port a feed, and whoever comes back comes to the same one.

use super::tests::{PATIENCE_MS, W, feeds, stored};
use super::*;
use crate::testing::{Lines, shell};
use homing_wire::frames::build_frames;
use homing_wire::kv_events::{Batch, encode_batch};

/// A feed that is listened to at a free port, which the system chooses.
fn listened() -> Feed {
    let endpoint = "tcp://*:*".to_owned();
    Feed { worker: W.into(), rank: 0, ranks: 1, endpoint, listens: true, replay: None }
}

/// An engine's socket that connects to what the feed listens to.
fn connected_to(feeds: &Feeds) -> zmq::Socket {
    let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvtimeo(PATIENCE_MS).unwrap();
    socket.connect(&format!("tcp://127.0.0.1:{}", port(feeds))).unwrap();
    socket
}

fn port(feeds: &Feeds) -> u16 {
    feeds.open[&(W.to_owned(), 0)].link.local().unwrap().port()
}

fn publish(socket: &zmq::Socket, seq: u64, n: u32) {
    let batch = Batch { events: vec![stored(n)], ..Batch::default() };
    let frames = build_frames("kv-events", seq, encode_batch(&batch));
    socket.send_multipart(frames, 0).unwrap();
}

#[test]
fn an_engine_that_connects_is_followed_and_may_come_back() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    // Less than a moment of patience: what listens must not be opened anew for that.
    let mut feeds = feeds(Duration::ZERO);
    feeds.become_as(
        &shell,
        &book,
        &Wants::from([((W.to_owned(), 0), Want { feed: listened(), serial: 1 })]),
    );
    let before = port(&feeds);
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    let look_until = |feeds: &mut Feeds, what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < until, "{what}: {:?}", book.stats());
            feeds.look(&shell, &book);
        }
    };
    feeds.look(&shell, &book);
    assert_eq!(book.state(W), "connecting");
    let blocks = || shell.core().workers()[0].cached_blocks;
    for life in 0..2 {
        let engine = connected_to(&feeds);
        look_until(&mut feeds, "it is connected", &|| book.state(W) == "events");
        while engine.recv_bytes(zmq::DONTWAIT).is_err() {
            assert!(Instant::now() < until, "subscribed to everything");
            feeds.look(&shell, &book);
        }
        publish(&engine, 0, 1);
        publish(&engine, 1, 2);
        look_until(&mut feeds, "its events come", &|| blocks() == 2);
        assert_eq!(book.stats()[W].stored, 2 * (life + 1));
        drop(engine);
        look_until(&mut feeds, "it is gone", &|| book.state(W) == "connecting");
        feeds.look(&shell, &book);
        assert_eq!((port(&feeds), blocks()), (before, 0));
    }
    // Left and followed again at once, at the port that it had.
    let endpoint = format!("tcp://*:{before}");
    for serial in 2..5 {
        let want = Want { feed: Feed { endpoint: endpoint.clone(), ..listened() }, serial };
        feeds.become_as(&shell, &book, &Wants::from([((W.to_owned(), 0), want)]));
        assert!(feeds.failed.is_empty());
    }
    let _engine = connected_to(&feeds);
    look_until(&mut feeds, "it is connected", &|| book.state(W) == "events");
}

#[test]
fn a_port_that_is_taken_is_said_once_and_tried_again() {
    const SAID: &str = "the worker's KV events can't be followed";
    let (lines, _guard) = Lines::listen();
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let endpoint = format!("tcp://0.0.0.0:{}", taken.local_addr().unwrap().port());
    let want = Want { feed: Feed { endpoint, ..listened() }, serial: 1 };
    let wants = Wants::from([((W.to_owned(), 0), want)]);
    let mut feeds = feeds(PATIENCE);
    for _ in 0..2 {
        feeds.become_as(&shell, &book, &wants);
        assert!(feeds.open.is_empty());
        assert_eq!(lines.count(SAID), 1);
        assert_eq!(book.state(W), "connecting");
        assert!(book.failure(W).unwrap().contains("can't listen at"), "{:?}", book.failure(W));
    }
    drop(taken);
    for _ in 0..2 {
        feeds.become_as(&shell, &book, &wants);
        assert!(feeds.failed.is_empty() && feeds.open.len() == 1);
        assert_eq!(
            (book.failure(W), lines.count("the worker's KV events can be followed now")),
            (None, 1)
        );
    }
}

#[test]
fn who_waits_for_events_in_vain_is_told_why_that_may_be() {
    let feed = |endpoint: &str, listens, rank| {
        Feed { endpoint: endpoint.into(), listens, rank, ranks: 4, ..listened() }.hint()
    };
    let hint = feed("tcp://*:5557", true, 0);
    assert!(hint.contains("no engine has connected to this endpoint"), "{hint}");
    let hint = feed("tcp://10.0.0.1:5559", false, 2);
    assert!(hint.contains("write `kv_events = \"tcp://*:5557\"` in its [[workers]]"), "{hint}");
    let hint = feed("tcp://10.0.0.1:5557", true, 0);
    assert!(hint.starts_with("check the endpoint"), "{hint}");
}

/// Found by a breaker: health probes and port scans come to whatever listens.
#[test]
fn a_port_that_somebody_probes_is_still_its_engines() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    let mut feeds = feeds(Duration::from_secs(60));
    let wants = Wants::from([((W.to_owned(), 0), Want { feed: listened(), serial: 1 })]);
    feeds.become_as(&shell, &book, &wants);
    let port = port(&feeds);
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    let look_until = |feeds: &mut Feeds, what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(Instant::now() < until, "{what}: {:?}", book.stats());
            feeds.look(&shell, &book);
        }
    };
    let blocks = || shell.core().workers()[0].cached_blocks;
    let engine = connected_to(&feeds);
    look_until(&mut feeds, "it is connected", &|| book.state(W) == "events");
    while engine.recv_bytes(zmq::DONTWAIT).is_err() {
        assert!(Instant::now() < until, "subscribed to everything");
        feeds.look(&shell, &book);
    }
    for n in 0..3 {
        drop(std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
        // Whatever is made of it.
        (0..5).for_each(|_| feeds.look(&shell, &book));
        publish(&engine, n, n as u32);
        look_until(&mut feeds, "it is heard", &|| blocks() == n as usize + 1);
        look_until(&mut feeds, "and said to be", &|| book.state(W) == "events");
    }
}

/// Found by a breaker: the network went, and what was known was forgotten though the engine was back.
#[test]
fn an_engine_that_is_back_before_its_last_connection_is_gone_loses_nothing() {
    let (lines, _guard) = Lines::listen();
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    let mut feeds = feeds(Duration::ZERO);
    let wants = Wants::from([((W.to_owned(), 0), Want { feed: listened(), serial: 1 })]);
    feeds.become_as(&shell, &book, &wants);
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    let look_until = |feeds: &mut Feeds, what: &str, done: &mut dyn FnMut() -> bool| {
        while !done() {
            assert!(Instant::now() < until, "{what}: {:?}", book.stats());
            feeds.look(&shell, &book);
        }
    };
    let blocks = || shell.core().workers()[0].cached_blocks;
    let subscribed = |feeds: &mut Feeds| {
        let engine = connected_to(feeds);
        look_until(feeds, "it hears that it is listened to", &mut || {
            engine.recv_bytes(zmq::DONTWAIT).is_ok()
        });
        engine
    };
    let old = subscribed(&mut feeds);
    publish(&old, 0, 1);
    publish(&old, 1, 2);
    look_until(&mut feeds, "its events come", &mut || blocks() == 2);
    let new = subscribed(&mut feeds);
    drop(old);
    // Its end has been seen once a message of the other one has come.
    publish(&new, 2, 3);
    look_until(&mut feeds, "the next one comes", &mut || blocks() == 3);
    let ended = Instant::now() + Duration::from_millis(200);
    while Instant::now() < ended {
        feeds.look(&shell, &book);
        assert_eq!((blocks(), book.state(W)), (3, "events"));
    }
    let stats = &book.stats()[W];
    assert_eq!((stats.gaps, stats.lost, lines.count("can't be reached")), (0, 0, 0));
}
