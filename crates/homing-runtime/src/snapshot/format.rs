//! The bytes of a snapshot, and nothing that reads or writes files: encoding, decoding, bounds.
//!
//! All numbers are little-endian; every checksum is xxh3-64 with seed 0 (against accidents: it is no
//! signature).
//!
//! ```text
//! file     header, block*, end block; nothing may follow
//!
//! header   0  magic      8   "HOMING", 0x1a, "\n"
//!          8  version    u32
//!         12  length     u32  of the whole header with its checksum
//!         16  created    u64  Unix microseconds
//!         24  keying     u32  1: the secret itself; 2: the fingerprint of a key file's secret
//!         28  zero       u32
//!         32  secret     32   or the fingerprint
//!         64  checksum   u64  of all before it
//!
//! block    0  kind       u32  1 bindings, 2 places, 3 lives, 4 end
//!          4  count      u32  records in it: 1..=4096, in an end block 0
//!          8  length     u32  of the payload: at most 256 KiB
//!         12  payload
//!          .  checksum   u64  of the block before it
//!
//! binding  0  key        16   place  0  role    u8   0 aggregated, 1 prefill, 2 decode
//!         16  sequence   u64         1  length  u16  of the name, at most 4096
//!         24  idle since u64         3  name         UTF-8
//!         32  place      u32
//!         36  worker     u32  life   0  id      u32
//!         40  writer     u32         4  known   u8   1: the start time is known
//!         44  rank       u16         5  started u64  Unix milliseconds; 0 if not known
//!         46  flags      u16        13  length  u16  of the name, at most 4096
//!              1: has a rank        15  name         UTF-8
//!              2: last
//!
//! end      0  bindings   u64  then places u64, lives u64, blocks before this one u64
//!         32  checksum   u64  of the file before this block
//! ```
//!
//! A binding names its place by its position among all places of the file. What a later version keeps
//! for ever: the first 16 bytes, and a checksum in the last 8 of `length`. So a newer file is known to
//! be newer and not taken for a damaged one.

use super::key::{Fingerprint, Secret};
use super::{Header, Keying, Life, Place, SavedBinding};
use homing_core::ids::Role;
use xxhash_rust::xxh3::xxh3_64;

/// The format that this version writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// No text file begins like this, and a transfer that mends line ends breaks it.
pub(super) const MAGIC: [u8; 8] = *b"HOMING\x1a\n";

/// Where the part of the header ends that all versions share.
pub(super) const PREAMBLE: usize = 16;

/// The whole header of this version.
pub(super) const HEADER: usize = 72;

/// The longest header that a later version may have: what is read to tell newer from damaged.
pub(super) const HEADER_MAX: usize = 4096;

/// Bytes before a block's payload.
pub(super) const HEAD: usize = 12;

/// Bytes of a checksum.
pub(super) const SUM: usize = 8;

/// Records in a block: 192 KiB of bindings, few enough to load in short steps.
pub(super) const RECORDS_MAX: usize = 4096;

/// The longest payload; what a reader allocates, whatever a file claims.
pub(super) const PAYLOAD_MAX: usize = 256 << 10;

/// Bytes of a binding.
pub(super) const BINDING: usize = 48;

/// Bytes of an end block's payload.
pub(super) const END: usize = 40;

/// Longest name of a pool or worker, in bytes. The settings allow 256.
pub(super) const NAME_MAX: usize = 4096;

/// Places in a file. The settings allow 256 models, each with three roles.
pub(super) const PLACES_MAX: usize = 1 << 16;

/// Lives in a file. The settings allow 4096 workers; these are those and their earlier lives.
pub(super) const LIVES_MAX: usize = 1 << 20;

const HAS_RANK: u16 = 1;
const LAST: u16 = 2;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Bindings = 1,
    Places = 2,
    Lives = 3,
    End = 4,
}

impl Kind {
    pub(super) fn from_code(code: u32) -> Option<Self> {
        [Self::Bindings, Self::Places, Self::Lives, Self::End]
            .into_iter()
            .find(|kind| *kind as u32 == code)
    }
}

/// How much a file holds; the end block repeats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) bindings: u64,
    pub(super) places: u64,
    pub(super) lives: u64,
    pub(super) blocks: u64,
}

impl Totals {
    /// Counts a block in.
    pub(super) fn add(&mut self, kind: Kind, count: usize) {
        let sum = match kind {
            Kind::Bindings => &mut self.bindings,
            Kind::Places => &mut self.places,
            Kind::Lives => &mut self.lives,
            Kind::End => return,
        };
        *sum += count as u64;
        self.blocks += 1;
    }
}

pub(super) fn header(header: &Header) -> [u8; HEADER] {
    let (code, bytes) = match &header.keying {
        Keying::Own(secret) => (1u32, secret.as_bytes()),
        Keying::KeyFile(print) => (2, print.as_bytes()),
    };
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(HEADER as u32).to_le_bytes());
    out[16..24].copy_from_slice(&header.created.to_le_bytes());
    out[24..28].copy_from_slice(&code.to_le_bytes());
    out[32..64].copy_from_slice(bytes);
    let sum = xxh3_64(&out[..HEADER - SUM]);
    out[HEADER - SUM..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The version and the header's length, from the bytes that all versions share; `None` if they are
/// no snapshot's.
pub(super) fn preamble(mut bytes: &[u8]) -> Option<(u32, usize)> {
    let from = &mut bytes;
    if take::<8>(from)? != MAGIC {
        return None;
    }
    let version = u32::from_le_bytes(take(from)?);
    let length = u32::from_le_bytes(take(from)?) as usize;
    let fits = (PREAMBLE + SUM..=HEADER_MAX).contains(&length) && version > 0;
    fits.then_some((version, length))
}

/// Whether the last 8 bytes are the checksum of those before.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk::<SUM>()
        .is_some_and(|(body, sum)| u64::from_le_bytes(*sum) == xxh3_64(body))
}

/// A header of this version, whose checksum has been looked at; `None` if it can't be one.
pub(super) fn parse_header(bytes: &[u8]) -> Option<Header> {
    let mut rest = bytes.get(PREAMBLE..HEADER - SUM).filter(|_| bytes.len() == HEADER)?;
    let from = &mut rest;
    let created = u64::from_le_bytes(take(from)?);
    let code = u32::from_le_bytes(take(from)?);
    let _zero = take::<4>(from)?;
    let bytes = take::<32>(from)?;
    let keying = match code {
        1 => Keying::Own(Secret::new(bytes)),
        2 => Keying::KeyFile(Fingerprint::from_bytes(bytes)),
        _ => return None,
    };
    Some(Header { created, keying })
}

/// Fills in the first 12 bytes of `block`, which were left free, and appends its checksum. The
/// payload is within [`PAYLOAD_MAX`].
pub(super) fn seal(block: &mut Vec<u8>, kind: Kind, count: usize) {
    let length = block.len() - HEAD;
    debug_assert!(length <= PAYLOAD_MAX && count <= RECORDS_MAX, "{kind:?}: {count}, {length}");
    block[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    block[4..8].copy_from_slice(&(count as u32).to_le_bytes());
    block[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    let sum = xxh3_64(block);
    block.extend_from_slice(&sum.to_le_bytes());
}

/// The code of the kind, the count and the payload's length.
pub(super) fn head(bytes: &[u8; HEAD]) -> (u32, usize, usize) {
    let [a, b, c] = [0, 4, 8].map(|at| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at..at + 4]);
        u32::from_le_bytes(word)
    });
    (a, b as usize, c as usize)
}

pub(super) fn put_binding(out: &mut Vec<u8>, it: &SavedBinding) {
    let flag = |on: bool, bit| if on { bit } else { 0 };
    let flags = flag(it.rank.is_some(), HAS_RANK) | flag(it.last, LAST);
    out.extend_from_slice(&it.key.to_le_bytes());
    out.extend_from_slice(&it.sequence.to_le_bytes());
    out.extend_from_slice(&it.idle_since.to_le_bytes());
    out.extend_from_slice(&it.partition.to_le_bytes());
    out.extend_from_slice(&it.worker.to_le_bytes());
    out.extend_from_slice(&it.writer.to_le_bytes());
    out.extend_from_slice(&it.rank.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
}

/// One binding; `None` if there are too few bytes, or they say what no writer says.
pub(super) fn take_binding(from: &mut &[u8]) -> Option<SavedBinding> {
    let key = u128::from_le_bytes(take(from)?);
    let sequence = u64::from_le_bytes(take(from)?);
    let idle_since = u64::from_le_bytes(take(from)?);
    let partition = u32::from_le_bytes(take(from)?);
    let worker = u32::from_le_bytes(take(from)?);
    let writer = u32::from_le_bytes(take(from)?);
    let rank = u16::from_le_bytes(take(from)?);
    let flags = u16::from_le_bytes(take(from)?);
    let has_rank = flags & HAS_RANK != 0;
    if flags & !(HAS_RANK | LAST) != 0 || (!has_rank && rank != 0) {
        return None;
    }
    let (rank, last) = (has_rank.then_some(rank), flags & LAST != 0);
    Some(SavedBinding { partition, key, worker, rank, sequence, writer, idle_since, last })
}

/// `false`, and nothing written, if the name is too long.
pub(super) fn put_place(out: &mut Vec<u8>, place: &Place) -> bool {
    if place.pool.len() > NAME_MAX {
        return false;
    }
    out.push(match place.role {
        Role::Aggregated => 0,
        Role::Prefill => 1,
        Role::Decode => 2,
    });
    put_name(out, &place.pool);
    true
}

/// One place; `None` as with bindings.
pub(super) fn take_place(from: &mut &[u8]) -> Option<Place> {
    let role = match take(from)? {
        [0] => Role::Aggregated,
        [1] => Role::Prefill,
        [2] => Role::Decode,
        _ => return None,
    };
    Some(Place { pool: take_name(from)?, role })
}

/// `false`, and nothing written, if the name is too long.
pub(super) fn put_life(out: &mut Vec<u8>, life: &Life) -> bool {
    if life.name.len() > NAME_MAX {
        return false;
    }
    out.extend_from_slice(&life.id.to_le_bytes());
    out.push(u8::from(life.started.is_some()));
    out.extend_from_slice(&life.started.unwrap_or(0).to_le_bytes());
    put_name(out, &life.name);
    true
}

/// One life; `None` as with bindings.
pub(super) fn take_life(from: &mut &[u8]) -> Option<Life> {
    let id = u32::from_le_bytes(take(from)?);
    let known = take::<1>(from)?;
    let started = u64::from_le_bytes(take(from)?);
    let started = match (known, started) {
        ([0], 0) => None,
        ([1], at) => Some(at),
        _ => return None,
    };
    Some(Life { id, name: take_name(from)?, started })
}

/// Appends the payload of an end block. `whole` is the checksum of the file before it.
pub(super) fn put_end(out: &mut Vec<u8>, totals: Totals, whole: u64) {
    for number in [totals.bindings, totals.places, totals.lives, totals.blocks, whole] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// The totals and the checksum of an end block's payload.
pub(super) fn take_end(from: &mut &[u8]) -> Option<(Totals, u64)> {
    let mut number = || take(from).map(u64::from_le_bytes);
    let (bindings, places, lives, blocks) = (number()?, number()?, number()?, number()?);
    Some((Totals { bindings, places, lives, blocks }, number()?))
}

/// The length fits its 16 bits: callers have compared it with [`NAME_MAX`].
fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

fn take_name(from: &mut &[u8]) -> Option<String> {
    let length = usize::from(u16::from_le_bytes(take(from)?));
    let (name, rest) = from.split_at_checked(length).filter(|_| length <= NAME_MAX)?;
    *from = rest;
    std::str::from_utf8(name).ok().map(str::to_owned)
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*head)
}
