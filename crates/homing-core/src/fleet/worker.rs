//! A worker as the core knows it, and how probes move it from state to state.

use crate::ids::WorkerId;
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
}

/// One incarnation of a worker.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Its identity.
    pub id: WorkerId,
    /// How it is registered.
    pub spec: WorkerSpec,
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
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Down => "down",
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
    /// Its port refused since it was last up.
    pub(super) refused: bool,
}

impl Health {
    /// Takes in a probe. `failures` bad ones in a row make it Down, one refusal does at once;
    /// `successes` good ones bring it back.
    pub(super) fn probe(&mut self, probe: Probe, failures: u32, successes: u32) {
        match probe {
            Probe::Good => {
                (self.bad, self.good) = (0, self.good.saturating_add(1));
                if !self.down || self.good >= successes {
                    (self.down, self.heard) = (false, true);
                }
            }
            Probe::Bad => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                self.down |= self.bad >= failures;
            }
            Probe::Refused => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                // What was never up has no life that could end.
                self.refused |= self.heard;
                self.down = true;
            }
        }
    }

    pub(super) fn is_up(self) -> bool {
        self.heard && !self.down
    }

    pub(super) fn state(self, placed: bool) -> State {
        match (self.down, self.heard && placed) {
            (true, _) => State::Down,
            (false, true) => State::Ready,
            (false, false) => State::Starting,
        }
    }
}
