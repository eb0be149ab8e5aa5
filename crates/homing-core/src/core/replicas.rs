//! Sessions and load between routers (R23): what others hear of ours, and what we hear of theirs, with names instead of
//! numbers, which are each process's own.

use super::sessions::{Cursor, WALK_AT_ONCE};
use super::{Cell, SelectionCore};
use crate::affinity::merge::{Merged, Update, What};
use crate::affinity::saved::Kept;
use crate::affinity::version::Version;
use crate::ask::{Claimed, Dispatch};
use crate::fleet::Registry;
use crate::ids::{DpRank, Role, SessionKey, Target, WorkerId};
use crate::load::PeerLoad;
use crate::partition::{Answer, Partition};
use crate::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Updates to workers that are not known yet, at most: the oldest go first.
const ASIDE: usize = 65_536;
/// How long one waits for its worker. While no worker has told what it serves none goes for its age: nobody could have
/// come for it.
const ASIDE_FOR: Duration = Duration::from_secs(60);
/// Updates of one partition that are taken while its lock is held.
const TAKEN_AT_ONCE: usize = 64;

/// Where a session lives, as routers exchange it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The worker's name.
    pub worker: Arc<str>,
    /// One of its ranks.
    pub rank: Option<DpRank>,
    /// When its process began (Unix milliseconds), where the sender knows: it tells one life from another.
    pub started: Option<u64>,
}

/// One session's register, as routers exchange it.
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
    /// Where it lives; `None`: nowhere any more.
    pub home: Option<Home>,
    /// When it was used last.
    pub used: Time,
}

/// What became of another router's publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Merged.
    Merged(Merged),
    /// Its worker or its pool is not known here yet, or another life of it: set aside, for a minute once workers are known.
    SetAside,
    /// Sessions are passive in that partition.
    Passive,
    /// It can't be true: its worker has no such rank.
    Forged,
    /// It is of a life of its worker that has ended.
    Departed,
}

/// See [`SelectionCore`]'s field.
#[derive(Debug, Default)]
pub(super) struct Aside {
    waiting: VecDeque<(Time, Publication)>,
    /// No worker had told what it serves, and when the first one has.
    alone: bool,
    begins: Time,
}

impl Aside {
    /// Those that have waited for too long go.
    fn sweep(&mut self, now: Time, is_alone: bool) {
        if is_alone {
            self.alone = true;
        } else if std::mem::take(&mut self.alone) {
            self.begins = now;
        }
        let old = |(came, _): &(Time, Publication)| now >= (*came).max(self.begins) + ASIDE_FOR;
        while !self.alone && self.waiting.front().is_some_and(old) {
            self.waiting.pop_front();
        }
    }

    fn add(&mut self, now: Time, publication: Publication) {
        if self.waiting.len() >= ASIDE {
            self.waiting.pop_front();
        }
        self.waiting.push_back((now, publication));
    }
}

/// Where another router's publication leads.
enum Leads {
    To(Arc<Cell>, What),
    NotYet,
    Nowhere(Received),
}

impl SelectionCore {
    /// The next bindings that other routers shall hear of, at most `most` (and those of one look more): those that were
    /// written, and those that were only used and have waited for it until `by`.
    #[must_use]
    pub fn publications(&self, by: Time, most: usize) -> Vec<Publication> {
        let mut all = Vec::new();
        if !self.shared {
            return all;
        }
        // A copy of the list: the registry's lock comes before that of the partitions.
        let cells: Vec<Arc<Cell>> = self.cells.read().clone();
        let mut updates = Vec::new();
        for cell in &cells {
            while all.len() < most {
                {
                    let mut state = cell.state.lock();
                    updates
                        .extend(std::iter::from_fn(|| state.poll_update(by)).take(TAKEN_AT_ONCE));
                }
                if updates.is_empty() {
                    break;
                }
                let registry = self.registry.read();
                // Of one that has departed meanwhile nobody need hear.
                all.extend(updates.drain(..).filter_map(|u| published(&registry, cell, &u)));
            }
        }
        all
    }

    /// The next registers, of those that were written or used since; `None`: that was all. For a router that is new, or
    /// has missed something; call it until then: each call holds a lock for a small part of a table only.
    #[must_use]
    pub fn registers(
        &self,
        now: Time,
        cursor: &mut Cursor,
        since: Time,
    ) -> Option<Vec<Publication>> {
        let cell = self.cells.read().get(cursor.cell).cloned()?;
        let mut updates = Vec::new();
        let more = cell.state.lock().table().is_some_and(|table| {
            table.registers(now, &mut cursor.slot, WALK_AT_ONCE, since, |u| updates.push(u))
        });
        if !more {
            *cursor = Cursor { cell: cursor.cell + 1, slot: 0 };
        }
        let registry = self.registry.read();
        Some(updates.iter().filter_map(|u| published(&registry, &cell, u)).collect())
    }

    /// Another router's binding.
    pub fn handle_publication(&self, now: Time, publication: Publication) -> Received {
        let leads = self.leads(&publication);
        let (cell, what) = match leads {
            Leads::To(cell, what) => (cell, what),
            Leads::Nowhere(why) => return why,
            Leads::NotYet => {
                let is_alone = self.knows_nothing();
                let mut aside = self.aside.lock();
                aside.sweep(now, is_alone);
                aside.add(now, publication);
                return Received::SetAside;
            }
        };
        let Publication { key, version, used, .. } = publication;
        let merged = self.with(&cell, |s| s.merge(now, Update { key, version, what, used }));
        merged.map_or(Received::Passive, Received::Merged)
    }

    /// Another router's binding, as if it came out of a file: with what is left of its idle time, and unless something
    /// is known of its session already. [`Self::restored`] must follow once all are there. False: it was not taken over,
    /// and [`Self::handle_publication`] may say why.
    pub fn restore_publication(&self, now: Time, publication: &Publication) -> bool {
        if !publication.version.is_credible(now) {
            return false;
        }
        let Leads::To(cell, What::Bound(target)) = self.leads(publication) else { return false };
        let Publication { key, version, used, .. } = *publication;
        let kept = Kept { key, target, version, idle_since: used, last: false };
        let mut state = cell.state.lock();
        state.table_mut().is_some_and(|table| table.restore(now, &kept))
    }

    fn leads(&self, publication: &Publication) -> Leads {
        let registry = self.registry.read();
        let partition = registry.partition_of(&publication.pool, publication.role);
        let Some(cell) = partition.and_then(|p| self.cell(p)) else { return Leads::NotYet };
        let Some(home) = &publication.home else { return Leads::To(cell, What::Removed) };
        match resolve(&registry, home) {
            Ok(target) => Leads::To(cell, What::Bound(target)),
            Err(None) => Leads::NotYet,
            Err(Some(why)) => Leads::Nowhere(why),
        }
    }

    /// Whether no worker has told yet what it serves: nothing that others know leads anywhere here.
    #[must_use]
    pub fn knows_nothing(&self) -> bool {
        self.cells.read().is_empty()
    }

    /// A worker has come, lives another life, or has told what it serves: what was set aside for it can be merged.
    pub(super) fn take_up(&self, now: Time, worker: WorkerId) {
        let is_alone = self.knows_nothing();
        {
            let mut aside = self.aside.lock();
            aside.sweep(now, is_alone);
            if aside.waiting.is_empty() {
                return;
            }
        }
        let Some(info) = self.registry.read().info(worker).cloned() else { return };
        let name = &info.spec.name;
        let waiting: Vec<Publication> = {
            let mut aside = self.aside.lock();
            let mut taken = Vec::new();
            aside.waiting.retain(|(_, p)| {
                let its = p.home.as_ref().is_none_or(|home| home.worker == *name);
                if its {
                    taken.push(p.clone());
                }
                !its
            });
            taken
        };
        for publication in waiting {
            self.handle_publication(now, publication);
        }
    }

    // === the shared store (R24) ===

    /// What follows from the last look: what goes out is foreseen, and what is claimed gets its names.
    pub(super) fn looked(&self, now: Time, cell: &Arc<Cell>, dispatch: Dispatch) -> Dispatch {
        if let Dispatch::Go(checked) = &dispatch {
            self.foresee(now, cell, &checked.0);
            return dispatch;
        }
        match dispatch {
            Dispatch::Claim(mut claiming) => {
                claiming.publication = published(&self.registry.read(), cell, &claiming.update);
                if claiming.publication.is_some() {
                    return Dispatch::Claim(claiming);
                }
                // Its worker has departed meanwhile: nobody could go there. Its dispatch will find that out.
                let go =
                    |state: &mut Partition| state.claimed(now, claiming.grant, Answer::Without);
                let dispatch = self.with(cell, go);
                self.looked(now, cell, dispatch)
            }
            other => other,
        }
    }

    /// An answer of the store in numbers.
    pub(super) fn understood(&self, answer: Claimed) -> Answer {
        match answer {
            Claimed::Ours(revision) => Answer::Ours(revision),
            Claimed::Without => Answer::Without,
            Claimed::Unreachable => Answer::Unreachable,
            Claimed::Theirs { revision, says, bound } => {
                let registry = self.registry.read();
                let at = |p: &Publication| resolve(&registry, p.home.as_ref()?).ok();
                let at = says.as_ref().and_then(at);
                let version = says.as_ref().map(|p| p.version);
                let bound = says.filter(|_| bound).zip(at).map(|(p, target)| Update {
                    key: p.key,
                    version: p.version,
                    what: What::Bound(target),
                    used: p.used,
                });
                Answer::Theirs { revision, at, bound, version }
            }
        }
    }

    /// First turns that have come to nothing after the store had heard of them: it may forget them. By pool, role and
    /// session.
    #[must_use]
    pub fn withdrawals(&self) -> Vec<(Arc<str>, Role, SessionKey)> {
        let mut all = Vec::new();
        if self.shared {
            for cell in self.cells.read().iter() {
                let withdrawn = cell.state.lock().withdrawals();
                all.extend(withdrawn.into_iter().map(|key| (cell.pool.clone(), cell.role, key)));
            }
        }
        all
    }

    // === load ===

    /// What another router has booked on one target. False: there is no such target here.
    pub fn handle_peer_load(
        &self,
        writer: u32,
        worker: &str,
        rank: DpRank,
        load: PeerLoad,
    ) -> bool {
        let Some(id) = self.worker_named(worker) else { return false };
        let Some(cell) = self.placed(id) else { return false };
        self.with(&cell, |state| state.hear_peer(writer, id, rank, load))
    }

    /// Another router is gone, or has begun anew: what it had booked counts no more.
    pub fn forget_peer(&self, writer: u32) {
        for cell in self.cells.read().iter() {
            self.with(cell, |state| state.forget_peer(writer));
        }
    }

    /// What is booked here on each target that has something to do.
    pub fn own_loads(&self, mut out: impl FnMut(&Arc<str>, DpRank, PeerLoad)) {
        let cells: Vec<Arc<Cell>> = self.cells.read().clone();
        let mut all = Vec::new();
        for cell in &cells {
            cell.state.lock().own_loads(|worker, rank, load| all.push((worker, rank, load)));
        }
        let registry = self.registry.read();
        for (worker, rank, load) in all {
            if let Some(info) = registry.info(worker) {
                out(&info.spec.name, rank, load);
            }
        }
    }

    /// Which router this is among others: drawn with its seed.
    #[must_use]
    pub fn writer(&self) -> u32 {
        self.writer
    }
}

/// An update with names.
fn published(registry: &Registry, cell: &Cell, update: &Update) -> Option<Publication> {
    let Update { key, version, what, used } = *update;
    let home = match what {
        What::Removed => None,
        What::Bound(target) => {
            let info = registry.info(target.worker)?;
            let (worker, rank) = (info.spec.name.clone(), target.rank);
            Some(Home { worker, rank, started: registry.started(target.worker) })
        }
    };
    let (pool, role) = (cell.pool.clone(), cell.role);
    Some(Publication { pool, role, key, version, home, used })
}

/// What another router calls a home. `Err(None)`: nobody goes by that name here, or another life of it is known to others
/// than to us; else it never will be.
fn resolve(registry: &Registry, home: &Home) -> Result<Target, Option<Received>> {
    let worker = registry.by_name(&home.worker).ok_or(None)?;
    match (registry.started(worker), home.started) {
        // They know already what our next probe will tell.
        (Some(ours), Some(theirs)) if theirs > ours => return Err(None),
        (Some(ours), Some(theirs)) if theirs < ours => return Err(Some(Received::Departed)),
        _ => {}
    }
    let has = |rank| registry.ranks(worker).is_some_and(|ranks| ranks.has(rank));
    if home.rank.is_some_and(|rank| !has(rank)) {
        return Err(Some(Received::Forged));
    }
    Ok(Target { worker, rank: home.rank })
}
