//! Sessions and where they live: the affinity contract's state.
//!
//! * [`table`]: the bindings, who holds them, and when they expire;
//! * [`contract`]: what a hold may do at each step of its request, rule by rule;
//! * [`outcome`]: what is told of it;
//! * [`merge`]: what other routers bound (R23);
//! * `outbox`: what they hear of ours, and when;
//! * [`quota`]: how many bindings a tenant may have, and has;
//! * [`saved`]: what is kept over a restart (R25);
//! * [`version`]: the registers' clock;
//! * `check`: what must always be true;
//! * `idle`: the list in whose order they expire;
//! * `entry`: one entry a session; they grow in small steps, as the keys that lead to them do.
//!
//! A [`Hold`] is one request's claim before its worker has begun to answer; commit turns it into a
//! [`Lease`]. Neither can be copied, and both are consumed by what ends them.

#[cfg(test)]
mod by_hand;
mod check;
pub mod contract;
mod entry;
mod idle;
pub mod merge;
mod outbox;
pub mod outcome;
pub mod quota;
pub mod saved;
pub mod table;
pub mod version;

use crate::ids::{SessionKey, Target};
use crate::settings::Mode;
use quota::Quota;
use version::Version;

pub use contract::{Check, Commit, Resolved, Standing};
pub use outcome::{MoveReason, Outcome};
pub use table::{Rules, Table};

/// One request's uncommitted claim on a session.
#[must_use = "a hold that is dropped leaks its claim; release it"]
#[derive(Debug)]
pub struct Hold {
    slot: u32,
    key: SessionKey,
    kind: HoldKind,
    mode: Mode,
    /// The session was bound when this request came, and that binding is gone.
    had_binding: bool,
    /// The binding's version that selection saw.
    seen: Option<Version>,
    /// The epoch of a departed binding, which goes when the request has selected another target.
    leaves: Option<u32>,
    plan: Plan,
    /// What its tenant may have.
    quota: Option<Quota>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldKind {
    /// Nothing is bound, nobody else has selected.
    New,
    /// Somebody else has selected, and is about to bind.
    Joining(Target),
    /// Bound; this hold already keeps the binding alive.
    Bound { epoch: u32, target: Target },
}

/// What selection decided about a bound session's binding, for the commit to carry out (R07, R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The request runs at home, or has none.
    Home,
    /// It runs elsewhere, and its session moves there.
    Move(MoveReason),
    /// It runs elsewhere, and its session stays at home.
    Spill,
}

/// What the hold asks of selection (R04, R06).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// Every eligible candidate.
    Free,
    /// Only the bound target, while it is eligible.
    Pin(Target),
    /// The bound target, if the policy likes.
    Prefer(Target),
    /// Another's tentative target, while it can be used; otherwise anything.
    Tentative(Target),
}

impl Steer {
    /// The target that it names.
    #[must_use]
    pub const fn target(self) -> Option<Target> {
        match self {
            Self::Free => None,
            Self::Pin(t) | Self::Prefer(t) | Self::Tentative(t) => Some(t),
        }
    }

    /// As people read it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pin(_) => "pin",
            Self::Prefer(_) => "prefer",
            Self::Tentative(_) => "join",
        }
    }
}

impl Hold {
    /// What it asks of selection.
    #[must_use]
    pub fn steer(&self) -> Steer {
        match (self.kind, self.mode) {
            (HoldKind::New, _) => Steer::Free,
            (HoldKind::Joining(t), _) => Steer::Tentative(t),
            (HoldKind::Bound { target, .. }, Mode::Hard) => Steer::Pin(target),
            (HoldKind::Bound { target, .. }, Mode::Soft) => Steer::Prefer(target),
        }
    }

    /// The session.
    #[must_use]
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// Where the session was bound when this request resolved it.
    #[must_use]
    pub fn home(&self) -> Option<Target> {
        match self.kind {
            HoldKind::Bound { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Another router's request has selected, and is about to bind (R24): as if it were one of ours. What ours have
    /// selected without asking the store gives way to it.
    pub(crate) fn join(&mut self, target: Target) {
        if !matches!(self.kind, HoldKind::Bound { .. }) {
            self.kind = HoldKind::Joining(target);
        }
    }

    /// Whether the session lost its binding to this very request.
    #[must_use]
    pub(crate) fn had_binding(&self) -> bool {
        self.had_binding
    }
}

/// A committed claim: it lives exactly as long as the response stream.
#[must_use = "a lease that is dropped is never released; end it"]
#[derive(Debug)]
pub struct Lease {
    slot: u32,
    epoch: u32,
}
