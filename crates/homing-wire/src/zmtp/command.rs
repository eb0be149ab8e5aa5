//! What commands say: a name with its length, and what belongs to it.

use super::{ZmtpError, shown};

/// The most bytes of a PING that come back with its PONG.
const CONTEXT_MAX: usize = 16;
/// The property of READY that we read, and have.
const SOCKET_TYPE: &[u8] = b"Socket-Type";

/// A command that means something to us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// The peer is what it says: the type of its socket.
    Ready(&'a [u8]),
    /// It goes, and why.
    Error(&'a [u8]),
    /// It asks whether we are there; what it wants to hear back.
    Ping(&'a [u8]),
    /// Any other.
    Other,
}

/// Reads one.
pub(super) fn parse(body: &[u8]) -> Result<Command<'_>, ZmtpError> {
    let mut rest = body;
    let name = short(&mut rest).filter(|name| !name.is_empty());
    Ok(match name.ok_or(ZmtpError::Malformed("command"))? {
        b"READY" => Command::Ready(socket_type(rest)?),
        b"ERROR" => Command::Error(short(&mut rest).ok_or(ZmtpError::Malformed("ERROR"))?),
        b"PING" => {
            // How long the peer would wait for us is its own affair: two bytes.
            let context = rest.get(2..).ok_or(ZmtpError::Malformed("PING"))?;
            Command::Ping(&context[..context.len().min(CONTEXT_MAX)])
        }
        _ => Command::Other,
    })
}

/// What stands behind its own length, of one byte.
fn short<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = *rest.split_off_first()?;
    rest.split_off(..length.into())
}

/// The properties of READY: a name, and a value behind its length of four bytes.
fn socket_type(mut rest: &[u8]) -> Result<&[u8], ZmtpError> {
    let mut found = None;
    while !rest.is_empty() {
        let mut property = || {
            let name = short(&mut rest)?;
            let length = u32::from_be_bytes(rest.split_off(..4)?.try_into().ok()?);
            Some((name, rest.split_off(..usize::try_from(length).ok()?)?))
        };
        let (name, value) = property().ok_or(ZmtpError::Malformed("READY"))?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            found = Some(value);
        }
    }
    found.ok_or(ZmtpError::Malformed("READY: it doesn't tell its socket's type"))
}

/// Whether a socket of ours may hear one of theirs.
pub(super) fn check_type(ours: &'static str, theirs: &[u8]) -> Result<(), ZmtpError> {
    let fits = match ours {
        "DEALER" => matches!(theirs, b"ROUTER" | b"DEALER" | b"REP"),
        _ => matches!(theirs, b"PUB" | b"XPUB"),
    };
    if fits { Ok(()) } else { Err(ZmtpError::SocketType { ours, theirs: shown(theirs) }) }
}

/// That a socket of ours is there.
pub(super) fn ready(ours: &str) -> Vec<u8> {
    let mut body = named(b"READY");
    body.extend(named(SOCKET_TYPE));
    // `SUB`, `DEALER`.
    body.extend([0, 0, 0, ours.len() as u8]);
    body.extend_from_slice(ours.as_bytes());
    body
}

/// That we want to hear everything.
pub(super) fn subscribe() -> Vec<u8> {
    named(b"SUBSCRIBE")
}

/// Whether the peer is there. It shall not wait for us, and has nothing to repeat.
pub(super) fn ping() -> Vec<u8> {
    let mut body = named(b"PING");
    body.extend([0, 0]);
    body
}

/// The answer to a PING.
pub(super) fn pong(context: &[u8]) -> Vec<u8> {
    let mut body = named(b"PONG");
    body.extend_from_slice(context);
    body
}

/// The name, none longer than a few letters, behind its length.
fn named(name: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend_from_slice(name);
    body
}
