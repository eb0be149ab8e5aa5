//! The ports of replication: what routers need of the outside to share their sessions.
//!
//! * [`Bus`]: messages among routers, which may be lost: each finds out by its sequence, and asks anew;
//! * [`BindingStore`]: registers that change by compare-and-set, and can be followed.
//!
//! A backend knows nothing of sessions: values are bytes, keys are short words. Both kinds are tested by one suite
//! each (`replication::contract`), on a fake and on the real thing.

use bytes::Bytes;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;

/// A call that may take its time.
pub type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, PortError>> + Send + 'a>>;

/// Largest message or value, in bytes: below the megabyte that NATS takes as it comes.
pub const MESSAGE_MAX: usize = 512 << 10;

/// How a backend is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// `nats://host:port`, `tls://host:port`; `http://host:port`, `https://host:port` for etcd. Never empty.
    pub urls: Vec<String>,
    /// With which name,
    pub user: Option<String>,
    /// and whose password is the first line of this file, read anew for each connection.
    pub password_file: Option<PathBuf>,
    /// Who is believed besides the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// Our certificate,
    pub cert_file: Option<PathBuf>,
    /// and its key.
    pub key_file: Option<PathBuf>,
}

/// Why a backend can't be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PortError {
    /// It doesn't answer, or not in time. It may do so again, and is tried again.
    #[error("{backend} at {at} can't be reached: {why}")]
    Unreachable {
        /// `etcd`, `NATS`.
        backend: &'static str,
        /// Where it was looked for; never with a password.
        at: String,
        /// Its words, or the system's.
        why: String,
    },
    /// It answers, and refuses us: nothing that time cures.
    #[error("{backend} at {at} refuses this router: {why}")]
    Refused {
        /// `etcd`, `NATS`.
        backend: &'static str,
        /// Where.
        at: String,
        /// Its words.
        why: String,
    },
    /// The settings can't be used: a file is missing, a URL is none.
    #[error("{0}")]
    Setting(String),
    /// What is to be sent is larger than [`MESSAGE_MAX`].
    #[error("a message of {0} bytes is too large")]
    TooLarge(usize),
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All routers of the group, and it may be the sender too.
    All,
    /// One, by its number.
    One(u32),
}

/// What comes in over a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A message, of anybody.
    Message(Bytes),
    /// The connection is gone, or we were too slow: something may be missing from here on.
    Lost,
    /// It is there again.
    Back,
}

/// Messages among the routers of one group. At most once each, in order of each sender while nothing is lost.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Sends one; done when it has been handed to the backend's connection. While that is down it fails, and
    /// nothing is kept.
    fn send(&self, to: To, message: Bytes) -> Call<'_, ()>;
}

/// Messages as they come: bounded; when it is full the backend drops, and says [`Delivery::Lost`].
pub type Deliveries = mpsc::Receiver<Delivery>;

/// How long a value stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until it has not been written for the store's idle time.
    Idle,
    /// As that, and no longer than the router that wrote it lives (a lease, where the backend has them; where
    /// not, see [`BindingStore::leases`]).
    WithUs,
}

/// What became of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// It is written; its revision.
    Done(u64),
    /// It had changed: what is there now, with its revision; `None`: nothing.
    Was(Option<(u64, Bytes)>),
}

/// What a follower sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A key has this value.
    Put {
        /// Which.
        key: String,
        /// What it says.
        value: Bytes,
        /// Of the write.
        revision: u64,
    },
    /// It is gone: removed; or its time is over, where the backend says that (NATS doesn't).
    Gone {
        /// Which.
        key: String,
    },
    /// All that was there has been said, and from now on changes come.
    InStep,
    /// Changes don't come any more: nothing is known to have changed, and all may have. When it can be followed
    /// again all that is there is said anew, and [`Seen::InStep`] follows.
    Lost,
}

/// A follower's stream; bounded: who reads slowly makes the store wait, which loses nothing.
pub type Following = mpsc::Receiver<Seen>;

/// Registers in a store that all routers share. Keys are up to 128 characters of `a-z`, `0-9`, `-`, `.` and `_`.
pub trait BindingStore: Send + Sync + fmt::Debug {
    /// Writes a value if the key's revision is `expected`; `None`: if it has no value. One round trip where that
    /// holds.
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        stay: Stay,
    ) -> Call<'a, Set>;

    /// Removes a value if its revision is `expected`. False: it has changed, or is gone.
    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool>;

    /// Whether a write would be taken, without writing anything: who could not reach it asks until it can.
    fn probe(&self) -> Call<'_, ()> {
        // A removal that expects what can't be is judged where writes are, and changes nothing.
        Box::pin(async { self.compare_and_remove(PROBE, NO_REVISION).await.map(drop) })
    }

    /// Follows all keys, from what is there now. It goes on over outages until it is dropped.
    fn follow(&self) -> Following;

    /// Whether [`Stay::WithUs`] ends with us. Where it doesn't, the value must say by itself until when it holds.
    fn leases(&self) -> bool;
}

/// A key that no session has, and a revision that none comes to.
const PROBE: &str = "probe";
const NO_REVISION: u64 = 1 << 60;

/// How long a store waits for its backend before it says that it can't be reached.
pub const STORE_PATIENCE: Duration = Duration::from_secs(2);
