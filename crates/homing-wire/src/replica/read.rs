//! Messages as they are read: whatever a peer sends, and no more than a bound of each.

use super::{Body, ENTRIES_MAX, Head, Loads, Message, NAME_MAX, ReplicaError, VERSION};
use crate::msgpack::{Item, Reader};
use homing_core::affinity::version::Version;
use homing_core::core::{Home, Publication};
use homing_core::ids::{DpRank, Role, SessionKey};
use homing_core::load::PeerLoad;
use homing_core::time::Time;
use std::sync::Arc;

type Read<T> = Result<T, ReplicaError>;

/// Reads a message.
///
/// # Errors
/// [`ReplicaError`]; nothing of it counts then.
pub fn decode(bytes: &[u8]) -> Read<Message> {
    let mut it = List::open(Reader::new(bytes), "a message")?;
    it.version()?;
    let mut head = Head {
        writer: it.u32("a writer")?,
        boot: it.number("a boot")?,
        sequence: it.number("a sequence")?,
        now: Time::from_micros(it.number("a time")?),
        group: it.number("a group")?,
        reads: 0,
    };
    let mut body = match it.number("a kind")? {
        1 => Some(Body::Updates { updates: registers(&mut it)?, loads: None }),
        2 => Some(Body::Loads(loads(&mut it)?)),
        3 => Some(Body::Hello),
        4 => {
            let since = Time::from_micros(it.number("a time")?);
            Some(Body::Fetch { since, cursor: it.number("a cursor")? })
        }
        5 => {
            let next = it.optional("a cursor")?;
            Some(Body::Chunk { next, updates: registers(&mut it)? })
        }
        6 => Some(Body::Bye),
        _ => None,
    };
    // Of a kind that is not known nothing is known to come where.
    if body.is_some() {
        head.reads = it.optional_last("what it reads")?.unwrap_or(0);
    }
    if let Some(Body::Updates { loads: along, .. }) = &mut body
        && head.reads > 0
        && it.left > 0
    {
        *along = Some(loads(&mut it)?);
    }
    it.close()?.finish()?;
    Ok(Message { head, body })
}

fn registers(it: &mut List<'_>) -> Read<Vec<Publication>> {
    let pools = it.list("pools", |it| it.name("a pool"))?;
    let homes = it.list("homes", |it| {
        let mut it = it.inner("a home")?;
        let home = (it.name("a worker")?, it.optional("a start")?);
        it.end()?;
        Ok(home)
    })?;
    it.list("registers", |outer| {
        let mut it = outer.inner("a register")?;
        let pool = it.number("a pool")?;
        let pool = pools.get(usize::try_from(pool).unwrap_or(usize::MAX));
        let pool = pool.ok_or(ReplicaError::Foreign("a pool that is named"))?.clone();
        let role = role(it.number("a role")?)?;
        let key = it.key()?;
        let version = Version { sequence: it.number("a sequence")?, writer: it.u32("a writer")? };
        let home = it.optional("a home")?;
        let rank = it.rank()?;
        let home = home
            .map(|n| {
                let home = homes.get(usize::try_from(n).unwrap_or(usize::MAX));
                let (worker, started) =
                    home.ok_or(ReplicaError::Foreign("a home that is named"))?;
                Ok::<_, ReplicaError>(Home { worker: worker.clone(), rank, started: *started })
            })
            .transpose()?;
        let used = Time::from_micros(it.number("a time")?);
        it.end()?;
        Ok(Publication { pool, role, key, version, home, used })
    })
}

fn loads(it: &mut List<'_>) -> Read<Loads> {
    let whole = it.number("a flag")? != 0;
    let workers = it.list("workers", |it| it.name("a worker"))?;
    let targets = it.list("targets", |outer| {
        let mut it = outer.inner("a target")?;
        let worker = usize::try_from(it.number("a worker")?).unwrap_or(usize::MAX);
        let worker = workers.get(worker).ok_or(ReplicaError::Foreign("a worker that is named"))?;
        let rank = it.number("a rank")?;
        let rank = u16::try_from(rank).map_err(|_| ReplicaError::Foreign("a rank"))?;
        let load = PeerLoad {
            active_requests: it.u32("requests")?,
            decoding: it.u32("requests")?,
            prefill_tokens: it.number("tokens")?,
            blocks: it.number("blocks")?,
            context: it.number("tokens")?,
        };
        it.end()?;
        Ok((worker.clone(), DpRank(rank), load))
    })?;
    Ok(Loads { whole, targets })
}

pub(super) const fn role(number: u64) -> Read<Role> {
    match number {
        0 => Ok(Role::Aggregated),
        1 => Ok(Role::Prefill),
        2 => Ok(Role::Decode),
        _ => Err(ReplicaError::Foreign("a role")),
    }
}

/// A list that is read from its beginning; what is left of it at its end is passed over.
pub(super) struct List<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> List<'a> {
    pub(super) fn open(mut reader: Reader<'a>, what: &'static str) -> Read<Self> {
        match reader.item()? {
            Item::Array(left) => Ok(Self { reader, left }),
            _ => Err(ReplicaError::Foreign(what)),
        }
    }

    /// Its first number.
    pub(super) fn version(&mut self) -> Read<()> {
        match self.number("a version")? {
            VERSION => Ok(()),
            other => Err(ReplicaError::Version(other)),
        }
    }

    /// Passes over the rest.
    pub(super) fn close(mut self) -> Read<Reader<'a>> {
        while self.left > 0 {
            self.left -= 1;
            self.reader.skip()?;
        }
        Ok(self.reader)
    }

    fn next(&mut self, what: &'static str) -> Read<Item<'a>> {
        self.left = self.left.checked_sub(1).ok_or(ReplicaError::Foreign(what))?;
        Ok(self.reader.item()?)
    }

    pub(super) fn number(&mut self, what: &'static str) -> Read<u64> {
        match self.next(what)? {
            Item::UInt(n) => Ok(n),
            _ => Err(ReplicaError::Foreign(what)),
        }
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Read<u32> {
        u32::try_from(self.number(what)?).map_err(|_| ReplicaError::Foreign(what))
    }

    pub(super) fn optional(&mut self, what: &'static str) -> Read<Option<u64>> {
        match self.next(what)? {
            Item::UInt(n) => Ok(Some(n)),
            Item::Nil => Ok(None),
            _ => Err(ReplicaError::Foreign(what)),
        }
    }

    /// What later releases say at the end.
    pub(super) fn optional_last(&mut self, what: &'static str) -> Read<Option<u64>> {
        if self.left == 0 { Ok(None) } else { self.optional(what) }
    }

    pub(super) fn rank(&mut self) -> Read<Option<DpRank>> {
        let rank = self.optional("a rank")?.map(u16::try_from).transpose();
        Ok(rank.map_err(|_| ReplicaError::Foreign("a rank"))?.map(DpRank))
    }

    pub(super) fn key(&mut self) -> Read<SessionKey> {
        match self.next("a session")? {
            Item::Bin(key) => {
                let key = key.try_into().map_err(|_| ReplicaError::Foreign("a session"))?;
                Ok(SessionKey(u128::from_be_bytes(key)))
            }
            _ => Err(ReplicaError::Foreign("a session")),
        }
    }

    pub(super) fn name(&mut self, what: &'static str) -> Read<Arc<str>> {
        let named = self.optional_name(what)?;
        named.ok_or(ReplicaError::Foreign(what))
    }

    pub(super) fn optional_name(&mut self, what: &'static str) -> Read<Option<Arc<str>>> {
        match self.next(what)? {
            Item::Nil => Ok(None),
            Item::Str(text) if (1..=NAME_MAX).contains(&text.len()) => {
                let text = std::str::from_utf8(text).map_err(|_| ReplicaError::Foreign(what))?;
                Ok(Some(text.into()))
            }
            _ => Err(ReplicaError::Foreign(what)),
        }
    }

    /// The list that comes next: read it with what this gives, then [`Self::end`] it there.
    fn inner<'b>(&'b mut self, what: &'static str) -> Read<Inner<'a, 'b>> {
        match self.next(what)? {
            Item::Array(left) => {
                let list = List { reader: self.reader, left };
                Ok(Inner { list, outer: &mut self.reader })
            }
            _ => Err(ReplicaError::Foreign(what)),
        }
    }

    fn list<T>(
        &mut self,
        what: &'static str,
        mut each: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let Item::Array(n) = self.next(what)? else { return Err(ReplicaError::Foreign(what)) };
        if n as usize > ENTRIES_MAX {
            return Err(ReplicaError::Foreign("fewer entries"));
        }
        let mut inside = Self { reader: self.reader, left: n };
        let mut all = Vec::with_capacity(n as usize);
        for _ in 0..n {
            all.push(each(&mut inside)?);
        }
        self.reader = inside.reader;
        Ok(all)
    }
}

/// A list within a list.
struct Inner<'a, 'b> {
    list: List<'a>,
    outer: &'b mut Reader<'a>,
}

impl Inner<'_, '_> {
    /// What is left of it is passed over, and the outer list goes on behind it.
    fn end(self) -> Read<()> {
        *self.outer = self.list.close()?;
        Ok(())
    }
}

impl<'a> std::ops::Deref for Inner<'a, '_> {
    type Target = List<'a>;

    fn deref(&self) -> &List<'a> {
        &self.list
    }
}

impl<'a> std::ops::DerefMut for Inner<'a, '_> {
    fn deref_mut(&mut self) -> &mut List<'a> {
        &mut self.list
    }
}
