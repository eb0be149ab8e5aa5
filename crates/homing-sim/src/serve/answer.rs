//! An accepted request's answer: one body, or a stream of server-sent events.
//!
//! Both own the generation, so whoever drops the answer (hyper does when the client leaves) drops it too.

use super::ask::{Accepted, Api};
use super::driver::{Generation, Step};
use super::refusal::Refusal;
use super::shape::{Frame, event};
use super::{messages, responses};
use bytes::Bytes;
use http_body::{Body, Frame as BodyFrame};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// The whole answer, when it is complete.
pub(super) async fn whole(mut accepted: Accepted, frame: &Frame) -> Result<Value, Refusal> {
    let (mut text, mut cached, mut output) = (std::mem::take(&mut accepted.echo), 0, 0);
    while let Some(step) = accepted.generation.step().await {
        text.push_str(accepted.pieces.get(step.index).map_or("", String::as_str));
        cached = step.cached.unwrap_or(cached);
        output += 1;
        if let Some(reason) = step.last {
            return Ok(frame.whole(&text, reason, &frame.usage(output, cached)));
        }
    }
    Err(Refusal::broken("the engine stopped before the answer was complete"))
}

/// The answer as a body of server-sent events: one a token, as vLLM sends them.
#[derive(Debug)]
pub(super) struct Stream {
    frame: Frame,
    echo: String,
    pieces: Vec<String>,
    include_usage: bool,
    /// Of the Responses API.
    events: responses::Events,
    /// Written before anything is computed.
    first: Vec<u8>,
    cached: usize,
    output: usize,
    /// `None` once the stream has ended.
    generation: Option<Generation>,
    /// The request's place among those that run at once.
    _place: OwnedSemaphorePermit,
}

impl Stream {
    pub(super) fn new(accepted: Accepted, frame: Frame, place: OwnedSemaphorePermit) -> Self {
        let (mut events, mut first) = (responses::Events::default(), Vec::new());
        if frame.api == Api::Responses {
            events.created(&frame, &mut first);
        }
        Self {
            events,
            first,
            frame,
            echo: accepted.echo,
            pieces: accepted.pieces,
            include_usage: accepted.include_usage,
            cached: 0,
            output: 0,
            generation: Some(accepted.generation),
            _place: place,
        }
    }

    /// Appends the events that follow from one token.
    fn write(&mut self, step: Step, out: &mut Vec<u8>) {
        let Self { frame, events, .. } = self;
        if let Some(cached) = step.cached {
            self.cached = cached;
            match frame.api {
                Api::Chat => event(out, None, &frame.opening()),
                Api::Completion => {}
                Api::Responses => events.opening(frame, out),
                Api::Messages => messages::opening(frame, out),
            }
            if !self.echo.is_empty() {
                event(out, None, &frame.piece(&self.echo, None));
            }
        }
        self.output += 1;
        let piece = self.pieces.get(step.index).map_or("", String::as_str);
        match frame.api {
            Api::Chat | Api::Completion => event(out, None, &frame.piece(piece, step.last)),
            Api::Responses => events.piece(frame, piece, out),
            Api::Messages => messages::piece(piece, out),
        }
        let Some(reason) = step.last else { return };
        let usage = frame.usage(self.output, self.cached);
        match frame.api {
            Api::Chat | Api::Completion => {
                if self.include_usage {
                    event(out, None, &frame.closing(usage));
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Api::Responses => events.closing(frame, reason, &usage, out),
            Api::Messages => messages::closing(reason, &usage, out),
        }
        self.generation = None;
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    /// All events that are ready, as one frame: at high speed many tokens fall due between two looks.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let mut out = std::mem::take(&mut this.first);
        while let Some(generation) = &mut this.generation {
            match generation.poll_step(cx) {
                Poll::Ready(Some(step)) => this.write(step, &mut out),
                // The engine is shutting down. What was sent stays unfinished, as it would be.
                Poll::Ready(None) => this.generation = None,
                Poll::Pending => break,
            }
        }
        if !out.is_empty() {
            return Poll::Ready(Some(Ok(BodyFrame::data(out.into()))));
        }
        if this.generation.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }

    fn is_end_stream(&self) -> bool {
        self.generation.is_none()
    }
}
