//! TLS in front: the certificate that clients see, and whose certificates they must show.
//!
//! The files are looked at every few seconds, since those who renew certificates write files and tell nobody.
//! Connections keep what they began with; a file that can't be used changes nothing, and is said once.

use homing_runtime::pem::{self, FileError};
use homing_runtime::settings::GatewayTls;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);

/// Why there is no TLS as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("`{key}` {cause}")]
pub struct TlsError {
    /// The setting.
    pub key: &'static str,
    /// What is wrong with its file.
    pub cause: FileError,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// See the module.
pub struct ServerTls {
    files: GatewayTls,
    now: Mutex<Arc<ServerConfig>>,
    /// What was last looked at, used or not.
    seen: Mutex<Option<Texts>>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// From the files.
    ///
    /// # Errors
    /// Where one can't be used.
    pub fn load(files: &GatewayTls) -> Result<Self, TlsError> {
        let texts = read(files)?;
        let now = Mutex::new(config(files, &texts)?);
        Ok(Self { files: files.clone(), now, seen: Mutex::new(Some(texts)) })
    }

    /// What new connections begin with.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.now.lock().clone()
    }

    /// Looks at the files. True if they hold something new, which new connections begin with from now on.
    ///
    /// # Errors
    /// Where they hold something new that can't be used; what was used before goes on.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let texts = read(&self.files)?;
        if self.seen.lock().as_ref() == Some(&texts) {
            return Ok(false);
        }
        let made = config(&self.files, &texts);
        // It is not tried, and not told of, again until it changes.
        *self.seen.lock() = Some(texts);
        *self.now.lock() = made?;
        Ok(true)
    }

    /// Looks at them for somebody who wants to hear what is wrong with them, though it was said before.
    ///
    /// # Errors
    /// Where they can't be used; what was used before goes on.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        *self.seen.lock() = None;
        self.refresh().map(|_| ())
    }

    /// Looks at the files for as long as it is polled.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut said = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let this = self.clone();
            // The disk may be slow, and probes wait on this thread. An error: the runtime ends.
            let Ok(refreshed) = tokio::task::spawn_blocking(move || this.refresh()).await else {
                return;
            };
            match refreshed {
                Ok(true) => {
                    said = None;
                    tracing::info!("new certificates are in use for new connections");
                }
                Ok(false) => {}
                Err(error) => {
                    let text = error.to_string();
                    if said.as_ref() != Some(&text) {
                        tracing::error!(
                            error = text,
                            "a new certificate can't be used; the one before it stays"
                        );
                        said = Some(text);
                    }
                }
            }
        }
    }
}

fn read(files: &GatewayTls) -> Result<Texts, TlsError> {
    let read = |key, path: &Path| pem::read(path).map_err(|cause| TlsError { key, cause });
    let client_ca = files.client_ca.as_deref();
    Ok(Texts {
        cert: read("gateway.tls.cert", &files.cert)?,
        key: read("gateway.tls.key", &files.key)?,
        client_ca: client_ca.map(|path| read("gateway.tls.client_ca", path)).transpose()?,
    })
}

fn config(files: &GatewayTls, texts: &Texts) -> Result<Arc<ServerConfig>, TlsError> {
    let of = |key| move |cause| TlsError { key, cause };
    let certs = pem::certificates(&files.cert, &texts.cert).map_err(of("gateway.tls.cert"))?;
    let secret = pem::key(&files.key, &texts.key).map_err(of("gateway.tls.key"))?;
    let unfit = |e: rustls::Error| TlsError {
        key: "gateway.tls.cert",
        cause: FileError::new(&files.cert, e.to_string()),
    };
    let builder = ServerConfig::builder_with_provider(pem::provider())
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match (&files.client_ca, &texts.client_ca) {
        (Some(path), Some(text)) => {
            const KEY: &str = "gateway.tls.client_ca";
            let roots = Arc::new(pem::roots(path, text).map_err(of(KEY))?);
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, pem::provider()).build();
            let verifier = verifier
                .map_err(|e| TlsError { key: KEY, cause: FileError::new(path, e.to_string()) })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(certs, secret).map_err(unfit)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
