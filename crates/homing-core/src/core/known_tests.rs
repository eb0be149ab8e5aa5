//! Which source speaks for which worker, how long a prediction is believed, and the budget of all indexes.

use crate::ask::{Admission, Ask, Dispatch};
use crate::core::SelectionCore;
use crate::fleet::{Cache, CacheSource, FleetChange, Probe, ServedName, WorkerSpec};
use crate::hash::{EngineHash, HashSpace, Prompt, TEXT_BLOCK, TEXT_CHUNK};
use crate::ids::{DpRank, WorkerId};
use crate::index::event::{BlockStored, KvEvent};
use crate::settings::CoreSettings;
use crate::time::Time;
use std::time::Duration;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A core with workers of one model, known by these sources.
fn core(settings: CoreSettings, sources: &[CacheSource]) -> (SelectionCore, Vec<WorkerId>) {
    let core = SelectionCore::new(settings, 1);
    let mut ids = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        let name = format!("w{i}");
        let say = |change| core.handle_fleet(Time::ZERO, change).unwrap();
        say(FleetChange::Register(WorkerSpec::new(&name, "http://w")));
        let id = core.worker_named(&name).unwrap();
        say(FleetChange::Serves(id, vec![ServedName { name: "m".into(), adapter: false }]));
        say(FleetChange::Probed(id, Probe::Good));
        say(FleetChange::Cache(id, Cache { source: *source, capacity: None }));
        ids.push(id);
    }
    (core, ids)
}

const TOKENS: u32 = TEXT_BLOCK * 10 + 1;

/// Blocks of sixteen in ten chunks.
const BLOCKS: u32 = TEXT_BLOCK * 10 / 16;

/// The same prompt in tokens and as text: ten chunks.
fn tokens(seed: u32) -> Prompt {
    let tokens: Vec<u32> = (0..TOKENS).map(|i| seed * 10_000 + i).collect();
    Prompt::from_tokens(&tokens, 16, HashSpace::default())
}

fn text(seed: u32) -> Prompt {
    let bytes: Vec<u8> = (0..TEXT_CHUNK as u32 * 10 + 4).map(|i| (i * 7 + seed) as u8).collect();
    Prompt::from_text(&[&bytes], HashSpace::default())
}

fn ask(core: &SelectionCore, prompt: Option<Prompt>, text: Prompt) -> Ask {
    let route = core.route("m").unwrap();
    let unknown = Prompt { block_size: TEXT_BLOCK, ..Prompt::of_length(text.tokens) };
    let mut ask = Ask::new(route.partition, route.name, prompt.unwrap_or(unknown));
    ask.text = text;
    core.look_up(&mut ask);
    ask
}

fn overlap(core: &SelectionCore, prompt: Option<Prompt>, text: Prompt, worker: WorkerId) -> u32 {
    let ask = ask(core, prompt, text);
    ask.overlaps.iter().find(|o| o.worker == worker).map_or(0, |o| o.total())
}

/// Sends it to the worker, which begins to answer if `begin`.
fn send(core: &SelectionCore, now: Time, mut ask: Ask, name: &str, begin: bool) {
    let rank = None;
    ask.explicit = Some(crate::ask::Explicit { worker: name.into(), rank });
    let Admission::Granted(grant) = core.admit(now, ask) else { panic!("there is room") };
    let Dispatch::Go(checked) = core.check_dispatch(now, grant) else { panic!("nothing changed") };
    if begin {
        let (live, _) = core.commit(now, checked);
        core.finish(now, live);
    } else {
        core.abandon(now, checked, crate::ask::Abandon::Failed);
    }
}

fn stored(seed: u32) -> KvEvent {
    let prompt = tokens(seed);
    KvEvent::Stored(BlockStored {
        block_hashes: prompt.chain.iter().map(|c| EngineHash(c.0)).collect(),
        token_ids: (0..TOKENS - 1).map(|i| seed * 10_000 + i).collect(),
        block_size: 16,
        full_attention: true,
        ..BlockStored::default()
    })
}

fn hear(core: &SelectionCore, worker: WorkerId, seed: u32) {
    core.handle_kv(Time::ZERO, worker, DpRank(0), &[stored(seed)], |_, _| {});
}

#[test]
fn a_worker_without_events_is_known_by_what_it_was_sent() {
    let (core, ids) = core(CoreSettings::default(), &[CacheSource::Routed, CacheSource::Routed]);
    assert!(core.wants_text(core.route("m").unwrap().partition));
    assert_eq!(overlap(&core, None, text(1), ids[0]), 0);
    send(&core, at(0), ask(&core, None, text(1)), "w0", true);
    core.handle_timeout(at(60));
    assert_eq!(overlap(&core, None, text(1), ids[0]), 10, "and stays so");
    assert_eq!(overlap(&core, None, text(1), ids[1]), 0);
    assert_eq!(overlap(&core, None, text(2), ids[0]), 0);
    assert_eq!(core.workers()[0].cached_chunks, 10);
    core.check();
}

#[test]
fn each_source_speaks_for_its_workers() {
    let sources = [CacheSource::Events, CacheSource::Routed, CacheSource::Nothing];
    let (core, ids) = core(CoreSettings::default(), &sources);
    hear(&core, ids[0], 1);
    for name in ["w0", "w1", "w2"] {
        send(&core, at(0), ask(&core, None, text(1)), name, true);
    }
    core.handle_timeout(at(60));
    // In blocks, where blocks are known: the same part of the prompt.
    let of = |prompt: Option<Prompt>, text| {
        [0, 1, 2].map(|i| overlap(&core, prompt.clone(), Prompt::clone(&text), ids[i]))
    };
    assert_eq!(of(Some(tokens(1)), text(1)), [BLOCKS, BLOCKS, 0]);
    assert_eq!(of(None, text(1)), [10, 10, 0], "and a request without tokens by its text");
    assert_eq!(of(Some(tokens(1)), Prompt::default()), [BLOCKS, 0, 0]);
    assert_eq!(of(Some(tokens(2)), text(1)), [0, BLOCKS, 0], "events know better");
    core.check();
}

#[test]
fn a_burst_of_siblings_finds_its_elder() {
    for exact in [true, false] {
        let source = if exact { CacheSource::Events } else { CacheSource::Routed };
        let (core, ids) = core(CoreSettings::default(), &[source, source]);
        // Tells the block size.
        hear(&core, ids[1], 9);
        let prompt = || exact.then(|| tokens(1));
        let depth = if exact { BLOCKS } else { 10 };
        send(&core, at(0), ask(&core, prompt(), text(1)), "w0", false);
        assert_eq!(overlap(&core, prompt(), text(1), ids[0]), depth, "exact: {exact}");
        assert_eq!(core.poll_timeout(), Some(at(5)));
        core.handle_timeout(at(4));
        assert_eq!(overlap(&core, prompt(), text(1), ids[0]), depth);
        core.handle_timeout(at(5));
        assert_eq!(overlap(&core, prompt(), text(1), ids[0]), 0, "it did not come true");
        assert_eq!(core.poll_timeout(), None);
        send(&core, at(6), ask(&core, prompt(), text(1)), "w0", true);
        hear(&core, ids[0], 1);
        core.handle_timeout(at(20));
        assert_eq!(overlap(&core, prompt(), text(1), ids[0]), depth, "it did");
        core.check();
    }
}

#[test]
fn predictions_can_be_switched_off() {
    let settings = CoreSettings { predict: Duration::ZERO, ..CoreSettings::default() };
    let (core, ids) = core(settings, &[CacheSource::Routed]);
    send(&core, at(0), ask(&core, None, text(1)), "w0", false);
    assert_eq!((overlap(&core, None, text(1), ids[0]), core.poll_timeout()), (0, None));
}

#[test]
fn f21_what_a_life_was_sent_ends_with_it() {
    let (core, ids) = core(CoreSettings::default(), &[CacheSource::Routed]);
    send(&core, at(0), ask(&core, None, text(1)), "w0", true);
    core.handle_fleet(at(1), FleetChange::Restarted(ids[0])).unwrap();
    let id = core.worker_named("w0").unwrap();
    assert_eq!(overlap(&core, None, text(1), id), 0);
    assert_eq!(core.workers()[0].cache.source, CacheSource::Routed);
    assert_eq!(core.workers()[0].cached_chunks, 0);
    core.check();
}

#[test]
fn f22_the_budget_is_of_all_indexes() {
    let index_memory = 600_000;
    let settings = CoreSettings { index_memory, ..CoreSettings::default() };
    let (core, ids) = core(settings, &[CacheSource::Events, CacheSource::Routed]);
    for seed in 0..2_000 {
        hear(&core, ids[0], seed % 400);
        send(&core, at(0), ask(&core, None, text(seed % 251)), "w1", true);
    }
    core.handle_timeout(at(9));
    let used = core.index_use();
    assert!(used.bytes <= index_memory, "{used:?}");
    assert!(used.dropped > 0 && used.bytes > index_memory / 2, "{used:?}");
    core.check();
}

/// Were it to wait, this test would never end.
#[test]
fn who_looks_a_prompt_up_waits_for_no_writer() {
    let (core, ids) = core(CoreSettings::default(), &[CacheSource::Events; 2]);
    let event = |seed: u32| {
        let token_ids: Vec<u32> = (0..TOKENS - 1).map(|i| seed * 10_000 + i).collect();
        KvEvent::Stored(BlockStored {
            block_hashes: (0..BLOCKS)
                .map(|b| EngineHash(u64::from(seed) << 32 | u64::from(b)))
                .collect(),
            token_ids,
            block_size: 16,
            full_attention: true,
            ..BlockStored::default()
        })
    };
    core.handle_kv(Time::ZERO, ids[0], DpRank(0), &[event(1)], |_, _| {});
    let cell = core.cell(core.route("m").unwrap().partition).unwrap();
    cell.index(|index| {
        assert_eq!(overlap(&core, Some(tokens(1)), text(1), ids[0]), BLOCKS, "what was there");
        let half = BLOCKS as usize / 2;
        index.apply_part(ids[1], DpRank(0), &event(2), 0..half);
        let found = overlap(&core, Some(tokens(2)), text(2), ids[1]);
        assert_eq!(found as usize, half, "what has come so far");
        index.forget(ids[0]);
        assert_eq!(overlap(&core, Some(tokens(1)), text(1), ids[0]), 0, "who has gone");
    });
}
