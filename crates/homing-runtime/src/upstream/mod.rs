//! Connections to workers, and what their failures mean.
//!
//! Each I/O thread has its own pools: a connection is used by the thread that made it, and nothing is
//! shared on the request path. A request that could not be sent on a *reused* connection is sent again
//! to the same worker on another one, which is no failure (F36); only where no byte of it has left, or an HTTP/2 worker
//! says that it has not looked at it.
//!
//! hyper speaks HTTP; what keeps its connections is our own, since hyper-util's client took a tenth of a small request's
//! time for what a worker's link knows beforehand.
//!
//! * `link`: how each worker is reached;
//! * `renew`: keys and certificates that change while it is;
//! * `connect`: making a connection; `tls`: with whom and as whom;
//! * `pool`: keeping it;
//! * `body`: what goes out; `answer`: what comes.

mod answer;
mod body;
mod connect;
mod link;
mod pool;
mod renew;
mod tls;

pub use answer::AnswerBody;
pub use body::Outgoing;
pub use link::{Link, LinkError, Links, look_at_files};
pub use renew::renew;

use answer::Back;
use connect::{Connector, Stream};
use homing_core::ask::Failure;
use http::header::HOST;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use link::Now;
use pool::{Pools, Taken};
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The connections of one thread to all workers. Clones share them.
#[derive(Clone)]
pub struct Upstream {
    /// `None`: nothing is kept, since who asks wants to know whether a connection can be made.
    pools: Option<Pools>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self::new()
    }
}

/// For an HTTP/2 worker to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// So often a request is sent to an HTTP/2 worker that says, or shows, that it has not looked at it.
const UNSEEN_TRIES: usize = 3;
/// Longest body that is kept for that, in bytes.
const KEPT_MAX: usize = 1 << 20;

/// Why there is no answer.
enum Failed {
    /// No connection could be made.
    Connect(connect::Failed),
    /// It broke off.
    Sent(hyper::Error),
    /// The worker has not looked at it.
    Unseen(hyper::Error),
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fresh = self.pools.is_none();
        f.debug_struct("Upstream").field("fresh", &fresh).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Connections of the current thread, kept as long as each link says.
    #[must_use]
    pub fn new() -> Self {
        Self { pools: Some(Pools::default()) }
    }

    /// The same, where each request gets a connection of its own.
    #[must_use]
    pub fn fresh() -> Self {
        Self { pools: None }
    }

    /// Sends a request over a link, whose URI is a path ([`Link::uri`]); gives the head of the answer. The link's key
    /// replaces the request's.
    ///
    /// # Errors
    /// The failure, and its text for the log.
    pub fn send(
        &self,
        link: &Link,
        mut request: Request<Outgoing>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, (Failure, String)>> + Send + use<> {
        debug_assert!(request.uri().authority().is_none(), "the link knows the host");
        let (me, now) = (self.clone(), link.now.load_full());
        now.authorize(request.headers_mut());
        // The usual one is on its way before anything is awaited, and no part of what is.
        let first = match me.take(&now) {
            Some(Taken::Own(mut connection)) => {
                Ok((connection.try_send_request(by_path(request, &now)), connection))
            }
            other => Err((request, other)),
        };
        async move {
            let (request, taken) = match first {
                Ok((sent, connection)) => match sent.await {
                    Ok(answer) => return Ok(me.answer(answer, Some(connection), &now)),
                    Err(error) => (unsent(error)?, me.take(&now)),
                },
                Err(not_sent) => not_sent,
            };
            // Out of line: its state is large, and most requests find a connection of their own.
            Box::pin(me.send_otherwise(request, taken, now)).await
        }
    }

    fn take(&self, now: &Now) -> Option<Taken> {
        self.pools.as_ref()?.take(now)
    }

    /// Over this connection, or another, or a new one.
    async fn send_otherwise(
        self,
        mut request: Request<Outgoing>,
        mut taken: Option<Taken>,
        now: Arc<Now>,
    ) -> Result<Response<AnswerBody>, (Failure, String)> {
        let mut unseen = 0;
        loop {
            let mut shared = match taken {
                Some(Taken::Own(mut connection)) => {
                    let sent = connection.try_send_request(by_path(request, &now)).await;
                    match sent {
                        Ok(answer) => return Ok(self.answer(answer, Some(connection), &now)),
                        Err(error) => request = unsent(error)?,
                    }
                    taken = self.take(&now);
                    continue;
                }
                Some(Taken::Shared(connection)) => connection,
                None => {
                    let connected = Connector::new(&now.wire).connect(&now.origin).await;
                    let stream = connected.map_err(|e| Failed::Connect(e).told())?;
                    if !stream.is_http2() {
                        return self.send_first(request, stream, &now).await;
                    }
                    self.begin_shared(stream, &now).await?
                }
            };
            let again = copy(&request);
            let error = match shared.try_send_request(by_uri(request, &now)).await {
                Ok(answer) => return Ok(self.answer(answer, None, &now)),
                Err(error) => error,
            };
            unseen += 1;
            request = unlooked_at(error, again.filter(|_| unseen < UNSEEN_TRIES))?;
            taken = self.take(&now);
        }
    }

    /// Over a new connection of its own: what fails there is not tried again.
    async fn send_first(
        &self,
        request: Request<Outgoing>,
        stream: Stream,
        now: &Arc<Now>,
    ) -> Result<Response<AnswerBody>, (Failure, String)> {
        let begun = http1::handshake(stream).await;
        let (mut sender, connection) = begun.map_err(|e| Failed::Connect(e.into()).told())?;
        tokio::spawn(driven(connection));
        let sent = sender.try_send_request(by_path(request, now)).await;
        let answer = sent.map_err(|error| Failed::Sent(error.into_error()).told())?;
        Ok(self.answer(answer, Some(sender), now))
    }

    async fn begin_shared(
        &self,
        stream: Stream,
        now: &Arc<Now>,
    ) -> Result<http2::SendRequest<Outgoing>, (Failure, String)> {
        let begun = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(now.wire.made.unacknowledged)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(stream)
            .await;
        let (sender, connection) = begun.map_err(|e| Failed::Connect(e.into()).told())?;
        tokio::spawn(driven(connection));
        if let Some(pools) = &self.pools {
            pools.share(now, sender.clone());
        }
        Ok(sender)
    }

    /// `connection`: where it serves one request at a time.
    fn answer(
        &self,
        answer: Response<Incoming>,
        connection: Option<http1::SendRequest<Outgoing>>,
        now: &Arc<Now>,
    ) -> Response<AnswerBody> {
        let back = connection.zip(self.pools.clone());
        let back = back.map(|(connection, pools)| Back { connection, pools, now: now.clone() });
        answer.map(|incoming| AnswerBody::new(incoming, back))
    }
}

/// A connection's life, beside the requests that it serves.
async fn driven(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to a worker ended badly");
    }
}

/// As HTTP/1.1 has it: a path, and the host in a header.
fn by_path(mut request: Request<Outgoing>, now: &Now) -> Request<Outgoing> {
    // A worker may have spoken HTTP/2 a moment ago.
    if request.uri().authority().is_some()
        && let Some(path) = request.uri().path_and_query().cloned()
    {
        *request.uri_mut() = Uri::from(path);
    }
    if let (Some(host), false) = (&now.host, request.headers().contains_key(HOST)) {
        request.headers_mut().insert(HOST, host.clone());
    }
    request
}

/// As HTTP/2 has it: all of the URI.
fn by_uri(mut request: Request<Outgoing>, now: &Now) -> Request<Outgoing> {
    request.headers_mut().remove(HOST);
    let mut parts = now.origin.clone().into_parts();
    parts.path_and_query = request.uri().path_and_query().cloned();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// The request, where nothing of it has left.
fn unsent(
    mut error: TrySendError<Request<Outgoing>>,
) -> Result<Request<Outgoing>, (Failure, String)> {
    error.take_message().ok_or_else(|| Failed::Sent(error.into_error()).told())
}

/// The same request once more; `None` where it is too much to keep.
fn copy(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    (request.body().len() <= KEPT_MAX).then(|| request.clone())
}

/// The request, or a copy of it, where the worker has not looked at it.
fn unlooked_at(
    mut error: TrySendError<Request<Outgoing>>,
    again: Option<Request<Outgoing>>,
) -> Result<Request<Outgoing>, (Failure, String)> {
    let left = error.take_message();
    let error = error.into_error();
    if left.is_none() && !was_unseen(&error) {
        return Err(Failed::Sent(error).told());
    }
    // None: it was tried often enough, or not kept.
    again.ok_or_else(|| Failed::Unseen(error).told())
}

/// Whether an HTTP/2 worker has surely not looked at a stream: it refused it, or said with its GOAWAY which was its last
/// one (RFC 9113, 6.8 and 8.7).
fn was_unseen(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        cause.is_remote() && (refused || cause.is_go_away())
    })
}

impl Failed {
    /// Whether nobody was there, could not be reached, or broke off; and the chain of causes in one line.
    fn told(&self) -> (Failure, String) {
        let (failure, error): (_, &(dyn Error + 'static)) = match self {
            Self::Connect(error) => (unreachable(&**error), &**error),
            Self::Sent(error) => (Failure::Broken, error),
            Self::Unseen(error) => (Failure::Unreachable, error),
        };
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(e) = source {
            text.push_str(": ");
            text.push_str(&e.to_string());
            source = e.source();
        }
        (failure, text)
    }
}

/// Why no connection could be made.
fn unreachable(error: &(dyn Error + 'static)) -> Failure {
    let mut source = Some(error);
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

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
