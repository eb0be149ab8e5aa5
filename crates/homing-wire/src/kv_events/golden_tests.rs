//! Every frame that real publishers sent, against what an independent msgpack reader made of it.
//!
//! The expectation is built from the goldens' own `decoded` JSON and their list of field names, so it
//! shares no code and no table with the decoder.

use super::*;
use crate::frames::parse_frames;
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, Medium};
use serde_json::{Map, Value};
use std::path::PathBuf;

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/kv-events")
}

pub(super) fn folder(name: &str) -> Vec<(String, Value)> {
    let dir = captures().join(name);
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .filter(|path| !path.to_string_lossy().ends_with(".http.json"))
        .collect();
    files.sort();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    files
        .iter()
        .map(|path| (name(path), serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()))
        .collect()
}

pub(super) fn messages(golden: &Value) -> &Vec<Value> {
    ["live", "frames"].iter().find_map(|key| golden[key].as_array()).unwrap()
}

pub(super) fn frames(message: &Value) -> Vec<Vec<u8>> {
    message["frames_hex"].as_array().unwrap().iter().map(|f| unhex(f.as_str().unwrap())).collect()
}

pub(super) fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn hash(value: &Value) -> EngineHash {
    if let Some(n) = value.as_u64() {
        return EngineHash(n);
    }
    if let Some(n) = value.as_i64() {
        return EngineHash(n.cast_unsigned());
    }
    let hex = value["__bytes_hex__"].as_str().unwrap();
    EngineHash(u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap())
}

fn hashes(event: &Map<String, Value>) -> Vec<EngineHash> {
    event["block_hashes"].as_array().unwrap().iter().map(hash).collect()
}

fn small(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

/// An event of the array form as a map, by the names that the golden lists.
pub(super) fn by_name(golden: &Value, event: &Value) -> Map<String, Value> {
    let Some(array) = event.as_array() else { return event.as_object().unwrap().clone() };
    let fields = match array[0].as_str().unwrap() {
        "BlockStored" => golden["block_stored_fields"].as_array().unwrap().clone(),
        "BlockRemoved" => golden["block_removed_fields"].as_array().unwrap().clone(),
        _ => vec![],
    };
    let mut map = Map::from_iter([("type".to_owned(), array[0].clone())]);
    for (position, value) in array[1..].iter().enumerate() {
        match (fields.get(position), value) {
            (Some(name), value) => _ = map.insert(name.as_str().unwrap().to_owned(), value.clone()),
            (None, Value::Object(metadata)) => map.extend(metadata.clone()),
            (None, other) => panic!("an element without a name: {other}"),
        }
    }
    map
}

/// What the golden's own text says about an event.
fn expected(event: &Map<String, Value>) -> KvEvent {
    let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let medium = match (text("locality").as_str(), text("medium").as_str()) {
        ("REMOTE", _) => Medium::Unknown,
        (_, "" | "GPU") => Medium::Device,
        (_, "CPU" | "CPU_PINNED") => Medium::Host,
        (_, "STORAGE") => Medium::Disk,
        other => panic!("a medium that no golden has: {other:?}"),
    };
    let group = event.get("group_idx").filter(|g| !g.is_null()).map(small);
    if event["type"] == "AllBlocksCleared" {
        return KvEvent::Cleared;
    }
    if event["type"] == "BlockRemoved" {
        return KvEvent::Removed(BlockRemoved { block_hashes: hashes(event), medium, group });
    }
    let whole = Value::Object(event.clone()).to_string();
    let tokens = event["token_ids"].as_array().unwrap();
    let bigrams = tokens.iter().any(Value::is_array);
    let token_ids: Vec<_> = tokens.iter().map(|t| small(if bigrams { &t[0] } else { t })).collect();
    let block_hashes = hashes(event);
    let block_size = small(&event["block_size"]);
    let by_count = block_hashes.len() * block_size as usize == token_ids.len();
    KvEvent::Stored(BlockStored {
        parent: Some(&event["parent_block_hash"]).filter(|p| !p.is_null()).map(hash),
        cache_salt: if whole.contains("tenant-x") { "tenant-x" } else { "" }.into(),
        opaque: bigrams
            || token_ids.is_empty()
            || whole.contains("a1b2c3d4e5f60718")
            || (!event["lora_id"].is_null() && text("lora_name").is_empty()),
        lora_name: text("lora_name"),
        full_attention: match text("kv_cache_spec_kind").as_str() {
            "" => by_count,
            kind => kind == "full_attention",
        },
        block_hashes,
        token_ids,
        block_size,
        medium,
        group,
    })
}

#[test]
fn every_captured_frame_decodes_to_what_its_text_says() {
    let mut counts = (0, 0);
    for (name, golden) in folder("publisher-golden").iter().chain(&folder("engine-vllm-0.32.0")) {
        for message in messages(golden) {
            let frames = frames(message);
            let parsed = parse_frames(&frames).unwrap();
            assert_eq!(Some(parsed.topic), golden["topic"].as_str());
            assert_eq!(Some(parsed.seq), message["seq"].as_u64());
            let batch = decode_batch(parsed.payload).unwrap();
            let decoded = &message["decoded"];
            // serde_json reads floats to within a unit in the last place.
            assert!((batch.ts - decoded[0].as_f64().unwrap()).abs() < 1e-6);
            assert_eq!(batch.dp_rank, Some(small(&decoded[2])));
            assert_eq!(batch.skipped, 0, "{name} seq {}", parsed.seq);
            let expected: Vec<_> = decoded[1]
                .as_array()
                .unwrap()
                .iter()
                .map(|event| expected(&by_name(golden, event)))
                .collect();
            assert_eq!(batch.events, expected, "{name} seq {}", parsed.seq);
            counts.0 += 1;
            counts.1 += batch.events.len();
        }
    }
    assert!(counts.0 > 200 && counts.1 > 450, "so few goldens: {counts:?}");
}

/// The same captures as they are on disk for other readers: a count of frames, then length and bytes of each.
#[test]
fn the_raw_captures_say_what_the_readable_ones_say() {
    for (dir, files) in [("publisher-golden", 12), ("engine-vllm-0.32.0", 2)] {
        let goldens = folder(dir);
        assert_eq!(goldens.len(), files, "{dir}");
        for (name, golden) in goldens {
            let raw = name.replace(".events.json", "").replace(".json", "") + ".frames.bin";
            let bytes = std::fs::read(captures().join(dir).join(&raw)).expect(&raw);
            let mut rest = bytes.as_slice();
            for message in messages(&golden) {
                let count = *rest.split_off_first().unwrap();
                let frames: Vec<Vec<u8>> = (0..count)
                    .map(|_| {
                        let length = rest.split_off(..4).unwrap().try_into().unwrap();
                        rest.split_off(..u32::from_be_bytes(length) as usize).unwrap().to_vec()
                    })
                    .collect();
                assert_eq!(frames, self::frames(message), "{raw}");
            }
            assert!(rest.is_empty(), "{raw} has more");
        }
    }
}

#[test]
fn what_replays_repeat_decodes_too() {
    let mut payloads = 0;
    for (name, golden) in folder("publisher-golden").iter().chain(&folder("engine-vllm-0.32.0")) {
        for replies in golden["replay"].as_object().unwrap().values() {
            for reply in replies.as_array().unwrap() {
                // The payload is the last frame in every version; an empty one is the end marker.
                let Some(payload) = reply.as_array().and_then(|frames| frames.last()) else {
                    continue;
                };
                match unhex(payload.as_str().unwrap()).as_slice() {
                    [] => {}
                    payload => {
                        assert_eq!(decode_batch(payload).unwrap().skipped, 0, "{name}");
                        payloads += 1;
                    }
                }
            }
        }
    }
    assert!(payloads > 200, "{payloads}");
}

#[test]
fn the_peculiar_events_are_there_at_all() {
    let mut seen = [0; 6];
    for (_, golden) in folder("publisher-golden").iter().chain(&folder("engine-vllm-0.32.0")) {
        for message in messages(golden) {
            for event in decode_batch(&frames(message)[2]).unwrap().events {
                let KvEvent::Stored(stored) = event else { continue };
                seen[0] += usize::from(!stored.cache_salt.is_empty());
                seen[1] += usize::from(!stored.lora_name.is_empty());
                seen[2] += usize::from(stored.opaque);
                seen[3] += usize::from(!stored.full_attention);
                seen[4] += usize::from(stored.medium != Medium::Device);
                seen[5] += usize::from(stored.block_hashes.is_empty());
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 2), "{seen:?}");
}

/// Real payloads for the tests that damage them.
pub(super) fn payloads() -> Vec<Vec<u8>> {
    let all = folder("publisher-golden");
    all.iter()
        .flat_map(|(_, golden)| messages(golden))
        .map(|message| frames(message)[2].clone())
        .collect()
}
