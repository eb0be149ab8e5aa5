//! One engine on its time line: what a request costs and gives, and what happens when space runs out.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn config(blocks: u32) -> EngineConfig {
    EngineConfig {
        cache: CacheConfig { block_size: 4, blocks, seed: 1 },
        batch: BatchConfig { max_tokens: 16, max_requests: 4, max_queued: 8 },
        cost: CostModel::default(),
        max_model_len: 1000,
    }
}

fn request(id: u64, tokens: std::ops::Range<u32>, output: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        tokens: tokens.collect(),
        output: (0..output).map(|i| 1_000_000 + i).collect(),
        ending: FinishReason::Stop,
        namespace: Namespace::default(),
    }
}

/// Runs until nothing is left to do.
fn drain(engine: &mut Engine) -> Vec<(Time, EngineOutput)> {
    let mut out = vec![];
    while let Some(at) = engine.poll_timeout() {
        engine.handle_timeout(at);
        out.extend(std::iter::from_fn(|| engine.poll_output()));
    }
    out
}

fn at(ms: u64) -> Time {
    Time::from_micros(ms * 1000)
}

#[test]
fn a_request_prefills_then_decodes_token_by_token() {
    let mut engine = Engine::new(config(16));
    engine.submit(at(0), request(1, 0..10, 3)).expect("fits");
    let out = drain(&mut engine);
    let kinds: Vec<&EngineOutput> =
        out.iter().map(|(_, o)| o).filter(|o| !matches!(o, EngineOutput::Kv(_))).collect();
    let id = RequestId(1);
    let EngineOutput::FirstToken { cached_tokens: 0, ttft, .. } = kinds[0] else {
        panic!("{kinds:?}")
    };
    // 8 ms + 10 x 0.1 ms + 45 pairs x 3.5 ns, rounded up.
    assert_eq!(*ttft, Duration::from_micros(9_001));
    assert_eq!(
        kinds[1..],
        [
            &EngineOutput::Token { id, index: 1 },
            &EngineOutput::Token { id, index: 2 },
            &EngineOutput::Done { id, reason: FinishReason::Stop },
        ]
    );
    // 10 + 3 tokens, of which the last was sampled but never computed: 3 full blocks.
    assert_eq!(engine.cached_blocks().count(), 3);
    assert_eq!(engine.metrics().generation_tokens, 3);
}

#[test]
fn the_next_turn_hits_prompt_and_decode_blocks() {
    let mut engine = Engine::new(config(64));
    engine.submit(at(0), request(1, 0..10, 7)).expect("fits");
    drain(&mut engine);
    let mut next = request(2, 0..10, 1);
    next.tokens.extend((0..7).map(|i| 1_000_000 + i));
    next.tokens.extend(50..60);
    engine.submit(at(5000), next).expect("fits");
    let out = drain(&mut engine);
    let cached = out.iter().find_map(|(_, o)| match o {
        EngineOutput::FirstToken { cached_tokens, .. } => Some(*cached_tokens),
        _ => None,
    });
    assert_eq!(cached, Some(16), "10 + 7 - 1 computed tokens: 4 blocks of 4");
    assert_eq!(engine.metrics().prefix_cache_queries, 10 + 27);
    assert_eq!(engine.metrics().prefix_cache_hits, 16);
}

#[test]
fn long_prompts_are_prefilled_in_chunks_beside_decoding_requests() {
    let mut engine = Engine::new(config(64));
    engine.submit(at(0), request(1, 0..4, 20)).expect("fits");
    engine.submit(at(0), request(2, 100..140, 1)).expect("fits");
    let out = drain(&mut engine);
    let first = |id| {
        out.iter().position(
            |(_, o)| matches!(o, EngineOutput::FirstToken { id: i, .. } if *i == RequestId(id)),
        )
    };
    let tokens_before = out[..first(2).expect("ran")]
        .iter()
        .filter(|(_, o)| matches!(o, EngineOutput::Token { .. }))
        .count();
    // 4 + 12 of the 40 tokens in the first step, then 15 and 13 beside one decoded token each.
    assert_eq!(tokens_before, 2);
}

#[test]
fn what_cannot_run_is_refused_with_its_reason() {
    let mut engine = Engine::new(config(4));
    assert_eq!(engine.max_model_len(), 16);
    let too_long = engine.submit(at(0), request(1, 0..16, 1));
    assert_eq!(too_long, Err(SubmitError::TooLong { prompt: 16, limit: 16 }));
    assert_eq!(engine.submit(at(0), request(1, 0..0, 1)), Err(SubmitError::EmptyPrompt));
    assert_eq!(engine.submit(at(0), request(1, 0..1, 0)), Err(SubmitError::EmptyOutput));
    for id in 0..8 {
        engine.submit(at(0), request(id, 0..4, 1)).expect("the queue has 8 places");
    }
    let full = engine.submit(at(0), request(9, 0..4, 1));
    assert_eq!(full, Err(SubmitError::QueueFull { inside: 8 }));
}

#[test]
fn output_stops_at_the_end_of_the_context() {
    let mut engine = Engine::new(config(4));
    engine.submit(at(0), request(1, 0..10, 50)).expect("fits");
    let out = drain(&mut engine);
    let (_, last) =
        out.iter().rfind(|(_, o)| matches!(o, EngineOutput::Done { .. })).expect("ended");
    assert_eq!(*last, EngineOutput::Done { id: RequestId(1), reason: FinishReason::Length });
    assert_eq!(engine.metrics().generation_tokens, 6);
}

#[test]
fn an_abort_frees_the_blocks_at_once_and_nothing_more_is_heard() {
    let mut engine = Engine::new(config(16));
    engine.submit(at(0), request(1, 0..10, 30)).expect("fits");
    engine.handle_timeout(at(30));
    assert!(engine.kv_usage() > 0.0);
    assert!(engine.abort(at(30), RequestId(1)));
    assert!(!engine.abort(at(30), RequestId(1)));
    assert!(engine.kv_usage().abs() < f64::EPSILON);
    while engine.poll_output().is_some() {}
    assert!(drain(&mut engine).iter().all(|(_, o)| matches!(o, EngineOutput::Kv(_))));
    assert_eq!(engine.metrics().aborted, 1);
}

#[test]
fn coming_back_late_changes_nothing() {
    let arrivals =
        || (0..6u64).map(|id| (at(id * 60), request(id, id as u32 * 3..id as u32 * 3 + 20, 9)));
    let mut prompt = Engine::new(config(64));
    for (now, request) in arrivals() {
        while let Some(due) = prompt.poll_timeout().filter(|due| *due < now) {
            prompt.handle_timeout(due);
        }
        prompt.submit(now, request).expect("fits");
    }
    let on_time = drain(&mut prompt);
    let mut late = Engine::new(config(64));
    for (now, request) in arrivals() {
        late.submit(now, request).expect("fits");
    }
    late.handle_timeout(at(60_000));
    let at_once: Vec<_> = std::iter::from_fn(|| late.poll_output()).collect();
    assert_eq!(on_time, at_once);
}

#[test]
fn out_of_blocks_the_youngest_gives_way_and_still_ends() {
    let mut engine = Engine::new(config(8));
    for id in 0..3 {
        let from = 100 * id as u32;
        engine.submit(at(0), request(id, from..from + 8, 16)).expect("fits");
    }
    let out = drain(&mut engine);
    assert!(engine.metrics().preemptions > 0);
    assert_eq!(out.iter().filter(|(_, o)| matches!(o, EngineOutput::Done { .. })).count(), 3);
    assert_eq!(engine.metrics().generation_tokens, 48, "a preempted request repeats no token");
    assert_eq!(engine.metrics().prefix_cache_queries, 24, "nor is it counted twice");
}

proptest! {
    /// Whatever arrives and leaves: every request ends once with all its tokens in order, time never
    /// goes back, the events tell what is cached, and no block is lost.
    #[test]
    fn every_request_ends_and_every_block_comes_back(
        blocks in 8..40u32,
        arrivals in proptest::collection::vec((0..40u64, 0..4u32, 1..30u32, 1..12u32, any::<bool>()), 1..40),
    ) {
        let mut engine = Engine::new(config(blocks));
        let (mut now, mut expected, mut out) = (0, BTreeMap::new(), vec![]);
        for (i, (gap, base, len, output, leave)) in arrivals.into_iter().enumerate() {
            now += gap;
            let id = i as u64;
            if engine.submit(at(now), request(id, base * 50..base * 50 + len, output)).is_ok() {
                let room = engine.max_model_len() - len as usize;
                expected.insert(id, room.min(output as usize));
            }
            if leave && id > 2 && engine.abort(at(now), RequestId(id - 2)) {
                expected.remove(&(id - 2));
            }
            engine.handle_timeout(at(now));
            out.extend(std::iter::from_fn(|| engine.poll_output()));
        }
        out.extend(drain(&mut engine));
        prop_assert!(out.is_sorted_by_key(|(t, _)| *t));
        let mut tokens: BTreeMap<u64, usize> = BTreeMap::new();
        let mut done: BTreeMap<u64, usize> = BTreeMap::new();
        let mut copies: BTreeMap<EngineHash, i64> = BTreeMap::new();
        for (_, o) in &out {
            match o {
                EngineOutput::FirstToken { id, .. } => {
                    prop_assert!(tokens.insert(id.0, 1).is_none());
                }
                EngineOutput::Token { id, index } => {
                    let n = tokens.get_mut(&id.0).expect("after the first");
                    prop_assert_eq!(*n, *index);
                    *n += 1;
                }
                EngineOutput::Done { id, .. } => {
                    prop_assert!(done.insert(id.0, tokens[&id.0]).is_none());
                }
                EngineOutput::Kv(events) => for event in events {
                    match event {
                        KvEvent::Stored(s) => for h in &s.block_hashes {
                            *copies.entry(*h).or_default() += 1;
                        },
                        KvEvent::Removed(r) => for h in &r.block_hashes {
                            *copies.entry(*h).or_default() -= 1;
                        },
                        KvEvent::Cleared => copies.clear(),
                    }
                },
            }
        }
        // One that was aborted at the instant of its end is in `done` and not expected; no other.
        for (id, n) in &expected {
            prop_assert_eq!(done.get(id), Some(n));
        }
        prop_assert!(engine.kv_usage().abs() < f64::EPSILON);
        let told: Vec<EngineHash> = copies
            .iter()
            .flat_map(|(h, n)| std::iter::repeat_n(*h, *n as usize))
            .collect();
        prop_assert_eq!(told, engine.cached_blocks().collect::<Vec<_>>());
    }
}
