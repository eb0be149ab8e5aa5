//! Connections to workers, and what their failures mean.
//!
//! Each I/O thread has its own pool: a connection is used by the thread that made it, and nothing is
//! shared on the request path. A request that could not be sent on a *reused* connection is sent again
//! to the same worker on a fresh one, which is no failure (F36); hyper-util does that, and only where no
//! byte has left.

use bytes::Bytes;
use homing_core::ask::Failure;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error as _;
use std::io;
use std::time::Duration;

/// A pool of connections to all workers. Clones share it.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Connections that one pool keeps to one worker while nobody uses them.
const IDLE_PER_WORKER: usize = 1024;

impl Upstream {
    /// A pool of the current thread. `connect` bounds the making of a connection, `idle` the keeping of
    /// an unused one (zero keeps none).
    #[must_use]
    pub fn new(connect: Duration, idle: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect));
        connector.enforce_http(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(if idle.is_zero() { 0 } else { IDLE_PER_WORKER })
            .retry_canceled_requests(true)
            .set_host(true)
            .build(connector);
        Self { client }
    }

    /// Sends a request; gives the head of the answer.
    ///
    /// # Errors
    /// The failure, and its text for the log.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, (Failure, String)> {
        self.client.request(request).await.map_err(|e| (failure(&e), describe(&e)))
    }
}

/// Whether nobody was there, could not be reached, or broke off.
fn failure(error: &Error) -> Failure {
    if !error.is_connect() {
        return Failure::Broken;
    }
    let mut source = error.source();
    while let Some(e) = source {
        if let Some(io) = e.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::ConnectionRefused
        {
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
