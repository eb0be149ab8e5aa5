//! What a hold may do at each step of its request: resolve, check, commit, release. The rules R03-R07
//! and R10-R13 of the affinity contract, in the order in which a request meets them.

use super::table::{MoveReason, Table};
use super::{Hold, HoldKind, Lease};
use crate::ids::{SessionKey, Target};
use crate::settings::Mode;
use crate::time::Time;
use std::fmt;

/// How a bound target stands when a request looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not discovered any more, another incarnation, without the adapter; or Down, where that counts
    /// as departed.
    Departed,
    /// Discovered, and not to be used now: not known well enough yet, or Down where that is refused.
    Unavailable,
    /// Live.
    Live,
}

/// What a session resolves to.
#[must_use]
#[derive(Debug)]
pub enum Resolved {
    /// A claim.
    Hold(Hold),
    /// No room in the table (R15).
    Full,
    /// Its target is known and can't be used, and the request is Hard.
    Unavailable(Target),
}

/// The answer of the last look before dispatch (R10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Dispatch.
    Go,
    /// The session was bound to another live target meanwhile: select once more.
    Again,
}

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
    /// No room in the table.
    UnboundFull,
    /// Served, but another request bound the session elsewhere first.
    Conflict,
    /// Its dispatch failed, nothing was bound.
    Unbound,
    /// Refused.
    Rejected,
}

impl Outcome {
    /// Every outcome, for metrics that show zeroes too.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::New,
        Self::Joined,
        Self::Hit,
        Self::Rebound,
        Self::UnboundFull,
        Self::Conflict,
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
            Self::UnboundFull => "unbound_full",
            Self::Conflict => "conflict",
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

/// What a commit did.
#[must_use]
#[derive(Debug)]
pub struct Commit {
    /// The lease; none after a conflict.
    pub lease: Option<Lease>,
    /// In R26's words.
    pub outcome: Outcome,
}

impl Table {
    /// Resolves a session (R03, R04, R05, and R07's rows on departure).
    ///
    /// `had_binding` is carried over by a request that resolves again.
    pub fn resolve(
        &mut self,
        now: Time,
        key: SessionKey,
        mode: Mode,
        had_binding: bool,
        standing: impl Fn(Target) -> Standing,
    ) -> Resolved {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => {
                // Two at a time: the table shrinks faster than it grows, whoever calls.
                self.expire(now, 2);
                match self.create(now, key) {
                    Some(slot) => slot,
                    None => {
                        self.counters.full += 1;
                        return Resolved::Full;
                    }
                }
            }
        };
        let mut hold = Hold { slot, key, kind: HoldKind::New, mode, had_binding, seen: None };
        self.drop_if_expired(now, slot);
        if let Some(b) = &self.entries[slot].binding {
            let (target, version) = (b.target, b.version);
            match standing(target) {
                Standing::Departed => {
                    self.drop_binding(slot);
                    self.entries[slot].lost = true;
                }
                Standing::Unavailable if mode == Mode::Hard => {
                    return Resolved::Unavailable(target);
                }
                Standing::Unavailable | Standing::Live => {
                    if let Some(epoch) = self.pin(slot) {
                        hold.kind = HoldKind::Bound { epoch, target };
                        hold.seen = Some(version);
                    }
                }
            }
        }
        let entry = &mut self.entries[slot];
        entry.holds += 1;
        hold.had_binding |= entry.lost;
        if let (HoldKind::New, Some(tentative)) = (hold.kind, entry.tentative) {
            hold.kind = HoldKind::Joining(tentative);
        }
        Resolved::Hold(hold)
    }

    /// The hold's request has selected `target`, in the critical section in which it resolved: others
    /// may join it there (R04). A joiner that could not use the tentative target replaces it.
    pub fn selected(&mut self, hold: &Hold, target: Target) {
        let entry = &mut self.entries[hold.slot];
        if entry.binding.is_none() && !matches!(hold.kind, HoldKind::Bound { .. }) {
            entry.tentative = Some(target);
        }
    }

    /// The last look before dispatch (R10). Changes nothing.
    #[must_use]
    pub fn check_dispatch(
        &self,
        now: Time,
        hold: &Hold,
        target: Target,
        standing: impl Fn(Target) -> Standing,
    ) -> Check {
        let Some(b) = &self.entries[hold.slot].binding else { return Check::Go };
        let go = self.expired(now, b)
            || hold.mode == Mode::Soft
            || b.target.admits(target)
            || Some(b.version) == hold.seen
            || standing(b.target) == Standing::Departed;
        if go { Check::Go } else { Check::Again }
    }

    /// The worker has begun to answer (R11): the hold becomes a lease, first commit wins.
    pub fn commit(
        &mut self,
        now: Time,
        hold: Hold,
        target: Target,
        standing: impl Fn(Target) -> Standing,
    ) -> Commit {
        let slot = hold.slot;
        // It may have idled out between resolve and commit, unseen by the sweep.
        self.drop_if_expired(now, slot);
        let found = self.entries[slot].binding.as_ref().map(|b| (b.target, b.version));
        let (moved, outcome) = match found {
            None => Self::first_binding(&hold, target),
            Some((home, _)) if home.admits(target) => {
                let hit = matches!(hold.kind, HoldKind::Bound { .. });
                let outcome = if hit { Outcome::Hit } else { Outcome::Joined };
                let epoch = self.pin(slot);
                self.release(now, hold, true);
                return Commit { lease: epoch.map(|epoch| Lease { slot, epoch }), outcome };
            }
            Some((home, _)) if standing(home) == Standing::Departed => {
                (Some(MoveReason::Departed), Outcome::Rebound)
            }
            Some(_) if hold.mode == Mode::Soft => (Some(MoveReason::Soft), Outcome::Rebound),
            // Unchanged since selection, which knew that it was leaving home: a failover.
            Some((_, version)) if hold.seen == Some(version) => {
                (Some(MoveReason::Failed), Outcome::Rebound)
            }
            Some(_) => {
                self.release(now, hold, true);
                return Commit { lease: None, outcome: Outcome::Conflict };
            }
        };
        if let Some(reason) = moved {
            self.counters.moves[reason as usize] += 1;
        }
        let epoch = self.bind(now, slot, target);
        self.release(now, hold, true);
        Commit { lease: Some(Lease { slot, epoch }), outcome }
    }

    /// The outcome of a commit that finds the session unbound.
    fn first_binding(hold: &Hold, target: Target) -> (Option<MoveReason>, Outcome) {
        let away = hold.home().is_some_and(|home| !home.admits(target));
        if hold.had_binding || away {
            (Some(MoveReason::Departed), Outcome::Rebound)
        } else {
            (None, Outcome::New)
        }
    }

    /// The hold ends without a lease of its own. `refresh`: the request was dispatched, so an existing
    /// binding's idle time starts anew; a request that was refused before dispatch changes nothing (R12).
    pub fn release(&mut self, now: Time, hold: Hold, refresh: bool) {
        self.entries[hold.slot].holds -= 1;
        if let HoldKind::Bound { epoch, .. } = hold.kind {
            self.unpin(now, hold.slot, epoch, refresh);
        }
        if self.find(hold.key) == Some(hold.slot) {
            self.drop_entry_if_unused(hold.slot);
        }
    }

    /// The response stream has ended (R13).
    pub fn end(&mut self, now: Time, lease: Lease) {
        self.unpin(now, lease.slot, lease.epoch, true);
    }
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
