//! A bus and a store in memory, for tests: what they carry can be lost, and they can be down.

use super::port::{
    BindingStore, Bus, Call, Deliveries, Delivery, Following, PortError, Seen, Set, Stay, To,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;

/// What all routers of a test are on.
#[derive(Debug, Default)]
pub(super) struct Wire {
    members: Mutex<BTreeMap<u32, mpsc::Sender<Delivery>>>,
    /// Every message of those who are cut off is lost, to and fro.
    cut: Mutex<Vec<u32>>,
    /// One of so many messages is lost; 0: none.
    pub(super) loses: AtomicU64,
    count: AtomicU64,
}

/// One router's end.
#[derive(Debug)]
pub(super) struct End {
    wire: Arc<Wire>,
    me: u32,
}

impl Wire {
    pub(super) fn join(self: &Arc<Self>, me: u32) -> (Arc<dyn Bus>, Deliveries) {
        let (to, deliveries) = mpsc::channel(100_000);
        to.try_send(Delivery::Back).unwrap();
        self.members.lock().insert(me, to);
        (Arc::new(End { wire: self.clone(), me }), deliveries)
    }

    /// A router's connection breaks; what it says or would hear is lost.
    pub(super) fn cut(&self, who: u32) {
        self.cut.lock().push(who);
        let _ = self.members.lock()[&who].try_send(Delivery::Lost);
    }

    pub(super) fn mend(&self, who: u32) {
        self.cut.lock().retain(|other| *other != who);
        let _ = self.members.lock()[&who].try_send(Delivery::Back);
    }

    /// Says something in nobody's name.
    pub(super) fn say(&self, bytes: &[u8]) {
        for member in self.members.lock().values() {
            let _ = member.try_send(Delivery::Message(Bytes::copy_from_slice(bytes)));
        }
    }
}

impl Bus for End {
    fn send(&self, to: To, message: Bytes) -> Call<'_, ()> {
        let cut = self.wire.cut.lock().clone();
        let loses = self.wire.loses.load(Ordering::Relaxed);
        let n = self.wire.count.fetch_add(1, Ordering::Relaxed);
        if !cut.contains(&self.me) && (loses == 0 || n % loses != loses - 1) {
            for (who, member) in &*self.wire.members.lock() {
                let its = *who != self.me && (to == To::All || to == To::One(*who));
                if its && !cut.contains(who) {
                    let _ = member.try_send(Delivery::Message(message.clone()));
                }
            }
        }
        Box::pin(async { Ok(()) })
    }
}

/// A store in memory.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    values: Mutex<BTreeMap<String, (u64, Bytes)>>,
    revision: AtomicU64,
    followers: Mutex<Vec<mpsc::Sender<Seen>>>,
    pub(super) down: AtomicBool,
    pub(super) leases: bool,
    /// How far away it is: a call's milliseconds.
    pub(super) far: AtomicU64,
    /// The answer of every so many-th write is lost, though it is done; 0: of none.
    pub(super) forgets: AtomicU64,
    /// Calls so far.
    pub(super) calls: AtomicU64,
}

impl Shelf {
    /// One that ends what is written with its writer.
    pub(super) fn with_leases() -> Arc<Self> {
        Arc::new(Self { leases: true, ..Self::default() })
    }

    pub(super) fn values(&self) -> Vec<Bytes> {
        self.values.lock().values().map(|(_, value)| value.clone()).collect()
    }

    fn tell(&self, seen: &Seen) {
        self.followers.lock().retain(|follower| follower.try_send(seen.clone()).is_ok());
    }

    /// It loses all it has, and says nothing,
    pub(super) fn forget(&self) {
        self.values.lock().clear();
    }

    /// and says so: as if its disk were another one,
    pub(super) fn wipe(&self) {
        self.tell(&Seen::Lost);
        self.values.lock().clear();
        self.tell(&Seen::InStep);
    }

    /// or as somebody removes its keys one by one.
    pub(super) fn lose(&self) {
        for key in std::mem::take(&mut *self.values.lock()).into_keys() {
            self.tell(&Seen::Gone { key });
        }
    }

    pub(super) fn back(&self) {
        self.down.store(false, Ordering::Relaxed);
        for (key, (revision, value)) in self.values.lock().iter() {
            self.tell(&Seen::Put { key: key.clone(), value: value.clone(), revision: *revision });
        }
        self.tell(&Seen::InStep);
    }

    pub(super) fn fail(&self) {
        self.down.store(true, Ordering::Relaxed);
        self.tell(&Seen::Lost);
    }

    fn call(&self) -> Result<(), PortError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) { Err(gone()) } else { Ok(()) }
    }

    async fn way(&self) {
        let far = self.far.load(Ordering::Relaxed);
        if far > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(far)).await;
        }
    }
}

fn gone() -> PortError {
    let why = "the test says so".to_owned();
    PortError::Unreachable { backend: "a shelf", at: "here".into(), why }
}

impl BindingStore for Shelf {
    fn compare_and_set<'a>(
        &'a self,
        key: &'a str,
        value: Bytes,
        expected: Option<u64>,
        _: Stay,
    ) -> Call<'a, Set> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.way().await;
            self.call()?;
            let mut values = self.values.lock();
            let there = values.get(key).cloned();
            if there.as_ref().map(|(revision, _)| *revision) != expected {
                return Ok(Set::Was(there));
            }
            let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
            values.insert(key.to_owned(), (revision, value.clone()));
            self.tell(&Seen::Put { key: key.to_owned(), value, revision });
            let forgets = self.forgets.load(Ordering::Relaxed);
            if forgets > 0 && revision.is_multiple_of(forgets) {
                return Err(gone());
            }
            Ok(Set::Done(revision))
        })
    }

    fn compare_and_remove<'a>(&'a self, key: &'a str, expected: u64) -> Call<'a, bool> {
        Box::pin(async move {
            self.way().await;
            self.call()?;
            let mut values = self.values.lock();
            let is_it = values.get(key).is_some_and(|(revision, _)| *revision == expected);
            if is_it {
                values.remove(key);
                self.tell(&Seen::Gone { key: key.to_owned() });
            }
            Ok(is_it)
        })
    }

    fn follow(&self) -> Following {
        let (to, following) = mpsc::channel(100_000);
        if self.down.load(Ordering::Relaxed) {
            // Nothing was said that could be lost.
            self.followers.lock().push(to);
            return following;
        }
        for (key, (revision, value)) in self.values.lock().iter() {
            let seen = Seen::Put { key: key.clone(), value: value.clone(), revision: *revision };
            to.try_send(seen).unwrap();
        }
        to.try_send(Seen::InStep).unwrap();
        self.followers.lock().push(to);
        following
    }

    fn leases(&self) -> bool {
        self.leases
    }
}
