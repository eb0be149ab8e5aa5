//! Sockets of both sides: what happens beyond the marks, and how feeds come and go.

use super::*;
use crate::ingest::{Feed, Ingest};
use crate::testing::{Lines, eventually, shell};
use homing_core::index::event::KvEvent;
use homing_wire::frames::{build_frames, parse_frames};
use homing_wire::kv_events::{Batch, encode_batch};
use std::sync::Arc;

const W: &str = "w";
const PATIENCE_MS: i32 = 30_000;

/// What an engine has: a socket that numbers what it publishes.
struct Publisher {
    socket: zmq::Socket,
    endpoint: String,
    seq: u64,
}

impl Publisher {
    /// `mark`: how many messages it keeps for a slow subscriber; 0 for all.
    fn new(mark: i32) -> Self {
        // XPUB is PUB that tells of subscribers.
        let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
        socket.set_sndhwm(mark).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        Self { socket, endpoint, seq: 0 }
    }

    fn want(&self) -> Want {
        Want { feed: self.feed(), serial: 1 }
    }

    fn feed(&self) -> Feed {
        Feed { worker: W.into(), rank: 0, endpoint: self.endpoint.clone() }
    }

    /// Waits for a subscriber.
    fn awaits(&self) {
        assert_eq!(self.socket.recv_bytes(0).unwrap(), [1], "subscribed to everything");
    }

    /// Publishes so many events in one message.
    fn send(&mut self, events: usize) {
        let batch = Batch { events: vec![KvEvent::Cleared; events], ..Batch::default() };
        let frames = build_frames("kv-events", self.seq, encode_batch(&batch));
        self.seq += 1;
        self.socket.send_multipart(frames, 0).unwrap();
    }
}

#[test]
fn beyond_our_mark_messages_wait_at_their_publisher() {
    let mut publisher = Publisher::new(0);
    let open = connect(&zmq::Context::new(), &publisher.endpoint, 1).unwrap();
    open.events.set_rcvtimeo(PATIENCE_MS).unwrap();
    publisher.awaits();
    let many = 100 * u64::from(HIGH_WATER.unsigned_abs());
    for _ in 0..many {
        publisher.send(1);
    }
    for seq in 0..many {
        let frames = open.events.recv_multipart(0).unwrap();
        assert_eq!(parse_frames(&frames).unwrap().seq, seq, "none is lost");
    }
}

#[test]
fn beyond_the_publishers_mark_it_drops_and_that_shows_as_a_gap() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W);
    let mut publisher = Publisher::new(10);
    let mut feeds = Feeds::new(PATIENCE);
    let wants = Wants::from([(W.to_owned(), publisher.want())]);
    feeds.become_as(&book, &wants);
    publisher.awaits();
    // More than the buffers of both systems hold.
    for _ in 0..2_000 {
        publisher.send(4_000);
    }
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    while book.stats()[W].gaps == 0 {
        assert!(Instant::now() < until, "{:?}", book.stats());
        publisher.send(1);
        feeds.look(&shell, &book);
    }
    assert!(book.stats()[W].cleared > 0, "what was not dropped came");
}

#[test]
fn a_feed_that_broke_the_protocol_is_forgotten_and_followed_anew() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W);
    let mut publisher = Publisher::new(0);
    let mut feeds = Feeds::new(Duration::from_millis(50));
    feeds.become_as(&book, &Wants::from([(W.to_owned(), publisher.want())]));
    publisher.awaits();
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    let look_until = |feeds: &mut Feeds, publisher: &mut Publisher, cleared: u64| {
        while book.stats()[W].cleared < cleared {
            assert!(Instant::now() < until, "{:?}", book.stats());
            publisher.send(1);
            feeds.look(&shell, &book);
        }
    };
    look_until(&mut feeds, &mut publisher, 1);
    // libzmq ends the connection of a message beyond the limit, and never tries that socket again.
    let too_long = vec![0; usize::try_from(MAX_MESSAGE).unwrap() + 1];
    publisher.socket.send_multipart([b"kv-events".to_vec(), vec![0; 8], too_long], 0).unwrap();
    while book.state(W) == "events" {
        assert!(Instant::now() < until, "it is noticed");
        feeds.look(&shell, &book);
    }
    let before = book.stats()[W].cleared;
    look_until(&mut feeds, &mut publisher, before + 1);
    assert_eq!(book.state(W), "events");
}

#[tokio::test]
async fn a_feed_is_followed_left_and_followed_again() {
    let shell = shell("", &[W]);
    let ingest = Ingest::start(shell.clone()).unwrap();
    let mut publisher = Publisher::new(0);
    for _ in 0..3 {
        ingest.subscribe(publisher.feed());
        assert_eq!(ingest.state(W), "connecting");
        eventually("it is connected", || ingest.state(W) == "events").await;
        let cleared = || ingest.book().stats()[W].cleared;
        eventually("its events come", || {
            publisher.send(1);
            cleared() > 0
        })
        .await;
        // At once again: the feed that is left must not be taken for the one that follows it.
        ingest.unsubscribe(W);
        assert_eq!((ingest.state(W), ingest.book().stats().len()), ("none", 0));
    }
    let (before, mut after) = (Publisher::new(0), Publisher::new(0));
    ingest.subscribe(before.feed());
    eventually("it is connected", || ingest.state(W) == "events").await;
    ingest.subscribe(after.feed());
    eventually("the feed at its new place is followed", || {
        after.send(1);
        ingest.book().stats()[W].cleared > 0
    })
    .await;
    drop(ingest);
    eventually("the thread has ended", || Arc::strong_count(&shell) == 1).await;
}

#[test]
fn a_feed_that_cannot_be_opened_is_said_once_and_tried_again() {
    const SAID: &str = "the worker's KV events can't be followed";
    let (lines, _guard) = Lines::listen();
    let book = FeedBook::default();
    let mut feeds = Feeds::new(PATIENCE);
    let publisher = Publisher::new(0);
    let mut bad = publisher.want();
    bad.feed.endpoint = "nonsense://".into();
    let bad = Wants::from([(W.to_owned(), bad)]);
    for _ in 0..3 {
        feeds.become_as(&book, &bad);
        assert!(feeds.open.is_empty());
        assert_eq!(lines.count(SAID), 1);
    }
    feeds.become_as(&book, &Wants::new());
    feeds.become_as(&book, &bad);
    assert_eq!(lines.count(SAID), 2, "anew");
    let good = Wants::from([(W.to_owned(), Want { serial: 2, ..publisher.want() })]);
    feeds.become_as(&book, &good);
    assert!(feeds.open.len() == 1 && feeds.failed.is_empty());
}
