//! The greeting: 64 bytes that each side sends at once, of which the peer's are looked at one by one, since who
//! speaks something else may never send them all.
//!
//! Signature (0xff, eight of padding, 0x7f), version (major, minor), mechanism (20, filled up with 0), as-server,
//! filler.

use super::{ZmtpError, shown};

pub(super) const LENGTH: usize = 64;
const MAJOR: usize = 10;
const MINOR: usize = 11;
const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: &[u8; 4] = b"NULL";

/// What we say.
pub(super) fn build() -> [u8; LENGTH] {
    let mut greeting = [0; LENGTH];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    (greeting[MAJOR], greeting[MINOR]) = (3, 1);
    greeting[MECHANISM.start..][..NULL.len()].copy_from_slice(NULL);
    greeting
}

/// The peer's, as far as it has come.
#[derive(Debug)]
pub(super) struct Greeting {
    bytes: [u8; LENGTH],
    length: usize,
}

impl Default for Greeting {
    fn default() -> Self {
        Self { bytes: [0; LENGTH], length: 0 }
    }
}

impl Greeting {
    /// Takes what belongs to it; once it is whole, the minor version that the peer and we have in common.
    pub(super) fn read(&mut self, input: &mut &[u8]) -> Result<Option<u8>, ZmtpError> {
        while self.length < LENGTH {
            let Some(byte) = input.split_off_first().copied() else { return Ok(None) };
            match self.length {
                0 if byte != 0xff => return Err(ZmtpError::NotZmtp(byte)),
                9 if byte != 0x7f => return Err(ZmtpError::NotZmtp(0xff)),
                MAJOR if byte < 3 => return Err(ZmtpError::OldVersion(byte)),
                _ => {}
            }
            self.bytes[self.length] = byte;
            self.length += 1;
        }
        let mechanism = &self.bytes[MECHANISM];
        let end = mechanism.iter().position(|byte| *byte == 0).unwrap_or(mechanism.len());
        if mechanism[..end] != *NULL {
            return Err(ZmtpError::Mechanism(shown(&mechanism[..end])));
        }
        // Who speaks a later one speaks ours as well.
        Ok(Some(if self.bytes[MAJOR] > 3 { 1 } else { self.bytes[MINOR].min(1) }))
    }
}
