//! The port of discovery: a stream of changes. A static list is one that says everything at once.

use crate::settings::Worker;
use tokio::sync::mpsc;

/// What a discovery says.
#[derive(Clone, Debug)]
pub enum Change {
    /// These workers there are, and no others.
    Reset(Vec<Worker>),
    /// One is new, or registered anew.
    Upsert(Worker),
    /// One is gone.
    Remove(String),
    /// Whether it can be followed: `Some`, once, from when it can't, with the reason. What it has said stands until
    /// it speaks again, which it does by a `Reset` of all that there is.
    Frozen(Option<String>),
}

/// A stream of changes; bounded, so that a discovery can't outrun the router.
pub type Changes = mpsc::Receiver<Change>;

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
