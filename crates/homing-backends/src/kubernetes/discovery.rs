//! What is asked for, and what makes it so: a task that lists and watches for as long as somebody takes its changes.

use super::access;
use super::follow::Follower;
use homing_runtime::fleet::discovery::Driven;
use homing_runtime::settings::{DiscoveryKubernetes, Upstream, WorkerUrl};
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::mpsc;

/// Changes that wait to be taken up.
const CHANGES: usize = 64;

/// Why it can't be begun: something is not set, and no pod's environment says it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("kubernetes: {0}")]
pub struct AccessError(pub(super) String);

/// What has been made of the settings.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) servers: Vec<WorkerUrl>,
    pub(super) namespace: String,
    pub(super) wanted: DiscoveryKubernetes,
    pub(super) upstream: Arc<Upstream>,
}

/// The workers as they change. `upstream`: how they are reached.
///
/// # Errors
/// [`AccessError`]. A server that doesn't answer, or refuses us, is no error: changes say so.
pub fn discovery(
    wanted: DiscoveryKubernetes,
    upstream: Arc<Upstream>,
) -> Result<Driven, AccessError> {
    let (servers, namespace, wanted) = access::complete(wanted)?;
    let (out, changes) = mpsc::channel(CHANGES);
    let plan = Plan { servers, namespace, wanted, upstream };
    let drive = Box::pin(Follower::new(plan, out).run());
    Ok(Driven { changes, drive, refused: Arc::default() })
}
