//! The router as a whole: every part of it started in order, and stopped in order.

use crate::extras::Extras;
use crate::gateway::{Beside, Gateway, Listening, ServerTls, TlsError};
use crate::reload::{Parts, Reloader};
use crate::{admin, questions};
use arc_swap::ArcSwap;
use homing_core::time::Time;
use homing_prompt::{ChatInput, LoadError, ModelPrompt};
use homing_runtime::compute::ComputePool;
use homing_runtime::fleet::discovery::Driven;
use homing_runtime::fleet::registered::Registered;
use homing_runtime::fleet::{Fleet, discovery, dns, file};
use homing_runtime::ingest::{FeedBook, Ingest};
use homing_runtime::keep::{Keeper, Keyed, Restored, TakenError};
use homing_runtime::keys::KeysError;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::metrics::Metrics;
use homing_runtime::recorder::Recorder;
use homing_runtime::recorder::file::RecordError;
use homing_runtime::replication::port::PortError;
use homing_runtime::replication::{Replication, Rules};
use homing_runtime::settings::{IndexSource, Listen, OnStoreFailure, Settings, Tokenizer};
use homing_runtime::shell::Shell;
use homing_runtime::snapshot::{KeyError, WriteError};
use homing_runtime::traces::{TraceSettings, Traces};
use homing_runtime::upstream::{self, LinkError, look_at_files};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use thiserror::Error;

/// Tasks without streams end within this, or something is wrong with them.
const TASKS_GRACE: Duration = Duration::from_secs(5);

/// Why the router doesn't start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address can't be listened on.
    #[error("can't listen on {key} = {address}: {cause}")]
    Listen {
        /// The setting.
        key: &'static str,
        /// Its value.
        address: Listen,
        /// What the system says.
        cause: io::Error,
    },
    /// TLS in front can't be had as it is configured.
    #[error(transparent)]
    Tls(TlsError),
    /// A tokenizer can't be loaded.
    #[error("the tokenizer of model `{model}` in {} can't be loaded: {cause}", folder.display())]
    Tokenizer {
        /// `models.name`.
        model: String,
        /// `models.tokenizer`.
        folder: PathBuf,
        /// What is wrong.
        cause: LoadError,
    },
    /// A chat template doesn't end.
    #[error(
        "the chat template of model `{model}` does not end within {TEMPLATE_TIME:?} on a plain chat: \
         it loops, or is hostile"
    )]
    Template {
        /// `models.name`.
        model: String,
    },
    /// A worker can't be reached as it is configured.
    #[error(transparent)]
    Upstream(LinkError),
    /// `affinity.key_file` can't be used.
    #[error("affinity.key_file: {0}")]
    Key(KeyError),
    /// `affinity.snapshot` is another router's.
    #[error("affinity.snapshot: {0}")]
    Taken(TakenError),
    /// `affinity.snapshot` can't be written.
    #[error("affinity.snapshot: {0}")]
    Snapshot(WriteError),
    /// `gateway.record` can't be written.
    #[error("gateway.record: {0}")]
    Record(RecordError),
    /// `gateway.api_keys_file` can't be used.
    #[error("gateway.api_keys_file: {0}")]
    ApiKeys(KeysError),
    /// `admin.token_file` can't be used.
    #[error("admin.token_file: {0}")]
    Tokens(KeysError),
    /// What routers share over can't be used.
    #[error("replication: {0}")]
    Replication(PortError),
    /// The system gives no randomness or no threads.
    #[error("the system refuses {what}: {cause}")]
    System {
        /// What.
        what: &'static str,
        /// Its words.
        cause: String,
    },
}

/// A running router.
#[derive(Debug)]
pub struct Server {
    gateway: Listening,
    admin: SocketAddr,
    shell: Arc<Shell>,
    life: Lifecycle,
    keeper: Option<Arc<Keeper>>,
    recorder: Option<Arc<Recorder>>,
    reloader: Arc<Reloader>,
    /// Kept: requests reach it as long as it is.
    _replication: Option<Arc<Replication>>,
}

impl Server {
    /// Starts everything. Call it on a tokio runtime, which then carries probes and the admin server;
    /// requests have threads of their own.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, Extras::default()).await
    }

    /// The same, with what only a program of its own has.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub async fn start_with(settings: Settings, extras: Extras) -> Result<Self, StartError> {
        let life = Lifecycle::default();
        let started = Self::start_parts(settings, extras, life.clone()).await;
        if started.is_err() {
            // The parts before the one that failed.
            life.shut_down(Duration::ZERO).await;
            life.finish(TASKS_GRACE).await;
        }
        started
    }

    async fn start_parts(
        settings: Settings,
        Extras { reread, traces, listener, replicate, discoveries, take_over }: Extras,
        life: Lifecycle,
    ) -> Result<Self, StartError> {
        let settings = Arc::new(settings);
        let system = |what| move |cause: String| StartError::System { what, cause };
        let mut entropy = [0u8; 32];
        getrandom::fill(&mut entropy).map_err(|e| system("randomness")(e.to_string()))?;
        let tokens = admin::Tokens::load(&settings).map_err(StartError::Tokens)?;
        let tokens = Arc::new(ArcSwap::from_pointee(tokens));
        look_at_files(&settings).map_err(StartError::Upstream)?;
        let prompts = load_prompts(&settings)?;
        let keyed = Keyed::find(&settings.affinity, entropy).map_err(StartError::Key)?;
        let shell = Shell::keyed(&settings, keyed.secret(), &entropy);
        let keeper = match &settings.affinity.snapshot {
            Some(path) => {
                let keeper = Keeper::new(shell.clone(), path.clone(), keyed, take_over);
                Some(keep(keeper.map_err(StartError::Taken)?).await?)
            }
            None => None,
        };
        let replication = match (&settings.replication, replicate) {
            (Some(replication), Some(replicate)) => {
                let ports =
                    replicate(shell.core().writer()).await.map_err(StartError::Replication)?;
                let strict = replication.on_store_failure == OnStoreFailure::Fail;
                let rules = Rules { strict, ttl: settings.affinity.ttl.unwrap_or_default() };
                Some(Replication::start(&shell, ports, rules, &life))
            }
            _ => None,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = ComputePool::start(cores).map_err(|e| system("threads")(e.to_string()))?;
        try_templates(&prompts, &pool, shell.now()).await?;
        let recorder = record(&settings, &prompts, &shell)?;
        let ingest = match settings.index.source {
            IndexSource::Off | IndexSource::Approximate => None,
            IndexSource::Auto | IndexSource::Events => {
                Some(Ingest::start(shell.clone()).map_err(|e| system("threads")(e.to_string()))?)
            }
        };
        let book = ingest.as_ref().map_or_else(|| Arc::new(FeedBook::default()), Ingest::book);
        Metrics::watch(&shell, book);

        let listen = settings.admin.listen;
        let failed = |key, address: &Listen| {
            let address = address.clone();
            move |cause| StartError::Listen { key, address, cause }
        };
        let admin_at = Listen::Tcp(listen);
        let admin_listener = tokio::net::TcpListener::bind(listen)
            .await
            .map_err(failed("admin.listen", &admin_at))?;
        let admin = admin_listener.local_addr().map_err(failed("admin.listen", &admin_at))?;
        let tls = settings.gateway.tls.as_ref().map(ServerTls::load).transpose();
        let tls = tls.map_err(StartError::Tls)?.map(Arc::new);
        let questions = questions::of(&settings, &prompts);
        let (recorded, alive) = (recorder.clone(), life.clone());
        let traces = traces.map(|settings| trace(&settings, &life)).transpose()?;
        let beside = Beside { pool, life: alive, recorder: recorded, traces };
        let gateway = Gateway::new(shell.clone(), settings.clone(), &prompts, beside, &entropy);
        let gateway = Arc::new(gateway.map_err(StartError::ApiKeys)?);
        let (theirs, certificates, of_all) = (gateway.clone(), tls.clone(), life.clone());
        let at = settings.gateway.listen.clone();
        let listen = move || {
            Listening::start(theirs, certificates, listener, take_over, &of_all, cores)
                .map_err(failed("gateway.listen", &at))
        };
        // Where another one answers until this one can, that comes last.
        let listening = if take_over { Err(listen) } else { Ok(listen()?) };

        if let Some((keeper, restored)) = &keeper {
            if restored.bindings > 0 {
                life.spawn(shell.clone().warm_up(settings.health.timeout * 2));
            }
            life.spawn_until_finished(keeper.clone().keep());
        }
        let fleet = Fleet::new(shell.clone(), settings.clone(), ingest, questions, life.clone());
        let (registered, registrations) = Registered::new();
        life.spawn(fleet.clone().follow(registrations));
        life.spawn_until_finished(registered.clone().expire());
        let (names, workers) = dns::by_kind(&settings.workers);
        let (workers, changes) = discovery::changing_list(workers);
        life.spawn(fleet.clone().follow(changes));
        if !names.is_empty() {
            let (changes, resolve) = dns::follow(names);
            life.spawn_until_finished(resolve);
            life.spawn(fleet.clone().follow(changes));
        }
        life.spawn_until_finished(upstream::renew(shell.clone()));
        let parts = Parts {
            shell: shell.clone(),
            fleet: fleet.clone(),
            gateway: gateway.clone(),
            tokens: tokens.clone(),
            tls,
            workers,
        };
        let reloader = Arc::new(Reloader::new(reread, settings.clone(), parts));
        life.spawn_until_finished(reloader.clone().watch());
        if let Some(path) = settings.workers_file.clone() {
            let (changes, look) = file::follow(path);
            life.spawn_until_finished(look);
            life.spawn(fleet.clone().follow(changes));
        }
        let refused: Vec<_> = discoveries.iter().map(|one| one.refused.clone()).collect();
        // Not held: the fleet has the shell, which has the metrics.
        let watched = Arc::downgrade(&fleet);
        let claimed = watched.clone();
        let refused = move || {
            let theirs = refused.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
            theirs + claimed.upgrade().map_or(0, |fleet| fleet.refused())
        };
        let frozen = move || {
            watched.upgrade().map_or(0, |fleet| fleet.frozen().len().try_into().unwrap_or(u64::MAX))
        };
        Metrics::watch_discovery(&shell, refused, frozen);
        for Driven { changes, drive, .. } in discoveries {
            life.spawn_until_finished(drive);
            life.spawn(fleet.clone().follow(changes));
        }
        life.spawn_until_finished(shell.clone().keep_time());
        // Not tracked: it outlives the drain, which it reports, and ends with the runtime.
        let admin_server = admin::serve(
            admin_listener,
            admin::Admin {
                shell: shell.clone(),
                fleet,
                gateway,
                life: life.clone(),
                tokens,
                reloader: reloader.clone(),
                registered,
            },
        );
        let listening = match listening {
            Ok(listening) => listening,
            Err(listen) => {
                shell.until_ready().await;
                listen()?
            }
        };
        // It says that it is ready once it is.
        tokio::spawn(admin_server);
        let keeper = keeper.map(|(keeper, _)| keeper);
        Ok(Self {
            gateway: listening,
            admin,
            shell,
            life,
            keeper,
            recorder,
            reloader,
            _replication: replication,
        })
    }

    /// Where clients connect, over TCP.
    #[must_use]
    pub fn gateway_address(&self) -> Option<SocketAddr> {
        match self.gateway.at() {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix(_) => None,
        }
    }

    /// Where clients connect, as they write it: `http://host:port`, or `unix:/path`.
    #[must_use]
    pub fn gateway_url(&self) -> String {
        match (self.gateway.at(), self.gateway.tls()) {
            (Listen::Tcp(address), None) => format!("http://{address}"),
            (Listen::Tcp(address), Some(_)) => format!("https://{address}"),
            (at @ Listen::Unix(_), _) => at.to_string(),
        }
    }

    /// Looks at the files of `[gateway.tls]` now; it is done every few seconds besides. True if new connections begin
    /// with something new.
    ///
    /// # Errors
    /// Where they can't be used; what was used before goes on.
    pub fn refresh_tls(&self) -> Result<bool, TlsError> {
        self.gateway.tls().map_or(Ok(false), |tls| tls.refresh())
    }

    /// Where operators connect.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// The shell, for whoever runs the router in its own process (the demo, tests).
    #[must_use]
    pub fn shell(&self) -> &Arc<Shell> {
        &self.shell
    }

    /// Who keeps its sessions in a file, if somebody does.
    #[must_use]
    pub fn keeper(&self) -> Option<Arc<Keeper>> {
        self.keeper.clone()
    }

    /// Who reads its settings anew.
    #[must_use]
    pub fn reloader(&self) -> &Arc<Reloader> {
        &self.reloader
    }

    /// Unready, then nothing new, then waits for running streams, for which time and probes go on. False
    /// if some were cut off.
    pub async fn shut_down(self) -> bool {
        self.life.shut_down(self.reloader.current().gateway.shutdown_delay).await;
        let streams = self.gateway.ended().await;
        let tasks = self.life.finish(TASKS_GRACE).await;
        if let Some(recorder) = self.recorder {
            let closed = tokio::task::spawn_blocking(move || recorder.close()).await;
            debug_assert!(closed.is_ok(), "closing has no reason to panic");
        }
        if let Some(keeper) = self.keeper {
            let path = keeper.path().to_owned();
            let write = move || keeper.write().map_err(|e| e.to_string());
            let written = tokio::task::spawn_blocking(write).await;
            if let Err(error) = written.map_err(|e| e.to_string()).flatten() {
                tracing::error!(path = %path.display(), error, "sessions could not be kept");
            }
        }
        streams && tasks
    }
}

/// Begins to send spans.
fn trace(settings: &TraceSettings, life: &Lifecycle) -> Result<Arc<Traces>, StartError> {
    let mut seed = [0u8; 16];
    getrandom::fill(&mut seed)
        .map_err(|e| StartError::System { what: "randomness", cause: e.to_string() })?;
    let (traces, exporter) = Traces::new(settings, seed);
    let (over, endpoint) = (life.finished().clone(), settings.endpoint.to_string());
    tracing::info!(endpoint, share = settings.share, "spans go out");
    life.spawn(async move {
        if let Err(error) = exporter.run(over).await {
            tracing::error!(endpoint, %error, "spans can't be sent there");
        }
    });
    Ok(Arc::new(traces))
}

/// The trace of the requests, where one is kept.
fn record(
    settings: &Settings,
    prompts: &BTreeMap<String, Arc<ModelPrompt>>,
    shell: &Arc<Shell>,
) -> Result<Option<Arc<Recorder>>, StartError> {
    let Some(path) = &settings.gateway.record else { return Ok(None) };
    let exact = !prompts.is_empty()
        && matches!(settings.index.source, IndexSource::Auto | IndexSource::Events);
    let recorder = Recorder::start(path, exact, shell.now()).map_err(StartError::Record)?;
    Metrics::watch_record(shell, recorder.clone());
    tracing::info!(
        path = %path.display(),
        "a trace of the requests is kept: hashes, lengths and times"
    );
    Ok(Some(recorder))
}

/// Brings the sessions of before back, and writes them at once: so that the secret of a first start is
/// kept, and a place that can't be written is known now and not when it is needed.
async fn keep(keeper: Arc<Keeper>) -> Result<(Arc<Keeper>, Restored), StartError> {
    let job = move || {
        let restored = keeper.restore();
        keeper.write().map_err(StartError::Snapshot)?;
        Ok((keeper, restored))
    };
    let system =
        |e: tokio::task::JoinError| StartError::System { what: "a thread", cause: e.to_string() };
    tokio::task::spawn_blocking(job).await.map_err(system)?
}

/// The tokenizers of the configuration, by served name. One folder is loaded once.
///
/// # Errors
/// [`StartError::Tokenizer`], for the first that can't be loaded.
pub fn load_prompts(settings: &Settings) -> Result<BTreeMap<String, Arc<ModelPrompt>>, StartError> {
    let mut by_folder: BTreeMap<PathBuf, Arc<ModelPrompt>> = BTreeMap::new();
    let mut by_model = BTreeMap::new();
    for model in &settings.models {
        let Some(folder) = model.tokenizer.as_ref().and_then(Tokenizer::folder) else { continue };
        let prompt = match by_folder.get(folder) {
            Some(prompt) => prompt.clone(),
            None => {
                let loaded = ModelPrompt::load(folder).map_err(|cause| StartError::Tokenizer {
                    model: model.name.clone(),
                    folder: folder.clone(),
                    cause,
                })?;
                let prompt = Arc::new(loaded);
                by_folder.insert(folder.clone(), prompt.clone());
                prompt
            }
        };
        by_model.insert(model.name.clone(), prompt);
    }
    Ok(by_model)
}

/// A template may take so long for a plain chat; real ones take less than a millisecond.
const TEMPLATE_TIME: Duration = Duration::from_secs(5);

/// Tries each template on a plain chat. One that fails is said, since chats would be routed without exact
/// tokens silently; one that doesn't end is refused, since it would hold the threads that render it.
async fn try_templates(
    prompts: &BTreeMap<String, Arc<ModelPrompt>>,
    pool: &ComputePool,
    now: Time,
) -> Result<(), StartError> {
    for (model, prompt) in prompts {
        let tried = prompt.clone();
        let job = move || {
            let hello = serde_json::json!([{"role": "user", "content": "hello"}]);
            let mut input = ChatInput::new(&hello);
            input.now = Some(now);
            tried.encode_chat(&input).err().map(|e| e.to_string())
        };
        match pool.run(TEMPLATE_TIME, job).await {
            Ok(None) => {}
            Ok(Some(error)) => tracing::warn!(
                model,
                error,
                "chats for this model are routed without exact tokens: its template fails on a plain one"
            ),
            Err(_) => return Err(StartError::Template { model: model.clone() }),
        }
    }
    Ok(())
}
