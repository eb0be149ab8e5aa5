//! Connections to workers, and what their failures mean.
//!
//! Each I/O thread has its own pools: a connection is used by the thread that made it, and nothing is
//! shared on the request path. A request that could not be sent on a *reused* connection is sent again
//! to the same worker on a fresh one, which is no failure (F36); hyper-util does that, and only where no
//! byte has left.
//!
//! * `link`: how each worker is reached;
//! * `renew`: keys and certificates that change while it is;
//! * `connect`: making a connection; `tls`: with whom and as whom;
//! * `body`: what goes out.

mod body;
mod connect;
mod link;
mod renew;
mod tls;

pub use body::Outgoing;
pub use link::{Link, LinkError, Links, look_at_files};
pub use renew::renew;

use connect::Connector;
use homing_core::ask::Failure;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use link::Wire;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The connections of one thread to all workers. Clones share them.
#[derive(Clone, Default)]
pub struct Upstream {
    /// Nothing is kept: who asks wants to know whether a connection can be made.
    fresh: bool,
    /// A pool for each kind of connection; by the wire's number.
    pools: Arc<Mutex<HashMap<u64, Pool>>>,
}

/// Connections that are alike, and the wire that they are of, which knows whether they are still wanted.
struct Pool {
    of: Weak<Wire>,
    client: Client<Connector, Outgoing>,
}

/// Connections that one pool keeps to one worker while nobody uses them.
const IDLE_PER_WORKER: usize = 1024;
/// For an HTTP/2 worker to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("fresh", &self.fresh).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Connections of the current thread, kept as long as each link says.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, where each request gets a connection of its own.
    #[must_use]
    pub fn fresh() -> Self {
        Self { fresh: true, ..Self::default() }
    }

    /// Sends a request over a link; gives the head of the answer. The link's key replaces the request's.
    ///
    /// # Errors
    /// The failure, and its text for the log.
    pub fn send(
        &self,
        link: &Link,
        mut request: Request<Outgoing>,
    ) -> impl Future<Output = Result<Response<Incoming>, (Failure, String)>> + Send + use<> {
        let now = link.now.load_full();
        now.authorize(request.headers_mut());
        let mut pools = self.pools.lock();
        let answer = match pools.get(&now.wire.number) {
            Some(pool) => pool.client.request(request),
            None => {
                pools.retain(|_, pool| pool.of.strong_count() > 0);
                let client = self.client(&now.wire);
                let answer = client.request(request);
                let of = Arc::downgrade(&now.wire);
                pools.insert(now.wire.number, Pool { of, client });
                answer
            }
        };
        // Small: the request itself is not a part of what is waited for.
        async move { answer.await.map_err(|e| (failure(&e), describe(&e))) }
    }

    fn client(&self, wire: &Wire) -> Client<Connector, Outgoing> {
        let made = &wire.made;
        let idle = if self.fresh { Duration::ZERO } else { made.pool_idle };
        Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(if idle.is_zero() { 0 } else { IDLE_PER_WORKER })
            .retry_canceled_requests(true)
            .set_host(true)
            .http2_keep_alive_interval(made.unacknowledged)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(Connector::new(wire))
    }
}

/// Whether nobody was there, could not be reached, or broke off.
fn failure(error: &Error) -> Failure {
    if !error.is_connect() {
        return Failure::Broken;
    }
    let mut source = error.source();
    while let Some(e) = source {
        // A socket that is not in the file system is one on which nobody listens.
        let nobody = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
        if e.downcast_ref::<io::Error>().is_some_and(|io| nobody.contains(&io.kind())) {
            return Failure::Refused;
        }
        source = e.source();
    }
    Failure::Unreachable
}

/// The chain of causes in one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}
