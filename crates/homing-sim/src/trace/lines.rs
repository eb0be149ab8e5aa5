//! Lines out of bytes that may be compressed, each with its number and none longer than may be.

use super::TraceError;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};

/// Bytes of one line, at most. A recorded session of a few hundred turns has 4 MiB.
const MAX_LINE: usize = 256 << 20;
/// Bytes of all lines, decompressed, at most.
const MAX_BYTES: u64 = 64 << 30;
/// What a zstd frame may ask for: 128 MiB (`--long=27`), as its own tool allows.
const ZSTD_WINDOW: u32 = 27;

/// Lines with their numbers.
pub(super) struct Lines<'a> {
    from: Box<dyn BufRead + 'a>,
    number: u64,
    line: Vec<u8>,
    left: u64,
}

impl<'a> Lines<'a> {
    /// Of `from`, which is gzip, zstd or neither by how it begins.
    pub(super) fn new(mut from: impl Read + 'a) -> Result<Self, TraceError> {
        let mut magic = Vec::with_capacity(4);
        from.by_ref().take(4).read_to_end(&mut magic)?;
        let whole: Chain<Cursor<Vec<u8>>, _> = Cursor::new(magic.clone()).chain(from);
        let from: Box<dyn BufRead + 'a> = match magic.as_slice() {
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(
                1 << 16,
                flate2::read::MultiGzDecoder::new(whole),
            )),
            [0x28, 0xb5, 0x2f, 0xfd] => {
                let mut decoder = zstd::stream::read::Decoder::new(whole)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                Box::new(BufReader::with_capacity(1 << 16, decoder))
            }
            _ => Box::new(BufReader::with_capacity(1 << 16, whole)),
        };
        Ok(Self { from, number: 0, line: Vec::new(), left: MAX_BYTES })
    }

    /// The next line that isn't empty, without its end, and its number.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        loop {
            self.line.clear();
            let most = (MAX_LINE as u64 + 1).min(self.left);
            let read = self.from.by_ref().take(most).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return match self.left {
                    0 => {
                        Err(TraceError::File(format!("more than {MAX_BYTES} bytes; cut the trace")))
                    }
                    _ => Ok(None),
                };
            }
            self.left -= read as u64;
            self.number += 1;
            if read > MAX_LINE {
                let what = format!("longer than {MAX_LINE} bytes; is it one request a line?");
                return Err(TraceError::Line { line: self.number, what });
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((self.number, self.line.trim_ascii())));
            }
        }
    }
}
