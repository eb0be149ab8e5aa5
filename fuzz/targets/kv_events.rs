//! KV events, from msgpack bytes to the index: nothing panics, both indexes agree on all that was said, and what
//! was understood can be said again.
//!
//! An input is one payload, and also a stream of messages from two ranks of two workers.
#![no_main]

use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::event::{BlockStored, KvEvent};
use homing_core::index::{ChainIndex, NaiveIndex};
use homing_wire::frames::parse_frames;
use homing_wire::kv_events::{Batch, Encoding, Hashes, LAYOUTS, decode_batch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(batch) = decode_batch(data) {
        say_again(&batch);
        follow(vec![(0, batch)]);
    }
    let mut said = vec![];
    for message in homing_fuzz::messages(data) {
        if let Ok(message) = parse_frames(&message)
            && let Ok(batch) = decode_batch(message.payload)
        {
            said.push((message.seq, batch));
        }
    }
    follow(said);
});

/// Whatever was read can be written in every layout, and that can be read.
fn say_again(batch: &Batch) {
    for layout in &LAYOUTS {
        let encoding = Encoding::new(layout, Hashes::Int, 64).expect("every version has numbers");
        let read = decode_batch(&encoding.encode(batch)).expect("what we write is msgpack");
        assert_eq!(read.events.len() + read.skipped as usize, batch.events.len());
    }
}

fn follow(batches: Vec<(u64, Batch)>) {
    let (mut fast, mut plain) = (ChainIndex::default(), NaiveIndex::default());
    for (seq, batch) in &batches {
        let (worker, rank) = (WorkerId((seq % 2) as u32), DpRank((seq / 2 % 2) as u16));
        for event in &batch.events {
            let results = (fast.apply(worker, rank, event), plain.apply(worker, rank, event));
            assert_eq!(results.0, results.1, "{event:?}");
        }
        assert_eq!(fast.block_size(), plain.block_size());
        for worker in [0, 1].map(WorkerId) {
            assert_eq!(fast.blocks(worker), plain.blocks(worker));
        }
    }
    fast.check();
    plain.check();
    for (_, batch) in &batches {
        for event in &batch.events {
            if let KvEvent::Stored(stored) = event {
                compare(&fast, &plain, stored);
            }
        }
    }
}

fn compare(fast: &ChainIndex, plain: &NaiveIndex, stored: &BlockStored) {
    let space = HashSpace::new(&stored.lora_name, &stored.cache_salt);
    let mut tokens = stored.token_ids.clone();
    tokens.push(0);
    for size in [stored.block_size, fast.block_size().unwrap_or(1)] {
        let prompt = Prompt::from_tokens(&tokens, size, space);
        assert_eq!(fast.overlaps(&prompt), plain.overlaps(&prompt));
    }
}
