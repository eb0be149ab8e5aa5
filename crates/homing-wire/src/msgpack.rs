//! A cursor over msgpack bytes that takes nothing on trust.
//!
//! It hands out one item at a time; arrays and maps are only announced, so nothing here recurses and
//! nesting needs no limit: [`Reader::skip`] counts the values still owed instead of calling itself. A
//! length that the rest of the payload could not hold is refused before anybody makes room for it.
//! The cursor is `Copy`: keeping one is how a reader goes back.

use rmp::Marker;

/// Why a payload is not a batch of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A value says that it is longer than what is left.
    #[error("msgpack ends in the middle of a value at byte {at}")]
    Truncated {
        /// Offset in the payload.
        at: usize,
    },
    /// The byte 0xc1, which msgpack never uses.
    #[error("byte {at} is no msgpack")]
    NotMsgpack {
        /// Offset in the payload.
        at: usize,
    },
    /// Bytes after the batch.
    #[error("{count} bytes follow the batch at byte {at}")]
    Trailing {
        /// Offset in the payload.
        at: usize,
        /// How many.
        count: usize,
    },
    /// Well-formed msgpack of another shape.
    #[error("not an event batch: expected {0}")]
    NotABatch(&'static str),
}

/// One value, or the head of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    Nil,
    Bool,
    /// Any integer from 0 up, however it was written.
    UInt(u64),
    /// A negative integer.
    Int(i64),
    Float(f64),
    /// Text, not yet checked to be UTF-8.
    Str(&'a [u8]),
    Bin(&'a [u8]),
    /// This many values follow.
    Array(u32),
    /// This many pairs of values follow.
    Map(u32),
    Ext,
}

impl Item<'_> {
    /// How many values follow as part of this one.
    pub(crate) fn inside(self) -> u64 {
        match self {
            Self::Array(n) => n.into(),
            Self::Map(n) => 2 * u64::from(n),
            _ => 0,
        }
    }
}

/// A place in a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    payload: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(payload: &'a [u8]) -> Self {
        Self { payload, at: 0 }
    }

    /// The next value; of an array or a map only its head.
    pub(crate) fn item(&mut self) -> Result<Item<'a>, DecodeError> {
        let [marker] = self.fixed()?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Item::Nil,
            Marker::True | Marker::False => Item::Bool,
            Marker::FixPos(n) => Item::UInt(n.into()),
            Marker::U8 => Item::UInt(self.uint::<1>()?),
            Marker::U16 => Item::UInt(self.uint::<2>()?),
            Marker::U32 => Item::UInt(self.uint::<4>()?),
            Marker::U64 => Item::UInt(self.uint::<8>()?),
            Marker::FixNeg(n) => Item::Int(n.into()),
            Marker::I8 => signed(i8::from_be_bytes(self.fixed()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.fixed()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.fixed()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.fixed()?)),
            Marker::F32 => Item::Float(f32::from_be_bytes(self.fixed()?).into()),
            Marker::F64 => Item::Float(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(n) => Item::Str(self.bytes(n.into())?),
            Marker::Str8 => Item::Str(self.sized::<1>()?),
            Marker::Str16 => Item::Str(self.sized::<2>()?),
            Marker::Str32 => Item::Str(self.sized::<4>()?),
            Marker::Bin8 => Item::Bin(self.sized::<1>()?),
            Marker::Bin16 => Item::Bin(self.sized::<2>()?),
            Marker::Bin32 => Item::Bin(self.sized::<4>()?),
            Marker::FixArray(n) => Item::Array(self.owed(n.into(), 1)?),
            Marker::Array16 => self.uint::<2>().and_then(|n| self.owed(n, 1)).map(Item::Array)?,
            Marker::Array32 => self.uint::<4>().and_then(|n| self.owed(n, 1)).map(Item::Array)?,
            Marker::FixMap(n) => Item::Map(self.owed(n.into(), 2)?),
            Marker::Map16 => self.uint::<2>().and_then(|n| self.owed(n, 2)).map(Item::Map)?,
            Marker::Map32 => self.uint::<4>().and_then(|n| self.owed(n, 2)).map(Item::Map)?,
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.uint::<1>().and_then(|n| self.ext(n))?,
            Marker::Ext16 => self.uint::<2>().and_then(|n| self.ext(n))?,
            Marker::Ext32 => self.uint::<4>().and_then(|n| self.ext(n))?,
            Marker::Reserved => return Err(DecodeError::NotMsgpack { at: self.at - 1 }),
        })
    }

    /// Passes over one whole value with all that is in it.
    pub(crate) fn skip(&mut self) -> Result<(), DecodeError> {
        let head = self.item()?;
        self.rest_of(head)
    }

    /// Passes over what is inside a value whose head was read.
    pub(crate) fn rest_of(&mut self, head: Item<'a>) -> Result<(), DecodeError> {
        // A payload of 4 GiB could not make this overflow: each step adds 2^33 at most.
        let mut owed = head.inside();
        while owed > 0 {
            owed = owed - 1 + self.item()?.inside();
        }
        Ok(())
    }

    /// That nothing is left.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing { at: self.at, count }),
        }
    }

    fn left(&self) -> usize {
        self.payload.len() - self.at
    }

    fn truncated(&self) -> DecodeError {
        DecodeError::Truncated { at: self.at }
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.payload.get(self.at..).and_then(|rest| rest.get(..len));
        let bytes = rest.ok_or_else(|| self.truncated())?;
        self.at += len;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let rest = self.payload.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let bytes = *rest.ok_or_else(|| self.truncated())?;
        self.at += N;
        Ok(bytes)
    }

    /// An unsigned integer of `N` bytes, at most 8.
    fn uint<const N: usize>(&mut self) -> Result<u64, DecodeError> {
        let bytes: [u8; N] = self.fixed()?;
        Ok(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Bytes behind a length of `N` bytes.
    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.uint::<N>()?;
        self.bytes(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// `count` if that many things of at least `each` bytes can still follow.
    fn owed(&self, count: u64, each: u64) -> Result<u32, DecodeError> {
        match u32::try_from(count) {
            Ok(n) if count * each <= self.left() as u64 => Ok(n),
            _ => Err(self.truncated()),
        }
    }

    fn ext(&mut self, len: u64) -> Result<Item<'a>, DecodeError> {
        // One byte more: the type of the extension.
        self.bytes(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1))?;
        Ok(Item::Ext)
    }
}

fn signed<'a>(value: i64) -> Item<'a> {
    u64::try_from(value).map_or(Item::Int(value), Item::UInt)
}
