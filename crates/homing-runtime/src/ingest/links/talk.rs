//! One connection, whoever made it: its bytes through a session into the queue, its time-outs, and why it ended.

use super::queue::{HIGH_WATER, Note, Queue};
use super::{Shared, Times};
use homing_wire::zmtp::{Heard, Role, Session, ZmtpError};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
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
    #[error("it has never said anything, and gave way to another one")]
    GaveWay,
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
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Its number in its link.
    number: u64,
    /// The handshake was done.
    pub(super) ready: bool,
    /// It brought a message.
    pub(super) heard: bool,
    /// When something came over it last.
    last: Option<Instant>,
    /// Others spoke between two messages of its own, and that was said.
    has_rival: bool,
}

/// How whoever made room for a connection knows whether it is worth it.
#[derive(Debug, Default)]
pub(super) struct Worth(AtomicBool);

impl Worth {
    /// Whether it brought a message.
    pub(super) fn was_heard(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// From the first byte to the last, and what is to be said of it. It ends as `give_way` comes about.
pub(super) async fn attend<S>(
    stream: S,
    role: Role,
    shared: &Shared,
    worth: &Worth,
    give_way: impl Future<Output = ()>,
) -> Life
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let number = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let mut life = Life { number, ..Life::default() };
    let ended = tokio::select! {
        Err(ended) = talk(stream, role, shared, &mut life, worth) => ended,
        () = give_way => Ended::GaveWay,
    };
    shared.queue.push(&mut vec![life.end(shared, ended)]).await;
    life
}

impl Life {
    /// What its end means for the link.
    fn end(&self, shared: &Shared, ended: Ended) -> Note {
        let alone = self.ready && shared.ready.fetch_sub(1, Ordering::Relaxed) == 1;
        if !self.heard && !alone {
            Note::Failed(ended)
        } else if !alone && *shared.newest.lock() > self.last {
            Note::Replaced(ended)
        } else {
            Note::Lost(ended)
        }
    }

    /// It has brought a message. True, once, where that of another one came since its last.
    fn speaks(&mut self, shared: &Shared) -> bool {
        let before = shared.speaker.swap(self.number, Ordering::Relaxed);
        let rivals = self.heard && before != self.number && !self.has_rival;
        (self.heard, self.has_rival) = (true, self.has_rival || rivals);
        rivals
    }
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
    worth: &Worth,
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
        life.last = Some(Instant::now());
        hear(&mut session, &buffer[..came], shared, life, worth).await?;
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
    worth: &Worth,
) -> Result<(), Ended> {
    let queue: &Queue = &shared.queue;
    let mut notes = vec![];
    loop {
        match session.read(&mut input) {
            Ok(Some(Heard::Ready)) => {
                life.ready = true;
                shared.ready.fetch_add(1, Ordering::Relaxed);
                *shared.newest.lock() = life.last;
                notes.push(Note::Connected);
            }
            Ok(Some(Heard::Message(frames))) => {
                worth.0.store(true, Ordering::Relaxed);
                if life.speaks(shared) {
                    notes.push(Note::Rivals);
                }
                notes.push(Note::Message(frames));
            }
            Ok(None) => break,
            Err(error) => {
                queue.push(&mut notes).await;
                return Err(error.into());
            }
        }
        if notes.len() >= HIGH_WATER {
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
