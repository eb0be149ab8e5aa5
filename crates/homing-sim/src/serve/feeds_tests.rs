//! What the mock's feeds tell, read from their replay sockets, where nothing is lost: in every layout, of every
//! rank, of hybrid models, and of a cache that was cleared. The true cache is always the judge.

use super::tests::{BLOCK, call, config, endless, post, post_to, send, start, until, user};
use super::{Groups, Mock, MockConfig, MockHandle};
use homing_core::hash::EngineHash;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::ChainIndex;
use homing_core::index::event::KvEvent;
use homing_core::index::naive::Applied;
use homing_wire::frames::{Reply, build_request, parse_reply};
use homing_wire::kv_events::{Batch, Hashes, LAYOUTS, Layout, decode_batch};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const WORKER: WorkerId = WorkerId(1);

/// All that the first rank has told, once that is its cache as it is: what a step did is told behind it.
fn told_whole(mock: &MockHandle) -> (Vec<KvEvent>, usize) {
    let mut tries = 0;
    loop {
        let (batches, frames) = told(mock, 0);
        let events: Vec<_> = batches.into_iter().flat_map(|batch| batch.events).collect();
        tries += 1;
        if rebuilt(&events) == mock.cached_blocks() || tries == 200 {
            return (events, frames);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// All that a rank has told, and how many frames its replies have.
fn told(mock: &MockHandle, rank: usize) -> (Vec<Batch>, usize) {
    let (_, sources) = call(mock, "GET", "/kv_event_sources", &Value::Null);
    let endpoint = sources[rank.to_string()]["replay_endpoint"].as_str().expect("it replays");
    let socket = zmq::Context::new().socket(zmq::DEALER).expect("a socket");
    socket.set_rcvtimeo(10_000).expect("a timeout");
    socket.connect(endpoint).expect("connects");
    socket.send_multipart(build_request(0), 0).expect("sent");
    let mut batches = vec![];
    loop {
        let frames = socket.recv_multipart(0).expect("a reply in time");
        match parse_reply(&frames).expect("a reply") {
            Reply::End => return (batches, frames.len()),
            Reply::Message { payload, .. } => {
                let batch = decode_batch(payload).expect("a batch");
                assert_eq!((batch.dp_rank, batch.skipped), (Some(rank as u32), 0));
                batches.push(batch);
            }
        }
    }
}

fn events(mock: &MockHandle, rank: usize) -> Vec<KvEvent> {
    told(mock, rank).0.into_iter().flat_map(|batch| batch.events).collect()
}

/// Every copy that events tell of, in the order of names.
fn rebuilt(events: &[KvEvent]) -> Vec<EngineHash> {
    let mut copies: BTreeMap<EngineHash, usize> = BTreeMap::new();
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                stored.block_hashes.iter().for_each(|hash| *copies.entry(*hash).or_default() += 1);
            }
            KvEvent::Removed(removed) => removed.block_hashes.iter().for_each(|hash| {
                let copies = copies.get_mut(hash).expect("was stored");
                *copies = copies.checked_sub(1).expect("a copy");
            }),
            KvEvent::Cleared => copies.clear(),
        }
    }
    copies.iter().flat_map(|(hash, n)| std::iter::repeat_n(*hash, *n)).collect()
}

/// Conversations that repeat each other, and fill a cache of 24 blocks more than once.
fn talk(mock: &MockHandle) {
    for turn in 0..3 {
        for who in ["router", "cache", "router", "queue"] {
            let text = format!("Tell me about the {who}. {}", "More, please. ".repeat(turn * 15));
            let ask = json!({"messages": [user(&text)], "max_tokens": 40, "ignore_eos": true});
            post(mock, "/v1/chat/completions", &ask);
        }
    }
}

#[test]
fn every_layout_tells_the_whole_truth() {
    for kv_layout in &LAYOUTS {
        for kv_hashes in [Hashes::Int, Hashes::Bytes] {
            let config = MockConfig { kv_layout, kv_hashes, ..config(24) };
            let mock = match Mock::start(config) {
                Ok(mock) => mock,
                Err(refused) => {
                    assert_eq!(kv_hashes, Hashes::Bytes, "{refused}");
                    assert!(refused.to_string().contains(kv_layout.name), "{refused}");
                    continue;
                }
            };
            talk(&mock);
            let (events, reply) = told_whole(&mock);
            assert_eq!(reply, if kv_layout.replay_topic { 4 } else { 3 }, "{}", kv_layout.name);
            assert!(events.iter().any(|event| matches!(event, KvEvent::Removed(_))), "evictions");
            assert_eq!(rebuilt(&events), mock.cached_blocks(), "{}", kv_layout.name);
        }
    }
}

#[test]
fn each_rank_has_a_cache_and_a_feed_of_its_own() {
    let mock = start(MockConfig { dp_size: 3, ..config(200) });
    let ask = |who: usize| json!({"prompt": vec![100 + who; 100], "max_tokens": 20});
    for (who, rank) in ["2", "0", "2"].into_iter().enumerate() {
        assert_eq!(post_to(&mock, rank, "/v1/completions", &ask(who)).0, 200);
    }
    let full = 100 / BLOCK * BLOCK;
    for (who, holder) in [(0, "2"), (1, "0"), (2, "2")] {
        let cached = post(&mock, "/mock/cache", &ask(who));
        for rank in ["0", "1", "2"] {
            let expected = if rank == holder { full } else { 0 };
            assert_eq!(cached[rank]["cached_tokens"], expected, "prompt {who} at rank {rank}");
        }
    }
    let (_, window) = call(&mock, "GET", "/mock/cache", &Value::Null);
    for rank in 0..3 {
        let blocks: Vec<_> = rebuilt(&events(&mock, rank)).iter().map(|hash| hash.0).collect();
        let seen = &window[rank.to_string()];
        assert_eq!(seen, &json!({"block_size": BLOCK, "capacity": 200, "blocks": blocks}));
        assert_eq!(blocks.is_empty(), rank == 1);
    }
    for rank in ["3", "-1", "one", ""] {
        let (status, answer) = post_to(&mock, rank, "/v1/completions", &ask(0));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("data_parallel_rank")));
    }
    // Whoever names none goes where fewest are.
    let busy = MockConfig { dp_size: 2, speedup: 1.0, ..config(2000) };
    let mock = start(busy);
    let _clients = [0, 1].map(|n| {
        let client = send(&mock, "POST", "/v1/chat/completions", &endless(true).to_string());
        until(&mock, "the request", |page| {
            let ranks = page.samples("vllm:num_requests_running");
            ranks.filter(|rank| rank.value == 1.0).count() == n + 1
        });
        client
    });
}

#[test]
fn a_cleared_cache_is_told_with_the_next_step() {
    let mock = start(config(200));
    let ask = json!({"prompt": vec![7; 100], "max_tokens": 1});
    post(&mock, "/v1/completions", &ask);
    assert_eq!(post(&mock, "/mock/cache", &ask)["0"]["cached_tokens"], 96);
    let before = told(&mock, 0).0.len();
    assert_eq!(call(&mock, "POST", "/reset_prefix_cache", &json!({})), (200, json!("")));
    assert_eq!(post(&mock, "/mock/cache", &ask)["0"]["cached_tokens"], 0);
    assert_eq!(told(&mock, 0).0.len(), before, "no step has run since");
    let answer = post(&mock, "/v1/completions", &ask);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let (batches, _) = told(&mock, 0);
    let first = batches.get(before).expect("one more");
    assert!(matches!(first.events[..], [KvEvent::Cleared, KvEvent::Stored(_)]), "{first:?}");
    let events: Vec<_> = batches.into_iter().flat_map(|batch| batch.events).collect();
    assert_eq!(rebuilt(&events), mock.cached_blocks());

    let mock = start(MockConfig { speedup: 1.0, ..config(2000) });
    let _client = send(&mock, "POST", "/v1/chat/completions", &endless(true).to_string());
    until(&mock, "the request", |page| page.sum("vllm:num_requests_running") == Some(1.0));
    assert_eq!(call(&mock, "POST", "/reset_prefix_cache", &json!({})).0, 409, "it is in use");
}

#[test]
fn a_hybrid_model_tells_of_two_groups_and_an_index_keeps_one() {
    for kv_layout in LAYOUTS.iter().filter(|layout| layout.has_groups()) {
        let mock = start(MockConfig { kv_layout, kv_groups: Groups::Hybrid, ..config(24) });
        talk(&mock);
        let mut index = ChainIndex::default();
        let (mut ignored, mut short, mut none) = (0, 0, 0);
        for event in events(&mock, 0) {
            if let KvEvent::Stored(stored) = &event
                && stored.group == Some(0)
            {
                short += usize::from(stored.block_hashes.len() * BLOCK < stored.token_ids.len());
                none += usize::from(stored.block_hashes.is_empty());
            }
            match index.apply(WORKER, DpRank(0), &event) {
                Applied::Yes => {}
                Applied::Ignored => ignored += 1,
                other => panic!("{other:?} of {event:?}"),
            }
        }
        index.check();
        assert!(ignored > short && short > none && none > 0, "{ignored} {short} {none}");
        let mut held = mock.cached_blocks();
        held.dedup();
        assert_eq!(index.blocks(WORKER), held.len(), "{}", kv_layout.name);
    }
    let old = Layout::named("vllm-0.17").expect("is one");
    let config = MockConfig { kv_layout: old, kv_groups: Groups::Hybrid, ..config(24) };
    let refused = Mock::start(config).err().expect("it knows no groups");
    assert!(refused.to_string().contains("vllm-0.17"), "{refused}");
}

#[test]
fn a_block_that_is_computed_twice_is_told_twice() {
    let mock = start(config(24));
    // What is decoded is computed anew for each, and is the same.
    let ask = json!({"prompt": vec![7; 64], "max_tokens": 40, "ignore_eos": true});
    for _ in 0..2 {
        post(&mock, "/v1/completions", &ask);
    }
    let copies = |hash: &EngineHash| mock.cached_blocks().iter().filter(|h| *h == hash).count();
    let twice: Vec<_> = mock.cached_blocks().into_iter().filter(|hash| copies(hash) == 2).collect();
    assert!(twice.len() >= 6, "the prompt's last block, and two of the answer: {twice:?}");
    talk(&mock);
    let (gone, _) = told_whole(&mock);
    let removals = |hash| {
        let of = |event: &&KvEvent| matches!(event, KvEvent::Removed(removed) if removed.block_hashes.contains(hash));
        gone.iter().filter(of).count()
    };
    for hash in &twice {
        assert_eq!(removals(hash), 2, "each copy has an end of its own");
    }
    assert_eq!(rebuilt(&gone), mock.cached_blocks());
}
