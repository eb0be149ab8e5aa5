//! The engine model in real time: whoever submits or leaves does so under a lock, and one task turns the
//! engine when a step is due.
//!
//! A [`Generation`] is a request inside the engine. Dropping it before its end (its client left) takes the
//! request out and frees its blocks.

use super::clock::Clock;
use super::feed::Feed;
use crate::engine::metrics::render;
use crate::engine::sequence::Namespace;
use crate::engine::{
    Engine, EngineConfig, EngineOutput, EngineRequest, FinishReason, RequestId, SubmitError,
};
use homing_core::hash::EngineHash;
use homing_core::time::Time;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// One token of a generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Its place in the output.
    pub(super) index: usize,
    /// With the first token: how much of the prompt was reused.
    pub(super) cached: Option<usize>,
    /// With the last one: why it is the last.
    pub(super) last: Option<FinishReason>,
}

/// The engine, its clock and who listens to it.
#[derive(Debug)]
pub(super) struct Driver {
    clock: Clock,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    feed: Option<Feed>,
    listeners: BTreeMap<RequestId, mpsc::Sender<Step>>,
    next: u64,
}

impl Driver {
    pub(super) fn new(config: EngineConfig, speedup: f64, feed: Option<Feed>) -> Self {
        let inner =
            Inner { engine: Engine::new(config), feed, listeners: BTreeMap::new(), next: 0 };
        Self { clock: Clock::start(speedup), inner: Mutex::new(inner), changed: Notify::new() }
    }

    /// Turns the engine until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        loop {
            let due = {
                let mut inner = self.inner.lock();
                inner.engine.handle_timeout(self.clock.now());
                inner.deliver(self.clock.real());
                inner.engine.poll_timeout()
            };
            let timer = async {
                match due {
                    Some(at) => tokio::time::sleep_until(self.clock.instant(at).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.changed.notified() => {}
                () = timer => {}
            }
        }
    }

    /// Gives the engine a request.
    pub(super) fn submit(
        self: &Arc<Self>,
        tokens: Vec<u32>,
        output: Vec<u32>,
        ending: FinishReason,
        namespace: Namespace,
    ) -> Result<Generation, SubmitError> {
        // Room for every token: a reader that is slow holds up nobody, and nothing is ever lost.
        let (sender, steps) = mpsc::channel(output.len().max(1));
        let mut inner = self.inner.lock();
        let id = RequestId(inner.next);
        let request = EngineRequest { id, tokens, output, ending, namespace };
        inner.engine.submit(self.clock.now(), request)?;
        inner.next += 1;
        inner.listeners.insert(id, sender);
        drop(inner);
        self.changed.notify_one();
        Ok(Generation { id, steps, driver: self.clone(), ended: false })
    }

    /// The `/metrics` page.
    pub(super) fn metrics(&self, model: &str) -> String {
        render(&self.inner.lock().engine, model, self.clock.began_at())
    }

    /// Tokens of prompt and output together at most.
    pub(super) fn max_model_len(&self) -> usize {
        self.inner.lock().engine.max_model_len()
    }

    /// How many requests the engine holds at most.
    pub(super) fn max_queued(&self) -> usize {
        self.inner.lock().engine.config().batch.max_queued
    }

    /// What `read` reads of the feed of KV events, if there is one.
    pub(super) fn feed<T>(&self, read: impl FnOnce(&Feed) -> T) -> Option<T> {
        self.inner.lock().feed.as_ref().map(read)
    }

    /// The reusable blocks, one entry per copy, in the order of their names.
    pub(super) fn cached_blocks(&self) -> Vec<EngineHash> {
        self.inner.lock().engine.cached_blocks().collect()
    }

    /// The real time now.
    pub(super) fn real(&self) -> Time {
        self.clock.real()
    }

    /// When the engine started.
    pub(super) const fn began_at(&self) -> Time {
        self.clock.began_at()
    }

    fn leave(&self, id: RequestId) {
        let mut inner = self.inner.lock();
        inner.listeners.remove(&id);
        inner.engine.abort(self.clock.now(), id);
        drop(inner);
        self.changed.notify_one();
    }
}

impl Inner {
    /// Hands out what the engine has to tell.
    fn deliver(&mut self, now: Time) {
        // `Done` follows its token; the two leave as one step, as they leave a real engine.
        let mut held: Option<(RequestId, Step)> = None;
        while let Some((_, output)) = self.engine.poll_output() {
            match output {
                EngineOutput::FirstToken { id, cached_tokens, .. } => {
                    let step = Step { index: 0, cached: Some(cached_tokens), last: None };
                    self.pass(held.replace((id, step)));
                }
                EngineOutput::Token { id, index } => {
                    self.pass(held.replace((id, Step { index, cached: None, last: None })));
                }
                EngineOutput::Done { id, reason } => {
                    if let Some((of, mut step)) = held.take() {
                        step.last = (of == id).then_some(reason);
                        self.pass(Some((of, step)));
                    }
                    self.listeners.remove(&id);
                }
                EngineOutput::Kv(events) => {
                    if let Some(feed) = &mut self.feed {
                        feed.publish(now, events);
                    }
                }
            }
        }
        self.pass(held);
    }

    fn pass(&self, step: Option<(RequestId, Step)>) {
        if let Some((id, step)) = step
            && let Some(listener) = self.listeners.get(&id)
        {
            // It fails only where the reader is gone, and then its drop has told the engine.
            let _ = listener.try_send(step);
        }
    }
}

/// A request inside the engine.
#[derive(Debug)]
pub(super) struct Generation {
    id: RequestId,
    steps: mpsc::Receiver<Step>,
    driver: Arc<Driver>,
    ended: bool,
}

impl Generation {
    /// The next token; `None` after the last one.
    pub(super) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        let step = self.steps.poll_recv(cx);
        match &step {
            Poll::Ready(Some(step)) => self.ended |= step.last.is_some(),
            Poll::Ready(None) => self.ended = true,
            Poll::Pending => {}
        }
        step
    }

    /// The next token; `None` after the last one.
    pub(super) async fn step(&mut self) -> Option<Step> {
        std::future::poll_fn(|cx| self.poll_step(cx)).await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            self.driver.leave(self.id);
        }
    }
}
