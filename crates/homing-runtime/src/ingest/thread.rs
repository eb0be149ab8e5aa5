//! The thread that owns the ZMQ sockets: two a feed, one for its events and one that tells whether it
//! is connected.

use super::Feed;
use super::book::FeedBook;
use super::feed::Stream;
use super::wanted::{Key, Want, Wanted, Wants};
use crate::shell::Shell;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How long a change of what is wanted may wait, in milliseconds; events don't.
const LOOK_MS: i64 = 25;
/// Messages taken from one feed before the next has its turn.
const AT_ONCE: usize = 64;
/// The longest message taken, in bytes; libzmq drops the connection of a longer one.
const MAX_MESSAGE: i64 = 16 << 20;
/// Messages that libzmq keeps for us: one turn's, which at an engine's some 10 KB each is little, and at
/// the longest is 1 GiB. Beyond it nothing is lost yet: libzmq stops reading, and the publisher keeps
/// what we have not read, up to a mark of its own (vLLM's: 100,000). Only then does it drop, which we see
/// as a gap.
const HIGH_WATER: i32 = 64;
/// An endpoint that has not answered for so long is reported.
const PATIENCE: Duration = Duration::from_secs(10);
/// A dead peer is noticed after three of these, in milliseconds.
const HEARTBEAT_MS: i32 = 5_000;

struct Open {
    want: Want,
    stream: Stream,
    sockets: Sockets,
    /// Since when it should be connected and isn't.
    missing: Option<Instant>,
    /// That it isn't was said.
    said: bool,
}

struct Sockets {
    events: zmq::Socket,
    monitor: zmq::Socket,
}

/// Opens sockets. A context of libzmq has 1023 of them, and a feed takes three (one is inside its
/// monitor): a full context is left to its feeds, with whose last it ends, and another one begun.
struct Links {
    context: zmq::Context,
    /// Names the sockets' monitors.
    opened: u64,
}

/// All feeds of the thread.
struct Feeds {
    links: Links,
    patience: Duration,
    open: BTreeMap<Key, Open>,
    /// The feeds that could not be opened, by serial: said once each.
    failed: BTreeMap<Key, u64>,
}

/// Until nobody wants anything any more.
pub(super) fn run(shell: &Shell, book: &FeedBook, wanted: &Weak<Wanted>) {
    let mut feeds = Feeds::new(PATIENCE);
    let mut seen = 0;
    while let Some(wanted) = wanted.upgrade() {
        if let Some(wants) = wanted.news(&mut seen) {
            feeds.become_as(shell, book, &wants);
        }
        drop(wanted);
        feeds.look(shell, book);
    }
}

impl Feeds {
    fn new(patience: Duration) -> Self {
        Self {
            links: Links { context: zmq::Context::new(), opened: 0 },
            patience,
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Closes what is not wanted, and opens what is. A rank that nobody wants followed may do anything to
    /// its cache from now on, so nothing of it is believed.
    fn become_as(&mut self, shell: &Shell, book: &FeedBook, wants: &Wants) {
        let still = |key: &Key, serial| wants.get(key).is_some_and(|w| w.serial == serial);
        self.open.retain(|key, o| {
            if !wants.contains_key(key) {
                o.stream.forget(shell);
            }
            still(key, o.want.serial)
        });
        self.failed.retain(|key, serial| still(key, *serial));
        for (key, want) in wants {
            if self.open.contains_key(key) {
                continue;
            }
            let Feed { worker, rank, endpoint, .. } = &want.feed;
            // Its predecessor may have been.
            book.connected(worker, *rank, false);
            match self.links.open(endpoint) {
                Ok(sockets) => {
                    self.failed.remove(key);
                    let stream = Stream::new(&want.feed);
                    let (want, missing) = (want.clone(), Some(Instant::now()));
                    let open = Open { want, stream, sockets, missing, said: false };
                    self.open.insert(key.clone(), open);
                }
                Err(error) => {
                    if self.failed.insert(key.clone(), want.serial).is_none() {
                        tracing::error!(
                            worker, rank, endpoint, %error,
                            "the worker's KV events can't be followed"
                        );
                    }
                }
            }
        }
    }

    /// Takes what has come, or waits for a while.
    fn look(&mut self, shell: &Shell, book: &FeedBook) {
        for o in self.open.values_mut() {
            if o.missing.is_some_and(|since| since.elapsed() > self.patience) {
                o.open_again(shell, &mut self.links);
            }
        }
        let mut items: Vec<zmq::PollItem<'_>> = self
            .open
            .values()
            .map(|o| &o.sockets)
            .flat_map(|s| [s.events.as_poll_item(zmq::POLLIN), s.monitor.as_poll_item(zmq::POLLIN)])
            .collect();
        if items.is_empty() {
            // libzmq has nothing to wait for.
            std::thread::sleep(Duration::from_millis(LOOK_MS.unsigned_abs()));
            return;
        }
        // An error is a signal that interrupted the wait.
        if zmq::poll(&mut items, LOOK_MS).unwrap_or(0) == 0 {
            return;
        }
        let readable: Vec<bool> = items.iter().map(zmq::PollItem::is_readable).collect();
        drop(items);
        for (o, ready) in self.open.values_mut().zip(readable.chunks_exact(2)) {
            if ready[1] {
                o.note_connection(book);
            }
            if ready[0] {
                for _ in 0..AT_ONCE {
                    match o.sockets.events.recv_multipart(zmq::DONTWAIT) {
                        Ok(frames) => o.stream.take(shell, book, &frames),
                        Err(_) => break,
                    }
                }
            }
        }
    }
}

impl Links {
    fn open(&mut self, endpoint: &str) -> zmq::Result<Sockets> {
        self.opened += 1;
        match connect(&self.context, endpoint, self.opened) {
            Err(zmq::Error::EMFILE) => {
                self.context = zmq::Context::new();
                connect(&self.context, endpoint, self.opened)
            }
            opened => opened,
        }
    }
}

fn connect(context: &zmq::Context, endpoint: &str, serial: u64) -> zmq::Result<Sockets> {
    let events = context.socket(zmq::SUB)?;
    events.set_linger(0)?;
    events.set_rcvhwm(HIGH_WATER)?;
    events.set_maxmsgsize(MAX_MESSAGE)?;
    events.set_reconnect_ivl(100)?;
    events.set_reconnect_ivl_max(5_000)?;
    events.set_heartbeat_ivl(HEARTBEAT_MS)?;
    events.set_heartbeat_timeout(3 * HEARTBEAT_MS)?;
    events.set_ipv6(true)?;
    let address = format!("inproc://feed-monitor-{serial}");
    let watched = zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw() as i32
        | zmq::SocketEvent::DISCONNECTED.to_raw() as i32;
    events.monitor(&address, watched)?;
    let monitor = context.socket(zmq::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(&address)?;
    events.set_subscribe(b"")?;
    events.connect(endpoint)?;
    Ok(Sockets { events, monitor })
}

impl Open {
    /// It has not been connected for too long: what was known of the cache is no longer believed, and new
    /// sockets are tried, since libzmq gives a connection up for good after a protocol error.
    fn open_again(&mut self, shell: &Shell, links: &mut Links) {
        self.missing = Some(Instant::now());
        let Feed { worker, rank, endpoint, .. } = &self.want.feed;
        // An error here would have been one at the first time.
        if let Ok(sockets) = links.open(endpoint) {
            self.sockets = sockets;
        }
        if !std::mem::replace(&mut self.said, true) {
            self.stream.forget(shell);
            tracing::warn!(
                worker,
                rank,
                endpoint,
                "the worker's KV events can't be reached: its cache is unknown until they are; \
                 check the endpoint, or give `kv_events` in its [[workers]]"
            );
        }
    }

    /// Reads what the monitor says: the first two bytes of an event name it.
    fn note_connection(&mut self, book: &FeedBook) {
        while let Ok(frames) = self.sockets.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some([a, b, ..]) = frames.first().map(Vec::as_slice) else { continue };
            let event = u16::from_ne_bytes([*a, *b]);
            let connected = event == zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw();
            book.connected(&self.want.feed.worker, self.want.feed.rank, connected);
            self.missing = (!connected).then(Instant::now);
            self.said &= !connected;
        }
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
