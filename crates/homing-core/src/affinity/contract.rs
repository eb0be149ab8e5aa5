//! What a hold may do at each step of its request: resolve, select, check, commit, release. The rules
//! R03-R07, R10-R13, R15, R19 and R27 of the affinity contract, in the order in which a request meets
//! them. Whether a bound target can be used, and what follows if not, is decided beside the fleet and
//! the load, in `partition::decide`; the hold carries that decision as its [`Plan`].

use super::entry::flag;
use super::merge::What;
use super::outcome::{MoveReason, Outcome};
use super::quota::Quota;
use super::table::Table;
use super::{Hold, HoldKind, Lease, Plan};
use crate::ids::{SessionKey, Target};
use crate::settings::{Mode, OnFull};
use crate::time::Time;

/// How a bound target stands when a request looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not discovered any more, another incarnation, without the adapter, its rank out of range, drained
    /// of its sessions; or Down, where that counts as departed.
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
    /// No room in the table (R15), or its tenant has as many sessions as it may have.
    Full,
    /// Too many claims on it already (R27).
    Surplus,
}

/// The answer of the last look before dispatch (R10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Dispatch.
    Go,
    /// The session was bound to another live target meanwhile: select once more.
    Again,
}

/// What a commit did.
#[must_use]
#[derive(Debug)]
pub struct Commit {
    /// The lease; none after a conflict, or where there was no room.
    pub lease: Option<Lease>,
    /// In R26's words.
    pub outcome: Outcome,
}

/// A session that spilled so many turns in a row has found another home (R07).
const SPILLS: u8 = 3;

impl Table {
    /// Resolves a session (R03, R04, R05, and R07's first row: a departed binding steers nobody, and is
    /// dropped once the request has selected another target; a refused one changes nothing).
    ///
    /// `had_binding` is carried over by a request that resolves again. `quota`: what its tenant may have; further
    /// sessions are as at a full table, whatever `on_full` says, since others' don't make room for them.
    pub fn resolve(
        &mut self,
        now: Time,
        key: SessionKey,
        mode: Mode,
        had_binding: bool,
        quota: Option<Quota>,
        standing: impl Fn(Target) -> Standing,
    ) -> Resolved {
        // What has idled out is nothing, whether or not the sweep has met it (R14).
        let found = self.find(key).filter(|slot| !self.idled_out(now, *slot));
        let slot = match found {
            Some(slot) => slot,
            None => {
                // Two at a time: the table shrinks faster than it grows, whoever calls.
                self.expire(now, 2);
                let evicts = self.rules.on_full == OnFull::EvictIdle;
                let room = (evicts || self.has_room(now)) && self.within(now, quota);
                match room.then(|| self.create(key)).flatten() {
                    Some(slot) => slot,
                    None => return Resolved::Full,
                }
            }
        };
        let entry = &self.entries[slot];
        let departed = entry.bound().is_some_and(|home| standing(home) == Standing::Departed);
        // Leases on what has departed don't count for its successor (R13).
        let claims = entry.claims() - if departed { u32::from(entry.leases) } else { 0 };
        if claims >= self.most_claims() {
            return Resolved::Surplus;
        }
        let mut hold = Hold {
            slot,
            key,
            kind: HoldKind::New,
            mode,
            had_binding,
            seen: None,
            leaves: departed.then_some(entry.epoch),
            plan: Plan::Home,
            quota,
        };
        let entry = &mut self.entries[slot];
        if let Some(target) = entry.bound().filter(|_| !departed) {
            entry.bound_holds += 1;
            self.leases += 1;
            hold.kind = HoldKind::Bound { epoch: entry.epoch, target };
            hold.seen = Some(entry.version());
            return Resolved::Hold(hold);
        }
        entry.other_holds += 1;
        hold.had_binding |= entry.is(flag::LOST);
        if let Some(tentative) = entry.tentative() {
            hold.kind = HoldKind::Joining(tentative);
        }
        Resolved::Hold(hold)
    }

    /// The hold's request has selected `target`, in the critical section in which it resolved, and this
    /// is what becomes of its binding: others may join it there (R04). A joiner that could not use the
    /// tentative target replaces it.
    pub fn selected(&mut self, now: Time, hold: &mut Hold, target: Target, plan: Plan) {
        hold.plan = plan;
        if hold.leaves == Some(self.entries[hold.slot].epoch) {
            self.drop_departed(now, hold.slot);
            hold.had_binding = true;
        }
        let entry = &mut self.entries[hold.slot];
        if !entry.is(flag::BOUND) && !matches!(hold.kind, HoldKind::Bound { .. }) {
            entry.set_target(target);
            entry.set(flag::TENTATIVE, true);
        }
    }

    fn drop_departed(&mut self, now: Time, slot: u32) {
        if self.entries[slot].is(flag::LAST) {
            // It had ended but for its leases: that is not forgotten with them.
            self.remove_binding(now, slot);
        } else {
            self.drop_binding(slot);
        }
        self.entries[slot].set(flag::LOST, true);
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
        let entry = &self.entries[hold.slot];
        let Some(home) = entry.bound() else { return Check::Go };
        let go = hold.mode == Mode::Soft
            || home.admits(target)
            || Some(entry.version()) == hold.seen
            || self.expired(now, entry)
            || standing(home) == Standing::Departed;
        if go { Check::Go } else { Check::Again }
    }

    /// The worker has begun to answer (R11): the hold becomes a lease, first commit wins. `last`: with
    /// this turn the session ends (R19).
    pub fn commit(
        &mut self,
        now: Time,
        hold: Hold,
        target: Target,
        last: bool,
        standing: impl Fn(Target) -> Standing,
    ) -> Commit {
        let slot = hold.slot;
        // It may have idled out between resolve and commit, unseen by the sweep.
        self.drop_if_expired(now, slot);
        let entry = &self.entries[slot];
        let unchanged = Some(entry.version()) == hold.seen;
        let (moved, outcome) = match entry.bound() {
            None => Self::first_binding(&hold, target),
            Some(home) if home.admits(target) => {
                let hit = matches!(hold.kind, HoldKind::Bound { .. });
                self.entries[slot].spills = 0;
                let outcome = if hit { Outcome::Hit } else { Outcome::Joined };
                return self.lease(now, hold, last, false, outcome);
            }
            Some(home) if standing(home) == Standing::Departed => {
                (Some(MoveReason::Departed), Outcome::Rebound)
            }
            Some(_) => match (hold.plan, hold.mode) {
                // As decided at selection, which knew that it was leaving home.
                (Plan::Move(reason), _) if unchanged => (Some(reason), Outcome::Rebound),
                (_, Mode::Soft) => (Some(MoveReason::Soft), Outcome::Rebound),
                (Plan::Spill, Mode::Hard) if unchanged => {
                    let spills = &mut self.entries[slot].spills;
                    *spills += 1;
                    if *spills < SPILLS {
                        return self.lease(now, hold, last, false, Outcome::Spilled);
                    }
                    (Some(MoveReason::Overloaded), Outcome::Rebound)
                }
                _ => {
                    self.release(now, hold, true);
                    return Commit { lease: None, outcome: Outcome::Conflict };
                }
            },
        };
        // A session that moves needs no room: its own is there.
        let is_new = !self.entries[slot].is(flag::BOUND);
        if is_new && !(self.within(now, hold.quota) && self.make_room(now)) {
            self.routed_unbound();
            self.release(now, hold, true);
            return Commit { lease: None, outcome: Outcome::UnboundFull };
        }
        if let Some(reason) = moved {
            self.counters.moves[reason as usize] += 1;
        }
        // A later turn doesn't clear the mark of the last one, wherever it runs (R19).
        let last = last || self.entries[slot].is(flag::LAST);
        let version = self.clock.next(now);
        self.bind(now, slot, target, version);
        self.lease(now, hold, last, true, outcome)
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

    /// Turns a hold into a lease on the binding that stands; `written`: it has just been.
    fn lease(
        &mut self,
        now: Time,
        hold: Hold,
        last: bool,
        written: bool,
        outcome: Outcome,
    ) -> Commit {
        let slot = hold.slot;
        let counted = self.let_go(&hold);
        self.leases += usize::from(!counted);
        self.charge(slot, hold.quota);
        let entry = &mut self.entries[slot];
        entry.leases += 1;
        let marked = entry.is(flag::LAST);
        if last {
            entry.set(flag::LAST, true);
        }
        let (epoch, key, target, version) =
            (entry.epoch, entry.key(), entry.bound(), entry.version());
        // What is about to go is not told to be there.
        match target.filter(|_| !marked) {
            Some(target) if written => self.publish(now, key, version, What::Bound(target)),
            Some(_) => self.publish_use(now, slot),
            None => {}
        }
        Commit { lease: Some(Lease { slot, epoch }), outcome }
    }

    /// Takes a hold off its entry. True if it counted as a lease, which the caller must account for.
    fn let_go(&mut self, hold: &Hold) -> bool {
        let entry = &mut self.entries[hold.slot];
        match hold.kind {
            HoldKind::Bound { epoch, .. } => {
                if entry.is(flag::BOUND) && entry.epoch == epoch {
                    entry.bound_holds -= 1;
                } else {
                    entry.other_holds -= 1;
                }
                true
            }
            HoldKind::New | HoldKind::Joining(_) => {
                entry.other_holds -= 1;
                false
            }
        }
    }

    /// The hold ends without a lease of its own. `refresh`: the request was dispatched, so an existing
    /// binding's idle time starts anew; a request that was refused before dispatch changes nothing (R12).
    pub fn release(&mut self, now: Time, hold: Hold, refresh: bool) {
        let slot = hold.slot;
        let counted = self.let_go(&hold);
        self.leases -= usize::from(counted);
        if let HoldKind::Bound { epoch, .. } = hold.kind {
            let entry = &self.entries[slot];
            if entry.is(flag::BOUND) && entry.epoch == epoch {
                self.unpinned(now, slot, refresh);
            }
        }
        self.tidy(slot);
    }

    /// What is only of holds goes with the last of them: the tentative target, the mark of a loss, and
    /// the entry itself if nothing else needs it.
    fn tidy(&mut self, slot: u32) {
        let entry = &mut self.entries[slot];
        if !entry.is(flag::BOUND) && entry.other_holds == 0 {
            entry.set(flag::TENTATIVE | flag::LOST, false);
        }
        self.drop_entry_if_unused(slot);
    }

    /// The response stream has ended (R13).
    pub fn end(&mut self, now: Time, lease: Lease) {
        self.leases -= 1;
        let slot = lease.slot;
        // The entry may be another session's by now: the epoch tells.
        let stands = |e: &&mut super::entry::Entry| e.is(flag::BOUND) && e.epoch == lease.epoch;
        let Some(entry) = self.entries.get_mut(slot).filter(stands) else { return };
        entry.leases -= 1;
        self.unpinned(now, slot, true);
        self.tidy(slot);
    }

    /// One claim on a binding less.
    fn unpinned(&mut self, now: Time, slot: u32, refresh: bool) {
        let entry = &self.entries[slot];
        let idle = !entry.pinned();
        if idle && entry.is(flag::LAST) {
            self.remove_binding(now, slot);
        } else if refresh {
            let told = idle && entry.is(flag::BOUND);
            self.refresh(now, slot);
            if told {
                self.publish_use(now, slot);
            }
        } else if idle {
            self.idle_again(now, slot);
        }
    }

    /// A session's final turn has been committed: its group's binding ends with it (R19).
    pub fn end_group(&mut self, now: Time, group: SessionKey) {
        let Some(slot) = self.find(group) else { return };
        self.drop_if_expired(now, slot);
        let entry = &mut self.entries[slot];
        if entry.pinned() {
            entry.set(flag::LAST, true);
        } else {
            self.remove_binding(now, slot);
            self.drop_entry_if_unused(slot);
        }
    }

    /// Whether one more turn that is served elsewhere moves the session (R07).
    #[must_use]
    pub fn next_spill_moves(&self, key: SessionKey) -> bool {
        self.find(key).is_some_and(|slot| self.entries[slot].spills + 1 >= SPILLS)
    }

    /// A request is served without a binding, since it found no room (R15).
    pub fn routed_unbound(&mut self) {
        self.counters.full += 1;
    }

    /// Drops the binding of a session that can be used nowhere (R07's last row); its holds go on without.
    pub fn give_up(&mut self, now: Time, hold: &Hold) {
        self.remove_binding(now, hold.slot);
    }
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
