//! Going on in mid-stream (`retry.resume`): a stream whose worker breaks off is asked for its rest at another, and its
//! client sees one stream. What can be continued faithfully, and how, is `homing_wire::request::Resume`'s to say;
//! where it can't, or nobody can serve the rest, the stream ends with its error as ever.

use super::Gateway;
use super::begin::Begun;
use super::forward;
use super::gone::Gone;
use super::proxy::{Answer, Answered, Sending};
use super::record::Record;
use super::room::Place;
use bytes::Bytes;
use homing_core::affinity::Outcome;
use homing_core::ask::Ask;
use homing_core::ids::{DpRank, WorkerId};
use homing_runtime::guard::Live;
use homing_runtime::upstream::{AnswerBody, Upstream};
use homing_wire::errors::ApiShape;
use homing_wire::request::Resume;
use homing_wire::sse::{SseEvent, SseScanner};
use http::header::{CONTENT_LENGTH, TRAILER};
use http::request::Parts;
use http::{HeaderMap, Request};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

/// How often one stream goes on elsewhere.
const MOST: u32 = 3;

/// What a stream carries along to be able to go on.
pub(super) struct Onward {
    /// What has been said.
    said: Resume,
    /// Reads what goes out to the client.
    read: SseScanner,
    again: Again,
    /// Of the rest: as the client is to see it.
    rest: Option<Rewriter>,
    going: Option<Going>,
    left: u32,
}

type Going = Pin<Box<dyn Future<Output = Option<Rest>> + Send>>;

impl fmt::Debug for Onward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What has been said is nobody's business.
        f.debug_struct("Onward").field("left", &self.left).finish_non_exhaustive()
    }
}

/// What it takes to ask anew.
#[derive(Clone)]
pub(super) struct Again {
    pub(super) gateway: Arc<Gateway>,
    pub(super) upstream: Upstream,
    pub(super) method: http::Method,
    pub(super) uri: http::Uri,
    pub(super) headers: HeaderMap,
    pub(super) ask: Box<Ask>,
    pub(super) api: ApiShape,
    pub(super) endpoint: &'static str,
    pub(super) until: Instant,
}

/// The rest of a stream, which has begun.
pub(super) struct Rest {
    pub(super) body: AnswerBody,
    pub(super) begun: Box<Begun>,
    pub(super) live: Live,
    pub(super) worker: Option<Arc<str>>,
    pub(super) rank: Option<DpRank>,
    pub(super) outcome: Outcome,
    pub(super) attempts: u32,
    pub(super) gone: Option<Gone>,
}

/// Makes the events of the rest those of one stream.
#[derive(Debug)]
struct Rewriter {
    said: Resume,
    scanner: SseScanner,
}

impl Onward {
    pub(super) fn new(said: Resume, again: Again) -> Self {
        let (read, rest, going) = (SseScanner::default(), None, None);
        Self { said, read, again, rest, going, left: MOST }
    }

    /// These whole events go out to the client.
    pub(super) fn see(&mut self, bytes: &[u8]) {
        let said = &mut self.said;
        self.read.feed(bytes, |event| match event {
            SseEvent::Data { data, .. } => said.see(data),
            SseEvent::Oversize => said.spoil(),
            SseEvent::FirstData | SseEvent::Done => {}
        });
    }

    /// Bytes have come of the worker; as the client is to see them.
    pub(super) fn rewrite(&mut self, chunk: Bytes) -> Bytes {
        let Some(Rewriter { said, scanner }) = &mut self.rest else { return chunk };
        let mut out = Vec::with_capacity(chunk.len());
        scanner.feed(&chunk, |event| {
            let data = match event {
                SseEvent::Data { data, .. } => said.rewrite(data),
                SseEvent::Done => Some(b"[DONE]".to_vec()),
                SseEvent::FirstData | SseEvent::Oversize => None,
            };
            if let Some(data) = data {
                out.extend_from_slice(b"data: ");
                out.extend_from_slice(&data);
                out.extend_from_slice(b"\n\n");
            }
        });
        out.into()
    }

    /// Its worker has broken off. True if it is being asked for the rest: then [`Self::poll`].
    pub(super) fn go(&mut self, broken: Option<WorkerId>) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        let Some(body) = self.said.request() else { return false };
        self.left = left;
        if let Some(broken) = broken {
            self.again.ask.avoid(broken);
        }
        let again = self.again.clone();
        self.going = Some(Box::pin(async move { again.go(body.into()).await }));
        true
    }

    /// The rest, once it has begun; `None` where there is none.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Rest>> {
        let Some(going) = &mut self.going else { return Poll::Ready(None) };
        let rest = std::task::ready!(going.as_mut().poll(cx));
        self.going = None;
        if rest.is_some() {
            let (said, scanner) = (self.said.clone(), SseScanner::default());
            self.rest = Some(Rewriter { said, scanner });
            // What was held of a torn event is not part of what was said.
            self.read = SseScanner::default();
        }
        Poll::Ready(rest)
    }
}

impl Again {
    async fn go(self, body: Bytes) -> Option<Rest> {
        let Self { gateway, upstream, method, uri, mut headers, ask, api, endpoint, until } = self;
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRAILER);
        let mut record = Record::unrecorded(&gateway, &headers, endpoint, api);
        let mut request = Request::new(());
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        let (parts, ()): (Parts, ()) = request.into_parts();
        let body = forward::body(&parts, body, None, &mut headers);
        let mut sending = Sending {
            gateway: &gateway,
            upstream: &upstream,
            parts: &parts,
            headers: &headers,
            body,
            place: Some(Place::default()),
            streams: true,
            api,
            until,
        };
        let answer = sending.place(ask, &mut record).await.ok()?;
        let Answer { body: Answered::Stream(body, begun, live), .. } = answer else { return None };
        let (worker, rank, outcome) = (record.worker.take(), record.rank, record.outcome);
        let (attempts, gone) = (record.attempts, record.gone.take());
        Some(Rest { body, begun, live, worker, rank, outcome, attempts, gone })
    }
}
