//! The session secret: where it comes from, and how a file of another one is recognised.
//!
//! Sessions are named by keyed bits only (R01). If the key changed with every start, no binding of
//! a snapshot could ever be asked for again; so a router without a `key_file` keeps the secret that it drew
//! in the snapshot's header. A key file's secret is not copied there, only its fingerprint.
//!
//! Nothing here prints a secret: not `Debug`, not an error.

use super::Keying;
use super::reader::header_and_mode;
use homing_core::ids::KeySecret;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes that are read of a key file: 64 digits, a line end, and one more to tell that it is too long.
const READ_MAX: u64 = 67;

/// The bits of a mode by which others than the owner read or write.
const OTHERS: u32 = 0o066;

/// 32 secret bytes.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From bytes that nobody else knows.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for [`KeySecret::new`].
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What tells this secret from others and doesn't give it away: outputs, for fixed inputs, of the
    /// keyed hashes that the secret is for, the first 16 bytes under its first half, the others under its second.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let keys = KeySecret::new(&self.0);
        // No model has such a name, so no client can name these two sessions.
        let [a, b] = [b"a", b"b"].map(|id| keys.session("", "\0snapshot", id));
        let mut out = [0; 32];
        out[..16].copy_from_slice(&a.0.to_le_bytes());
        out[16..24].copy_from_slice(&keys.digest(a).0.to_le_bytes());
        out[24..].copy_from_slice(&keys.digest(b).0.to_le_bytes());
        Fingerprint(out)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Tells whether two secrets are the same. Comparing takes the same time wherever they differ.
#[derive(Clone, Copy)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(super) const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

impl Eq for Fingerprint {}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// Where a secret came from. `exposed`: others than the file's owner may read or write it, which is
/// worth a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `affinity.key_file`.
    KeyFile {
        /// Others may read or write the key file.
        exposed: bool,
    },
    /// The header of an earlier snapshot.
    Snapshot {
        /// Others may read or write the snapshot; the next one is written with mode 0600.
        exposed: bool,
    },
    /// Nowhere: it was drawn anew.
    Fresh,
}

/// Why a key file gives no secret.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It can't be read.
    #[error("can't read the key file {path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has another length.
    #[error("the key file {path} must hold 32 raw bytes, or 64 hex digits and at most a line end; it holds {found}; \
             `openssl rand -hex 32` makes one", path = path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What it holds instead; nothing of its contents.
        found: String,
    },
}

/// The secret that keys sessions: that of `key_file` if there is one, else the one in an intact
/// header of `snapshot`, else `fresh` (32 bytes of the system's randomness).
///
/// A snapshot whose records are damaged still gives its secret if its header is whole: digests in
/// logs then stay the same. One that can't be read gives none, and never stops the router.
///
/// # Errors
/// Only about `key_file`: who names one wants no other secret.
pub fn secret(
    key_file: Option<&Path>,
    snapshot: Option<&Path>,
    fresh: [u8; 32],
) -> Result<(Secret, Origin), KeyError> {
    if let Some(path) = key_file {
        let (secret, exposed) = read_key_file(path)?;
        return Ok((secret, Origin::KeyFile { exposed }));
    }
    if let Some((header, mode)) = snapshot.and_then(|path| header_and_mode(path).ok())
        && let Keying::Own(secret) = header.keying
    {
        return Ok((secret, Origin::Snapshot { exposed: mode & OTHERS != 0 }));
    }
    Ok((Secret::new(fresh), Origin::Fresh))
}

fn read_key_file(path: &Path) -> Result<(Secret, bool), KeyError> {
    let io = |source| KeyError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let mode = file.metadata().map_err(io)?.permissions().mode();
    let mut bytes = Vec::new();
    file.take(READ_MAX).read_to_end(&mut bytes).map_err(io)?;
    let form = |found| KeyError::Form { path: path.to_owned(), found };
    Ok((Secret::new(parse(&bytes).map_err(form)?), mode & OTHERS != 0))
}

/// The key in a key file's bytes, or what they are instead.
fn parse(bytes: &[u8]) -> Result<[u8; 32], String> {
    if let Ok(raw) = bytes.try_into() {
        return Ok(raw);
    }
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line = line.strip_suffix(b"\r").filter(|_| line.len() < bytes.len()).unwrap_or(line);
    if line.len() != 64 {
        return Err(match bytes.len() as u64 {
            READ_MAX.. => "more than 66 bytes".to_owned(),
            less => format!("{less} bytes"),
        });
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(line.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        let (high, low) = digit(0).zip(digit(1)).ok_or("64 bytes that are not all hex digits")?;
        *byte = (high << 4 | low) as u8;
    }
    Ok(key)
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
