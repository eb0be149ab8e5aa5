//! The beginning of an answer, read before its head is sent on: the worker has begun to answer, and not before (F63).

use bytes::{Bytes, BytesMut};
use homing_runtime::upstream::AnswerBody;
use homing_wire::errors::ApiShape;
use homing_wire::sse::SseScanner;
use homing_wire::usage::StreamUsage;
use hyper::body::Body as _;
use std::pin::Pin;

/// Reads the first bytes of a body that nobody follows; none if it has none. A head that nothing follows is no
/// answer: it could not even be sent on, the connection would be closed without a word.
///
/// # Errors
/// When the worker breaks off.
pub(super) async fn first(body: &mut AnswerBody) -> Result<Bytes, hyper::Error> {
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => return Ok(bytes),
            Err(_trailers) => break,
        }
    }
    Ok(Bytes::new())
}

/// The beginning of a stream, read before its head is sent on.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) bytes: BytesMut,
    /// How many of them end where an event ends.
    pub(super) whole: usize,
    pub(super) events: u32,
    pub(super) scanner: SseScanner,
    pub(super) usage: StreamUsage,
}

/// A head without data is held up to this many bytes of comments and the like.
const BEGIN_MAX: usize = 64 << 10;

/// Reads a stream until its first `data:` line is complete: the worker has begun to answer, and not
/// before (F63). A stream that ends before it has one is complete as it is.
///
/// # Errors
/// When the worker breaks off.
pub(super) async fn begin(
    body: &mut AnswerBody,
    api: ApiShape,
) -> Result<Box<Begun>, hyper::Error> {
    let mut begun = Box::new(Begun {
        bytes: BytesMut::new(),
        whole: 0,
        events: 0,
        scanner: SseScanner::default(),
        usage: StreamUsage::new(api),
    });
    while !begun.scanner.begun() && begun.bytes.len() < BEGIN_MAX {
        let next = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let Some(frame) = next else { break };
        if let Ok(chunk) = frame?.into_data() {
            let usage = &mut begun.usage;
            let whole = begun.scanner.feed(&chunk, |event| usage.see(event));
            if whole > 0 {
                begun.whole = begun.bytes.len() + whole;
            }
            begun.bytes.extend_from_slice(&chunk);
        }
    }
    begun.events = u32::try_from(begun.scanner.data_events()).unwrap_or(u32::MAX);
    Ok(begun)
}
