//! What a shared store keeps of one session (R24).

use super::read::{List, role};
use super::write::{Written, optional, role_number};
use super::{ReplicaError, VERSION};
use crate::msgpack::Reader;
use homing_core::affinity::version::Version;
use homing_core::core::{Home, Publication};
use homing_core::time::Time;
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_bin, write_nil, write_str, write_uint,
};

/// What a record stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Its first turn is about to run there.
    Tentative,
    /// It lives there.
    Bound,
    /// It lives nowhere any more.
    Removed,
}

/// A session's register in a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it stands for.
    pub kind: RecordKind,
    /// The register.
    pub publication: Publication,
    /// A tentative one: until when it holds, by the clock of its writer, where the store doesn't end it by itself.
    pub until: Option<Time>,
    /// A digest of its writer's session secret, as in messages; `None`: an earlier release wrote it.
    pub group: Option<u64>,
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = ByteBuf::new();
        // A buffer takes whatever is written.
        let _ = self.write(&mut out);
        out.into_vec()
    }

    fn write(&self, out: &mut ByteBuf) -> Written {
        let p = &self.publication;
        write_array_len(out, 13)?;
        write_uint(out, VERSION)?;
        write_uint(
            out,
            match self.kind {
                RecordKind::Tentative => 0,
                RecordKind::Bound => 1,
                RecordKind::Removed => 2,
            },
        )?;
        write_str(out, &p.pool)?;
        write_uint(out, role_number(p.role))?;
        write_bin(out, &p.key.0.to_be_bytes())?;
        write_uint(out, p.version.sequence)?;
        write_uint(out, p.version.writer.into())?;
        match &p.home {
            Some(home) => write_str(out, &home.worker)?,
            None => write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)?,
        }
        let home = p.home.as_ref();
        optional(out, home.and_then(|home| home.rank).map(|rank| rank.0.into()))?;
        optional(out, home.and_then(|home| home.started))?;
        write_uint(out, p.used.as_micros())?;
        optional(out, self.until.map(Time::as_micros))?;
        optional(out, self.group)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`ReplicaError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ReplicaError> {
        let mut it = List::open(Reader::new(bytes), "a record")?;
        it.version()?;
        let kind = match it.number("a kind")? {
            0 => RecordKind::Tentative,
            1 => RecordKind::Bound,
            2 => RecordKind::Removed,
            _ => return Err(ReplicaError::Foreign("a kind of record")),
        };
        let pool = it.name("a pool")?;
        let role = role(it.number("a role")?)?;
        let key = it.key()?;
        let version = Version { sequence: it.number("a sequence")?, writer: it.u32("a writer")? };
        let worker = it.optional_name("a worker")?;
        let (rank, started) = (it.rank()?, it.optional("a start")?);
        let home = worker.map(|worker| Home { worker, rank, started });
        let used = Time::from_micros(it.number("a time")?);
        let until = it.optional("a time")?.map(Time::from_micros);
        let group = it.optional_last("a group")?;
        it.close()?.finish()?;
        if home.is_none() != (kind == RecordKind::Removed) {
            return Err(ReplicaError::Foreign("a worker, but of what is removed"));
        }
        let publication = Publication { pool, role, key, version, home, used };
        Ok(Self { kind, publication, until, group })
    }
}
