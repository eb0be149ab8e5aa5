//! Answers of an engine that is asked, taken in: holes, lives, ranks, counts.

use super::*;
use crate::ingest::book::FeedStats;
use crate::testing::shell;
use serde_json::{Value, json};

const W: &str = "w";

struct World {
    shell: Arc<Shell>,
    book: Arc<FeedBook>,
    polled: Polled,
}

impl World {
    fn of_ranks(ranks: u16) -> Self {
        let (shell, book) = (shell("", &[W]), Arc::new(FeedBook::default()));
        let polled = Polled::new(shell.clone(), book.clone(), W, ranks);
        Self { shell, book, polled }
    }

    fn take(&mut self, events: &[Value]) -> bool {
        let told = self.polled.take(&serde_json::to_vec(events).unwrap());
        self.shell.core().check();
        told
    }

    fn stats(&self) -> FeedStats {
        self.book.stats()[W]
    }

    fn blocks(&self) -> usize {
        self.shell.core().workers()[0].cached_blocks
    }
}

fn of(rank: u32, id: u64, data: Value) -> Value {
    json!({"event_id": id, "attention_dp_rank": rank, "data": data})
}

/// Two blocks of four tokens that begin a sequence of their own.
fn pair(hash: u32) -> Value {
    let block = |hash: u32| {
        let tokens: Vec<_> =
            (0..4).map(|_| json!({"token_id": hash, "token_extra_id": 0})).collect();
        json!({"block_hash": hash, "cache_level": 0, "tokens": tokens})
    };
    json!({"type": "stored", "parent_hash": null, "blocks": [block(hash), block(hash + 1)]})
}

fn removed(hashes: &[u32]) -> Value {
    json!({"type": "removed", "block_hashes": hashes})
}

#[test]
fn answers_are_taken_and_counted() {
    let mut world = World::of_ranks(1);
    assert_eq!(world.book.state(W), "connecting");
    world.polled.reached(true);
    assert_eq!(
        (world.book.state(W), world.polled.has_heard()),
        ("connecting", false),
        "no word yet"
    );
    assert!(world.take(&[of(0, 0, json!({"type": "created", "num_blocks_per_cache_level": [9]}))]));
    assert_eq!((world.book.state(W), world.polled.has_heard()), ("events", true));
    world.take(&[of(0, 1, pair(1)), of(0, 2, pair(3)), of(0, 3, removed(&[4]))]);
    assert!(!world.take(&[]));
    world.take(&[of(0, 4, json!({"type": "stored"})), of(0, 5, json!({"type": "new"}))]);
    assert_eq!(world.blocks(), 3);
    let counted =
        FeedStats { stored: 2, removed: 1, ignored: 2, malformed: 1, ..Default::default() };
    assert_eq!(world.stats(), counted);
    world.polled.reached(false);
    assert_eq!(world.book.state(W), "connecting");
    assert_eq!(world.blocks(), 3, "it keeps what it has to tell");
    world.polled.reached(true);
    assert_eq!(world.book.state(W), "events");
    assert!(!world.polled.take(b"{}"));
    assert_eq!(world.stats().malformed, 2);
}

#[test]
fn f24_a_hole_makes_its_rank_uncertain_until_as_much_is_known_again() {
    let mut world = World::of_ranks(2);
    world.take(&[of(0, 0, pair(1)), of(1, 0, pair(1)), of(0, 1, pair(3))]);
    assert_eq!((world.blocks(), world.book.state(W)), (6, "events"));
    world.take(&[of(0, 4, pair(5))]);
    assert_eq!((world.blocks(), world.book.state(W)), (4, "uncertain"), "rank 1 has lost nothing");
    let stats = world.stats();
    assert_eq!((stats.gaps, stats.lost, stats.uncertain), (1, 1, 1));
    world.take(&[of(0, 5, pair(7))]);
    assert_eq!((world.blocks(), world.book.state(W)), (6, "events"));
}

#[test]
fn f21_numbers_that_go_back_end_a_life() {
    let mut world = World::of_ranks(1);
    world.take(&[of(0, 0, pair(1)), of(0, 1, pair(3))]);
    let before = world.shell.core().worker_named(W);
    world.take(&[of(0, 0, pair(5))]);
    assert_ne!(world.shell.core().worker_named(W), before);
    assert_eq!(world.blocks(), 2, "those of the life that begins");
    let after = world.shell.core().worker_named(W);
    world.take(&[of(0, 0, pair(7))]);
    assert_eq!(
        world.shell.core().worker_named(W),
        after,
        "more than once a second is a broken stream"
    );
    assert_eq!((world.stats().gaps, world.polled.has_heard()), (0, true));
}

#[test]
fn f68_events_of_a_rank_that_the_worker_is_not_known_to_have_are_refused() {
    let mut world = World::of_ranks(2);
    world.take(&[of(2, 0, pair(1)), of(1, 0, pair(3)), of(2, 9, pair(5))]);
    assert_eq!((world.blocks(), world.stats().refused, world.stats().gaps), (2, 2, 0));
}

#[test]
fn f21_of_a_worker_that_is_gone_nothing_is_taken() {
    let mut world = World::of_ranks(1);
    world.take(&[of(0, 0, pair(1))]);
    let id = world.shell.core().worker_named(W).unwrap();
    world.shell.core().handle_fleet(world.shell.now(), FleetChange::Remove(id)).unwrap();
    world.book.remove(W);
    assert!(!world.take(&[of(0, 1, pair(3))]));
    assert!(world.book.stats().is_empty());
}

#[test]
fn a_long_answer_is_applied_as_it_is_read_in_its_order() {
    let mut world = World::of_ranks(2);
    // Each rank stores the pairs and takes the first of each away again, between the other's.
    let many = 3 * RUN as u64;
    let mut events = Vec::new();
    for n in 0..many {
        for rank in 0..2 {
            let hash = u32::try_from(2 * n).unwrap() + 1;
            events.push(of(rank, 2 * n, pair(hash)));
            events.push(of(rank, 2 * n + 1, removed(&[hash + 1])));
        }
    }
    assert!(world.take(&events));
    assert_eq!(world.blocks() as u64, 2 * many);
    let stats = world.stats();
    assert_eq!((stats.stored, stats.removed), (2 * many, 2 * many));
    assert_eq!((stats.gaps, stats.malformed), (0, 0));
}

#[test]
fn of_an_answer_that_breaks_off_the_beginning_is_taken_and_the_rest_is_missed() {
    let mut world = World::of_ranks(1);
    let whole = serde_json::to_vec(&[of(0, 0, pair(1)), of(0, 1, pair(3))]).unwrap();
    assert!(world.polled.take(&whole[..whole.len() - 2]));
    assert_eq!((world.blocks(), world.stats().malformed), (2, 1));
    world.take(&[of(0, 2, pair(5))]);
    assert_eq!((world.stats().gaps, world.stats().lost), (1, 1));
    assert_eq!((world.blocks(), world.book.state(W)), (2, "events"), "as much again");
}

#[test]
fn a_run_has_a_bound() {
    let mut run = Run::default();
    (0..RUN).for_each(|_| {
        assert!(!run.is_full());
        run.push(KvEvent::Cleared);
    });
    assert!(run.is_full());
    assert_eq!((run.take().len(), run.is_full()), (RUN, false));
    let removed = homing_core::index::event::BlockRemoved {
        block_hashes: vec![homing_core::hash::EngineHash(1); RUN_BLOCKS],
        medium: homing_core::index::event::Medium::Device,
        group: None,
    };
    run.push(KvEvent::Removed(removed));
    assert!(run.is_full());
    run.take();
    assert!(!run.is_full());
}
