//! When values end by their age. NATS 2.9 removes them silently, so a follower counts along.
//!
//! All live equally long, and come in the order of their writing: a queue is enough. An entry of it whose key was
//! written again since is passed over, and the queue is swept when most of it is such.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// Entries of the queue that need no sweep, however few keys there are.
const SMALL: usize = 1024;

/// What is there, by key.
#[derive(Debug, Default)]
pub(super) struct Aging {
    /// The last write of each key.
    keys: HashMap<Arc<str>, u64>,
    queue: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    ends: Instant,
    revision: u64,
    key: Arc<str>,
}

impl Aging {
    /// A key was written.
    pub(super) fn put(&mut self, key: &str, revision: u64, ends: Instant) {
        let key = match self.keys.get_key_value(key) {
            Some((known, _)) => known.clone(),
            None => Arc::from(key),
        };
        self.keys.insert(key.clone(), revision);
        self.queue.push_back(Entry { ends, revision, key });
        if self.queue.len() > SMALL && self.queue.len() > 2 * self.keys.len() {
            let keys = &self.keys;
            self.queue.retain(|entry| keys.get(&entry.key) == Some(&entry.revision));
        }
    }

    /// A key was removed. False: it was not there.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.keys.remove(key).is_some()
    }

    /// When to look for [`Self::ended`] again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.front().map(|entry| entry.ends)
    }

    /// One whose time is over; `None`: no more of them.
    pub(super) fn ended(&mut self, now: Instant) -> Option<Arc<str>> {
        while self.queue.front().is_some_and(|entry| entry.ends <= now) {
            let entry = self.queue.pop_front()?;
            if self.keys.get(&entry.key) == Some(&entry.revision) {
                self.keys.remove(&entry.key);
                return Some(entry.key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_key_ends_once_after_its_last_write() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut aging = Aging::default();
        aging.put("a", 1, at(10));
        aging.put("b", 2, at(11));
        aging.put("a", 3, at(15));
        assert!(aging.ended(at(9)).is_none());
        assert_eq!(aging.ended(at(12)).as_deref(), Some("b"), "a was written again");
        assert!(aging.ended(at(12)).is_none());
        assert_eq!(aging.next(), Some(at(15)));
        assert_eq!(aging.ended(at(15)).as_deref(), Some("a"));
        assert!(aging.ended(at(100)).is_none() && aging.next().is_none());
        aging.put("a", 4, at(200));
        assert!(aging.remove("a") && !aging.remove("a"));
        assert!(aging.ended(at(300)).is_none(), "it was removed before");
    }

    #[test]
    fn keys_that_are_written_often_take_no_more_room() {
        let mut aging = Aging::default();
        for revision in 0..100_000 {
            let key = format!("k{}", revision % 10);
            aging.put(&key, revision, Instant::now() + Duration::from_secs(revision));
        }
        assert!(aging.queue.len() <= SMALL + 1, "{}", aging.queue.len());
        assert_eq!(aging.keys.len(), 10);
    }
}
