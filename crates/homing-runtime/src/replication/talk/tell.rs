//! What a router says, and how: bindings and load in one message where all that are there read it so.

use super::super::peers::Question;
use super::super::port::{MESSAGE_MAX, To};
use super::Talk;
use bytes::Bytes;
use homing_core::core::{Cursor, Publication};
use homing_core::load::teller::{self, Loads as Booked};
use homing_core::time::Time;
use homing_wire::replica::{self, Body, Head, Loads, Message, READS, updates_that_fit};
use std::time::Duration;
use tokio::time::timeout;

/// Messages that a turn may cost where load alone is told here, since its register is written into the store then; and where
/// bindings are, too.
pub(super) const PER_TURN: [u32; 2] = [teller::PER_TURN - 1, teller::PER_TURN];
/// So many targets, and registers of so many bytes, go in one message; what is more goes apart.
const ALONG_TARGETS: usize = 512;
const ALONG_BYTES: usize = MESSAGE_MAX / 2;
/// A message that the backend doesn't take within this is lost.
const SEND_PATIENCE: Duration = Duration::from_secs(1);
/// Updates that are taken from the core at once.
const TAKEN_AT_ONCE: usize = 4096;
/// Parts of a table that one answer walks at most: of a table in which little is asked for, many.
const WALKED_AT_ONCE: usize = 64;

impl Talk {
    /// Tells of what was bound, used and removed here, of uses that have waited until `by`; and of load.
    pub(super) async fn tell(&mut self, by: Time) {
        loop {
            let updates = match self.bindings {
                true => self.shell.core().publications(by, TAKEN_AT_ONCE),
                false => Vec::new(),
            };
            let (now, booked) = (self.shell.now(), self.booked_here());
            let word = self.teller.look(now, booked, !updates.is_empty());
            let loads = word.map(|word| Loads { whole: word.whole, targets: word.targets });
            let along = self.go_along(&updates, loads.as_ref());
            let (along, apart) = if along { (loads, None) } else { (None, loads) };
            let taken = updates.len();
            self.tell_bindings(&updates, along).await;
            if let Some(loads) = apart {
                self.say_loads(loads).await;
            }
            if taken < TAKEN_AT_ONCE {
                break;
            }
        }
    }

    /// Whether both go in one message.
    fn go_along(&self, updates: &[Publication], loads: Option<&Loads>) -> bool {
        !updates.is_empty()
            && loads.is_some_and(|loads| loads.targets.len() <= ALONG_TARGETS)
            && updates_that_fit(updates, ALONG_BYTES) == updates.len()
            && self.peers.all_read(READS)
    }

    async fn tell_bindings(&mut self, updates: &[Publication], mut loads: Option<Loads>) {
        let mut left = updates;
        while !left.is_empty() {
            let (now, later) = left.split_at(updates_that_fit(left, MESSAGE_MAX));
            let body = Body::Updates { updates: now.to_vec(), loads: loads.take() };
            match self.say(To::All, body).await {
                Ok(()) => self.counts.sent(now.len()),
                Err(why) => self.counts.unsent(now.len(), &why),
            }
            left = later;
        }
    }

    async fn say_loads(&mut self, Loads { whole, targets }: Loads) {
        if targets.len() <= replica::ENTRIES_MAX / 4 {
            return self.mention(To::All, Body::Loads(Loads { whole, targets })).await;
        }
        // Too many for one message: each target's word stands by itself.
        for part in targets.chunks(replica::ENTRIES_MAX / 4) {
            let part = Loads { whole: false, targets: part.to_vec() };
            self.mention(To::All, Body::Loads(part)).await;
        }
    }

    fn booked_here(&self) -> Booked {
        let mut loads = Booked::new();
        self.shell.core().own_loads(|worker, rank, load| {
            loads.insert((worker.clone(), rank), load);
        });
        loads
    }

    pub(super) async fn ask(&mut self, question: Question) {
        let Question { whom, since, cursor } = question;
        self.mention(To::One(whom), Body::Fetch { since, cursor }).await;
    }

    pub(super) async fn answer(&mut self, question: Question) {
        let mut updates = Vec::new();
        let mut next = Some(question.cursor);
        for _ in 0..WALKED_AT_ONCE {
            let Some(at) = next else { break };
            let mut cursor = Cursor::from_bits(at);
            let Some(more) =
                self.shell.core().registers(self.shell.now(), &mut cursor, question.since)
            else {
                next = None;
                break;
            };
            let before = updates.len();
            updates.extend(more);
            if before > 0 && updates_that_fit(&updates, MESSAGE_MAX) < updates.len() {
                updates.truncate(before);
                break;
            }
            next = Some(cursor.to_bits());
        }
        let registers = updates.len();
        match self.say(To::One(question.whom), Body::Chunk { next, updates }).await {
            Ok(()) => self.counts.told(registers),
            Err(why) => self.counts.unsent(registers, &why),
        }
    }

    /// Why it could not be said, in words; whoever was to hear it will ask.
    async fn say(&mut self, to: To, body: Body) -> Result<(), String> {
        let sequence = match to {
            // Counted also where it is lost: that others notice, and ask.
            To::All => {
                self.head.sequence += 1;
                self.head.sequence
            }
            To::One(_) => 0,
        };
        if !self.up {
            return Err("the backend can't be reached".to_owned());
        }
        let head = Head { sequence, now: self.shell.now(), ..self.head };
        let bytes = Bytes::from(replica::encode(&Message { head, body: Some(body) }));
        match timeout(SEND_PATIENCE, self.bus.send(to, bytes)).await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err("the backend takes no messages".to_owned()),
        }
    }

    /// The same of what is said again within a second.
    pub(super) async fn mention(&mut self, to: To, body: Body) {
        if let Err(why) = self.say(to, body).await
            && self.up
        {
            tracing::debug!(why, "a message to other routers was lost");
        }
    }
}
