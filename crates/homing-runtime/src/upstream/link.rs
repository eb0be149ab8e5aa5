//! How each worker is reached: its address, the key towards it, its times and its TLS.
//!
//! Kept by name beside the core, which knows nothing of connections. Workers that are reached alike share a *wire*,
//! and with it each thread's pool; one whose socket or certificate is its own has a pool of its own.

use super::tls;
use crate::pem::{self, FileError};
use crate::settings::{Scheme, Settings, Upstream, Worker, WorkerUrl};
use homing_core::fleet::WorkerInfo;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use rustls::ClientConfig;
use std::collections::HashMap;
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
    tls: Option<tls::Files>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    /// No other has it, ever.
    pub(super) number: u64,
    pub(super) made: Made,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Wire {
    fn new(made: Made, tls: Option<Arc<ClientConfig>>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { number: NEXT.fetch_add(1, Ordering::Relaxed), made, tls })
    }
}

/// How one worker is reached.
#[derive(Debug)]
pub struct Link {
    url: WorkerUrl,
    /// As the core names it.
    written: String,
    base: String,
    /// `Bearer KEY`; marked sensitive, so that nothing prints it.
    authorization: Option<HeaderValue>,
    /// From dispatch to the first byte of the answer's body.
    pub first_token_timeout: Duration,
    /// Between two bytes of an answer.
    pub idle_timeout: Duration,
    pub(super) wire: Arc<Wire>,
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
            base: url.request_base(),
            url,
            authorization: None,
            first_token_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            wire,
        })
    }

    /// The same, showing this token.
    #[must_use]
    pub fn with_token(self: Arc<Self>, token: Option<&str>) -> Arc<Self> {
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let Some(mut value) = value else { return self };
        value.set_sensitive(true);
        let Self { url, written, base, first_token_timeout, idle_timeout, wire, .. } = &*self;
        Arc::new(Self {
            url: url.clone(),
            written: written.clone(),
            base: base.clone(),
            authorization: Some(value),
            first_token_timeout: *first_token_timeout,
            idle_timeout: *idle_timeout,
            wire: wire.clone(),
        })
    }

    /// As a worker's settings say, by connections of its own.
    ///
    /// # Errors
    /// Where a file that they name can't be used.
    pub fn of(worker: &Worker) -> Result<Arc<Self>, LinkError> {
        Self::with(worker, |made, tls| Ok(Wire::new(made, tls()?)))
    }

    fn with(
        worker: &Worker,
        wire: impl FnOnce(
            Made,
            &dyn Fn() -> Result<Option<Arc<ClientConfig>>, LinkError>,
        ) -> Result<Arc<Wire>, LinkError>,
    ) -> Result<Arc<Self>, LinkError> {
        let (url, how) = (&worker.url, &worker.upstream);
        let name = |(key, cause)| LinkError { worker: worker.id.clone(), key, cause };
        let files = match url.scheme() {
            Scheme::Https => Some(tls::Files::read(how).map_err(name)?),
            Scheme::Http | Scheme::Unix | Scheme::Dns => None,
        };
        let made = Made {
            connect: how.connect_timeout,
            pool_idle: how.pool_idle,
            unacknowledged: how.tcp_user_timeout,
            socket: url.socket().map(Path::to_owned),
            tls: files.clone(),
        };
        let config = || files.as_ref().map(|files| files.config(how).map_err(name)).transpose();
        Ok(Arc::new(Self {
            written: url.to_string(),
            base: url.request_base(),
            url: url.clone(),
            authorization: authorization(how).map_err(name)?,
            first_token_timeout: how.first_token_timeout,
            idle_timeout: how.idle_timeout,
            wire: wire(made, &config)?,
        }))
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &WorkerUrl {
        &self.url
    }

    /// What a request's path is appended to.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Puts our key in the place of the client's, where there is one.
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(ours) = &self.authorization {
            headers.remove(HeaderName::from_static("x-api-key"));
            headers.insert(AUTHORIZATION, ours.clone());
        }
    }
}

/// The key towards a worker, as it is sent.
fn authorization(how: &Upstream) -> Result<Option<HeaderValue>, (&'static str, FileError)> {
    const KEY: &str = "api_key_file";
    let Some(path) = &how.api_key_file else { return Ok(None) };
    let text = pem::read(path).map_err(|cause| (KEY, cause))?;
    let text = text.trim_ascii();
    // Its words are never repeated.
    let unfit = || (KEY, FileError::new(path, "holds no key: one line of visible characters"));
    if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
        return Err(unfit());
    }
    let value = HeaderValue::from_bytes(&[b"Bearer ", text].concat());
    let mut value = value.map_err(|_| unfit())?;
    value.set_sensitive(true);
    Ok(Some(value))
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
}

impl Links {
    /// A worker comes, or comes anew. The files that its settings name are read.
    ///
    /// # Errors
    /// Where one can't be used; what was known of it before stands.
    pub fn join(&self, worker: &Worker) -> Result<(), LinkError> {
        let link = Link::with(worker, |made, tls| {
            let mut wires = self.wires.lock();
            if let Some(wire) = wires.get(&made).and_then(Weak::upgrade) {
                return Ok(wire);
            }
            wires.retain(|_, wire| wire.strong_count() > 0);
            let wire = Wire::new(made.clone(), tls()?);
            wires.insert(made, Arc::downgrade(&wire));
            Ok(wire)
        })?;
        self.by_name.write().insert(worker.id.clone(), link);
        Ok(())
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
