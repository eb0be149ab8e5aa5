//! What connections are made of, on both sides: where the gateway listens, with which certificate, and how workers are
//! reached. Apart from `types` because it is read for one worker as well as for all.

use super::convert::{FromValue, conflict};
use super::problem::{Problem, Problems};
use super::raw::Group;
use super::value::Value;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port; 0 takes a free one.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `[gateway.tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayTls {
    /// The certificate chain, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Whose client certificates are asked for, PEM; `None`: nobody's.
    pub client_ca: Option<PathBuf>,
}

/// `[upstream]`, or what holds for one worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// A file with the key that workers get in place of the clients' own. Default none: the clients' pass.
    pub api_key_file: Option<PathBuf>,
    /// Whom to believe about the workers' certificates. Default none: whom the system believes.
    pub ca_file: Option<PathBuf>,
    /// The certificate shown to workers. Default none.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// For a connection to be made, TLS included. Default 2 s.
    pub connect_timeout: Duration,
    /// From dispatch to the first byte of the answer's body. Default 10 min.
    pub first_token_timeout: Duration,
    /// Between two bytes of an answer. Default 5 min.
    pub idle_timeout: Duration,
    /// How long an unused connection is kept for reuse; zero keeps none. Default 3 s, below the
    /// 5 s after which uvicorn closes it from the other end.
    pub pool_idle: Duration,
    /// How long sent bytes may stay unacknowledged. Default 20 s.
    pub tcp_user_timeout: Duration,
}

/// `[gateway.tls]`, if there is any.
pub(super) fn tls(top: &Group, problems: &mut Problems) -> Result<Option<GatewayTls>, Problem> {
    let cert: Option<PathBuf> = top.read("gateway.tls.cert")?;
    let key: Option<PathBuf> = top.read("gateway.tls.key")?;
    let client_ca: Option<PathBuf> = top.read("gateway.tls.client_ca")?;
    match (cert, key, client_ca) {
        (Some(cert), Some(key), client_ca) => Ok(Some(GatewayTls { cert, key, client_ca })),
        (None, None, None) => Ok(None),
        (None, None, Some(_)) => {
            let mend = "give `gateway.tls.cert` and `gateway.tls.key`, or remove it";
            let what =
                "`gateway.tls.client_ca` asks clients for certificates, without TLS".to_owned();
            problems.push(conflict(top, "gateway.tls.client_ca", what, mend));
            Ok(None)
        }
        (cert, _, _) => {
            let (given, missing) = if cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            problems.push(half(top, &format!("gateway.tls.{given}"), missing));
            Ok(None)
        }
    }
}

/// A certificate without its key, or the other way round. `given` is a key of the table.
pub(super) fn half(group: &Group, given: &str, missing: &str) -> Problem {
    let shown = group.shown(given);
    let what = format!("`{shown}` is there without its {missing}");
    conflict(group, given, what, &format!("give the {missing}, too"))
}

/// `[upstream]`.
pub(super) fn upstream(top: &Group, problems: &mut Problems) -> Result<Upstream, Problem> {
    let upstream = Upstream {
        api_key_file: top.read("upstream.api_key_file")?,
        ca_file: top.read("upstream.ca_file")?,
        cert_file: top.read("upstream.cert_file")?,
        key_file: top.read("upstream.key_file")?,
        connect_timeout: top.read("upstream.connect_timeout")?,
        first_token_timeout: top.read("upstream.first_token_timeout")?,
        idle_timeout: top.read("upstream.idle_timeout")?,
        pool_idle: top.read("upstream.pool_idle")?,
        tcp_user_timeout: top.read("upstream.tcp_user_timeout")?,
    };
    pair(top, "upstream", &upstream, problems);
    Ok(upstream)
}

/// What holds for one worker: its own, and where it says nothing, what holds for all.
pub(super) fn of_worker(
    group: &Group,
    common: &Upstream,
    problems: &mut Problems,
) -> Result<Upstream, Problem> {
    let file = |path, common: &Option<PathBuf>| -> Result<Option<PathBuf>, Problem> {
        Ok(group.read::<Option<PathBuf>>(path)?.or_else(|| common.clone()))
    };
    let span = |path, common: Duration| -> Result<Duration, Problem> {
        Ok(group.read::<Own>(path)?.0.unwrap_or(common))
    };
    let upstream = Upstream {
        api_key_file: file("workers.api_key_file", &common.api_key_file)?,
        ca_file: file("workers.ca_file", &common.ca_file)?,
        cert_file: file("workers.cert_file", &common.cert_file)?,
        key_file: file("workers.key_file", &common.key_file)?,
        connect_timeout: span("workers.connect_timeout", common.connect_timeout)?,
        first_token_timeout: span("workers.first_token_timeout", common.first_token_timeout)?,
        idle_timeout: span("workers.idle_timeout", common.idle_timeout)?,
        pool_idle: span("workers.pool_idle", common.pool_idle)?,
        tcp_user_timeout: span("workers.tcp_user_timeout", common.tcp_user_timeout)?,
    };
    // Said once where it is wrong for all.
    if common.cert_file.is_some() == common.key_file.is_some() {
        pair(group, "workers", &upstream, problems);
    }
    Ok(upstream)
}

fn pair(group: &Group, section: &str, upstream: &Upstream, problems: &mut Problems) {
    let (given, missing) = match (&upstream.cert_file, &upstream.key_file) {
        (Some(_), None) => ("cert_file", "key_file"),
        (None, Some(_)) => ("key_file", "cert_file"),
        _ => return,
    };
    problems.push(half(group, &format!("{section}.{given}"), missing));
}

/// A worker's own time, where it has one.
struct Own(Option<Duration>);

impl FromValue for Own {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Empty => Some(Self(None)),
            Value::Duration(span) => Some(Self(Some(span))),
            _ => None,
        }
    }
}
