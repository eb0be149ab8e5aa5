//! A router with its workers, and how a test waits for what must come about.

use super::client::{Answer, Client, get};
use super::worker::Worker;
use homing_core::fleet::State;
use homing_core::partition::Stats;
use homing_hosts::Server;
use homing_runtime::settings::{Settings, Sources};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

/// Nothing that must come about takes longer, even where two cores do much else.
const DEADLINE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);

/// Returns once it holds.
pub(super) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "it never came about that {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// What must end: a hang becomes a failure.
pub(super) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(done) => done,
        Err(_) => panic!("it never ended: {what}"),
    }
}

pub(super) struct World {
    pub(super) server: Server,
}

impl World {
    /// A router in front of workers that are all ready. `extra` are settings: dotted keys, TOML values.
    pub(super) async fn start(extra: &[(&str, &str)], workers: &[&Worker]) -> Self {
        let world = Self::cold(extra, workers).await;
        let core = world.server.shell().core();
        eventually("all workers are ready", || {
            let all = core.workers();
            all.len() == workers.len() && all.iter().all(|w| w.state == State::Ready)
        })
        .await;
        world
    }

    /// The same, without waiting for them.
    pub(super) async fn cold(extra: &[(&str, &str)], workers: &[&Worker]) -> Self {
        let usual = [
            ("gateway.listen", "'127.0.0.1:0'"),
            ("gateway.shutdown_delay", "'0s'"),
            ("admin.listen", "'127.0.0.1:0'"),
            ("health.interval", "'50ms'"),
            ("health.timeout", "'20s'"),
            ("index.source", "'off'"),
        ];
        let keys: BTreeMap<&str, &str> = usual.iter().chain(extra).copied().collect();
        let mut text: String = keys.iter().map(|(k, v)| format!("{k} = {v}\n")).collect();
        for worker in workers {
            let (name, url) = (worker.name, &worker.url);
            text.push_str(&format!("[[workers]]\nid = '{name}'\nurl = '{url}'\n"));
        }
        let file = Some(("test.toml".into(), text));
        let settings = Settings::load(Sources { file, ..Sources::default() }).unwrap();
        Self { server: Server::start(settings).await.unwrap() }
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect(self.server.gateway_address()).await
    }

    /// One request on a connection of its own.
    pub(super) async fn ask(&self, request: &[u8]) -> Answer {
        in_time("an answer", async { self.client().await.ask(request).await }).await
    }

    pub(super) async fn admin(&self, request: &[u8]) -> Answer {
        in_time("an answer of the admin server", async {
            Client::connect(self.server.admin_address()).await.ask(request).await
        })
        .await
    }

    pub(super) async fn metrics(&self) -> String {
        self.admin(&get("/metrics")).await.text().to_owned()
    }

    /// The value of a series by its whole name with labels; 0 if it is not there.
    pub(super) async fn metric(&self, series: &str) -> f64 {
        let text = self.metrics().await;
        let mut lines = text.lines().filter_map(|l| l.rsplit_once(' '));
        lines.find(|(name, _)| *name == series).map_or(0.0, |(_, v)| v.parse().unwrap())
    }

    /// The sum over all partitions.
    pub(super) fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for p in self.server.shell().core().partitions() {
            all.bindings += p.stats.bindings;
            all.leases += p.stats.leases;
            all.bookings += p.stats.bookings;
            all.waiting += p.stats.waiting;
        }
        all
    }

    pub(super) fn state(&self, worker: &str) -> Option<State> {
        let workers = self.server.shell().core().workers();
        workers.iter().find(|w| &*w.info.spec.name == worker).map(|w| w.state)
    }

    /// Until nothing is held any more.
    pub(super) async fn quiet(&self) {
        eventually("nothing is held", || {
            let s = self.stats();
            (s.leases, s.bookings, s.waiting) == (0, 0, 0)
        })
        .await;
        self.server.shell().core().check();
    }

    /// Until nothing is held any more, and the router has ended.
    pub(super) async fn end(self) {
        self.quiet().await;
        assert!(in_time("the router", self.server.shut_down()).await, "streams were cut off");
    }
}
