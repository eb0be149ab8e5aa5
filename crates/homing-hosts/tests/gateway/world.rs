//! A router with its workers, and how a test waits for what must come about.

use super::client::{Answer, Client, get};
use super::worker::Worker;
use homing_core::fleet::State;
use homing_core::partition::Stats;
use homing_hosts::{Extras, Server, StartError};
use homing_runtime::settings::{Settings, Sources};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nothing that must come about takes longer, even where two cores do much else.
const DEADLINE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);

/// Settings of a router that is reloaded.
const USUAL: &str = "gateway.listen = '127.0.0.1:0'\ngateway.shutdown_delay = '0s'\nadmin.listen = '127.0.0.1:0'\n\
                     health.interval = '50ms'\nhealth.timeout = '20s'\nindex.source = 'off'\n";

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

/// What is usual here, and `extra` in its place.
fn settings(extra: &[(&str, &str)], workers: &[(&Worker, &str)]) -> Settings {
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
    for (worker, own) in workers {
        let (name, url) = (worker.name, &worker.url);
        text.push_str(&format!("[[workers]]\nid = '{name}'\nurl = '{url}'\n{own}\n"));
    }
    let file = Some(("test.toml".into(), text));
    Settings::load(Sources { file, ..Sources::default() }).unwrap()
}

impl World {
    /// A router in front of workers that are all ready. `extra` are settings: dotted keys, TOML values.
    pub(super) async fn start(extra: &[(&str, &str)], workers: &[&Worker]) -> Self {
        let workers: Vec<_> = workers.iter().map(|w| (*w, "")).collect();
        Self::start_as(extra, &workers).await
    }

    /// The same, where the workers have settings of their own: lines of TOML.
    pub(super) async fn start_as(extra: &[(&str, &str)], workers: &[(&Worker, &str)]) -> Self {
        let world = Self::cold_as(extra, workers).await;
        let core = world.server.shell().core();
        eventually("all workers are ready", || {
            let all = core.workers();
            all.len() == workers.len() && all.iter().all(|w| w.state == State::Ready)
        })
        .await;
        world
    }

    /// The same, where more follows: tables of TOML.
    pub(super) async fn start_with(
        extra: &[(&str, &str)],
        more: &str,
        workers: &[&Worker],
    ) -> Self {
        let last = workers.len() - 1;
        let own = |i: usize| if i == last { more } else { "" };
        let workers: Vec<_> = workers.iter().enumerate().map(|(i, w)| (*w, own(i))).collect();
        Self::start_as(extra, &workers).await
    }

    /// The same, without waiting for them.
    pub(super) async fn cold(extra: &[(&str, &str)], workers: &[&Worker]) -> Self {
        let workers: Vec<_> = workers.iter().map(|w| (*w, "")).collect();
        Self::cold_as(extra, &workers).await
    }

    /// A router that can read its settings anew: they are what `text` says at the time, after the usual ones.
    pub(super) async fn reloadable(text: Arc<Mutex<String>>) -> Self {
        let read = move || {
            let whole = format!("{USUAL}{}", text.lock().unwrap());
            let file = Some(("test.toml".into(), whole));
            Settings::load(Sources { file, ..Sources::default() }).map_err(|e| e.to_string())
        };
        let settings = read().unwrap();
        Self {
            server: Server::start_with(
                settings,
                Extras { reread: Some(Box::new(read)), ..Extras::default() },
            )
            .await
            .unwrap(),
        }
    }

    /// The same, where the workers have settings of their own.
    pub(super) async fn cold_as(extra: &[(&str, &str)], workers: &[(&Worker, &str)]) -> Self {
        Self { server: Server::start(settings(extra, workers)).await.unwrap() }
    }

    /// Why there is none.
    pub(super) async fn fails(extra: &[(&str, &str)]) -> StartError {
        Self::fails_as(extra, &[]).await
    }

    /// The same, with workers.
    pub(super) async fn fails_as(
        extra: &[(&str, &str)],
        workers: &[(&Worker, &str)],
    ) -> StartError {
        match Server::start(settings(extra, workers)).await {
            Ok(_) => panic!("it starts"),
            Err(error) => error,
        }
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect(self.server.gateway_address().unwrap()).await
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

    /// What the admin server says, in JSON; `null` where it says nothing.
    pub(super) async fn api(&self, request: &[u8]) -> (u16, serde_json::Value) {
        let answer = self.admin(request).await;
        let said = if answer.body.is_empty() { b"null".as_slice() } else { &answer.body };
        (answer.status, serde_json::from_slice(said).unwrap())
    }

    /// Where the session lives, as the admin server says.
    pub(super) async fn home(&self, id: &str) -> Option<String> {
        let (status, session) = self.api(&get(&format!("/admin/sessions/{id}"))).await;
        assert!(matches!(status, 200 | 404), "{status}: {session}");
        Some(session["worker"].as_str()?.to_owned())
    }

    /// A worker's state in the admin server's word.
    pub(super) async fn told(&self, worker: &str) -> String {
        let (_, all) = self.api(&get("/admin/workers")).await;
        let one = all.as_array().unwrap().iter().find(|w| w["id"] == worker);
        one.unwrap()["state"].as_str().unwrap().to_owned()
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
