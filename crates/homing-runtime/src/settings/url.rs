//! The URL of a worker: where it is, and over what it is spoken to.
//!
//! One type for every kind, so that what is asked of a worker is asked alike however it is reached: a request's own
//! URI is always an origin and a base path, and for a socket in the file system the origin is `localhost`.

use http::Uri;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

/// Longest path of a socket in the file system: what the system's own address has room for.
pub(super) const SOCKET_PATH_MAX: usize = 107;

/// Over what a worker is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// `http://`: HTTP/1.1 over TCP.
    Http,
    /// `https://`: HTTP/2 or HTTP/1.1 over TLS, as the worker prefers.
    Https,
    /// `unix:`: HTTP/1.1 over a socket in the file system.
    Unix,
    /// `dns://`: every address of a name, each a worker of its own, spoken to as [`Scheme::Http`].
    Dns,
}

/// Where a worker is: a host with its port and a base path, or a socket in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerUrl {
    scheme: Scheme,
    /// `host:port`, or the socket's path.
    place: String,
    base_path: String,
}

impl WorkerUrl {
    /// Over what it is spoken to.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// `host:port`; the port is always there, an IPv6 address is in brackets. Of a socket in the file system `localhost`.
    #[must_use]
    pub fn authority(&self) -> &str {
        if self.scheme == Scheme::Unix { "localhost" } else { &self.place }
    }

    /// The socket in the file system, where it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        (self.scheme == Scheme::Unix).then(|| Path::new(&self.place))
    }

    /// What goes before each request's path: empty, or `/like/this` without a slash at its end.
    #[must_use]
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// How it is spoken to, and its host and port: `http://host:port/`.
    #[must_use]
    pub fn origin(&self) -> Uri {
        let secure = self.scheme == Scheme::Https;
        let scheme = if secure { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
        let origin = Uri::builder().scheme(scheme).authority(self.authority()).path_and_query("/");
        // It was one when it was read.
        origin.build().unwrap_or_default()
    }

    /// The name of its worker where it is given none.
    #[must_use]
    pub fn default_id(&self) -> String {
        match self.scheme {
            Scheme::Unix => self.to_string(),
            _ => self.place.clone(),
        }
    }

    /// One address of the name, for `dns://`; else as it is.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        let (scheme, base_path) = (Scheme::Http, self.base_path.clone());
        match self.scheme {
            Scheme::Dns => Self { scheme, place: address.to_string(), base_path },
            _ => self.clone(),
        }
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http://",
            Scheme::Https => "https://",
            Scheme::Unix => "unix:",
            Scheme::Dns => "dns://",
        };
        write!(f, "{scheme}{}{}", self.place, self.base_path)
    }
}

/// Why something is not a worker's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No scheme, or one that nobody knows.
    #[error("does not begin with http://, https://, unix:/ or dns://")]
    Scheme,
    /// A user or password inside.
    #[error("holds a user name")]
    User,
    /// A query or fragment.
    #[error("has a query or fragment")]
    Query,
    /// A name without a port, whose addresses nobody could connect to.
    #[error("names no port")]
    NoPort,
    /// A socket's path that is too long for the system, or not absolute.
    #[error("is not an absolute path of at most 107 bytes behind `unix:`")]
    Socket,
    /// Anything else.
    #[error("is not a URL")]
    Malformed,
}

impl FromStr for WorkerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path);
        }
        let (scheme, default_port) = match text.split_once("://").ok_or(UrlError::Scheme)?.0 {
            "http" => (Scheme::Http, Some(80)),
            "https" => (Scheme::Https, Some(443)),
            "dns" => (Scheme::Dns, None),
            _ => return Err(UrlError::Scheme),
        };
        // The parser below drops fragments without a word.
        if text.contains(['?', '#']) {
            return Err(UrlError::Query);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::User);
        }
        let host = authority.host();
        // `http://host:` and ports beyond 65,535 pass the parser, with no port.
        let port = match authority.as_str().strip_prefix(host).ok_or(UrlError::Malformed)? {
            "" => default_port.ok_or(UrlError::NoPort)?,
            port => port
                .strip_prefix(':')
                .and_then(|digits| digits.parse().ok())
                .filter(|port: &u16| *port != 0)
                .ok_or(UrlError::Malformed)?,
        };
        if host.is_empty() {
            return Err(UrlError::Malformed);
        }
        Ok(Self {
            scheme,
            place: format!("{}:{port}", host.to_ascii_lowercase()),
            base_path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// `unix:/path`, or with the empty host that some write: `unix:///path`.
fn unix(path: &str) -> Result<WorkerUrl, UrlError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let fits = path.starts_with('/')
        && path.len() > 1
        && path.len() <= SOCKET_PATH_MAX
        && !path.contains(char::is_control);
    if !fits {
        return Err(UrlError::Socket);
    }
    let (scheme, base_path) = (Scheme::Unix, String::new());
    Ok(WorkerUrl { scheme, place: path.to_owned(), base_path })
}
