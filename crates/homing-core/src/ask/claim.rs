//! The words of a first turn that a shared store must hear of before its dispatch (R24).

use super::{Grant, Held};
use crate::affinity::merge::Update;
use crate::core::Publication;
use crate::ids::Target;

/// What a request knows of its session's register in the shared store (R24).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    /// Where its first turn runs, or is about to.
    pub(crate) at: Option<Target>,
    /// The register's revision; `None`: it has no value.
    pub(crate) revision: Option<u64>,
    /// This very request has written it.
    pub(crate) ours: bool,
    /// How often it was asked.
    pub(crate) claims: u8,
    /// The request goes on without it.
    pub(crate) skips: bool,
}

/// A first turn on its way into the shared store (R24).
#[must_use = "dropping it leaks its booking and its hold: have it claimed, or abandon it"]
#[derive(Debug)]
pub struct Claiming {
    pub(crate) grant: Grant,
    pub(crate) update: Update,
    pub(crate) publication: Option<Publication>,
}

impl Claiming {
    /// What is to be written: where the turn is about to run.
    #[must_use]
    pub fn publication(&self) -> Option<&Publication> {
        self.publication.as_ref()
    }

    /// The revision that must still be there; `None`: no value must be.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.grant.ask.past.stored.revision
    }
}

impl From<Claiming> for Held {
    fn from(c: Claiming) -> Self {
        Self::Grant(c.grant)
    }
}

/// What the shared store answered (R24).
#[derive(Clone, Debug)]
pub enum Claimed {
    /// It is written, with this revision.
    Ours(u64),
    /// It had changed.
    Theirs {
        /// Its revision now; `None`: it has no value any more.
        revision: Option<u64>,
        /// What it says, where that can be read.
        says: Option<Publication>,
        /// Its turn has been answered: the session is bound there.
        bound: bool,
    },
    /// It can't be asked, and requests go on without it.
    Without,
    /// It can't be asked, and requests don't.
    Unreachable,
}
