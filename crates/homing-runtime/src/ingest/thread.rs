//! The thread that takes in what comes over the links: one a feed, for its events; and while a hole is asked for, a
//! second one.

use super::book::FeedBook;
use super::feed::Stream;
use super::links::{Ended, Link, Links, Note};
use super::wanted::{Key, Want, Wanted, Wants};
use super::{Feed, Here};
use crate::shell::Shell;
use homing_core::fleet::State;
use homing_wire::engine::is_wildcard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a change of what is wanted may wait; events don't.
const LOOK: Duration = Duration::from_millis(25);
/// What is taken from one link before the next has its turn: so many messages, and none after so many bytes, so
/// that the longest messages of one feed hold the others up for one of them at a time.
const AT_ONCE: usize = 64;
const BYTES_AT_ONCE: usize = 256 << 10;
/// An endpoint that has not answered for so long is reported.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a peer does wrong is said once, and again when it does it after so long, if it was heard meanwhile.
const SAID_FOR: Duration = Duration::from_secs(60);

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
    link: Link,
    /// Where replies to the stream's last question come from: a link a question.
    replies: Option<Link>,
    /// Since when it should be connected and isn't.
    missing: Option<Instant>,
    /// What was said of that,
    said: Said,
    /// and why it is so.
    why: Option<String>,
    blamed: Blamed,
}

/// When it was last said what peers do wrong.
#[derive(Debug, Default)]
struct Blamed {
    /// Those that publish.
    events: Option<Instant>,
    /// Those that are asked.
    replies: Option<Instant>,
    /// Two that publish at one port.
    rivals: Option<Instant>,
    /// As many as may that are connected.
    full: Option<Instant>,
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
pub(super) fn run(shell: &Shell, book: &FeedBook, wanted: &Weak<Wanted>, links: Links) {
    let mut feeds = Feeds::new(links, PATIENCE);
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
    const fn new(links: Links, patience: Duration) -> Self {
        Self { links, patience, open: BTreeMap::new(), failed: BTreeMap::new() }
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
                Ok(link) => {
                    book.failed(worker, *rank, None);
                    if self.failed.remove(key).is_some() {
                        tracing::info!(
                            worker,
                            rank,
                            endpoint,
                            "the worker's KV events can be followed now"
                        );
                    }
                    let kept = streams.remove(key);
                    let stream = kept.unwrap_or_else(|| Stream::new(&want.feed, here.now));
                    let open = Open {
                        want: want.clone(),
                        stream,
                        link,
                        replies: None,
                        missing: Some(here.now),
                        said: Said::Nothing,
                        why: None,
                        blamed: Blamed::default(),
                    };
                    self.open.insert(key.clone(), open);
                }
                Err(error) => {
                    book.failed(worker, *rank, Some(error.to_string()));
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
                o.go_without(here, down.contains(&*o.want.feed.worker));
            }
            o.stream.keep_time(here);
            o.ask(here, &self.links);
        }
        if !self.open.values().any(Open::has_something) {
            self.links.wait(LOOK);
        }
        let here = Here { now: Instant::now(), ..here };
        for o in self.open.values_mut() {
            o.take_turn(here);
        }
    }
}

/// The workers that don't serve, so that nothing else is to be said of their feeds.
fn down(shell: &Shell) -> BTreeSet<Arc<str>> {
    let workers = shell.core().workers().into_iter();
    let down = workers.filter(|w| matches!(w.state, State::Down | State::Starting));
    down.map(|w| w.info.spec.name.clone()).collect()
}

impl Open {
    fn has_something(&self) -> bool {
        self.link.has_something() || self.replies.as_ref().is_some_and(Link::has_something)
    }

    /// What the links have, and no more than one turn's of it.
    fn take_turn(&mut self, here: Here<'_>) {
        for note in self.link.take(AT_ONCE, BYTES_AT_ONCE) {
            match note {
                Note::Connected => self.connection(here, true),
                Note::Message(frames) => {
                    self.stream.take(here, &frames);
                    self.note_message(here);
                }
                Note::Lost(why) => {
                    self.connection(here, false);
                    if why.is_fault() {
                        // It is back sooner than it would be missed, and may never be heard.
                        self.stream.forget(here);
                    }
                    self.note_end(here, why);
                }
                Note::Replaced(why) => {
                    if why.is_fault() {
                        self.stream.forget(here);
                    }
                    // What was sent over the old one may be lost: it is asked for.
                    self.connection(here, true);
                }
                Note::Rivals => self.note_rivals(here),
                Note::Full => self.note_full(here),
                Note::Failed(why) => self.note_end(here, why),
            }
        }
        // After the live ones, so that it is not far ahead of them.
        let replies = self.replies.as_ref().map(|link| link.take(AT_ONCE, BYTES_AT_ONCE));
        for note in replies.into_iter().flatten() {
            match note {
                Note::Message(frames) => self.stream.reply(here, &frames),
                Note::Lost(why) | Note::Failed(why) if why.is_fault() => {
                    let Feed { worker, rank, replay, .. } = &self.want.feed;
                    if may_say(&mut self.blamed.replies, here.now) {
                        tracing::warn!(
                            worker, rank, endpoint = replay.as_deref(), why = %why,
                            "the worker can't be asked for events that were lost"
                        );
                    }
                }
                // That nothing comes is for the stream to see.
                _ => {}
            }
        }
    }

    /// It has not been connected for too long: what was known of the cache is no longer believed. The link goes on
    /// trying. `down`: so is its worker.
    fn go_without(&mut self, here: Here<'_>, down: bool) {
        self.missing = Some(here.now);
        let Feed { worker, rank, endpoint, .. } = &self.want.feed;
        let says = if down { Said::Down } else { Said::Unreachable };
        // Whoever was down is told of anew once it is back and its events are not.
        if self.said == says || self.said == Said::Unreachable {
            return;
        }
        if std::mem::replace(&mut self.said, says) == Said::Nothing {
            self.stream.forget(here);
        }
        let why = self.why.as_deref();
        if down {
            tracing::warn!(
                worker,
                rank,
                endpoint,
                why,
                "the worker does not serve, and its KV events can't be reached either: its cache is unknown until they are"
            );
            return;
        }
        let hint = self.want.feed.hint();
        tracing::warn!(
            worker,
            rank,
            endpoint,
            why,
            "the worker's KV events can't be reached: its cache is unknown until they are; {hint}"
        );
    }

    /// Asks what the stream wants to be asked. A question whose answers are not awaited any more takes its
    /// link with it, and so its answers.
    fn ask(&mut self, here: Here<'_>, links: &Links) {
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

    /// Where this listens, whoever came and went (a probe of the port, the engine's last life) says nothing of
    /// the one that publishes: its messages do.
    fn note_message(&mut self, here: Here<'_>) {
        if self.missing.is_some() && is_wildcard(&self.want.feed.endpoint) {
            self.connection(here, true);
        }
        let said = &mut self.blamed.events;
        if said.is_some_and(|at| here.now.duration_since(at) >= SAID_FOR) {
            *said = None;
        }
    }

    /// Whatever either of them says undoes what the other one said.
    fn note_rivals(&mut self, here: Here<'_>) {
        if may_say_again(&mut self.blamed.rivals, here.now) {
            let Feed { worker, rank, endpoint, .. } = &self.want.feed;
            tracing::warn!(
                worker,
                rank,
                endpoint,
                "two engines publish KV events to this port by turns, so that the worker's cache can't be known: give each \
                 worker a port of its own in its `kv_events`, and each engine the port of its worker"
            );
        }
    }

    fn note_full(&mut self, here: Here<'_>) {
        if may_say_again(&mut self.blamed.full, here.now) {
            let Feed { worker, rank, endpoint, .. } = &self.want.feed;
            tracing::warn!(
                worker,
                rank,
                endpoint,
                "more peers connect to this port for KV events than one engine needs: those that never said anything make \
                 room; see who else connects there"
            );
        }
    }

    /// A connection ended, or was none. What of it is of the peer's making won't pass by itself, so that is said at
    /// once; not so where another one is heard.
    fn note_end(&mut self, here: Here<'_>, why: Ended) {
        if self.missing.is_none() {
            return;
        }
        if why.is_fault() && may_say(&mut self.blamed.events, here.now) {
            let Feed { worker, rank, endpoint, .. } = &self.want.feed;
            tracing::warn!(
                worker, rank, endpoint, why = %why,
                "the worker's KV events can't be read: they are tried again, less and less often"
            );
        }
        self.why = Some(why.to_string());
    }

    fn connection(&mut self, here: Here<'_>, connected: bool) {
        here.book.connected(&self.want.feed.worker, self.want.feed.rank, connected);
        self.stream.connected(here, connected);
        self.missing = (!connected).then_some(here.now);
        self.why = None;
        if connected && std::mem::replace(&mut self.said, Said::Nothing) != Said::Nothing {
            let Feed { worker, rank, endpoint, .. } = &self.want.feed;
            tracing::info!(worker, rank, endpoint, "the worker's KV events are reached again");
        }
    }
}

/// True once, until it is forgotten.
fn may_say(said: &mut Option<Instant>, now: Instant) -> bool {
    let first = said.is_none();
    said.get_or_insert(now);
    first
}

/// True once in a while.
fn may_say_again(said: &mut Option<Instant>, now: Instant) -> bool {
    let again = said.is_none_or(|at| now.duration_since(at) >= SAID_FOR);
    if again {
        *said = Some(now);
    }
    again
}

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;
#[cfg(test)]
#[path = "listen_tests.rs"]
mod listen_tests;
#[cfg(test)]
#[path = "socket_replay_tests.rs"]
mod socket_replay_tests;
#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
