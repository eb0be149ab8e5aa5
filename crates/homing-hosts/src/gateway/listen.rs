//! Threads and sockets. One single-threaded runtime a core, each with its own listening socket
//! on the same address (SO_REUSEPORT) and its own pool of connections to the workers: a request stays on
//! one thread.

use super::Gateway;
use super::connection::Connections;
use super::socket::{self, Bound, Listener, SocketFile, bind};
use super::tls::ServerTls;
use homing_runtime::lifecycle::Lifecycle;
use homing_runtime::settings::Listen;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

/// Connections of one thread at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 16_384;
/// Streams that are still open when the grace is over have so long for their last event.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Whose connection is being made when the router stops is accepted for so long: some round trips.
const LAST_CALL: Duration = Duration::from_millis(100);
/// The pause after the system refused a connection (out of descriptors), so that it is no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A gateway that takes connections.
#[derive(Debug)]
pub struct Listening {
    at: Listen,
    tls: Option<Arc<ServerTls>>,
    threads: Vec<oneshot::Receiver<bool>>,
    /// Removed when the last connection has ended.
    _file: Option<SocketFile>,
}

impl Listening {
    /// Listens, with `threads` threads, until `life` stops. With `tls` by TLS alone; on the socket that was `handed`
    /// over, where one was; `beside` another router of this user, which listens there and is about to stop.
    ///
    /// # Errors
    /// When the address can't be bound, or the system gives no threads.
    pub fn start(
        gateway: Arc<Gateway>,
        tls: Option<Arc<ServerTls>>,
        handed: Option<std::net::TcpListener>,
        beside: bool,
        life: &Lifecycle,
        threads: usize,
    ) -> io::Result<Self> {
        let Bound { at, listeners, file, lent } = match handed {
            Some(listener) => socket::handed(listener, threads)?,
            None => bind(&gateway.settings().gateway.listen, threads, beside)?,
        };
        let mut ends = Vec::new();
        for (i, socket) in listeners.into_iter().enumerate() {
            let (gateway, tls, life) = (gateway.clone(), tls.clone(), life.clone());
            let (ended, end) = oneshot::channel();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let listener = {
                let _within = runtime.enter();
                Listener::new(&at, socket)?
            };
            std::thread::Builder::new().name(format!("gateway-{i}")).spawn(move || {
                let whole = runtime.block_on(run(gateway, tls, &life, listener, lent));
                // What is still open after the grace period is cut off here.
                drop(runtime);
                let _ = ended.send(whole);
            })?;
            ends.push(end);
        }
        if let Some(tls) = &tls {
            life.spawn_until_finished(tls.clone().watch());
        }
        Ok(Self { at, tls, threads: ends, _file: file })
    }

    /// Where it listens.
    #[must_use]
    pub fn at(&self) -> &Listen {
        &self.at
    }

    /// The certificates that clients see, where they connect by TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<ServerTls>> {
        self.tls.as_ref()
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

/// One thread's life; `lent`: its socket is somebody else's, who keeps it. True if every connection ended by itself.
async fn run(
    gateway: Arc<Gateway>,
    tls: Option<Arc<ServerTls>>,
    life: &Lifecycle,
    listener: Listener,
    lent: bool,
) -> bool {
    let whose = gateway.clone();
    let stopping = life.stopping();
    let tasks = TaskTracker::new();
    let connections = Connections::new(gateway, tls, stopping.clone(), tasks.clone());
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let accept = async || {
        // Never closed, so never an error.
        let place = room.clone().acquire_owned().await.ok();
        (listener.accept().await, place)
    };
    while let Some((accepted, place)) = stopping.run_until_cancelled(accept()).await {
        match accepted {
            Ok(socket) => {
                tasks.spawn(connections.clone().serve(socket, place));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Nobody whose connection is made is left behind.
    let last = Instant::now() + if lent { Duration::ZERO } else { LAST_CALL };
    if !lent {
        listener.turn_away();
    }
    while let Ok((Ok(socket), place)) = timeout_at(last, accept()).await {
        tasks.spawn(connections.clone().serve(socket, place));
    }
    drop(listener);
    tasks.close();
    let grace = whose.settings().gateway.shutdown_grace;
    if tokio::time::timeout(grace, tasks.wait()).await.is_ok() {
        return true;
    }
    // Streams that are left end with an error event, and not in the middle of a word.
    whose.shell.cut();
    let _ = tokio::time::timeout(LAST_WORDS, tasks.wait()).await;
    false
}
