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
