//! The port of discovery: a stream of changes. A static list is one that says everything at once.

use crate::settings::Worker;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;

/// What a discovery says.
#[derive(Clone, Debug)]
pub enum Change {
    /// These workers there are, and no others.
    Reset(Vec<Worker>),
    /// One is new, or registered anew.
    Upsert(Worker),
    /// The same, in the place of whoever has its id: an operator says so.
    Replace(Worker),
    /// One is gone.
    Remove(String),
    /// Whether it can be followed: `Some`, once, from when it can't, with the reason. What it has said stands until
    /// it speaks again, which it does by a `Reset` of all that there is.
    Frozen(Option<String>),
}

/// A stream of changes; bounded, so that a discovery can't outrun the router.
pub type Changes = mpsc::Receiver<Change>;

/// A discovery that asks somebody: its changes come while it is driven.
pub struct Driven {
    /// What it says.
    pub changes: Changes,
    /// What makes it say so; it ends when nobody listens to the changes any more.
    pub drive: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// How many registrations it has refused so far.
    pub refused: Arc<AtomicU64>,
}

impl fmt::Debug for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// The workers of a list.
#[must_use]
pub fn static_list(workers: Vec<Worker>) -> Changes {
    changing_list(workers).1
}

/// The workers of the configuration; and where others are said when it is read anew.
#[must_use]
pub fn changing_list(workers: Vec<Worker>) -> (mpsc::Sender<Change>, Changes) {
    let (changes, stream) = mpsc::channel(2);
    // There is room, and the receiver is here.
    let _ = changes.try_send(Change::Reset(workers));
    (changes, stream)
}
