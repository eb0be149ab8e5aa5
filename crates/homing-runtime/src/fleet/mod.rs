//! The workers as tasks: each is probed for as long as it is registered, and asked what it serves.
//!
//! * [`discovery`]: the port through which workers come and go; [`dns`]: those behind a name; [`mod@file`]: those of a file;
//! * `tend`: one worker's task;
//! * [`sources`]: where its events are;
//! * `poll`: asking for them, where they are not published;
//! * [`registered`]: those that register over HTTP; [`entry`]: one of those, as it says itself;
//! * [`ranks`]: how many data-parallel ranks it has;
//! * [`verify`]: whether its engine sees prompts as we do.

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
use discovery::{Change, Changes};
use homing_core::fleet::{FleetChange, FleetError, Ranks, WorkerSpec};
use homing_core::ids::Role;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
        let (tended, discoveries, frozen) = Default::default();
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
            frozen,
        })
    }

    /// Other settings hold from now on: how workers are probed, and how their caches are known.
    pub fn reload(&self, settings: Arc<Settings>) {
        self.settings.store(settings);
    }

    /// Follows a discovery until it ends or the last request has. There may be several, each with workers of its own.
    pub async fn follow(self: Arc<Self>, mut changes: Changes) {
        let mut theirs: BTreeMap<String, Worker> = BTreeMap::new();
        let mut frozen =
            Frozen { fleet: &self, number: self.discoveries.fetch_add(1, Ordering::Relaxed) };
        let finished = self.life.finished().clone();
        while let Some(Some(change)) = finished.run_until_cancelled(changes.recv()).await {
            match change {
                Change::Reset(workers) => {
                    frozen.say(None);
                    let stays = |n: &String| workers.iter().any(|w| w.id == **n);
                    let gone: Vec<String> = theirs.keys().filter(|n| !stays(n)).cloned().collect();
                    for name in gone {
                        theirs.remove(&name);
                        self.remove(&name);
                    }
                    for worker in workers {
                        // Who is said again, and is here, has not changed.
                        let is_here = self.tended.lock().contains_key(&worker.id);
                        if !is_here || theirs.get(&worker.id) != Some(&worker) {
                            theirs.insert(worker.id.clone(), worker.clone());
                            self.upsert(worker);
                        }
                    }
                }
                Change::Upsert(worker) => {
                    theirs.insert(worker.id.clone(), worker.clone());
                    self.upsert(worker);
                }
                Change::Remove(name) => {
                    theirs.remove(&name);
                    self.remove(&name);
                }
                Change::Frozen(why) => frozen.say(why),
            }
        }
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

    /// Removes a worker: it has departed, its running streams finish. False if there is none.
    pub fn remove(&self, name: &str) -> bool {
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
