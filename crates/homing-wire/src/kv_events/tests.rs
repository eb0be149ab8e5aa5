//! Batches made by hand, byte by byte, for what no golden has; and damage of every kind.

use super::*;
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, Medium};
use proptest::collection::vec;
use proptest::prelude::*;
use rmp::encode as w;

/// A batch with one event, whose bytes `event` writes.
fn batch_of(event: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    w::write_array_len(&mut out, 2).unwrap();
    w::write_f64(&mut out, 1.5).unwrap();
    w::write_array_len(&mut out, 1).unwrap();
    event(&mut out);
    out
}

fn list(out: &mut Vec<u8>, numbers: &[u64]) {
    w::write_array_len(out, u32::try_from(numbers.len()).unwrap()).unwrap();
    for n in numbers {
        w::write_uint(out, *n).unwrap();
    }
}

/// `["BlockStored", [7], nil, [1, 2], 2, nil, "GPU"` and what `tail` adds, `extra` elements.
fn stored_array(extra: u32, tail: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    batch_of(|out| {
        w::write_array_len(out, 7 + extra).unwrap();
        w::write_str(out, "BlockStored").unwrap();
        list(out, &[7]);
        w::write_nil(out).unwrap();
        list(out, &[1, 2]);
        w::write_uint(out, 2).unwrap();
        w::write_nil(out).unwrap();
        w::write_str(out, "GPU").unwrap();
        tail(out);
    })
}

/// A map `{"type": "BlockStored", "block_hashes": [7], "token_ids": .., "block_size": 2, ..}`.
fn stored_map(tokens: &[u64], extra: u32, tail: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    batch_of(|out| {
        w::write_map_len(out, 4 + extra).unwrap();
        // The kind may come last: nothing orders the keys of a map.
        w::write_str(out, "block_hashes").unwrap();
        list(out, &[7]);
        w::write_str(out, "token_ids").unwrap();
        list(out, tokens);
        w::write_str(out, "block_size").unwrap();
        w::write_uint(out, 2).unwrap();
        tail(out);
        w::write_str(out, "type").unwrap();
        w::write_str(out, "BlockStored").unwrap();
    })
}

fn plain() -> BlockStored {
    BlockStored {
        block_hashes: vec![EngineHash(7)],
        token_ids: vec![1, 2],
        block_size: 2,
        full_attention: true,
        ..BlockStored::default()
    }
}

fn only_stored(payload: &[u8]) -> BlockStored {
    let batch = decode_batch(payload).unwrap();
    match batch.events.as_slice() {
        [KvEvent::Stored(stored)] => stored.clone(),
        other => panic!("expected one store, got {other:?} and {} skipped", batch.skipped),
    }
}

fn why_skipped(payload: &[u8]) -> &'static str {
    let mut why = None;
    let batch = decode_batch_noting(payload, |reason| why = Some(reason)).unwrap();
    assert!(batch.events.is_empty() && batch.skipped == 1, "{batch:?}");
    why.unwrap()
}

#[test]
fn both_forms_say_the_same() {
    assert_eq!(only_stored(&stored_array(0, |_| ())), plain());
    assert_eq!(only_stored(&stored_map(&[1, 2], 0, |_| ())), plain());
}

#[test]
fn unknown_keys_and_keys_that_are_no_text_are_passed_over() {
    let payload = stored_map(&[1, 2], 2, |out| {
        w::write_str(out, "from_the_future").unwrap();
        w::write_map_len(out, 1).unwrap();
        list(out, &[1, 2, 3]);
        w::write_bool(out, true).unwrap();
        list(out, &[1]);
        w::write_nil(out).unwrap();
    });
    assert_eq!(only_stored(&payload), plain());
}

#[test]
fn the_tail_of_the_array_form_is_told_by_type() {
    let group_kind_window = stored_array(6, |out| {
        w::write_str(out, "adapter").unwrap();
        w::write_nil(out).unwrap();
        w::write_uint(out, 3).unwrap();
        w::write_str(out, "sliding_window").unwrap();
        w::write_uint(out, 96).unwrap();
        w::write_map_len(out, 0).unwrap();
    });
    let expected = BlockStored {
        lora_name: "adapter".into(),
        group: Some(3),
        full_attention: false,
        ..plain()
    };
    assert_eq!(only_stored(&group_kind_window), expected);
    let images = stored_array(3, |out| {
        w::write_nil(out).unwrap();
        w::write_nil(out).unwrap();
        w::write_array_len(out, 1).unwrap();
        w::write_map_len(out, 0).unwrap();
    });
    assert_eq!(only_stored(&images), BlockStored { opaque: true, ..plain() });
    let no_images = stored_array(3, |out| {
        w::write_nil(out).unwrap();
        w::write_nil(out).unwrap();
        w::write_array_len(out, 1).unwrap();
        w::write_nil(out).unwrap();
    });
    assert_eq!(only_stored(&no_images), plain());
}

fn with_extra_keys(parent: bool, name: &str, keys: impl FnOnce(&mut Vec<u8>)) -> BlockStored {
    only_stored(&stored_map(&[1, 2], 3, |out| {
        // Before the name on purpose.
        w::write_str(out, "extra_keys").unwrap();
        w::write_array_len(out, 1).unwrap();
        keys(out);
        w::write_str(out, "lora_name").unwrap();
        w::write_str(out, name).unwrap();
        w::write_str(out, "parent_block_hash").unwrap();
        if parent {
            w::write_sint(out, -1).unwrap();
        } else {
            w::write_nil(out).unwrap();
        }
    }))
}

fn texts(out: &mut Vec<u8>, texts: &[&str]) {
    w::write_array_len(out, u32::try_from(texts.len()).unwrap()).unwrap();
    for text in texts {
        w::write_str(out, text).unwrap();
    }
}

#[test]
fn a_bare_text_is_the_salt_unless_it_is_the_adapter() {
    let named = with_extra_keys(false, "a", |out| texts(out, &["a"]));
    assert_eq!((named.cache_salt.as_str(), named.opaque), ("", false));
    let salted = with_extra_keys(false, "a", |out| texts(out, &["a", "salt"]));
    assert_eq!((salted.cache_salt.as_str(), salted.opaque), ("salt", false));
    // A salt that spells like the adapter is still a salt.
    let same = with_extra_keys(false, "a", |out| texts(out, &["a", "a"]));
    assert_eq!((same.cache_salt.as_str(), same.opaque), ("a", false));
    let two = with_extra_keys(false, "", |out| texts(out, &["x", "y"]));
    assert!(two.opaque);
}

#[test]
fn in_a_later_block_a_bare_text_is_no_salt() {
    let later = with_extra_keys(true, "", |out| texts(out, &["x"]));
    assert_eq!(later.parent, Some(EngineHash(u64::MAX)));
    assert_eq!((later.cache_salt.as_str(), later.opaque), ("", true));
}

#[test]
fn whatever_else_is_hashed_makes_a_block_opaque() {
    assert!(with_extra_keys(false, "", |out| list(out, &[5])).opaque);
    assert!(with_extra_keys(false, "", |out| w::write_map_len(out, 0).map(drop).unwrap()).opaque);
    let digest = |out: &mut Vec<u8>| {
        w::write_array_len(out, 1).unwrap();
        w::write_bin(out, &[1; 16]).unwrap();
    };
    assert!(with_extra_keys(false, "", digest).opaque);
    assert!(!with_extra_keys(false, "", |out| w::write_nil(out).unwrap()).opaque);
    let lookahead = stored_map(&[1, 2], 1, |out| {
        w::write_str(out, "lookahead_token_ids").unwrap();
        w::write_array_len(out, 1).unwrap();
        list(out, &[9]);
    });
    assert!(only_stored(&lookahead).opaque);
    let number = stored_map(&[1, 2], 1, |out| {
        w::write_str(out, "lora_id").unwrap();
        w::write_uint(out, 4).unwrap();
    });
    assert!(only_stored(&number).opaque, "an adapter known only by number");
}

#[test]
fn media_that_we_do_not_know_are_never_the_gpu() {
    for (name, medium) in [
        ("", Medium::Device),
        ("gpu", Medium::Device),
        ("CPU_TIER1", Medium::Host),
        ("NVME", Medium::Disk),
        ("OBJ", Medium::Shared),
        ("GPU2", Medium::Unknown),
        ("FLOPPY", Medium::Unknown),
    ] {
        let payload = stored_map(&[1, 2], 1, |out| {
            w::write_str(out, "medium").unwrap();
            w::write_str(out, name).unwrap();
        });
        assert_eq!(only_stored(&payload).medium, medium, "{name}");
    }
    let remote = batch_of(|out| {
        w::write_map_len(out, 3).unwrap();
        texts_pair(out, "type", "BlockRemoved");
        texts_pair(out, "locality", "REMOTE");
        w::write_str(out, "block_hashes").unwrap();
        list(out, &[1]);
    });
    let expected = BlockRemoved {
        block_hashes: vec![EngineHash(1)],
        medium: Medium::Unknown,
        ..BlockRemoved::default()
    };
    assert_eq!(decode_batch(&remote).unwrap().events, [KvEvent::Removed(expected)]);
}

fn texts_pair(out: &mut Vec<u8>, key: &str, value: &str) {
    w::write_str(out, key).unwrap();
    w::write_str(out, value).unwrap();
}

#[test]
fn an_event_that_contradicts_itself_is_skipped_alone() {
    assert!(why_skipped(&stored_map(&[1, 2, 3], 0, |_| ())).contains("block_size"));
    assert!(why_skipped(&stored_map(&[1], 0, |_| ())).contains("block_size"));
    assert!(why_skipped(&stored_map(&[1, 1 << 32], 0, |_| ())).contains("32 bits"));
    assert!(why_skipped(&batch_of(|out| texts(out, &["Ignored", "x"]))).contains("unknown kind"));
    assert!(why_skipped(&batch_of(|out| list(out, &[]))).contains("neither"));
    assert!(why_skipped(&batch_of(|out| texts(out, &["BlockRemoved"]))).contains("block_hashes"));
    // The one after it still counts.
    let mut payload = Vec::new();
    w::write_array_len(&mut payload, 4).unwrap();
    w::write_uint(&mut payload, 3).unwrap();
    w::write_array_len(&mut payload, 2).unwrap();
    texts(&mut payload, &["BlockStored", "nonsense"]);
    texts(&mut payload, &["AllBlocksCleared"]);
    w::write_uint(&mut payload, 5).unwrap();
    list(&mut payload, &[1, 2, 3]);
    let expected = Batch { ts: 3.0, dp_rank: Some(5), events: vec![KvEvent::Cleared], skipped: 1 };
    assert_eq!(decode_batch(&payload), Ok(expected));
}

#[test]
fn groups_that_keep_only_some_blocks_are_not_judged_by_count() {
    let with_kind = |kind: &'static str| {
        stored_map(&[1, 2, 3, 4], 1, move |out| texts_pair(out, "kv_cache_spec_kind", kind))
    };
    assert!(!only_stored(&with_kind("mamba")).full_attention);
    assert!(why_skipped(&with_kind("mla_attention")).contains("block_size"));
    // vLLM 0.20 and 0.21 name the group and not its kind.
    let with_group = |tokens: &[u64]| {
        stored_map(tokens, 1, |out| {
            w::write_str(out, "group_idx").unwrap();
            w::write_uint(out, 1).unwrap();
        })
    };
    assert!(!only_stored(&with_group(&[1, 2, 3, 4])).full_attention);
    assert!(only_stored(&with_group(&[1, 2])).full_attention);
    assert!(why_skipped(&with_group(&[1])).contains("block_size"));
}

#[test]
fn broken_msgpack_fails_the_batch() {
    let good = stored_map(&[1, 2], 0, |_| ());
    for cut in 0..good.len() {
        let error = decode_batch(&good[..cut]).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. }), "cut at {cut}: {error}");
    }
    let mut long = good.clone();
    long.push(0);
    let at = good.len();
    assert_eq!(decode_batch(&long), Err(DecodeError::Trailing { at, count: 1 }));
    assert_eq!(decode_batch(&[0xc1]), Err(DecodeError::NotMsgpack { at: 0 }));
    for shape in [&[0xc0][..], &[0x91, 0x00], &[0x80], &[0x92, 0xc0, 0x90], &[0x92, 0x00, 0x80]] {
        assert!(matches!(decode_batch(shape), Err(DecodeError::NotABatch(_))), "{shape:?}");
    }
}

#[test]
fn claims_and_nesting_cost_nothing() {
    // An array of 2^32 - 1 events in five bytes.
    let claim = [0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert!(matches!(decode_batch(&claim), Err(DecodeError::Truncated { .. })));
    // A million lists, one in the other.
    let deep = batch_of(|out| {
        out.extend(std::iter::repeat_n(0x91, 1_000_000));
        out.push(0xc0);
    });
    assert_eq!(decode_batch(&deep).unwrap().skipped, 1);
}

fn hashes(max: usize) -> impl Strategy<Value = Vec<EngineHash>> {
    vec(any::<u64>().prop_map(EngineHash), 1..max)
}

fn medium() -> impl Strategy<Value = Medium> {
    prop_oneof![
        Just(Medium::Device),
        Just(Medium::Host),
        Just(Medium::Disk),
        Just(Medium::Shared),
        Just(Medium::Unknown)
    ]
}

/// Stores that vLLM's form can say: a salt only where a sequence begins.
fn stored() -> impl Strategy<Value = BlockStored> {
    let identity = ("[a-z]{0,40}", "\\PC{0,40}", any::<bool>(), any::<bool>());
    let place = (medium(), proptest::option::of(0u32..300), any::<bool>());
    (hashes(20), any::<Option<u64>>(), 1u32..40, identity, place, any::<u32>()).prop_map(
        |(block_hashes, parent, block_size, identity, (medium, group, full_attention), token)| {
            let (lora_name, salt, opaque, hash_only) = identity;
            let count = if hash_only { 0 } else { block_hashes.len() as u32 * block_size };
            BlockStored {
                token_ids: (0..count).map(|i| token.wrapping_mul(i)).collect(),
                block_size: if hash_only { 0 } else { block_size },
                cache_salt: if parent.is_none() && !hash_only { salt } else { String::new() },
                parent: parent.map(EngineHash),
                block_hashes,
                lora_name,
                opaque: opaque || hash_only,
                medium,
                group,
                full_attention,
            }
        },
    )
}

pub(super) fn event() -> impl Strategy<Value = KvEvent> {
    let removed = (hashes(40), medium(), proptest::option::of(any::<u32>()))
        .prop_map(|(block_hashes, medium, group)| BlockRemoved { block_hashes, medium, group });
    prop_oneof![
        4 => stored().prop_map(KvEvent::Stored),
        2 => removed.prop_map(KvEvent::Removed),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    #[test]
    fn what_we_write_we_read(
        events in vec(event(), 0..24),
        ts in 0.0..4e9f64,
        dp_rank in any::<Option<u32>>(),
    ) {
        let batch = Batch { ts, dp_rank, events, skipped: 0 };
        prop_assert_eq!(decode_batch(&encode_batch(&batch)), Ok(batch));
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..400)) {
        drop(decode_batch(&bytes));
        // Behind a plausible head the decoder gets further.
        drop(decode_batch(&[&[0x92, 0x00, 0x91, 0x8f][..], &bytes].concat()));
        drop(decode_batch(&[&stored_array(0, |_| ())[..12], &bytes].concat()));
    }

    #[test]
    fn damaged_batches_never_panic(
        which in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let payloads = PAYLOADS.with(|payloads| payloads.clone());
        let mut bytes = which.get(&payloads).clone();
        for (place, byte) in &damage {
            let at = place.index(bytes.len());
            bytes[at] = *byte;
        }
        drop(decode_batch(&bytes));
    }
}

thread_local! {
    static PAYLOADS: std::rc::Rc<Vec<Vec<u8>>> = std::rc::Rc::new(golden_tests::payloads());
}
