//! The workers as tasks: each is probed for as long as it is registered, and asked what it serves.
//!
//! * `claims`: whose an id is, where several discoveries name it;
//! * [`discovery`]: the port through which workers come and go; [`dns`]: those behind a name; [`mod@file`]: those of a file;
//! * `tend`: one worker's task;
//! * [`sources`]: where its events are;
//! * `poll`: asking for them, where they are not published;
//! * [`registered`]: those that register over HTTP; [`entry`]: one of those, as it says itself;
//! * [`ranks`]: how many data-parallel ranks it has;
//! * [`verify`]: whether its engine sees prompts as we do.

mod claims;
pub mod discovery;
pub mod dns;
pub mod entry;
pub mod file;
mod poll;
pub mod ranks;
pub mod registered;
mod report;
pub mod sources;
mod tend;
pub mod verify;

use crate::ask::Ask;
use crate::ingest::Ingest;
use crate::lifecycle::Lifecycle;
use crate::settings::{IndexSource, Settings, Worker};
use crate::shell::Shell;
use crate::upstream::Upstream;
use arc_swap::ArcSwap;
use claims::{After, Claims, Source, Verdict};
use discovery::{Change, Changes};
use homing_core::fleet::{FleetChange, FleetError, Ranks, WorkerSpec};
use homing_core::ids::Role;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tend::Tend;
use tokio_util::sync::CancellationToken;
use verify::Questions;

/// Adds, tends and removes workers.
#[derive(Debug)]
pub struct Fleet {
    shell: Arc<Shell>,
    settings: Arc<ArcSwap<Settings>>,
    ingest: Option<Ingest>,
    upstream: Upstream,
    questions: Questions,
    life: Lifecycle,
    tended: Mutex<BTreeMap<String, CancellationToken>>,
    discoveries: AtomicUsize,
    /// Taken before the others.
    claims: Mutex<Claims>,
    refused: AtomicU64,
    /// Those that can't be followed, by their numbers, and why.
    frozen: Mutex<BTreeMap<usize, String>>,
}

/// One discovery's word on whether it can be followed; it ends with it.
struct Frozen<'a> {
    fleet: &'a Fleet,
    number: usize,
}

impl Frozen<'_> {
    fn say(&mut self, why: Option<String>) {
        let mut frozen = self.fleet.frozen.lock();
        match why {
            None => {
                if frozen.remove(&self.number).is_some() {
                    tracing::info!("workers can be discovered again");
                }
            }
            Some(why) => {
                tracing::warn!(why, "workers can't be discovered: those that are known stay");
                frozen.insert(self.number, why);
            }
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.fleet.frozen.lock().remove(&self.number);
    }
}

impl Fleet {
    /// A fleet without workers; each is asked `questions` once it serves something. Call it on the runtime that shall tend them.
    #[must_use]
    pub fn new(
        shell: Arc<Shell>,
        settings: Arc<Settings>,
        ingest: Option<Ingest>,
        questions: Questions,
        life: Lifecycle,
    ) -> Arc<Self> {
        for model in &settings.models {
            shell.core().declare(&model.name);
        }
        // Probes take fresh connections: a kept one says nothing about the port.
        let upstream = Upstream::fresh();
        let (tended, discoveries, claims, refused, frozen) = Default::default();
        let settings = Arc::new(ArcSwap::new(settings));
        Arc::new(Self {
            shell,
            settings,
            ingest,
            upstream,
            questions,
            life,
            tended,
            discoveries,
            claims,
            refused,
            frozen,
        })
    }

    /// Other settings hold from now on: how workers are probed, and how their caches are known.
    pub fn reload(&self, settings: Arc<Settings>) {
        self.settings.store(settings);
    }

    /// Follows a discovery until it ends or the last request has. There may be several, each with workers of its own.
    pub async fn follow(self: Arc<Self>, mut changes: Changes) {
        let number = self.discoveries.fetch_add(1, Ordering::Relaxed);
        let mut frozen = Frozen { fleet: &self, number };
        let finished = self.life.finished().clone();
        while let Some(Some(change)) = finished.run_until_cancelled(changes.recv()).await {
            match change {
                Change::Reset(workers) => {
                    frozen.say(None);
                    self.reset(number, workers);
                }
                Change::Upsert(worker) => {
                    self.claim(&mut self.claims.lock(), number, worker, false);
                }
                Change::Replace(worker) => {
                    self.claim(&mut self.claims.lock(), number, worker, true);
                }
                Change::Remove(name) => self.release(&mut self.claims.lock(), number, &name),
                Change::Frozen(why) => frozen.say(why),
            }
        }
    }

    /// A discovery has these workers, and no others.
    fn reset(self: &Arc<Self>, source: Source, workers: Vec<Worker>) {
        let mut claims = self.claims.lock();
        let stays = |n: &String| workers.iter().any(|w| w.id == **n);
        let gone: Vec<String> = claims.named_by(source).filter(|n| !stays(n)).cloned().collect();
        for name in gone {
            self.release(&mut claims, source, &name);
        }
        for worker in workers {
            // Who is said again, and is here, has not changed.
            let is_here = self.tended.lock().contains_key(&worker.id);
            if !is_here || claims.said(source, &worker.id) != Some(&worker) {
                self.claim(&mut claims, source, worker, false);
            }
        }
    }

    /// A discovery names a worker: it is let in, unless its id is another's.
    fn claim(self: &Arc<Self>, claims: &mut Claims, source: Source, worker: Worker, replace: bool) {
        match claims.claim(source, &worker, replace) {
            Verdict::Held => self.upsert(worker),
            Verdict::Shared => {
                tracing::debug!(worker = worker.id, "another discovery names the same worker");
            }
            Verdict::Stolen { url, news: true } => {
                self.refuse(&worker.id, &url, &worker.url.to_string());
            }
            Verdict::Stolen { news: false, .. } => {}
        }
    }

    fn release(self: &Arc<Self>, claims: &mut Claims, source: Source, name: &str) {
        match claims.release(source, name) {
            After::Same => {}
            After::Nobody => {
                self.depart(name);
            }
            After::Next(worker) => self.upsert(worker),
        }
    }

    fn refuse(&self, id: &str, url: &str, claimed: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            worker = id,
            url,
            claimed,
            "a worker's id is claimed for another URL: refused; whoever is registered stays as he is"
        );
    }

    /// Somebody asks for an id that is taken. Where it is a worker's at another URL that counts as refused; it is said if
    /// it is `news`.
    pub fn refuse_taken(&self, worker: &Worker, news: bool) {
        let holder = self.claims.lock().holder(&worker.id).map(|holder| holder.url.clone());
        if let Some(holder) = holder.filter(|holder| news && *holder != worker.url) {
            self.refuse(&worker.id, &holder.to_string(), &worker.url.to_string());
        }
    }

    /// How many claims of ids of others were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Why the membership is as it was when some discovery could be followed last; empty while all can be.
    #[must_use]
    pub fn frozen(&self) -> Vec<String> {
        self.frozen.lock().values().cloned().collect()
    }

    fn upsert(self: &Arc<Self>, worker: Worker) {
        if let Err(error) = self.shell.links().join(&worker) {
            tracing::error!(worker = worker.id, %error, "the worker can't be reached as it is configured");
            return;
        }
        let spec = WorkerSpec {
            name: worker.id.as_str().into(),
            url: worker.url.to_string().into(),
            labels: worker.labels.clone(),
            role: Role::Aggregated,
            ranks: Ranks::new(0, worker.dp_size.unwrap_or(1)),
            generation: worker.generation,
        };
        let now = self.shell.now();
        match self.shell.core().handle_fleet(now, FleetChange::Register(spec)) {
            Ok(events) => self.shell.note_fleet(&worker.id, &events),
            Err(error) => {
                tracing::error!(worker = worker.id, %error, "the worker can't be registered");
                return;
            }
        }
        self.shell.pump();
        let stop = self.life.finished().child_token();
        if let Some(before) = self.tended.lock().insert(worker.id.clone(), stop.clone()) {
            before.cancel();
        }
        // Somebody has removed it meanwhile.
        let Some(link) = self.shell.links().named(&worker.id) else { return };
        let tend = Tend::new(
            self.shell.clone(),
            self.settings.clone(),
            self.ingest.clone(),
            Ask {
                upstream: self.upstream.clone(),
                link,
                timeout: self.settings.load().health.timeout,
            },
            self.questions.clone(),
            worker,
        );
        self.life.spawn(async move {
            stop.run_until_cancelled(tend.run()).await;
        });
    }

    /// Removes a worker, whichever discovery names it, until one says it again: it has departed, its running streams
    /// finish. False if there is none.
    pub fn remove(&self, name: &str) -> bool {
        let mut claims = self.claims.lock();
        claims.forget(name);
        self.depart(name)
    }

    fn depart(&self, name: &str) -> bool {
        if let Some(stop) = self.tended.lock().remove(name) {
            stop.cancel();
        }
        if let Some(ingest) = &self.ingest {
            ingest.unsubscribe(name);
        }
        self.shell.links().leave(name);
        let Some(id) = self.shell.core().worker_named(name) else { return false };
        let removed = self.shell.core().handle_fleet(self.shell.now(), FleetChange::Remove(id));
        self.shell.pump();
        match removed {
            Ok(events) => {
                self.shell.note_fleet(name, &events);
                true
            }
            // Somebody was quicker.
            Err(FleetError::UnknownWorker) => false,
            Err(error) => {
                tracing::error!(worker = name, %error, "the worker can't be removed");
                false
            }
        }
    }

    /// How a worker's cache is known: by its `events`, which may be `connecting` still, or `uncertain`; by what
    /// was sent to it (`approximate`); or not (`none`, `off`).
    #[must_use]
    pub fn index_state(&self, name: &str) -> &'static str {
        if !self.tended.lock().contains_key(name) {
            return "none";
        }
        let events = self.ingest.as_ref().map(|ingest| ingest.state(name));
        match (self.settings.load().index.source, events) {
            (IndexSource::Off, _) => "off",
            (IndexSource::Approximate, _) | (IndexSource::Auto, None | Some("none")) => {
                "approximate"
            }
            (IndexSource::Auto | IndexSource::Events, state) => state.unwrap_or("none"),
        }
    }

    /// Why a worker's events can't be followed at all, where they should be and that is so.
    #[must_use]
    pub fn index_error(&self, name: &str) -> Option<String> {
        if self.index_state(name) != "connecting" {
            return None;
        }
        self.ingest.as_ref()?.failure(name)
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod report_tests;
#[cfg(test)]
#[path = "sources_tests.rs"]
mod sources_tests;
#[cfg(test)]
#[path = "tend_tests.rs"]
mod tests;
