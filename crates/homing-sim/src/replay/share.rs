//! What routers tell each other while a trace is played (R23): the calls and the rhythm of production. What has happened
//! to bindings goes out together at the next tick, what is booked where along with it, or by itself where the core's own
//! [`Teller`] says so; and both take their time on the way. Nothing is lost here, so nobody need ask for what he missed.

use super::world::{Due, World};
use homing_core::core::Publication;
use homing_core::ids::DpRank;
use homing_core::load::PeerLoad;
use homing_core::load::teller::{Loads, PER_TURN, Teller};
use homing_core::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// How often what has happened goes out.
const TICK: Duration = Duration::from_millis(10);

/// What routers tell each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Where sessions live.
    pub bindings: bool,
    /// What each has booked on whom.
    pub load: bool,
    /// How long a message takes, after what it tells has gathered.
    pub delay: Duration,
}

impl Sharing {
    /// How a person writes what is shared.
    pub const WORDS: [&str; 4] = ["none", "load", "bindings", "all"];

    /// By its word.
    #[must_use]
    pub fn from_word(word: &str, delay: Duration) -> Option<Self> {
        let (bindings, load) = match word {
            "none" => (false, false),
            "load" => (false, true),
            "bindings" => (true, false),
            "all" => (true, true),
            _ => return None,
        };
        Some(Self { bindings, load, delay })
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS[usize::from(self.load) + 2 * usize::from(self.bindings)]
    }

    fn is_none(self) -> bool {
        !self.bindings && !self.load
    }
}

/// What one router has told the others, and when it looks what there is to tell.
#[derive(Debug)]
pub(super) struct Telling {
    due: Option<Time>,
    teller: Teller,
}

impl Default for Telling {
    fn default() -> Self {
        Self { due: None, teller: Teller::new(Time::ZERO, PER_TURN) }
    }
}

/// On its way to all others.
#[derive(Debug)]
pub(super) struct Message {
    from: usize,
    bindings: Vec<Publication>,
    loads: Vec<(Arc<str>, DpRank, PeerLoad)>,
}

impl World<'_> {
    /// Something has happened at a router: it may have something to tell.
    pub(super) fn touched(&mut self, now: Time, at: usize) {
        if self.routers.len() > 1 && !self.config.sharing.is_none() {
            // Not all in one instant: each process has its own rhythm.
            let (tick, routers) = (micros(TICK), self.routers.len() as u64);
            let offset = at as u64 * tick / routers;
            let since = now.as_micros().saturating_sub(offset);
            self.tell_at(Time::from_micros((since / tick + 1) * tick + offset), at);
        }
    }

    fn tell_at(&mut self, due: Time, at: usize) {
        let teller = &mut self.tellers[at];
        if teller.due.is_none_or(|before| due < before) {
            teller.due = Some(due);
            self.schedule(due, Due::Tell(at));
        }
    }

    /// A router tells the others what there is to tell.
    pub(super) fn tell(&mut self, now: Time, at: usize) {
        let (core, teller) = (&self.routers[at].core, &mut self.tellers[at]);
        if teller.due.is_none_or(|due| now < due) {
            return;
        }
        teller.due = None;
        let bindings = core.publications(now, usize::MAX);
        let (mut loads, mut later) = (Vec::new(), core.next_publication());
        if self.config.sharing.load {
            let mut there = Loads::new();
            core.own_loads(|worker, rank, load| {
                there.insert((worker.clone(), rank), load);
            });
            let word = teller.teller.look(now, there, !bindings.is_empty());
            loads = word.map(|word| word.targets).unwrap_or_default();
            if teller.teller.is_behind() {
                let look = teller.teller.next_look();
                later = Some(later.map_or(look, |later| later.min(look)));
            }
        }
        if let Some(due) = later {
            self.tell_at(due, at);
        }
        if !bindings.is_empty() || !loads.is_empty() {
            let number = self.messages.0;
            self.messages.0 += 1;
            self.messages.1.insert(number, Message { from: at, bindings, loads });
            self.schedule(now + self.config.sharing.delay, Due::Told(number));
        }
    }

    /// A message has come to all others.
    pub(super) fn told(&mut self, now: Time, number: u64) {
        let Some(message) = self.messages.1.remove(&number) else { return };
        let Message { from, bindings, loads } = message;
        let writer = self.routers[from].core.writer();
        for at in (0..self.routers.len()).filter(|at| *at != from) {
            let core = &self.routers[at].core;
            for publication in &bindings {
                core.handle_publication(now, publication.clone());
            }
            for (worker, rank, load) in &loads {
                core.handle_peer_load(writer, worker, *rank, *load);
            }
            self.set_timer(now, at);
        }
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
