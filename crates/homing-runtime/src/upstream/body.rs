//! What goes out as a request's body: all of it at once, and behind it the trailers that the client sent, if any.

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    data: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl Outgoing {
    /// With trailers behind it: over HTTP/1.1 such a body tells no length.
    #[must_use]
    pub fn with_trailers(data: Bytes, trailers: HeaderMap) -> Self {
        Self { data, trailers: Some(Box::new(trailers)) }
    }

    /// Bytes of it, without its trailers.
    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    /// What goes out behind it.
    #[must_use]
    pub fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }
}

impl From<Bytes> for Outgoing {
    fn from(data: Bytes) -> Self {
        Self { data, trailers: None }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = std::mem::take(&mut self.data);
        if !data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = self.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.trailers {
            None => SizeHint::with_exact(self.data.len() as u64),
            Some(_) => SizeHint::default(),
        }
    }
}
