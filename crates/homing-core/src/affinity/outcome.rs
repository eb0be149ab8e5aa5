//! What happened to a session, and why one moved: the words that headers, logs and metrics show (R26).

use std::fmt;

/// What happened to the session, in R26's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// No session, or off.
    None,
    /// A first turn, bound by this request.
    New,
    /// Bound together with a concurrent first turn.
    Joined,
    /// Served where bound.
    Hit,
    /// Had a binding; now bound elsewhere.
    Rebound,
    /// Served elsewhere, since home is overloaded; the binding is kept.
    Spilled,
    /// No room in the table.
    UnboundFull,
    /// Served, but another request bound the session elsewhere first.
    Conflict,
    /// One of too many at once on one session: placed as without (R27).
    Surplus,
    /// Its dispatch failed, nothing was bound.
    Unbound,
    /// Refused.
    Rejected,
}

impl Outcome {
    /// How many there are.
    pub const COUNT: usize = 11;

    /// Every outcome, for metrics that show zeroes too.
    pub const ALL: [Self; Self::COUNT] = [
        Self::None,
        Self::New,
        Self::Joined,
        Self::Hit,
        Self::Rebound,
        Self::Spilled,
        Self::UnboundFull,
        Self::Conflict,
        Self::Surplus,
        Self::Unbound,
        Self::Rejected,
    ];

    /// R26's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::New => "new",
            Self::Joined => "joined",
            Self::Hit => "hit",
            Self::Rebound => "rebound",
            Self::Spilled => "spilled",
            Self::UnboundFull => "unbound_full",
            Self::Conflict => "conflict",
            Self::Surplus => "surplus",
            Self::Unbound => "unbound",
            Self::Rejected => "rejected",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why a session was bound elsewhere than before, for `affinity_moves_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MoveReason {
    /// The bound worker has departed.
    Departed,
    /// The bound worker failed the very request.
    Failed,
    /// A soft session went elsewhere.
    Soft,
    /// The third turn in a row that was served elsewhere, since the bound worker is overloaded.
    Overloaded,
}

impl MoveReason {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// Every reason, in the order of [`Counters::moves`].
    pub const ALL: [Self; Self::COUNT] =
        [Self::Departed, Self::Failed, Self::Soft, Self::Overloaded];

    /// The metric's label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Departed => "departed",
            Self::Failed => "failed",
            Self::Soft => "soft",
            Self::Overloaded => "overloaded",
        }
    }
}

/// What happened in a table so far; only counted up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions that found no room.
    pub full: u64,
    /// Bindings that idled out.
    pub expired: u64,
    /// Bindings that made room for others (`on_full = "evict_idle"`).
    pub evicted: u64,
    /// Moves, by [`MoveReason`].
    pub moves: [u64; MoveReason::COUNT],
    /// Publications that had no room in the outbox: another one heals that (R23).
    pub unpublished: u64,
}
