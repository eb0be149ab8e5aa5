//! The client's side of a connection, with what hyper tells nobody: whether all that was written has gone out, and since
//! when a client takes nothing. And with what it doesn't do: to hear out a client that was answered before it had said all.
//!
//! Hyper flushes its socket when its own buffer is empty, and only then; so a flush is the sign that the
//! last event of a broken stream is on its way and the connection may be closed behind it. And a body is
//! not polled while its client takes nothing; so the time that a request may take is watched here, where
//! writes stand still.
//!
//! A socket that is closed with bytes unread resets its connection. The client may find that instead of the
//! answer that lies before it: Node's does, takes it for a fault of the network, and sends its 40 MiB again.

use super::socket::Socket;
use parking_lot::Mutex;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Who is heard out is so for this long at most.
const HEAR_OUT: Duration = Duration::from_secs(5);
/// Bytes that are dropped in one read, and reads in a row before others get their turn.
const DROPPED: usize = 16 << 10;
const TURN: usize = 16;

/// What a connection and the answers on it share.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// Several requests at a time.
    multiplexed: bool,
}

#[derive(Debug, Default)]
struct Inner {
    flushes: u64,
    /// Answers that wait for a flush; more than one where there are several requests at a time.
    waiting: Vec<Waker>,
    until: Option<Instant>,
    hear_out: bool,
}

/// Wakers of answers that were dropped while they waited are let go of from so many on.
const WAITING_MAX: usize = 1024;

impl Pace {
    /// Of a connection with several requests at a time.
    pub(super) fn multiplexed() -> Self {
        Self(Arc::new(Shared { multiplexed: true, ..Shared::default() }))
    }

    /// Whether there are several requests at a time.
    pub(super) fn is_multiplexed(&self) -> bool {
        self.0.multiplexed
    }

    /// A request has come; its client has until then to take its answer.
    pub(super) fn begin(&self, until: Instant) {
        let mut inner = self.0.inner.lock();
        // A connection that stands still is given up when none of its requests has time left.
        let later = inner.until.filter(|other| self.0.multiplexed && *other > until);
        inner.until = Some(later.unwrap_or(until));
    }

    /// Whether a request has come.
    pub(super) fn has_begun(&self) -> bool {
        self.0.inner.lock().until.is_some()
    }

    /// The answer goes out before the request was read: what of it still comes is dropped before the
    /// connection is closed.
    pub(super) fn hear_out(&self) {
        self.0.inner.lock().hear_out = true;
    }

    /// How often all that was written had gone out.
    pub(super) fn flushes(&self) -> u64 {
        self.0.inner.lock().flushes
    }

    /// Waits until that has happened again since it had `before` times.
    pub(super) fn poll_flushed(&self, cx: &Context<'_>, before: u64) -> Poll<()> {
        let mut inner = self.0.inner.lock();
        if inner.flushes != before {
            return Poll::Ready(());
        }
        if inner.waiting.len() >= WAITING_MAX {
            inner.waiting.drain(..).for_each(Waker::wake);
        }
        if !inner.waiting.iter().any(|w| w.will_wake(cx.waker())) {
            inner.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn flushed(&self) {
        let mut inner = self.0.inner.lock();
        inner.flushes += 1;
        inner.waiting.drain(..).for_each(Waker::wake);
    }
}

/// How a client that speaks HTTP/2 without having asked for it begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's socket.
#[derive(Debug)]
pub(super) struct Paced {
    socket: Arc<Socket>,
    pace: Pace,
    /// Runs while a write stands still.
    patience: Option<Pin<Box<Sleep>>>,
    /// What was read to know what the client speaks, and not yet read again.
    ahead: Vec<u8>,
    /// Runs while the client is heard out.
    hearing: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(socket: Arc<Socket>, pace: Pace) -> Self {
        Self { socket, pace, patience: None, ahead: Vec::new(), hearing: None }
    }

    /// Whether the client begins as one that speaks HTTP/2. What was read for it is read again.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub(super) async fn speaks_http2(&mut self) -> io::Result<bool> {
        let mut begun = [0; PREFACE.len()];
        let mut n = 0;
        while n < PREFACE.len() && begun[..n] == PREFACE[..n] {
            match self.read(&mut begun[n..]).await? {
                0 => break,
                more => n += more,
            }
        }
        self.ahead = begun[..n].to_vec();
        Ok(begun == *PREFACE)
    }

    /// What it is the pace of, from now on.
    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
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
        let Some(until) = self.pace.0.inner.lock().until else { return Poll::Pending };
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(patience.as_mut().poll(cx));
        // Another request may have come since.
        let until = self.pace.0.inner.lock().until.filter(|until| *until > Instant::now());
        if let Some(until) = until {
            patience.as_mut().reset(until);
            ready!(patience.as_mut().poll(cx));
        }
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
            let read = ready!(self.socket.poll_read(cx, &mut room));
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
        if !self.ahead.is_empty() {
            let n = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..n]);
            self.ahead.drain(..n);
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_read(cx, buf)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The system's sockets have nothing to flush.
        self.pace.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.hearing.is_none() {
            self.socket.shut_down()?;
            if !self.pace.0.inner.lock().hear_out {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_heard_out(cx).map(Ok)
    }
}
