//! The body of a worker's answer. When it has ended its connection serves the next request; where it is dropped
//! before, hyper closes the connection, and the worker notices.

use super::body::Outgoing;
use super::link::Now;
use super::pool::Pools;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// See the module.
pub struct AnswerBody {
    incoming: Incoming,
    back: Option<Back>,
}

/// The connection that it comes by, and whose that is.
pub(super) struct Back {
    pub(super) connection: http1::SendRequest<Outgoing>,
    pub(super) pools: Pools,
    pub(super) now: Arc<Now>,
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").field("ended", &self.back.is_none()).finish_non_exhaustive()
    }
}

impl AnswerBody {
    /// `back`: none where the connection is shared, or serves no other.
    pub(super) fn new(incoming: Incoming, back: Option<Back>) -> Self {
        let mut body = Self { incoming, back };
        body.give_back_at_end();
        body
    }

    fn give_back_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(Back { connection, pools, now }) = self.back.take() {
            pools.give_back(&now, connection);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_end(),
            Some(Err(_)) => self.back = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
