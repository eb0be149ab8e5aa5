//! Connections that engines make to us: several at once, since whoever comes back may do so before its last
//! connection is known to be gone, and a port is found by others, too.

use super::Shared;
use super::talk::{attend, prepare};
use homing_wire::zmtp::Role;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Connections of a port at once. One engine publishes there; beyond it whoever comes is sent away, and an engine
/// comes again.
pub(super) const CONNECTIONS_MAX: usize = 16;
const BACKLOG: i32 = 128;
/// After an accept that failed, as one does without descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, and what ends once it doesn't any more.
#[derive(Debug)]
pub(super) struct Listener {
    socket: TcpListener,
    /// Goes after the socket.
    _held: mpsc::Sender<()>,
}

/// Listens at every address of this host, by IPv4 and IPv6 where it has both; also where, and what ends with it. Within
/// the runtime that shall serve it.
pub(super) fn bind(
    only_v4: bool,
    port: u16,
) -> io::Result<(Listener, SocketAddr, mpsc::Receiver<()>)> {
    let v4 = || listener(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, port).into());
    let v6 = || listener(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, port).into());
    let socket = match if only_v4 { v4() } else { v6() } {
        Err(error) if !only_v4 && may_lack_v6(&error) => v4()?,
        socket => socket?,
    };
    let (local, (held, freed)) = (socket.local_addr()?, mpsc::channel());
    Ok((Listener { socket, _held: held }, local, freed))
}

/// The system has no IPv6, or it is switched off.
fn may_lack_v6(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrInUse, PermissionDenied};
    !matches!(error.kind(), AddrInUse | PermissionDenied)
}

fn listener(domain: Domain, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a link that was here before don't hold the port.
    socket.set_reuse_address(true)?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Until it is dropped.
pub(super) async fn serve(listener: Listener, shared: Arc<Shared>) {
    let mut talks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.socket.accept() => match accepted {
                Ok((stream, from)) if talks.len() < CONNECTIONS_MAX => {
                    tracing::debug!(%from, "somebody connects to publish KV events");
                    prepare(&stream);
                    let shared = shared.clone();
                    talks.spawn(async move { attend(stream, Role::Subscriber, &shared).await });
                }
                Ok((_, from)) => {
                    tracing::debug!(%from, "sent away: a port for KV events has as many connections as it may");
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = talks.join_next(), if !talks.is_empty() => {}
        }
    }
}
