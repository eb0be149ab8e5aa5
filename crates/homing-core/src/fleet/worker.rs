//! A worker as the core knows it, and how probes move it from state to state.

use crate::ids::{DpRank, Role, WorkerId};
use crate::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How a worker is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// What people call it; unique.
    pub name: Arc<str>,
    /// Where it listens.
    pub url: Arc<str>,
    /// What requests may ask of it.
    pub labels: BTreeMap<String, String>,
    /// What it does.
    pub role: Role,
    /// Its data-parallel ranks.
    pub ranks: Ranks,
    /// Discovery's own mark of this registration (etcd's create revision, a pod's uid); where it has
    /// none, whoever replaces a registration counts. The same name, place, role and mark once more is
    /// the same registration, seen again: a re-list is not a departure.
    pub generation: u64,
}

impl WorkerSpec {
    /// A worker of one rank that does everything, without labels.
    #[must_use]
    pub fn new(name: &str, url: &str) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            labels: BTreeMap::new(),
            role: Role::Aggregated,
            ranks: Ranks::default(),
            generation: 0,
        }
    }

    /// Whether `other` is this registration, seen again.
    pub(super) fn is_again(&self, other: &Self) -> bool {
        (&self.url, self.role, self.generation) == (&other.url, other.role, other.generation)
    }
}

/// Data-parallel ranks `start .. start + size`; never none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    start: u16,
    size: u16,
}

impl Default for Ranks {
    fn default() -> Self {
        Self { start: 0, size: 1 }
    }
}

impl Ranks {
    /// `size` ranks from `start` on; at least one, and none beyond 65,534.
    #[must_use]
    pub fn new(start: u16, size: u16) -> Self {
        let start = start.min(u16::MAX - 1);
        Self { start, size: size.clamp(1, u16::MAX - start) }
    }

    /// How many.
    #[must_use]
    pub fn count(self) -> u16 {
        self.size
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn has(self, rank: DpRank) -> bool {
        (self.start..self.start + self.size).contains(&rank.0)
    }

    /// All of them, in order.
    pub fn iter(self) -> impl Iterator<Item = DpRank> {
        (self.start..self.start + self.size).map(DpRank)
    }
}

/// How it is known what a worker has cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSource {
    /// By the text of what was sent to it.
    #[default]
    Routed,
    /// By its KV events.
    Events,
    /// It is not: it publishes no events, and nothing else is wanted.
    Nothing,
}

/// What is known of a worker's cache as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// How its content is known.
    pub source: CacheSource,
    /// Tokens that one of its ranks has room for, where it has told.
    pub capacity: Option<u64>,
}

/// A worker gets no new sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// From then on its sessions move with their next turn; `None`: they may finish.
    pub moves_at: Option<Time>,
}

impl Drain {
    /// Whether its sessions move.
    #[must_use]
    pub fn moves(self, now: Time) -> bool {
        self.moves_at.is_some_and(|at| now >= at)
    }
}

/// One incarnation of a worker.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its identity.
    pub id: WorkerId,
    /// How it is registered.
    pub spec: WorkerSpec,
}

impl WorkerInfo {
    /// Its name, hashed: the same at all routers.
    #[must_use]
    pub fn name_hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.spec.name.as_bytes())
    }
}

/// One name under which a worker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedName {
    /// As clients put it into `model`.
    pub name: String,
    /// True for an adapter (vLLM names its `parent`): its blocks and sessions are apart from the base's.
    pub adapter: bool,
}

/// How a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Discovered; not heard of yet, or what it serves is unknown.
    Starting,
    /// Usable.
    Ready,
    /// It doesn't answer.
    Down,
    /// It wants a key that we don't have.
    Unauthorized,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Down => "down",
            Self::Unauthorized => "unauthorized",
        })
    }
}

/// What a probe, or a request, learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It answered well.
    Good,
    /// It answered badly, too late or not at all; the same life goes on.
    Bad,
    /// Its port refused the connection: nobody is there, and whoever comes next is another life.
    Refused,
}

/// A worker's health, from probes alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    bad: u32,
    good: u32,
    down: bool,
    heard: bool,
    /// It was up once.
    lived: bool,
    /// It wants a key that we don't have.
    barred: bool,
    /// Its port refused the last time.
    refusing: bool,
    /// Its port refused since it was last up.
    pub(super) refused: bool,
}

impl Health {
    /// Takes in a probe. `failures` bad ones in a row make it Down, one refusal does at once;
    /// `successes` good ones bring it back.
    pub(super) fn probe(&mut self, probe: Probe, failures: u32, successes: u32) {
        self.refusing = probe == Probe::Refused;
        match probe {
            Probe::Good => {
                (self.bad, self.good) = (0, self.good.saturating_add(1));
                if !self.down || self.good >= successes {
                    (self.down, self.heard, self.lived) = (false, true, true);
                }
            }
            Probe::Bad => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                self.down |= self.bad >= failures;
            }
            Probe::Refused => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                // What was never up has no life that could end.
                self.refused |= self.lived;
                self.down = true;
            }
        }
    }

    /// Of a worker that is new here. One that is known from before has lived: should its port refuse, that
    /// life is over.
    pub(super) fn of_life(known: bool) -> Self {
        Self { lived: known, ..Self::default() }
    }

    /// It turns out to be one that is known from before.
    pub(super) fn has_lived(&mut self) {
        self.lived = true;
    }

    /// It must be heard of anew.
    pub(super) fn unsure(&mut self) {
        self.heard = false;
    }

    /// Whether it wants a key that we don't have.
    pub(super) fn bar(&mut self, barred: bool) {
        self.barred = barred;
    }

    /// It is Down though nothing has refused: nobody knows whether it is there.
    pub(super) fn is_silent(self) -> bool {
        self.down && !self.refusing
    }

    pub(super) fn is_up(self) -> bool {
        self.heard && !self.down
    }

    pub(super) fn state(self, placed: bool) -> State {
        match (self.down, self.heard && placed) {
            (true, _) => State::Down,
            (false, _) if self.barred => State::Unauthorized,
            (false, true) => State::Ready,
            (false, false) => State::Starting,
        }
    }
}
