//! What the world says of workers, on its way to the partitions: the registry says what it means, and each
//! partition that it concerns hears of it under the registry's lock, so that none sees half of it.

use super::{Cell, SelectionCore};
use crate::fleet::{FleetChange, FleetError, FleetEvent, Registry, WorkerInfo};
use crate::ids::{DpRank, NameId, PartitionId, WorkerId};
use crate::load::report::Report;
use crate::partition::Partition;
use crate::time::Time;
use std::sync::Arc;

impl SelectionCore {
    /// The configuration promises this model name.
    pub fn declare(&self, model: &str) {
        self.registry.write().declare(model);
    }

    /// The fleet has changed.
    ///
    /// # Errors
    /// [`FleetError`]; nothing has changed then.
    pub fn handle_fleet(
        &self,
        now: Time,
        change: FleetChange,
    ) -> Result<Vec<FleetEvent>, FleetError> {
        // What a worker's partition must know of it can change without an event.
        let (mut touched, name) = match &change {
            FleetChange::Serves(id, _)
            | FleetChange::Ranks(id, _)
            | FleetChange::Drain(id, _)
            | FleetChange::Cache(id, _)
            | FleetChange::Unsure(id)
            // Whether it is silent or refuses is no state of its own.
            | FleetChange::Probed(id, _) => (Some(*id), None),
            FleetChange::Register(spec) => (None, Some(spec.name.clone())),
            _ => (None, None),
        };
        let mut registry = self.registry.write();
        let events = registry.apply(change)?;
        for event in &events {
            match event {
                FleetEvent::Removed(id) | FleetEvent::Reborn { old: id, .. } => {
                    self.remove_from(*id, None);
                }
                FleetEvent::Placed(id, p) => self.remove_from(*id, Some(*p)),
                _ => {}
            }
            if let FleetEvent::Registered(id)
            | FleetEvent::Reborn { new: id, .. }
            | FleetEvent::State(id, _) = event
            {
                self.update_row(&registry, *id);
            }
        }
        touched = touched.or_else(|| registry.by_name(&name?));
        if let Some(id) = touched {
            self.update_row(&registry, id);
        }
        drop(registry);
        let gone = |e: &FleetEvent| {
            matches!(e, FleetEvent::Removed(_) | FleetEvent::Reborn { .. } | FleetEvent::Placed(..))
        };
        if events.iter().any(gone) {
            self.sweep();
        }
        for event in &events {
            if let FleetEvent::Registered(id)
            | FleetEvent::Reborn { new: id, .. }
            | FleetEvent::Placed(id, _) = event
            {
                self.take_up(now, *id);
            }
        }
        Ok(events)
    }

    /// Who can be asked something on behalf of requests for a name: its ready workers, who has least to do
    /// first.
    #[must_use]
    pub fn ready_by_load(&self, partition: PartitionId, name: NameId) -> Vec<Arc<WorkerInfo>> {
        self.cell(partition).map(|cell| cell.state.lock().ready_by_load(name)).unwrap_or_default()
    }

    /// A worker's engine is about to be asked for a report: of what ends from now on it may tell all the same.
    pub fn expect_report(&self, worker: WorkerId) {
        if let Some(cell) = self.placed(worker) {
            self.with(&cell, |state| state.expect_report(worker));
        }
    }

    /// What a worker's engine says that it has to do, in one rank or in all of them together. What that shows
    /// beyond the bookings made here counts as load of its own for [`crate::settings::CoreSettings::report_life`],
    /// and never makes less of them. Reports of whoever has departed, or has no such rank, are passed over.
    pub fn handle_report(&self, now: Time, worker: WorkerId, rank: Option<DpRank>, report: Report) {
        if let Some(cell) = self.placed(worker) {
            self.with(&cell, |state| state.report(now, worker, rank, report));
        }
    }

    fn remove_from(&self, worker: WorkerId, except: Option<PartitionId>) {
        for (i, cell) in self.cells.read().iter().enumerate() {
            if except.is_none_or(|p| p.0 as usize != i) {
                self.with(cell, |state| state.remove_row(worker));
                self.forget_cache(cell, worker);
            }
        }
    }

    /// Tells its partition how a worker is. Whoever serves nothing known yet may be where a kept binding
    /// leads: every partition hears of it.
    fn update_row(&self, registry: &Registry, worker: WorkerId) {
        let Some((partition, row)) = registry.row(worker) else {
            if let Some(row) = registry.unplaced().find(|row| row.info.id == worker) {
                for cell in self.cells.read().iter() {
                    self.with(cell, |state| state.set_unplaced(row.clone()));
                }
            }
            return;
        };
        self.grow(registry, partition);
        if let Some(cell) = self.cell(partition) {
            self.set_cache(&cell, worker, row.cache);
        }
        for (i, cell) in self.cells.read().iter().enumerate() {
            self.with(cell, |state| match i == partition.0 as usize {
                true => state.set_row(row.clone()),
                false => state.is_placed(worker),
            });
        }
    }

    /// Makes the partitions up to this one.
    pub(super) fn grow(&self, registry: &Registry, partition: PartitionId) {
        if self.cell(partition).is_some() {
            return;
        }
        let mut cells = self.cells.write();
        while cells.len() <= partition.0 as usize {
            let id = PartitionId(u32::try_from(cells.len()).unwrap_or(u32::MAX));
            let (pool, role) = match registry.partition(id) {
                Some((pool, role)) => (pool.clone(), role),
                None => Default::default(),
            };
            let seed = self.seed ^ (u64::from(id.0) << 32);
            let policy = (self.policies.0)();
            let settings = self.settings.read().clone();
            let mut state = Partition::new(id, role, settings, policy, seed, self.writer);
            registry.unplaced().for_each(|row| state.set_unplaced(row));
            cells.push(Arc::new(Cell::new(pool, role, state, self.index_memory)));
        }
        for cell in cells.iter() {
            cell.state.lock().share_records(cells.len());
        }
    }
}
