//! Which backend routers share over: the one place that chooses it.

use homing_backends::{etcd, nats};
use homing_hosts::Replicate;
use homing_runtime::replication::Ports;
use homing_runtime::replication::port::{BindingStore, Bus, PortError};
use homing_runtime::settings::{Replication, ReplicationBackend, ReplicationMode, Settings};
use std::sync::Arc;
use std::time::Duration;

/// How long a store keeps what nobody writes, where sessions are passive and nothing is written.
const IDLE: Duration = Duration::from_secs(1800);

/// What connects as the settings say; `None`: nothing is shared.
pub(crate) fn replicate(settings: &Settings) -> Option<Replicate> {
    let replication = settings.replication.clone()?;
    let idle = settings.affinity.ttl.unwrap_or(IDLE);
    Some(Box::new(move |me| Box::pin(connect(replication, me, idle))))
}

async fn connect(replication: Replication, me: u32, idle: Duration) -> Result<Ports, PortError> {
    let Replication { backend, mode, group, reach, .. } = replication;
    Ok(match backend {
        ReplicationBackend::None => Ports::default(),
        ReplicationBackend::Etcd => {
            let store: Arc<dyn BindingStore> =
                Arc::new(etcd::Store::open(reach, &group, idle).await?);
            Ports { bus: None, store: Some(store) }
        }
        ReplicationBackend::Nats => {
            let (link, deliveries) = nats::connect(reach.clone(), &group, me).await?;
            let bus: Arc<dyn Bus> = Arc::new(link);
            let store: Option<Arc<dyn BindingStore>> = match mode {
                ReplicationMode::Advisory => None,
                ReplicationMode::Authoritative => {
                    Some(Arc::new(nats::open(reach, &group, idle).await?))
                }
            };
            Ports { bus: Some((bus, deliveries)), store }
        }
    })
}

/// Looks at the files and places of `[replication]` without connecting.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn look_at(settings: &Settings) -> Result<(), PortError> {
    let Some(it) = &settings.replication else { return Ok(()) };
    match it.backend {
        ReplicationBackend::None => Ok(()),
        ReplicationBackend::Etcd => etcd::look_at(&it.reach),
        ReplicationBackend::Nats => nats::look_at(&it.reach, &it.group),
    }
}
