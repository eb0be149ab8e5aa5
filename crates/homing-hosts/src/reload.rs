//! Settings that change while the router runs (SIGHUP, `POST /admin/reload`): read anew, looked at as a whole, and
//! applied as a whole or not at all. The files that they name (API keys, tokens) are read again when they change by
//! themselves, too.

use crate::admin::Tokens;
use crate::gateway::{Gateway, ServerTls, TlsError};
use arc_swap::ArcSwap;
use homing_runtime::fleet::discovery::Change;
use homing_runtime::fleet::{Fleet, dns};
use homing_runtime::keys::KeysError;
use homing_runtime::settings::{NotLive, Settings};
use homing_runtime::shell::{Shell, core_settings};
use homing_runtime::stamp::Stamp;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;

/// How the settings are read: the file, the environment and the flags of the start, as they are now. The error is
/// the text for whoever asked.
pub type Reread = Box<dyn Fn() -> Result<Settings, String> + Send + Sync>;

/// Files are looked at as often.
const LOOK: Duration = Duration::from_secs(2);

/// Why settings were not applied; nothing has changed then.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// The router was started by something that has no settings to read.
    #[error("this router was started without a way to read its settings anew")]
    NoSource,
    /// They can't be read, or are wrong.
    #[error("{0}")]
    Settings(String),
    /// They change what can't be changed.
    #[error(transparent)]
    NotLive(#[from] NotLive),
    /// A file of secrets that they name is wrong.
    #[error("{key}: {cause}")]
    Keys {
        /// The setting.
        key: &'static str,
        /// What is wrong.
        cause: KeysError,
    },
    /// The files of `[gateway.tls]` can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The last change of workers is still on its way.
    #[error("the last reload is still being applied; try again")]
    Busy,
}

/// What reloads.
pub struct Reloader {
    reread: Option<Reread>,
    current: Mutex<Arc<Settings>>,
    shell: Arc<Shell>,
    fleet: Arc<Fleet>,
    gateway: Arc<Gateway>,
    tokens: Arc<ArcSwap<Tokens>>,
    tls: Option<Arc<ServerTls>>,
    /// Those of `[[workers]]`.
    workers: mpsc::Sender<Change>,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloader")
    }
}

/// The parts that take new settings.
pub(crate) struct Parts {
    pub(crate) shell: Arc<Shell>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) tokens: Arc<ArcSwap<Tokens>>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) workers: mpsc::Sender<Change>,
}

impl Reloader {
    pub(crate) fn new(reread: Option<Reread>, settings: Arc<Settings>, parts: Parts) -> Self {
        let Parts { shell, fleet, gateway, tokens, tls, workers } = parts;
        let current = Mutex::new(settings);
        Self { reread, current, shell, fleet, gateway, tokens, tls, workers }
    }

    /// The settings as of now.
    #[must_use]
    pub fn current(&self) -> Arc<Settings> {
        self.current.lock().clone()
    }

    /// Reads the settings anew and applies them. Gives the keys that have changed.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(&self) -> Result<Vec<String>, ReloadError> {
        let reread = self.reread.as_ref().ok_or(ReloadError::NoSource)?;
        // One at a time: what is applied is the difference to what was.
        let mut current = self.current.lock();
        let settings = Arc::new(reread().map_err(ReloadError::Settings)?);
        let changed = current.live_changes(&settings)?;
        let (names, workers) = dns::by_kind(&settings.workers);
        let (old_names, old_workers) = dns::by_kind(&current.workers);
        if names != old_names {
            return Err(NotLive { keys: vec!["workers with dns://".to_owned()] }.into());
        }
        // Whatever can fail comes before whatever changes.
        let room = self.workers.try_reserve().map_err(|_| ReloadError::Busy)?;
        let tokens = load_tokens(&settings)?;
        if let Some(tls) = &self.tls {
            tls.reload()?;
        }
        self.gateway.reload(settings.clone()).map_err(of_keys)?;
        self.tokens.store(Arc::new(tokens));
        self.shell.core().reconfigure(&core_settings(&settings));
        self.shell.pump();
        self.fleet.reload(settings.clone());
        self.shell.links().renew();
        if old_workers != workers {
            room.send(Change::Reset(workers));
        }
        *current = settings;
        tracing::info!(changed = changed.join(", "), "the configuration was read anew");
        Ok(changed)
    }

    /// Looks after the files that the settings name. Runs until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut seen = self.stamps();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.stamps();
            if now == seen {
                continue;
            }
            seen = now;
            if let Err(error) = self.reread_files() {
                tracing::error!(%error, "a file of secrets has changed and can't be used: what it said before stands");
            }
        }
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        let settings = self.current();
        let (gateway, admin) = (&settings.gateway, &settings.admin);
        [&gateway.api_keys_file, &admin.token_file].map(|path| Stamp::of(path.as_deref()?))
    }

    fn reread_files(&self) -> Result<(), ReloadError> {
        let settings = self.current.lock();
        let tokens = load_tokens(&settings)?;
        self.gateway.reload(settings.clone()).map_err(of_keys)?;
        self.tokens.store(Arc::new(tokens));
        tracing::info!("files of secrets were read anew");
        Ok(())
    }
}

fn load_tokens(settings: &Settings) -> Result<Tokens, ReloadError> {
    Tokens::load(settings).map_err(|cause| ReloadError::Keys { key: "admin.token_file", cause })
}

fn of_keys(cause: KeysError) -> ReloadError {
    ReloadError::Keys { key: "gateway.api_keys_file", cause }
}
