//! Workers in etcd: they come under leases and go with them, and an outage moves nobody.

use crate::contract::soon;
use crate::server::Server;
use homing_backends::etcd::{Claim, RegisterError, Registrar, discovery};
use homing_runtime::fleet::discovery::Change;
use homing_runtime::replication::port::PortError;
use homing_runtime::settings::{Settings, Sources, Worker};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

const EVERY: Duration = Duration::from_secs(5);

/// What a router would have.
struct Fleet {
    changes: mpsc::Receiver<Change>,
    refused: Arc<AtomicU64>,
    workers: BTreeMap<String, Worker>,
    frozen: Option<String>,
    resets: usize,
    /// Lives that have ended: ids that were removed, or came with another generation.
    departed: Vec<String>,
}

impl Fleet {
    async fn follow(server: &Server) -> Self {
        let settings = Settings::load(Sources::default()).unwrap();
        let common = Arc::new(settings.upstream);
        let driven = discovery::follow(server.reach(), "g", common).await.unwrap();
        tokio::spawn(driven.drive);
        let (workers, frozen, resets, departed) = Default::default();
        Self { changes: driven.changes, refused: driven.refused, workers, frozen, resets, departed }
    }

    fn take(&mut self, worker: Worker) {
        if let Some(before) = self.workers.insert(worker.id.clone(), worker.clone())
            && (before.generation, &before.url) != (worker.generation, &worker.url)
        {
            self.departed.push(worker.id);
        }
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        soon(what, async {
            while !is_so(self) {
                match self.changes.recv().await.expect("it goes on") {
                    Change::Reset(workers) => {
                        (self.frozen, self.resets) = (None, self.resets + 1);
                        let ids: Vec<_> = workers.iter().map(|w| w.id.clone()).collect();
                        let gone = self.workers.keys().filter(|id| !ids.contains(id)).cloned();
                        self.departed.extend(gone.collect::<Vec<_>>());
                        self.workers.retain(|id, _| ids.contains(id));
                        workers.into_iter().for_each(|worker| self.take(worker));
                    }
                    Change::Upsert(worker) | Change::Replace(worker) => self.take(worker),
                    Change::Remove(id) => {
                        self.workers.remove(&id);
                        self.departed.push(id);
                    }
                    Change::Frozen(why) => self.frozen = why,
                }
            }
        })
        .await;
    }

    fn has(&self, ids: &[&str]) -> bool {
        self.workers.keys().map(String::as_str).eq(ids.iter().copied())
    }

    fn generation(&self, id: &str) -> u64 {
        self.workers[id].generation
    }
}

fn keys(id: &str, port: u16) -> Value {
    json!({"id": id, "url": format!("http://10.0.0.1:{port}"), "labels": {"zone": "a"}})
}

fn registrar(server: &Server, id: &str, port: u16, claim: Claim) -> Registrar {
    Registrar::new(server.reach(), "g", &keys(id, port), EVERY, claim).unwrap()
}

async fn registered(server: &Server, id: &str, port: u16) -> Registrar {
    let mut registrar = registrar(server, id, port, Claim::Continue);
    assert!(registrar.keep().await.unwrap());
    registrar
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_come_under_leases_and_go_with_them() {
    let server = Server::start();
    let mut a = registered(&server, "a", 1).await;
    let mut fleet = Fleet::follow(&server).await;
    fleet.until("the one", |f| f.has(&["a"])).await;
    assert_eq!(fleet.workers["a"].labels["zone"], "a");
    assert_eq!(fleet.resets, 1);
    let mut b = registered(&server, "b:2", 2).await;
    fleet.until("the other", |f| f.has(&["a", "b:2"])).await;
    assert!(!b.keep().await.unwrap(), "it goes on");
    b.withdraw().await.unwrap();
    fleet.until("it was taken back", |f| f.has(&["a"])).await;
    // A lease that ends: the same worker is another life, and its registrar finds out by itself.
    let first = fleet.generation("a");
    for line in server.ctl(&["lease", "list"]).lines().skip(1) {
        server.ctl(&["lease", "revoke", line]);
    }
    fleet.until("its end", |f| f.has(&[])).await;
    assert!(a.keep().await.unwrap());
    fleet.until("it is back", |f| f.has(&["a"])).await;
    assert!(fleet.generation("a") > first);
    // Nobody renews it.
    drop(a);
    fleet.until("its lease is over", |f| f.has(&[])).await;
    assert_eq!(fleet.departed, ["b:2", "a", "a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_its_owners_and_a_worker_that_begins_anew_says_so() {
    let server = Server::start();
    let mut fleet = Fleet::follow(&server).await;
    let _a = registered(&server, "a", 1).await;
    fleet.until("it", |f| f.has(&["a"])).await;
    let first = fleet.generation("a");
    let mut thief = registrar(&server, "a", 9, Claim::Anew);
    let error = thief.keep().await.unwrap_err();
    assert!(matches!(&error, RegisterError::InUse { url, .. } if url.ends_with(":1")), "{error}");
    // A side-car that is started again, of an engine that was not.
    let mut again = registrar(&server, "a", 1, Claim::Continue);
    assert!(again.keep().await.unwrap());
    assert!(!again.keep().await.unwrap());
    let _b = registered(&server, "b", 2).await;
    fleet.until("the next", |f| f.has(&["a", "b"])).await;
    assert_eq!(fleet.generation("a"), first);
    // A worker that is started again at the same place.
    let mut anew = registrar(&server, "a", 1, Claim::Anew);
    assert!(anew.keep().await.unwrap());
    fleet.until("another life", |f| f.workers.get("a").is_some_and(|w| w.generation > first)).await;
    assert!(!anew.keep().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_registrations_disturb_nobody() {
    let server = Server::start();
    let mut fleet = Fleet::follow(&server).await;
    let _a = registered(&server, "a", 1).await;
    fleet.until("it", |f| f.has(&["a"])).await;
    let put =
        |id: &str, value: &str| server.ctl(&["put", &format!("/homing/g/workers/{id}"), value]);
    for (id, value) in [
        ("b", "no json"),
        ("c", r#"{"id": "c", "url": "http://10.0.0.1:3", "dp_sise": 2}"#),
        ("d", r#"{"id": "other", "url": "http://10.0.0.1:4"}"#),
        ("e", r#"{"id": "e", "url": "http://10.0.0.1:1"}"#),
        ("f", r#"{"id": "f", "url": "http://10.0.0.1:6", "api_key_file": "/etc/hostname"}"#),
        ("g", "[]"),
        ("a", r#"{"id": "a", "url": "http://10.0.0.1:99"}"#),
        ("a", "spoilt"),
    ] {
        put(id, value);
    }
    put("z", r#"{"id": "z", "url": "http://10.0.0.1:26"}"#);
    fleet.until("the good one behind them", |f| f.has(&["a", "z"])).await;
    assert_eq!(fleet.refused.load(Ordering::Relaxed), 8);
    assert_eq!(fleet.workers["a"].url.to_string(), "http://10.0.0.1:1");
    assert!(fleet.departed.is_empty());
    // Once the one whose URL it has is gone the other may have it.
    server.ctl(&["del", "/homing/g/workers/a"]);
    fleet.until("the one that waited", |f| f.has(&["e", "z"])).await;
    // One that is mended counts.
    put("c", r#"{"id": "c", "url": "http://10.0.0.1:3", "dp_size": 2}"#);
    fleet.until("the mended one", |f| f.has(&["c", "e", "z"])).await;
    // Who comes later sees the same.
    let mut late = Fleet::follow(&server).await;
    late.until("all", |f| f.has(&["c", "e", "z"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_moves_nobody() {
    let mut server = Server::start();
    let mut fleet = Fleet::follow(&server).await;
    let (mut a, mut b) = (registered(&server, "a", 1).await, registered(&server, "b", 2).await);
    let lost = registered(&server, "lost", 3).await;
    fleet.until("all", |f| f.has(&["a", "b", "lost"])).await;
    let before = (fleet.generation("a"), fleet.generation("b"));
    server.kill();
    // All leases are lost with it, though the workers live: but for the last one.
    server.wipe();
    drop(lost);
    fleet.until("it is known to be away", |f| f.frozen.is_some()).await;
    assert!(fleet.has(&["a", "b", "lost"]));
    assert!(matches!(a.keep().await, Err(RegisterError::Port(PortError::Unreachable { .. }))));
    server.run();
    let _new = registered(&server, "new", 4).await;
    fleet.until("a newcomer at once", |f| f.has(&["a", "b", "lost", "new"])).await;
    assert!(fleet.frozen.is_some(), "until all had their time");
    let resets = fleet.resets;
    for one in [&mut a, &mut b] {
        soon("registering again", async {
            while one.keep().await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }
    let keep = async {
        loop {
            tokio::time::sleep(Duration::from_secs(4)).await;
            let _ = (a.keep().await, b.keep().await);
        }
    };
    tokio::select! {
        () = fleet.until("the end of the grace", |f| f.frozen.is_none()) => {}
        () = keep => {}
    }
    assert!(fleet.has(&["a", "b"]) || fleet.has(&["a", "b", "new"]), "{:?}", fleet.workers.keys());
    assert_eq!((fleet.generation("a"), fleet.generation("b")), before, "they are who they were");
    assert_eq!(fleet.resets, resets + 1);
    assert!(!fleet.departed.iter().any(|id| id == "a" || id == "b"), "{:?}", fleet.departed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_comes_later_is_waited_for_and_history_is_not_needed() {
    let mut server = Server::at_rest();
    let mut fleet = Fleet::follow(&server).await;
    fleet.until("it is known to be away", |f| f.frozen.is_some()).await;
    assert_eq!(fleet.resets, 0, "nobody has said that there is nobody");
    server.run();
    let _a = registered(&server, "a", 1).await;
    fleet.until("it", |f| f.has(&["a"]) && f.frozen.is_none()).await;
    server.compact();
    let _b = registered(&server, "b", 2).await;
    fleet.until("both", |f| f.has(&["a", "b"])).await;
    assert!(fleet.departed.is_empty());
}
