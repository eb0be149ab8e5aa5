//! The thread that owns the ZMQ sockets: two a feed, one for its events and one that tells whether it
//! is connected; and while a hole is asked for, a third one.

use super::book::FeedBook;
use super::feed::Stream;
use super::links::{Links, Sockets};
use super::wanted::{Key, Want, Wanted, Wants};
use super::{Feed, Here};
use crate::shell::Shell;
use homing_core::fleet::State;
use homing_wire::engine::is_wildcard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a change of what is wanted may wait, in milliseconds; events don't.
const LOOK_MS: i64 = 25;
/// What is taken from one socket before the next has its turn: so many messages, and none after so many bytes, so
/// that the longest messages of one feed hold the others up for one of them at a time.
const AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 256 << 10;
/// An endpoint that has not answered for so long is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was said of a feed that isn't connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// That its worker doesn't serve either.
    Down,
    /// That it can't be reached, and what may help.
    Unreachable,
}

struct Open {
    want: Want,
    stream: Stream,
    sockets: Sockets,
    /// Where replies to the stream's last question come from: a socket a question.
    replies: Option<zmq::Socket>,
    /// Since when it should be connected and isn't.
    missing: Option<Instant>,
    /// What was said of that.
    said: Said,
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
        Self { links: Links::new(), patience, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Closes what is not wanted, and opens what is. A rank that nobody wants followed may do anything to
    /// its cache from now on, so nothing of it is believed; nor of one that publishes elsewhere now.
    fn become_as(&mut self, shell: &Shell, book: &FeedBook, wants: &Wants) {
        let here = Here { shell, book, now: Instant::now() };
        let still = |key: &Key, serial| wants.get(key).is_some_and(|w| w.serial == serial);
        let mut streams = BTreeMap::new();
        self.open.retain(|key, o| {
            if still(key, o.want.serial) {
                return true;
            }
            match wants.get(key) {
                Some(want) if want.feed.endpoint == o.want.feed.endpoint => {
                    o.stream.set_feed(here, &want.feed);
                    let successor = Stream::new(&want.feed, here.now);
                    streams.insert(key.clone(), std::mem::replace(&mut o.stream, successor));
                }
                _ => o.stream.forget(here),
            }
            false
        });
        self.failed.retain(|key, serial| still(key, *serial));
        for (key, want) in wants {
            if self.open.contains_key(key) {
                continue;
            }
            let Feed { worker, rank, endpoint, .. } = &want.feed;
            // Its predecessor may have been.
            book.connected(worker, *rank, false);
            match self.links.events(endpoint) {
                Ok(sockets) => {
                    self.failed.remove(key);
                    let kept = streams.remove(key);
                    let stream = kept.unwrap_or_else(|| Stream::new(&want.feed, here.now));
                    let (want, missing) = (want.clone(), Some(here.now));
                    let said = Said::Nothing;
                    let open = Open { want, stream, sockets, replies: None, missing, said };
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
        // Those could not be opened again.
        for stream in streams.values_mut() {
            stream.forget(here);
        }
    }

    /// Takes what has come, or waits for a while.
    fn look(&mut self, shell: &Shell, book: &FeedBook) {
        let here = Here { shell, book, now: Instant::now() };
        let patience = self.patience;
        let is_late = |o: &Open| o.missing.is_some_and(|since| since.elapsed() > patience);
        let unsaid = |o: &Open| is_late(o) && o.said != Said::Unreachable;
        let down = if self.open.values().any(unsaid) { down(shell) } else { BTreeSet::new() };
        for o in self.open.values_mut() {
            if is_late(o) {
                o.open_again(here, &mut self.links, down.contains(&*o.want.feed.worker));
            }
            o.stream.keep_time(here);
            o.ask(here, &mut self.links);
        }
        let mut items: Vec<zmq::PollItem<'_>> = Vec::with_capacity(3 * self.open.len());
        for o in self.open.values() {
            let sockets = [Some(&o.sockets.monitor), Some(&o.sockets.events), o.replies.as_ref()];
            items.extend(sockets.into_iter().flatten().map(|s| s.as_poll_item(zmq::POLLIN)));
        }
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
        let mut readable = readable.into_iter();
        let mut ready = || readable.next().unwrap_or(false);
        let here = Here { now: Instant::now(), ..here };
        for o in self.open.values_mut() {
            let (monitor, events) = (ready(), ready());
            let replies = o.replies.is_some() && ready();
            if monitor {
                o.note_connection(here);
            }
            if events {
                let mut came = false;
                for frames in turn(&o.sockets.events) {
                    o.stream.take(here, &frames);
                    came = true;
                }
                if came {
                    o.note_message(here);
                }
            }
            // After the live ones, so that it is not far ahead of them.
            if let Some(socket) = o.replies.as_ref().filter(|_| replies) {
                for frames in turn(socket) {
                    o.stream.reply(here, &frames);
                }
            }
        }
    }
}

/// The workers that don't serve, so that nothing else is to be said of their feeds.
fn down(shell: &Shell) -> BTreeSet<Arc<str>> {
    let workers = shell.core().workers().into_iter();
    let down = workers.filter(|w| matches!(w.state, State::Down | State::Starting));
    down.map(|w| w.info.spec.name.clone()).collect()
}

/// What a socket has, and no more than one turn's of it.
fn turn(socket: &zmq::Socket) -> impl Iterator<Item = Vec<Vec<u8>>> {
    let mut bytes = 0;
    (0..AT_ONCE).map_while(move |_| {
        if bytes >= BYTES_AT_ONCE {
            return None;
        }
        let frames = socket.recv_multipart(zmq::DONTWAIT).ok()?;
        bytes += frames.iter().map(Vec::len).sum::<usize>();
        Some(frames)
    })
}

impl Open {
    /// It has not been connected for too long: what was known of the cache is no longer believed, and new
    /// sockets are tried, since libzmq gives a connection up for good after a protocol error. `down`: so is
    /// its worker.
    fn open_again(&mut self, here: Here<'_>, links: &mut Links, down: bool) {
        self.missing = Some(here.now);
        let Feed { worker, rank, endpoint, .. } = &self.want.feed;
        // One that listens goes on listening, and its port is its own. An error here would have been one at
        // the first time.
        if !is_wildcard(endpoint)
            && let Ok(sockets) = links.events(endpoint)
        {
            self.sockets = sockets;
        }
        let says = if down { Said::Down } else { Said::Unreachable };
        // Whoever was down is told of anew once it is back and its events are not.
        if self.said == says || self.said == Said::Unreachable {
            return;
        }
        if std::mem::replace(&mut self.said, says) == Said::Nothing {
            self.stream.forget(here);
        }
        if down {
            tracing::warn!(
                worker,
                rank,
                endpoint,
                "the worker does not serve, and its KV events can't be reached either: its cache is unknown until they are"
            );
            return;
        }
        let hint = self.want.feed.hint();
        tracing::warn!(
            worker,
            rank,
            endpoint,
            "the worker's KV events can't be reached: its cache is unknown until they are; {hint}"
        );
    }

    /// Asks what the stream wants to be asked. A question whose answers are not awaited any more takes its
    /// socket with it, and so its answers.
    fn ask(&mut self, here: Here<'_>, links: &mut Links) {
        if let Some(from) = self.stream.ask(here.now) {
            let endpoint = self.want.feed.replay.as_deref().unwrap_or_default();
            self.replies = links.replies(endpoint, from).ok();
            if self.replies.is_none() {
                self.stream.not_asked(here);
            }
        }
        if !self.stream.awaits_replies() {
            self.replies = None;
        }
    }

    /// Reads what the monitor says: the first two bytes of an event name it.
    fn note_connection(&mut self, here: Here<'_>) {
        let connected = |frames: Vec<Vec<u8>>| {
            let Some([a, b, ..]) = frames.first().map(Vec::as_slice) else { return None };
            let event = u16::from_ne_bytes([*a, *b]);
            Some(event == zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw())
        };
        let said: Vec<bool> = turn(&self.sockets.monitor).filter_map(connected).collect();
        for connected in said {
            self.connection(here, connected);
        }
    }

    /// Where this listens, whoever came and went (a probe of the port, the engine's last life) says nothing of
    /// the one that publishes: its messages do.
    fn note_message(&mut self, here: Here<'_>) {
        if self.missing.is_some() && is_wildcard(&self.want.feed.endpoint) {
            self.connection(here, true);
        }
    }

    fn connection(&mut self, here: Here<'_>, connected: bool) {
        here.book.connected(&self.want.feed.worker, self.want.feed.rank, connected);
        self.stream.connected(here, connected);
        self.missing = (!connected).then_some(here.now);
        if connected && std::mem::replace(&mut self.said, Said::Nothing) != Said::Nothing {
            let Feed { worker, rank, endpoint, .. } = &self.want.feed;
            tracing::info!(worker, rank, endpoint, "the worker's KV events are reached again");
        }
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod listen_tests;
#[cfg(test)]
#[path = "socket_replay_tests.rs"]
mod socket_replay_tests;
#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
