//! One session's entry, a cache line, and the slab that all of them lie in.
//!
//! The slab grows by chunks and never moves an entry, so that a hold can name its entry by number, and a
//! snapshot can walk the numbers while the world goes on. A chunk is reserved at once and filled entry by
//! entry: memory that is touched for the first time costs a page fault, and no call pays for a whole chunk
//! of them. What a session may be at once (bound, about to be, removed) shares the same fields; the flags
//! say which.

use super::quota::NOBODY;
use super::version::Version;
use crate::ids::{DpRank, SessionKey, Target, WorkerId};
use crate::time::Time;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;
const NO_RANK: u16 = u16::MAX;
/// Entries of a chunk, as a power of two: 256 KiB.
const BITS: u32 = 12;
const CHUNK: u32 = 1 << BITS;

/// What an entry is.
pub(super) mod flag {
    /// It is somebody's.
    pub(in crate::affinity) const USED: u8 = 1;
    /// Bound: target, version, epoch and leases mean the binding.
    pub(in crate::affinity) const BOUND: u8 = 2;
    /// Not bound; the target is what an initializer has selected and not yet committed.
    pub(in crate::affinity) const TENTATIVE: u8 = 4;
    /// A departure took its binding, and nothing was bound since: whoever binds it now moves it (R07).
    pub(in crate::affinity) const LOST: u8 = 8;
    /// Its final turn has been committed (R19): the binding goes with its last lease.
    pub(in crate::affinity) const LAST: u8 = 16;
    /// On the idle list.
    pub(in crate::affinity) const LINKED: u8 = 32;
    /// Not bound; the version is of its removal, kept so that an older update can't undo it (R23).
    pub(in crate::affinity) const REMOVED: u8 = 64;
    /// Bound, and used since others were told of it last: that waits to be told, too (R23).
    pub(in crate::affinity) const WAITS: u8 = 128;
}

/// See the module.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    key: u128,
    sequence: u64,
    /// Since when it idles; of one in use, when it last began to.
    pub(super) idle_since: Time,
    writer: u32,
    /// Rises with every binding of this entry, whatever session it is of, so that a lease or hold of a
    /// dropped or replaced binding can't count for its successor (R13).
    pub(super) epoch: u32,
    pub(super) before: u32,
    pub(super) after: u32,
    worker: u32,
    rank: u16,
    /// At most [`super::table::CLAIMS_MOST`] with all holds: leases on what has departed go with it.
    pub(super) leases: u16,
    /// Whose binding it is, of those that are counted (`quota`).
    pub(super) tenant: u16,
    /// Uncommitted claims on the binding that stands; they keep it alive as leases do (R05).
    pub(super) bound_holds: u16,
    /// Uncommitted claims of every other kind.
    pub(super) other_holds: u16,
    flags: u8,
    /// Turns in a row that were served elsewhere since home was overloaded.
    pub(super) spills: u8,
}

const _: () = assert!(size_of::<Entry>() == 64, "an entry is a cache line");

impl Entry {
    const FREE: Self = Self {
        key: 0,
        sequence: 0,
        idle_since: Time::ZERO,
        writer: 0,
        epoch: 0,
        before: NONE,
        after: NONE,
        worker: 0,
        rank: NO_RANK,
        leases: 0,
        tenant: NOBODY,
        bound_holds: 0,
        other_holds: 0,
        flags: 0,
        spills: 0,
    };

    pub(super) fn key(&self) -> SessionKey {
        SessionKey(self.key)
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    fn target(&self) -> Target {
        let rank = (self.rank != NO_RANK).then_some(DpRank(self.rank));
        Target { worker: WorkerId(self.worker), rank }
    }

    pub(super) fn set_target(&mut self, target: Target) {
        (self.worker, self.rank) = (target.worker.0, target.rank.map_or(NO_RANK, |r| r.0));
    }

    pub(super) fn bound(&self) -> Option<Target> {
        self.is(flag::BOUND).then(|| self.target())
    }

    pub(super) fn tentative(&self) -> Option<Target> {
        self.is(flag::TENTATIVE).then(|| self.target())
    }

    /// Of its binding, or of its removal.
    pub(super) fn version(&self) -> Version {
        Version { sequence: self.sequence, writer: self.writer }
    }

    pub(super) fn set_version(&mut self, version: Version) {
        (self.sequence, self.writer) = (version.sequence, version.writer);
    }

    /// Whether its binding is in use and can't expire (R13).
    pub(super) fn pinned(&self) -> bool {
        self.leases > 0 || self.bound_holds > 0
    }

    /// Holds and leases, which R27 bounds.
    pub(super) fn claims(&self) -> u32 {
        u32::from(self.leases) + u32::from(self.bound_holds) + u32::from(self.other_holds)
    }

    /// Whether anything keeps the entry.
    pub(super) fn needed(&self) -> bool {
        self.is(flag::BOUND | flag::REMOVED) || self.other_holds > 0 || self.bound_holds > 0
    }
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct Slab {
    /// All but the last are full.
    chunks: Vec<Vec<Entry>>,
    /// The first free entry that was used before; the next is its `after`.
    free: Option<u32>,
    /// Entries from here on were never used.
    fresh: u32,
    len: usize,
}

impl Slab {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Numbers are below this.
    pub(super) fn end(&self) -> u32 {
        self.fresh
    }

    /// An entry for `key`. `None`: there are as many as numbers go.
    pub(super) fn insert(&mut self, key: SessionKey) -> Option<u32> {
        let slot = match self.free {
            Some(slot) => {
                self.free = Some(self[slot].after).filter(|next| *next != NONE);
                slot
            }
            None => {
                // One number is NONE, and cells of keys hold numbers plus one.
                if self.fresh >= NONE - 1 {
                    return None;
                }
                let chunk = match self.chunks.last_mut().filter(|c| c.len() < CHUNK as usize) {
                    Some(chunk) => chunk,
                    None => {
                        self.chunks.push(Vec::with_capacity(CHUNK as usize));
                        // Just pushed.
                        self.chunks.last_mut()?
                    }
                };
                chunk.push(Entry::FREE);
                self.fresh += 1;
                self.fresh - 1
            }
        };
        let entry = &mut self[slot];
        // Leases of earlier bindings may still name it: the epoch goes on.
        *entry = Entry { key: key.0, epoch: entry.epoch, flags: flag::USED, ..Entry::FREE };
        self.len += 1;
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let next = self.free.unwrap_or(NONE);
        let entry = &mut self[slot];
        (entry.flags, entry.after) = (0, next);
        self.free = Some(slot);
        self.len -= 1;
    }

    /// The entry, if it is somebody's.
    pub(super) fn get(&self, slot: u32) -> Option<&Entry> {
        let chunk = self.chunks.get((slot >> BITS) as usize)?;
        chunk.get((slot & (CHUNK - 1)) as usize).filter(|e| e.is(flag::USED))
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        let chunk = self.chunks.get_mut((slot >> BITS) as usize)?;
        chunk.get_mut((slot & (CHUNK - 1)) as usize).filter(|e| e.is(flag::USED))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK as usize * size_of::<Entry>()
            + self.chunks.capacity() * size_of::<Vec<Entry>>()
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Entry;

    fn index(&self, slot: u32) -> &Entry {
        &self.chunks[(slot >> BITS) as usize][(slot & (CHUNK - 1)) as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, slot: u32) -> &mut Entry {
        &mut self.chunks[(slot >> BITS) as usize][(slot & (CHUNK - 1)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_epochs_go_on() {
        let mut slab = Slab::default();
        let all: Vec<u32> = (0..10_000u128).map(|k| slab.insert(SessionKey(k)).unwrap()).collect();
        assert_eq!(all, (0..10_000).collect::<Vec<u32>>());
        slab[5_000].epoch = 7;
        slab.remove(5_000);
        slab.remove(3);
        assert!(slab.get(5_000).is_none() && slab.get(20_000).is_none());
        assert_eq!(slab.len(), 9_998);
        assert_eq!(slab.insert(SessionKey(1)), Some(3));
        assert_eq!(slab.insert(SessionKey(2)), Some(5_000));
        assert_eq!((slab[5_000].epoch, slab[5_000].key()), (7, SessionKey(2)));
        assert_eq!(slab.insert(SessionKey(3)), Some(10_000));
        assert_eq!(slab.end(), 10_001);
    }
}
