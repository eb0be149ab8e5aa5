//! Workers that register over HTTP (`POST /admin/workers`): a discovery of its own beside the configuration's. One
//! that comes with a time-to-live is gone unless it is said again in time.

use super::discovery::{Change, Changes};
use crate::settings::{Worker, WorkerUrl};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Changes that wait to be taken up.
const WAITING: usize = 256;
/// Thieves of ids that are remembered, so that each is said once.
const THIEVES_MAX: usize = 1024;
/// How often it is looked whose time is over.
const LOOK: Duration = Duration::from_millis(250);

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The worker is new here.
    New,
    /// It is the same, and goes on.
    Renewed,
    /// Another stood under its name.
    Replaced,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// The id is somebody's.
    #[error("a worker of this id is registered already; ?replace=true puts this one in its place")]
    InUse,
    /// Too much comes at once.
    #[error("too many registrations are on their way; try again")]
    Busy,
}

#[derive(Debug)]
struct Entry {
    worker: Worker,
    until: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Registered {
    changes: mpsc::Sender<Change>,
    known: Mutex<BTreeMap<String, Entry>>,
    /// Ids that were somebody's, and for which URL they were asked for last.
    thieves: Mutex<BTreeMap<String, WorkerUrl>>,
}

impl Registered {
    /// Nobody yet; and what to follow.
    #[must_use]
    pub fn new() -> (Arc<Self>, Changes) {
        let (changes, stream) = mpsc::channel(WAITING);
        (Arc::new(Self { changes, known: Mutex::default(), thieves: Mutex::default() }), stream)
    }

    /// A worker registers, for `ttl` where it has one. `taken`: its id is that of a worker, of whichever discovery.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing has changed then.
    pub fn register(
        &self,
        worker: Worker,
        ttl: Option<Duration>,
        replace: bool,
        taken: bool,
    ) -> Result<Registration, RegisterError> {
        let until = ttl.map(|ttl| Instant::now() + ttl);
        let mut known = self.known.lock();
        let before = known.get_mut(&worker.id);
        // It may be on its way to those who know what is taken.
        let taken = taken || before.as_ref().is_some_and(|one| one.worker.url != worker.url);
        if let Some(before) = before
            && taken
            && before.worker == worker
            && before.until.is_some()
            && until.is_some()
        {
            before.until = until;
            return Ok(Registration::Renewed);
        }
        if taken && !replace {
            return Err(RegisterError::InUse);
        }
        let change = if replace { Change::Replace } else { Change::Upsert };
        self.changes.try_send(change(worker.clone())).map_err(|_| RegisterError::Busy)?;
        self.thieves.lock().remove(&worker.id);
        known.insert(worker.id.clone(), Entry { worker, until });
        Ok(if taken { Registration::Replaced } else { Registration::New })
    }

    /// Whether somebody who asked for another's id did so for the first time: each is to be said once, however often
    /// a side-car repeats it.
    pub fn is_news(&self, worker: &Worker) -> bool {
        let mut thieves = self.thieves.lock();
        if thieves.len() >= THIEVES_MAX && !thieves.contains_key(&worker.id) {
            return false;
        }
        thieves.insert(worker.id.clone(), worker.url.clone()).as_ref() != Some(&worker.url)
    }

    /// A worker was removed by hand.
    pub fn forget(&self, id: &str) {
        self.known.lock().remove(id);
    }

    /// Removes those whose time is over. Runs until it is dropped.
    pub async fn expire(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = Instant::now();
            let mut known = self.known.lock();
            let over: Vec<String> = known
                .iter()
                .filter(|(_, entry)| entry.until.is_some_and(|until| until <= now))
                .map(|(id, _)| id.clone())
                .collect();
            for id in over {
                // Where there is no room, the next look tries again.
                if self.changes.try_send(Change::Remove(id.clone())).is_ok() {
                    tracing::warn!(
                        worker = id,
                        "its registration was not repeated in time: it has departed"
                    );
                    known.remove(&id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources};

    fn worker(id: &str, port: u16) -> Worker {
        let text = format!("[[workers]]\nid = '{id}'\nurl = 'http://127.0.0.1:{port}'\n");
        let file = Some(("test.toml".into(), text));
        Settings::load(Sources { file, ..Sources::default() }).unwrap().workers.remove(0)
    }

    const TTL: Option<Duration> = Some(Duration::from_secs(15));

    #[tokio::test]
    async fn who_is_not_said_again_in_time_is_gone() {
        let (registered, mut changes) = Registered::new();
        let expire = tokio::spawn(registered.clone().expire());
        let register = |taken, ttl| registered.register(worker("a", 1), Some(ttl), false, taken);
        let (short, long) = (Duration::from_millis(100), Duration::from_secs(3600));
        assert_eq!(register(false, short), Ok(Registration::New));
        assert!(matches!(changes.recv().await, Some(Change::Upsert(w)) if w.id == "a"));
        assert_eq!(register(true, long), Ok(Registration::Renewed));
        tokio::time::sleep(LOOK * 3).await;
        assert!(changes.try_recv().is_err(), "it was said again, and for longer");
        assert_eq!(register(true, short), Ok(Registration::Renewed));
        assert!(matches!(changes.recv().await, Some(Change::Remove(id)) if id == "a"));
        assert_eq!(register(false, short), Ok(Registration::New));
        expire.abort();
    }

    #[tokio::test]
    async fn an_id_in_use_is_somebodys() {
        let (registered, mut changes) = Registered::new();
        assert_eq!(
            registered.register(worker("s", 1), None, false, true),
            Err(RegisterError::InUse)
        );
        assert_eq!(
            registered.register(worker("s", 1), TTL, false, true),
            Err(RegisterError::InUse)
        );
        assert_eq!(
            registered.register(worker("s", 2), None, true, true),
            Ok(Registration::Replaced)
        );
        assert!(matches!(changes.try_recv(), Ok(Change::Replace(_))));
        // Of another place it is another worker, though the name and the time fit.
        assert_eq!(registered.register(worker("a", 1), TTL, false, false), Ok(Registration::New));
        assert_eq!(
            registered.register(worker("a", 2), TTL, false, true),
            Err(RegisterError::InUse)
        );
        assert_eq!(
            registered.register(worker("a", 2), TTL, false, false),
            Err(RegisterError::InUse),
            "the first one is on its way to where it is seen"
        );
        let news = |port| registered.is_news(&worker("a", port));
        assert_eq!([news(2), news(2), news(3), news(3)], [true, false, true, false]);
        assert_eq!(
            registered.register(worker("a", 2), TTL, true, true),
            Ok(Registration::Replaced)
        );
    }
}
