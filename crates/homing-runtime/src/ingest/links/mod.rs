//! The connections to engines, with their limits: who listens or is listened to, and who is asked.
//!
//! One thread of its own (`ingest-io`) does all reading and writing, so that it goes on while the ingest thread
//! works. Between the two a queue a link, bounded in number and bytes ([`queue`]): beyond the bounds nothing is
//! read, TCP holds the publisher up, and it keeps what we have not read. A link that breaks is made anew by
//! itself, for as long as it is wanted: dropping it is its end.
//!
//! * `endpoint`: what an endpoint names;
//! * `queue`: what waits for the ingest thread, and what wakes it;
//! * `talk`: one connection;
//! * `connect`: one after the other, made by us;
//! * `listen`: several at once, made by others.

mod connect;
mod endpoint;
mod listen;
mod queue;
mod talk;

pub(super) use endpoint::EndpointError;
#[cfg(test)]
pub(super) use queue::HIGH_WATER;
pub(super) use queue::Note;
pub(super) use talk::Ended;

use endpoint::Address;
use homing_wire::frames::build_request;
use homing_wire::zmtp::Role;
use listen::Listener;
use parking_lot::Mutex;
use queue::{Bell, Queue};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often a port is tried that is in use still, as by a router whose place we take.
const BIND_TRIES: u32 = 10;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// How long a dropped link waits for its port to be free. It takes the thread one turn.
const FREED: Duration = Duration::from_secs(1);
/// Threads that resolve names; one that a name server holds up is given up, and not ended.
const RESOLVERS: usize = 16;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Until a name is resolved, and until each of its addresses has answered.
    pub(super) connect: Duration,
    /// From there until the handshake is done.
    pub(super) handshake: Duration,
    /// A peer that has said nothing for so long is asked whether it is there,
    pub(super) ask: Duration,
    /// and for so long is not; who doesn't take what we send in that time, neither.
    pub(super) mute: Duration,
    /// Between two attempts: doubled each time, up to the last.
    pub(super) pause: Duration,
    pub(super) pause_max: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            ask: Duration::from_secs(5),
            mute: Duration::from_secs(15),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
        }
    }
}

/// What the connections of a link share.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    times: Times,
    /// How many of them have done their handshake,
    ready: AtomicUsize,
    /// and when the last of these did.
    newest: Mutex<Option<Instant>>,
    /// Whose message came last, by the number of its connection; they count from 1 on.
    speaker: AtomicU64,
    connections: AtomicU64,
}

/// Opens links, and owns the thread that serves them; with it they end.
#[derive(Debug)]
pub(super) struct Links {
    times: Times,
    bell: Arc<Bell>,
    tasks: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Links {
    /// Starts the thread; fails when the system gives none.
    pub(super) fn new(times: Times) -> io::Result<Self> {
        let runtime =
            Builder::new_current_thread().enable_all().max_blocking_threads(RESOLVERS).build()?;
        let tasks = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = move || {
            // An error is the sender's end: that, too.
            let _ = runtime.block_on(stopped);
            // Without waiting for names that are being resolved.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("ingest-io".into()).spawn(serve)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { times, bell: Arc::default(), tasks, stop, thread })
    }

    /// Listens to everything that is published there, or by whoever connects there.
    pub(super) fn events(&self, endpoint: &str) -> Result<Link, EndpointError> {
        let shared = self.shared();
        let queue = shared.clone();
        let (task, local, freed) = match Address::parse(endpoint)? {
            Address::Every { only_v4, port } => {
                let (listener, local, freed) = self.bind(endpoint, only_v4, port)?;
                let task = self.tasks.spawn(listen::serve(listener, shared));
                (task, Some(local), Some(freed))
            }
            there => {
                let task = self.tasks.spawn(connect::follow(there, Role::Subscriber, shared));
                (task, None, None)
            }
        };
        Ok(Link { shared: queue, task, local, freed })
    }

    /// Asks there for everything from a number on; the replies come from the link. The question waits for the
    /// connection, and is asked once.
    pub(super) fn replies(&self, endpoint: &str, from: u64) -> Result<Link, EndpointError> {
        let there = match Address::parse(endpoint)? {
            Address::Every { .. } => return Err(EndpointError::Nowhere(endpoint.to_owned())),
            there => there,
        };
        let shared = self.shared();
        let role = Role::Asker(build_request(from).into());
        let task = self.tasks.spawn(connect::follow(there, role, shared.clone()));
        Ok(Link { shared, task, local: None, freed: None })
    }

    /// Returns once a link has something new since the last call, or after so long.
    pub(super) fn wait(&self, at_most: Duration) {
        self.bell.wait(at_most);
    }

    fn shared(&self) -> Arc<Shared> {
        let queue = Queue::new(self.bell.clone());
        let (ready, newest, speaker, connections) = Default::default();
        Arc::new(Shared { queue, times: self.times, ready, newest, speaker, connections })
    }

    fn bind(
        &self,
        endpoint: &str,
        only_v4: bool,
        port: u16,
    ) -> Result<(Listener, SocketAddr, mpsc::Receiver<()>), EndpointError> {
        let _within = self.tasks.enter();
        let mut tries = 0;
        loop {
            match listen::bind(only_v4, port) {
                Err(why) if why.kind() == io::ErrorKind::AddrInUse && tries < BIND_TRIES => {
                    tries += 1;
                    std::thread::sleep(BIND_PAUSE);
                }
                Err(why) => {
                    return Err(EndpointError::Taken { endpoint: endpoint.to_owned(), why });
                }
                Ok(bound) => return Ok(bound),
            }
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed already.
            let _ = thread.join();
        }
    }
}

/// A link to an endpoint: what came over it waits here.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    /// Where it listens.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests connect to free ports"))]
    local: Option<SocketAddr>,
    /// Ends when it doesn't any more.
    freed: Option<mpsc::Receiver<()>>,
}

impl Link {
    /// Where it listens, if it does.
    #[cfg(test)]
    pub(super) const fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Whether something waits.
    pub(super) fn has_something(&self) -> bool {
        !self.shared.queue.is_empty()
    }

    /// What waits, in its order: so many, and none after so many bytes.
    pub(super) fn take(&self, many: usize, bytes: usize) -> Vec<Note> {
        self.shared.queue.take(many, bytes)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(freed) = &self.freed {
            // Nothing is ever sent: the other end goes with the socket.
            let _ = freed.recv_timeout(FREED);
        }
    }
}

#[cfg(test)]
#[path = "../links_tests.rs"]
pub(super) mod tests;
