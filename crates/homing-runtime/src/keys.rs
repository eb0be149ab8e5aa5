//! Files of secrets, a line each: API keys of clients, tokens of operators. A secret is kept as its SHA-256 alone,
//! and what is shown to us is hashed before it is compared, in constant time.
//!
//! ```text
//! # a comment
//! team-a:sk-0123456789abcdef
//! team-b:sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! ```

use crate::settings::is_tenant_name;
use http::header::{AUTHORIZATION, HeaderMap};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

/// Most lines of a file.
const LINES_MAX: usize = 100_000;
/// Largest file, in bytes.
const BYTES_MAX: u64 = 16 << 20;
/// A secret that is shorter can be guessed.
const LEAST: usize = 8;
/// What a hashed secret begins with.
const HASHED: &str = "sha256:";

/// Why a file of secrets can't be used. None of its lines is repeated.
#[derive(Debug, Error)]
pub enum KeysError {
    /// It can't be read.
    #[error("{} can't be read: {cause}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A line is none of ours.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// Of which file.
        path: PathBuf,
        /// Which, from 1 on.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It is too long, or has no secret.
    #[error("{} {what}", path.display())]
    Whole {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A secret's SHA-256.
#[derive(Clone, Copy, Eq)]
struct Digest([u8; 32]);

impl Digest {
    fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

// The map's hash is keyed at random: how long a look-up takes says nothing of the digests in it.
impl Hash for Digest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Whom secrets belong to.
#[derive(Default)]
pub struct Keys(HashMap<Digest, Arc<str>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

/// The secret that a request shows as `Authorization: Bearer SECRET`.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &str = "bearer ";
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, secret) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then(|| secret.trim_ascii())
}

impl Keys {
    /// Reads a file.
    ///
    /// # Errors
    /// [`KeysError`]: one bad line spoils all of it.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let unreadable = |cause| KeysError::Unreadable { path: path.to_owned(), cause };
        let about = std::fs::metadata(path).map_err(unreadable)?;
        if !about.is_file() {
            // A pipe or a device may never end.
            return Err(KeysError::Whole { path: path.to_owned(), what: "is no regular file" });
        }
        if about.len() > BYTES_MAX {
            return Err(KeysError::Whole { path: path.to_owned(), what: "is larger than 16 MiB" });
        }
        Self::parse(path, &std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// The same of its text.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, KeysError> {
        let mut keys = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let bad = |what| Err(KeysError::Line { path: path.to_owned(), line: at + 1, what });
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if at >= LINES_MAX {
                return bad("there are more than 100,000 lines");
            }
            let Some((name, secret)) = line.split_once(':') else {
                return bad("is not like `name:key` or `name:sha256:HEX`");
            };
            if !is_tenant_name(name) {
                return bad("the name must be 1 to 64 letters, digits, or any of - _ .");
            }
            let digest = match secret.strip_prefix(HASHED) {
                Some(hex) => match Digest::from_hex(hex) {
                    Some(digest) => digest,
                    None => return bad("sha256: must be followed by 64 hexadecimal digits"),
                },
                None if secret.len() < LEAST => return bad("the key is shorter than 8 characters"),
                None if !secret.bytes().all(|b| b.is_ascii_graphic()) => {
                    return bad("the key must be printable ASCII without blanks");
                }
                None => Digest::of(secret.as_bytes()),
            };
            if keys.insert(digest, Arc::from(name)).is_some() {
                return bad("this key is there already");
            }
        }
        if keys.is_empty() {
            return Err(KeysError::Whole { path: path.to_owned(), what: "has no key" });
        }
        Ok(Self(keys))
    }

    /// Whose secret it is.
    #[must_use]
    pub fn owner(&self, secret: &[u8]) -> Option<&Arc<str>> {
        self.0.get(&Digest::of(secret))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose they are.
    pub fn owners(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Keys, String> {
        Keys::parse(Path::new("/keys"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_in_clear_and_hashed_belong_to_their_names() {
        let hex = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let text =
            format!("# keys\n\n  a:sk-12345678\r\nb:sha256:{hex}\na:sk-second-key:with-colon\n");
        let keys = parse(&text).unwrap();
        let owner = |key: &[u8]| keys.owner(key).map(|name| &**name);
        assert_eq!(owner(b"sk-12345678"), Some("a"));
        assert_eq!(owner(b"sk-second-key:with-colon"), Some("a"));
        assert_eq!(owner(b"test"), Some("b"), "the SHA-256 of `test`");
        for wrong in [&b""[..], b"sk-1234567", b"sk-123456789", hex.as_bytes(), b"a:sk-12345678"] {
            assert_eq!(owner(wrong), None);
        }
        assert_eq!(keys.len(), 3);
        assert!(!format!("{keys:?}").contains("sk-"));
    }

    #[test]
    fn a_bad_line_is_named_and_not_repeated() {
        for (text, line, what) in [
            ("ok:12345678\nnonsense-secret", "line 2", "name:key"),
            (":12345678", "line 1", "name must"),
            ("a b:12345678", "line 1", "name must"),
            ("a:short", "line 1", "shorter"),
            ("a:with blank", "line 1", "blanks"),
            ("a:sha256:1234", "line 1", "64 hex"),
            ("a:12345678\nb:12345678", "line 2", "already"),
            ("# nothing\n", "/keys", "no key"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(line) && error.contains(what), "{error}");
            assert!(!error.contains("nonsense-secret") && !error.contains("12345678"), "{error}");
        }
        let missing = Keys::read(Path::new("/nowhere/at-all")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/at-all"), "{missing}");
    }
}
