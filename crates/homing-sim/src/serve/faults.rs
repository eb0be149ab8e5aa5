//! Misbehaving as real engines do, for trying what a router makes of it.

use bytes::Bytes;
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// What a mock does wrong; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// It takes requests and sends the heads of their streams, and nothing more; its health path stays green, and
    /// its counters say that nothing runs and nothing waits.
    pub hang: bool,
    /// Told to stop, it takes no more connections and leaves the streams that are open without another byte, until
    /// the grace is over.
    pub mute_on_term: bool,
    /// Told to stop, it goes on taking connections until the grace is over: its health path stays green, and each
    /// new request is answered 500.
    pub green_drain: bool,
    /// Of so many generating requests one is answered 500 at once; 1: all are. 0: none is.
    pub fail_every: u64,
}

/// Counts requests, for [`Faults::fail_every`].
#[derive(Debug, Default)]
pub(super) struct Failing(AtomicU64);

impl Failing {
    /// Whether the request that comes now fails.
    pub(super) fn is_next(&self, every: u64) -> bool {
        every > 0 && (self.0.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every)
    }
}

/// A body of which nothing ever comes.
#[derive(Debug)]
pub(super) struct Never;

impl Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}
