//! What people see of workers and partitions.

use super::{Cell, SelectionCore};
use crate::fleet::{Cache, Drain, Ranks, Row, State, WorkerInfo};
use crate::ids::{PartitionId, Role};
use crate::load::Pace;
use crate::partition::{Stats, WorkerLoad};
use crate::trust::TrustView;
use std::sync::Arc;

/// One worker as the admin API shows it.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Who.
    pub info: Arc<WorkerInfo>,
    /// How it is.
    pub state: State,
    /// Its data-parallel ranks.
    pub ranks: Ranks,
    /// It gets no new sessions.
    pub drain: Option<Drain>,
    /// The names that it serves.
    pub models: Vec<Arc<str>>,
    /// Its part in its partition.
    pub part: WorkerLoad,
    /// Blocks of its cache that the index knows: in device memory,
    pub cached_blocks: usize,
    /// in host memory,
    pub host_blocks: usize,
    /// and farther away.
    pub disk_blocks: usize,
    /// Chunks of text that it was sent and is thought to have still.
    pub cached_chunks: usize,
    /// How its cache is known.
    pub cache: Cache,
    /// How far that is believed, for each shape of which something is known.
    pub trust: Vec<TrustView>,
    /// How fast it is, as far as that is known.
    pub pace: Pace,
}

/// One partition as metrics and the admin API show it.
#[derive(Clone, Debug)]
pub struct PartitionView {
    /// Its pool's name: the base model.
    pub pool: Arc<str>,
    /// Its role.
    pub role: Role,
    /// What it counts.
    pub stats: Stats,
}

impl SelectionCore {
    /// Every worker.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let registry = self.registry.read();
        let view = |(row, place, models): (Row, Option<PartitionId>, _)| {
            let cell = place.and_then(|p| self.cell(p));
            let id = row.info.id;
            let held = cell.as_ref().map_or([0; 3], |c| c.index.lock().held(id));
            let [cached_blocks, host_blocks, disk_blocks] = held;
            let state = |c: &Arc<Cell>| {
                let state = c.state.lock();
                (state.worker_load(id), state.trust_in(id), state.pace_of(id))
            };
            let (part, trust, pace) = cell.as_ref().map(state).unwrap_or_default();
            WorkerView {
                info: row.info,
                state: row.state,
                ranks: row.ranks,
                drain: row.drain,
                models,
                part,
                cached_blocks,
                host_blocks,
                disk_blocks,
                cached_chunks: cell.map_or(0, |c| c.text.lock().blocks(id)),
                cache: row.cache,
                trust,
                pace,
            }
        };
        registry.workers().map(view).collect()
    }

    /// Whether some worker is ready.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.registry.read().workers().any(|w| w.0.state == State::Ready)
    }

    /// Every partition.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionView> {
        let view = |c: &Arc<Cell>| PartitionView {
            pool: c.pool.clone(),
            role: c.role,
            stats: c.state.lock().stats(),
        };
        self.cells.read().iter().map(view).collect()
    }
}
