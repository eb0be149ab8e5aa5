//! List and watch, over outages.
//!
//! A turn lists everything and then watches for as long as that goes well, five minutes at most: what was missed is
//! found by then. Watches that the server ends are begun anew where they were; a version that it has forgotten (410)
//! ends the turn. A call that fails freezes the membership until a list succeeds. Between two turns, and between two
//! watches, there is always a pause.

use super::api::{Api, ApiError, Watch};
use super::discovery::Plan;
use super::members::{self, Labels, Members, Seat};
use super::objects::{Any, EndpointSlice, Event, InferencePool, Pod, Status};
use futures_util::StreamExt as _;
use homing_runtime::fleet::discovery::Change;
use homing_runtime::settings::{KubernetesFind as Find, KubernetesPort as Port};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

/// Everything is listed again after this.
const RECONCILE: Duration = Duration::from_secs(300);
/// An InferencePool is looked at so often; its pods are watched.
const LOOK_AT_POOL: Duration = Duration::from_secs(30);
/// Between two turns: at least, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A turn that lasted so long went well.
const CALM: Duration = Duration::from_secs(30);
/// Between the beginnings of two watches.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// How many pods are asked for at a time.
const ASKED_AT_ONCE: usize = 16;

/// Why a turn ended.
enum Ended {
    /// Nobody wants to know.
    Over,
    /// All is well, and to be listed again.
    Again,
    Failed(ApiError),
}

impl From<ApiError> for Ended {
    fn from(error: ApiError) -> Self {
        if error.is_gone() { Self::Again } else { Self::Failed(error) }
    }
}

/// What is listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sight {
    path: String,
    selector: Option<String>,
    /// Where pods listen; empty for slices.
    ports: Vec<u16>,
    /// The pool that said so.
    pool: Option<String>,
}

/// See the module.
pub(super) struct Follower {
    plan: Arc<Plan>,
    api: Api,
    members: Members,
    out: mpsc::Sender<Change>,
    frozen: bool,
    /// Labels can't be had, and that has been said.
    unlabelled: bool,
    /// What was last complained of.
    complaint: Option<String>,
}

impl Follower {
    pub(super) fn new(plan: Plan, out: mpsc::Sender<Change>) -> Self {
        let plan = Arc::new(plan);
        let (api, members) = (Api::new(plan.clone()), Members::new(plan.upstream.clone()));
        Self { plan, api, members, out, frozen: false, unlabelled: false, complaint: None }
    }

    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            match self.turn().await {
                Ended::Over => return,
                Ended::Again => {}
                Ended::Failed(error) => {
                    self.api.turn();
                    if self.freeze(error.to_string()).await.is_err() {
                        return;
                    }
                }
            }
            if begun.elapsed() > CALM {
                pause = PAUSE_MIN;
            }
            tokio::select! {
                () = self.out.closed() => return,
                () = sleep(jittered(pause)) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Says once that what was said stands.
    async fn freeze(&mut self, why: String) -> Result<(), Ended> {
        if std::mem::replace(&mut self.frozen, true) {
            tracing::debug!(why, "kubernetes still can't be followed");
            return Ok(());
        }
        self.tell(Change::Frozen(Some(format!("kubernetes: {why}")))).await
    }

    async fn tell(&self, change: Change) -> Result<(), Ended> {
        self.out.send(change).await.map_err(|_| Ended::Over)
    }

    async fn turn(&mut self) -> Ended {
        let out = self.out.clone();
        tokio::select! {
            biased;
            () = out.closed() => Ended::Over,
            ended = self.try_turn() => ended,
        }
    }

    async fn try_turn(&mut self) -> Ended {
        match self.list().await {
            Ok((sight, version)) => self.watch(&sight, version).await,
            Err(ended) => ended,
        }
    }

    /// Where to look, by the settings or by the pool.
    async fn sight(&self) -> Result<Sight, ApiError> {
        let namespace = &self.plan.namespace;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let number = match &self.plan.wanted.port {
            Port::Number(number) => vec![*number],
            Port::Name(_) => Vec::new(),
        };
        match &self.plan.wanted.find {
            Find::Service(service) => Ok(Sight {
                path: format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
                selector: Some(format!("kubernetes.io/service-name={service}")),
                ports: Vec::new(),
                pool: None,
            }),
            Find::Selector(selector) => Ok(Sight {
                path: pods,
                selector: Some(selector.clone()),
                ports: number,
                pool: None,
            }),
            Find::InferencePool(name) => {
                let pool = self.pool(name).await?;
                let nonsense = |why: &str| ApiError::Nonsense {
                    what: format!("InferencePool `{name}`"),
                    why: why.to_owned(),
                };
                let selector = pool.selector();
                let selector = selector.ok_or_else(|| nonsense("its selector selects nothing"))?;
                let ports = pool.ports();
                if ports.is_empty() {
                    return Err(nonsense("it names no port"));
                }
                let pool = Some(name.clone());
                Ok(Sight { path: pods, selector: Some(selector), ports, pool })
            }
        }
    }

    /// The pool, under its name of today or of before.
    async fn pool(&self, name: &str) -> Result<InferencePool, ApiError> {
        let namespace = &self.plan.namespace;
        let at =
            |group: &str| format!("/apis/{group}/namespaces/{namespace}/inferencepools/{name}");
        match self.api.get(&at("inference.networking.k8s.io/v1")).await {
            Err(error) if error.is_missing() => {
                match self.api.get(&at("inference.networking.x-k8s.io/v1alpha2")).await {
                    Err(before) if before.is_missing() => Err(error),
                    found => found,
                }
            }
            found => found,
        }
    }

    /// Says all that there is.
    async fn list(&mut self) -> Result<(Sight, String), Ended> {
        let sight = self.sight().await?;
        let mut objects = BTreeMap::new();
        let mut complaint = None;
        let selector = sight.selector.as_deref();
        let version = if sight.ports.is_empty() {
            let port = &self.plan.wanted.port;
            let each = |slice: EndpointSlice| {
                let name = slice.metadata.name.clone();
                match members::of_slice(slice, port) {
                    Ok(seats) => drop(objects.insert(name, seats)),
                    Err(why) => complaint = Some(why),
                }
            };
            self.api.list(&sight.path, selector, each).await?
        } else {
            let each = |pod: Pod| {
                let name = pod.metadata.name.clone();
                objects.insert(name, members::of_pod(pod, &sight.ports));
            };
            self.api.list(&sight.path, selector, each).await?
        };
        self.complain(complaint);
        self.members.replace(objects);
        self.members.doubt_labels();
        self.label().await;
        let workers = self.members.all();
        tracing::debug!(workers = workers.len(), path = sight.path, "kubernetes was listed");
        self.tell(Change::Reset(workers)).await?;
        self.frozen = false;
        Ok((sight, version))
    }

    fn complain(&mut self, complaint: Option<String>) {
        if let (Some(why), true) = (&complaint, complaint != self.complaint) {
            tracing::error!(why, "workers of kubernetes can't be used; see discovery.port");
        }
        self.complaint = complaint;
    }

    /// Asks for the labels of pods that slices name.
    async fn label(&mut self) {
        if self.unlabelled {
            return;
        }
        let unknown = self.members.unlabelled();
        let (api, namespace) = (&self.api, &self.plan.namespace);
        let ask = |(pod, uid): (String, String)| async move {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
            (uid, api.get::<Any>(&path).await)
        };
        let answers: Vec<_> =
            futures_util::stream::iter(unknown).map(ask).buffered(ASKED_AT_ONCE).collect().await;
        for (uid, answer) in answers {
            match answer {
                // Another of the same name would say what isn't its own.
                Ok(pod) if uid.is_empty() || pod.metadata.uid == uid => {
                    self.members.label(uid, Labels::new(pod.metadata.labels.unwrap_or_default()));
                }
                Err(error) if error.is_forbidden() => {
                    if !std::mem::replace(&mut self.unlabelled, true) {
                        tracing::warn!(%error, "workers are without their pods' labels");
                    }
                }
                // It has gone in between, or is asked for again at the next change.
                Ok(_) | Err(_) => {}
            }
        }
    }

    async fn watch(&mut self, sight: &Sight, mut version: String) -> Ended {
        let reconcile = Instant::now() + jittered(RECONCILE);
        loop {
            let begun = Instant::now();
            let length = reconcile.saturating_duration_since(begun);
            if length.is_zero() {
                return Ended::Again;
            }
            let watch =
                self.api.watch(&sight.path, sight.selector.as_deref(), &version, length).await;
            let watch = match watch {
                Ok(watch) => watch,
                Err(error) => return error.into(),
            };
            match self.lines(watch, sight, &mut version, reconcile).await {
                Ok(()) => {}
                Err(ended) => return ended,
            }
            sleep_until(begun + jittered(WATCH_MIN)).await;
        }
    }

    /// Takes in a watch until it ends; it may have broken.
    async fn lines(
        &mut self,
        mut watch: Watch,
        sight: &Sight,
        version: &mut String,
        reconcile: Instant,
    ) -> Result<(), Ended> {
        let mut look = Instant::now() + LOOK_AT_POOL;
        loop {
            tokio::select! {
                line = watch.line() => match line {
                    Ok(Some(line)) => self.event(&line, sight, version).await?,
                    Ok(None) => return Ok(()),
                    Err(why) => {
                        tracing::debug!(why, "a watch of kubernetes broke: begun anew where it was");
                        return Ok(());
                    }
                },
                () = sleep_until(reconcile) => return Err(Ended::Again),
                () = sleep_until(look), if sight.pool.is_some() => {
                    if self.sight().await? != *sight {
                        return Err(Ended::Again);
                    }
                    look = Instant::now() + LOOK_AT_POOL;
                }
            }
        }
    }

    async fn event(
        &mut self,
        line: &[u8],
        sight: &Sight,
        version: &mut String,
    ) -> Result<(), Ended> {
        let nonsense = |error: serde_json::Error| {
            Ended::Failed(ApiError::Nonsense { what: sight.path.clone(), why: error.to_string() })
        };
        let event: Event<'_> = serde_json::from_slice(line).map_err(nonsense)?;
        let object = event.object.get();
        if event.kind == "ERROR" {
            let status: Status = serde_json::from_str(object).unwrap_or_default();
            let (what, code, words) = (sight.path.clone(), status.code, status.message);
            return Err(ApiError::Refused { what, code, words }.into());
        }
        let meta = serde_json::from_str::<Any>(object).map_err(nonsense)?.metadata;
        if !meta.resource_version.is_empty() {
            *version = meta.resource_version;
        }
        let seats: Vec<Seat> = match event.kind {
            "ADDED" | "MODIFIED" if sight.ports.is_empty() => {
                let slice = serde_json::from_str(object).map_err(nonsense)?;
                match members::of_slice(slice, &self.plan.wanted.port) {
                    Ok(seats) => {
                        self.complain(None);
                        seats
                    }
                    Err(why) => {
                        self.complain(Some(why));
                        return Ok(());
                    }
                }
            }
            "ADDED" | "MODIFIED" => {
                let pod = serde_json::from_str(object).map_err(nonsense)?;
                members::of_pod(pod, &sight.ports)
            }
            "DELETED" => Vec::new(),
            // BOOKMARK, and what is not known yet.
            _ => return Ok(()),
        };
        self.members.put(meta.name, seats);
        self.label().await;
        for change in self.members.changes() {
            self.tell(change).await?;
        }
        Ok(())
    }
}

/// Between a half and all of it.
fn jittered(length: Duration) -> Duration {
    let chance = (RandomState::new().hash_one(()) >> 40) as f64 / f64::from(1 << 24);
    length.mul_f64(0.5 + chance / 2.0)
}
