//! The streams of an engine that is asked for them, answer by answer (TensorRT-LLM). Each of its ranks is a
//! stream with a sequence of its own, as over ZMQ, and goes into the same sinks, so that holes, lives,
//! counts and states mean the same; only that there is nobody to repeat anything.
//!
//! What an answer told is gone from the engine, but what nobody asked for waits there, as much as its buffer
//! holds. So an engine that can't be reached for a while has lost nothing yet: its numbers will tell.

use super::Here;
use super::book::FeedBook;
use super::sink::Sink;
use crate::shell::Shell;
use homing_core::fleet::FleetChange;
use homing_core::ids::WorkerId;
use homing_core::index::event::KvEvent;
use homing_wire::kv_events::trtllm::{Told, Translator};
use std::sync::Arc;
use std::time::Instant;

const REMEDY: &str = "a larger `event_buffer_max_size` keeps more of them, and only one reader may ask \
                      an engine for its events";

/// See the module.
#[derive(Debug)]
pub struct Polled {
    shell: Arc<Shell>,
    book: Arc<FeedBook>,
    translator: Translator,
    /// By rank.
    sinks: Vec<Sink>,
    /// The life that the rest is of.
    life: Option<WorkerId>,
    /// Whether anything was heard of it.
    heard: bool,
}

/// Events of one rank in a row that are applied together, so that few take the lock each for itself; no more of
/// them than these, so that an answer never stands in memory as events.
const RUN: usize = 128;
const RUN_BLOCKS: usize = 1024;

/// See [`RUN`].
#[derive(Debug, Default)]
struct Run {
    rank: u32,
    events: Vec<KvEvent>,
    blocks: usize,
}

impl Run {
    fn is_full(&self) -> bool {
        self.events.len() >= RUN || self.blocks >= RUN_BLOCKS
    }

    fn push(&mut self, event: KvEvent) {
        self.blocks += event.blocks();
        self.events.push(event);
    }

    fn take(&mut self) -> Vec<KvEvent> {
        self.blocks = 0;
        std::mem::take(&mut self.events)
    }
}

impl Polled {
    pub(super) fn new(shell: Arc<Shell>, book: Arc<FeedBook>, worker: &str, ranks: u16) -> Self {
        let sink = |rank| {
            book.open(worker, rank, ranks);
            Sink::new(worker, rank, ranks, REMEDY)
        };
        let sinks = (0..ranks.max(1)).map(sink).collect();
        Self { shell, book, translator: Translator::default(), sinks, life: None, heard: false }
    }

    /// The worker's name.
    #[must_use]
    pub fn worker(&self) -> &str {
        self.sinks.first().map_or("", Sink::worker)
    }

    /// Whether the engine has told anything in this life.
    #[must_use]
    pub const fn has_heard(&self) -> bool {
        self.heard
    }

    /// Takes in an answer. True if it told anything.
    pub fn take(&mut self, answer: &[u8]) -> bool {
        let (shell, book) = (self.shell.clone(), self.book.clone());
        let here = Here { shell: &shell, book: &book, now: Instant::now() };
        if !self.join_life(here) {
            return false;
        }
        let mut run = Run::default();
        let mut any = false;
        // The rest of this is told of while it reads.
        let mut translator = std::mem::take(&mut self.translator);
        let read = translator.read(answer, |rank, what| {
            any = true;
            if rank != run.rank || run.is_full() {
                self.apply(here, &mut run);
                run.rank = rank;
            }
            match what {
                Told::Event(event) => run.push(event),
                what => {
                    self.apply(here, &mut run);
                    self.note(here, rank, what);
                }
            }
        });
        self.translator = translator;
        self.apply(here, &mut run);
        if let Err(error) = read {
            // What it told from there on is lost, as the next numbers will show.
            self.sinks.iter().take(1).for_each(|sink| sink.malformed(here, &error.to_string()));
        }
        if any {
            self.heard = true;
            self.reached(true);
        }
        any
    }

    /// Whether the engine answers, and tells.
    pub fn reached(&self, reached: bool) {
        for rank in 0..u16::try_from(self.sinks.len()).unwrap_or(u16::MAX) {
            self.book.connected(self.worker(), rank, reached && self.heard);
        }
    }

    fn sink(&mut self, rank: u32) -> Option<&mut Sink> {
        self.sinks.get_mut(usize::try_from(rank).ok()?)
    }

    fn apply(&mut self, here: Here<'_>, run: &mut Run) {
        let events = run.take();
        let (Some(life), false) = (self.life, events.is_empty()) else { return };
        match self.sink(run.rank) {
            Some(sink) => sink.take_events(here, life, &events),
            None => {
                let many = events.len() as u64;
                self.sinks.iter().take(1).for_each(|sink| sink.no_such_rank(here, many));
            }
        }
    }

    fn note(&mut self, here: Here<'_>, rank: u32, what: Told) {
        if what == Told::Reborn {
            return self.reborn(here);
        }
        let book = self.book.clone();
        let Some(sink) = self.sink(rank) else { return };
        match what {
            Told::Lost(lost) => {
                book.with(sink.worker(), |page| page.stats.gaps += 1);
                sink.lose(here, lost);
            }
            Told::Senseless(why) => sink.malformed(here, why),
            Told::Ignored => sink.ignored(here, 1),
            Told::Reborn | Told::Event(_) => {}
        }
    }

    /// Of the life that the worker lives now; false where it lives none.
    fn join_life(&mut self, here: Here<'_>) -> bool {
        let id = here.shell.core().worker_named(self.worker());
        if id != self.life {
            self.life = id;
            self.heard = false;
            self.translator.begin_anew();
            self.sinks.iter_mut().for_each(|sink| sink.begin(here));
        }
        id.is_some()
    }

    /// The numbers go back: an engine counts from 0 for as long as it lives. What the translator knows is of
    /// the new life already.
    fn reborn(&mut self, here: Here<'_>) {
        let Some(id) = self.life else { return };
        if here.book.may_be_reborn(self.worker(), here.shell.now()) {
            let change = FleetChange::Restarted(id);
            if let Ok(events) = here.shell.core().handle_fleet(here.shell.now(), change) {
                here.shell.note_fleet(self.worker(), &events);
                here.shell.pump();
            }
            self.life = here.shell.core().worker_named(self.worker());
        } else {
            self.sinks.iter_mut().for_each(|sink| sink.forget(here));
        }
        self.sinks.iter_mut().for_each(|sink| sink.begin(here));
    }
}

#[cfg(test)]
#[path = "polled_tests.rs"]
mod tests;
