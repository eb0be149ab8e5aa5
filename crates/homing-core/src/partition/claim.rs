//! First turns of which a shared store must hear before their dispatch (R24): of all routers one writes where a session's
//! first turn is about to run, and the others join it there.
//!
//! What the store says is kept with the request, not in the table: it is a tentative target like any other (R04), known
//! one step later. A binding that it tells of is merged as an update of its router would be.

use super::Partition;
use crate::affinity::merge::{Update, What};
use crate::affinity::version::Version;
use crate::affinity::{Hold, Standing};
use crate::ask::{Ask, Cause, Claim, Claiming, Dispatch, Grant};
use crate::ids::{SessionKey, Target};
use crate::partition::decide::No;
use crate::time::Time;
use std::collections::VecDeque;

/// How often one request asks the store: each time something else stood there. Then it goes on, and the commit decides
/// (R11).
const CLAIMS: u8 = 4;
/// Claims that wait to be withdrawn, at most: those that are dropped end with this router, or idle out.
const WITHDRAWN: usize = 65_536;

/// What the store says, in this core's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// It is written.
    Ours(u64),
    /// Something else is there.
    Theirs {
        /// Its revision; `None`: nothing is there any more.
        revision: Option<u64>,
        /// The target, where that is known here.
        at: Option<Target>,
        /// The binding, where it is one.
        bound: Option<Update>,
        /// Its version: what is written from now on must surpass it.
        version: Option<Version>,
    },
    /// It isn't asked.
    Without,
    /// It can't be, and must be.
    Unreachable,
}

impl Partition {
    /// Whether the store must hear of it first, and what.
    pub(super) fn unclaimed(&mut self, now: Time, grant: &Grant) -> Option<Update> {
        if !self.settings.affinity.claimed {
            return None;
        }
        let stored = &grant.ask.past.stored;
        let target = grant.target();
        let known = stored.skips || stored.claims >= CLAIMS;
        if known || stored.at.is_some_and(|at| at.admits(target)) {
            return None;
        }
        let Claim::Held(hold) = &grant.claim else { return None };
        let bound = self.table.as_ref()?.get(now, hold.key()).map(|view| view.target);
        // What has departed is bound to nothing: whoever moves it must be one, too.
        let lives = |t| self.standing(now, grant.ask.name, t) != Standing::Departed;
        if bound.is_some_and(lives) {
            return None;
        }
        let version = self.table.as_mut()?.next_version(now);
        Some(Update { key: hold.key(), version, what: What::Bound(target), used: now })
    }

    /// The store has answered.
    pub(crate) fn claimed(&mut self, now: Time, mut grant: Grant, answer: Answer) -> Dispatch {
        let target = grant.target();
        let stored = &mut grant.ask.past.stored;
        stored.claims = stored.claims.saturating_add(1);
        match answer {
            Answer::Ours(revision) => {
                (stored.at, stored.revision, stored.ours) = (Some(target), Some(revision), true);
            }
            Answer::Without => stored.skips = true,
            Answer::Unreachable => {
                let mut ask = self.give_back(now, grant);
                let refused =
                    self.refuse(now, &mut ask, None, No::because(Cause::StoreUnreachable));
                return match refused {
                    crate::ask::Admission::Refused(refusal) => Dispatch::Refused(refusal),
                    // A refusal is nothing else.
                    _ => Dispatch::Again(ask),
                };
            }
            Answer::Theirs { revision, at, bound, version } => {
                if let (Some(table), Some(version)) = (&mut self.table, version) {
                    table.saw(now, version);
                }
                let name = grant.ask.name;
                let lives = |t: &Target| self.standing(now, name, *t) == Standing::Live;
                let failed = |t: &Target| grant.ask.past.failed.contains(&t.worker);
                let at = at.filter(|t| lives(t) && !failed(t));
                let stored = &mut grant.ask.past.stored;
                (stored.at, stored.revision, stored.ours) = (at, revision, false);
                if let (Some(table), Some(update)) = (&mut self.table, bound) {
                    let _ = table.merge(now, update);
                } else if at.is_some_and(|at| !at.admits(target)) {
                    // The others use it, as they would another request's here (R04).
                    return Dispatch::Again(self.give_back(now, grant));
                }
            }
        }
        self.check_dispatch(now, grant)
    }

    /// Releases what a grant holds; its ask selects once more.
    pub(super) fn give_back(&mut self, now: Time, grant: Grant) -> Box<Ask> {
        let Grant { mut ask, worker, rank, booking, claim, tries, .. } = grant;
        let _ = self.free(now, booking, rank);
        if tries {
            self.vitals.tried(now, worker.id);
        }
        if let (Some(table), Claim::Held(hold)) = (&mut self.table, claim) {
            ask.past.had_binding |= hold.had_binding();
            table.release(now, hold, false);
        }
        self.wake_all(Some(worker.id));
        self.debug_check();
        ask
    }

    /// A hold joins what the store says, where nothing is known here.
    pub(super) fn join(&self, ask: &Ask, hold: &mut Hold) {
        let stored = &ask.past.stored;
        if let Some(at) = stored.at.filter(|_| !stored.ours) {
            hold.join(at);
        }
    }

    /// The request comes to nothing, and holds nothing any more: what the store was told of its session, by it or by
    /// another of ours, and nobody has confirmed, may go, unless others of ours are on their way there (R04).
    pub(super) fn withdraw(&mut self, ask: &Ask) {
        let Some(session) = ask.session.filter(|_| self.settings.affinity.claimed) else { return };
        let key = session.key;
        // A binding is written over it, whatever comes first.
        if self.table.as_ref().is_none_or(|table| table.claims(key) == 0) {
            if self.withdrawn.len() >= WITHDRAWN {
                self.withdrawn.pop_front();
            }
            self.withdrawn.push_back(session.key);
        }
    }

    /// See [`crate::SelectionCore::withdrawals`].
    pub fn withdrawals(&mut self) -> VecDeque<SessionKey> {
        std::mem::take(&mut self.withdrawn)
    }
}

/// What a claim is, on its way out of the partition.
pub(super) fn claiming(grant: Grant, update: Update) -> Dispatch {
    Dispatch::Claim(Claiming { grant, update, publication: None })
}
