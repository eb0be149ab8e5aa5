//! Connections that engines make to us: several at once, since whoever comes back may do so before its last
//! connection is known to be gone, and a port is found by others, too.

use super::Shared;
use super::queue::Note;
use super::talk::{Worth, attend, prepare};
use homing_wire::zmtp::Role;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Connections of a port at once. One engine publishes there; where more come, one that has never said anything leaves.
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

/// One that has come.
struct Guest {
    task: tokio::task::Id,
    worth: Arc<Worth>,
    /// Whose end it waits for to give way.
    _stays: oneshot::Sender<()>,
}

/// Until it is dropped.
pub(super) async fn serve(listener: Listener, shared: Arc<Shared>) {
    let mut talks = JoinSet::new();
    // In the order in which they came.
    let mut guests: Vec<Guest> = Vec::new();
    loop {
        tokio::select! {
            accepted = listener.socket.accept() => match accepted {
                Ok((stream, from)) => {
                    // Those that leave may take a moment.
                    let is_full = guests.len() == CONNECTIONS_MAX;
                    if talks.len() >= 2 * CONNECTIONS_MAX || is_full && !make_room(&mut guests, &shared).await {
                        tracing::debug!(%from, "sent away: a port for KV events has as many connections as it may");
                        continue;
                    }
                    tracing::debug!(%from, "somebody connects to publish KV events");
                    prepare(&stream);
                    let (stays, gone) = oneshot::channel();
                    let (worth, shared) = (Arc::new(Worth::default()), shared.clone());
                    let its = worth.clone();
                    let give_way = async move { _ = gone.await };
                    let talk = async move { attend(stream, Role::Subscriber, &shared, &its, give_way).await };
                    let task = talks.spawn(talk).id();
                    guests.push(Guest { task, worth, _stays: stays });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(left) = talks.join_next_with_id(), if !talks.is_empty() => {
                let task = left.map_or_else(|panicked| panicked.id(), |(task, _)| task);
                guests.retain(|guest| guest.task != task);
            }
        }
    }
}

/// Who came first of those that have never said anything leaves; false where all have.
async fn make_room(guests: &mut Vec<Guest>, shared: &Shared) -> bool {
    let silent = guests.iter().position(|guest| !guest.worth.was_heard());
    if let Some(silent) = silent {
        drop(guests.remove(silent));
    }
    shared.queue.push(&mut vec![Note::Full]).await;
    silent.is_some()
}
