//! One stream of KV events: the order of its messages, live and replayed. Every message goes one way,
//! [`Stream::arrive`] or [`Stream::replayed`], and both take it only where it follows the last one; what
//! doesn't follow is a hole (F24), and while one is asked for again, live messages wait (F25).
//!
//! The trick is to ask from the last message that is known, not from the first that is missing: the answer
//! then shows whether it is still the same publisher that speaks, or one that took its place and counts
//! past the same numbers (F21).

use super::hole::{Asking, Held, Hole, Prints};
use super::sink::{REPLAY, Sink};
use super::{Feed, Here};
use homing_core::fleet::FleetChange;
use homing_core::ids::WorkerId;
use homing_wire::frames::{Reply, parse_frames, parse_reply};
use std::time::{Duration, Instant};

/// After so long without a message the replay socket is asked whether there was none. Doubled each time,
/// up to the last.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    sink: Sink,
    /// Whether it can be asked to repeat itself.
    replay: bool,
    /// The life that the rest is of.
    life: Option<WorkerId>,
    /// The last number that was taken, or given up.
    at: Option<u64>,
    /// The last number that came live. A replay may be ahead of it.
    heard: Option<u64>,
    /// How the messages up to `at` looked.
    prints: Prints,
    hole: Option<Hole>,
    asking: Asking,
    connected: bool,
    /// When it last said something, or was asked why it doesn't.
    last: Instant,
    silence: Duration,
}

impl Stream {
    pub(super) fn new(feed: &Feed, now: Instant) -> Self {
        Self {
            sink: Sink::new(&feed.worker, feed.rank, feed.ranks, REPLAY),
            replay: feed.replay.is_some(),
            life: None,
            at: None,
            heard: None,
            prints: Prints::default(),
            hole: None,
            asking: Asking::default(),
            connected: false,
            last: now,
            silence: SILENCE,
        }
    }

    /// The same stream, described anew.
    pub(super) fn set_feed(&mut self, here: Here<'_>, feed: &Feed) {
        self.replay = false;
        self.close(here, true);
        self.replay = feed.replay.is_some();
        self.asking = Asking::default();
        self.sink.set_ranks(feed.ranks);
    }

    /// Takes in one live message.
    pub(super) fn take(&mut self, here: Here<'_>, frames: &[Vec<u8>]) {
        let message = match parse_frames(frames) {
            Ok(message) => message,
            Err(error) => return self.sink.malformed(here, &error.to_string()),
        };
        // Of a worker that has departed: the order to unsubscribe is on its way.
        if !self.join_life(here) {
            return;
        }
        (self.last, self.silence) = (here.now, SILENCE);
        let (seq, payload) = (message.seq, message.payload);
        let back = match self.heard {
            // The same message twice; but a first one twice is rather two publishers'.
            Some(heard) if seq == heard && seq > 0 => return,
            Some(heard) if seq < heard && self.is_late(seq, payload) => return,
            Some(heard) if seq <= heard => true,
            _ if self.at.is_some_and(|at| seq <= at) => {
                if self.prints.is_known(seq, payload) == Some(true) {
                    // The replay was quicker.
                    self.heard = Some(seq);
                    return;
                }
                true
            }
            _ => false,
        };
        if back && !self.reborn(here) {
            return;
        }
        self.heard = Some(seq);
        self.arrive(here, seq, payload);
    }

    /// Whether a message with a smaller number than the last one is one of this publisher's all the same:
    /// something on the way sent it twice, or later than its successors.
    fn is_late(&self, seq: u64, payload: &[u8]) -> bool {
        if seq == 0 {
            return false;
        }
        if self.prints.is_known(seq, payload) == Some(true) {
            return true;
        }
        // It is being asked for already, from the last one that is known; should it be another publisher's,
        // the answer shows that. Of those that wait only the same one is a copy.
        let Some(hole) = self.hole.as_ref().filter(|_| seq >= self.next()) else { return false };
        hole.held(seq).is_none_or(|held| held.payload == payload)
    }

    /// Takes in one reply to what [`Self::ask`] wanted to be asked.
    pub(super) fn reply(&mut self, here: Here<'_>, frames: &[Vec<u8>]) {
        let Some(hole) = self.hole.as_mut().filter(|hole| hole.is_asked()) else { return };
        if here.shell.core().worker_named(self.sink.worker()) != self.life {
            // Another life: what waited was of the old one, or will be asked for again.
            self.hole = None;
            return;
        }
        let bytes = frames.iter().map(|frame| frame.len().saturating_add(1)).sum();
        if hole.count(bytes, here.now).is_err() {
            return self.close(here, false);
        }
        match parse_reply(frames) {
            Ok(Reply::Message { seq, payload }) => self.replayed(here, seq, payload),
            Ok(Reply::End) => self.close(here, true),
            Err(error) => {
                self.sink.malformed(here, &error.to_string());
                self.close(here, false);
            }
        }
    }

    /// From which number on the replay socket is to be asked now, over a connection of its own, so that
    /// no answer is taken for another's.
    pub(super) fn ask(&mut self, now: Instant) -> Option<u64> {
        let next = self.next();
        if !self.hole.as_mut()?.ask(now) {
            return None;
        }
        self.asking.asked(now);
        Some(self.at.filter(|at| self.prints.last() == Some(*at)).unwrap_or(next))
    }

    /// Whether replies are awaited.
    pub(super) fn awaits_replies(&self) -> bool {
        self.hole.as_ref().is_some_and(Hole::is_asked)
    }

    /// The last number that was taken.
    #[cfg(test)]
    pub(super) const fn at(&self) -> Option<u64> {
        self.at
    }

    /// The replay socket can't be asked.
    pub(super) fn not_asked(&mut self, here: Here<'_>) {
        self.close(here, false);
    }

    /// The connection of the events was made, or lost. What was published in between nobody heard.
    pub(super) fn connected(&mut self, here: Here<'_>, connected: bool) {
        self.connected = connected;
        if connected {
            self.last = here.now;
            self.make_sure(here);
        }
    }

    /// Ends what takes too long, and asks a stream that is silent whether it is.
    pub(super) fn keep_time(&mut self, here: Here<'_>) {
        match &mut self.hole {
            Some(hole) if hole.is_over(here.now) => {
                // Without its end nobody can tell whether it was all.
                hole.torn = true;
                let useful = hole.brought > 0;
                self.close(here, useful);
            }
            None if self.connected && here.now.duration_since(self.last) >= self.silence => {
                self.last = here.now;
                self.silence = (self.silence * 2).min(SILENCE_MAX);
                self.make_sure(here);
            }
            _ => {}
        }
    }

    /// Nothing that it told is believed, nor that anything of it is known.
    pub(super) fn forget(&mut self, here: Here<'_>) {
        self.sink.forget(here);
        self.sink.begin(here);
        self.begin_anew();
    }

    /// Of the life that the worker lives now; false where it lives none.
    fn join_life(&mut self, here: Here<'_>) -> bool {
        let id = here.shell.core().worker_named(self.sink.worker());
        if id != self.life {
            self.life = id;
            self.heard = None;
            self.sink.begin(here);
            self.begin_anew();
        }
        id.is_some()
    }

    fn begin_anew(&mut self) {
        self.at = None;
        self.hole = None;
        self.prints.clear();
    }

    /// The numbers go back: a publisher counts from 0 for as long as it lives.
    fn reborn(&mut self, here: Here<'_>) -> bool {
        let Some(id) = self.life else { return false };
        if here.book.may_be_reborn(self.sink.worker(), here.shell.now()) {
            let change = FleetChange::Restarted(id);
            if let Ok(events) = here.shell.core().handle_fleet(here.shell.now(), change) {
                here.shell.note_fleet(self.sink.worker(), &events);
                here.shell.pump();
            }
            self.begin_anew();
        } else {
            self.forget(here);
        }
        self.heard = None;
        self.join_life(here)
    }

    /// The number that follows what was taken.
    fn next(&self) -> u64 {
        self.at.map_or(0, |at| at.saturating_add(1))
    }

    /// When a hole may be asked for, if it is any use.
    fn may_ask(&self, now: Instant) -> Option<Instant> {
        self.asking.when(now).filter(|_| self.replay)
    }

    /// Asks for what may have been published unheard.
    fn make_sure(&mut self, here: Here<'_>) {
        if !self.join_life(here) || self.hole.is_some() {
            return;
        }
        if let Some(after) = self.may_ask(here.now) {
            self.hole = Some(Hole::new(self.next(), self.next(), after));
        }
    }

    /// A live message, in the order of the publisher.
    fn arrive(&mut self, here: Here<'_>, seq: u64, payload: &[u8]) {
        if let Some(hole) = &mut self.hole {
            if hole.hold(Held { seq, payload: payload.to_vec() }).is_ok() {
                return self.meet(here);
            }
            // As much waits as may: it can't be waited for any longer.
            self.close(here, false);
        }
        let next = self.next();
        if seq < next {
            return;
        }
        if seq > next {
            // Whoever knows nothing has lost nothing, but there may be something to learn.
            let need = if self.at.is_some() { seq } else { next };
            if self.at.is_some() {
                self.count_gap(here);
            }
            if let Some(after) = self.may_ask(here.now) {
                let mut hole = Hole::new(next, need, after);
                // An empty one has room for each message that there can be.
                if hole.hold(Held { seq, payload: payload.to_vec() }).is_ok() {
                    self.hole = Some(hole);
                    return;
                }
            }
            if self.at.is_some() {
                self.lose(here, seq);
            }
        }
        if self.apply(here, seq, payload) {
            return;
        }
        // It may have told of removals.
        if self.at.is_none() {
            return self.skip(seq);
        }
        self.count_gap(here);
        match self.may_ask(here.now) {
            Some(after) => self.hole = Some(Hole::new(seq, seq.saturating_add(1), after)),
            None => self.lose(here, seq.saturating_add(1)),
        }
    }

    /// A message of the past.
    fn replayed(&mut self, here: Here<'_>, seq: u64, payload: &[u8]) {
        let next = self.next();
        if seq < next {
            if self.prints.is_known(seq, payload) == Some(false) {
                self.another_publisher(here);
            }
            return;
        }
        let Some(hole) = &mut self.hole else { return };
        hole.brought += 1;
        if seq > next {
            hole.torn = true;
            if hole.first_held().is_some_and(|first| first <= seq) {
                // It begins after what we have heard ourselves.
                return self.close(here, true);
            }
            let known_to_be = next < hole.need;
            if self.at.is_some() {
                if !known_to_be {
                    self.count_gap(here);
                }
                self.lose(here, seq);
            }
        }
        if !self.apply(here, seq, payload) {
            match self.at {
                Some(_) => self.lose(here, seq.saturating_add(1)),
                None => self.skip(seq),
            }
        }
        self.meet(here);
    }

    /// Takes what waited and follows now, up to the next hole, which the same replay may fill as well.
    fn meet(&mut self, here: Here<'_>) {
        loop {
            let next = self.next();
            let Some(hole) = &mut self.hole else { return };
            match hole.first_held() {
                Some(first) if first <= next => {
                    let Some(Held { seq, payload }) = hole.next_held() else { return };
                    if seq == next && !self.apply(here, seq, &payload) {
                        // It may have told of removals; the replay may have it whole.
                        if let Some(hole) = &mut self.hole {
                            hole.need = hole.need.max(seq.saturating_add(1));
                        }
                        return self.count_gap(here);
                    }
                }
                Some(first) => {
                    if hole.has_met() && next >= hole.need {
                        hole.need = first;
                        self.count_gap(here);
                    }
                    return;
                }
                None if hole.is_filled(next) => return self.close(here, true),
                None => return,
            }
        }
    }

    /// The numbers go on, but the messages are others': its numbers went back while nobody heard, which
    /// only another life's do. Everything is asked for anew.
    fn another_publisher(&mut self, here: Here<'_>) {
        if self.reborn(here) {
            self.make_sure(here);
        }
    }

    /// Nothing more is to come of a replay: what is missing still is lost, and what waited is taken.
    /// `useful`: it was worth asking.
    fn close(&mut self, here: Here<'_>, useful: bool) {
        let Some(hole) = self.hole.take() else { return };
        self.asking.ended(useful, here.now);
        self.last = here.now;
        let next = self.next();
        let short = next < hole.need;
        let again = if useful && short && hole.has_met() { self.may_ask(here.now) } else { None };
        let torn = hole.torn || !useful || (short && again.is_none());
        let some = hole.brought > 0;
        here.book.with(self.sink.worker(), |page| {
            *match (torn, some) {
                (false, _) => &mut page.stats.filled,
                (true, true) => &mut page.stats.partial,
                (true, false) => &mut page.stats.failed,
            } += 1;
        });
        if let Some(after) = again {
            self.hole = Some(hole.again(next, after));
            return;
        }
        if short {
            self.lose(here, hole.need);
        }
        if let (None, Some(first)) = (self.at, hole.first_held()) {
            // It has been tried: nothing before it is to be had.
            self.at = first.checked_sub(1);
        }
        for held in hole.into_held() {
            self.arrive(here, held.seq, &held.payload);
        }
    }

    /// Everything below `next` is given up.
    fn lose(&mut self, here: Here<'_>, next: u64) {
        self.sink.lose(here, next.saturating_sub(self.next()));
        if let Some(hole) = &mut self.hole {
            hole.torn = true;
        }
        self.at = next.checked_sub(1);
        self.prints.clear();
    }

    fn count_gap(&self, here: Here<'_>) {
        here.book.with(self.sink.worker(), |page| page.stats.gaps += 1);
    }

    /// Takes the next message; false where it can't be read.
    fn apply(&mut self, here: Here<'_>, seq: u64, payload: &[u8]) -> bool {
        let Some(life) = self.life else { return true };
        if !self.sink.take(here, life, payload) {
            return false;
        }
        self.at = Some(seq);
        self.prints.push(seq, payload);
        true
    }

    /// There is a message that nobody can read, and nothing was known that it could have changed.
    fn skip(&mut self, seq: u64) {
        self.at = Some(seq);
        self.prints.clear();
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod replay_tests;
#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
