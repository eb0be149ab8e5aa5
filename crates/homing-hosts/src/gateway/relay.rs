//! The answer on its way back: relayed as it comes, with the client's own pace, and never buffered
//! beyond one unfinished event. What ends with the answer rides on it: the lease and the record.
//!
//! Of a stream the tail of a chunk that lies within an event is held until the event is whole. It costs
//! nothing when workers write whole events, which they do; and when one breaks off, our error event
//! follows a whole event and can't complete a torn one into a forgery (F46). Where part of an event had to
//! pass all the same, or the answer's length was told, the connection is cut without a word.

use super::begin::Begun;
use super::forward;
use super::gone::Gone;
use super::onward::{Onward, Rest};
use super::pace::Pace;
use super::record::{Ended, Record};
use super::reply::Error;
use bytes::{Bytes, BytesMut};
use homing_core::ask::{self, Step};
use homing_runtime::guard::Live;
use homing_runtime::upstream::AnswerBody;
use homing_wire::sse::SseScanner;
use homing_wire::usage::{StreamUsage, Usage, parse_usage};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The connection is closed behind an answer that can't be finished.
#[derive(Debug, thiserror::Error)]
#[error("the worker broke off")]
pub(super) struct BrokenOff;

/// The next of an answer; none: it has ended.
type Piece = Option<Result<Frame<Bytes>, BrokenOff>>;

/// Tokens are told to the core by about the block.
const TELL_AFTER: u32 = 16;
/// And after so long, if anything has come.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// An unfinished event is held up to this size; a longer one passes as it is.
const HOLD_MAX: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Its worker has broken off, and another is asked for the rest.
    Going,
    /// The error event is out; the connection is closed behind it once it is flushed, which it had been
    /// so many times. `None`: nobody has asked for more yet.
    Broken(Option<u64>),
    Done,
}

/// How long the error event of one answer among several has to go out: its stream is ended behind it all the same.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Everything that an answer carries along.
#[derive(Debug)]
pub(super) struct Relay {
    body: AnswerBody,
    /// Bytes that came before the head was sent, already scanned.
    ready: Option<Bytes>,
    /// The tail of an unfinished event.
    held: BytesMut,
    /// What goes out behind it.
    trailers: Option<HeaderMap>,
    /// For event streams.
    scanner: Option<SseScanner>,
    /// What it says of its usage on the way.
    usage: StreamUsage,
    /// Part of an event has passed without its end.
    torn: bool,
    live: Option<Live>,
    record: Record,
    untold: u32,
    told_at: Instant,
    told_first: bool,
    limits: Limits,
    /// When the last bytes came. The timer is only armed anew when it fires, not with each chunk.
    last_byte: Instant,
    deadline: Deadline,
    /// A copy of a plain JSON answer, for its usage; `None` where it is none, or too long.
    copy: Option<Vec<u8>>,
    /// What it takes to go on at another worker, where that is wanted and possible.
    onward: Option<Box<Onward>>,
    state: State,
}

/// A timer that is made when it is first needed: an answer that is all there needs none.
#[derive(Debug, Default)]
struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    /// It rings then.
    fn at(&mut self, due: Instant) {
        match &mut self.0 {
            Some(timer) => timer.as_mut().reset(due),
            none => *none = Some(Box::pin(sleep_until(due))),
        }
    }

    /// It rings then at the latest.
    fn by(&mut self, due: Instant) {
        if self.0.as_ref().is_none_or(|timer| due < timer.deadline()) {
            self.at(due);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }
}

/// A plain answer is read for its usage up to this size.
const COPY_MAX: usize = 64 << 10;

/// When an answer is too slow, and how its client takes it.
#[derive(Debug)]
pub(super) struct Limits {
    /// Between two bytes.
    pub(super) idle: Duration,
    /// All of it.
    pub(super) until: Instant,
    /// The client's side.
    pub(super) pace: Pace,
    /// The worker's.
    pub(super) gone: Option<Gone>,
}

impl Relay {
    /// An answer that is no stream of events, or that nobody needs to follow. `first` was read of it before the
    /// head went out; `json`: it may tell its usage.
    pub(super) fn plain(
        body: AnswerBody,
        first: Bytes,
        live: Option<Live>,
        record: Record,
        limits: Limits,
        json: bool,
    ) -> Self {
        let mut relay = Self::new(body, live, record, limits);
        relay.copy = (json && relay.live.is_some()).then(Vec::new);
        if first.is_empty() {
            relay.end_if_complete();
        } else {
            relay.ready = relay.pass(first);
        }
        relay
    }

    fn new(body: AnswerBody, live: Option<Live>, record: Record, limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            body,
            ready: None,
            held: BytesMut::new(),
            trailers: None,
            scanner: None,
            usage: StreamUsage::new(record.api),
            torn: false,
            live,
            record,
            untold: 0,
            told_at: now,
            told_first: false,
            limits,
            last_byte: now,
            deadline: Deadline::default(),
            copy: None,
            onward: None,
            state: State::Open,
        }
    }

    /// A stream of events that has begun: `begun` was read (and scanned) before the head went out.
    pub(super) fn stream(
        body: AnswerBody,
        begun: Box<Begun>,
        live: Live,
        record: Record,
        limits: Limits,
        onward: Option<Box<Onward>>,
    ) -> Self {
        let mut relay = Self::new(body, Some(live), record, limits);
        relay.onward = onward;
        let Begun { mut bytes, whole, events, scanner, usage } = *begun;
        relay.scanner = Some(scanner);
        relay.usage = usage;
        relay.held = bytes.split_off(whole);
        if !bytes.is_empty() {
            relay.ready = Some(bytes.freeze());
        }
        if let (Some(onward), Some(ready)) = (&mut relay.onward, &relay.ready) {
            onward.see(ready);
        }
        relay.note_progress(events);
        relay
    }

    /// `events` more of them have come: bytes are life, and tokens are load.
    fn note_progress(&mut self, events: u32) {
        self.last_byte = Instant::now();
        // An error's bytes are no tokens.
        let Some(live) = &self.live else { return };
        self.record.bytes(self.last_byte.into_std());
        if !self.told_first && (self.scanner.is_none() || self.usage.tokens_begun()) {
            self.told_first = true;
            // What is no stream, or can't be followed, comes when all of it has been computed.
            let step = if self.scanner.is_none() { Step::Answered } else { Step::FirstToken };
            live.progress(step);
        }
        self.untold += events;
        self.record.events += u64::from(events);
        // Slow ones are told of as well: bytes are life.
        if self.untold >= TELL_AFTER || self.last_byte - self.told_at > TELL_EVERY {
            live.progress(Step::Output(self.untold));
            (self.untold, self.told_at) = (0, self.last_byte);
        }
    }

    /// What of a chunk may go out now.
    fn pass(&mut self, chunk: Bytes) -> Option<Bytes> {
        let Some(scanner) = &mut self.scanner else {
            self.note_progress(0);
            self.copy = self.copy.take().filter(|c| c.len() + chunk.len() <= COPY_MAX);
            if let Some(copy) = &mut self.copy {
                copy.extend_from_slice(&chunk);
            }
            return Some(chunk);
        };
        let before = scanner.data_events();
        let usage = &mut self.usage;
        let whole = scanner.feed(&chunk, |event| usage.see(event));
        let events = u32::try_from(scanner.data_events() - before).unwrap_or(u32::MAX);
        self.note_progress(events);
        if whole == chunk.len() && self.held.is_empty() {
            self.torn = false;
            return Some(chunk);
        }
        if whole > 0 {
            self.held.extend_from_slice(&chunk[..whole]);
            let out = self.held.split().freeze();
            self.held.extend_from_slice(&chunk[whole..]);
            self.torn = false;
            return Some(out);
        }
        self.held.extend_from_slice(&chunk);
        if self.held.len() <= HOLD_MAX {
            return None;
        }
        self.torn = true;
        Some(self.held.split().freeze())
    }

    /// Of a body with a length nobody asks for more once it is all there: it has ended now.
    fn end_if_complete(&mut self) {
        if self.body.is_end_stream() && self.held.is_empty() {
            self.end(Ended::Complete);
        }
    }

    fn end(&mut self, ended: Ended) {
        self.record.ended = ended;
        self.record.usage = match (&self.scanner, &self.copy) {
            (Some(scanner), _) => self.usage.at_end(scanner.last_data()),
            (None, Some(copy)) => parse_usage(self.record.api, copy),
            (None, None) => None,
        };
        let usage = self.record.usage.map(|usage| {
            let Usage { prompt_tokens, cached_tokens, .. } = usage;
            ask::Usage { prompt_tokens, cached_tokens }
        });
        if let Some(live) = &mut self.live {
            if let Some(usage) = usage {
                live.progress(Step::Usage(usage));
            }
            live.report(self.record.report(usage));
        }
        // The lease ends with the stream, not with whoever still holds the body.
        self.live = None;
        self.state = State::Done;
    }

    /// The answer is whole. Byte for byte: what ends without its blank line ends so for the client too.
    fn complete(&mut self) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.end(Ended::Complete);
        let rest = self.held.split().freeze();
        if !rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(rest))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    /// Its worker has broken off: another is asked for the rest, or it ends.
    fn break_off_or_go_on(&mut self, ended: Ended) -> Option<Poll<Piece>> {
        let goes = |onward: &mut Box<Onward>| onward.go(self.record.worker_id);
        let wanted = ended == Ended::WorkerBroke && !self.torn && self.scanner.is_some();
        if !wanted || !self.onward.as_mut().is_some_and(goes) {
            return Some(self.break_off(ended));
        }
        self.held.clear();
        if let Some(mut live) = self.live.take() {
            self.record.ended = ended;
            live.report(self.record.report(None));
        }
        self.state = State::Going;
        None
    }

    /// The rest has begun at another worker.
    fn go_on(&mut self, rest: Rest) {
        let Rest { body, begun, live, worker, rank, outcome, attempts, gone } = rest;
        (self.body, self.live, self.limits.gone) = (body, Some(live), gone);
        self.record.moved(worker, rank, outcome, attempts);
        self.record.ended = Ended::ClientGone;
        self.last_byte = Instant::now();
        self.state = State::Open;
        self.told_first = false;
        self.ready = self.take(begun.bytes.freeze());
    }

    /// Bytes of the worker, as they go out.
    fn take(&mut self, chunk: Bytes) -> Option<Bytes> {
        let Some(onward) = &mut self.onward else { return self.pass(chunk) };
        let chunk = onward.rewrite(chunk);
        if chunk.is_empty() {
            self.note_progress(0);
            return None;
        }
        let out = self.pass(chunk);
        if let (Some(onward), Some(out)) = (&mut self.onward, &out) {
            onward.see(out);
        }
        out
    }

    /// The answer can't be finished: a stream says so in its own shape, anything else is cut.
    fn break_off(&mut self, ended: Ended) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let sized = self.body.size_hint().exact().is_some();
        self.end(ended);
        if self.scanner.is_none() || self.torn || sized {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        let (code, message) = match ended {
            Ended::TimedOut => ("timeout", "the answer took too long"),
            Ended::ShutDown => ("draining", "the router is shutting down"),
            _ => ("worker_error", "the worker broke off in the middle of the answer"),
        };
        let pace = &self.limits.pace;
        // Of several answers one is asked for more only when all that it has said may go out; before that, others'
        // flushes say nothing of it.
        self.state = State::Broken((!pace.is_multiplexed()).then(|| pace.flushes()));
        let earlier = self.scanner.as_ref().map_or(0, SseScanner::data_events);
        let event = Error::event(self.record.api, code, message, earlier);
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = self.get_mut();
        loop {
            match this.state {
                State::Open => {}
                State::Going => {
                    let going = this.onward.as_mut().map(|onward| onward.poll(cx));
                    match ready!(going.unwrap_or(Poll::Ready(None))) {
                        Some(rest) => this.go_on(rest),
                        None => return this.break_off(Ended::WorkerBroke),
                    }
                }
                State::Broken(None) => {
                    this.state = State::Broken(Some(this.limits.pace.flushes()));
                    this.deadline.at(Instant::now() + LAST_WORDS);
                    continue;
                }
                State::Broken(Some(flushes)) => {
                    let pace = &this.limits.pace;
                    let is_late = pace.poll_flushed(cx, flushes).is_pending();
                    if is_late && !pace.is_multiplexed() {
                        return Poll::Pending;
                    } else if is_late {
                        ready!(this.deadline.poll(cx));
                    }
                    this.state = State::Done;
                    return Poll::Ready(Some(Err(BrokenOff)));
                }
                State::Done if this.record.ended == Ended::Complete => {
                    let trailers = this.trailers.take();
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                State::Done => return Poll::Ready(Some(Err(BrokenOff))),
            }
            if let Some(bytes) = this.ready.take() {
                this.end_if_complete();
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        let out = this.take(chunk);
                        this.end_if_complete();
                        if let Some(out) = out {
                            return Poll::Ready(Some(Ok(Frame::data(out))));
                        }
                    }
                    // They end a body.
                    Err(frame) => {
                        this.trailers = frame.into_trailers().ok().and_then(forward::trailers);
                        return this.complete();
                    }
                },
                Poll::Ready(None) => return this.complete(),
                Poll::Ready(Some(Err(_))) => {
                    if let Some(ended) = this.break_off_or_go_on(Ended::WorkerBroke) {
                        return ended;
                    }
                }
                Poll::Pending => {
                    let gone = this.limits.gone.as_mut().and_then(|gone| gone.poll(cx));
                    let idle = gone.map_or(this.limits.idle, |mute| mute.min(this.limits.idle));
                    let due = this.limits.until.min(this.last_byte + idle);
                    this.deadline.by(due);
                    ready!(this.deadline.poll(cx));
                    if due <= Instant::now() {
                        let cut = this.limits.gone.as_ref().is_some_and(Gone::is_cut);
                        let mute = gone.is_some() && due < this.limits.until;
                        let how = match () {
                            () if cut => Ended::ShutDown,
                            () if mute => Ended::WorkerBroke,
                            () => Ended::TimedOut,
                        };
                        if let Some(ended) = this.break_off_or_go_on(how) {
                            return ended;
                        }
                        continue;
                    }
                    this.deadline.at(due);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_out = self.held.is_empty() && self.trailers.is_none();
        self.state == State::Done && is_out && self.record.ended == Ended::Complete
    }

    fn size_hint(&self) -> SizeHint {
        // Of a stream bytes are held and others added.
        if self.scanner.is_some() {
            return SizeHint::default();
        }
        let ready = self.ready.as_ref().map_or(0, |b| b.len() as u64);
        let rest = self.body.size_hint();
        rest.exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + ready))
    }
}
