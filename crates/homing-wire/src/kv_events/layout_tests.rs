//! Each layout against what a real publisher of its version wrote, byte for byte; and back through the reader.

use super::golden_tests::{by_name, folder, frames, messages};
use super::*;
use crate::frames::{Reply, parse_reply};
use homing_core::index::event::BlockStored;
use layout::Column;
use proptest::prelude::*;
use serde_json::{Map, Value};

/// Captures, the layout of their version, how they write hashes, and how many messages at least hold nothing
/// that our events don't.
const CAPTURES: [(&str, &str, Hashes, usize); 14] = [
    ("vllm-0.9.2-int-dp0.json", "vllm-0.9", Hashes::Int, 11),
    ("vllm-0.11.0-int-dp0.json", "vllm-0.10.2", Hashes::Int, 14),
    ("vllm-0.14.1-int-dp0.json", "vllm-0.14", Hashes::Int, 14),
    ("vllm-0.20.2-int-dp0.json", "vllm-0.20", Hashes::Int, 15),
    ("vllm-0.24.0-int-dp0.json", "vllm-0.24", Hashes::Int, 12),
    ("vllm-0.30.0-int-dp0.json", "vllm-0.26", Hashes::Int, 9),
    ("vllm-0.30.0-int-dp3.json", "vllm-0.26", Hashes::Int, 9),
    ("vllm-0.30.0-bytes-dp0.json", "vllm-0.26", Hashes::Bytes, 9),
    ("llama-int.events.json", "vllm-0.26", Hashes::Int, 15),
    ("gemma3-hybrid-int.events.json", "vllm-0.26", Hashes::Int, 15),
    ("sglang-0.5.4-int-dp0.json", "sglang-0.4.8", Hashes::Int, 11),
    ("sglang-0.5.9-int-dp0.json", "sglang-0.5.9", Hashes::Int, 11),
    ("sglang-0.5.19-int-dp0.json", "sglang-0.5.18", Hashes::Int, 11),
    ("sglang-0.5.23-int-dp0.json", "sglang-0.5.22", Hashes::Int, 7),
];

fn captures() -> impl Iterator<Item = (String, Value)> {
    folder("publisher-golden").into_iter().chain(folder("engine-vllm-0.32.0"))
}

fn layout(name: &str) -> &'static Layout {
    Layout::named(name).unwrap()
}

/// Whether our events hold all that this one says, so that writing it again gives the same bytes.
fn is_modelled(event: &Map<String, Value>) -> bool {
    let known = |key: &str| {
        key == "type" || LAYOUTS.iter().any(|l| l.stored.iter().any(|c| c.name() == key))
    };
    let bigrams = event.get("token_ids").and_then(|t| t[0].as_array()).is_some();
    event.iter().all(|(key, value)| known(key) || value.is_null())
        && !bigrams
        && event.get("lora_id").is_none_or(Value::is_null)
        && !Value::Object(event.clone()).to_string().contains("a1b2c3d4e5f60718")
}

/// Without what a digest of 32 bytes says before its last 8: ours are made up there.
fn digests_apart(payload: &[u8]) -> Vec<u8> {
    let mut bytes = payload.to_vec();
    let starts: Vec<_> =
        (0..bytes.len()).filter(|i| bytes[*i..].starts_with(&[0xc4, 32])).collect();
    for start in starts {
        bytes[start + 2..start + 26].fill(0);
    }
    bytes
}

#[test]
fn we_write_the_bytes_that_engines_write() {
    let mut known = CAPTURES.to_vec();
    for (file, golden) in captures() {
        let at = known.iter().position(|(name, ..)| *name == file);
        let (_, name, hashes, at_least) = known.remove(at.expect(&file));
        // vLLM's harness chose a window of 128, gemma3 has one of 96.
        let window = if file.starts_with("gemma3") { 96 } else { 128 };
        let encoding = Encoding::new(layout(name), hashes, window).unwrap();
        let mut same = 0;
        for message in messages(&golden) {
            let events = message["decoded"][1].as_array().unwrap();
            if !events.iter().all(|event| is_modelled(&by_name(&golden, event))) {
                continue;
            }
            let payload = &frames(message)[2];
            let written = encoding.encode(&decode_batch(payload).unwrap());
            match hashes {
                Hashes::Int => assert!(&written == payload, "{file} seq {}", message["seq"]),
                Hashes::Bytes => {
                    assert_eq!(digests_apart(&written), digests_apart(payload), "{file}");
                }
            }
            same += 1;
        }
        assert!(same >= at_least, "{file}: only {same} of {}", messages(&golden).len());
    }
    assert!(known.is_empty(), "captures that are not there: {known:?}");
}

#[test]
fn replays_have_the_layout_of_their_version() {
    for (file, golden) in captures() {
        let (_, name, ..) = CAPTURES.iter().find(|(name, ..)| *name == file).expect(&file);
        for (asked, replies) in golden["replay"].as_object().unwrap() {
            let mut numbers = vec![];
            for reply in replies.as_array().unwrap().iter().filter(|_| !asked.starts_with("req")) {
                let frames: Vec<Vec<u8>> = frames(&serde_json::json!({ "frames_hex": reply }));
                assert_eq!(frames.len(), if layout(name).replay_topic { 4 } else { 3 }, "{file}");
                match parse_reply(&frames).unwrap() {
                    Reply::Message { seq, .. } => numbers.push(Some(seq)),
                    Reply::End => numbers.push(None),
                }
            }
            let Some((end, numbers)) = numbers.split_last() else { continue };
            assert_eq!(*end, None, "{file} {asked}: the marker is last");
            assert!(numbers.windows(2).all(|w| w[0].map(|n| n + 1) == w[1]), "{file} {asked}");
        }
    }
}

/// What a reader can know of an event that is told in this layout.
fn told(layout: &Layout, mut event: KvEvent) -> KvEvent {
    let group = |group: Option<u32>| group.filter(|_| layout.has_groups());
    match &mut event {
        KvEvent::Stored(stored) => {
            let keys = layout.tells(Column::ExtraKeys);
            let salted = keys || layout.tells(Column::CacheSalt) || layout.tells(Column::Metadata);
            let hash_only = stored.token_ids.is_empty() && stored.block_size == 0;
            stored.group = group(stored.group);
            stored.full_attention |= !layout.tells(Column::Kind);
            stored.opaque &= keys || hash_only;
            if !salted {
                stored.cache_salt.clear();
            }
            if !layout.tells(Column::LoraName) {
                stored.lora_name.clear();
            }
            if !layout.tells(Column::Medium) {
                stored.medium = Default::default();
            }
        }
        KvEvent::Removed(removed) => {
            removed.group = group(removed.group);
            if !layout.removed.contains(&Column::Medium) {
                removed.medium = Default::default();
            }
        }
        KvEvent::Cleared => {}
    }
    event
}

proptest! {
    #[test]
    fn each_layout_is_read_as_it_is_meant(
        events in prop::collection::vec(tests::event(), 0..8),
        dp_rank in any::<Option<u32>>(),
        bytes in any::<bool>(),
    ) {
        for layout in &LAYOUTS {
            let hashes = if bytes && layout.digests { Hashes::Bytes } else { Hashes::Int };
            let encoding = Encoding::new(layout, hashes, 4096).unwrap();
            let events: Vec<_> = events.iter().map(|e| told(layout, e.clone())).collect();
            let batch = Batch { ts: 1.5, dp_rank, events, skipped: 0 };
            prop_assert_eq!(decode_batch(&encoding.encode(&batch)), Ok(batch), "{}", layout.name);
        }
    }

    /// A group without full attention names fewer blocks than its tokens fill, and is known by that where its
    /// kind is not told.
    #[test]
    fn a_sliding_window_is_known_in_every_layout_with_groups(hashes in 0usize..4) {
        let stored = BlockStored {
            block_hashes: vec![homing_core::hash::EngineHash(7); hashes],
            token_ids: vec![1; 8],
            block_size: 2,
            group: Some(0),
            ..BlockStored::default()
        };
        for layout in LAYOUTS.iter().filter(|layout| layout.has_groups()) {
            let encoding = Encoding::new(layout, Hashes::Int, 6).unwrap();
            let batch = Batch { events: vec![KvEvent::Stored(stored.clone())], ..Batch::default() };
            prop_assert_eq!(decode_batch(&encoding.encode(&batch)), Ok(batch), "{}", layout.name);
        }
    }
}

#[test]
fn layouts_have_names_and_limits() {
    let newest = LAYOUTS.iter().rfind(|layout| layout.name.starts_with("vllm")).unwrap();
    assert_eq!(Layout::latest(), newest);
    assert!(LAYOUTS.iter().all(|layout| Layout::named(layout.name) == Some(layout)));
    assert_eq!(Layout::named("vllm-9"), None);
    for layout in &LAYOUTS {
        let bytes = Encoding::new(layout, Hashes::Bytes, 0);
        let numbers_only = layout.name == "vllm-0.9" || layout.name.starts_with("sglang");
        assert_eq!(bytes.is_err(), numbers_only, "{}", layout.name);
    }
}
