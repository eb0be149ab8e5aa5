//! How each worker is reached: its address, the key towards it, its times and its TLS.
//!
//! Kept by name beside the core, which knows nothing of connections. Workers that are reached alike share a *wire*,
//! and with it each thread's pool; one whose socket or certificate is its own has a pool of its own. What comes from
//! files is looked at again while they serve (`renew`).

use super::renew::Watched;
use super::tls;
use crate::pem::{self, FileError};
use crate::settings::{Scheme, Settings, Worker, WorkerUrl};
use arc_swap::ArcSwap;
use homing_core::fleet::WorkerInfo;
use http::Uri;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::uri::{InvalidUri, PathAndQuery};
use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// Why a worker can't be reached as its settings say.
#[derive(Debug, thiserror::Error)]
#[error("worker `{worker}`: `{key}` {cause}")]
pub struct LinkError {
    /// Its id.
    pub worker: String,
    /// The key of `[[workers]]` or of `[upstream]`.
    pub key: &'static str,
    /// What is wrong with the file.
    pub cause: FileError,
}

/// What connections are made of; two that are equal may share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Made {
    pub(super) connect: Duration,
    pub(super) pool_idle: Duration,
    pub(super) unacknowledged: Duration,
    /// The socket in the file system, where it is one.
    pub(super) socket: Option<PathBuf>,
    /// Where it is spoken to by TLS.
    pub(super) tls: Option<tls::Files>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) made: Made,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// What is reached over it, by host and port.
    reaches: Mutex<HashMap<String, u64>>,
}

/// Makes the TLS of a wire, where it has some.
pub(super) type ByTls<'a> = &'a dyn Fn() -> Result<Option<Arc<ClientConfig>>, LinkError>;

/// Finds the wire that is made so, or makes it.
pub(super) trait Wiring: FnOnce(Made, ByTls<'_>) -> Result<Arc<Wire>, LinkError> {}

impl<F: FnOnce(Made, ByTls<'_>) -> Result<Arc<Wire>, LinkError>> Wiring for F {}

impl Wire {
    fn new(made: Made, tls: Option<Arc<ClientConfig>>) -> Arc<Self> {
        Arc::new(Self { made, tls, reaches: Mutex::default() })
    }

    /// The number of what is reached over it at this host and port; no other has it, ever.
    fn reach(&self, authority: &str) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let new = || NEXT.fetch_add(1, Ordering::Relaxed);
        *self.reaches.lock().entry(authority.to_owned()).or_insert_with(new)
    }
}

/// How one worker is reached.
#[derive(Debug)]
pub struct Link {
    url: WorkerUrl,
    /// As the core names it.
    written: String,
    /// From dispatch to the first byte of the answer's body.
    pub first_token_timeout: Duration,
    /// Between two bytes of an answer.
    pub idle_timeout: Duration,
    /// What of it comes from files, as they were when they were last good.
    pub(super) now: ArcSwap<Now>,
    /// Its settings, where it has some that name files.
    pub(super) files: Option<Watched>,
}

/// The part of a link that changes with the files that its worker's settings name.
#[derive(Debug)]
pub(super) struct Now {
    /// `Bearer KEY`; marked sensitive, so that nothing prints it.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) wire: Arc<Wire>,
    /// The number of what is reached: connections that have it are alike.
    pub(super) reach: u64,
    /// Scheme, host and port.
    pub(super) origin: Uri,
    /// Host and port, as a request's header has them.
    pub(super) host: Option<HeaderValue>,
}

impl Now {
    pub(super) fn new(
        url: &WorkerUrl,
        wire: Arc<Wire>,
        authorization: Option<HeaderValue>,
    ) -> Self {
        let origin = url.origin();
        // The usual port goes without saying.
        let usual = if url.scheme() == Scheme::Https { 443 } else { 80 };
        let host = match (origin.host(), origin.port_u16()) {
            (Some(host), Some(port)) if port == usual => HeaderValue::from_str(host).ok(),
            _ => HeaderValue::from_str(url.authority()).ok(),
        };
        Self { authorization, reach: wire.reach(url.authority()), wire, origin, host }
    }

    /// Puts our key in the place of the client's, where there is one.
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(ours) = &self.authorization {
            headers.remove(HeaderName::from_static("x-api-key"));
            headers.insert(AUTHORIZATION, ours.clone());
        }
    }
}

/// Without words of a configuration.
const CONNECT: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_secs(3);
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(300);

impl Link {
    /// To somebody whom no configuration describes.
    #[must_use]
    pub fn plain(url: WorkerUrl) -> Arc<Self> {
        let secure = url.scheme() == Scheme::Https;
        let made = Made {
            connect: CONNECT,
            pool_idle: KEPT,
            unacknowledged: UNACKNOWLEDGED,
            socket: url.socket().map(Path::to_owned),
            tls: secure.then(tls::Files::default),
        };
        let wire = match made.tls.is_some() || made.socket.is_some() {
            true => Wire::new(made, secure.then(tls::by_system)),
            // One pool for all of them.
            false => {
                static PLAIN: LazyLock<Mutex<Weak<Wire>>> = LazyLock::new(Mutex::default);
                let mut plain = PLAIN.lock();
                plain.upgrade().unwrap_or_else(|| {
                    let wire = Wire::new(made, None);
                    *plain = Arc::downgrade(&wire);
                    wire
                })
            }
        };
        Arc::new(Self {
            written: url.to_string(),
            first_token_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            now: ArcSwap::from_pointee(Now::new(&url, wire, None)),
            url,
            files: None,
        })
    }

    /// The same, showing this token.
    #[must_use]
    pub fn with_token(self: Arc<Self>, token: Option<&str>) -> Arc<Self> {
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let Some(mut value) = value else { return self };
        value.set_sensitive(true);
        let Self { url, written, first_token_timeout, idle_timeout, .. } = &*self;
        let wire = self.now.load().wire.clone();
        Arc::new(Self {
            url: url.clone(),
            written: written.clone(),
            first_token_timeout: *first_token_timeout,
            idle_timeout: *idle_timeout,
            now: ArcSwap::from_pointee(Now::new(url, wire, Some(value))),
            files: None,
        })
    }

    /// As a worker's settings say, by connections of its own.
    ///
    /// # Errors
    /// Where a file that they name can't be used.
    pub fn of(worker: &Worker) -> Result<Arc<Self>, LinkError> {
        Self::with(worker, |made, tls| Ok(Wire::new(made, tls()?)))
    }

    fn with(worker: &Worker, wire: impl Wiring) -> Result<Arc<Self>, LinkError> {
        let (url, how) = (&worker.url, &worker.upstream);
        let watched = Watched::new(worker);
        let held = watched.read(&mut pem::read)?;
        let now = ArcSwap::from_pointee(watched.made_of(&held, wire)?);
        watched.looked_at(held);
        Ok(Arc::new(Self {
            written: url.to_string(),
            url: url.clone(),
            first_token_timeout: how.first_token_timeout,
            idle_timeout: how.idle_timeout,
            now,
            files: Some(watched).filter(Watched::names_some),
        }))
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &WorkerUrl {
        &self.url
    }

    /// The URI of what is at `path` there, behind its base path.
    ///
    /// # Errors
    /// Where the two make no path.
    pub fn uri(&self, path: &str) -> Result<Uri, InvalidUri> {
        match self.url.base_path() {
            "" if path.is_empty() => Ok(Uri::from_static("/")),
            base => [base, path].concat().parse(),
        }
    }

    /// The same of a path that has been read.
    ///
    /// # Errors
    /// As [`Self::uri`].
    pub fn uri_of(&self, path: &PathAndQuery) -> Result<Uri, InvalidUri> {
        match self.url.base_path() {
            "" => Ok(Uri::from(path.clone())),
            _ => self.uri(path.as_str()),
        }
    }
}

/// Looks at every file that the workers' settings name, without keeping anything.
///
/// # Errors
/// For the first that can't be used.
pub fn look_at_files(settings: &Settings) -> Result<(), LinkError> {
    let links = Links::default();
    settings.workers.iter().try_for_each(|worker| links.join(worker))
}

/// All links, by the workers' names. See the module.
#[derive(Debug, Default)]
pub struct Links {
    by_name: RwLock<HashMap<String, Arc<Link>>>,
    wires: Mutex<HashMap<Made, Weak<Wire>>>,
    /// What is wrong with the files of some, as it was said.
    pub(super) said: Mutex<BTreeMap<String, String>>,
}

impl Links {
    /// A worker comes, or comes anew. The files that its settings name are read.
    ///
    /// # Errors
    /// Where one can't be used; what was known of it before stands.
    pub fn join(&self, worker: &Worker) -> Result<(), LinkError> {
        let link = Link::with(worker, |made, tls| self.wire(made, tls))?;
        self.by_name.write().insert(worker.id.clone(), link);
        Ok(())
    }

    /// The wire of those who are reached so.
    pub(super) fn wire(&self, made: Made, tls: ByTls<'_>) -> Result<Arc<Wire>, LinkError> {
        let mut wires = self.wires.lock();
        if let Some(wire) = wires.get(&made).and_then(Weak::upgrade) {
            return Ok(wire);
        }
        wires.retain(|_, wire| wire.strong_count() > 0);
        let wire = Wire::new(made.clone(), tls()?);
        wires.insert(made, Arc::downgrade(&wire));
        Ok(wire)
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        self.by_name.read().values().cloned().collect()
    }

    /// A worker has departed.
    pub fn leave(&self, name: &str) {
        self.by_name.write().remove(name);
    }

    /// How a worker is reached; `None` if that life of it is over.
    #[must_use]
    pub fn of(&self, worker: &WorkerInfo) -> Option<Arc<Link>> {
        let link = self.named(&worker.spec.name)?;
        (link.written == *worker.spec.url).then_some(link)
    }

    /// The same by its name alone.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<Link>> {
        self.by_name.read().get(name).cloned()
    }
}
