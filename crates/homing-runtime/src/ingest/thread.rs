//! The thread that owns the ZMQ sockets: two a feed, one for its events and one that tells whether it
//! is connected.

use super::feed::{FeedBook, Stream};
use super::{Feed, Order};
use crate::shell::Shell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long an order may wait; events don't.
const LOOK_MS: i64 = 25;
/// Messages taken from one feed before the next has its turn.
const AT_ONCE: usize = 64;
/// The longest message taken, in bytes; libzmq drops the connection of a longer one.
const MAX_MESSAGE: i64 = 16 << 20;
/// Messages that libzmq keeps for us; an engine's own bound is the same.
const HIGH_WATER: i32 = 100_000;
/// An endpoint that has not answered for so long is reported.
const PATIENCE: Duration = Duration::from_secs(10);
/// A dead peer is noticed after three of these, in milliseconds.
const HEARTBEAT_MS: i32 = 5_000;

struct Open {
    feed: Feed,
    stream: Stream,
    events: zmq::Socket,
    monitor: zmq::Socket,
    /// Since when it should be connected and isn't; `None` once that is over or was said.
    missing: Option<Instant>,
}

pub(super) fn run(shell: &Shell, book: &FeedBook, orders: &Receiver<Order>) {
    let context = zmq::Context::new();
    let mut open: BTreeMap<String, Open> = BTreeMap::new();
    let mut serial = 0u64;
    loop {
        loop {
            match orders.try_recv() {
                Ok(Order::Subscribe(feed)) => {
                    if open.get(&feed.worker).is_some_and(|o| o.feed == feed) {
                        continue;
                    }
                    serial += 1;
                    match connect(&context, &feed, serial) {
                        Ok(o) => {
                            open.insert(feed.worker, o);
                        }
                        Err(error) => {
                            let (worker, endpoint) = (&feed.worker, &feed.endpoint);
                            tracing::error!(
                                worker, endpoint, %error, "the worker's KV events can't be followed"
                            );
                        }
                    }
                }
                Ok(Order::Unsubscribe(worker)) => {
                    open.remove(&worker);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        open.values_mut().for_each(Open::complain);
        let mut items: Vec<zmq::PollItem<'_>> = open
            .values()
            .flat_map(|o| [o.events.as_poll_item(zmq::POLLIN), o.monitor.as_poll_item(zmq::POLLIN)])
            .collect();
        if items.is_empty() {
            // Nothing to poll: wait for an order, not for the clock.
            std::thread::sleep(Duration::from_millis(LOOK_MS.unsigned_abs()));
            continue;
        }
        // An error is a signal that interrupted the wait.
        if zmq::poll(&mut items, LOOK_MS).unwrap_or(0) == 0 {
            continue;
        }
        let readable: Vec<bool> = items.iter().map(zmq::PollItem::is_readable).collect();
        drop(items);
        for (o, ready) in open.values_mut().zip(readable.chunks_exact(2)) {
            if ready[1] {
                o.note_connection(book);
            }
            if ready[0] {
                for _ in 0..AT_ONCE {
                    match o.events.recv_multipart(zmq::DONTWAIT) {
                        Ok(frames) => o.stream.take(shell, book, &frames),
                        Err(_) => break,
                    }
                }
            }
        }
    }
}

fn connect(context: &zmq::Context, feed: &Feed, serial: u64) -> zmq::Result<Open> {
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
    events.connect(&feed.endpoint)?;
    let stream = Stream::new(feed.worker.clone(), feed.rank);
    let missing = Some(Instant::now());
    Ok(Open { feed: feed.clone(), stream, events, monitor, missing })
}

impl Open {
    /// Says, once each time, that the endpoint can't be reached.
    fn complain(&mut self) {
        if self.missing.take_if(|since| since.elapsed() > PATIENCE).is_some() {
            let Feed { worker, endpoint, .. } = &self.feed;
            tracing::warn!(
                worker,
                endpoint,
                "the worker's KV events can't be reached: its cache is unknown until they are; \
                 check the endpoint, or give `kv_events` in its [[workers]]"
            );
        }
    }

    /// Reads what the monitor says: the first two bytes of an event name it.
    fn note_connection(&mut self, book: &FeedBook) {
        while let Ok(frames) = self.monitor.recv_multipart(zmq::DONTWAIT) {
            let Some([a, b, ..]) = frames.first().map(Vec::as_slice) else { continue };
            let event = u16::from_ne_bytes([*a, *b]);
            let connected = event == zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw();
            book.connected(&self.feed.worker, connected);
            self.missing = (!connected).then(Instant::now);
        }
    }
}
