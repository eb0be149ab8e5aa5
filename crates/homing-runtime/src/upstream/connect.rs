//! Making a connection: TCP, TCP with TLS, or a socket in the file system, behind one type.

use super::link::Wire;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// A silent connection is probed after so many parts of the time that bytes may stay unacknowledged, and as often again.
const PROBES: u32 = 4;

/// Makes connections of one kind.
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
    socket: Option<Arc<Path>>,
    patience: Duration,
}

/// Any error of it.
pub(super) type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    pub(super) fn new(wire: &Wire) -> Self {
        let made = &wire.made;
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(made.connect));
        tcp.set_tcp_user_timeout(Some(made.unacknowledged));
        // A worker's host that vanishes while it computes has nothing of ours to acknowledge: it is asked.
        let pause = (made.unacknowledged / PROBES).max(Duration::from_secs(1));
        tcp.set_keepalive(Some(pause));
        tcp.set_keepalive_interval(Some(pause));
        tcp.set_keepalive_retries(Some(PROBES));
        tcp.enforce_http(false);
        Self {
            tcp,
            tls: wire.tls.clone().map(TlsConnector::from),
            socket: made.socket.as_deref().map(Arc::from),
            patience: made.connect,
        }
    }

    /// Connects to the host and port of `origin`.
    pub(super) async fn connect(self, origin: &Uri) -> Result<Stream, Failed> {
        let patience = self.patience;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        tokio::time::timeout(patience, self.reach(origin)).await.map_err(late)?
    }

    async fn reach(mut self, origin: &Uri) -> Result<Stream, Failed> {
        if let Some(path) = &self.socket {
            return Ok(Stream::Unix(TokioIo::new(UnixStream::connect(path).await?)));
        }
        let host = origin.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let tcp = self.tcp.call(origin.clone()).await?;
        match self.tls {
            None => Ok(Stream::Tcp(tcp)),
            Some(tls) => {
                let stream = tls.connect(ServerName::try_from(host)?, tcp.into_inner()).await?;
                Ok(Stream::Tls(Box::new(TokioIo::new(stream))))
            }
        }
    }
}

/// A connection to a worker.
pub(super) enum Stream {
    Tcp(TokioIo<TcpStream>),
    Unix(TokioIo<UnixStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

/// Calls the same method of whichever it is.
macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Tcp($stream) => $call,
            Self::Unix($stream) => $call,
            Self::Tls(boxed) => {
                let $stream = &mut **boxed;
                $call
            }
        }
    };
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }
}

impl Stream {
    /// Whether the two have agreed on HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}
