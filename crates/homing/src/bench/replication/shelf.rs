//! A store in memory, of which each write is counted.

use super::router::Counts;
use bytes::Bytes;
use homing_runtime::replication::port::{BindingStore, Call, Following, Seen, Set, Stay};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// What waits for a follower; one that is slower than that is none of a bench.
const QUEUE: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shelf(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    values: HashMap<String, (u64, Bytes)>,
    revision: u64,
    followers: Vec<mpsc::Sender<Seen>>,
}

/// One router's end.
#[derive(Debug)]
pub(super) struct End {
    shelf: Arc<Mutex<Inner>>,
    counts: Arc<Counts>,
}

impl Shelf {
    pub(super) fn end(&self, counts: &Arc<Counts>) -> End {
        End { shelf: self.0.clone(), counts: counts.clone() }
    }
}

impl End {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, key: &str, value: Option<Bytes>, expected: Option<u64>) -> Set {
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        let bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
        self.counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut inner = self.inner();
        let there = inner.values.get(key).cloned();
        if there.as_ref().map(|(revision, _)| *revision) != expected {
            return Set::Was(there);
        }
        inner.revision += 1;
        let (revision, key) = (inner.revision, key.to_owned());
        let seen = match value {
            Some(value) => {
                inner.values.insert(key.clone(), (revision, value.clone()));
                Seen::Put { key, value, revision }
            }
            None => {
                inner.values.remove(&key);
                Seen::Gone { key }
            }
        };
        inner.followers.retain(|follower| follower.try_send(seen.clone()).is_ok());
        Set::Done(revision)
    }
}

impl BindingStore for End {
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        _: Stay,
    ) -> Call<'a, Set> {
        Box::pin(async move { Ok(self.write(key, Some(value), expected)) })
    }

    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool> {
        Box::pin(async move { Ok(matches!(self.write(key, None, Some(expected)), Set::Done(_))) })
    }

    fn follow(&self) -> Following {
        let (to, following) = mpsc::channel(QUEUE);
        // The bench begins with an empty one, and there is room.
        let _ = to.try_send(Seen::InStep);
        self.inner().followers.push(to);
        following
    }

    fn leases(&self) -> bool {
        true
    }
}
