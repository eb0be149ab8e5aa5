//! `[replication]`: what routers share, and over what.

use super::convert::conflict;
use super::discovery::{is_group, reach};
use super::problem::{Problem, Problems};
use super::raw::Group;
use super::types::{Affinity, words};
use crate::replication::port::Reach;

words! {
    /// What routers share their sessions over.
    ReplicationBackend {
        /// Nothing is shared.
        None = "none",
        /// NATS: messages; authoritative bindings in JetStream's key-value buckets.
        Nats = "nats",
        /// etcd: bindings, each a key.
        Etcd = "etcd",
    }
}

words! {
    /// Whether a binding is made in the shared store first (R23, R24).
    ReplicationMode {
        /// Each router binds by itself, and the others hear of it.
        Advisory = "advisory",
        /// A session's first turn is made known in the shared store before its dispatch.
        Authoritative = "authoritative",
    }
}

words! {
    /// What a first turn does while the shared store can't be reached (R24).
    OnStoreFailure {
        /// It goes on with what this router knows.
        Local = "local",
        /// It is a 503.
        Fail = "fail",
    }
}

/// `[replication]`, where a backend is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// What routers share over.
    pub backend: ReplicationBackend,
    /// Whether a first turn is made known before its dispatch. Default advisory.
    pub mode: ReplicationMode,
    /// Which routers share: those of one group. Default `default`.
    pub group: String,
    /// How the backend is reached.
    pub reach: Reach,
    /// Whether requests go on while the store can't be reached. Default local: they do.
    pub on_store_failure: OnStoreFailure,
}

const REACH: [&str; 6] = [
    "replication.urls",
    "replication.user",
    "replication.password_file",
    "replication.ca_file",
    "replication.cert_file",
    "replication.key_file",
];

/// Reads it; `None`: nothing is shared.
pub(super) fn replication(
    top: &Group,
    affinity: &Affinity,
    problems: &mut Problems,
) -> Result<Option<Replication>, Problem> {
    const BACKEND: &str = "replication.backend";
    const URLS: &str = "replication.urls";
    const GROUP: &str = "replication.group";
    let backend: ReplicationBackend = top.read(BACKEND)?;
    let urls: Vec<String> = top.read(URLS)?;
    let group: String = top.read(GROUP)?;
    let mode: ReplicationMode = top.read("replication.mode")?;
    let on_store_failure = top.read("replication.on_store_failure")?;
    let mut wrong = |path: &str, what: String, mend: &str| {
        if !top.is_unreadable(path) {
            problems.push(conflict(top, path, what, mend));
        }
    };
    let (schemes, example): (&[&str], _) = match backend {
        ReplicationBackend::None => {
            if !urls.is_empty() {
                let what =
                    "`replication.urls` is set, and `replication.backend` is \"none\"".to_owned();
                wrong(URLS, what, "write replication.backend = \"nats\" or \"etcd\", or remove it");
            }
            return Ok(None);
        }
        ReplicationBackend::Nats => (&["nats", "tls"], "nats://10.0.0.5:4222"),
        ReplicationBackend::Etcd => (&["http", "https"], "http://10.0.0.5:2379"),
    };
    let word = backend.as_str();
    if urls.is_empty() {
        let what =
            format!("`replication.backend` is \"{word}\", and `replication.urls` names nobody");
        wrong(
            BACKEND,
            what,
            &format!("write where it is, e.g. replication.urls = [\"{example}\"]"),
        );
    }
    for url in &urls {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        if scheme.is_some_and(|scheme| !schemes.contains(&scheme)) || url.contains('@') {
            let what = format!(
                "`replication.urls` has \"{}\", which is no place of {word}",
                super::problem::echo(url.rsplit('@').next().unwrap_or_default())
            );
            let mend =
                format!("write e.g. \"{example}\"; user and password have keys of their own");
            wrong(URLS, what, &mend);
        }
    }
    if !is_group(&group) {
        let what = format!("`replication.group` is \"{}\"", super::problem::echo(&group));
        wrong(GROUP, what, "write 1 to 63 of a-z, 0-9 and -");
    }
    if affinity.key_file.is_none() && affinity.ttl.is_some() {
        let what =
            format!("`replication.backend` is \"{word}\", and `affinity.key_file` is not set");
        let mend = "sessions are known by keyed digests: give all routers of the group one file of 32 random bytes \
                    (head -c 32 /dev/urandom > key)";
        wrong(BACKEND, what, mend);
    }
    let reach = reach(top, &REACH, problems)?;
    Ok(Some(Replication { backend, mode, group, reach, on_store_failure }))
}
