//! TLS towards workers: whom we believe, and what we show.

use super::renew::Read;
use crate::pem::{self, FileError};
use crate::settings::Upstream;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// The contents of the files that a connection is made of: where they are equal, the connections are alike.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Files {
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Files(..)")
    }
}

type Failed = (&'static str, FileError);

impl Files {
    pub(super) fn read(how: &Upstream, read: Read<'_>) -> Result<Self, Failed> {
        let mut read = |key, path: &Option<PathBuf>| {
            path.as_deref().map(&mut *read).transpose().map_err(|cause| (key, cause))
        };
        Ok(Self {
            ca: read("ca_file", &how.ca_file)?,
            cert: read("cert_file", &how.cert_file)?,
            key: read("key_file", &how.key_file)?,
        })
    }

    /// `how`: where they are from, for what is said of them.
    pub(super) fn config(&self, how: &Upstream) -> Result<Arc<ClientConfig>, Failed> {
        let at = |path: &Option<PathBuf>| path.clone().unwrap_or_default();
        let (ca, cert, key) = (at(&how.ca_file), at(&how.cert_file), at(&how.key_file));
        let roots = match &self.ca {
            Some(text) => pem::roots(&ca, text).map_err(|cause| ("ca_file", cause))?,
            None => system_roots(),
        };
        let failed = |e: rustls::Error| ("cert_file", FileError::new(&cert, e.to_string()));
        let builder = ClientConfig::builder_with_provider(pem::provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (Some(chain), Some(secret)) => {
                let chain = pem::certificates(&cert, chain).map_err(|e| ("cert_file", e))?;
                let secret = pem::key(&key, secret).map_err(|e| ("key_file", e))?;
                builder.with_client_auth_cert(chain, secret).map_err(failed)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Read once: hundreds of certificates take milliseconds.
fn system_roots() -> RootCertStore {
    static ROOTS: LazyLock<RootCertStore> = LazyLock::new(pem::system_roots);
    ROOTS.clone()
}

/// Whom the system believes, and nothing to show.
pub(super) fn by_system() -> Arc<ClientConfig> {
    static CONFIG: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
        let mut config = ClientConfig::builder_with_provider(pem::provider())
            .with_safe_default_protocol_versions()
            // The provider is ours, and speaks both versions.
            .expect("ring has the suites of TLS 1.2 and 1.3")
            .with_root_certificates(system_roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    });
    CONFIG.clone()
}
