//! Fleets apart, and lives apart: nothing is shared between pools, nothing inherited between lives.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Cause;
use homing_core::fleet::{FleetChange, Probe};
use homing_core::hash::{EngineHash, HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::event::{BlockStored, KvEvent};
use homing_core::index::naive::Applied;
use homing_core::settings::Mode;

const BLOCK: u32 = 4;

fn stored(blocks: u32) -> KvEvent {
    KvEvent::Stored(BlockStored {
        block_hashes: (0..u64::from(blocks)).map(EngineHash).collect(),
        token_ids: (0..blocks * BLOCK).collect(),
        block_size: BLOCK,
        full_attention: true,
        ..BlockStored::default()
    })
}

fn prompt(blocks: u32) -> Prompt {
    let tokens: Vec<u32> = (0..=blocks * BLOCK).collect();
    Prompt::from_tokens(&tokens, BLOCK, HashSpace::default())
}

fn store(w: &World, id: WorkerId, blocks: u32) -> Applied {
    let mut applied = None;
    w.core.handle_kv(w.now, id, DpRank(0), &[stored(blocks)], |_, a| applied = Some(a));
    w.core.check();
    applied.unwrap()
}

fn cached(w: &World, id: WorkerId) -> usize {
    w.core.workers().iter().find(|v| v.info.id == id).unwrap().cached_blocks
}

#[test]
fn f07_one_key_used_with_two_models_is_two_sessions() {
    let mut w = World::new(0);
    let (a, b) = (w.up("a", &["small"]), w.up("b", &["large"]));
    let ask = |w: &World, model| w.ask_for(model, Some(("s", Mode::Hard)));
    for expected in [Outcome::New, Outcome::Hit] {
        assert_eq!(w.turn(ask(&w, "small")), (a, expected));
        assert_eq!(w.turn(ask(&w, "large")), (b, expected));
    }
    let homes = w.core.sessions(w.now, 10);
    let pools: Vec<_> = homes.iter().map(|(pool, _, s)| (pool.as_ref(), s.target.worker)).collect();
    assert_eq!(pools, [("small", a), ("large", b)]);
}

#[test]
fn f31_two_pools_share_neither_index_nor_load_nor_queue() {
    let mut w = World::with(queueing(4), 0);
    let (a, b) = (w.up("a", &["small"]), w.up("b", &["large"]));
    let (small, large) =
        (w.core.route("small").unwrap().partition, w.core.route("large").unwrap().partition);
    assert_eq!(store(&w, a, 3), Applied::Yes);
    assert_eq!(w.core.overlaps(small, &prompt(3)).len(), 1);
    assert_eq!(w.core.overlaps(large, &prompt(3)).len(), 0);
    assert_eq!((w.core.block_size(small), w.core.block_size(large)), (Some(BLOCK), None));
    let (_, _, busy) = w.start(w.ask_for("small", None));
    let ticket = w.waiting(w.ask_for("small", None));
    assert_eq!(w.turn(w.ask_for("large", None)).0, b, "the other pool's queue is not ours");
    w.core.cancel(w.now, ticket);
    w.finish(busy);
    w.down(b);
    assert_eq!(w.refused(w.ask_for("large", None)).cause, Cause::NoWorker, "nor are its workers");
}

#[test]
fn f21_a_new_life_has_neither_blocks_nor_bindings_of_the_old_one() {
    type Rebirth = fn(&mut World, WorkerId) -> WorkerId;
    let rebirths: [Rebirth; 3] = [
        |w, id| {
            w.fleet(FleetChange::Restarted(id));
            w.core.worker_named("w0").unwrap()
        },
        |w, id| {
            w.probe(id, Probe::Refused);
            w.back(id);
            w.core.worker_named("w0").unwrap()
        },
        |w, _| w.up("w0", &[MODEL]),
    ];
    for rebirth in rebirths {
        let mut w = World::new(1);
        let old = w.core.worker_named("w0").unwrap();
        store(&w, old, 5);
        w.turn(w.hard("s"));
        assert_eq!((cached(&w, old), w.part(old).bindings), (5, 1));
        let new = rebirth(&mut w, old);
        assert_ne!(new, old);
        assert_eq!((cached(&w, new), w.part(new).bindings), (0, 0));
        assert!(w.core.overlaps(w.partition(), &prompt(5)).is_empty());
        assert_eq!(store(&w, old, 5), Applied::Ignored, "a late event of the old life");
        assert!(w.core.overlaps(w.partition(), &prompt(5)).is_empty());
        assert_eq!(w.turn(w.hard("s")), (new, Outcome::Rebound));
        assert_eq!(store(&w, new, 2), Applied::Yes);
        assert_eq!(cached(&w, new), 2);
        w.quiesce();
    }
}

#[test]
fn f21_a_worker_that_comes_back_with_another_model_leaves_nothing_behind() {
    let mut w = World::new(0);
    let (a, b) = (w.up("a", &["small"]), w.up("b", &["small"]));
    store(&w, a, 3);
    let ask = |w: &World| w.ask_for("small", Some(("s", Mode::Hard)));
    let mut home = w.turn(ask(&w)).0;
    for _ in 0..100 {
        if home == a {
            break;
        }
        w.core.unbind(w.now, w.core.route("small").unwrap().partition, key("s"));
        home = w.turn(ask(&w)).0;
    }
    assert_eq!(home, a);
    w.serves(a, &["large"]);
    let small = w.core.route("small").unwrap().partition;
    assert!(w.core.overlaps(small, &prompt(3)).is_empty());
    assert_eq!(w.turn(ask(&w)), (b, Outcome::Rebound));
    assert_eq!(w.turn(w.ask_for("large", None)).0, a);
}

/// A worker may depart between the look at who it is and the write: its blocks must not stay.
#[test]
fn f21_events_that_race_with_a_departure_leave_nothing() {
    let mut w = World::new(1);
    for round in 0..2000 {
        let id = w.up("racer", &[MODEL]);
        let (core, now) = (&w.core, w.now);
        let feed = || {
            for _ in 0..8 {
                core.handle_kv(now, id, DpRank(0), &[stored(1)], |_, _| ());
            }
        };
        std::thread::scope(|s| {
            (0..4).for_each(|_| _ = s.spawn(feed));
            s.spawn(|| core.handle_fleet(now, FleetChange::Remove(id)).unwrap());
        });
        assert_eq!(core.block_size(w.partition()), None, "round {round}");
    }
}
