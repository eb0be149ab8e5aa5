//! The sockets of the clients' side: TCP ports and sockets in the file system, behind one type each for listening and
//! for a connection.
//!
//! A connection is shared, unlike tokio's own streams when they are read and written: besides hyper, which owns the
//! stream, somebody watches whether the client is still there while hyper doesn't look ([`Socket::closed`]).

use homing_runtime::settings::Listen;
use socket2::{Domain, Protocol, SockAddr, SockFilter, SockRef, TcpKeepalive, Type};
use std::fs::Permissions;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The kernel's queue of connections not yet accepted.
const BACKLOG: i32 = 4096;
/// A client's host that vanishes while it waits for its answer says nothing, and is asked.
const ALIVE_AFTER: Duration = Duration::from_secs(60);
const ALIVE_PAUSE: Duration = Duration::from_secs(15);
const ALIVE_TRIES: u32 = 4;
/// Instructions of classic BPF (linux/bpf_common.h).
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Who may connect to a socket in the file system: its owner and group, as to those of other daemons.
const MODE: u32 = 0o660;

/// A place to listen on, bound.
#[derive(Debug)]
pub(super) struct Bound {
    /// With the port that was taken.
    pub(super) at: Listen,
    /// One for each thread.
    pub(super) listeners: Vec<socket2::Socket>,
    /// Removes the socket's file when it is dropped.
    pub(super) file: Option<SocketFile>,
    /// Whoever holds them for us goes on listening when we don't any more: what is not accepted is the next one's.
    pub(super) lent: bool,
}

/// A socket that somebody holds for us, already bound: all threads accept from it, and who connects while nobody does
/// waits in the kernel's queue.
///
/// # Errors
/// What the system says.
pub(super) fn handed(listener: std::net::TcpListener, threads: usize) -> io::Result<Bound> {
    let at = Listen::Tcp(listener.local_addr()?);
    let socket = socket2::Socket::from(listener);
    socket.set_nonblocking(true)?;
    let others: io::Result<Vec<_>> = (1..threads.max(1)).map(|_| socket.try_clone()).collect();
    let listeners = others?.into_iter().chain([socket]).collect();
    Ok(Bound { at, listeners, file: None, lent: true })
}

/// Binds for so many threads: a TCP port shares its connections out among as many sockets, a socket in the file system
/// is one that all accept from. `beside`: another router of this user may listen there, which is about to stop.
///
/// # Errors
/// What the system says.
pub(super) fn bind(at: &Listen, threads: usize, beside: bool) -> io::Result<Bound> {
    let threads = threads.max(1);
    match at {
        Listen::Tcp(address) => {
            // With SO_REUSEPORT a second router would silently take half of the first one's connections: see
            // whether the address is free without it, unless that is what is wanted.
            if !beside {
                drop(tcp(*address, false)?);
            }
            let first = tcp(*address, true)?;
            let address = first.local_addr()?.as_socket().unwrap_or(*address);
            let mut listeners = vec![first];
            for _ in 1..threads {
                listeners.push(tcp(address, true)?);
            }
            Ok(Bound { at: Listen::Tcp(address), listeners, file: None, lent: false })
        }
        Listen::Unix(path) => {
            let (socket, file) = unix(path, beside)?;
            let others: io::Result<Vec<_>> = (1..threads).map(|_| socket.try_clone()).collect();
            let listeners = others?.into_iter().chain([socket]).collect();
            Ok(Bound { at: at.clone(), listeners, file: Some(file), lent: false })
        }
    }
}

fn tcp(address: SocketAddr, shared: bool) -> io::Result<socket2::Socket> {
    let domain = Domain::for_address(address);
    let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    // Connections inherit it.
    let alive = TcpKeepalive::new().with_time(ALIVE_AFTER).with_interval(ALIVE_PAUSE);
    socket.set_tcp_keepalive(&alive.with_retries(ALIVE_TRIES))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// It is made beside its place and put there by a rename: nobody finds it before it listens, and one that is in that
/// place loses it, and no connection, in that moment.
fn unix(path: &Path, beside: bool) -> io::Result<(socket2::Socket, SocketFile)> {
    look_at_place(path, beside)?;
    let mut made_at = path.as_os_str().to_owned();
    made_at.push(format!(".{}", std::process::id()));
    let made_at = PathBuf::from(made_at);
    // Of a router that had this number and was killed just here.
    let _ = std::fs::remove_file(&made_at);
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(&made_at)?)?;
    let mut file = SocketFile::of(&made_at)?;
    std::fs::set_permissions(&made_at, Permissions::from_mode(MODE))?;
    socket.listen(BACKLOG)?;
    std::fs::rename(&made_at, path)?;
    file.path = path.to_owned();
    Ok((socket, file))
}

/// Whether a socket may be put there: in the place of one that nobody listens on any more, of a router that was killed;
/// or of any other one, where that is wanted.
fn look_at_place(path: &Path, beside: bool) -> io::Result<()> {
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !there.file_type().is_socket() {
        let why =
            "there is a file of that name which is no socket; remove it, or name another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    if beside {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
    }
}

/// The file of a socket, for as long as it is ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)? })
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A router that was started meanwhile may have put its own there.
        if inode(&self.path).is_ok_and(|there| there == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where one thread takes its connections from.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Call it on the runtime that shall accept.
    pub(super) fn new(at: &Listen, socket: socket2::Socket) -> io::Result<Self> {
        Ok(match at {
            Listen::Tcp(_) => Self::Tcp(TcpListener::from_std(socket.into())?),
            Listen::Unix(_) => Self::Unix(UnixListener::from_std(socket.into())?),
        })
    }

    /// Who hasn't begun to connect doesn't any more, and tries again in a second; who has is to be accepted still. So a
    /// port is left to another process that listens there without a connection lost: a listener that closes resets
    /// whoever it hasn't accepted. Best effort, and for good: not for a socket that others hold, too.
    pub(super) fn turn_away(&self) {
        // The flags are byte 13 of a TCP header: a SYN that is no answer is dropped, the rest passes.
        const FLAGS: u32 = 13;
        const SYN: u32 = 2;
        const SYN_ACK: u32 = 0x12;
        let program = [
            SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
            SockFilter::new(AND, 0, 0, SYN_ACK),
            SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
            SockFilter::new(RETURN, 0, 0, 0),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
        ];
        if let Self::Tcp(listener) = self
            && let Err(error) = SockRef::from(listener).attach_filter(&program)
        {
            tracing::debug!(%error, "who connects in this moment may be reset");
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without it the first chunk of a kept-alive stream waits 44 ms (F59).
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// A client's connection.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the same method of whichever it is.
macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self {
            Self::Tcp($stream) => $call,
            Self::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// Who is at the other end, where that has an address.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|at| at.ip()),
            Self::Unix(_) => None,
        }
    }

    /// Reads what there is.
    pub(super) fn poll_read(
        &self,
        cx: &Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(cx.waker());
        loop {
            ready!(each!(self, stream => stream.poll_read_ready(&mut cx)))?;
            match self.try_read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    /// Tokio's own streams know that a read which doesn't fill its buffer has emptied the socket, and save the call that
    /// would say so; a shared one does it by saying what that call would.
    fn try_read(&self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let room = buf.remaining();
        let mut emptied = false;
        let read = each!(self, stream => stream.try_io(Interest::READABLE, || {
            let n = stream.try_read_buf(buf)?;
            emptied = 0 < n && n < room;
            if emptied { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        }));
        if emptied { Ok(()) } else { read }
    }

    pub(super) fn poll_write(&self, cx: &Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, || each!(self, stream => stream.try_write(buf)))
    }

    pub(super) fn poll_write_vectored(
        &self,
        cx: &Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, || each!(self, stream => stream.try_write_vectored(bufs)))
    }

    fn poll_writing(
        &self,
        cx: &Context<'_>,
        write: impl Fn() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut cx = Context::from_waker(cx.waker());
        loop {
            ready!(each!(self, stream => stream.poll_write_ready(&mut cx)))?;
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// Says that nothing more will be written.
    pub(super) fn shut_down(&self) -> io::Result<()> {
        each!(self, stream => SockRef::from(stream).shutdown(Shutdown::Write))
    }

    /// Returns once the client has closed its side or the connection is lost, whatever it has sent before that nobody
    /// has read.
    pub(super) async fn closed(&self) {
        loop {
            // Not for what can be read: that stands for as long as nobody reads it. Out-of-band data, which this is
            // for besides, nobody sends.
            let ready = each!(self, stream => stream.ready(Interest::PRIORITY).await);
            match ready {
                Ok(ready) if ready.is_read_closed() => return,
                Ok(_) => std::future::pending().await,
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
