//! Sessions as people and files see them: listed, looked up, removed; kept over a restart (R25).
//!
//! Whatever walks a table does so by parts: requests get the lock in between.

use super::{Cell, SelectionCore};
use crate::affinity::merge::{Merged, Update, What};
use crate::affinity::saved::Kept;
use crate::affinity::table::SessionView;
use crate::fleet::Life;
use crate::ids::{PartitionId, Role, SessionKey, WorkerId};
use crate::partition::Partition;
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// Entries of a table that are looked at while its lock is held.
pub const WALK_AT_ONCE: u32 = 1024;

/// Where a walk through all sessions stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    pub(super) cell: usize,
    pub(super) slot: u32,
}

impl Cursor {
    /// As a number, for whoever asks from elsewhere.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        (self.cell as u64) << 32 | u64::from(self.slot)
    }

    /// Of a number: whatever it is, there is such a place, or the walk is over.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self { cell: (bits >> 32) as usize, slot: bits as u32 }
    }
}

impl SelectionCore {
    /// Sessions, at most `limit` of them in all, each with its pool's name and role.
    #[must_use]
    pub fn sessions(&self, now: Time, limit: usize) -> Vec<(Arc<str>, Role, SessionView)> {
        let (mut all, mut cursor) = (Vec::new(), Cursor::default());
        while all.len() < limit {
            let part = self.walk(now, &mut cursor, |cell, view| {
                all.push((cell.pool.clone(), cell.role, view));
            });
            if part.is_none() {
                break;
            }
        }
        all.truncate(limit);
        all
    }

    /// The next part of a walk through all sessions; `None`: it is over.
    fn walk(
        &self,
        now: Time,
        cursor: &mut Cursor,
        mut out: impl FnMut(&Cell, SessionView),
    ) -> Option<()> {
        let cell = self.cells.read().get(cursor.cell).cloned()?;
        let more =
            cell.state.lock().table().is_some_and(|t| {
                t.walk(now, &mut cursor.slot, WALK_AT_ONCE, |view| out(&cell, view))
            });
        if !more {
            *cursor = Cursor { cell: cursor.cell + 1, slot: 0 };
        }
        Some(())
    }

    /// One session.
    #[must_use]
    pub fn session(
        &self,
        now: Time,
        partition: PartitionId,
        key: SessionKey,
    ) -> Option<SessionView> {
        self.cell(partition)?.state.lock().table()?.get(now, key)
    }

    /// How long a session has idled in a partition that is named by its role and pool; `None`: it isn't bound there.
    #[must_use]
    pub fn idle(
        &self,
        now: Time,
        key: SessionKey,
        is_it: impl Fn(Role, &str) -> bool,
    ) -> Option<Duration> {
        let cells = self.cells.read();
        let cell = cells.iter().find(|cell| is_it(cell.role, &cell.pool))?;
        let view = cell.state.lock().table()?.get(now, key)?;
        Some(view.idle)
    }

    /// Removes a binding at once; running requests keep their streams. False if it wasn't bound.
    pub fn unbind(&self, now: Time, partition: PartitionId, key: SessionKey) -> bool {
        let remove = |s: &mut Partition| s.table_mut().is_some_and(|table| table.unbind(now, key));
        self.cell(partition).is_some_and(|cell| self.with(&cell, remove))
    }

    // === over a restart ===

    /// The next bindings to keep; `None`: that was all. Call it until then: each call holds a lock for
    /// a small part of a table only. What is bound throughout is given once.
    pub fn snapshot(&self, now: Time, cursor: &mut Cursor) -> Option<Vec<(PartitionId, Kept)>> {
        let id = PartitionId(u32::try_from(cursor.cell).ok()?);
        let mut part = Vec::new();
        self.walk(now, cursor, |_, view| part.push((id, Kept::of(now, &view))))?;
        Some(part)
    }

    /// Every life that a kept binding may name.
    #[must_use]
    pub fn lives(&self) -> Vec<Life> {
        self.registry.read().lives().collect()
    }

    /// What this process calls the worker's life that a kept binding names.
    #[must_use]
    pub fn promise_worker(&self, name: &str, started: Option<u64>) -> WorkerId {
        self.registry.write().promise_worker(name, started)
    }

    /// What this process calls the partition that a kept binding is of. `None`: it can't be any more.
    #[must_use]
    pub fn promise_partition(&self, pool: &str, role: Role) -> Option<PartitionId> {
        let mut registry = self.registry.write();
        let id = registry.promise_partition(pool, role)?;
        self.grow(&registry, id);
        Some(id)
    }

    /// Brings kept bindings back; how many. [`Self::restored`] must follow once all are.
    pub fn restore(&self, now: Time, partition: PartitionId, kept: &[Kept]) -> usize {
        let Some(cell) = self.cell(partition) else { return 0 };
        let mut state = cell.state.lock();
        let Some(table) = state.table_mut() else { return 0 };
        kept.iter().filter(|k| table.restore(now, k)).count()
    }

    /// Takes in what another router has kept at its end, beside what was bound here meanwhile: what was written last
    /// holds. How many are new here.
    pub fn take_in(&self, now: Time, partition: PartitionId, kept: &[Kept]) -> usize {
        let Some(cell) = self.cell(partition) else { return 0 };
        let merged = |k: &Kept| {
            let (what, used) = (What::Bound(k.target), k.idle_since.min(now));
            let update = Update { key: k.key, version: k.version, what, used };
            self.with(&cell, |state| state.merge(now, update)) == Some(Merged::Applied)
        };
        kept.iter().filter(|k| !k.last && merged(k)).count()
    }

    /// All that was kept is back.
    pub fn restored(&self) {
        for cell in self.cells.read().iter() {
            if let Some(table) = cell.state.lock().table_mut() {
                table.restored();
            }
        }
    }
}
