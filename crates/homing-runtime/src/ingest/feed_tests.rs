//! One stream without sockets: its sequence, what is malformed, and whose life it is of.

use super::*;
use crate::ingest::book::{FeedBook, FeedStats};
use crate::shell::Shell;
use crate::testing::{fleet, shell};
use homing_core::fleet::Probe;
use homing_core::hash::{EngineHash, HashSpace, Prompt};
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent};
use homing_wire::frames::build_frames;
use homing_wire::kv_events::{Batch, encode_batch};
use std::sync::Arc;

pub(super) const W: &str = "w";

pub(super) struct World {
    pub(super) shell: Arc<Shell>,
    pub(super) book: FeedBook,
    pub(super) stream: Stream,
}

impl World {
    pub(super) fn new() -> Self {
        let book = FeedBook::default();
        book.open(W, 0, 1);
        Self { shell: shell("", &[W]), book, stream: stream(0, 1) }
    }

    /// Of a worker with so many ranks: their streams, and the one at hand is the first.
    fn of_ranks(ranks: u16) -> (Self, Vec<Stream>) {
        let world = Self { stream: stream(0, ranks), ..Self::new() };
        (world, (1..ranks).map(|rank| stream(rank, ranks)).collect())
    }

    fn take(&mut self, frames: &[Vec<u8>]) {
        self.stream.take(here(&self.shell, &self.book), frames);
        self.shell.core().check();
    }

    fn send(&mut self, seq: u64, events: Vec<KvEvent>) {
        self.take(&message(seq, events));
    }

    pub(super) fn stats(&self) -> FeedStats {
        self.book.stats()[W]
    }

    pub(super) fn id(&self) -> WorkerId {
        self.shell.core().worker_named(W).unwrap()
    }

    /// Lets another stream of the worker take a message.
    fn other(&self, stream: &mut Stream, frames: &[Vec<u8>]) {
        stream.take(here(&self.shell, &self.book), frames);
        self.shell.core().check();
    }

    /// The ranks that hold the `n`th block.
    pub(super) fn holders(&self, n: u64) -> Vec<u16> {
        let route = self.shell.core().route("m").unwrap();
        // One token more than the block: the last one of a prompt is never reused.
        let tokens = [u32::try_from(n).unwrap(); 5];
        let prompt = Prompt::from_tokens(&tokens, 4, HashSpace::new("", ""));
        let found = self.shell.core().overlaps(route.partition, &prompt);
        found.iter().map(|o| o.rank.0).collect()
    }

    pub(super) fn blocks(&self) -> usize {
        self.shell.core().workers()[0].cached_blocks
    }
}

fn here<'a>(shell: &'a Shell, book: &'a FeedBook) -> Here<'a> {
    Here { shell, book, now: Instant::now() }
}

fn stream(rank: u16, ranks: u16) -> Stream {
    let feed = Feed {
        worker: W.into(),
        rank,
        ranks,
        endpoint: String::new(),
        listens: true,
        replay: None,
    };
    Stream::new(&feed, Instant::now())
}

fn message(seq: u64, events: Vec<KvEvent>) -> Vec<Vec<u8>> {
    message_of(None, seq, events)
}

/// A message that names a rank.
fn message_of(dp_rank: Option<u32>, seq: u64, events: Vec<KvEvent>) -> Vec<Vec<u8>> {
    let batch = Batch { dp_rank, events, ..Batch::default() };
    build_frames("kv-events", seq, encode_batch(&batch)).into()
}

/// The `n`th block: a sequence of its own.
pub(super) fn stored(n: u64) -> KvEvent {
    stored_of(n, 4)
}

fn stored_of(n: u64, block_size: u32) -> KvEvent {
    let token = u32::try_from(n).unwrap();
    KvEvent::Stored(BlockStored {
        block_hashes: vec![EngineHash(n)],
        token_ids: vec![token; block_size as usize],
        block_size,
        full_attention: true,
        ..BlockStored::default()
    })
}

pub(super) fn removed(n: u64) -> KvEvent {
    KvEvent::Removed(BlockRemoved { block_hashes: vec![EngineHash(n)], ..BlockRemoved::default() })
}

#[test]
fn messages_in_order_are_applied_and_counted() {
    let mut w = World::new();
    // Whoever subscribes late begins where the publisher is.
    w.send(17, vec![stored(1), stored(2), stored(3)]);
    w.send(18, vec![removed(2)]);
    assert_eq!((w.stats().stored, w.stats().removed, w.blocks()), (3, 1, 2));
    w.send(19, vec![]);
    w.send(20, vec![KvEvent::Cleared, stored(4)]);
    assert_eq!((w.stats().cleared, w.stats().stored, w.blocks()), (1, 4, 1), "F23");
    let s = w.stats();
    assert_eq!((s.gaps, s.malformed, s.refused), (0, 0, 0));
}

#[test]
fn f24_a_hole_forgets_what_was_known_and_goes_on_learning() {
    let mut w = World::new();
    w.send(0, vec![stored(1), stored(2)]);
    let id = w.id();
    w.send(2, vec![stored(3)]);
    assert_eq!((w.stats().gaps, w.blocks()), (1, 1), "only what came after it");
    assert_eq!(w.id(), id, "the same life");
    w.send(3, vec![stored(4)]);
    assert_eq!((w.stats().gaps, w.blocks()), (1, 2));
    w.send(u64::MAX - 1, vec![]);
    w.send(u64::MAX, vec![stored(5)]);
    assert_eq!((w.stats().gaps, w.blocks()), (2, 1), "F57: no number overflows");
    assert_eq!((w.stats().stored, w.stats().cleared), (5, 0), "a hole is no event of the engine's");
}

#[test]
fn f21_a_sequence_that_goes_back_is_another_life() {
    for (from, back) in [(5, 0), (5, 4), (0, 0)] {
        let mut w = World::new();
        w.send(from, vec![stored(1), stored(2)]);
        let id = w.id();
        w.send(back, vec![stored(3)]);
        assert_ne!(w.id(), id, "from {from} to {back}");
        assert_eq!((w.stats().gaps, w.blocks()), (0, 1), "what its predecessor had is gone");
        let next = w.id();
        w.send(back + 1, vec![stored(4)]);
        assert_eq!((w.id(), w.blocks()), (next, 2), "and once only");
    }
}

#[test]
fn a_stream_that_goes_back_all_the_time_ends_one_life_and_no_more() {
    let mut w = World::new();
    w.send(5, vec![stored(1)]);
    let first = w.id();
    w.send(5, vec![stored(2)]);
    assert_eq!((w.id(), w.blocks()), (first, 1), "the same message twice is one");
    w.send(3, vec![stored(3)]);
    let second = w.id();
    assert_ne!(first, second);
    for n in 0..20 {
        w.send(20 - n, vec![stored(n)]);
    }
    assert_eq!((w.id(), w.blocks()), (second, 1), "nothing is believed that came before");
}

#[test]
fn f21_after_a_life_that_others_saw_begin_the_stream_may_begin_anew() {
    let mut w = World::new();
    w.send(5, vec![stored(1)]);
    fleet(&w.shell, FleetChange::Restarted(w.id()));
    assert_eq!(w.blocks(), 0);
    let id = w.id();
    w.send(0, vec![stored(2)]);
    assert_eq!((w.id(), w.blocks(), w.stats().gaps), (id, 1, 0), "no second rebirth");
    w.send(1, vec![stored(3)]);
    assert_eq!((w.id(), w.blocks()), (id, 2));
}

#[test]
fn f21_a_life_that_a_probe_and_the_stream_see_begin_is_one() {
    // The probe is first: the new publisher's numbers go back, but of its predecessor's life.
    let mut w = World::new();
    w.send(5, vec![stored(1)]);
    let old = w.id();
    fleet(&w.shell, FleetChange::Probed(old, Probe::Refused));
    fleet(&w.shell, FleetChange::Probed(old, Probe::Good));
    let new = w.id();
    assert_ne!(new, old);
    w.send(0, vec![stored(2)]);
    w.send(1, vec![stored(3)]);
    assert_eq!((w.id(), w.blocks(), w.stats().gaps), (new, 2, 0), "no second rebirth");
    // The stream is first: the probe that finds the worker back is of the life that is known.
    let mut w = World::new();
    w.send(5, vec![stored(1)]);
    let old = w.id();
    fleet(&w.shell, FleetChange::Probed(old, Probe::Refused));
    w.send(0, vec![stored(2)]);
    let new = w.id();
    assert_ne!(new, old);
    fleet(&w.shell, FleetChange::Probed(new, Probe::Good));
    w.send(1, vec![stored(3)]);
    assert_eq!((w.id(), w.blocks(), w.stats().gaps), (new, 2, 0), "no second rebirth");
}

#[test]
fn what_is_malformed_is_counted_once_and_the_feed_goes_on() {
    let mut w = World::new();
    w.send(0, vec![stored(1)]);
    let good = message(1, vec![stored(2)]);
    for frames in [
        vec![],
        good[..2].to_vec(),
        [good.clone(), good.clone()].concat(),
        vec![good[0].clone(), vec![0; 7], good[2].clone()],
        vec![vec![0xff], good[1].clone(), good[2].clone()],
    ] {
        let before = w.stats().malformed;
        w.take(&frames);
        assert_eq!(w.stats().malformed, before + 1, "{frames:?}");
    }
    // These have a number. They may have told of removals: each is a hole of one message (F24).
    let payloads: [&[u8]; 5] = [b"", b"\xff", b"\xc1", b"{}", &good[2][..good[2].len() - 1]];
    for (seq, payload) in (1u64..).zip(payloads) {
        let before = w.stats().malformed;
        w.take(&build_frames("", seq, payload.to_vec()));
        assert_eq!(w.stats().malformed, before + 1, "{payload:?}");
    }
    w.send(6, vec![stored(3)]);
    assert_eq!((w.stats().malformed, w.stats().gaps, w.stats().lost), (10, 5, 5));
    assert_eq!((w.stats().stored, w.blocks()), (2, 1));
    let kinds: Vec<_> = w.stats().kinds().collect();
    assert!(kinds.contains(&("malformed", 10)) && kinds.contains(&("stored", 2)), "{kinds:?}");
}

#[test]
fn one_senseless_event_is_dropped_and_its_neighbours_are_not() {
    let mut w = World::new();
    // [ts, [{"type": "BlockStored"}, {"type": "FromTheFuture"}, {"type": "AllBlocksCleared"}]]
    let event = |kind: &str| {
        let mut bytes = b"\x81\xa4type".to_vec();
        bytes.push(0xa0 | u8::try_from(kind.len()).unwrap());
        bytes.extend(kind.as_bytes());
        bytes
    };
    let mut payload = b"\x92\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x93".to_vec();
    for kind in ["BlockStored", "FromTheFuture", "AllBlocksCleared"] {
        payload.extend(event(kind));
    }
    w.take(&build_frames("", 0, payload));
    let s = w.stats();
    assert_eq!((s.malformed, s.ignored, s.cleared), (1, 1, 1), "{s:?}");
}

#[test]
fn f27_another_block_size_is_refused_and_counted() {
    let mut w = World::new();
    w.send(0, vec![stored(1)]);
    w.send(1, vec![stored_of(2, 8), stored(3)]);
    let s = w.stats();
    assert_eq!((s.refused, s.stored, w.blocks()), (1, 2, 2), "{s:?}");
}

#[test]
fn f21_of_a_removed_worker_nothing_is_taken_and_no_count_comes_back() {
    let mut w = World::new();
    w.send(0, vec![stored(1)]);
    fleet(&w.shell, FleetChange::Remove(w.id()));
    w.book.remove(W);
    w.send(1, vec![stored(2)]);
    w.send(9, vec![stored(2)]);
    w.take(&[]);
    w.take(&build_frames("", 10, vec![0xff]));
    w.book.connected(W, 0, true);
    assert!(w.book.stats().is_empty(), "F56: no series of it");
    assert!(w.shell.core().workers().is_empty());
    assert_eq!(w.book.state(W), "none");
}

#[test]
fn events_of_a_worker_that_serves_nothing_yet_are_ignored() {
    let mut w = World::new();
    fleet(&w.shell, FleetChange::Remove(w.id()));
    let spec = homing_core::fleet::WorkerSpec::new(W, "http://w:1");
    fleet(&w.shell, FleetChange::Register(spec));
    w.send(0, vec![stored(1)]);
    assert_eq!((w.stats().ignored, w.stats().stored, w.blocks()), (1, 0, 0));
}

#[test]
fn f24_a_hole_in_one_ranks_stream_leaves_the_others_alone() {
    let (mut w, mut others) = World::of_ranks(2);
    let one = &mut others[0];
    w.send(0, vec![stored(1), stored(2)]);
    w.other(one, &message(0, vec![stored(1), stored(3)]));
    assert_eq!((w.holders(1), w.holders(2), w.holders(3)), (vec![0, 1], vec![0], vec![1]));
    let id = w.id();
    w.other(one, &message(2, vec![stored(4)]));
    assert_eq!((w.holders(1), w.holders(2)), (vec![0], vec![0]), "what rank 0 has stays");
    assert_eq!((w.holders(3), w.holders(4)), (vec![], vec![1]));
    assert_eq!((w.stats().gaps, w.stats().stored, w.id()), (1, 5, id), "counted by worker");
    w.other(one, &message(3, vec![KvEvent::Cleared]));
    assert_eq!(
        (w.holders(1), w.holders(4)),
        (vec![0], vec![]),
        "and so does it when one is cleared"
    );
    one.forget(here(&w.shell, &w.book));
    assert_eq!(w.holders(1), [0]);
    w.stream.forget(here(&w.shell, &w.book));
    assert_eq!(w.blocks(), 0);
}

#[test]
fn f68_the_rank_that_a_batch_names_is_the_one_whose_cache_has_changed() {
    let (mut w, mut others) = World::of_ranks(3);
    w.take(&message_of(Some(1), 0, vec![stored(1)]));
    w.take(&message_of(Some(0), 1, vec![stored(2)]));
    w.take(&message_of(None, 2, vec![stored(3)]));
    assert_eq!((w.holders(1), w.holders(2), w.holders(3)), (vec![1], vec![0], vec![0]));
    for named in [3, 65_536, u32::MAX] {
        let (before, seq) = (w.stats().refused, u64::MAX - u64::from(named));
        w.stream.at = Some(seq - 1);
        w.stream.heard = w.stream.at;
        w.take(&message_of(Some(named), seq, vec![stored(4), KvEvent::Cleared]));
        assert_eq!(w.stats().refused, before + 2, "{named}");
    }
    assert_eq!(
        (w.blocks(), w.stats().cleared, w.stats().gaps),
        (3, 0, 0),
        "nothing else came of it"
    );
    w.other(&mut others[1], &message(0, vec![stored(5)]));
    // What was lost may be of any rank that this feed told of.
    w.take(&message_of(Some(0), u64::MAX, vec![]));
    assert_eq!((w.stats().gaps, w.blocks(), w.holders(5)), (1, 1, vec![2]));
}

#[test]
fn of_a_worker_with_one_rank_all_batches_are_whatever_they_name() {
    let mut w = World::new();
    w.take(&message_of(Some(3), 0, vec![stored(1)]));
    assert_eq!((w.holders(1), w.stats().refused), (vec![0], 0));
}

#[test]
fn f21_a_life_that_several_ranks_see_begin_is_one() {
    let (mut w, mut others) = World::of_ranks(2);
    let one = &mut others[0];
    w.send(5, vec![stored(1)]);
    w.other(one, &message(7, vec![stored(2)]));
    let old = w.id();
    w.send(0, vec![stored(3)]);
    let new = w.id();
    assert_ne!(new, old);
    assert_eq!((w.holders(1), w.holders(2), w.holders(3)), (vec![], vec![], vec![0]));
    w.other(one, &message(0, vec![stored(4)]));
    assert_eq!((w.id(), w.holders(3), w.holders(4)), (new, vec![0], vec![1]));
    // One that lags brings something of the life before, and only then goes back.
    let (mut w, mut others) = World::of_ranks(2);
    let one = &mut others[0];
    w.send(5, vec![stored(1)]);
    w.other(one, &message(7, vec![stored(2)]));
    w.send(0, vec![stored(3)]);
    let new = w.id();
    w.other(one, &message(8, vec![stored(4)]));
    w.other(one, &message(0, vec![stored(5)]));
    assert_eq!(w.id(), new, "no engine starts twice within a second");
    assert_eq!((w.holders(3), w.holders(4), w.holders(5)), (vec![0], vec![], vec![1]));
}
