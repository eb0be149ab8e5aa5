//! Sockets of both sides: what happens beyond the marks, and how feeds come and go.

use super::*;
use crate::ingest::links::{HIGH_WATER, Times};
use crate::ingest::{Feed, Ingest};
use crate::testing::{Lines, eventually, fleet, shell, state};
use homing_core::fleet::{FleetChange, Probe};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockStored, KvEvent};
use homing_wire::frames::{build_frames, parse_frames};
use homing_wire::kv_events::{Batch, encode_batch};
use homing_wire::zmtp::MESSAGE_MAX;
use std::sync::Arc;

pub(super) const W: &str = "w";
pub(super) const PATIENCE_MS: i32 = 30_000;

/// Feeds with threads of their own.
pub(super) fn feeds(patience: Duration) -> Feeds {
    Feeds::new(Links::new(Times::default()).unwrap(), patience)
}

/// What an engine has: a socket that numbers what it publishes.
pub(super) struct Publisher {
    pub(super) socket: zmq::Socket,
    endpoint: String,
    seq: u64,
}

impl Publisher {
    /// `mark`: how many messages it keeps for a slow subscriber; 0 for all.
    pub(super) fn new(mark: i32) -> Self {
        // XPUB is PUB that tells of subscribers.
        let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
        socket.set_sndhwm(mark).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(PATIENCE_MS).unwrap();
        socket.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = socket.get_last_endpoint().unwrap().unwrap();
        Self { socket, endpoint, seq: 0 }
    }

    /// With a socket that is bound already.
    pub(super) fn on(socket: zmq::Socket, endpoint: &str) -> Self {
        Self { socket, endpoint: endpoint.to_owned(), seq: 0 }
    }

    fn want(&self) -> Want {
        Want { feed: self.feed(), serial: 1 }
    }

    fn feed(&self) -> Feed {
        self.feed_of(0, 1)
    }

    /// As the feed of one of so many ranks.
    pub(super) fn feed_of(&self, rank: u16, ranks: u16) -> Feed {
        Feed {
            worker: W.into(),
            rank,
            ranks,
            endpoint: self.endpoint.clone(),
            listens: true,
            replay: None,
        }
    }

    /// Waits for a subscriber.
    pub(super) fn awaits(&self) {
        assert_eq!(self.socket.recv_bytes(0).unwrap(), [1], "subscribed to everything");
    }

    /// Publishes so many events in one message.
    fn send(&mut self, events: usize) {
        self.publish(vec![KvEvent::Cleared; events]);
    }

    pub(super) fn publish(&mut self, events: Vec<KvEvent>) {
        let batch = Batch { events, ..Batch::default() };
        let frames = build_frames("kv-events", self.seq, encode_batch(&batch));
        self.seq += 1;
        self.socket.send_multipart(frames, 0).unwrap();
    }
}

#[test]
fn beyond_our_mark_messages_wait_at_their_publisher() {
    let mut publisher = Publisher::new(0);
    let links = Links::new(Times::default()).unwrap();
    let link = links.events(&publisher.endpoint).unwrap();
    publisher.awaits();
    let many = 100 * HIGH_WATER as u64;
    for _ in 0..many {
        publisher.send(1);
    }
    let mut seq = 0;
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    while seq < many {
        assert!(Instant::now() < until, "{seq}");
        links.wait(LOOK);
        let notes = link.take(usize::MAX, usize::MAX);
        assert!(notes.len() <= HIGH_WATER, "what waits is bounded");
        for note in notes {
            let Note::Message(frames) = note else { continue };
            assert_eq!(parse_frames(&frames).unwrap().seq, seq, "none is lost");
            seq += 1;
        }
    }
}

#[test]
fn beyond_the_publishers_mark_it_drops_and_that_shows_as_a_gap() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    let mut publisher = Publisher::new(10);
    let mut feeds = feeds(PATIENCE);
    let wants = Wants::from([((W.to_owned(), 0), publisher.want())]);
    feeds.become_as(&shell, &book, &wants);
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
fn one_loud_feed_delays_the_others_by_one_turn() {
    // A short one and a long one: many messages, and many bytes.
    for (events, most) in [(1, AT_ONCE), (40_000, 1 + BYTES_AT_ONCE / 40_000)] {
        let names = ["a-loud", "b-quiet"];
        let (shell, book) = (shell("", &names), FeedBook::default());
        let mut publishers = [Publisher::new(0), Publisher::new(0)];
        let wants = names.iter().zip(&publishers).map(|(name, publisher)| {
            book.open(name, 0, 1);
            let feed = Feed { worker: (*name).into(), ..publisher.feed() };
            (((*name).to_owned(), 0), Want { feed, serial: 1 })
        });
        let mut feeds = feeds(PATIENCE);
        feeds.become_as(&shell, &book, &wants.collect());
        publishers.iter().for_each(Publisher::awaits);
        // What was said of the connections has a turn of its own.
        while names.iter().any(|name| book.state(name) != "events") {
            feeds.look(&shell, &book);
        }
        let [loud, quiet] = &mut publishers;
        (0..3 * AT_ONCE).for_each(|_| loud.send(events));
        quiet.publish(vec![stored(1)]);
        // Both have something; and the loud one, whose turn comes first, has more than its turn.
        let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
        while !feeds.open.values().all(Open::has_something) {
            assert!(Instant::now() < until, "both have something");
            feeds.links.wait(LOOK);
        }
        feeds.look(&shell, &book);
        assert_eq!(book.stats()["b-quiet"].stored, 1, "{events}");
        let taken = book.stats()["a-loud"].cleared / events as u64;
        assert!(taken >= 1 && taken <= most as u64, "{events}: {taken}");
        while book.stats()["a-loud"].cleared < (3 * AT_ONCE * events) as u64 {
            assert!(Instant::now() < until, "the rest comes, {:?}", book.stats());
            feeds.look(&shell, &book);
        }
        assert_eq!(book.stats()["a-loud"].gaps, 0);
    }
}

#[test]
fn a_feed_that_broke_the_protocol_is_forgotten_and_followed_anew() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    book.open(W, 0, 1);
    let mut publisher = Publisher::new(0);
    let mut feeds = feeds(Duration::from_millis(50));
    feeds.become_as(&shell, &book, &Wants::from([((W.to_owned(), 0), publisher.want())]));
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
    publisher.publish(vec![stored(1)]);
    while shell.core().workers()[0].cached_blocks == 0 {
        assert!(Instant::now() < until, "{:?}", book.stats());
        feeds.look(&shell, &book);
    }
    let too_long = vec![0; MESSAGE_MAX];
    publisher.socket.send_multipart([b"kv-events".to_vec(), vec![0; 8], too_long], 0).unwrap();
    // Not its log line: other tests without a listener may be the first at that call site.
    while feeds.open[&(W.to_owned(), 0)].blamed.events.is_none() {
        assert!(Instant::now() < until, "it is noticed");
        feeds.look(&shell, &book);
    }
    assert_eq!(shell.core().workers()[0].cached_blocks, 0);
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
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    let mut feeds = feeds(PATIENCE);
    let publisher = Publisher::new(0);
    let mut bad = publisher.want();
    bad.feed.endpoint = "nonsense://".into();
    let bad = Wants::from([((W.to_owned(), 0), bad)]);
    for _ in 0..3 {
        feeds.become_as(&shell, &book, &bad);
        assert!(feeds.open.is_empty());
        assert_eq!(lines.count(SAID), 1);
    }
    feeds.become_as(&shell, &book, &Wants::new());
    feeds.become_as(&shell, &book, &bad);
    assert_eq!(lines.count(SAID), 2, "anew");
    let good = Wants::from([((W.to_owned(), 0), Want { serial: 2, ..publisher.want() })]);
    feeds.become_as(&shell, &book, &good);
    assert!(feeds.open.len() == 1 && feeds.failed.is_empty());
}

/// A block of its own for each number.
pub(super) fn stored(n: u32) -> KvEvent {
    KvEvent::Stored(BlockStored {
        block_hashes: vec![EngineHash(n.into())],
        token_ids: vec![n; 4],
        block_size: 4,
        full_attention: true,
        ..BlockStored::default()
    })
}

#[tokio::test]
async fn each_rank_has_a_feed_of_its_own() {
    let shell = shell("", &[W]);
    let ingest = Ingest::start(shell.clone()).unwrap();
    let mut ranks = [Publisher::new(0), Publisher::new(0)];
    let blocks = || shell.core().workers()[0].cached_blocks;
    for round in 1..=2 {
        ingest.subscribe(ranks[0].feed_of(0, 2));
        eventually("one is connected", || ingest.state(W) == "events").await;
        ingest.subscribe(ranks[1].feed_of(1, 2));
        assert_eq!(ingest.state(W), "connecting", "the other isn't yet");
        eventually("both are", || ingest.state(W) == "events").await;
        ranks.iter().for_each(Publisher::awaits);
        // The same block, by both: it is one of each rank.
        ranks.iter_mut().for_each(|publisher| publisher.publish(vec![stored(1)]));
        eventually("both tell", || ingest.book().stats()[W].stored == 2).await;
        assert_eq!(blocks(), 2, "round {round}");
        ranks[1].seq += 1;
        ranks[1].publish(vec![]);
        eventually("a hole in one is seen", || ingest.book().stats()[W].gaps == 1).await;
        assert_eq!(blocks(), 1, "and the other's cache stays known");
        ingest.unsubscribe(W);
        assert_eq!((ingest.state(W), ingest.book().stats().len()), ("none", 0));
        for publisher in &ranks {
            assert_eq!(publisher.socket.recv_bytes(0).unwrap(), [0], "nobody listens any more");
        }
        eventually("what they told is forgotten", || blocks() == 0).await;
    }
}

#[test]
fn a_rank_that_never_connects_holds_back_its_own_cache_only() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    let mut publisher = Publisher::new(0);
    // Nobody listens there.
    let dead = Feed { endpoint: "tcp://127.0.0.1:1".into(), ..publisher.feed_of(1, 2) };
    let wants = [publisher.feed_of(0, 2), dead].map(|feed| {
        book.open(W, feed.rank, feed.ranks);
        ((W.to_owned(), feed.rank), Want { feed, serial: 1 })
    });
    let mut feeds = feeds(Duration::from_millis(200));
    feeds.become_as(&shell, &book, &Wants::from(wants));
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    // Not its log line: other tests without a listener may be the first at that call site.
    let said = |feeds: &Feeds| feeds.open[&(W.to_owned(), 1)].said;
    while book.stats()[W].stored == 0 || said(&feeds) != Said::Unreachable {
        assert!(Instant::now() < until, "{:?}", book.stats());
        publisher.publish(vec![stored(1)]);
        feeds.look(&shell, &book);
    }
    assert_eq!(book.state(W), "connecting");
    assert_eq!(shell.core().workers()[0].cached_blocks, 1);
}

#[test]
fn of_a_worker_that_does_not_serve_only_that_is_said_and_its_events_are_missed_once_it_is_back() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    let id = shell.core().worker_named(W).unwrap();
    let feed = Publisher::new(0).feed();
    book.open(W, 0, 1);
    let mut feeds = feeds(Duration::from_millis(50));
    let want = Want { feed: feed.clone(), serial: 1 };
    feeds.become_as(&shell, &book, &Wants::from([((W.to_owned(), 0), want)]));
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    let mut look_until = |says: Said| {
        // Not the log lines: see above.
        while feeds.open[&(W.to_owned(), 0)].said != says {
            assert!(Instant::now() < until, "{:?}", book.stats());
            feeds.look(&shell, &book);
        }
    };
    let becomes = |wanted: State, probe: Probe| {
        // Some in a row make the difference.
        for _ in 0..5 {
            fleet(&shell, FleetChange::Probed(id, probe));
        }
        assert_eq!(state(&shell, W), Some(wanted));
    };
    becomes(State::Down, Probe::Bad);
    look_until(Said::Down);
    becomes(State::Ready, Probe::Good);
    look_until(Said::Unreachable);
    // The engine publishes where it should.
    let socket = zmq::Context::new().socket(zmq::XPUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.bind(&feed.endpoint).unwrap();
    look_until(Said::Nothing);
    assert_eq!(book.state(W), "events");
}

#[test]
fn a_worker_that_has_fewer_ranks_now_is_not_believed_to_have_more() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    let wanted = Wanted::default();
    let mut ranks = [Publisher::new(0), Publisher::new(0)];
    let mut feeds = feeds(PATIENCE);
    let want = |feed: Feed| {
        book.open(W, feed.rank, feed.ranks);
        wanted.add(feed);
        wanted.news(&mut { u64::MAX }).unwrap()
    };
    want(ranks[0].feed_of(0, 2));
    feeds.become_as(&shell, &book, &want(ranks[1].feed_of(1, 2)));
    for publisher in &mut ranks {
        publisher.awaits();
        publisher.publish(vec![stored(1)]);
    }
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    while book.stats()[W].stored < 2 || book.state(W) != "events" {
        assert!(Instant::now() < until, "{:?}", book.stats());
        feeds.look(&shell, &book);
    }
    assert_eq!(shell.core().workers()[0].cached_blocks, 2);
    feeds.become_as(&shell, &book, &want(ranks[0].feed_of(0, 1)));
    assert_eq!((feeds.open.len(), shell.core().workers()[0].cached_blocks), (1, 1));
}

#[test]
fn hundreds_of_feeds_are_followed() {
    let (shell, book) = (shell("", &[W]), FeedBook::default());
    let publisher = Publisher::new(0);
    let ranks = 400;
    let wants = (0..ranks).map(|rank| {
        book.open(W, rank, ranks);
        ((W.to_owned(), rank), Want { feed: publisher.feed_of(rank, ranks), serial: 1 })
    });
    let mut feeds = feeds(PATIENCE);
    feeds.become_as(&shell, &book, &wants.collect());
    assert!(feeds.failed.is_empty(), "{} of {ranks}", feeds.failed.len());
    let until = Instant::now() + Duration::from_millis(PATIENCE_MS.unsigned_abs().into());
    while book.state(W) != "events" {
        assert!(Instant::now() < until, "each is connected");
        feeds.look(&shell, &book);
    }
}
