//! The engine model in real time: whoever submits or leaves does so under a lock, and one task turns the
//! engine when a step is due.
//!
//! Each data-parallel rank is an engine by itself, with a feed of its own. A request that names none goes where
//! fewest are, as vLLM counts: one that waits weighs as much as four that run.
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
    config: EngineConfig,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    ranks: Vec<Rank>,
    listeners: Listeners,
    next: u64,
}

#[derive(Debug)]
struct Rank {
    engine: Engine,
    feed: Option<Feed>,
}

impl Driver {
    /// One rank for each of `feeds`, and one at least.
    pub(super) fn new(config: EngineConfig, speedup: f64, feeds: Vec<Option<Feed>>) -> Self {
        let rank = |feed| Rank { engine: Engine::new(config), feed };
        let mut ranks: Vec<Rank> = feeds.into_iter().map(rank).collect();
        if ranks.is_empty() {
            ranks.push(rank(None));
        }
        let inner = Inner { ranks, listeners: BTreeMap::new(), next: 0 };
        let (clock, inner) = (Clock::start(speedup), Mutex::new(inner));
        Self { clock, inner, changed: Notify::new(), config }
    }

    /// Turns the engine until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        loop {
            let due = {
                let mut inner = self.inner.lock();
                let Inner { ranks, listeners, .. } = &mut *inner;
                for rank in &mut *ranks {
                    rank.engine.handle_timeout(self.clock.now());
                    rank.deliver(self.clock.real(), listeners);
                }
                ranks.iter().filter_map(|rank| rank.engine.poll_timeout()).min()
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

    /// Gives a request to this rank where there is one, or else to the least busy one.
    pub(super) fn submit(
        self: &Arc<Self>,
        rank: Option<usize>,
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
        let rank = rank.filter(|rank| *rank < inner.ranks.len());
        let rank = rank.unwrap_or_else(|| inner.least_busy());
        inner.ranks[rank].engine.submit(self.clock.now(), request)?;
        inner.next += 1;
        inner.listeners.insert(id, sender);
        drop(inner);
        self.changed.notify_one();
        Ok(Generation { id, rank, steps, driver: self.clone(), ended: false })
    }

    /// The `/metrics` page.
    pub(super) fn metrics(&self, model: &str) -> String {
        let inner = self.inner.lock();
        let ranks: Vec<&Engine> = inner.ranks.iter().map(|rank| &rank.engine).collect();
        render(&ranks, model, self.clock.began_at())
    }

    /// Forgets what is cached; false if some rank could not, since requests hold blocks there.
    pub(super) fn clear_cache(&self) -> bool {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let mut all = true;
        for rank in &mut inner.ranks {
            all &= rank.engine.clear_cache(now);
        }
        all
    }

    /// Tokens of prompt and output together at most.
    pub(super) fn max_model_len(&self) -> usize {
        self.each_rank(Engine::max_model_len).first().copied().unwrap_or(0)
    }

    /// How many requests the engine holds at most.
    pub(super) fn max_queued(&self) -> usize {
        self.config.batch.max_queued
    }

    /// How many data-parallel ranks there are.
    pub(super) fn ranks(&self) -> usize {
        self.inner.lock().ranks.len()
    }

    /// What `read` reads of each rank's feed of KV events; nothing where there are none.
    pub(super) fn feeds<T>(&self, read: impl FnMut(&Feed) -> T) -> Vec<T> {
        self.inner.lock().ranks.iter().filter_map(|rank| rank.feed.as_ref()).map(read).collect()
    }

    /// What `read` reads of each rank's engine, as it is at one moment.
    pub(super) fn each_rank<T>(&self, mut read: impl FnMut(&Engine) -> T) -> Vec<T> {
        self.inner.lock().ranks.iter().map(|rank| read(&rank.engine)).collect()
    }

    /// The reusable blocks of all ranks, one entry per copy, in the order of ranks and names.
    pub(super) fn cached_blocks(&self) -> Vec<EngineHash> {
        self.each_rank(|engine| engine.cached_blocks().collect::<Vec<_>>()).concat()
    }

    /// The real time now.
    pub(super) fn real(&self) -> Time {
        self.clock.real()
    }

    /// When the engine started.
    pub(super) const fn began_at(&self) -> Time {
        self.clock.began_at()
    }

    fn leave(&self, rank: usize, id: RequestId) {
        let mut inner = self.inner.lock();
        inner.listeners.remove(&id);
        if let Some(rank) = inner.ranks.get_mut(rank) {
            rank.engine.abort(self.clock.now(), id);
        }
        drop(inner);
        self.changed.notify_one();
    }
}

type Listeners = BTreeMap<RequestId, mpsc::Sender<Step>>;

impl Inner {
    fn least_busy(&self) -> usize {
        let busy = |rank: &Rank| rank.engine.waiting() * 4 + rank.engine.running();
        let ranks = self.ranks.iter().enumerate();
        ranks.min_by_key(|(_, rank)| busy(rank)).map_or(0, |(at, _)| at)
    }
}

impl Rank {
    /// Hands out what the engine has to tell.
    fn deliver(&mut self, now: Time, listeners: &mut Listeners) {
        // `Done` follows its token; the two leave as one step, as they leave a real engine.
        let mut held: Option<(RequestId, Step)> = None;
        while let Some((_, output)) = self.engine.poll_output() {
            match output {
                EngineOutput::FirstToken { id, cached_tokens, .. } => {
                    let step = Step { index: 0, cached: Some(cached_tokens), last: None };
                    pass(listeners, held.replace((id, step)));
                }
                EngineOutput::Token { id, index } => {
                    pass(listeners, held.replace((id, Step { index, cached: None, last: None })));
                }
                EngineOutput::Done { id, reason } => {
                    if let Some((of, mut step)) = held.take() {
                        step.last = (of == id).then_some(reason);
                        pass(listeners, Some((of, step)));
                    }
                    listeners.remove(&id);
                }
                EngineOutput::Kv(events) => {
                    if let Some(feed) = &mut self.feed {
                        feed.publish(now, events);
                    }
                }
            }
        }
        pass(listeners, held);
    }
}

fn pass(listeners: &Listeners, step: Option<(RequestId, Step)>) {
    if let Some((id, step)) = step
        && let Some(listener) = listeners.get(&id)
    {
        // It fails only where the reader is gone, and then its drop has told the engine.
        let _ = listener.try_send(step);
    }
}

/// A request inside the engine.
#[derive(Debug)]
pub(super) struct Generation {
    id: RequestId,
    rank: usize,
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
            self.driver.leave(self.rank, self.id);
        }
    }
}
