//! Whether anybody would hear if a client went away.
//!
//! Hyper looks for the end of a connection by reading on; behind a request that has more bytes behind it it doesn't, and
//! so hears of its client's end when it writes the next time, which may be in half an hour (F40). Here it is known
//! whether hyper waits for more, as the outermost layer, since TLS reads ahead of it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether whoever reads waits for more, and so hears of the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Listens(Arc<AtomicBool>);

impl Listens {
    pub(super) fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection of which that is known.
#[derive(Debug)]
pub(super) struct Heard<I> {
    io: I,
    listens: Listens,
}

impl<I> Heard<I> {
    pub(super) fn new(io: I, listens: Listens) -> Self {
        Self { io, listens }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Heard<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.listens.0.store(read.is_pending(), Ordering::Relaxed);
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Heard<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
