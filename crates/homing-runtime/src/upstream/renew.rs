//! Files of keys and certificates towards workers, looked at every few seconds: those who renew them write files and
//! tell nobody. A worker goes on living, and its connections with what they began with; requests and connections from
//! then on have the new ones. A file that can't be used changes nothing, and is said once.

use super::link::{Link, LinkError, Links, Made, Now, Wiring};
use super::tls;
use crate::pem::{self, FileError};
use crate::settings::{Scheme, Upstream, Worker, WorkerUrl};
use crate::shell::Shell;
use http::header::HeaderValue;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the files, as at those of `gateway.tls`.
const LOOK: Duration = Duration::from_secs(5);

/// What the files hold.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    key: Option<Vec<u8>>,
    /// Where it is spoken to by TLS.
    tls: Option<tls::Files>,
}

/// A worker's settings, as far as they name files or say how it is connected to.
pub(super) struct Watched {
    worker: String,
    url: WorkerUrl,
    how: Arc<Upstream>,
    /// What was last looked at, used or not.
    seen: Mutex<Held>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// How a file is read.
pub(super) type Read<'a> = &'a mut dyn FnMut(&Path) -> Result<Vec<u8>, FileError>;

impl Watched {
    pub(super) fn new(worker: &Worker) -> Self {
        let (id, url, how) = (worker.id.clone(), worker.url.clone(), worker.upstream.clone());
        Self { worker: id, url, how, seen: Mutex::default() }
    }

    fn is_secure(&self) -> bool {
        self.url.scheme() == Scheme::Https
    }

    /// Whether anything can change.
    pub(super) fn names_some(&self) -> bool {
        let Upstream { api_key_file, ca_file, cert_file, key_file, .. } = &*self.how;
        let certificates = [ca_file, cert_file, key_file].into_iter().any(Option::is_some);
        api_key_file.is_some() || certificates && self.is_secure()
    }

    fn error(&self) -> impl Fn((&'static str, FileError)) -> LinkError {
        |(key, cause)| LinkError { worker: self.worker.clone(), key, cause }
    }

    /// What the files hold now.
    pub(super) fn read(&self, read: Read<'_>) -> Result<Held, LinkError> {
        let tls = self.is_secure().then(|| tls::Files::read(&self.how, read)).transpose();
        let tls = tls.map_err(self.error())?;
        let key = self.how.api_key_file.as_deref().map(read).transpose();
        let key = key.map_err(|cause| ("api_key_file", cause)).map_err(self.error())?;
        Ok(Held { key, tls })
    }

    /// It is not tried, and not told of, again until it changes.
    pub(super) fn looked_at(&self, held: Held) {
        *self.seen.lock() = held;
    }

    /// What links are made of, out of what the files hold.
    pub(super) fn made_of(&self, held: &Held, wire: impl Wiring) -> Result<Now, LinkError> {
        let (how, url) = (&self.how, &self.url);
        let made = Made {
            connect: how.connect_timeout,
            pool_idle: how.pool_idle,
            unacknowledged: how.tcp_user_timeout,
            socket: url.socket().map(Path::to_owned),
            tls: held.tls.clone(),
        };
        let config = || {
            let config = held.tls.as_ref().map(|files| files.config(how));
            config.transpose().map_err(self.error())
        };
        let key = how.api_key_file.as_deref().zip(held.key.as_deref());
        let authorization = key.map(|(path, text)| authorization(path, text)).transpose();
        let authorization = authorization.map_err(|cause| ("api_key_file", cause));
        let authorization = authorization.map_err(self.error())?;
        Ok(Now::new(url, wire(made, &config)?, authorization))
    }
}

/// The key towards a worker, as it is sent.
fn authorization(path: &Path, text: &[u8]) -> Result<HeaderValue, FileError> {
    let text = text.trim_ascii();
    // Its words are never repeated.
    let unfit = || FileError::new(path, "holds no key: one line of visible characters");
    if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
        return Err(unfit());
    }
    let value = HeaderValue::from_bytes(&[b"Bearer ", text].concat());
    let mut value = value.map_err(|_| unfit())?;
    value.set_sensitive(true);
    Ok(value)
}

impl Link {
    /// Looks at its files. True if they hold something new, which is used from now on.
    fn renew(&self, read: Read<'_>, wire: impl Wiring) -> Result<bool, LinkError> {
        let Some(watched) = &self.files else { return Ok(false) };
        let held = watched.read(read)?;
        if *watched.seen.lock() == held {
            return Ok(false);
        }
        let now = watched.made_of(&held, wire);
        watched.looked_at(held);
        self.now.store(Arc::new(now?));
        Ok(true)
    }
}

impl Links {
    /// Looks at the files of all workers' settings; how many are reached by something new from now on. What can't be
    /// used is logged, once: what was used before goes on.
    pub fn renew(&self) -> usize {
        let mut files: HashMap<PathBuf, Result<Vec<u8>, FileError>> = HashMap::new();
        let mut renewed = 0;
        let mut said = self.said.lock();
        let links = self.all();
        for (link, watched) in links.iter().filter_map(|link| Some((link, link.files.as_ref()?))) {
            // Most workers have the same ones.
            let mut read = |path: &Path| match files.get(path) {
                Some(read) => read.clone(),
                None => files.entry(path.to_owned()).insert_entry(pem::read(path)).get().clone(),
            };
            let worker = &watched.worker;
            match link.renew(&mut read, |made, tls| self.wire(made, tls)) {
                Ok(new) => {
                    renewed += usize::from(new);
                    if new {
                        said.remove(worker);
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if said.get(worker) != Some(&text) {
                        tracing::error!(
                            error = text,
                            "a file towards a worker can't be used; what it said before stays"
                        );
                        said.insert(worker.clone(), text);
                    }
                }
            }
        }
        said.retain(|worker, _| {
            links.iter().any(|l| l.files.as_ref().is_some_and(|f| f.worker == *worker))
        });
        if renewed > 0 {
            tracing::info!(
                workers = renewed,
                "new keys or certificates towards workers are in use"
            );
        }
        renewed
    }
}

/// Looks at them for as long as it is polled.
pub async fn renew(shell: Arc<Shell>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let shell = shell.clone();
        // The disk may be slow, and probes wait on this thread. An error: the runtime ends.
        if tokio::task::spawn_blocking(move || shell.links().renew()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[path = "renew_tests.rs"]
mod tests;
