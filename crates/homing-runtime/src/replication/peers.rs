//! What is known of the other routers of the group: who is there, and what of their words has been missed. Without
//! I/O; times are this process's own, but where a peer's clock is meant.
//!
//! Each router counts what it says to all. A number that is passed over, a router that is new, a connection that was
//! down: something may be missing, and is asked for: the registers that it has written or used since its clock stood
//! where it was heard in order last. So what is lost is never lost for good, and messages need no receipts.

use homing_core::time::Time;
use homing_wire::replica::Head;
use std::collections::BTreeMap;
use std::time::Duration;

/// A router that says nothing for so long counts as gone: what it had booked is over. It speaks every second.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// One that is gone for so long is forgotten altogether.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// Routers that are known at most: of those that are gone the one that is for longest gives way to a new one; while all
/// are there, further ones are not listened to.
pub(super) const PEERS_MAX: usize = 256;
/// What may have been on its way when something was missed, and clocks that go apart.
const MARGIN: Duration = Duration::from_secs(10);
/// An answer that doesn't come within this is asked for again,
const PATIENCE: Duration = Duration::from_secs(2);
/// so often; then it is left until its router is heard of again.
const TRIES: u32 = 3;

/// What a message is in the order of its router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The next, or the first of all.
    InOrder,
    /// Something before it is missing.
    AfterGap,
    /// It came before, or too late: of registers it may tell all the same.
    Old,
    /// Its router lives another life: what it had booked before is over.
    Anew,
    /// Of ourselves.
    Ours,
    /// Of one router too many, which is not listened to.
    TooMany,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    boot: u64,
    /// Of its last message to all; 0: only what it said to us was heard, and how far it has counted isn't known.
    sequence: u64,
    heard: Time,
    /// Its clock when it was heard in order last.
    clock: Time,
    /// Something of it is missing since then, by its clock, and has not been asked for yet.
    missing: Option<Time>,
    gone: bool,
    /// It has been said that it is silent.
    silent: bool,
    /// How much of the language it reads, as it has said.
    reads: u64,
    behind: Behind,
}

/// So often a router counts on from where it had been long before, or in a life before the one that is known, until that
/// is its count: somebody has spoken in its name, or something was late for long.
const BEHIND: u32 = 8;

/// How a router counts on from where it had been before.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    /// In which life.
    boot: u64,
    /// How often, one by one,
    times: u32,
    /// and where it is.
    at: u64,
}

impl Behind {
    /// One more. True where it has been long enough.
    fn insists(&mut self, head: &Head) -> bool {
        let goes_on = head.boot == self.boot && Some(head.sequence) == self.at.checked_add(1);
        let times = if goes_on { self.times + 1 } else { 1 };
        *self = Self { boot: head.boot, times, at: head.sequence };
        times >= BEHIND
    }
}

/// A question that is under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    whom: u32,
    since: Time,
    cursor: u64,
    at: Time,
    tries: u32,
}

/// What is to be asked of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) whom: u32,
    pub(super) since: Time,
    pub(super) cursor: u64,
}

/// The others.
#[derive(Debug)]
pub(super) struct Peers {
    me: u32,
    known: BTreeMap<u32, Peer>,
    asked: Option<Asked>,
    /// Who is asked for all it has, by one who has nothing.
    source: Option<u32>,
    /// Gaps that were seen.
    pub(super) gaps: u64,
}

impl Peers {
    pub(super) fn new(me: u32) -> Self {
        Self { me, known: BTreeMap::new(), asked: None, source: None, gaps: 0 }
    }

    /// A message has come.
    pub(super) fn hear(&mut self, now: Time, head: &Head) -> Heard {
        if head.writer == self.me {
            return Heard::Ours;
        }
        let boot = Time::from_micros(head.boot);
        let before = self.known.get_mut(&head.writer);
        if let Some(peer) = before
            && peer.boot > head.boot
            && (head.sequence == 0 || !peer.behind.insists(head))
        {
            // Of its life before this one.
            return Heard::Old;
        }
        let before = self.known.get(&head.writer).copied();
        let Some(peer) = before.filter(|peer| peer.boot == head.boot) else {
            // What it has said to all since it is there; before, it had nothing that others had not.
            let missing = Some(Time::from_micros(boot.as_micros().saturating_sub(micros(MARGIN))));
            let (sequence, clock) = (head.sequence, head.now);
            if before.is_none() && !self.has_room() {
                return Heard::TooMany;
            }
            let (boot, heard) = (head.boot, now);
            let (gone, silent, behind) = Default::default();
            let reads = head.reads;
            let peer = Peer { boot, sequence, heard, clock, missing, gone, silent, reads, behind };
            self.known.insert(head.writer, peer);
            return if before.is_some() { Heard::Anew } else { Heard::InOrder };
        };
        let peer = self.known.entry(head.writer).or_insert(peer);
        (peer.heard, peer.gone, peer.silent) = (now, false, false);
        // Of a message that is not known here that isn't known.
        peer.reads = peer.reads.max(head.reads);
        if head.sequence == 0 {
            return Heard::InOrder;
        }
        if head.sequence <= peer.sequence && !peer.behind.insists(head) {
            return Heard::Old;
        }
        let gap = peer.sequence != 0 && peer.sequence.checked_add(1) != Some(head.sequence);
        (peer.sequence, peer.behind) = (head.sequence, Behind::default());
        if gap {
            self.gaps += 1;
            peer.miss();
        }
        peer.clock = head.now;
        if gap { Heard::AfterGap } else { Heard::InOrder }
    }

    /// Makes room for one more, if need be.
    fn has_room(&mut self) -> bool {
        if self.known.len() < PEERS_MAX {
            return true;
        }
        let silent = self.known.iter().filter(|(_, peer)| peer.silent);
        let longest = silent.min_by_key(|(_, peer)| peer.heard).map(|(writer, _)| *writer);
        longest.is_some_and(|writer| self.known.remove(&writer).is_some())
    }

    /// A router says that it leaves.
    pub(super) fn leaves(&mut self, writer: u32) {
        if self.asked.is_some_and(|asked| asked.whom == writer) {
            self.asked = None;
        }
        if self.source == Some(writer) {
            self.source = None;
        }
        self.known.remove(&writer);
    }

    /// Our connection was down: of everybody something may be missing.
    pub(super) fn lost(&mut self) {
        if let Some(asked) = self.asked.take()
            && let Some(peer) = self.known.get_mut(&asked.whom)
        {
            peer.missing = Some(peer.missing.map_or(asked.since, |since| since.min(asked.since)));
        }
        self.known.values_mut().for_each(Peer::miss);
    }

    /// Who has fallen silent since the last look.
    pub(super) fn fell_silent(&mut self, now: Time) -> Vec<u32> {
        self.known.retain(|_, peer| now < peer.heard + FORGOTTEN);
        let silent = |peer: &Peer| !peer.silent && now >= peer.heard + SILENCE;
        let silent = self.known.iter_mut().filter(|(_, peer)| silent(peer));
        silent
            .map(|(writer, peer)| {
                (peer.gone, peer.silent) = (true, true);
                *writer
            })
            .collect()
    }

    /// Whether it has been said of a router that it is silent, and it is.
    pub(super) fn is_silent(&self, writer: u32) -> bool {
        self.known.get(&writer).is_some_and(|peer| peer.silent)
    }

    /// Those that are there.
    pub(super) fn present(&self) -> usize {
        self.known.values().filter(|peer| !peer.gone).count()
    }

    /// Whether all who are there read so much.
    pub(super) fn all_read(&self, much: u64) -> bool {
        self.known.values().all(|peer| peer.gone || peer.reads >= much)
    }

    /// We have nothing: the one who is there for longest is asked for all it has. False: nobody is there.
    pub(super) fn ask_for_all(&mut self) -> bool {
        let here = self.known.iter_mut().filter(|(_, peer)| !peer.gone);
        let oldest = here.min_by_key(|(_, peer)| peer.boot);
        self.source = oldest.map(|(writer, peer)| {
            peer.missing = Some(Time::ZERO);
            *writer
        });
        self.source.is_some()
    }

    /// Whether all that was asked for has come.
    pub(super) fn has_all(&self) -> bool {
        let missing = |writer| self.known.get(&writer).is_some_and(|peer| peer.missing.is_some());
        let asked = |writer| self.asked.is_some_and(|asked| asked.whom == writer);
        !self.source.is_some_and(|writer| missing(writer) || asked(writer))
    }

    /// Whether something of somebody who is there is missing.
    pub(super) fn in_step(&self) -> bool {
        self.asked.is_none() && self.known.values().all(|peer| peer.gone || peer.missing.is_none())
    }

    /// Whether somebody who is there is to be asked, and nobody has been.
    pub(super) fn wants_to_ask(&self) -> bool {
        self.asked.is_none() && !self.in_step()
    }

    /// When [`Self::next_question`] is to be called, as far as that is known.
    pub(super) fn next_ask(&self, now: Time) -> Option<Time> {
        match &self.asked {
            Some(asked) => Some(asked.at + PATIENCE),
            None => self.wants_to_ask().then_some(now),
        }
    }

    /// What is to be asked now, if anything.
    pub(super) fn next_question(&mut self, now: Time) -> Option<Question> {
        if let Some(asked) = &mut self.asked {
            if now < asked.at + PATIENCE {
                return None;
            }
            asked.tries += 1;
            if asked.tries < TRIES {
                asked.at = now;
                return Some(Question {
                    whom: asked.whom,
                    since: asked.since,
                    cursor: asked.cursor,
                });
            }
            // It is asked again once it is heard of again.
            let (whom, since) = (asked.whom, asked.since);
            self.asked = None;
            if let Some(peer) = self.known.get_mut(&whom) {
                peer.gone = true;
                peer.missing = Some(peer.missing.map_or(since, |missing| missing.min(since)));
            }
            if self.source == Some(whom) {
                self.ask_for_all();
            }
        }
        let source = self.source.filter(|w| self.known.get(w).is_some_and(|p| !p.gone));
        let first = source.filter(|w| self.known.get(w).is_some_and(|p| p.missing.is_some()));
        let whom = first.or_else(|| {
            let here = self.known.iter().find(|(_, peer)| !peer.gone && peer.missing.is_some());
            here.map(|(writer, _)| *writer)
        })?;
        let since = self.known.get_mut(&whom)?.missing.take()?;
        self.asked = Some(Asked { whom, since, cursor: 0, at: now, tries: 0 });
        Some(Question { whom, since, cursor: 0 })
    }

    /// An answer has come, and what follows: the next question. False: nobody has asked for it.
    pub(super) fn answered(
        &mut self,
        now: Time,
        writer: u32,
        next: Option<u64>,
    ) -> (bool, Option<Question>) {
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.whom == writer) else {
            return (false, None);
        };
        match next {
            Some(cursor) if cursor > asked.cursor => {
                (asked.cursor, asked.at, asked.tries) = (cursor, now, 0);
                (true, Some(Question { whom: writer, since: asked.since, cursor }))
            }
            // One that goes back would go on for ever.
            Some(_) => (false, None),
            None => {
                self.asked = None;
                (true, None)
            }
        }
    }
}

impl Peer {
    fn miss(&mut self) {
        let since = Time::from_micros(self.clock.as_micros().saturating_sub(micros(MARGIN)));
        self.missing = Some(self.missing.map_or(since, |missing| missing.min(since)));
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
