//! Frames: bytes of any cut into whole messages and commands, and the other way round.
//!
//! A frame is its flags, its length (one byte, or eight), and its bytes. A hostile length reserves nothing: room
//! for a frame grows with what has come of it, to twice that at most. Commands may stand between the frames of a
//! message: the answer to a PING does, where its peer was sending one.

use super::{COMMAND_MAX, FRAME_COST, FRAMES_MAX, MESSAGE_MAX, ZmtpError};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a frame begins with, at most: flags, and eight bytes of length.
const HEAD_MAX: usize = 9;
/// What is reserved for a frame of which little has come yet.
const ROOM_MIN: usize = 4 << 10;

/// Something that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Command(Vec<u8>),
    Message(Vec<Vec<u8>>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    head: [u8; HEAD_MAX],
    head_length: usize,
    /// The frame that is being read, behind its head.
    frame: Option<Frame>,
    /// Those of the message that it belongs to, before it.
    frames: Vec<Vec<u8>>,
    /// What all of them count.
    size: usize,
}

#[derive(Debug)]
struct Frame {
    flags: u8,
    length: usize,
    bytes: Vec<u8>,
}

impl Decoder {
    /// The next command or message, as soon as it is whole; the input is taken up to its end, or all of it.
    /// Unless `messages`, only commands may come.
    pub(super) fn read(
        &mut self,
        input: &mut &[u8],
        messages: bool,
    ) -> Result<Option<Whole>, ZmtpError> {
        loop {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.head(input, messages)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            frame.fill(input);
            if frame.bytes.len() < frame.length {
                self.frame = Some(frame);
                return Ok(None);
            }
            if frame.flags & COMMAND != 0 {
                return Ok(Some(Whole::Command(frame.bytes)));
            }
            self.frames.push(frame.bytes);
            if frame.flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(Whole::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    /// What is held of something that isn't whole, in bytes.
    pub(super) fn held(&self) -> usize {
        let frames = self.frames.iter().map(Vec::capacity).sum::<usize>();
        frames + self.frame.as_ref().map_or(0, |frame| frame.bytes.capacity())
    }

    /// The head of a frame, and whether there may be such a one.
    fn head(&mut self, input: &mut &[u8], messages: bool) -> Result<Option<Frame>, ZmtpError> {
        loop {
            let flags = self.head[0];
            let whole = match self.head_length {
                0 => usize::MAX,
                _ if flags & LONG != 0 => HEAD_MAX,
                _ => 2,
            };
            if self.head_length == whole {
                break;
            }
            let Some(byte) = input.split_off_first().copied() else { return Ok(None) };
            if self.head_length == 0 {
                let is_command = byte & COMMAND != 0;
                if byte & !(MORE | LONG | COMMAND) != 0 || (is_command && byte & MORE != 0) {
                    return Err(ZmtpError::Flags(byte));
                }
                if !is_command && !messages {
                    return Err(ZmtpError::NotReady);
                }
            }
            self.head[self.head_length] = byte;
            self.head_length += 1;
        }
        let length = self.head[1..self.head_length].iter();
        let length = length.fold(0, |length, byte| length << 8 | u64::from(*byte));
        self.head_length = 0;
        self.admit(self.head[0], length).map(Some)
    }

    fn admit(&mut self, flags: u8, length: u64) -> Result<Frame, ZmtpError> {
        let fits = usize::try_from(length).ok();
        if flags & COMMAND != 0 {
            let fits = fits.filter(|length| *length <= COMMAND_MAX);
            let length = fits.ok_or(ZmtpError::CommandTooLong(length))?;
            return Ok(Frame { flags, length, bytes: Vec::new() });
        }
        if self.frames.len() == FRAMES_MAX {
            return Err(ZmtpError::TooManyFrames);
        }
        let size = |length: usize| self.size.checked_add(length)?.checked_add(FRAME_COST);
        let size = fits.and_then(size).filter(|size| *size <= MESSAGE_MAX);
        let (Some(length), Some(size)) = (fits, size) else {
            return Err(ZmtpError::MessageTooLong);
        };
        self.size = size;
        Ok(Frame { flags, length, bytes: Vec::new() })
    }
}

impl Frame {
    fn fill(&mut self, input: &mut &[u8]) {
        let missing = self.length - self.bytes.len();
        let came = missing.min(input.len());
        let (ours, rest) = input.split_at(came);
        if self.bytes.capacity() - self.bytes.len() < came {
            let room = (self.bytes.len() + came).saturating_mul(2).max(ROOM_MIN);
            // All of it at once where this is the end; never more than it will have.
            let room = if came == missing { self.length } else { room.min(self.length) };
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(ours);
        *input = rest;
    }
}

/// A message, ready to send.
pub(super) fn write_message(frames: &[Vec<u8>], out: &mut Vec<u8>) {
    for (i, frame) in frames.iter().enumerate() {
        write(if i + 1 < frames.len() { MORE } else { 0 }, frame, out);
    }
}

/// A command, ready to send.
pub(super) fn write_command(body: &[u8], out: &mut Vec<u8>) {
    write(COMMAND, body, out);
}

fn write(flags: u8, bytes: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(bytes.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((bytes.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}
