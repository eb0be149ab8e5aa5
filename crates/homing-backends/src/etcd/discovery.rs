//! The workers that have registered in etcd, as a stream of changes.
//!
//! What is heard goes through `members`, which says what it means; here is only the time, and the task.

use super::follow::follow as follow_keys;
use super::members::Members;
use super::wire::Wire;
use homing_runtime::fleet::discovery::{Change, Driven};
use homing_runtime::replication::port::{PortError, Reach};
use homing_runtime::settings::Upstream;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Changes on their way.
const WAITING: usize = 16;

/// Follows the workers of a group. `common`: how they are reached where they don't say themselves. Call it on the runtime
/// that shall carry the connection.
///
/// # Errors
/// Where time cures nothing: etcd refuses us, or a setting can't be used. One that can't be reached is waited for.
pub async fn follow(reach: Reach, group: &str, common: Arc<Upstream>) -> Result<Driven, PortError> {
    let wire = Wire::new(reach)?;
    match wire.connect().await {
        Ok(()) | Err(PortError::Unreachable { .. }) => {}
        Err(error) => return Err(error),
    }
    let (say, changes) = mpsc::channel(WAITING);
    let refused = Arc::default();
    let prefix = super::prefix(group, "workers");
    let members = Members::new(prefix.clone(), common, Arc::clone(&refused));
    Ok(Driven { changes, drive: Box::pin(drive(wire, prefix, members, say)), refused })
}

async fn drive(wire: Wire, prefix: String, mut members: Members, say: mpsc::Sender<Change>) {
    let (tell, mut heard) = mpsc::channel(WAITING);
    let follow = follow_keys(&wire, prefix.as_bytes(), tell);
    let act = async {
        loop {
            let due = members.due();
            let settled = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            let changes = tokio::select! {
                what = heard.recv() => match what {
                    Some(what) => members.hear(what, Instant::now()),
                    None => return,
                },
                () = settled => members.settle(Instant::now()),
            };
            for change in changes {
                if say.send(change).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = follow => {}
        () = act => {}
        () = say.closed() => {}
    }
}
