//! An answer on a connection that has several at a time.
//!
//! A client that takes nothing of one answer while it takes others stops that one alone, by HTTP/2's own windows: nothing
//! stands still that [`super::pace`] could see, and hyper doesn't poll the body. So a task of its own lets go of it when
//! its time is over: its worker is free then, and what is left is a stream that its client has to give up.

use super::relay::BrokenOff;
use super::reply::ReplyBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

/// See the module.
#[derive(Debug)]
pub(super) struct Watched {
    /// `None` once its time is over.
    body: Arc<Mutex<Option<ReplyBody>>>,
    watch: Option<AbortHandle>,
}

impl Watched {
    pub(super) fn new(body: ReplyBody, until: Instant, tasks: &TaskTracker) -> Self {
        let is_relayed = matches!(body, ReplyBody::Relay(_));
        let body = Arc::new(Mutex::new(Some(body)));
        let watch = is_relayed.then(|| {
            let body = body.clone();
            let watch = async move {
                sleep_until(until).await;
                let late = body.lock().take();
                drop(late);
            };
            tasks.spawn(watch).abort_handle()
        });
        Self { body, watch }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self.body.lock() {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(Some(Err(BrokenOff))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.lock().as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.lock().as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
