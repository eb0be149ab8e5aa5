//! The core with what it needs from the world: the time, the session secret, metrics, and somebody who
//! wakes those whose turn has come.

mod readiness;

pub use readiness::NotReady;

use crate::clock::Clock;
use crate::guard::{Granted, Waiting};
use crate::interleave;
use crate::metrics::Metrics;
use crate::replication::Replication;
use crate::upstream::Links;
use homing_core::SelectionCore;
use homing_core::ask::{Admission, Ask, Claimed, Claiming, Output, Refusal, TicketId};
use homing_core::fleet::{FleetEvent, State};
use homing_core::ids::{KeySecret, WorkerId};
use homing_core::settings::{
    AffinitySettings, CoreSettings, Mode, OnDown, OnFailure, OnFull, OnOverload, OverloadSettings,
    PolicyKind, QueueSettings, Soft,
};
use homing_core::time::Time;
use homing_core::trust::{LikelyCause, Turn};
use parking_lot::Mutex;
use readiness::Readiness;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::settings::{self, AffinityMode, Policy, ReplicationMode, Settings, Verify};

/// What an engine reports of its load counts for as long as so many probes take.
const REPORT_PROBES: u32 = 3;

/// Shared by every host and task of the process.
#[derive(Debug)]
pub struct Shell {
    core: SelectionCore,
    clock: Clock,
    secret: KeySecret,
    metrics: Metrics,
    links: Links,
    sleepers: Mutex<HashMap<TicketId, Sleeper>>,
    /// Cancelled when a worker's port has refused: what it has begun it may not end.
    lives: Mutex<HashMap<WorkerId, CancellationToken>>,
    /// Calls those who know what workers serve to ask them anew; and when they were called last.
    refresh: Notify,
    refreshed: Mutex<Option<Instant>>,
    /// Their parent: cancelled when every answer is to end.
    cutting: CancellationToken,
    /// Whether predictions are held against what engines say (`index.verify`).
    verifies: bool,
    readiness: Readiness,
    /// What is shared with other routers, where something is.
    shared: OnceLock<Weak<Replication>>,
}

/// What an admission has come to.
pub(crate) enum Settled {
    Now(Result<Granted, Refusal>),
    /// It waits in the queue. Out of line: its state is large, and most requests don't wait.
    Later(Pin<Box<dyn Future<Output = Result<Granted, Refusal>> + Send>>),
}

/// Somebody in the queue, or a wake-up that came before its sleeper lay down.
#[derive(Debug)]
enum Sleeper {
    Asleep(oneshot::Sender<()>),
    Called,
}

impl Shell {
    /// A shell with an empty core. `entropy` keys sessions and seeds every choice.
    #[must_use]
    pub fn new(settings: &Settings, entropy: &[u8; 32]) -> Arc<Self> {
        Self::keyed(settings, KeySecret::new(entropy), entropy)
    }

    /// The same with a secret that outlives the process: the choices of two processes must not be the same,
    /// though their sessions' keys are.
    #[must_use]
    pub fn keyed(settings: &Settings, secret: KeySecret, entropy: &[u8; 32]) -> Arc<Self> {
        let mut seed = [0u8; 8];
        seed.copy_from_slice(&entropy[..8]);
        // The choices' seed must say nothing about the key: it goes through the keyed hash first.
        let seed = secret.digest(secret.session("", "", &seed)).0;
        Arc::new(Self {
            core: match settings.routing.custom.clone() {
                None => SelectionCore::new(core_settings(settings), seed),
                Some(policy) => {
                    SelectionCore::with_policy(core_settings(settings), seed, move || policy.make())
                }
            },
            clock: Clock::start(),
            secret,
            metrics: Metrics::new(),
            links: Links::default(),
            sleepers: Mutex::default(),
            lives: Mutex::default(),
            refresh: Notify::new(),
            refreshed: Mutex::default(),
            cutting: CancellationToken::new(),
            verifies: settings.index.verify != Verify::Off,
            readiness: Readiness::default(),
            shared: OnceLock::new(),
        })
    }

    /// The core. Calls that hold something go through the guards instead.
    #[must_use]
    pub fn core(&self) -> &SelectionCore {
        &self.core
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Time {
        // Whoever asks is about to call the core.
        interleave::point();
        self.clock.now()
    }

    /// Whether predictions are held against what engines say.
    #[must_use]
    pub fn verifies(&self) -> bool {
        self.verifies
    }

    /// The secret that keys sessions.
    #[must_use]
    pub fn secret(&self) -> &KeySecret {
        &self.secret
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How each worker is reached.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Resolves, selects, and waits in the queue where it must. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// The core's refusal; nothing is held then.
    pub fn admit(
        self: &Arc<Self>,
        ask: impl Into<Box<Ask>>,
    ) -> impl Future<Output = Result<Granted, Refusal>> {
        let ask = ask.into();
        async move {
            let began = Instant::now();
            let admission = self.core.admit(self.now(), ask);
            self.metrics.selection.observe(began.elapsed().as_secs_f64());
            match self.settle(admission) {
                Settled::Now(settled) => settled,
                Settled::Later(waits) => waits.await,
            }
        }
    }

    /// What an admission has come to, now or when its queue lets it.
    pub(crate) fn settle(self: &Arc<Self>, admission: Admission) -> Settled {
        let settled = match admission {
            Admission::Granted(grant) => Ok(Granted::new(self.clone(), grant)),
            Admission::Refused(refusal) => Err(refusal),
            Admission::Waiting(ticket) => {
                let waiting = Waiting::new(self.clone(), ticket);
                return Settled::Later(Box::pin(self.clone().wait(waiting)));
            }
        };
        self.pump();
        Settled::Now(settled)
    }

    /// Waits in the queue until it is said what becomes of the request.
    async fn wait(self: Arc<Self>, mut waiting: Waiting) -> Result<Granted, Refusal> {
        let since = self.now();
        let settled = loop {
            // What it has freed, or what has become of time, is for others, or even for itself.
            self.pump();
            self.sleep(waiting.id()).await;
            match self.core.claim(self.now(), waiting.into_ticket()) {
                Admission::Granted(grant) => break Ok(Granted::new(self.clone(), grant)),
                Admission::Refused(refusal) => break Err(refusal),
                Admission::Waiting(ticket) => waiting = Waiting::new(self.clone(), ticket),
            }
            self.pump();
        };
        self.metrics.queue_wait.observe(self.now().since(since).as_secs_f64());
        self.pump();
        settled
    }

    async fn sleep(&self, id: TicketId) {
        interleave::point();
        let called = {
            let mut sleepers = self.sleepers.lock();
            match sleepers.remove(&id) {
                Some(Sleeper::Called) => return,
                _ => {
                    let (call, called) = oneshot::channel();
                    sleepers.insert(id, Sleeper::Asleep(call));
                    called
                }
            }
        };
        // An error means that the sender was replaced, which only a second sleeper could do.
        let _ = called.await;
    }

    /// Whoever waited under `id` has left.
    pub(crate) fn forget_sleeper(&self, id: TicketId) {
        interleave::point();
        self.sleepers.lock().remove(&id);
    }

    /// Does what the core wants done. After every call that may free capacity or change the fleet.
    pub fn pump(&self) {
        interleave::point();
        // Held throughout, so that who takes a wake-up from the core has also delivered it when another
        // finds none left.
        let mut sleepers = self.sleepers.lock();
        while let Some(Output::Wake(id)) = self.core.poll_output() {
            match sleepers.remove(&id) {
                Some(Sleeper::Asleep(call)) => {
                    let _ = call.send(());
                }
                _ => {
                    sleepers.insert(id, Sleeper::Called);
                }
            }
        }
    }

    /// Cancelled once the port of a worker, in this life of it, has refused a connection.
    #[must_use]
    pub fn life_of(&self, worker: WorkerId) -> CancellationToken {
        let new = || self.cutting.child_token();
        self.lives.lock().entry(worker).or_insert_with(new).clone()
    }

    /// Has all workers asked anew what they serve, unless they were so lately. True if they are.
    pub fn refresh_models(&self) -> bool {
        const LATELY: Duration = Duration::from_secs(10);
        let mut last = self.refreshed.lock();
        let again = last.is_none_or(|at| at.elapsed() >= LATELY);
        if again {
            *last = Some(Instant::now());
            self.refresh.notify_waiters();
        }
        again
    }

    /// Waits until that is wanted.
    pub(crate) async fn models_are_wanted(&self) {
        self.refresh.notified().await;
    }

    /// Cancelled, and every life with it, when the router's own time is over.
    #[must_use]
    pub fn cutting(&self) -> &CancellationToken {
        &self.cutting
    }

    /// Ends every answer, with an error where it can have one.
    pub fn cut(&self) {
        self.cutting.cancel();
    }

    /// The port of a worker has refused, or it has turned out to live another life.
    pub fn life_is_over(&self, worker: WorkerId) {
        if let Some(life) = self.lives.lock().remove(&worker) {
            life.cancel();
        }
    }

    /// Keeps the core's time: expiry, deadlines in the queue. Runs until it is dropped.
    pub async fn keep_time(self: Arc<Self>) {
        // A deadline that is set while this sleeps is met at the next look, at most this much late.
        const LOOK: Duration = Duration::from_millis(100);
        // One look does a bounded part of what is due; requests get their turn before the next part.
        const PART: Duration = Duration::from_millis(1);
        let due = |now| self.core.poll_timeout().is_some_and(|due| due <= now);
        loop {
            let now = self.now();
            if due(now) {
                self.core.handle_timeout(now);
                self.pump();
            }
            tokio::time::sleep(if due(now) { PART } else { LOOK }).await;
        }
    }

    /// What is shared with other routers from now on. Once; whoever starts it keeps it.
    pub(crate) fn share(&self, replication: &Arc<Replication>) {
        // A second one would be a fault of the host's; the first stays.
        let _ = self.shared.set(Arc::downgrade(replication));
    }

    /// Asks the shared store to make a first turn known (R24).
    pub(crate) async fn claim(&self, claiming: &Claiming) -> Claimed {
        match self.shared.get().and_then(Weak::upgrade) {
            Some(replication) => replication.claim(claiming).await,
            None => Claimed::Without,
        }
    }

    /// Takes note of what became of a change of the fleet: one line each in the log, at the level that
    /// it deserves, and the readiness latch.
    pub fn note_fleet(&self, name: &str, events: &[FleetEvent]) {
        for event in events {
            match event {
                FleetEvent::Registered(id) => {
                    tracing::info!(worker = name, incarnation = id.0, "worker registered");
                }
                FleetEvent::Removed(id) => {
                    // Its running streams finish.
                    self.lives.lock().remove(id);
                    tracing::info!(worker = name, incarnation = id.0, "worker removed");
                }
                FleetEvent::Reborn { old, new } => {
                    self.life_is_over(*old);
                    tracing::info!(
                        worker = name,
                        old = old.0,
                        new = new.0,
                        "worker lives another life"
                    );
                }
                FleetEvent::State(id, State::Down) => {
                    let workers = self.core.workers();
                    let url = workers.iter().find(|w| w.info.id == *id).map(|w| &*w.info.spec.url);
                    let url = url.unwrap_or_default();
                    tracing::warn!(worker = name, url, "worker is down; probing goes on");
                }
                FleetEvent::State(id, State::Unauthorized) => {
                    let workers = self.core.workers();
                    let url = workers.iter().find(|w| w.info.id == *id).map(|w| &*w.info.spec.url);
                    let url = url.unwrap_or_default();
                    tracing::warn!(
                        worker = name,
                        url,
                        "the worker wants a key: name a file with it in upstream.api_key_file"
                    );
                }
                FleetEvent::State(_, state) => {
                    self.readiness.latch(*state == State::Ready);
                    tracing::info!(worker = name, %state, "worker changed its state");
                }
                FleetEvent::Placed(_, partition) => {
                    tracing::info!(worker = name, partition = partition.0, "worker serves a pool");
                }
                FleetEvent::NameTaken(_, model) => tracing::warn!(
                    worker = name,
                    model = &**model,
                    "this model name belongs to another pool; the worker won't get its requests"
                ),
            }
        }
    }

    /// Says once that a worker's index has lost its trust, and once that it has it back.
    pub fn note_trust(&self, turn: Turn) {
        let workers = self.core.workers();
        let name = workers.iter().find(|w| w.info.id == turn.worker).map(|w| &*w.info.spec.name);
        let (worker, shape) = (name.unwrap_or("?"), turn.shape.word());
        if turn.lost {
            let likely_cause = turn.likely_cause.map_or("unknown", LikelyCause::word);
            tracing::warn!(
                worker,
                shape,
                likely_cause,
                "the worker reuses far less of its prompts than its index promises: that counts for \
                 less from now on; docs/kv-cache.md says what each cause means"
            );
        } else {
            tracing::info!(worker, shape, "the worker reuses what its index promises again");
        }
    }
}

/// The one place where the file's words become the core's.
#[must_use]
pub fn core_settings(s: &Settings) -> CoreSettings {
    let a = &s.affinity;
    CoreSettings {
        affinity: AffinitySettings {
            ttl: a.ttl,
            prefill_ttl: a.prefill_ttl,
            max_sessions: a.max_sessions,
            soft: match a.soft {
                settings::Soft::Keep => Soft::Keep,
                settings::Soft::Weigh => Soft::Weigh,
            },
            on_full: match a.on_full {
                settings::OnFull::RouteUnbound => OnFull::RouteUnbound,
                settings::OnFull::EvictIdle => OnFull::EvictIdle,
            },
            on_down: match a.on_down {
                settings::OnDown::Rebind => OnDown::Rebind,
                settings::OnDown::Reject => OnDown::Reject,
            },
            on_overload: match a.on_overload {
                settings::OnOverload::Spill => OnOverload::Spill,
                settings::OnOverload::Reject => OnOverload::Reject,
                settings::OnOverload::Wait => OnOverload::Wait,
                settings::OnOverload::Dispatch => OnOverload::Dispatch,
            },
            on_failure: match a.on_failure {
                settings::OnFailure::Rebind => OnFailure::Rebind,
                settings::OnFailure::Reject => OnFailure::Reject,
            },
            max_parallel: a.max_parallel,
            shared: s.replication.is_some(),
            claimed: s
                .replication
                .as_ref()
                .is_some_and(|r| r.mode == ReplicationMode::Authoritative),
        },
        queue: QueueSettings {
            max_requests: s.queue.max_requests,
            max_wait: s.queue.max_wait,
            busy_active_requests: s.queue.busy_active_requests.unwrap_or(0),
            busy_prefill_tokens: s.queue.busy_prefill_tokens.unwrap_or(0),
        },
        overload: OverloadSettings {
            active_requests: s.overload.active_requests.unwrap_or(0),
            kv_usage: s.overload.kv_usage,
            factor: s.overload.factor,
            recover: s.overload.recover,
        },
        // One that is lost is no silence.
        report_life: s.health.interval * REPORT_PROBES,
        policy: match s.routing.policy {
            Policy::Kv => PolicyKind::Kv,
            Policy::Latency => PolicyKind::Latency,
            Policy::LeastLoaded => PolicyKind::LeastLoaded,
            Policy::PowerOfTwo => PolicyKind::PowerOfTwo,
            Policy::RoundRobin => PolicyKind::RoundRobin,
            Policy::Random => PolicyKind::Random,
        },
        index_memory: s.index.memory,
        retry_attempts: s.retry.attempts,
        retry_budget: s.retry.budget,
        health_failures: s.health.failures,
        health_successes: s.health.successes,
        ..CoreSettings::default()
    }
}

/// The core's word for a mode of the file.
#[must_use]
pub fn core_mode(mode: AffinityMode) -> Mode {
    match mode {
        AffinityMode::Hard => Mode::Hard,
        AffinityMode::Soft => Mode::Soft,
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "cancel_tests.rs"]
mod cancelled;

#[cfg(test)]
#[path = "model_tests.rs"]
mod modelled;
