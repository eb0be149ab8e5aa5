//! Messages as they are written: names once, numbers where they are used.

use super::{Body, Head, Loads, Message, VERSION};
use homing_core::core::Publication;
use homing_core::ids::Role;
use rmp::encode::{
    ByteBuf, ValueWriteError, write_array_len, write_bin, write_nil, write_str, write_uint,
};
use std::convert::Infallible;
use std::sync::Arc;

pub(super) type Written = Result<(), ValueWriteError<Infallible>>;

/// How much of a message a register may take, its own names included but for their text.
const REGISTER_MOST: usize = 64;
/// What is around the registers.
const AROUND: usize = 128;

/// How many of these registers fit into a message of at most so many bytes, one at least.
#[must_use]
pub fn updates_that_fit(updates: &[Publication], bytes: usize) -> usize {
    let mut left = bytes.saturating_sub(AROUND);
    let mut last = (None, None);
    for (n, update) in updates.iter().enumerate() {
        let home = update.home.as_ref().map(|home| &home.worker);
        // Names are told apart by the one before alone: too much is counted, never too little.
        let mut size = REGISTER_MOST;
        if last.0 != Some(&update.pool) {
            size += update.pool.len() + 5;
        }
        if last.1 != home {
            size += home.map_or(0, |name| name.len() + 16);
        }
        last = (Some(&update.pool), home);
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => return n.max(1),
        }
    }
    updates.len()
}

/// A message's bytes.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let mut out = ByteBuf::new();
    // A buffer takes whatever is written; a message without a body is never written.
    let _ = write(&mut out, message);
    out.into_vec()
}

fn write(out: &mut ByteBuf, message: &Message) -> Written {
    let Head { writer, boot, sequence, now, group, reads } = message.head;
    let (kind, more) = match &message.body {
        Some(Body::Updates { loads: None, .. }) => (1, 3),
        Some(Body::Updates { loads: Some(_), .. }) => (1, 6),
        Some(Body::Loads(_)) => (2, 3),
        Some(Body::Hello) | None => (3, 0),
        Some(Body::Fetch { .. }) => (4, 2),
        Some(Body::Chunk { .. }) => (5, 4),
        Some(Body::Bye) => (6, 0),
    };
    write_array_len(out, 8 + more)?;
    for number in [VERSION, writer.into(), boot, sequence, now.as_micros(), group, kind] {
        write_uint(out, number)?;
    }
    let mut along = None;
    match &message.body {
        Some(Body::Updates { updates, loads }) => {
            registers(out, updates)?;
            along = loads.as_ref();
        }
        Some(Body::Chunk { next, updates }) => {
            optional(out, *next)?;
            registers(out, updates)?;
        }
        Some(Body::Loads(loads)) => targets(out, loads)?,
        Some(Body::Fetch { since, cursor }) => {
            write_uint(out, since.as_micros())?;
            write_uint(out, *cursor)?;
        }
        Some(Body::Hello | Body::Bye) | None => {}
    }
    write_uint(out, reads)?;
    along.map_or(Ok(()), |loads| targets(out, loads))
}

fn targets(out: &mut ByteBuf, Loads { whole, targets }: &Loads) -> Written {
    write_uint(out, u64::from(*whole))?;
    let mut workers = Names::default();
    let of: Vec<u64> = targets.iter().map(|(worker, ..)| workers.number(worker)).collect();
    workers.write(out)?;
    write_array_len(out, len(targets.len()))?;
    for (worker, (_, rank, load)) in of.iter().zip(targets) {
        write_array_len(out, 7)?;
        let active = load.active_requests.into();
        let (decoding, prefill) = (load.decoding.into(), load.prefill_tokens);
        for n in [*worker, rank.0.into(), active, decoding, prefill, load.blocks, load.context] {
            write_uint(out, n)?;
        }
    }
    Ok(())
}

fn registers(out: &mut ByteBuf, updates: &[Publication]) -> Written {
    let (mut pools, mut homes) = (Names::default(), Vec::<(&Arc<str>, Option<u64>)>::new());
    let mut of = Vec::with_capacity(updates.len());
    for update in updates {
        let home = update.home.as_ref().map(|home| {
            let it = (&home.worker, home.started);
            // Sessions of one worker often come together.
            homes.iter().rposition(|known| *known == it).unwrap_or_else(|| {
                homes.push(it);
                homes.len() - 1
            })
        });
        of.push((pools.number(&update.pool), home));
    }
    pools.write(out)?;
    write_array_len(out, len(homes.len()))?;
    for (worker, started) in homes {
        write_array_len(out, 2)?;
        write_str(out, worker)?;
        optional(out, started)?;
    }
    write_array_len(out, len(updates.len()))?;
    for ((pool, home), update) in of.into_iter().zip(updates) {
        write_array_len(out, 8)?;
        write_uint(out, pool)?;
        write_uint(out, role_number(update.role))?;
        write_bin(out, &update.key.0.to_be_bytes())?;
        write_uint(out, update.version.sequence)?;
        write_uint(out, update.version.writer.into())?;
        optional(out, home.map(|home| home as u64))?;
        let rank = update.home.as_ref().and_then(|home| home.rank);
        optional(out, rank.map(|rank| rank.0.into()))?;
        write_uint(out, update.used.as_micros())?;
    }
    Ok(())
}

pub(super) const fn role_number(role: Role) -> u64 {
    match role {
        Role::Aggregated => 0,
        Role::Prefill => 1,
        Role::Decode => 2,
    }
}

pub(super) fn optional(out: &mut ByteBuf, number: Option<u64>) -> Written {
    match number {
        Some(number) => write_uint(out, number).map(drop),
        None => write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite),
    }
}

fn len(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Names by the order in which they come first. There are few of them in a message.
#[derive(Default)]
struct Names<'a>(Vec<&'a Arc<str>>);

impl<'a> Names<'a> {
    fn number(&mut self, name: &'a Arc<str>) -> u64 {
        let known = self.0.iter().rposition(|known| *known == name);
        known.unwrap_or_else(|| {
            self.0.push(name);
            self.0.len() - 1
        }) as u64
    }

    fn write(&self, out: &mut ByteBuf) -> Written {
        write_array_len(out, len(self.0.len()))?;
        self.0.iter().try_for_each(|name| write_str(out, name))
    }
}
