//! Sessions as people, files and other routers see them: listed, looked up, removed; kept over a restart
//! (R25); shared (R23).
//!
//! Whatever walks a table does so by parts: requests get the lock in between.

use super::{Cell, SelectionCore};
use crate::affinity::merge::{Merged, Update, What};
use crate::affinity::saved::Kept;
use crate::affinity::table::SessionView;
use crate::affinity::version::Version;
use crate::fleet::Life;
use crate::ids::{DpRank, PartitionId, Role, SessionKey, Target, WorkerId};
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Entries of a table that are looked at while its lock is held.
pub const WALK_AT_ONCE: u32 = 1024;
/// Updates to workers that are not known yet, at most: the oldest go first.
const ASIDE: usize = 16_384;
/// How long one waits for its worker.
const ASIDE_FOR: Duration = Duration::from_secs(60);

/// Where a walk through all sessions stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    cell: usize,
    slot: u32,
}

/// One session's register, as routers exchange it: names instead of numbers, which are each process's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The partition's role.
    pub role: Role,
    /// The session.
    pub key: SessionKey,
    /// Of the write.
    pub version: Version,
    /// Where it lives: a worker's name and one of its ranks; `None`: nowhere any more.
    pub home: Option<(Arc<str>, Option<DpRank>)>,
    /// When it was used last.
    pub used: Time,
}

/// What became of another router's publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Merged.
    Merged(Merged),
    /// Its worker or its pool is not known here yet: set aside for a minute.
    SetAside,
    /// Sessions are passive in that partition.
    Passive,
}

/// See [`SelectionCore`]'s field.
#[derive(Debug, Default)]
pub(super) struct Aside(VecDeque<(Time, Publication)>);

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

    /// Removes a binding at once; running requests keep their streams. False if it wasn't bound.
    pub fn unbind(&self, now: Time, partition: PartitionId, key: SessionKey) -> bool {
        self.cell(partition)
            .is_some_and(|c| c.state.lock().table_mut().is_some_and(|t| t.unbind(now, key)))
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

    // === between routers ===

    /// The next binding that other routers shall hear of.
    #[must_use]
    pub fn poll_publication(&self) -> Option<Publication> {
        if !self.shared {
            return None;
        }
        // A copy of the list: the registry's lock comes before that of the partitions.
        let cells: Vec<Arc<Cell>> = self.cells.read().clone();
        for cell in &cells {
            loop {
                let update = cell.state.lock().poll_update();
                let Some(Update { key, version, what, used }) = update else { break };
                let home = match what {
                    What::Removed => None,
                    What::Bound(target) => {
                        let registry = self.registry.read();
                        // Of one that has departed meanwhile nobody need hear.
                        let Some(info) = registry.info(target.worker) else { continue };
                        Some((info.spec.name.clone(), target.rank))
                    }
                };
                let (pool, role) = (cell.pool.clone(), cell.role);
                return Some(Publication { pool, role, key, version, home, used });
            }
        }
        None
    }

    /// Another router's binding.
    pub fn handle_publication(&self, now: Time, publication: Publication) -> Received {
        let found = {
            let registry = self.registry.read();
            let partition = registry.partition_of(&publication.pool, publication.role);
            let what = match &publication.home {
                None => Some(What::Removed),
                Some((name, rank)) => {
                    registry.by_name(name).map(|worker| What::Bound(Target { worker, rank: *rank }))
                }
            };
            partition.and_then(|p| self.cell(p)).zip(what)
        };
        let Some((cell, what)) = found else {
            let mut aside = self.aside.lock();
            let old = |a: &Aside| a.0.front().is_some_and(|(since, _)| now >= *since + ASIDE_FOR);
            while aside.0.len() >= ASIDE || old(&aside) {
                aside.0.pop_front();
            }
            aside.0.push_back((now, publication));
            return Received::SetAside;
        };
        let Publication { key, version, used, .. } = publication;
        let merged = self.with(&cell, |s| s.merge(now, Update { key, version, what, used }));
        merged.map_or(Received::Passive, Received::Merged)
    }

    /// A worker has come, or has told what it serves: what was set aside for it can be merged.
    pub(super) fn take_up(&self, now: Time, worker: WorkerId) {
        let Some(info) = self.registry.read().info(worker).cloned() else { return };
        let name = &info.spec.name;
        let waiting: Vec<Publication> = {
            let mut aside = self.aside.lock();
            let mut taken = Vec::new();
            aside.0.retain(|(since, p)| {
                let fresh = now < *since + ASIDE_FOR;
                let its = p.home.as_ref().is_none_or(|(home, _)| home == name);
                if fresh && its {
                    taken.push(p.clone());
                }
                fresh && !its
            });
            taken
        };
        for publication in waiting {
            self.handle_publication(now, publication);
        }
    }
}
