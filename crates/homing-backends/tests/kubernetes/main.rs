//! Discovery by Kubernetes, against an API server of the test's own.

#![cfg(feature = "kubernetes")]
#![allow(clippy::unwrap_used)] // helpers of tests are no tests to clippy

mod outages;
mod server;
mod sight;

use homing_backends::kubernetes::discovery;
use homing_runtime::fleet::discovery::{Change, Changes, Driven};
use homing_runtime::settings::{DiscoveryKubernetes, Settings, Sources, Worker};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinHandle;

fn begin(wanted: DiscoveryKubernetes) -> Driven {
    let settings = Settings::load(Sources::<Vec<_>>::default()).unwrap();
    discovery(wanted, Arc::new(settings.upstream)).unwrap()
}

/// What a router would know.
struct Router {
    changes: Changes,
    task: JoinHandle<()>,
    workers: BTreeMap<String, Worker>,
    frozen: Option<String>,
    resets: usize,
    freezes: usize,
}

impl Router {
    fn new(wanted: DiscoveryKubernetes) -> Self {
        let Driven { changes, drive: task, .. } = begin(wanted);
        let (workers, frozen, resets, freezes) = Default::default();
        Self { changes, task: tokio::spawn(task), workers, frozen, resets, freezes }
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let turn = async {
            while !is_so(self) {
                match self.changes.recv().await.expect("it goes on") {
                    Change::Reset(workers) => {
                        self.workers = workers.into_iter().map(|w| (w.id.clone(), w)).collect();
                        self.frozen = None;
                        self.resets += 1;
                    }
                    Change::Upsert(worker) | Change::Replace(worker) => {
                        drop(self.workers.insert(worker.id.clone(), worker));
                    }
                    Change::Remove(id) => assert!(self.workers.remove(&id).is_some(), "{id}"),
                    Change::Frozen(why) => {
                        assert!(self.frozen.is_none(), "an outage is said once");
                        self.frozen = why;
                        self.freezes += 1;
                    }
                }
            }
        };
        let done = tokio::time::timeout(server::PATIENCE, turn).await;
        assert!(done.is_ok(), "{what}: {:?}", self.ids());
    }

    async fn until_there(&mut self, ids: &[&str]) {
        self.until(&format!("waiting for {ids:?}"), |router| router.ids() == ids).await;
    }

    fn ids(&self) -> Vec<&str> {
        self.workers.keys().map(String::as_str).collect()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.task.abort();
    }
}
