//! One stream that can be asked to repeat itself, without sockets and with a clock of our own: what it asks
//! for, what it takes in which order, and what it gives up.

use super::tests::{W, World, removed, stored};
use super::*;
use homing_core::index::event::KvEvent;
use homing_wire::frames::{build_frames, build_reply};
use homing_wire::kv_events::{Batch, encode_batch};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::RangeBounds;

/// An engine with everything that it ever published, and the router's side of its stream.
struct Engine {
    world: World,
    now: Instant,
    past: Vec<Vec<u8>>,
    /// Tells this publisher's batches from another's.
    epoch: f64,
}

impl Engine {
    fn new() -> Self {
        let mut world = World::new();
        let now = Instant::now();
        let replay = Some(String::new());
        let endpoint = String::new();
        let feed = Feed { worker: W.into(), rank: 0, ranks: 1, endpoint, listens: true, replay };
        world.stream = Stream::new(&feed, now);
        Self { world, now, past: vec![], epoch: 0.0 }
    }

    /// With the first messages taken, and nothing to be asked.
    fn with(batches: impl IntoIterator<Item = Vec<KvEvent>>) -> Self {
        let mut e = Self::new();
        batches.into_iter().for_each(|events| e.live(events));
        assert!(e.asked().is_none());
        e
    }

    fn publish(&mut self, events: Vec<KvEvent>) {
        let ts = self.epoch + self.past.len() as f64;
        self.past.push(encode_batch(&Batch { ts, events, ..Batch::default() }));
    }

    /// Published, and it arrives.
    fn live(&mut self, events: Vec<KvEvent>) {
        self.publish(events);
        self.deliver(self.past.len() - 1);
    }

    fn deliver(&mut self, seq: usize) {
        let frames = build_frames("t", seq as u64, self.past[seq].clone());
        self.on(|stream, here| stream.take(here, &frames));
    }

    /// The process ends, and another takes its place: with another clock.
    fn restart(&mut self) {
        self.past.clear();
        self.epoch += 1e6;
    }

    fn on<T>(&mut self, act: impl FnOnce(&mut Stream, Here<'_>) -> T) -> T {
        let World { shell, book, stream } = &mut self.world;
        let result = act(stream, Here { shell, book, now: self.now });
        shell.core().check();
        result
    }

    fn asked(&mut self) -> Option<u64> {
        self.on(|stream, here| stream.ask(here.now))
    }

    fn reply(&mut self, reply: Reply<'_>) {
        let frames = build_reply("t", reply);
        self.on(|stream, here| stream.reply(here, &frames));
    }

    /// Answers with those messages, in their order.
    fn answer(&mut self, range: impl RangeBounds<usize>) {
        for seq in (0..self.past.len()).filter(|seq| range.contains(seq)) {
            let payload = self.past[seq].clone();
            self.reply(Reply::Message { seq: seq as u64, payload: &payload });
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.on(|stream, here| stream.keep_time(here));
    }

    /// Gaps, lost ones, and replays that were filled, partial and failed.
    fn counts(&self) -> [u64; 5] {
        let s = self.world.stats();
        [s.gaps, s.lost, s.filled, s.partial, s.failed]
    }

    fn known(&self) -> BTreeSet<u64> {
        (0..20).filter(|n| !self.world.holders(*n).is_empty()).collect()
    }

    fn uncertain(&self) -> bool {
        self.world.stats().uncertain == 1
    }
}

fn known<const N: usize>(blocks: [u64; N]) -> BTreeSet<u64> {
    BTreeSet::from(blocks)
}

#[test]
fn f24_a_hole_is_filled_from_the_replay_in_order() {
    let mut e = Engine::with([vec![stored(0)], vec![stored(1)]]);
    e.publish(vec![removed(0), stored(2)]);
    e.publish(vec![stored(3)]);
    e.live(vec![stored(4)]);
    assert_eq!(e.known(), known([0, 1]), "nothing is taken before what precedes it");
    assert_eq!(e.asked(), Some(1), "from the last one that is known");
    assert_eq!(e.asked(), None, "once");
    e.answer(1..3);
    assert_eq!(e.known(), known([1, 2]));
    e.answer(3..4);
    assert_eq!(e.known(), known([1, 2, 3, 4]), "its edges meet: its end is not waited for");
    assert_eq!(e.counts(), [1, 0, 1, 0, 0]);
    e.answer(4..);
    e.reply(Reply::End);
    e.live(vec![stored(5)]);
    assert_eq!((e.known(), e.counts()), (known([1, 2, 3, 4, 5]), [1, 0, 1, 0, 0]));
    assert!(!e.uncertain());
}

#[test]
fn f25_live_messages_wait_for_what_precedes_them() {
    let mut e = Engine::with([vec![stored(0)]]);
    e.publish(vec![removed(0), stored(9)]);
    e.live(vec![stored(0), removed(9)]);
    assert_eq!(e.asked(), Some(0));
    e.live(vec![removed(0), stored(8)]);
    e.live(vec![stored(7)]);
    e.answer(..);
    assert_eq!(e.known(), known([7, 8]), "nothing comes back that was removed");
    assert_eq!(e.counts(), [1, 0, 1, 0, 0]);
}

#[test]
fn a_replay_that_begins_too_late_fills_nothing_but_what_follows_is_kept() {
    let mut e = Engine::with([vec![stored(0), stored(1), stored(2)]]);
    for n in 3..8 {
        e.publish(vec![stored(n)]);
    }
    e.live(vec![stored(8)]);
    assert!(e.asked().is_some());
    e.answer(4..);
    assert_eq!(e.known(), known([6, 7, 8]), "what is known before the hole isn't believed");
    assert_eq!(e.counts(), [1, 1, 0, 1, 0]);
    assert!(!e.uncertain(), "as many blocks as before were told again");

    // Later than what was heard live.
    let mut e = Engine::with([vec![stored(0), stored(1), stored(2)]]);
    e.publish(vec![]);
    e.live(vec![stored(3)]);
    assert!(e.asked().is_some());
    e.live(vec![stored(4)]);
    e.live(vec![]);
    e.answer(4..);
    assert_eq!((e.known(), e.counts()), (known([3, 4]), [1, 1, 0, 1, 0]));
    assert!(e.uncertain());
    assert_eq!(e.world.book.state(W), "connecting");
    e.world.book.connected(W, 0, true);
    assert_eq!(e.world.book.state(W), "uncertain");
    e.live(vec![stored(5)]);
    assert_eq!(e.world.book.state(W), "events", "three, as before the hole");
}

#[test]
fn f24_a_message_that_comes_late_or_twice_is_no_other_life() {
    let mut e = Engine::with([vec![stored(0)], vec![stored(1)], vec![stored(2)]]);
    let life = e.world.id();
    e.deliver(1);
    e.deliver(2);
    assert_eq!((e.world.id(), e.known(), e.counts()), (life, known([0, 1, 2]), [0; 5]));
    e.publish(vec![removed(0)]);
    e.publish(vec![stored(4)]);
    e.live(vec![stored(5)]);
    e.deliver(3);
    e.deliver(5);
    e.deliver(4);
    assert_eq!(e.known(), known([0, 1, 2]), "the replay is waited for, with what waits");
    assert_eq!(e.asked(), Some(2));
    e.answer(2..5);
    assert_eq!((e.known(), e.counts()), (known([1, 2, 4, 5]), [1, 0, 1, 0, 0]));
    for seq in [3, 1, 5, 4] {
        e.deliver(seq);
    }
    assert_eq!((e.world.id(), e.counts()), (life, [1, 0, 1, 0, 0]));
    e.live(vec![removed(1)]);
    assert_eq!(e.known(), known([2, 4, 5]));

    // Another publisher's within the hole: the answer shows it, since what we know last is not what it sent.
    e.publish(vec![]);
    e.live(vec![stored(8)]);
    e.restart();
    for n in 0..8 {
        e.publish(vec![stored(10 + n)]);
    }
    e.deliver(7);
    assert_eq!(e.world.id(), life, "nobody can tell yet");
    e.pass(Duration::from_secs(1));
    assert_eq!(e.asked(), Some(6));
    e.answer(6..);
    assert_ne!(e.world.id(), life);
}

#[test]
fn f23_a_cleared_cache_is_a_certain_one() {
    let mut e = Engine::with([vec![stored(0), stored(1)]]);
    e.publish(vec![]);
    e.live(vec![]);
    assert!(e.asked().is_some());
    e.reply(Reply::End);
    assert!(e.uncertain() && e.known().is_empty());
    assert_eq!(e.counts(), [1, 1, 0, 0, 1]);
    e.live(vec![KvEvent::Cleared]);
    assert!(!e.uncertain());
}

#[test]
fn replies_out_of_order_are_a_hole_too() {
    let mut e = Engine::with([vec![stored(0)]]);
    for n in 1..5 {
        e.publish(vec![stored(n)]);
    }
    e.live(vec![stored(5)]);
    assert!(e.asked().is_some());
    for seq in [0, 1, 3, 2, 1, 4] {
        e.answer(seq..=seq);
    }
    assert_eq!((e.known(), e.counts()), (known([3, 4, 5]), [1, 1, 0, 1, 0]));
}

#[test]
fn without_an_answer_the_hole_is_given_up_and_not_asked_about_again_so_soon() {
    let mut e = Engine::with([vec![stored(0)]]);
    let lose = |e: &mut Engine, n| {
        e.publish(vec![]);
        e.live(vec![stored(n)]);
    };
    lose(&mut e, 1);
    assert!(e.asked().is_some());
    e.live(vec![stored(2)]);
    e.pass(super::super::hole::QUIET / 2);
    assert_eq!(e.known(), known([0]));
    e.pass(super::super::hole::QUIET / 2);
    assert_eq!((e.known(), e.counts()), (known([1, 2]), [1, 1, 0, 0, 1]));
    lose(&mut e, 3);
    assert_eq!((e.known(), e.asked()), (known([3]), None), "at once");
    e.pass(Duration::from_secs(60));
    lose(&mut e, 4);
    assert!(e.asked().is_some(), "it may be of use again");
    e.on(|stream, here| stream.not_asked(here));
    assert_eq!((e.known(), e.counts()), (known([4]), [3, 3, 0, 0, 2]));
}

#[test]
fn other_layouts_and_floods_end_a_replay() {
    let mut e = Engine::with([vec![stored(0)]]);
    e.publish(vec![]);
    e.live(vec![stored(1)]);
    assert!(e.asked().is_some());
    let frames = [b"kv-events".to_vec(), vec![0; 8], vec![1]];
    e.on(|stream, here| stream.reply(here, &frames));
    assert_eq!(
        (e.known(), e.counts(), e.world.stats().malformed),
        (known([1]), [1, 1, 0, 0, 1], 1)
    );

    let mut e = Engine::with([vec![stored(0)]]);
    e.publish(vec![]);
    e.live(vec![stored(1)]);
    assert!(e.asked().is_some());
    let replies = (0..u64::MAX).take_while(|_| {
        e.answer(..1);
        e.world.stream.awaits_replies()
    });
    assert_eq!(replies.count(), 100_000, "the same message for ever");
    assert_eq!((e.known(), e.counts()), (known([1]), [1, 1, 0, 0, 1]));
}

#[test]
fn more_live_messages_than_may_wait_end_the_wait() {
    let mut e = Engine::with([vec![stored(0)]]);
    e.publish(vec![]);
    e.live(vec![stored(1)]);
    assert!(e.asked().is_some());
    let many = (0u64..).take_while(|_| {
        e.live(vec![]);
        e.world.stream.awaits_replies()
    });
    assert_eq!(many.count(), 8_191, "and the one that showed the hole");
    assert_eq!((e.known(), e.counts()), (known([1]), [1, 1, 0, 0, 1]));
    e.live(vec![stored(2)]);
    assert_eq!((e.known(), e.counts()), (known([1, 2]), [1, 1, 0, 0, 1]), "none was lost of them");
}

#[test]
fn whoever_comes_late_learns_what_was_stored_before() {
    for connects in [true, false] {
        let mut e = Engine::new();
        for n in 0..4 {
            e.publish(vec![stored(n)]);
        }
        if connects {
            // An idle engine publishes nothing, and is asked all the same.
            e.on(|stream, here| stream.connected(here, true));
            assert_eq!(e.asked(), Some(0));
            e.answer(..);
            e.reply(Reply::End);
            assert_eq!(e.known(), known([0, 1, 2, 3]));
            e.live(vec![removed(0)]);
        } else {
            e.live(vec![removed(0)]);
            assert_eq!(e.asked(), Some(0));
            e.answer(..);
        }
        assert_eq!((e.known(), e.counts()), (known([1, 2, 3]), [0, 0, 1, 0, 0]), "no hole");
    }
    // What is kept no more nobody can tell, and nobody has lost.
    let mut e = Engine::new();
    (0..4).for_each(|n| e.publish(vec![stored(n)]));
    e.live(vec![stored(4)]);
    assert_eq!(e.asked(), Some(0));
    e.answer(2..);
    assert_eq!((e.known(), e.counts()), (known([2, 3, 4]), [0, 0, 0, 1, 0]));
    // And nor is anything where it has no past.
    let mut e = Engine::new();
    (0..4).for_each(|n| e.publish(vec![stored(n)]));
    e.live(vec![stored(4)]);
    assert!(e.asked().is_some());
    e.reply(Reply::End);
    e.live(vec![stored(5)]);
    assert_eq!((e.known(), e.counts()), (known([4, 5]), [0, 0, 1, 0, 0]));
    assert!(!e.uncertain());
}

#[test]
fn a_replay_may_be_ahead_of_the_live_messages() {
    let mut e = Engine::new();
    for n in 0..4 {
        e.publish(vec![stored(n)]);
    }
    e.on(|stream, here| stream.connected(here, true));
    assert!(e.asked().is_some());
    e.publish(vec![removed(3)]);
    e.answer(..);
    e.reply(Reply::End);
    let id = e.world.id();
    e.deliver(3);
    e.deliver(4);
    e.live(vec![stored(5)]);
    assert_eq!(
        (e.known(), e.world.id()),
        (known([0, 1, 2, 5]), id),
        "the same twice, no other life"
    );
    assert_eq!(e.counts(), [0, 0, 1, 0, 0]);
}

#[test]
fn f21_an_engine_that_restarts_during_a_replay_is_another_life() {
    let mut e = Engine::with([vec![stored(0)], vec![stored(1)]]);
    e.publish(vec![]);
    e.live(vec![stored(2)]);
    assert!(e.asked().is_some());
    let id = e.world.id();
    let old = e.past.clone();
    e.restart();
    e.live(vec![stored(3)]);
    assert_ne!(e.world.id(), id);
    assert!(!e.world.stream.awaits_replies(), "nobody waits for the dead one");
    // What still comes of it is nobody's.
    for (seq, payload) in (0..).zip(&old) {
        e.reply(Reply::Message { seq, payload });
    }
    e.reply(Reply::End);
    e.live(vec![stored(4)]);
    assert_eq!((e.known(), e.uncertain()), (known([3, 4]), false));
}

#[test]
fn f21_another_publisher_that_counts_past_the_same_numbers_is_found_out() {
    let mut e = Engine::with([vec![stored(0)], vec![stored(1)], vec![stored(2)]]);
    e.restart();
    for n in 10..16 {
        e.publish(vec![stored(n)]);
    }
    // Its numbers never go back: by them alone this is a hole like any other.
    e.deliver(5);
    assert_eq!(e.asked(), Some(2));
    e.answer(2..);
    assert!(e.known().is_empty(), "nothing of the one before is believed");
    e.pass(Duration::from_secs(1));
    assert_eq!(e.asked(), Some(0), "and the new one is asked for all it has");
    e.answer(..);
    e.reply(Reply::End);
    assert_eq!(e.known(), known([10, 11, 12, 13, 14, 15]));
    e.live(vec![removed(10)]);
    assert_eq!(e.known(), known([11, 12, 13, 14, 15]));
}

#[test]
fn f21_replies_for_a_life_that_has_ended_are_dropped() {
    let mut e = Engine::with([vec![stored(0)]]);
    e.publish(vec![stored(1)]);
    e.live(vec![stored(2)]);
    assert!(e.asked().is_some());
    let change = FleetChange::Restarted(e.world.id());
    crate::testing::fleet(&e.world.shell, change);
    e.answer(..);
    e.reply(Reply::End);
    assert!(e.known().is_empty());
}

#[test]
fn a_message_that_cannot_be_read_is_a_hole_and_asked_for_again() {
    let broken = |e: &mut Engine| {
        let seq = e.past.len() as u64;
        e.publish(vec![removed(0)]);
        let frames = build_frames("t", seq, vec![0xc1]);
        e.on(|stream, here| stream.take(here, &frames));
        seq
    };
    let mut e = Engine::with([vec![stored(0), stored(1)]]);
    broken(&mut e);
    assert_eq!(e.asked(), Some(0));
    e.live(vec![stored(2)]);
    e.answer(..);
    assert_eq!((e.known(), e.counts()), (known([1, 2]), [1, 0, 1, 0, 0]), "nothing is forgotten");
    // As broken again.
    e.pass(Duration::from_secs(1));
    let seq = broken(&mut e);
    e.live(vec![stored(3)]);
    assert!(e.asked().is_some());
    e.reply(Reply::Message { seq, payload: &[0xc1] });
    assert_eq!((e.known(), e.counts()), (known([3]), [2, 1, 1, 1, 0]));
    assert!(e.uncertain());
    assert_eq!(e.world.stats().malformed, 3);
}

#[test]
fn a_stream_that_is_silent_is_asked_whether_it_is() {
    let mut e = Engine::with([vec![stored(0)]]);
    e.pass(SILENCE);
    assert_eq!(e.asked(), None, "it isn't connected");
    e.on(|stream, here| stream.connected(here, true));
    assert_eq!(e.asked(), Some(0));
    e.reply(Reply::End);
    e.publish(vec![removed(0)]);
    e.pass(SILENCE - Duration::from_secs(1));
    assert_eq!(e.asked(), None);
    e.pass(Duration::from_secs(1));
    assert_eq!(e.asked(), Some(0));
    e.answer(..);
    e.reply(Reply::End);
    assert_eq!((e.known(), e.counts()), (known([]), [0, 0, 2, 0, 0]), "what was lost at its end");
    e.pass(SILENCE);
    assert_eq!(e.asked(), None, "less often, the longer it is silent");
    e.pass(SILENCE);
    assert_eq!(e.asked(), Some(1));
}

#[test]
fn holes_that_follow_each_other_are_filled_by_as_few_replays_as_can_be() {
    let mut e = Engine::with([vec![stored(0)]]);
    for n in 1..9 {
        e.publish(vec![stored(n)]);
    }
    for seq in [2, 3, 5, 8] {
        e.deliver(seq);
    }
    assert_eq!(e.asked(), Some(0));
    e.answer(..5);
    assert_eq!(e.known(), (0..6).collect(), "two by one replay");
    // As much as there was when it was asked.
    e.reply(Reply::End);
    e.pass(Duration::from_secs(1));
    assert_eq!(e.asked(), Some(5));
    e.answer(5..8);
    assert_eq!((e.known(), e.counts()), ((0..9).collect(), [3, 0, 2, 0, 0]));
    assert!(!e.world.stream.awaits_replies());
}

/// What may happen to a stream.
#[derive(Clone, Debug)]
enum Step {
    /// The engine stores or removes a block, whichever it can.
    Toggle(u64),
    Clear,
    /// The next message arrives, or doesn't.
    Deliver(bool),
    /// Time for a question; so much of an answer comes, and perhaps its end.
    Answer(usize, bool),
    Wait(u64),
    Connect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12u64).prop_map(Step::Toggle),
        1 => Just(Step::Clear),
        12 => prop::bool::weighted(0.7).prop_map(Step::Deliver),
        6 => (0..30usize, any::<bool>()).prop_map(|(n, end)| Step::Answer(n, end)),
        2 => (0..5u64).prop_map(Step::Wait),
        1 => Just(Step::Connect),
    ]
}

proptest! {
    /// Once everything was answered and one more message has come, what is believed is what is there: all
    /// of it where the engine keeps its whole past, and nothing else where it doesn't.
    #[test]
    fn whatever_is_lost_nothing_is_believed_that_is_not_there(
        steps in prop::collection::vec(step(), 1..80),
        kept in prop_oneof![Just(usize::MAX), 1..6usize],
    ) {
        let mut e = Engine::new();
        let mut truth = BTreeSet::new();
        let mut delivered = 0;
        let mut pending: Option<u64> = None;
        // An end that came before the end.
        let mut lied = false;
        let toggle = |truth: &mut BTreeSet<u64>, n| {
            if truth.remove(&n) { removed(n) } else { truth.insert(n); stored(n) }
        };
        for step in steps {
            match step {
                Step::Toggle(n) => { let event = toggle(&mut truth, n); e.publish(vec![event]); }
                Step::Clear => { truth.clear(); e.publish(vec![KvEvent::Cleared]); }
                Step::Deliver(arrives) if delivered < e.past.len() => {
                    if arrives { e.deliver(delivered); }
                    delivered += 1;
                }
                Step::Deliver(_) => {}
                Step::Answer(most, end) => {
                    if let Some(from) = e.asked() { pending = Some(from); }
                    let Some(from) = pending.filter(|_| e.world.stream.awaits_replies()) else { continue };
                    let from = usize::try_from(from).unwrap().max(e.past.len().saturating_sub(kept));
                    e.answer(from..from.saturating_add(most));
                    if end {
                        lied |= from.saturating_add(most) < e.past.len();
                        e.reply(Reply::End);
                    }
                }
                Step::Wait(seconds) => e.pass(Duration::from_secs(seconds)),
                Step::Connect => e.on(|stream, here| stream.connected(here, true)),
            }
        }
        // What has not arrived never will.
        let event = toggle(&mut truth, 13);
        e.live(vec![event]);
        for _ in 0..200 {
            // A question that was cut short is over, and one that was in vain may be asked again.
            e.pass(Duration::from_secs(70));
            if let Some(from) = e.asked() {
                let from = usize::try_from(from).unwrap().max(e.past.len().saturating_sub(kept));
                e.answer(from..);
                e.reply(Reply::End);
            }
        }
        prop_assert!(!e.world.stream.awaits_replies());
        let known: BTreeSet<u64> = e.known();
        prop_assert!(known.is_subset(&truth), "{known:?} of {truth:?}");
        let [_, lost, _, partial, failed] = e.counts();
        if kept == usize::MAX && !lied && (lost, partial, failed) == (0, 0, 0) {
            prop_assert_eq!(known, truth);
        }
    }
}
