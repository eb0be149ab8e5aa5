//! What engines truly hold, query by query (`testdata/overlap-vectors`): both indexes must answer just that.
//!
//! Stores, removals, clears and departures of four workers with two ranks each, made by our own runs. A truth
//! is how many leading full blocks of the query are live at a rank.

use super::event::{BlockRemoved, BlockStored, KvEvent};
use super::naive::Applied;
use super::{ChainIndex, NaiveIndex, Overlap};
use crate::hash::{EngineHash, HashSpace, Prompt};
use crate::ids::{DpRank, WorkerId};
use serde_json::Value;

fn vectors(seed: u32) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/overlap-vectors");
    let path = format!("{folder}/radix_ops_seed{seed}.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(value: &Value) -> T {
    value.as_u64().unwrap().try_into().unwrap()
}

fn tokens(step: &Value) -> Vec<u32> {
    step["token_ids"].as_array().unwrap().iter().map(number).collect()
}

fn hash(value: &Value) -> EngineHash {
    EngineHash(value.as_str().unwrap().parse().unwrap())
}

fn event(step: &Value) -> Option<KvEvent> {
    let hashes = || step["block_hashes"].as_array().unwrap().iter().map(hash).collect();
    Some(match step["op"].as_str().unwrap() {
        "store" => KvEvent::Stored(BlockStored {
            block_hashes: hashes(),
            parent: Some(&step["parent_block_hash"]).filter(|p| !p.is_null()).map(hash),
            token_ids: tokens(step),
            block_size: number(&step["block_size"]),
            full_attention: true,
            ..BlockStored::default()
        }),
        "remove" => {
            KvEvent::Removed(BlockRemoved { block_hashes: hashes(), ..BlockRemoved::default() })
        }
        "clear" => KvEvent::Cleared,
        _ => return None,
    })
}

/// Who has how many leading blocks.
type Found = Vec<(WorkerId, DpRank, u32)>;

fn found(overlaps: &[Overlap]) -> Found {
    overlaps.iter().map(|o| (o.worker, o.rank, o.blocks)).collect()
}

/// The truth about a query, at most `most` blocks of it: in the order of worker and rank.
fn truth(step: &Value, most: u32) -> Found {
    let all = step["overlap_engine_truth"].as_object().unwrap();
    let mut all: Vec<_> = all
        .iter()
        .map(|(who, blocks)| {
            let (worker, rank) = who.split_once('/').unwrap();
            let worker = WorkerId(worker.parse().unwrap());
            (worker, DpRank(rank.parse().unwrap()), number::<u32>(blocks).min(most))
        })
        .filter(|(_, _, blocks)| *blocks > 0)
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn both_indexes_know_what_the_engines_truly_hold() {
    let (mut queries, mut hits) = (0, 0);
    for seed in 1..=3 {
        let file = vectors(seed);
        let size: u32 = number(&file["block_size"]);
        let (mut fast, mut plain) = (ChainIndex::default(), NaiveIndex::default());
        for (at, step) in file["steps"].as_array().unwrap().iter().enumerate() {
            let context = format!("seed {seed}, step {at}");
            let worker = || WorkerId(number(&step["worker"]));
            if let Some(event) = event(step) {
                let rank = DpRank(number(&step["dp_rank"]));
                let applied = fast.apply(worker(), rank, &event);
                assert_eq!(applied, plain.apply(worker(), rank, &event), "{context}");
                assert!(matches!(applied, Applied::Yes | Applied::Ignored), "{context}");
            } else if step["op"] == "remove_worker" {
                fast.forget(worker());
                plain.forget(worker());
            } else {
                let mut prompt = tokens(step);
                // As it is, an engine computes its last token anew; with one more it can reuse all.
                for more in [None, Some(0)] {
                    prompt.extend(more);
                    let prompt = Prompt::from_tokens(&prompt, size, HashSpace::default());
                    let want = truth(step, prompt.reusable_blocks());
                    assert_eq!(found(&fast.overlaps(&prompt)), want, "{context}");
                    assert_eq!(found(&plain.overlaps(&prompt)), want, "{context}");
                    hits += want.len();
                }
                queries += 1;
            }
            fast.check();
            plain.check();
        }
    }
    assert!(queries > 180 && hits > 600, "{queries} queries, {hits} hits");
}
