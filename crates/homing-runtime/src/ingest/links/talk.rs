//! One connection, whoever made it: its bytes through a session into the queue, its time-outs, and why it ended.

use super::queue::{HIGH_WATER, Note, Queue};
use super::{Shared, Times};
use homing_wire::zmtp::{Heard, Role, Session, ZmtpError};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// What is read at once, at first, and from a peer that has said as much at once.
const READ: usize = 8 << 10;
const READ_MAX: usize = 64 << 10;
/// The system finds out about hosts that are gone, for the sake of peers that can't be asked: after half a minute,
/// and three questions.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Why a connection ended, or was none.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Ended {
    #[error("its name can't be resolved: {0}")]
    Resolve(io::Error),
    #[error("it can't be connected to: {0}")]
    Connect(io::Error),
    #[error("it can't be connected to within {0:?}")]
    Late(Duration),
    #[error("no handshake of ZMTP within {0:?}; see that the port is that of KV events")]
    Handshake(Duration),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("the peer was asked, and has been silent for {0:?}")]
    Mute(Duration),
    #[error(transparent)]
    Zmtp(#[from] ZmtpError),
}

impl Ended {
    /// Whether it is of the peer's making, so that waiting won't mend it.
    pub(in super::super) const fn is_fault(&self) -> bool {
        matches!(self, Self::Zmtp(_) | Self::Handshake(_))
    }
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// The handshake was done.
    pub(super) ready: bool,
    /// It brought a message.
    pub(super) heard: bool,
}

/// From the first byte to the last, and what is to be said of it.
pub(super) async fn attend<S>(stream: S, role: Role, shared: &Shared) -> Life
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut life = Life::default();
    let Err(ended) = talk(stream, role, shared, &mut life).await;
    let alone = life.ready && shared.ready.fetch_sub(1, Ordering::Relaxed) == 1;
    let lost = life.ready && (life.heard || alone);
    let note = if lost { Note::Lost(ended) } else { Note::Failed(ended) };
    shared.queue.push(&mut vec![note]).await;
    life
}

/// What every TCP connection gets.
pub(super) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    // It goes without, too.
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(3));
}

async fn talk<S>(
    mut stream: S,
    role: Role,
    shared: &Shared,
    life: &mut Life,
) -> Result<std::convert::Infallible, Ended>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let times = &shared.times;
    let until = Instant::now() + times.handshake;
    let mut session = Session::new(role);
    let mut buffer = vec![0; READ];
    send(&mut stream, &mut session, times).await?;
    let mut last = Instant::now();
    loop {
        let ready = life.ready;
        // However little comes each time.
        if !ready && Instant::now() >= until {
            return Err(Ended::Handshake(times.handshake));
        }
        let wait = if ready { times.ask } else { until - Instant::now() };
        let came = match timeout(wait, stream.read(&mut buffer)).await {
            Ok(Ok(0)) => return Err(Ended::Closed),
            Ok(Ok(came)) => came,
            Ok(Err(error)) => return Err(Ended::Broken(error)),
            Err(_) if !ready => continue,
            Err(_) => {
                if session.ping() {
                    if last.elapsed() >= times.mute {
                        return Err(Ended::Mute(times.mute));
                    }
                    send(&mut stream, &mut session, times).await?;
                }
                continue;
            }
        };
        hear(&mut session, &buffer[..came], shared, life).await?;
        send(&mut stream, &mut session, times).await?;
        if came == buffer.len() && came < READ_MAX {
            buffer.resize(READ_MAX, 0);
        }
        // While the queue was full nothing was read: that says nothing of the peer.
        last = Instant::now();
    }
}

/// Takes in what came. What was whole before an error is kept.
async fn hear(
    session: &mut Session,
    mut input: &[u8],
    shared: &Shared,
    life: &mut Life,
) -> Result<(), Ended> {
    let queue: &Queue = &shared.queue;
    let mut notes = vec![];
    loop {
        match session.read(&mut input) {
            Ok(Some(Heard::Ready)) => {
                life.ready = true;
                shared.ready.fetch_add(1, Ordering::Relaxed);
                notes.push(Note::Connected);
            }
            Ok(Some(Heard::Message(frames))) => {
                life.heard = true;
                notes.push(Note::Message(frames));
            }
            Ok(None) => break,
            Err(error) => {
                queue.push(&mut notes).await;
                return Err(error.into());
            }
        }
        if notes.len() == HIGH_WATER {
            queue.push(&mut notes).await;
        }
    }
    queue.push(&mut notes).await;
    Ok(())
}

/// Sends what the session has to say. A peer that doesn't take it is as good as mute.
async fn send<S>(stream: &mut S, session: &mut Session, times: &Times) -> Result<(), Ended>
where
    S: AsyncWrite + Unpin,
{
    let out = session.output();
    if out.is_empty() {
        return Ok(());
    }
    match timeout(times.mute, stream.write_all(&out)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Ended::Broken(error)),
        Err(_) => Err(Ended::Mute(times.mute)),
    }
}
