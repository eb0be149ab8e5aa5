//! The half of ZMTP that a router needs to hear engines: how a SUB and a DEALER socket talk over one
//! connection, after ZMTP 3.1 (rfc.zeromq.org/spec/37) and 3.0 (rfc.zeromq.org/spec/23).
//!
//! Our own and not libzmq, because whoever may publish to us must not be able to make us hold a message
//! without end: libzmq bounds a frame and not a message's frames. Here all of it has a bound, [`MESSAGE_MAX`],
//! [`FRAMES_MAX`] and [`COMMAND_MAX`], and nothing is reserved before it has come.
//!
//! What is spoken: the mechanism NULL; READY, ERROR, SUBSCRIBE (to peers of 3.0: the message that meant it
//! before), PING and PONG. Other commands are passed over, older peers refused. Plain bytes in and out:
//! sockets, clocks and the next connection are the host's ([`Session`]).
//!
//! * `greeting`: the first 64 bytes of each side;
//! * `frame`: messages and commands out of bytes, and into bytes;
//! * `command`: what commands say;
//! * `session`: one connection, from its first byte on.

mod command;
mod frame;
mod greeting;
mod session;

pub use session::{Heard, Role, Session};

/// The longest message, in bytes: all its frames, and [`FRAME_COST`] for each.
pub const MESSAGE_MAX: usize = 16 << 20;
/// The most frames of a message. Engines send three, or four.
pub const FRAMES_MAX: usize = 16;
/// What a frame counts beyond its bytes, so that empty ones aren't free.
pub const FRAME_COST: usize = 64;
/// The longest command. READY has some hundred bytes at most where its peer is a well-known one.
pub const COMMAND_MAX: usize = 4 << 10;

/// Why a connection can't go on. What the peer said is shown escaped, and cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// No signature of ZMTP.
    #[error(
        "the peer doesn't speak ZMTP (it began with 0x{0:02x}); see that the port is that of KV events, \
         and not an HTTP one"
    )]
    NotZmtp(u8),
    /// A version before 3.
    #[error("the peer speaks ZMTP of the revision {0}; its libzmq must be 4.0 or later")]
    OldVersion(u8),
    /// Not NULL.
    #[error(
        "the peer wants the mechanism \"{0}\", and only NULL is spoken here; switch its authentication off, and \
         close the port to others"
    )]
    Mechanism(String),
    /// A frame of a kind that there isn't.
    #[error("a frame with the flags 0x{0:02x}, which mean nothing")]
    Flags(u8),
    /// Beyond [`MESSAGE_MAX`].
    #[error("a message of more than {MESSAGE_MAX} bytes")]
    MessageTooLong,
    /// Beyond [`FRAMES_MAX`].
    #[error("a message of more than {FRAMES_MAX} frames")]
    TooManyFrames,
    /// Beyond [`COMMAND_MAX`].
    #[error("a command of {0} bytes; at most {COMMAND_MAX} are taken")]
    CommandTooLong(u64),
    /// It can't be read.
    #[error("a malformed {0}")]
    Malformed(&'static str),
    /// Something else than READY came first.
    #[error("the peer began without READY")]
    NotReady,
    /// A socket that ours doesn't talk to.
    #[error("the peer is a socket of the type \"{theirs}\", and a {ours} of ours can't talk to it; {}", mend(.ours))]
    SocketType {
        /// `SUB` or `DEALER`.
        ours: &'static str,
        /// As it said.
        theirs: String,
    },
    /// The peer's own reason.
    #[error("the peer refuses us: \"{0}\"")]
    Refused(String),
}

fn mend(ours: &str) -> &'static str {
    match ours {
        "DEALER" => "name the replay endpoint, not that of the events",
        _ => "name the endpoint of the events, not that of their replay",
    }
}

/// At most so many bytes of what a peer said are repeated.
const SHOWN: usize = 255;

/// What a peer said, as text that can stand in a log.
fn shown(said: &[u8]) -> String {
    said[..said.len().min(SHOWN)].escape_ascii().to_string()
}

#[cfg(test)]
#[path = "zmtp_tests.rs"]
mod tests;
