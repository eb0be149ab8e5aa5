//! The HTTP gateway: a plain hyper proxy in front of the core. The request body is forwarded as it came,
//! the answer is relayed as it comes; only copies are parsed.
//!
//! * `listen`: threads and sockets; `socket`: what both are made of;
//! * `connection`: one connection's life, over TLS (`tls`) or not, by HTTP/1.1 (`heard`) or HTTP/2 (`watched`);
//! * `service`: which path is what;
//! * `proxy`: the way of a request: read, admit, dispatch, commit, relay; `dispatch`: until the answer begins;
//! * `access`: whom it lets in, and with which rights; `room`: how much of bodies is held;
//! * `ask`: what the decision needs of a request, from `steering`, `session`, `infer` and `prompt`;
//! * `tokens`: a prompt's tokens from the engines themselves;
//! * `preview`: the decision alone; `decisions`: those of real requests, in JSON;
//! * `forward`: headers, both ways;
//! * `onward`: a stream that goes on at another worker;
//! * `gone`: what becomes of an answer whose worker's port refuses;
//! * `begin`: the beginning of an answer;
//! * `relay`: the answer on its way back, and what ends with it;
//! * `pace`: how fast a client takes its answer;
//! * `reply`: our own answers; the one place where a refusal becomes a status;
//! * `heads`: heads alone, for the fuzzer;
//! * `record`: one line and one count a request; `spans`: and its part in a trace.

mod access;
mod ask;
mod begin;
mod connection;
mod decisions;
mod dispatch;
mod forward;
mod gone;
mod heads;
mod heard;
mod infer;
mod listen;
mod onward;
mod pace;
mod preview;
mod prompt;
mod proxy;
mod record;
mod relay;
mod reply;
mod room;
mod service;
mod session;
mod socket;
mod spans;
mod steering;
mod tls;
mod tokens;
mod watched;

#[doc(hidden)]
pub use heads::{Head, Heads, Refused};
pub use listen::Listening;
pub use tls::{ServerTls, TlsError};

use access::Access;
use arc_swap::ArcSwap;
use homing_core::ask::{Cause, Refusal};
use homing_prompt::ModelPrompt;
use homing_runtime::compute::ComputePool;
use homing_runtime::keys::KeysError;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::recorder::Recorder;
use homing_runtime::settings::{Model, RejectAs, Settings, Tokenizer};
use homing_runtime::shell::Shell;
use homing_runtime::tenants::Tenants;
use homing_runtime::traces::Traces;
use homing_wire::request::BodyPaths;
use http::{HeaderMap, HeaderValue};
use room::Room;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the tokens of a model's prompts come from.
#[derive(Clone, Debug)]
enum Source {
    /// From its tokenizer here.
    Here(Arc<ModelPrompt>),
    /// From its engines.
    Engines,
}

/// What all connections share.
#[derive(Debug)]
pub struct Gateway {
    shell: Arc<Shell>,
    access: ArcSwap<Access>,
    room: Room,
    tenants: Tenants,
    life: Lifecycle,
    /// By served name; shared with the compute pool's jobs.
    prompts: BTreeMap<String, (Source, Arc<Model>)>,
    engines: tokens::EngineTokens,
    pool: ComputePool,
    finder: session::Finder,
    body_paths: BodyPaths,
    /// `x-homing-instance`: random, for telling replicas apart.
    instance: HeaderValue,
    next_request: AtomicU64,
    /// Who keeps a trace of the requests (`gateway.record`).
    recorder: Option<Arc<Recorder>>,
    /// Where spans go, if anywhere.
    traces: Option<Arc<Traces>>,
}

/// The parts of the process that a gateway uses.
#[derive(Debug)]
pub struct Beside {
    /// Tokenizes.
    pub pool: ComputePool,
    /// Says when it is over.
    pub life: Lifecycle,
    /// Keeps a trace of the requests, where one is kept.
    pub recorder: Option<Arc<Recorder>>,
    /// Takes spans, where they go anywhere.
    pub traces: Option<Arc<Traces>>,
}

impl Gateway {
    /// From validated settings.
    ///
    /// # Errors
    /// [`KeysError`] of `gateway.api_keys_file`.
    pub fn new(
        shell: Arc<Shell>,
        settings: Arc<Settings>,
        prompts: &BTreeMap<String, Arc<ModelPrompt>>,
        beside: Beside,
        entropy: &[u8; 32],
    ) -> Result<Self, KeysError> {
        let access = Access::load(settings.clone())?;
        let Beside { pool, life, recorder, traces } = beside;
        // Names the process; derived, so that it gives nothing of the secret away.
        let secret = shell.secret();
        let instance = secret.digest(secret.session("", "instance", entropy)).to_string();
        let prompts = settings.models.iter().filter_map(|model| {
            let source = match model.tokenizer.as_ref()? {
                Tokenizer::Engine => Source::Engines,
                Tokenizer::Folder(_) => Source::Here(prompts.get(&model.name)?.clone()),
            };
            Some((model.name.clone(), (source, Arc::new(model.clone()))))
        });
        let affinity = &settings.affinity;
        Ok(Self {
            prompts: prompts.collect(),
            engines: tokens::EngineTokens::default(),
            finder: session::Finder::of(affinity),
            // The settings have checked them.
            body_paths: BodyPaths::parse(&affinity.body_fields).unwrap_or_default(),
            instance: HeaderValue::from_str(&instance)
                .unwrap_or_else(|_| HeaderValue::from_static("homing")),
            next_request: AtomicU64::new(0),
            recorder,
            traces,
            room: Room::new(settings.gateway.body_memory),
            access: ArcSwap::from_pointee(access),
            tenants: Tenants::default(),
            shell,
            pool,
            life,
        })
    }

    /// The settings and what they refer to, as of now.
    fn access(&self) -> Arc<Access> {
        self.access.load_full()
    }

    /// The settings as of now.
    fn settings(&self) -> Arc<Settings> {
        self.access.load().settings.clone()
    }

    /// Other settings hold from now on; requests that run go on by those that they came under.
    ///
    /// # Errors
    /// [`KeysError`] of `gateway.api_keys_file`; nothing has changed then.
    pub fn reload(&self, settings: Arc<Settings>) -> Result<(), KeysError> {
        self.access.store(Arc::new(Access::load(settings)?));
        Ok(())
    }

    /// A request id of our own: unique in this process, and unlike any other process's.
    fn request_id(&self) -> String {
        let n = self.next_request.fetch_add(1, Ordering::Relaxed);
        format!("{}-{n:x}", self.instance.to_str().unwrap_or_default())
    }

    /// What a refusal of the core's is to a client. `constrained`: its request allows only some workers.
    fn refusal(&self, refusal: Refusal, constrained: bool) -> reply::Error {
        let as_argument =
            self.access.load().settings.affinity.reject_as == RejectAs::InvalidArgument;
        let error = reply::Error::refusal(refusal, as_argument);
        match refusal.cause {
            Cause::NoWorker if constrained => error.saying(
                "no worker that the request allows (x-homing-allowed-workers, \
                 x-homing-require-labels) can serve it; GET /admin/workers shows names and labels",
            ),
            _ => error,
        }
    }

    /// An error of a request that could not be read as far as its session: it says `rejected` where a
    /// header names one (R26).
    fn early(&self, headers: &HeaderMap, error: reply::Error) -> reply::Error {
        let named =
            self.access.load().settings.affinity.ttl.is_some() && self.finder.names_one(headers);
        if named { error.with_session(true) } else { error }
    }

    /// Whether the stop signal has come.
    fn draining(&self) -> bool {
        self.life.draining().is_cancelled()
    }
}
