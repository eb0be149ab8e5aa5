//! What has come over a link and waits for the ingest thread, and the bell that wakes it: one for all links, rung
//! once however much came since it last looked.
//!
//! What is put in goes in whole, and only where it fits: so the bounds hold for any number of connections.

use super::Ended;
use homing_wire::zmtp::FRAME_COST;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Messages that wait for their turn, a link: one turn's, which at an engine's some 10 KB each is little.
pub(in super::super) const HIGH_WATER: usize = 64;
/// And their bytes: two of the longest that there are.
const BYTES_MAX: usize = 32 << 20;

/// Something that came about, in the order in which it did.
#[derive(Debug)]
pub(in super::super) enum Note {
    /// A peer is there.
    Connected,
    /// The frames of a message.
    Message(Vec<Vec<u8>>),
    /// Messages come by turns from two peers.
    Rivals,
    /// As many peers are connected as may be, and one more came.
    Full,
    /// The peer that was heard is gone, or the only one that was there.
    Lost(Ended),
    /// The peer that was heard is gone, and another one has come since it was heard last: the same one, as a rule, over
    /// a connection that works.
    Replaced(Ended),
    /// A connection ended that nothing depended on, or there never was one.
    Failed(Ended),
}

impl Note {
    /// What it counts.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Message(frames) => frames.iter().map(|frame| frame.len() + FRAME_COST).sum(),
            Self::Connected
            | Self::Rivals
            | Self::Full
            | Self::Lost(_)
            | Self::Replaced(_)
            | Self::Failed(_) => 0,
        }
    }
}

/// The ingest thread's.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl Bell {
    fn ring(&self) {
        if !std::mem::replace(&mut *self.rung.lock(), true) {
            self.ring.notify_one();
        }
    }

    /// Until it has been rung since it last was waited for, or for so long.
    pub(super) fn wait(&self, at_most: Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            self.ring.wait_for(&mut rung, at_most);
        }
        *rung = false;
    }
}

/// A link's.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There may be room again.
    room: Notify,
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct State {
    notes: VecDeque<Note>,
    bytes: usize,
    /// Somebody waits for room.
    awaited: bool,
}

impl Queue {
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        Self { state: Mutex::default(), room: Notify::new(), bell }
    }

    /// Puts them in once there is room for all of them.
    pub(super) async fn push(&self, notes: &mut Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        loop {
            // Before looking, so that no room is missed that comes about meanwhile.
            let room = self.room.notified();
            if self.try_push(notes) {
                return self.bell.ring();
            }
            room.await;
        }
    }

    fn try_push(&self, notes: &mut Vec<Note>) -> bool {
        let bytes: usize = notes.iter().map(Note::size).sum();
        let mut state = self.state.lock();
        let fits = state.notes.is_empty()
            || (state.notes.len() + notes.len() <= HIGH_WATER && state.bytes + bytes <= BYTES_MAX);
        if fits {
            state.notes.extend(notes.drain(..));
            state.bytes += bytes;
        } else {
            state.awaited = true;
        }
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().notes.is_empty()
    }

    /// What waits: so many, and none after so many bytes.
    pub(super) fn take(&self, many: usize, bytes: usize) -> Vec<Note> {
        let mut state = self.state.lock();
        let (mut taken, mut size) = (Vec::with_capacity(many.min(state.notes.len())), 0);
        while taken.len() < many && size < bytes {
            let Some(note) = state.notes.pop_front() else { break };
            size += note.size();
            taken.push(note);
        }
        state.bytes -= size;
        let awaited = !taken.is_empty() && std::mem::take(&mut state.awaited);
        drop(state);
        if awaited {
            self.room.notify_waiters();
        }
        taken
    }
}
