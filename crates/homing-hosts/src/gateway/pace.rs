//! The client's side of a connection, with the two things that hyper tells nobody: whether all that was
//! written has gone out, and since when a client takes nothing. And with one that it doesn't do: to hear out
//! a client that was answered before it had said all.
//!
//! Hyper flushes its socket when its own buffer is empty, and only then; so a flush is the sign that the
//! last event of a broken stream is on its way and the connection may be closed behind it. And a body is
//! not polled while its client takes nothing; so the time that a request may take is watched here, where
//! writes stand still.
//!
//! A socket that is closed with bytes unread resets its connection. The client may find that instead of the
//! answer that lies before it: Node's does, takes it for a fault of the network, and sends its 40 MiB again.

use parking_lot::Mutex;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Who is heard out is so for this long at most.
const HEAR_OUT: Duration = Duration::from_secs(5);
/// Bytes that are dropped in one read, and reads in a row before others get their turn.
const DROPPED: usize = 16 << 10;
const TURN: usize = 16;

/// What a connection and the answers on it share.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    flushes: u64,
    waiting: Option<Waker>,
    until: Option<Instant>,
    hear_out: bool,
}

impl Pace {
    /// A request has come; its client has until then to take its answer.
    pub(super) fn begin(&self, until: Instant) {
        self.0.lock().until = Some(until);
    }

    /// The answer goes out before the request was read: what of it still comes is dropped before the
    /// connection is closed.
    pub(super) fn hear_out(&self) {
        self.0.lock().hear_out = true;
    }

    /// How often all that was written had gone out.
    pub(super) fn flushes(&self) -> u64 {
        self.0.lock().flushes
    }

    /// Waits until that has happened again since it had `before` times.
    pub(super) fn poll_flushed(&self, cx: &Context<'_>, before: u64) -> Poll<()> {
        let mut inner = self.0.lock();
        if inner.flushes != before {
            return Poll::Ready(());
        }
        inner.waiting = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct Paced {
    stream: TcpStream,
    pace: Pace,
    /// Runs while a write stands still.
    patience: Option<Pin<Box<Sleep>>>,
    /// Runs while the client is heard out.
    hearing: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(stream: TcpStream, pace: Pace) -> Self {
        Self { stream, pace, patience: None, hearing: None }
    }

    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let Some(until) = self.pace.0.lock().until else { return Poll::Pending };
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Paced {
    /// Drops what comes until the client has ended, too, or its time is over.
    fn poll_heard_out(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let hearing = self.hearing.get_or_insert_with(|| Box::pin(sleep(HEAR_OUT)));
        if hearing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut dropped = [0; DROPPED];
        for _ in 0..TURN {
            let mut room = ReadBuf::new(&mut dropped);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room));
            if read.is_err() || room.filled().is_empty() {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut inner = self.pace.0.lock();
            inner.flushes += 1;
            if let Some(waiting) = inner.waiting.take() {
                waiting.wake();
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.hearing.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.pace.0.lock().hear_out {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_heard_out(cx).map(Ok)
    }
}
