//! Certificates and keys out of PEM files, for both sides of the router; and what may not be said of them.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

/// Largest file of this kind, in bytes. The CAs of a whole system are a quarter of a megabyte.
const FILE_MAX: u64 = 4 << 20;

/// What is wrong with a file of certificates or keys. Its contents are never repeated.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// Why, and what to do where that isn't plain.
    pub why: String,
}

impl FileError {
    /// About this file.
    pub fn new(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_owned(), why: why.into() }
    }
}

/// All of a small file.
///
/// # Errors
/// Where it can't be read, or is larger than anything of this kind.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |cause: std::io::Error| FileError::new(path, format!("can't be read: {cause}"));
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > FILE_MAX {
        return Err(FileError::new(path, format!("has more than {FILE_MAX} bytes")));
    }
    std::fs::read(path).map_err(failed)
}

/// The certificates in it, at least one.
///
/// # Errors
/// Where there is none.
pub fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|cause| FileError::new(path, format!("is not PEM: {cause}")))?;
    if all.is_empty() {
        return Err(FileError::new(path, "holds no `-----BEGIN CERTIFICATE-----`"));
    }
    Ok(all)
}

/// The first key in it.
///
/// # Errors
/// Where there is none.
pub fn key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    // The parser's own words may hold bytes of the file.
    let why = "holds no private key in PEM (`-----BEGIN PRIVATE KEY-----`), or an encrypted one";
    PrivateKeyDer::from_pem_slice(text).map_err(|_| FileError::new(path, why))
}

/// Whom to believe.
///
/// # Errors
/// Where it holds none, or one that is no certificate of a CA.
pub fn roots(path: &Path, text: &[u8]) -> Result<RootCertStore, FileError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        let added = store.add(certificate);
        added.map_err(|cause| FileError::new(path, format!("can't be believed: {cause}")))?;
    }
    Ok(store)
}

/// Whom the system believes; nobody where it doesn't say.
pub(crate) fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (_, unusable) = store.add_parsable_certificates(found.certs);
    if unusable > 0 || !found.errors.is_empty() {
        tracing::debug!(unusable, errors = ?found.errors, "some of the system's CAs are left out");
    }
    if store.is_empty() {
        tracing::warn!(
            "this system names no CAs, so no `https` worker is believed: install its package of them \
             (ca-certificates), or give `upstream.ca_file`"
        );
    }
    store
}

/// The one provider of cryptography.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static RING: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    RING.clone()
}

/// TLS towards a server: whom to believe (`None`: whom the system believes), and what to show, a certificate and
/// its key. Protocols are the caller's to add.
///
/// # Errors
/// Where a file can't be used.
pub fn client(ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<ClientConfig, FileError> {
    let roots = match ca {
        Some(path) => roots(path, &read(path)?)?,
        None => system_roots(),
    };
    let at = own.map_or(Path::new(""), |(path, _)| path);
    let failed = |e: rustls::Error| FileError::new(at, e.to_string());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .with_root_certificates(roots);
    let Some((chain, secret)) = own else { return Ok(builder.with_no_client_auth()) };
    let (chain, secret) = (certificates(chain, &read(chain)?)?, key(secret, &read(secret)?)?);
    builder.with_client_auth_cert(chain, secret).map_err(failed)
}
