//! The fast engine against the exact one: the same requests, and every token time, every cached token, every
//! block stored and evicted must be the same, in the same order.

use super::super::cache::BlockId;
use super::*;
use crate::engine::batch::BatchConfig;
use crate::engine::{
    CacheConfig, CostModel, Engine, EngineOutput, EngineRequest, FinishReason, RequestId,
};
use homing_core::hash::EngineHash;
use homing_core::index::event::KvEvent;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCK: u32 = 4;

#[derive(Clone, Debug)]
struct Sent {
    at: u64,
    /// Its prompt's blocks, and what follows them.
    blocks: Vec<u32>,
    tail: u32,
    output: u32,
}

/// What happened, in words that both have: who, when, what.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    First(Time, u32, u64),
    Done(Time, u32),
    Stored(Time, Option<BlockId>, BlockId),
    Removed(Time, BlockId),
}

/// Block `n` of a tree in which each has `n / 3` before it: prompts share prefixes of all lengths.
fn path(mut n: u32) -> Vec<u32> {
    let mut path = vec![n];
    while n >= 3 {
        n /= 3;
        path.push(n);
    }
    path.reverse();
    path
}

fn sent() -> impl Strategy<Value = Sent> {
    (0u64..400_000, 0u32..200, 0u32..BLOCK, 1u32..60).prop_map(|(at, n, tail, output)| Sent {
        at,
        blocks: path(n),
        tail,
        output,
    })
}

fn config(blocks: u32, max_tokens: usize) -> EngineConfig {
    EngineConfig {
        cache: CacheConfig { block_size: BLOCK, blocks, seed: 1 },
        batch: BatchConfig { max_tokens, max_requests: 6, max_queued: 12 },
        cost: CostModel::default(),
        max_model_len: 10_000,
    }
}

fn exact(
    config: EngineConfig,
    all: &[Sent],
) -> (Vec<Option<SubmitError>>, Vec<(Time, EngineOutput)>) {
    let mut engine = Engine::new(config);
    let (mut refused, mut out) = (vec![], vec![]);
    for (i, sent) in all.iter().enumerate() {
        let own = |n: u32| 1_000_000 + i as u32 * 1000 + n;
        let content = sent.blocks.iter().flat_map(|b| (0..BLOCK).map(move |j| b * BLOCK + j));
        let request = EngineRequest {
            id: RequestId(i as u64),
            tokens: content.chain((0..sent.tail).map(own)).collect(),
            output: (0..sent.output).map(|n| own(100 + n)).collect(),
            ending: FinishReason::Stop,
            namespace: Default::default(),
        };
        refused.push(engine.submit(Time::from_micros(sent.at), request).err());
    }
    while let Some(at) = engine.poll_timeout() {
        engine.handle_timeout(at);
    }
    out.extend(std::iter::from_fn(|| engine.poll_output()));
    (refused, out)
}

fn fast(config: EngineConfig, all: &[Sent]) -> (Vec<Option<SubmitError>>, Vec<(Time, FastOutput)>) {
    let mut engine = FastEngine::new(config);
    let mut refused = vec![];
    for (i, sent) in all.iter().enumerate() {
        let blocks: Vec<_> = sent.blocks.iter().map(|b| *b..b + 1).collect();
        let request = FastRequest {
            request: i as u32,
            blocks: &blocks,
            prompt_tokens: u64::from(sent.blocks.len() as u32 * BLOCK + sent.tail),
            output_tokens: u64::from(sent.output),
        };
        refused.push(engine.submit(Time::from_micros(sent.at), &request).err());
    }
    while let Some(at) = engine.poll_timeout() {
        engine.handle_timeout(at);
    }
    (refused, std::iter::from_fn(|| engine.poll_output()).collect())
}

fn seen_fast(outputs: Vec<(Time, FastOutput)>) -> Vec<Seen> {
    let mut seen = vec![];
    for (at, output) in outputs {
        match output {
            FastOutput::FirstToken { request, cached_tokens } => {
                seen.push(Seen::First(at, request, cached_tokens));
            }
            FastOutput::Done { request } => seen.push(Seen::Done(at, request)),
            FastOutput::Output { .. } => {}
            FastOutput::Cache(changes) => changes.into_iter().for_each(|change| match change {
                Change::Stored { parent, blocks } => {
                    let parents = std::iter::once(parent).chain(blocks.iter().copied().map(Some));
                    seen.extend(parents.zip(&blocks).map(|(p, b)| Seen::Stored(at, p, *b)));
                }
                Change::Removed(blocks) => {
                    seen.extend(blocks.into_iter().map(|b| Seen::Removed(at, b)));
                }
            }),
        }
    }
    seen
}

/// The exact engine's names in the fast one's numbers: whatever is stored first by one name is what is stored
/// at the same place there.
fn seen_exact(outputs: Vec<(Time, EngineOutput)>, other: &[Seen]) -> Vec<Seen> {
    let mut numbers: BTreeMap<EngineHash, BlockId> = BTreeMap::new();
    let mut seen: Vec<Seen> = vec![];
    for (at, output) in outputs {
        match output {
            EngineOutput::FirstToken { id, cached_tokens, .. } => {
                seen.push(Seen::First(at, id.0 as u32, cached_tokens as u64));
            }
            EngineOutput::Done { id, .. } => seen.push(Seen::Done(at, id.0 as u32)),
            EngineOutput::Token { .. } => {}
            EngineOutput::Kv(events) => events.into_iter().for_each(|event| match event {
                KvEvent::Stored(stored) => {
                    let mut parent = stored.parent.map(|p| numbers[&p]);
                    for name in stored.block_hashes {
                        let there = match other.get(seen.len()) {
                            Some(Seen::Stored(_, _, block)) => *block,
                            _ => BlockId(u32::MAX),
                        };
                        let number = *numbers.entry(name).or_insert(there);
                        seen.push(Seen::Stored(at, parent, number));
                        parent = Some(number);
                    }
                }
                KvEvent::Removed(removed) => {
                    let blocks = removed.block_hashes.iter().map(|name| numbers[name]);
                    seen.extend(blocks.map(|b| Seen::Removed(at, b)));
                }
                KvEvent::Cleared => {}
            }),
        }
    }
    seen
}

proptest! {
    #[test]
    fn the_fast_engine_is_the_exact_one(
        mut all in prop::collection::vec(sent(), 1..30),
        // The longest request here takes 20 blocks: few leave room for little more, and preempt.
        blocks in 21u32..90,
        max_tokens in 3usize..40,
    ) {
        all.sort_by_key(|s| s.at);
        let config = config(blocks, max_tokens);
        let (refused, fast) = fast(config, &all);
        let fast = seen_fast(fast);
        let (refused_exact, exact) = exact(config, &all);
        prop_assert_eq!(refused, refused_exact);
        let exact = seen_exact(exact, &fast);
        let differs = exact.iter().zip(&fast).position(|(a, b)| a != b).unwrap_or(0);
        prop_assert_eq!(exact.get(differs..), fast.get(differs..), "from {} on", differs);
    }
}

#[test]
fn an_answer_grows_by_what_was_told_and_not_more() {
    let sent = Sent { at: 0, blocks: path(7), tail: 3, output: 50 };
    let (_, outputs) = fast(config(90, 40), &[sent]);
    let told: u64 = outputs
        .iter()
        .map(|(_, o)| if let FastOutput::Output { tokens, .. } = o { *tokens } else { 0 })
        .sum();
    // 11 tokens of prompt: the last block begins with token 57, which is the 46th of the answer; the first is
    // told by itself.
    assert_eq!(told, 45);
}

#[test]
fn a_killed_engine_names_who_was_inside_and_has_forgotten_all() {
    let mut engine = FastEngine::new(config(90, 40));
    let blocks = [0..1, 3..4];
    let request =
        |request| FastRequest { request, blocks: &blocks, prompt_tokens: 9, output_tokens: 5 };
    let at = Time::from_micros;
    engine.submit(at(0), &request(1)).expect("fits");
    while let Some(due) = engine.poll_timeout() {
        engine.handle_timeout(due);
    }
    engine.submit(at(1_000_000), &request(2)).expect("fits");
    assert_eq!(engine.kill(at(1_000_001)), [2]);
    assert_eq!(engine.poll_timeout(), None);
    while engine.poll_output().is_some() {}
    engine.submit(at(2_000_000), &request(3)).expect("fits");
    engine.handle_timeout(at(3_000_000));
    let first = std::iter::from_fn(|| engine.poll_output()).find_map(|(_, o)| match o {
        FastOutput::FirstToken { request, cached_tokens } => Some((request, cached_tokens)),
        _ => None,
    });
    assert_eq!(first, Some((3, 0)));
}
