//! Threads, sockets, connections. One single-threaded runtime a core, each with its own listening socket
//! on the same address (SO_REUSEPORT) and its own pool of connections to the workers: a request stays on
//! one thread.

use super::Gateway;
use super::pace::{Pace, Paced};
use super::service;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::upstream::Upstream;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A head must be complete within this: slow-loris clients hold no connection longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The kernel's queue of connections not yet accepted.
const BACKLOG: i32 = 4096;
/// Connections of one thread at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 16_384;
/// The pause after the system refused a connection (out of descriptors), so that it is no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A gateway that takes connections.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    threads: Vec<oneshot::Receiver<bool>>,
}

impl Listening {
    /// Listens, with `threads` threads, until `life` stops.
    ///
    /// # Errors
    /// When the address can't be bound, or the system gives no threads.
    pub fn start(gateway: Arc<Gateway>, life: &Lifecycle, threads: usize) -> io::Result<Self> {
        // With SO_REUSEPORT a second router would silently take half of the first one's connections: see
        // whether the address is free without it.
        drop(bind(gateway.settings().gateway.listen, false)?);
        let first = bind(gateway.settings().gateway.listen, true)?;
        let address = first.local_addr()?;
        let mut listeners = vec![first];
        for _ in 1..threads {
            listeners.push(bind(address, true)?);
        }
        let mut ends = Vec::new();
        for (i, listener) in listeners.into_iter().enumerate() {
            let (gateway, life) = (gateway.clone(), life.clone());
            let (ended, end) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            std::thread::Builder::new().name(format!("gateway-{i}")).spawn(move || {
                let whole = runtime.block_on(run(gateway, &life, listener));
                // What is still open after the grace period is cut off here.
                drop(runtime);
                let _ = ended.send(whole);
            })?;
            ends.push(end);
        }
        Ok(Self { address, threads: ends })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all connections have ended; false if some were cut off.
    pub async fn ended(self) -> bool {
        let mut whole = true;
        for thread in self.threads {
            whole &= thread.await.unwrap_or(false);
        }
        whole
    }
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// One thread's life. True if every connection ended by itself.
async fn run(gateway: Arc<Gateway>, life: &Lifecycle, listener: TcpListener) -> bool {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a gateway thread can't listen");
            return false;
        }
    };
    let upstream = {
        let u = &gateway.settings().upstream;
        Upstream::new(u.connect_timeout, u.pool_idle)
    };
    let stopping = life.stopping();
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async || {
        // Never closed, so never an error.
        let place = room.clone().acquire_owned().await.ok();
        (listener.accept().await, place)
    };
    while let Some((accepted, place)) = stopping.run_until_cancelled(accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                // Without it the first chunk of a kept-alive stream waits 44 ms (F59).
                let _ = stream.set_nodelay(true);
                let connection =
                    serve(stream, peer.ip(), gateway.clone(), upstream.clone(), stopping.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    let grace = gateway.settings().gateway.shutdown_grace;
    tokio::time::timeout(grace, connections.wait()).await.is_ok()
}

/// One connection's life.
async fn serve(
    stream: tokio::net::TcpStream,
    peer: IpAddr,
    gateway: Arc<Gateway>,
    upstream: Upstream,
    stopping: CancellationToken,
) {
    let pace = Pace::default();
    let service = service_fn(|request| {
        let (gateway, upstream, pace) = (gateway.clone(), upstream.clone(), pace.clone());
        async move {
            Ok::<_, Infallible>(
                service::handle(&gateway, &upstream, &pace, Some(peer), request).await,
            )
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(Paced::new(stream, pace.clone())), service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        // Clients come and go; what matters of it is in the request's own record.
        tracing::debug!(%error, "a connection ended badly");
    }
}
