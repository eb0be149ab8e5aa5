//! Workers behind a name: `dns://name:port` is every address that the name has, each a worker of its own.
//!
//! A name is looked up again and again. What can't be looked up is as it was; an address that is missing from two
//! answers in a row has departed, since one answer may have been cut short on its way.

use super::discovery::{Change, Changes};
use crate::settings::{Scheme, Worker};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;

/// Between two look-ups.
const PAUSE: Duration = Duration::from_secs(5);
/// After one that failed while nothing is known.
const PAUSE_UNKNOWN: Duration = Duration::from_secs(1);
/// An address has departed when so many answers in a row did not have it.
const MISSED: u8 = 2;
/// Most addresses of a name.
const ADDRESSES_MAX: usize = 1024;
/// Changes that wait to be taken.
const CHANGES: usize = 64;

/// Whether a worker is a name of many.
#[must_use]
pub fn is_name(worker: &Worker) -> bool {
    worker.url.scheme() == Scheme::Dns
}

/// Workers behind names, which a task of their own follows; and the others.
#[must_use]
pub fn by_kind(workers: &[Worker]) -> (Vec<Worker>, Vec<Worker>) {
    workers.iter().cloned().partition(is_name)
}

/// Follows the names among the workers; end it by dropping the future, or the changes.
pub fn follow(names: Vec<Worker>) -> (Changes, impl Future<Output = ()>) {
    let (changes, stream) = mpsc::channel(CHANGES);
    let all = async move {
        let mut each = tokio::task::JoinSet::new();
        for name in names {
            each.spawn(Name::new(name, changes.clone()).run());
        }
        drop(changes);
        each.join_all().await;
    };
    (stream, all)
}

/// One name.
struct Name {
    worker: Worker,
    changes: mpsc::Sender<Change>,
    /// What is known, and how many answers in a row have missed it.
    known: BTreeMap<SocketAddr, u8>,
    /// What was last complained of.
    said: Option<String>,
}

impl Name {
    fn new(worker: Worker, changes: mpsc::Sender<Change>) -> Self {
        Self { worker, changes, known: BTreeMap::new(), said: None }
    }

    async fn run(mut self) {
        let name = self.worker.url.authority().to_owned();
        loop {
            // Not bounded here: the system bounds it, and a second one beside it would only wait as well.
            let found = tokio::net::lookup_host(name.clone()).await.map(Iterator::collect);
            if self.found(found).await.is_err() {
                return;
            }
            let pause = if self.known.is_empty() { PAUSE_UNKNOWN } else { PAUSE };
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes in an answer. An error: nobody listens any more.
    async fn found(&mut self, answer: io::Result<Vec<SocketAddr>>) -> Result<(), ()> {
        let mut addresses = match answer {
            Ok(addresses) if !addresses.is_empty() => addresses,
            Ok(_) => return self.complain("it has no address".to_owned()),
            Err(error) => return self.complain(error.to_string()),
        };
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() > ADDRESSES_MAX {
            addresses.truncate(ADDRESSES_MAX);
            self.complain(format!(
                "it has more than {ADDRESSES_MAX} addresses; the first are used"
            ))?;
        } else {
            self.said = None;
        }
        for missed in self.known.values_mut() {
            *missed += 1;
        }
        for address in addresses {
            if self.known.insert(address, 0).is_none() {
                self.tell(Change::Upsert(self.at(address))).await?;
            }
        }
        let gone: Vec<_> =
            self.known.iter().filter(|(_, missed)| **missed >= MISSED).map(|(a, _)| *a).collect();
        for address in gone {
            self.known.remove(&address);
            self.tell(Change::Remove(self.at(address).id)).await?;
        }
        Ok(())
    }

    fn complain(&mut self, why: String) -> Result<(), ()> {
        if self.said.as_ref() != Some(&why) {
            let (url, known) = (self.worker.url.to_string(), self.known.len());
            tracing::warn!(
                url,
                why,
                known,
                "the workers behind a name can't be looked up; those known stay"
            );
            self.said = Some(why);
        }
        Ok(())
    }

    async fn tell(&self, change: Change) -> Result<(), ()> {
        self.changes.send(change).await.map_err(|_| ())
    }

    /// The worker at one address.
    fn at(&self, address: SocketAddr) -> Worker {
        let worker = &self.worker;
        // Where nobody has given it an id, it is its address alone.
        let id = match worker.id == worker.url.default_id() {
            true => address.to_string(),
            false => format!("{}-{address}", worker.id),
        };
        Worker { id, url: worker.url.at(address), ..worker.clone() }
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
