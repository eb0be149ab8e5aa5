//! Which feeds shall be followed: what is wanted, and not a queue of orders. It is as large as the fleet
//! with its ranks and no larger, nothing in it can be lost or overtaken, and whoever changes it never
//! waits; the ingest thread looks at it between messages and makes it so.

use super::Feed;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The feed of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// Where it is.
    pub(super) feed: Feed,
    /// Tells it from an earlier one of the same rank, even at the same endpoint.
    pub(super) serial: u64,
}

/// A worker and one of its ranks.
pub(super) type Key = (String, u16);

/// By worker and rank.
pub(super) type Wants = BTreeMap<Key, Want>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Wanted(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wants: Wants,
    serial: u64,
    /// Counts calls, so that the thread need not compare.
    calls: u64,
}

impl Wanted {
    /// Wants a feed, in the place of its rank's other one, and none of ranks that the worker has no more.
    /// The same again only asks for another try, should it not be open.
    pub(super) fn add(&self, feed: Feed) {
        let mut state = self.0.lock();
        state.calls += 1;
        let key = (feed.worker.clone(), feed.rank);
        if state.wants.get(&key).is_some_and(|w| w.feed == feed) {
            return;
        }
        let (worker, ranks) = (feed.worker.as_str(), feed.ranks);
        state.wants.retain(|(w, rank), _| w != worker || *rank < ranks);
        state.serial += 1;
        let want = Want { serial: state.serial, feed };
        state.wants.insert(key, want);
    }

    /// Wants a worker's feeds no more.
    pub(super) fn remove(&self, worker: &str) {
        let mut state = self.0.lock();
        state.calls += 1;
        state.wants.retain(|(w, _), _| w != worker);
    }

    /// What is wanted, if somebody called since the call that `seen` holds.
    pub(super) fn news(&self, seen: &mut u64) -> Option<Wants> {
        let state = self.0.lock();
        (std::mem::replace(seen, state.calls) != state.calls).then(|| state.wants.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(worker: &str, endpoint: &str) -> Feed {
        Feed {
            worker: worker.into(),
            rank: 0,
            ranks: 1,
            endpoint: endpoint.into(),
            listens: true,
            replay: None,
        }
    }

    fn serials(wanted: &Wanted) -> Vec<(String, u64)> {
        let mut never = u64::MAX;
        let wants = wanted.news(&mut never).unwrap();
        wants.into_iter().map(|((worker, _), want)| (worker, want.serial)).collect()
    }

    /// What is wanted, as `worker/rank`.
    fn keys(wanted: &Wanted) -> Vec<String> {
        let wants = wanted.news(&mut { u64::MAX }).unwrap();
        wants.into_keys().map(|(worker, rank)| format!("{worker}/{rank}")).collect()
    }

    #[test]
    fn it_holds_a_feed_a_worker_however_often_it_is_told() {
        let wanted = Wanted::default();
        for n in 0..10_000 {
            wanted.add(feed("a", "tcp://a:1"));
            wanted.add(feed("b", &format!("tcp://b:{n}")));
        }
        assert_eq!(serials(&wanted), [("a".into(), 1), ("b".into(), 10_001)]);
        wanted.remove("a");
        assert_eq!(serials(&wanted), [("b".into(), 10_001)], "nothing stands in its way");
        wanted.add(feed("a", "tcp://a:1"));
        assert_eq!(serials(&wanted)[0], ("a".into(), 10_002), "another, though at the same place");
    }

    #[test]
    fn each_call_is_news_once() {
        let wanted = Wanted::default();
        let mut seen = 0;
        assert!(wanted.news(&mut seen).is_none());
        for _ in 0..2 {
            // The same again: it may not have been possible the last time.
            wanted.add(feed("a", "tcp://a:1"));
            assert_eq!(wanted.news(&mut seen).map(|w| w.len()), Some(1));
            assert!(wanted.news(&mut seen).is_none());
        }
        wanted.remove("a");
        assert_eq!(wanted.news(&mut seen).map(|w| w.len()), Some(0));
        assert!(wanted.news(&mut seen).is_none());
    }

    #[test]
    fn each_rank_has_a_feed_and_all_go_with_their_worker() {
        let wanted = Wanted::default();
        let ranked = |worker: &str, rank, ranks| Feed { rank, ranks, ..feed(worker, "tcp://h:1") };
        for rank in [2, 0, 1] {
            wanted.add(ranked("a", rank, 3));
            wanted.add(ranked("aa", rank, 3));
        }
        assert_eq!(keys(&wanted), ["a/0", "a/1", "a/2", "aa/0", "aa/1", "aa/2"]);
        wanted.add(ranked("aa", 0, 2));
        assert_eq!(keys(&wanted), ["a/0", "a/1", "a/2", "aa/0", "aa/1"], "it has fewer ranks now");
        wanted.remove("a");
        assert_eq!(keys(&wanted), ["aa/0", "aa/1"]);
    }
}
