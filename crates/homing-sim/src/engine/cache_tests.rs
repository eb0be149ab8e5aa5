//! Reuse and eviction by hand, and random work against a naive model of what must be cached.

use super::super::sequence::Namespace;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCK: usize = 4;

fn cache(blocks: u32) -> KvCache {
    KvCache::new(CacheConfig { block_size: BLOCK as u32, blocks, seed: 7 })
}

fn sequence(cache: &KvCache, tokens: &[u32]) -> Sequence {
    Sequence::new(cache.namer(), Namespace::default(), tokens.to_vec())
}

fn run(cache: &mut KvCache, tokens: &[u32]) -> Option<usize> {
    let seq = sequence(cache, tokens);
    let (mut table, cached) = cache.admit(&seq)?;
    cache.store(&mut table, &seq, tokens.len());
    cache.release(table);
    Some(cached)
}

/// What a consumer that has seen every event knows: how many copies there are of each block, and
/// which tokens each one stands for, from the start of the sequence.
#[derive(Default)]
struct Consumer {
    copies: BTreeMap<EngineHash, u32>,
    prefixes: BTreeMap<EngineHash, Vec<u32>>,
}

impl Consumer {
    fn apply(&mut self, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let mut prefix = stored.parent.map_or(vec![], |p| self.prefixes[&p].clone());
                    assert_eq!(stored.token_ids.len(), stored.block_hashes.len() * BLOCK);
                    for (name, block) in
                        stored.block_hashes.iter().zip(stored.token_ids.chunks(BLOCK))
                    {
                        prefix.extend(block);
                        let known = self.prefixes.insert(*name, prefix.clone());
                        assert!(known.is_none_or(|k| k == prefix), "one name, two contents");
                        *self.copies.entry(*name).or_default() += 1;
                    }
                }
                KvEvent::Removed(removed) => {
                    assert_eq!(removed.block_hashes.len(), 1, "vLLM removes block by block");
                    let copies = self.copies.get_mut(&removed.block_hashes[0]);
                    *copies.expect("removed what was never stored") -= 1;
                    self.copies.retain(|_, n| *n > 0);
                }
                KvEvent::Cleared => self.copies.clear(),
            }
        }
    }

    /// Tokens of `prompt` that are in the cache, by its tokens and not by any hash.
    fn longest(&self, prompt: &[u32]) -> usize {
        let stored: Vec<&Vec<u32>> = self.copies.keys().map(|name| &self.prefixes[name]).collect();
        let most = prompt.len().saturating_sub(1) / BLOCK;
        (1..=most).take_while(|n| stored.iter().any(|p| p[..] == prompt[..n * BLOCK])).count()
            * BLOCK
    }
}

#[test]
fn the_last_token_is_never_reused() {
    let mut cache = cache(16);
    let prompt: Vec<u32> = (0..8).collect();
    assert_eq!(run(&mut cache, &prompt), Some(0));
    assert_eq!(run(&mut cache, &prompt), Some(4), "8 tokens: floor(7 / 4) blocks");
    assert_eq!(run(&mut cache, &(0..9).collect::<Vec<_>>()), Some(8));
}

#[test]
fn tails_are_evicted_before_heads() {
    let mut cache = cache(4);
    run(&mut cache, &(0..16).collect::<Vec<_>>());
    // One new block pushes out one block: the last of the old sequence.
    run(&mut cache, &[100, 101, 102, 103]);
    assert_eq!(cache.cached_tokens(&sequence(&cache, &(0..17).collect::<Vec<_>>())), 12);
}

#[test]
fn a_block_that_a_request_holds_is_not_evicted() {
    let mut cache = cache(4);
    let held = sequence(&cache, &(0..8).collect::<Vec<_>>());
    let (mut table, _) = cache.admit(&held).expect("there is room");
    cache.store(&mut table, &held, 8);
    assert_eq!(run(&mut cache, &(50..62).collect::<Vec<_>>()), None, "3 blocks, 2 free");
    assert_eq!(run(&mut cache, &(50..58).collect::<Vec<_>>()), Some(0));
    assert_eq!(cache.cached_tokens(&held), 4);
    cache.release(table);
    assert_eq!(cache.held(), 0);
}

#[test]
fn two_that_compute_the_same_block_make_two_copies() {
    let mut cache = cache(8);
    let seq = sequence(&cache, &(0..8).collect::<Vec<_>>());
    let (mut a, _) = cache.admit(&seq).expect("room");
    let (mut b, _) = cache.admit(&seq).expect("room");
    cache.store(&mut a, &seq, 8);
    cache.store(&mut b, &seq, 8);
    cache.release(a);
    cache.release(b);
    let mut seen = Consumer::default();
    seen.apply(cache.take_events());
    assert!(seen.copies.values().all(|n| *n == 2));
    assert_eq!(cache.content().count(), 4);
}

#[test]
fn the_salt_travels_with_the_first_block_only() {
    let mut cache = cache(8);
    let namespace = Namespace { adapter: "lora-a".into(), salt: "tenant".into() };
    let seq = Sequence::new(cache.namer(), namespace, (0..8).collect());
    let (mut table, _) = cache.admit(&seq).expect("room");
    cache.store(&mut table, &seq, 4);
    cache.store(&mut table, &seq, 8);
    cache.release(table);
    let salts: Vec<(String, String)> = cache
        .take_events()
        .into_iter()
        .filter_map(|e| if let KvEvent::Stored(s) = e { Some(s) } else { None })
        .map(|s| (s.lora_name, s.cache_salt))
        .collect();
    assert_eq!(salts, [("lora-a".into(), "tenant".into()), ("lora-a".into(), String::new())]);
}

#[derive(Clone, Debug)]
enum Op {
    /// A request: which of a few base texts, how much of it, and a tail of its own.
    Admit { base: u32, keep: usize, tail: usize },
    /// The n-th open request computes some more tokens, and maybe generates one.
    Work { which: usize, tokens: usize, generate: bool },
    /// The n-th open request ends.
    Release { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..3u32, 1..24usize, 0..6usize)
            .prop_map(|(base, keep, tail)| Op::Admit { base, keep, tail }),
        4 => (0..6usize, 1..12usize, any::<bool>())
            .prop_map(|(which, tokens, generate)| Op::Work { which, tokens, generate }),
        2 => (0..6usize).prop_map(|which| Op::Release { which }),
    ]
}

proptest! {
    /// The events tell the whole truth, the capacity holds, and hits are as long as they can be.
    #[test]
    fn events_and_hits_match_a_plain_model(
        blocks in 4..20u32,
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut cache = cache(blocks);
        let mut seen = Consumer::default();
        let mut open: Vec<(Sequence, BlockTable, usize)> = vec![];
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Admit { base, keep, tail } => {
                    let mut tokens: Vec<u32> = (0..keep as u32).map(|i| base * 100 + i).collect();
                    tokens.extend((0..tail as u32).map(|i| 10_000 + step as u32 * 10 + i));
                    let seq = sequence(&cache, &tokens);
                    let expected = seen.longest(&tokens);
                    prop_assert_eq!(cache.cached_tokens(&seq), expected);
                    let held = cache.held();
                    if let Some((table, cached)) = cache.admit(&seq) {
                        prop_assert_eq!(cached, expected);
                        open.push((seq, table, cached));
                    } else {
                        prop_assert_eq!(cache.held(), held, "a refusal changes nothing");
                        prop_assert!(tokens.len().div_ceil(BLOCK) + held > blocks as usize);
                    }
                }
                Op::Work { which, tokens, generate } => {
                    if let Some((seq, table, computed)) = open.get_mut(which) {
                        *computed = (*computed + tokens).min(seq.len());
                        cache.store(table, seq, *computed);
                        if generate && *computed == seq.len() && cache.extend(table, seq.len() + 1) {
                            seq.push(step as u32);
                        }
                    }
                }
                Op::Release { which } => {
                    if which < open.len() {
                        cache.release(open.remove(which).1);
                    }
                }
            }
            seen.apply(cache.take_events());
            let told: Vec<EngineHash> = seen
                .copies
                .iter()
                .flat_map(|(name, n)| std::iter::repeat_n(*name, *n as usize))
                .collect();
            prop_assert_eq!(told, cache.content().collect::<Vec<_>>());
            prop_assert!(cache.content().count() <= blocks as usize);
            prop_assert!(cache.held() <= blocks as usize);
        }
        for (_, table, _) in open {
            cache.release(table);
        }
        prop_assert_eq!(cache.held(), 0, "every block came back");
    }
}
