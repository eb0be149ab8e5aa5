//! KV events from engines into the index.
//!
//! One thread reads from every engine (ZMTP, by `homing_wire::zmtp`); another one takes what it has read, decodes
//! and applies it as it comes, and sleeps until there is something. The stream's sequence tells what ZMQ
//! won't: a hole means that events were lost. Where the engine has a replay socket they are asked for
//! again, while what comes live waits (F25). What can't be had is lost: what was known of that rank is
//! forgotten, which is less than there is but nothing that isn't (F24), and the rank is *uncertain*
//! until it was told as much again.
//!
//! Engines have a publisher for each of their ranks, so a worker has as many feeds as ranks, and each has
//! a sequence, a connection and a cache of its own.
//!
//! * `feed`: one stream: the order of its messages, live and replayed;
//! * `hole`: what is being asked for again, and its bounds;
//! * `polled`: the streams of an engine that is asked for them (TensorRT-LLM);
//! * `sink`: decoding, applying, counting;
//! * `book`: what all of them have brought;
//! * `wanted`: which streams shall be followed;
//! * `thread`: the links' turns;
//! * `links`: the connections.

mod book;
mod feed;
mod hole;
mod links;
mod polled;
mod sink;
mod thread;
mod wanted;

pub use book::{FeedBook, FeedStats};
pub use polled::Polled;

use crate::shell::Shell;
use homing_wire::engine::{Kind, is_wildcard};
use links::{Links, Times};
use std::sync::Arc;
use std::time::Instant;
use wanted::Wanted;

/// Where a stream's messages arrive, and when.
#[derive(Clone, Copy, Debug)]
struct Here<'a> {
    shell: &'a Shell,
    book: &'a FeedBook,
    now: Instant,
}

/// Where one rank of a worker publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// The worker's name.
    pub worker: String,
    /// Its rank, below `ranks`.
    pub rank: u16,
    /// How many ranks the worker has, at least 1: events of others are refused.
    pub ranks: u16,
    /// The ZMQ endpoint. One with every address of this host (`tcp://*:5557`) is where the engine connects
    /// to us; any other one is where we connect to it.
    pub endpoint: String,
    /// Whether the engine surely listens there; else it may be one that connects, as vLLM does to an
    /// endpoint that names one address.
    pub listens: bool,
    /// The ZMQ endpoint of the socket that repeats messages, if it has one.
    pub replay: Option<String>,
}

impl Feed {
    /// Why it may be that nothing comes, and what to do.
    fn hint(&self) -> String {
        if is_wildcard(&self.endpoint) {
            return "no engine has connected to this endpoint; start it with one that names this host, as in \
                    \"endpoint\":\"tcp://THIS-HOST:5557\", and see that the port is open"
                .to_owned();
        }
        let port = self.endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match port.and_then(|port| port.checked_sub(self.rank)).filter(|_| !self.listens) {
            Some(first) => format!(
                "an engine whose own endpoint is {:?} may connect to it instead of listening there: then \
                 write `kv_events = \"tcp://*:{first}\"` in its [[workers]], or start it with \
                 \"tcp://*:{first}\" as its endpoint",
                self.endpoint
            ),
            None => "check the endpoint, or give `kv_events` in its [[workers]]".to_owned(),
        }
    }
}

/// The handle of the ingest threads. They end when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Ingest {
    wanted: Arc<Wanted>,
    book: Arc<FeedBook>,
}

impl Ingest {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(shell: Arc<Shell>) -> std::io::Result<Self> {
        let wanted = Arc::new(Wanted::default());
        let book = Arc::new(FeedBook::default());
        let (theirs, order) = (book.clone(), Arc::downgrade(&wanted));
        let links = Links::new(Times::default())?;
        std::thread::Builder::new()
            .name("ingest".into())
            .spawn(move || thread::run(&shell, &theirs, &order, links))?;
        Ok(Self { wanted, book })
    }

    /// What the feeds count.
    #[must_use]
    pub fn book(&self) -> Arc<FeedBook> {
        self.book.clone()
    }

    /// Follows the feed of a rank; the same one again changes nothing, another endpoint replaces the old
    /// one. Where the worker had more ranks before, those beyond are followed no more.
    pub fn subscribe(&self, feed: Feed) {
        self.book.open(&feed.worker, feed.rank, feed.ranks);
        self.wanted.add(feed);
    }

    /// What takes in the answers of a worker with so many ranks that is asked for its events.
    #[must_use]
    pub fn polled(&self, shell: Arc<Shell>, worker: &str, ranks: u16) -> Polled {
        // It has no sockets (any more).
        self.wanted.remove(worker);
        Polled::new(shell, self.book.clone(), worker, ranks)
    }

    /// Follows a worker no more: none of its ranks.
    pub fn unsubscribe(&self, worker: &str) {
        self.book.remove(worker);
        self.wanted.remove(worker);
    }

    /// The worker publishes nothing: said once, with what would make an engine of this kind publish.
    pub fn without_events(&self, worker: &str, kind: Kind, why: &str) {
        if self.book.without_events(worker) {
            let switch = kind.events_switch();
            tracing::warn!(
                worker,
                why,
                "the worker tells nothing of its cache: what it has is guessed by what it is sent, unless \
                 index.source says otherwise; {switch}"
            );
        }
    }

    /// How a worker's cache is known: `events` where each rank that is followed is connected, `uncertain`
    /// where one of these is being learned anew after a hole, `connecting` where one isn't connected yet,
    /// or `none`.
    #[must_use]
    pub fn state(&self, worker: &str) -> &'static str {
        self.book.state(worker)
    }

    /// Why a worker's events can't be followed at all, where that is so: a port to listen at is another process's, or
    /// an endpoint makes no sense.
    #[must_use]
    pub fn failure(&self, worker: &str) -> Option<String> {
        self.book.failure(worker)
    }
}
