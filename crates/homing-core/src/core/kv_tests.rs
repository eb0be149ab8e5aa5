//! Slices change nothing but who gets a turn in between.

use super::*;
use crate::fleet::{FleetChange, Probe, ServedName, WorkerSpec};
use crate::hash::{EngineHash, HashSpace, Prompt};
use crate::ids::PartitionId;
use crate::index::NaiveIndex;
use crate::index::event::{BlockRemoved, BlockStored};
use crate::settings::CoreSettings;

const RANK: DpRank = DpRank(0);
const LONG: u64 = 40 * SLICE as u64 + 7;

fn core() -> (SelectionCore, WorkerId, PartitionId) {
    let core = SelectionCore::new(CoreSettings::default(), 1);
    let spec = WorkerSpec::new("w", "http://w");
    core.handle_fleet(Time::ZERO, FleetChange::Register(spec)).unwrap();
    let id = core.worker_named("w").unwrap();
    let names = vec![ServedName { name: "m".into(), adapter: false }];
    core.handle_fleet(Time::ZERO, FleetChange::Serves(id, names)).unwrap();
    core.handle_fleet(Time::ZERO, FleetChange::Probed(id, Probe::Good)).unwrap();
    let partition = core.route("m").unwrap().partition;
    (core, id, partition)
}

/// Blocks `from..to` of sequence `s`, two tokens each.
fn stored(s: u64, from: u64, to: u64) -> BlockStored {
    BlockStored {
        block_hashes: (from..to).map(|b| name(s, b)).collect(),
        parent: from.checked_sub(1).map(|b| name(s, b)),
        token_ids: tokens(s, from, to),
        block_size: 2,
        full_attention: true,
        ..BlockStored::default()
    }
}

fn name(s: u64, block: u64) -> EngineHash {
    EngineHash(s << 32 | block)
}

fn tokens(s: u64, from: u64, to: u64) -> Vec<u32> {
    (from..to).flat_map(|b| [s as u32, b as u32]).collect()
}

fn removed(s: u64, blocks: impl Iterator<Item = u64>) -> KvEvent {
    let block_hashes = blocks.map(|b| name(s, b)).collect();
    KvEvent::Removed(BlockRemoved { block_hashes, ..BlockRemoved::default() })
}

#[test]
fn a_message_in_slices_does_what_it_does_at_once() {
    let salted = BlockStored { cache_salt: "tenant".into(), ..stored(1, 0, LONG) };
    let short = BlockStored { token_ids: vec![1], ..stored(2, 0, LONG) };
    let mut events = vec![
        KvEvent::Stored(stored(0, 0, LONG)),
        KvEvent::Stored(salted),
        KvEvent::Stored(short),
        // An orphan's children, before it and its parent have come.
        KvEvent::Stored(stored(3, 1, LONG)),
    ];
    events.extend((0..300).map(|b| KvEvent::Stored(stored(4, b, b + 1))));
    events.push(removed(0, LONG - 1200..LONG));
    events.push(KvEvent::Stored(stored(3, 0, 1)));
    events.push(removed(4, (0..3000).rev()));
    let (core, id, partition) = core();
    let mut got = Vec::new();
    core.handle_kv(Time::ZERO, id, RANK, &events, |e, applied| got.push((e.clone(), applied)));
    core.check();

    let mut index = NaiveIndex::default();
    let at_once: Vec<_> = events.iter().map(|e| (e.clone(), index.apply(id, RANK, e))).collect();
    assert!(got == at_once, "each event once, in order, with the same result");
    assert_eq!(core.workers()[0].cached_blocks, index.blocks(id));
    assert_eq!(core.block_size(partition), Some(2));
    for (s, salt) in [(0, ""), (1, "tenant"), (1, ""), (2, ""), (3, ""), (4, "")] {
        let mut tokens = tokens(s, 0, LONG);
        tokens.push(0);
        let prompt = Prompt::from_tokens(&tokens, 2, HashSpace::new("", salt));
        let (ours, want) = (core.overlaps(partition, &prompt), index.overlaps(&prompt));
        assert_eq!(ours, want, "sequence {s}");
        let full = [(1, "tenant"), (3, "")].contains(&(s, salt));
        assert_eq!(full, want.first().is_some_and(|o| u64::from(o.blocks) == LONG));
    }
}

/// Between two slices the worker may depart: what follows is of a life that has ended (F21), be it
/// the rest of an event that had begun.
#[test]
fn f21_a_departure_amid_a_message_ends_it() {
    let long = KvEvent::Stored(stored(1, 0, LONG));
    let short = |s: u64| KvEvent::Stored(stored(s, 0, 1));
    let amid_an_event = vec![short(0), long, short(2)];
    let amid_a_message: Vec<_> = (0..200).map(short).collect();
    for (events, applied_before) in
        [(amid_an_event, 1), (amid_a_message, SLICE.div_ceil(1 + EVENT) as u64)]
    {
        let (core, id, partition) = core();
        let mut yes = 0;
        core.handle_kv(Time::ZERO, id, RANK, &events, |_, applied| {
            // No lock is held here: the core may be called.
            match (core.worker_named("w"), applied) {
                (Some(_), Applied::Yes) => {
                    assert_eq!(core.block_size(partition), Some(2));
                    core.handle_fleet(Time::ZERO, FleetChange::Remove(id)).unwrap();
                }
                (None, Applied::Yes | Applied::Ignored) => {}
                other => panic!("{other:?}"),
            }
            yes += u64::from(applied == Applied::Yes);
        });
        core.check();
        assert_eq!(yes, applied_before, "of the first slice");
        assert_eq!(core.block_size(partition), None, "nothing is left behind");
    }
}
