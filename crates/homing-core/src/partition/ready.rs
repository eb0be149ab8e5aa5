//! Who of a partition can be asked something beside its requests. No decision: nobody is placed by it.

use super::Partition;
use crate::fleet::{State, WorkerInfo};
use crate::ids::NameId;
use std::sync::Arc;

impl Partition {
    /// Those who are ready and serve the name, who has least to do first.
    #[must_use]
    pub fn ready_by_load(&self, name: NameId) -> Vec<Arc<WorkerInfo>> {
        let able = self.rows.iter().filter(|r| r.state == State::Ready && r.serves.contains(&name));
        let mut able: Vec<_> = able
            .map(|row| {
                let load = self.worker_load(row.info.id).load;
                (load.active_requests, load.prefill_tokens, row.info.clone())
            })
            .collect();
        able.sort_by_key(|(requests, tokens, info)| (*requests, *tokens, info.id));
        able.into_iter().map(|(_, _, info)| info).collect()
    }
}
