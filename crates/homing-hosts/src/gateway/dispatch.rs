//! One dispatch: from the request to the first bytes of the answer, and what became of it.

use super::begin::{self, Begun};
use super::forward;
use super::gone::{Gone, Late};
use super::proxy::Sending;
use super::record::Record;
use bytes::Bytes;
use homing_core::ask::Failure;
use homing_core::ids::DpRank;
use homing_runtime::guard::Checked;
use homing_runtime::upstream::{AnswerBody, Link};
use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{Response, StatusCode, Version};
use std::time::Duration;
use tokio::time::Instant;

/// What was read of an answer before its head is sent on.
pub(super) enum Opening {
    Stream(Box<Begun>),
    /// Of one that nobody follows; its first bytes.
    Plain(Bytes),
}

/// What became of one dispatch.
pub(super) enum Dispatched {
    /// The worker has begun to answer.
    Begun(Response<()>, AnswerBody, Opening),
    /// It answered with an error, which passes; and the first bytes of that.
    Error(Response<()>, AnswerBody, Bytes),
    /// It failed before it had begun.
    Failed(Failure),
    /// It let its first byte wait for too long.
    TimedOut,
    /// The router stops.
    Cut,
}

impl Sending<'_> {
    /// On its way to a worker. Its body goes with it where it is not kept.
    fn send(
        &mut self,
        link: &Link,
        rank: Option<DpRank>,
    ) -> Option<impl Future<Output = Result<Response<AnswerBody>, (Failure, String)>> + use<>> {
        let body = match &self.place {
            Some(_) => self.body.clone(),
            None => std::mem::replace(&mut self.body, Bytes::new().into()),
        };
        let request = forward::request(self.parts, self.headers, link, rank, body)?;
        Some(self.upstream.send(link, request))
    }

    /// Sends it, and waits until the answer has begun.
    pub(super) async fn dispatch(
        &mut self,
        link: &Link,
        checked: &mut Checked,
        record: &mut Record,
    ) -> Dispatched {
        let worker = checked.worker();
        let rank = checked.rank();
        if self.gateway.room.is_short() {
            self.place = None;
        }
        let Some(mut sent) = self.send(link, rank) else {
            return Dispatched::Failed(Failure::Unreachable);
        };
        checked.dispatching();
        let patience = link.first_token_timeout;
        // The head of an answer that is no stream comes when all of it is computed.
        let first_byte =
            if self.streams { self.until.min(Instant::now() + patience) } else { self.until };
        let mut gone = Gone::of(&self.gateway.shell, worker.id, self.streams);
        let mut repeats = self.place.is_some();
        let response = loop {
            match gone.or_late(first_byte, sent).await {
                Ok(Ok(response)) if repeats && closed_while_idle(&response) => {
                    // Once: a request that is too slow gets the same answer.
                    repeats = false;
                    match self.send(link, rank) {
                        Some(again) => sent = again,
                        None => return Dispatched::Failed(Failure::Unreachable),
                    }
                }
                Ok(Ok(response)) => break response,
                Err(Late::Slow) => return Dispatched::TimedOut,
                Err(Late::Gone) => return Dispatched::Failed(Failure::Broken),
                Err(Late::Cut) => return Dispatched::Cut,
                Ok(Err((failure, why))) => {
                    let worker = &*worker.spec.name;
                    tracing::debug!(worker, ?failure, why, "a dispatch failed");
                    return Dispatched::Failed(failure);
                }
            }
        };
        let (mut head, mut body) = response.into_parts();
        // Ours is between us and the client; an answer of 1.0 would end wherever the connection does.
        head.version = Version::HTTP_11;
        let (status, response) = (head.status, Response::from_parts(head, ()));
        if !(200..600).contains(&status.as_u16()) {
            // Switching protocols, or a status that HTTP doesn't have: no answer to this request.
            return Dispatched::Failed(Failure::Broken);
        }
        let headers = response.headers();
        let kind = headers.get(CONTENT_TYPE).map(|v| v.as_bytes());
        let events = kind.is_some_and(|k| k.starts_with(b"text/event-stream"));
        // Of compressed events nothing can be seen: they pass like anything else.
        if !status.is_success() || !events || headers.contains_key(CONTENT_ENCODING) {
            let first = gone.or_late(first_byte, begin::first(&mut body)).await;
            record.gone = Some(gone);
            return match first {
                Ok(Ok(first)) if status.is_success() => {
                    Dispatched::Begun(response, body, Opening::Plain(first))
                }
                Ok(Ok(first)) => Dispatched::Error(response, body, first),
                Ok(Err(_)) | Err(Late::Gone) => Dispatched::Failed(Failure::Broken),
                Err(Late::Slow) => Dispatched::TimedOut,
                Err(Late::Cut) => Dispatched::Cut,
            };
        }
        let begun = gone.or_late(first_byte, begin::begin(&mut body, self.api)).await;
        record.gone = Some(gone);
        match begun {
            Ok(Ok(begun)) => Dispatched::Begun(response, body, Opening::Stream(begun)),
            Ok(Err(_)) | Err(Late::Gone) => Dispatched::Failed(Failure::Broken),
            Err(Late::Slow) => Dispatched::TimedOut,
            Err(Late::Cut) => Dispatched::Cut,
        }
    }
}

/// Whether the worker hung up on a connection that was idle for too long, just when a request went out on it: so it says
/// goodbye (RFC 9110, 15.5.9), and has not read the request.
fn closed_while_idle(response: &Response<AnswerBody>) -> bool {
    response.status() == StatusCode::REQUEST_TIMEOUT
        && response
            .headers()
            .get(CONNECTION)
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"close"))
}

/// Whether the worker says that it is overloaded, and for how long.
pub(super) fn overloaded(response: &Response<()>) -> Option<Failure> {
    let status = response.status();
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let number = |name: &str| response.headers().get(name)?.to_str().ok()?.trim().parse().ok();
    // The header in seconds is the standard; the one in milliseconds is OpenAI's, and finer. A date, which
    // the standard allows too, is as good as none: no engine sends it.
    let after = number("retry-after-ms")
        .map(Duration::from_millis)
        .or_else(|| number("retry-after").map(Duration::from_secs));
    Some(Failure::Overloaded(after))
}
