//! What is asked for: which objects of which namespace, and from which API server.

use super::access;
use super::follow::Follower;
use homing_runtime::fleet::discovery::Changes;
use homing_runtime::settings::{Upstream, WorkerUrl};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::mpsc;

/// Changes that wait to be taken up.
const CHANGES: usize = 64;
/// Longest name of an object, or of a selector.
const NAME_MAX: usize = 253;
const SELECTOR_MAX: usize = 1024;

/// Why it can't be begun.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("kubernetes: {0}")]
pub struct SettingError(pub(super) String);

/// Which workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// The endpoints of a Service, from its EndpointSlices.
    Service(String),
    /// Pods by a label selector, `app=vllm,tier!=test`.
    Selector(String),
    /// The pods of an InferencePool, at its port.
    InferencePool(String),
}

/// Where in a pod the engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// This port.
    Number(u16),
    /// The port of this name in the Service.
    Name(String),
}

/// How the API server is reached. Files are read anew whenever it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// `https://host:port`; empty: the one of the cluster in whose pod we are.
    pub urls: Vec<String>,
    /// Whom to believe about its certificate.
    pub ca_file: Option<PathBuf>,
    /// Our certificate,
    pub cert_file: Option<PathBuf>,
    /// and its key.
    pub key_file: Option<PathBuf>,
    /// What we show as who we are.
    pub token_file: Option<PathBuf>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// How it is reached.
    pub access: Access,
    /// The namespace; `None`: that of our own pod.
    pub namespace: Option<String>,
    /// Which workers.
    pub find: Find,
    /// Where they listen.
    pub port: Port,
    /// How they are reached, as `[upstream]` says.
    pub upstream: Arc<Upstream>,
}

/// What has been made of it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) servers: Vec<WorkerUrl>,
    pub(super) access: Access,
    pub(super) namespace: String,
    pub(super) find: Find,
    pub(super) port: Port,
    pub(super) upstream: Arc<Upstream>,
}

/// The workers as they change, and the task that asks for them: drop either to end it.
///
/// # Errors
/// [`SettingError`]: something is not set, and no pod's environment says it; or it can't be meant so.
pub fn discovery(
    wanted: Discovery,
) -> Result<(Changes, impl Future<Output = ()> + Send), SettingError> {
    let Discovery { access, namespace, find, port, upstream } = wanted;
    check(&find, &port)?;
    let (servers, access, namespace) = access::complete(access, namespace)?;
    name("discovery.namespace", &namespace)?;
    let (changes, stream) = mpsc::channel(CHANGES);
    let plan = Plan { servers, access, namespace, find, port, upstream };
    Ok((stream, Follower::new(plan, changes).run()))
}

fn check(find: &Find, port: &Port) -> Result<(), SettingError> {
    match find {
        Find::Service(service) => name("discovery.service", service)?,
        Find::InferencePool(pool) => name("discovery.inference_pool", pool)?,
        Find::Selector(selector) => {
            // An empty one would be every pod of the namespace.
            let fits = |b: u8| b.is_ascii_graphic() || b == b' ';
            if selector.trim().is_empty()
                || selector.len() > SELECTOR_MAX
                || !selector.bytes().all(fits)
            {
                return Err(SettingError(
                    "discovery.selector: this is no label selector; write e.g. \"app=vllm\""
                        .to_owned(),
                ));
            }
        }
    }
    match (port, find) {
        (Port::Number(0), _) => Err(SettingError("discovery.port: 0 is no port".to_owned())),
        (Port::Name(port), Find::Service(_)) if !port.is_empty() => Ok(()),
        (Port::Name(port), _) => Err(SettingError(format!(
            "discovery.port: `{}` is a name, and only a Service names its ports: write a number",
            port.escape_debug()
        ))),
        (Port::Number(_), _) => Ok(()),
    }
}

/// Names go into paths as they are.
fn name(key: &str, name: &str) -> Result<(), SettingError> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(fits) {
        let shown: String = name.escape_debug().take(NAME_MAX).collect();
        return Err(SettingError(format!("{key}: `{shown}` is no name of Kubernetes'")));
    }
    Ok(())
}
