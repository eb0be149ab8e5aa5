//! Which feeds shall be followed: what is wanted, and not a queue of orders. It is as large as the fleet
//! and no larger, nothing in it can be lost or overtaken, and whoever changes it never waits; the ingest
//! thread looks at it between messages and makes it so.

use super::Feed;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// One worker's feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// Where it is.
    pub(super) feed: Feed,
    /// Tells it from an earlier one of the same worker, even at the same endpoint.
    pub(super) serial: u64,
}

/// By worker.
pub(super) type Wants = BTreeMap<String, Want>;

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
    /// Wants a feed, in the place of its worker's other one. The same again only asks for another try,
    /// should it not be open.
    pub(super) fn add(&self, feed: Feed) {
        let mut state = self.0.lock();
        state.calls += 1;
        if state.wants.get(&feed.worker).is_some_and(|w| w.feed == feed) {
            return;
        }
        state.serial += 1;
        let want = Want { serial: state.serial, feed };
        state.wants.insert(want.feed.worker.clone(), want);
    }

    /// Wants a worker's feed no more.
    pub(super) fn remove(&self, worker: &str) {
        let mut state = self.0.lock();
        state.calls += 1;
        state.wants.remove(worker);
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
        Feed { worker: worker.into(), rank: 0, endpoint: endpoint.into() }
    }

    fn serials(wanted: &Wanted) -> Vec<(String, u64)> {
        let mut never = u64::MAX;
        let wants = wanted.news(&mut never).unwrap();
        wants.into_iter().map(|(worker, want)| (worker, want.serial)).collect()
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
}
