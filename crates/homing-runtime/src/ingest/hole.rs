//! A stretch of a stream that is being asked for again, and what has come meanwhile. Plain data, without
//! socket and clock, so that every order of what may happen can be tried; [`super::feed`] decides with it.
//!
//! A hole has three edges: what was taken last, what is surely missing up to (nothing, where we only
//! make sure), and the first live message, which waits here. It is closed when the edges meet, and
//! whatever an engine answers, or doesn't, it is closed in the end.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

/// Live messages that wait for a replay, at most: vLLM publishes one a step, some 50 a second.
const HELD_MAX: usize = 8_192;
/// And their bytes; two of the longest that there are.
const HELD_BYTES_MAX: usize = 32 << 20;
/// Replies to one request: ten times what engines keep by default (`buffer_steps`).
const REPLIES_MAX: u64 = 100_000;
/// And their bytes. They are applied as they come, so this bounds work and not memory.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// Without a reply for so long, none is awaited any more. An idle vLLM answers within 0.1 s.
pub(super) const QUIET: Duration = Duration::from_secs(3);
/// The longest that a replay may take.
const WHOLE: Duration = Duration::from_secs(30);
/// Between the requests of one feed: one whose every message shows a hole asks for many at once.
const PACE: Duration = Duration::from_millis(100);
/// After a request that was of no use: doubled each time, up to the last.
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// Prints that are kept.
const PRINTS: usize = 1_024;

/// A live message that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) seq: u64,
    pub(super) payload: Vec<u8>,
}

/// How a replay stands.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Not sent yet, and not before that.
    After(Instant),
    /// Sent, and when something last came of it.
    Sent { at: Instant, heard: Instant },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hole {
    /// The first number that was missing when it began.
    from: u64,
    /// Every number below it is missing that was not taken yet.
    pub(super) need: u64,
    /// Something of it is lost for good.
    pub(super) torn: bool,
    /// Messages that replies brought.
    pub(super) brought: u64,
    /// Live messages that waited followed what was taken.
    met: bool,
    request: Request,
    held: VecDeque<Held>,
    held_bytes: usize,
    replies: u64,
    reply_bytes: usize,
}

/// There is no room for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Hole {
    /// Everything below `need`, to be asked for later than `after`. Nothing may be missing at all.
    pub(super) const fn new(from: u64, need: u64, after: Instant) -> Self {
        Self {
            from,
            need,
            torn: false,
            brought: 0,
            met: false,
            request: Request::After(after),
            held: VecDeque::new(),
            held_bytes: 0,
            replies: 0,
            reply_bytes: 0,
        }
    }

    /// Keeps a live message.
    pub(super) fn hold(&mut self, held: Held) -> Result<(), Full> {
        let bytes = self.held_bytes.saturating_add(held.payload.len());
        if self.held.len() >= HELD_MAX || bytes > HELD_BYTES_MAX {
            return Err(Full);
        }
        self.held_bytes = bytes;
        self.held.push_back(held);
        Ok(())
    }

    /// The number of the first live message that waits.
    pub(super) fn first_held(&self) -> Option<u64> {
        self.held.front().map(|held| held.seq)
    }

    /// The live message of this number, if it waits.
    pub(super) fn held(&self, seq: u64) -> Option<&Held> {
        self.held.iter().find(|held| held.seq == seq)
    }

    /// What waited, in the order in which it came.
    pub(super) fn into_held(self) -> VecDeque<Held> {
        self.held
    }

    /// The first live message that waits, taken out: its turn has come.
    pub(super) fn next_held(&mut self) -> Option<Held> {
        let held = self.held.pop_front()?;
        self.held_bytes = self.held_bytes.saturating_sub(held.payload.len());
        self.met = true;
        Some(held)
    }

    /// Whether what replies brought and what was heard live have met.
    pub(super) const fn has_met(&self) -> bool {
        self.met
    }

    /// Whether nothing is missing any more once everything below `next` was taken. Where nothing was
    /// known to be missing only the end of the replay tells, or a live message that it reaches.
    pub(super) fn is_filled(&self, next: u64) -> bool {
        next >= self.need && self.held.is_empty() && (self.need > self.from || self.met)
    }

    /// To be asked for once more, from `from` on: what is missing now may be of a later time than the
    /// answer.
    pub(super) fn again(self, from: u64, after: Instant) -> Self {
        let Self { need, held, held_bytes, .. } = self;
        Self { held, held_bytes, ..Self::new(from, need, after) }
    }

    /// True once, when it is time to ask.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let due = matches!(self.request, Request::After(at) if now >= at);
        if due {
            self.request = Request::Sent { at: now, heard: now };
        }
        due
    }

    pub(super) const fn is_asked(&self) -> bool {
        matches!(self.request, Request::Sent { .. })
    }

    /// Counts a reply of so many bytes.
    pub(super) fn count(&mut self, bytes: usize, now: Instant) -> Result<(), Full> {
        self.replies += 1;
        self.reply_bytes = self.reply_bytes.saturating_add(bytes);
        if let Request::Sent { heard, .. } = &mut self.request {
            *heard = now;
        }
        let fits = self.replies <= REPLIES_MAX && self.reply_bytes <= REPLY_BYTES_MAX;
        if fits { Ok(()) } else { Err(Full) }
    }

    /// Whether nothing more is to be hoped for.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        match self.request {
            Request::After(_) => false,
            Request::Sent { at, heard } => {
                now.duration_since(heard) >= QUIET || now.duration_since(at) >= WHOLE
            }
        }
    }
}

/// When a feed may ask.
#[derive(Debug, Default)]
pub(super) struct Asking {
    last: Option<Instant>,
    /// Requests in a row that were of no use.
    useless: u32,
}

impl Asking {
    /// When to ask if one would ask now; `None`: it has been of no use lately.
    pub(super) fn when(&self, now: Instant) -> Option<Instant> {
        let Some(last) = self.last else { return Some(now) };
        if self.useless == 0 {
            return Some(now.max(last + PACE));
        }
        let pause = BACK_OFF.saturating_mul(1 << (self.useless - 1).min(16)).min(BACK_OFF_MAX);
        (now >= last + pause).then_some(now)
    }

    pub(super) const fn asked(&mut self, now: Instant) {
        self.last = Some(now);
    }

    pub(super) const fn ended(&mut self, useful: bool, now: Instant) {
        self.last = Some(now);
        self.useless = if useful { 0 } else { self.useless.saturating_add(1) };
    }
}

/// What the last messages looked like, by their numbers. A batch holds the time at which it was made, so two
/// publishers that give the same number to a message tell themselves apart by it.
#[derive(Debug, Default)]
pub(super) struct Prints(VecDeque<(u64, u64)>);

impl Prints {
    /// Of a message that follows the last one; one that doesn't begins anew.
    pub(super) fn push(&mut self, seq: u64, payload: &[u8]) {
        if self.last().is_some_and(|last| Some(seq) != last.checked_add(1)) {
            self.0.clear();
        }
        if self.0.len() == PRINTS {
            self.0.pop_front();
        }
        self.0.push_back((seq, print(payload)));
    }

    /// The number of the last one.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.back().map(|(seq, _)| *seq)
    }

    /// Whether it is the message that had this number; `None`: nobody remembers.
    pub(super) fn is_known(&self, seq: u64, payload: &[u8]) -> Option<bool> {
        let (first, _) = self.0.front()?;
        let place = usize::try_from(seq.checked_sub(*first)?).ok()?;
        self.0.get(place).map(|(_, known)| *known == print(payload))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn print(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes() {
        let now = Instant::now();
        let mut hole = Hole::new(0, 1, now);
        for seq in 0..HELD_MAX as u64 {
            assert_eq!(hole.hold(Held { seq, payload: vec![] }), Ok(()));
        }
        assert_eq!(hole.hold(Held { seq: 9_999, payload: vec![] }), Err(Full));
        let mut hole = Hole::new(0, 1, now);
        let half = || Held { seq: 5, payload: vec![0; HELD_BYTES_MAX / 2] };
        assert_eq!((hole.hold(half()), hole.hold(half())), (Ok(()), Ok(())));
        assert_eq!(hole.hold(Held { seq: 6, payload: vec![0] }), Err(Full));
        assert_eq!(hole.hold(Held { seq: 6, payload: vec![] }), Ok(()), "an empty one fits");
        assert_eq!((hole.first_held(), hole.into_held().len()), (Some(5), 3));
    }

    #[test]
    fn replies_are_bounded_in_number_bytes_and_time() {
        let start = Instant::now();
        let asked = || {
            let mut hole = Hole::new(0, 1, start);
            assert!(hole.ask(start) && !hole.ask(start) && hole.is_asked(), "once");
            hole
        };
        let mut hole = asked();
        for _ in 0..REPLIES_MAX {
            assert_eq!(hole.count(1, start), Ok(()));
        }
        assert_eq!(hole.count(1, start), Err(Full));
        let mut hole = asked();
        assert_eq!(hole.count(REPLY_BYTES_MAX, start), Ok(()));
        assert_eq!(hole.count(1, start), Err(Full));
        let mut hole = asked();
        assert!(!hole.is_over(start) && hole.is_over(start + QUIET));
        let mut now = start;
        while now < start + WHOLE {
            assert!(!hole.is_over(now), "it goes on");
            assert_eq!(hole.count(1, now), Ok(()));
            now += QUIET / 2;
        }
        assert!(hole.is_over(now), "but not for ever");
        assert!(!Hole::new(0, 1, start).is_over(now), "and one that was not asked for waits");
    }

    #[test]
    fn who_asks_in_vain_asks_less_often() {
        let start = Instant::now();
        let mut asking = Asking::default();
        assert_eq!(asking.when(start), Some(start));
        asking.asked(start);
        asking.ended(true, start);
        assert_eq!(asking.when(start), Some(start + PACE), "later, but it is asked");
        assert_eq!(asking.when(start + 2 * PACE), Some(start + 2 * PACE));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            asking.ended(false, start);
            let pause = (0..).map(Duration::from_secs).find(|p| asking.when(start + *p).is_some());
            pauses.push(pause.unwrap().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        asking.useless = u32::MAX;
        asking.ended(false, start);
        assert_eq!(asking.when(start + BACK_OFF_MAX), Some(start + BACK_OFF_MAX));
        asking.ended(true, start);
        assert_eq!(asking.when(start + PACE), Some(start + PACE));
    }

    #[test]
    fn a_message_is_known_by_its_number_and_its_bytes() {
        let mut prints = Prints::default();
        assert_eq!((prints.last(), prints.is_known(0, b"")), (None, None));
        for seq in 10..10 + 2 * PRINTS as u64 {
            prints.push(seq, &seq.to_be_bytes());
        }
        let last = 9 + 2 * PRINTS as u64;
        assert_eq!((prints.last(), prints.0.len()), (Some(last), PRINTS));
        assert_eq!(prints.is_known(last, &last.to_be_bytes()), Some(true));
        assert_eq!(prints.is_known(last, b"another"), Some(false));
        assert_eq!(prints.is_known(last + 1, b""), None);
        assert_eq!(prints.is_known(10, &10u64.to_be_bytes()), None, "long ago");
        prints.push(u64::MAX, b"x");
        assert_eq!((prints.last(), prints.0.len()), (Some(u64::MAX), 1));
        prints.push(0, b"y");
        assert_eq!((prints.last(), prints.is_known(0, b"y")), (Some(0), Some(true)));
    }

    #[test]
    fn a_hole_is_filled_when_its_edges_meet() {
        let now = Instant::now();
        let mut hole = Hole::new(5, 8, now);
        assert!(!hole.is_filled(7) && hole.is_filled(8) && hole.is_filled(9));
        assert_eq!(hole.hold(Held { seq: 8, payload: vec![1] }), Ok(()));
        assert!(!hole.is_filled(8) && !hole.has_met(), "one waits");
        assert_eq!(hole.next_held().map(|held| held.seq), Some(8));
        assert!(hole.is_filled(9) && hole.has_met());
        // Nothing is known to be missing.
        let mut sure = Hole::new(5, 5, now);
        assert!(!sure.is_filled(5) && !sure.is_filled(9), "only its end tells");
        assert_eq!(sure.hold(Held { seq: 9, payload: vec![] }), Ok(()));
        assert!(!sure.is_filled(9) && sure.next_held().is_some() && sure.is_filled(10));
        // What waits goes on waiting when it is asked for again.
        let mut hole = Hole::new(5, 9, now);
        assert_eq!(hole.hold(Held { seq: 9, payload: vec![1] }), Ok(()));
        assert!(hole.ask(now));
        let hole = hole.again(7, now);
        assert!(!hole.is_asked() && hole.first_held() == Some(9) && hole.held_bytes == 1);
        assert_eq!((hole.from, hole.need, hole.met), (7, 9, false));
    }
}
