//! From damaged bytes to the index: whatever is still understood of a real stream, both indexes take alike. The
//! fuzzer `kv_events` goes further; this is what every run of the tests has.

use super::golden_tests::{folder, frames, messages};
use super::*;
use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::{DpRank, WorkerId};
use homing_core::index::{ChainIndex, NaiveIndex};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::LazyLock;

/// The payloads of each capture, in their order.
static STREAMS: LazyLock<Vec<Vec<Vec<u8>>>> = LazyLock::new(|| {
    let captures = folder("publisher-golden").into_iter().chain(folder("engine-vllm-0.32.0"));
    let payload = |message: &_| frames(message)[2].clone();
    captures.map(|(_, golden)| messages(&golden).iter().map(payload).collect()).collect()
});

/// What happens to a message on its way: to which, at which byte, and what.
type Damage = (Index, Index, u8);

fn damaged(stream: &[Vec<u8>], damages: &[Damage]) -> Vec<Vec<u8>> {
    let mut stream = stream.to_vec();
    for (message, place, byte) in damages {
        let payload = message.get(&stream).clone();
        let at = message.index(stream.len());
        match byte % 4 {
            // A changed byte is most often still msgpack.
            0 | 1 => {
                let place = place.index(payload.len());
                stream[at][place] = *byte;
            }
            // Twice, lost.
            2 => stream.insert(at, payload),
            _ => stream[at] = vec![0x92, 0, 0x90],
        }
    }
    stream
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn both_indexes_take_what_is_left_of_a_stream_alike(
        which in any::<Index>(),
        damages in vec((any::<Index>(), any::<Index>(), any::<u8>()), 0..20),
        ranks in 1u16..3,
    ) {
        let stream: &Vec<Vec<u8>> = which.get(STREAMS.as_slice());
        let stream = damaged(stream, &damages);
        let (mut fast, mut plain) = (ChainIndex::default(), NaiveIndex::default());
        let mut prompts = vec![];
        for (n, payload) in stream.iter().enumerate() {
            let Ok(batch) = decode_batch(payload) else { continue };
            let rank = DpRank(u16::try_from(n).unwrap_or(0) % ranks);
            for event in &batch.events {
                let applied = fast.apply(WorkerId(0), rank, event);
                prop_assert_eq!(applied, plain.apply(WorkerId(0), rank, event));
                if let KvEvent::Stored(stored) = event {
                    let space = HashSpace::new(&stored.lora_name, &stored.cache_salt);
                    let tokens = [&stored.token_ids[..], &[0]].concat();
                    prompts.push(Prompt::from_tokens(&tokens, stored.block_size, space));
                }
            }
        }
        fast.check();
        plain.check();
        prop_assert_eq!(fast.block_size(), plain.block_size());
        prop_assert_eq!(fast.blocks(WorkerId(0)), plain.blocks(WorkerId(0)));
        for prompt in &prompts {
            prop_assert_eq!(fast.overlaps(prompt), plain.overlaps(prompt));
        }
    }
}

#[test]
fn an_undamaged_stream_is_worth_something() {
    for stream in STREAMS.iter() {
        let mut index = ChainIndex::default();
        let mut most = 0;
        for payload in stream {
            for event in decode_batch(payload).unwrap().events {
                index.apply(WorkerId(0), DpRank(0), &event);
            }
            most = most.max(index.blocks(WorkerId(0)));
        }
        assert!(most >= 5, "{most} blocks");
    }
}
