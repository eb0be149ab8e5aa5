//! What every store of bindings must do, whatever is behind it. Each test is given connections to one and the same
//! store, as routers have, and keys of its own by a word.

#![allow(dead_code)] // each backend's tests use what its server can be asked for

use bytes::Bytes;
use homing_runtime::replication::port::{BindingStore, Following, PortError, Seen, Set, Stay};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Stores = [Arc<dyn BindingStore>];

/// Nothing takes this long unless it is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took more than {PATIENCE:?}"),
    }
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(crate) async fn set(
    store: &dyn BindingStore,
    key: &str,
    value: &str,
    expected: Option<u64>,
) -> Set {
    store.compare_and_set(key, bytes(value), expected, Stay::Idle).await.unwrap()
}

/// The revision of a write that must succeed.
pub(crate) async fn done(
    store: &dyn BindingStore,
    key: &str,
    value: &str,
    expected: Option<u64>,
) -> u64 {
    match set(store, key, value, expected).await {
        Set::Done(revision) => revision,
        lost => panic!("{key}: {lost:?}"),
    }
}

/// What a follower has seen.
pub(crate) struct Follower {
    following: Following,
    pub(crate) there: BTreeMap<String, (Bytes, u64)>,
    pub(crate) in_step: bool,
    pub(crate) losses: usize,
}

impl Follower {
    pub(crate) fn new(store: &dyn BindingStore) -> Self {
        let (there, in_step, losses) = Default::default();
        Self { following: store.follow(), there, in_step, losses }
    }

    pub(crate) async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        soon(what, async {
            while !is_so(self) {
                match self.following.recv().await.expect("it goes on until it is dropped") {
                    Seen::Put { key, value, revision } => {
                        self.there.insert(key, (value, revision));
                    }
                    Seen::Gone { key } => {
                        self.there.remove(&key);
                    }
                    Seen::InStep => self.in_step = true,
                    Seen::Lost => {
                        self.there.clear();
                        self.in_step = false;
                        self.losses += 1;
                    }
                }
            }
        })
        .await;
    }

    pub(crate) async fn in_step(store: &dyn BindingStore) -> Self {
        let mut follower = Self::new(store);
        follower.until("coming in step", |f| f.in_step).await;
        follower
    }

    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.there.get(key).map(|(value, _)| &value[..])
    }
}

/// Among many that create a key at the same time one does, and all others are told its value.
pub(crate) async fn one_creates(stores: &Stores, word: &str) {
    for round in 0..10 {
        let key = format!("{word}.{round}");
        let mut tasks = Vec::new();
        for (number, store) in stores.iter().cycle().take(24).enumerate() {
            let (store, key) = (store.clone(), key.clone());
            tasks.push(tokio::spawn(async move {
                let value = format!("writer {number}");
                (value.clone(), set(&*store, &key, &value, None).await)
            }));
        }
        let mut winner = None;
        let mut losers = Vec::new();
        for task in tasks {
            match soon("a write", task).await.unwrap() {
                (value, Set::Done(revision)) => {
                    assert!(winner.replace((revision, bytes(&value))).is_none(), "two created it");
                }
                (_, Set::Was(was)) => losers.push(was),
            }
        }
        assert!(winner.is_some(), "somebody must");
        assert!(losers.iter().all(|was| *was == winner), "{winner:?}: {losers:?}");
    }
}

/// A write that expected something else changes nothing, and is told what there is.
pub(crate) async fn a_lost_one_is_told(stores: &Stores, word: &str) {
    let (a, b) = (&*stores[0], &*stores[stores.len() - 1]);
    let key = &format!("{word}-{}._x", "k".repeat(100));
    assert_eq!(set(a, key, "0", Some(77)).await, Set::Was(None), "there is nothing");
    let first = done(a, key, "1", None).await;
    assert_eq!(set(b, key, "2", None).await, Set::Was(Some((first, bytes("1")))));
    let second = done(b, key, "2", Some(first)).await;
    assert!(second > first, "{first}, {second}");
    assert_eq!(set(a, key, "3", Some(first)).await, Set::Was(Some((second, bytes("2")))));
    assert!(!a.compare_and_remove(key, first).await.unwrap(), "it has changed");
    assert!(a.compare_and_remove(key, second).await.unwrap());
    assert!(!b.compare_and_remove(key, second).await.unwrap(), "it is gone");
    assert_eq!(set(b, key, "4", Some(second)).await, Set::Was(None), "it is gone");
    // What was removed can be created, more than once.
    let third = done(b, key, "5", None).await;
    assert!(third > second);
    assert_eq!(set(a, key, "6", None).await, Set::Was(Some((third, bytes("5")))));
    assert!(b.compare_and_remove(key, third).await.unwrap());
    let fourth = done(a, key, "7", None).await;
    assert_eq!(set(b, key, "8", Some(third)).await, Set::Was(Some((fourth, bytes("7")))));
    // To ask whether it takes writes writes nothing.
    a.probe().await.unwrap();
    assert_eq!(set(b, "probe", "9", Some(1)).await, Set::Was(None), "there is nothing");
    // An empty value is one.
    done(a, &format!("{word}.other"), "", None).await;
}

/// Whoever follows sees what is there and what changes, each key's last word last.
pub(crate) async fn followers_see_all(stores: &Stores, word: &str) {
    let (a, b) = (&*stores[0], &*stores[stores.len() - 1]);
    let key = |n: usize| format!("{word}.{n}");
    let mut early = Follower::in_step(b).await;
    let mut revisions = Vec::new();
    for n in 0..300 {
        revisions.push(done(a, &key(n), "first", None).await);
    }
    for n in (0..300).step_by(3) {
        revisions[n] = done(b, &key(n), "second", Some(revisions[n])).await;
    }
    for n in (0..300).step_by(5) {
        assert!(a.compare_and_remove(&key(n), revisions[n]).await.unwrap());
    }
    let last = format!("{word}.last");
    let end = done(a, &last, "end", None).await;
    let mut late = Follower::in_step(a).await;
    for follower in [&mut early, &mut late] {
        follower.until("seeing the last write", |f| f.there.contains_key(&last)).await;
        let mut expected = BTreeMap::new();
        for n in (0..300).filter(|n| n % 5 != 0) {
            let value = if n % 3 == 0 { "second" } else { "first" };
            expected.insert(key(n), (bytes(value), revisions[n]));
        }
        expected.insert(last.clone(), (bytes("end"), end));
        let ours = |(k, _): &(&String, &(Bytes, u64))| k.starts_with(word);
        let seen: BTreeMap<_, _> =
            follower.there.iter().filter(ours).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(seen, expected);
        assert_eq!(follower.losses, 0);
    }
}

/// A follower that reads slowly is waited for.
pub(crate) async fn a_slow_follower_misses_nothing(stores: &Stores, word: &str) {
    const KEYS: usize = 3_000;
    let store = &*stores[0];
    let mut slow = Follower::in_step(store).await;
    let mut tasks = Vec::new();
    for part in 0..30 {
        let (store, word) = (stores[part % stores.len()].clone(), word.to_owned());
        tasks.push(tokio::spawn(async move {
            for n in (part..KEYS).step_by(30) {
                done(&*store, &format!("{word}.{n}"), &"x".repeat(500), None).await;
            }
        }));
    }
    for task in tasks {
        soon("writing", task).await.unwrap();
    }
    let ours = |f: &Follower| f.there.keys().filter(|key| key.starts_with(word)).count();
    slow.until("catching up", |f| ours(f) == KEYS).await;
    assert_eq!(slow.losses, 0);
}

/// What was not written for the idle time is gone, and followers are told; what was written again is not.
pub(crate) async fn idle_ends_a_key(stores: &Stores, word: &str, idle: Duration) {
    let (a, b) = (&*stores[0], &*stores[stores.len() - 1]);
    let mut follower = Follower::in_step(b).await;
    let (kept, left) = (format!("{word}.kept"), format!("{word}.left"));
    let mut revision = done(a, &kept, "1", None).await;
    let written = tokio::time::Instant::now();
    done(a, &left, "1", None).await;
    follower.until("seeing both", |f| f.value(&kept).is_some() && f.value(&left).is_some()).await;
    soon("the end of a key", async {
        while follower.value(&left).is_some() {
            revision = done(a, &kept, "again", Some(revision)).await;
            let turn = tokio::time::timeout(
                idle / 4,
                follower.until("an end", |f| f.value(&left).is_none()),
            );
            let _ = turn.await;
        }
    })
    .await;
    assert!(written.elapsed() >= idle, "not before its time: {:?}", written.elapsed());
    assert!(follower.value(&kept).is_some(), "it was written again and again");
    assert_eq!(follower.losses, 0);
    done(b, &left, "anew", None).await;
    follower.until("seeing it anew", |f| f.value(&left) == Some(b"anew")).await;
    // Somebody who comes later counts as those who were there.
    let mut late = Follower::in_step(b).await;
    assert_eq!(late.value(&left), Some(&b"anew"[..]));
    late.until("its end", |f| f.value(&left).is_none() && f.value(&kept).is_none()).await;
}

/// The same where nobody is told: who comes then hears nothing of it, and it can be created anew.
pub(crate) async fn idle_ends_a_key_in_silence(stores: &Stores, word: &str, idle: Duration) {
    let (a, b) = (&*stores[0], &*stores[stores.len() - 1]);
    let (kept, left) = (format!("{word}.kept"), format!("{word}.left"));
    let mut revision = done(a, &kept, "1", None).await;
    let written = tokio::time::Instant::now();
    let first = done(a, &left, "1", None).await;
    soon("the end of a key", async {
        loop {
            revision = done(a, &kept, "again", Some(revision)).await;
            let late = Follower::in_step(b).await;
            assert!(late.value(&kept).is_some(), "it was written again and again");
            if late.value(&left).is_none() {
                break;
            }
            tokio::time::sleep(idle / 4).await;
        }
    })
    .await;
    assert!(written.elapsed() >= idle, "not before its time: {:?}", written.elapsed());
    assert_eq!(set(b, &left, "2", Some(first)).await, Set::Was(None), "it is gone");
    done(b, &left, "anew", None).await;
    assert_eq!(Follower::in_step(b).await.value(&left), Some(&b"anew"[..]));
}

/// Once the server is there a call may still find that the connection isn't.
pub(crate) async fn eventually(store: &dyn BindingStore, key: &str, expected: Option<u64>) -> Set {
    soon("a write", async {
        loop {
            match store.compare_and_set(key, bytes("v"), expected, Stay::Idle).await {
                Ok(set) => return set,
                Err(PortError::Unreachable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}
