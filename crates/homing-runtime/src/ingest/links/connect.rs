//! Connections that we make: one after the other, for as long as the link is wanted.

use super::endpoint::Address;
use super::queue::Note;
use super::talk::{Ended, Life, Worth, attend, prepare};
use super::{Shared, Times};
use homing_wire::zmtp::Role;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Until it is dropped, or what was to be asked has been.
pub(super) async fn follow(there: Address, role: Role, shared: Arc<Shared>) {
    let times = &shared.times;
    let mut pause = times.pause;
    loop {
        let began = Instant::now();
        let life = attempt(&there, &role, &shared).await;
        if life.ready && matches!(role, Role::Asker(_)) {
            // Whether it was answered is for the stream to see.
            return;
        }
        // A peer that is of no use is no reason to come back at once.
        if life.heard || (life.ready && began.elapsed() >= times.pause_max) {
            pause = times.pause;
        }
        sleep(pause).await;
        pause = (2 * pause).min(times.pause_max);
    }
}

async fn attempt(there: &Address, role: &Role, shared: &Shared) -> Life {
    let failed = match there {
        Address::Tcp { host, port } => match tcp(host, *port, &shared.times).await {
            Ok(stream) => return alone(stream, role, shared).await,
            Err(ended) => ended,
        },
        Address::Path(path) => match unix(path, &shared.times).await {
            Ok(stream) => return alone(stream, role, shared).await,
            Err(ended) => ended,
        },
        // It is listened at, and never comes here.
        Address::Every { .. } => return Life::default(),
    };
    shared.queue.push(&mut vec![Note::Failed(failed)]).await;
    Life::default()
}

/// One that has no other to give way to.
async fn alone<S>(stream: S, role: &Role, shared: &Shared) -> Life
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    attend(stream, role.clone(), shared, &Worth::default(), std::future::pending()).await
}

async fn tcp(host: &str, port: u16, times: &Times) -> Result<TcpStream, Ended> {
    let late = |_| Ended::Late(times.connect);
    let addresses = timeout(times.connect, lookup_host((host, port))).await.map_err(late)?;
    let mut failed = Ended::Late(times.connect);
    for address in addresses.map_err(Ended::Resolve)?.take(ADDRESSES_MAX) {
        match timeout(times.connect, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                prepare(&stream);
                return Ok(stream);
            }
            Ok(Err(error)) => failed = Ended::Connect(error),
            Err(_) => {}
        }
    }
    Err(failed)
}

async fn unix(path: &Path, times: &Times) -> Result<UnixStream, Ended> {
    let stream = timeout(times.connect, UnixStream::connect(path)).await;
    stream.map_err(|_| Ended::Late(times.connect))?.map_err(Ended::Connect)
}
