//! One connection's life: TLS where it is asked for, HTTP/1.1 or HTTP/2 as the client begins, requests, and the end.
//!
//! Which of the two it is is known before hyper sees it, so that each goes the way that it would go if there were no
//! other; hyper-util's own builder waits for the first bytes without a bound.

use super::heard::{Heard, Listens};
use super::pace::{Pace, Paced};
use super::reply::ReplyBody;
use super::socket::Socket;
use super::tls::ServerTls;
use super::watched::Watched;
use super::{Gateway, service};
use homing_runtime::upstream::Upstream;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A head must be complete within this: slow-loris clients hold no connection longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// And a TLS handshake within this.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 256;
/// All headers of an HTTP/2 request, as it counts them.
const HEADERS_SIZE: u32 = 64 << 10;
/// What is held of an answer on HTTP/2 that its client doesn't take; beyond it the worker feels it (F49).
const SEND_BUFFER: usize = 128 << 10;
/// A silent HTTP/2 client is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A client that has connected and said nothing when the router stops may begin for so long.
const LAST_WORD: Duration = Duration::from_secs(1);
/// What an HTTP/2 answer is given beyond the time of its request, in which it ends by itself if anything takes it.
const BEYOND: Duration = Duration::from_secs(1);

/// What all connections of a thread share.
#[derive(Clone)]
pub(super) struct Connections {
    gateway: Arc<Gateway>,
    upstream: Upstream,
    tls: Option<Arc<ServerTls>>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("it sent no whole {0} in time")]
    Slow(&'static str),
    #[error("its client left")]
    Left,
}

impl Connections {
    /// On the thread whose they are.
    pub(super) fn new(
        gateway: Arc<Gateway>,
        tls: Option<Arc<ServerTls>>,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Self { gateway, upstream: Upstream::new(), tls, stopping, tasks }
    }

    /// Serves one to its end; `place` is given back then.
    pub(super) async fn serve<P>(self, socket: Socket, place: P) {
        if let Err(error) = self.serve_any(socket).await {
            // Clients come and go; what matters of it is in the request's own record.
            tracing::debug!(%error, "a connection ended badly");
        }
        drop(place);
    }

    /// What is not plain HTTP/1.1 is served out of line: every connection would carry the state of it.
    async fn serve_any(&self, socket: Socket) -> Result<(), Ended> {
        let peer = socket.peer();
        let socket = Arc::new(socket);
        let mut io = Paced::new(socket.clone(), Pace::default());
        if let Some(tls) = &self.tls {
            return Box::pin(self.serve_tls(tls, io, &socket, peer)).await;
        }
        let begun = self.unless_stopped(timeout(HEAD_TIMEOUT, io.speaks_http2())).await;
        let Some(begun) = begun else { return Ok(()) };
        let is_http2 = begun.map_err(|_| Ended::Slow("head"))??;
        let pace = if is_http2 { Pace::multiplexed() } else { Pace::default() };
        io.set_pace(pace.clone());
        match is_http2 {
            true => Box::pin(self.http2(io, pace, peer)).await,
            false => self.http1(io, pace, &socket, peer).await,
        }
    }

    async fn serve_tls(
        &self,
        tls: &ServerTls,
        io: Paced,
        socket: &Socket,
        peer: Option<IpAddr>,
    ) -> Result<(), Ended> {
        let accept = TlsAcceptor::from(tls.config()).accept(io);
        let accepted = self.unless_stopped(timeout(HANDSHAKE_TIMEOUT, accept)).await;
        let Some(accepted) = accepted else { return Ok(()) };
        let mut io = accepted.map_err(|_| Ended::Slow("handshake"))??;
        let is_http2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
        let pace = if is_http2 { Pace::multiplexed() } else { Pace::default() };
        io.get_mut().0.set_pace(pace.clone());
        match is_http2 {
            true => self.http2(io, pace, peer).await,
            false => self.http1(io, pace, socket, peer).await,
        }
    }

    /// Whoever has not said anything yet when the router stops, and a moment later, has nothing to wait for.
    async fn unless_stopped<T>(&self, first: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            first = first => Some(first),
            () = self.last_word() => None,
        }
    }

    /// Over a moment after the router has stopped: what a client was about to say then is served.
    async fn last_word(&self) {
        self.stopping.cancelled().await;
        tokio::time::sleep(LAST_WORD).await;
    }

    async fn http1<I>(
        &self,
        io: I,
        pace: Pace,
        socket: &Socket,
        peer: Option<IpAddr>,
    ) -> Result<(), Ended>
    where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let listens = Listens::default();
        let (gateway, upstream, shared) = (&self.gateway, &self.upstream, &pace);
        let service = service_fn(move |request| {
            let (gateway, upstream, pace) = (gateway.clone(), upstream.clone(), shared.clone());
            async move {
                let mut response = service::handle(&gateway, &upstream, &pace, peer, request).await;
                if gateway.draining() {
                    // The next request goes where somebody will be.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(Heard::new(io, listens.clone())), service);
        let mut connection = pin!(self.drive(connection, &pace));
        let mut closed = pin!(socket.closed());
        poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if !listens.now() && closed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Ended::Left));
            }
            Poll::Pending
        })
        .await
    }

    async fn http2<I>(&self, io: I, pace: Pace, peer: Option<IpAddr>) -> Result<(), Ended>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (this, shared) = (self.clone(), pace.clone());
        let service = service_fn(move |request| {
            let (this, pace) = (this.clone(), shared.clone());
            async move { Ok::<_, Infallible>(this.answer(&pace, peer, request).await) }
        });
        let connection = http2::Builder::new(Spawn(self.tasks.clone()))
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADERS_SIZE)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(io), service);
        let mut first = pin!(tokio::time::sleep(HEAD_TIMEOUT));
        let mut has_begun = false;
        let mut connection = pin!(self.drive(connection, &pace));
        poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if !has_begun && first.as_mut().poll(cx).is_ready() {
                has_begun = pace.has_begun();
                if !has_begun {
                    return Poll::Ready(Err(Ended::Slow("head")));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// One request of several at a time.
    async fn answer(
        &self,
        pace: &Pace,
        peer: Option<IpAddr>,
        request: Request<Incoming>,
    ) -> Response<Watched> {
        let until = Instant::now() + self.gateway.settings().gateway.request_timeout + BEYOND;
        let is_head = request.method() == Method::HEAD;
        let mut response =
            service::handle(&self.gateway, &self.upstream, pace, peer, request).await;
        if is_head && let Some(length) = response.body().size_hint().exact() {
            // Of HTTP/1.1 hyper sees to that.
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
            *response.body_mut() = ReplyBody::Whole(None);
        }
        response.map(|body| Watched::new(body, until, &self.tasks))
    }

    /// Drives a connection to its end; the current requests are its last ones once the router stops, and the first one
    /// where none has come yet: a client that has just connected finds nobody who is about to leave.
    async fn drive<C>(&self, connection: C, pace: &Pace) -> Result<(), Ended>
    where
        C: GracefulConnection<Error = hyper::Error>,
    {
        let mut connection = pin!(connection);
        let mut stop = pin!(self.stopping.cancelled());
        let mut last_word = pin!(self.last_word());
        let mut stopped = false;
        poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended.map_err(Ended::Http));
            }
            let stops = !stopped
                && match pace.has_begun() {
                    true => stop.as_mut().poll(cx).is_ready(),
                    false => last_word.as_mut().poll(cx).is_ready(),
                };
            if !stops {
                return Poll::Pending;
            }
            stopped = true;
            connection.as_mut().graceful_shutdown();
            connection.as_mut().poll(cx).map_err(Ended::Http)
        })
        .await
    }
}

/// Hyper's tasks for HTTP/2 as ours: the thread's end waits for them.
#[derive(Clone)]
struct Spawn(TaskTracker);

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}
