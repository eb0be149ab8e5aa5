//! Answers made per TensorRT-LLM's documented form (`wire-formats.md` 4).

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// An engine's way of speaking: it numbers what it says.
#[derive(Default)]
struct Engine {
    next: u64,
}

impl Engine {
    fn says(&mut self, data: Value) -> Value {
        let id = self.next;
        self.next += 1;
        json!({"event_id": id, "data": data})
    }
}

fn tokens(ids: std::ops::Range<u32>) -> Value {
    let token = |id| json!({"type": "unique_token", "token_id": id, "token_extra_id": 0});
    ids.map(token).collect()
}

fn block(hash: impl Into<Value>, ids: std::ops::Range<u32>) -> Value {
    let hash: Value = hash.into();
    json!({"type": "stored_block", "block_hash": hash, "tokens": tokens(ids), "cache_level": 0,
           "priority": 35})
}

fn stored(parent: Value, blocks: &[Value]) -> Value {
    json!({"type": "stored", "parent_hash": parent, "blocks": blocks})
}

fn removed(hashes: &[i64]) -> Value {
    json!({"type": "removed", "block_hashes": hashes})
}

fn created(levels: &[u64]) -> Value {
    json!({"type": "created", "num_blocks_per_cache_level": levels})
}

fn moved(hash: i64, from: u32, to: u32) -> Value {
    let diff =
        |new: u32, old: u32| json!({"type": "event_diff", "new_value": new, "old_value": old});
    json!({"type": "updated", "block_hash": hash, "cache_level": diff(to, from), "priority": null})
}

/// What `answers` come to, one after the other.
fn read(translator: &mut Translator, events: &[Value]) -> Vec<(u32, Told)> {
    let mut told = Vec::new();
    let body = serde_json::to_vec(events).unwrap();
    translator.read(&body, |rank, what| told.push((rank, what))).unwrap();
    told
}

/// The events of rank 0; nothing else is said.
fn events(translator: &mut Translator, answer: &[Value]) -> Vec<KvEvent> {
    let event = |(rank, told): (u32, Told)| match told {
        Told::Event(event) if rank == 0 => Some(event),
        Told::Ignored => None,
        other => panic!("{rank}: {other:?}"),
    };
    read(translator, answer).into_iter().filter_map(event).collect()
}

fn is_stored(hashes: &[u64], parent: Option<u64>, ids: std::ops::Range<u32>) -> KvEvent {
    KvEvent::Stored(BlockStored {
        block_hashes: hashes.iter().map(|hash| EngineHash(*hash)).collect(),
        parent: parent.map(EngineHash),
        block_size: ids.len() as u32 / hashes.len() as u32,
        token_ids: ids.collect(),
        full_attention: true,
        ..BlockStored::default()
    })
}

fn is_removed(hashes: &[u64], medium: Medium) -> KvEvent {
    let block_hashes = hashes.iter().map(|hash| EngineHash(*hash)).collect();
    KvEvent::Removed(BlockRemoved { block_hashes, medium, group: None })
}

/// A translator that knows that blocks have four tokens, and the engine that told it.
fn begun() -> (Translator, Engine) {
    let (mut translator, mut engine) = (Translator::default(), Engine::default());
    let answer = [
        engine.says(created(&[100, 20])),
        engine.says(stored(Value::Null, &[block(1, 0..4), block(2, 4..8)])),
    ];
    assert_eq!(events(&mut translator, &answer), [is_stored(&[1, 2], None, 0..8)]);
    assert_eq!(translator.block_size(), Some(4));
    (translator, engine)
}

#[test]
fn whole_blocks_are_stored_and_removed() {
    let (mut translator, mut engine) = begun();
    let answer = [
        engine.says(stored(json!(2), &[block(3, 8..12)])),
        engine.says(removed(&[3, 2])),
        engine.says(json!({"type": "flushed"})),
    ];
    let expected = [is_stored(&[3], Some(2), 8..12), is_removed(&[3, 2], Medium::Device)];
    assert_eq!(events(&mut translator, &answer), expected);
    assert_eq!(events(&mut translator, &[]), []);
}

#[test]
fn names_are_numbers_of_either_sign_or_digests() {
    let (mut translator, mut engine) = begun();
    let digest = "00112233445566778899aabbccddeeff";
    let answer = [
        engine.says(stored(Value::Null, &[block(u64::MAX, 0..4), block(-2i64, 4..8)])),
        engine.says(stored(json!(-2), &[block(digest, 8..12)])),
        engine.says(removed(&[-1])),
    ];
    let expected = [
        is_stored(&[u64::MAX, u64::MAX - 1], None, 0..8),
        is_stored(&[0x8899_aabb_ccdd_eeff], Some(u64::MAX - 1), 8..12),
        is_removed(&[u64::MAX], Medium::Device),
    ];
    assert_eq!(events(&mut translator, &answer), expected);
}

#[test]
fn f26_partial_blocks_are_neither_stored_nor_removed() {
    let (mut translator, mut engine) = begun();
    let answer = [
        engine.says(stored(json!(2), &[block(3, 8..12), block(4, 12..14)])),
        engine.says(stored(json!(3), &[block(5, 12..13)])),
        engine.says(removed(&[5])),
        engine.says(removed(&[4, 3])),
        // It is another one by now.
        engine.says(stored(json!(2), &[block(4, 20..24)])),
        engine.says(removed(&[4])),
    ];
    let expected = [
        is_stored(&[3], Some(2), 8..12),
        is_removed(&[3], Medium::Device),
        is_stored(&[4], Some(2), 20..24),
        is_removed(&[4], Medium::Device),
    ];
    assert_eq!(events(&mut translator, &answer), expected);
}

#[test]
fn partial_blocks_that_are_remembered_are_bounded() {
    let mut blocks = Blocks::default();
    for hash in 0..200_000 {
        blocks.add_partial(EngineHash(hash));
    }
    assert!(blocks.is_partial(EngineHash(199_999)) && !blocks.is_partial(EngineHash(0)));
    let space = Space { lora_name: "".into(), cache_salt: "".into() };
    for hash in 0..200_000 {
        blocks.add(EngineHash(hash), None, &[1; 64], &space, Medium::Device);
    }
    assert!(blocks.moved(EngineHash(0), Medium::Host).is_some());
    assert!(blocks.moved(EngineHash(199_999), Medium::Host).is_none());
    assert_eq!(blocks.remove(EngineHash(0)), Medium::Host);
    blocks.add(EngineHash(199_999), None, &[1; 64], &space, Medium::Device);
    assert!(blocks.moved(EngineHash(199_999), Medium::Host).is_some(), "there is room for it now");
}

#[test]
fn lone_blocks_wait_until_the_size_of_a_block_shows() {
    let (mut translator, mut engine) = (Translator::default(), Engine::default());
    let first = [
        engine.says(stored(Value::Null, &[block(1, 0..4)])),
        engine.says(stored(Value::Null, &[block(7, 0..3)])),
        engine.says(removed(&[7])),
    ];
    assert_eq!(events(&mut translator, &first), []);
    assert_eq!(translator.block_size(), None);
    // The first one has a successor.
    let then = [engine.says(stored(json!(1), &[block(2, 4..8)]))];
    let expected = [is_stored(&[1], None, 0..4), is_stored(&[2], Some(1), 4..8)];
    assert_eq!(events(&mut translator, &then), expected);
    // Another rank knows it as well.
    let other = json!({"event_id": 0, "attention_dp_rank": 3, "data": stored(Value::Null, &[block(9, 0..4)])});
    let told = read(&mut translator, &[other]);
    assert_eq!(told, [(3, Told::Event(is_stored(&[9], None, 0..4)))]);
}

#[test]
fn what_waits_is_bounded() {
    let (mut translator, mut engine) = (Translator::default(), Engine::default());
    let lone = |hash: u64, len: u32| stored(Value::Null, &[block(hash, 0..len)]);
    let many: Vec<_> = (0..200).map(|hash| engine.says(lone(1000 + hash, 3))).collect();
    assert_eq!(events(&mut translator, &many), []);
    let long = [engine.says(lone(1, 2000))];
    assert_eq!(events(&mut translator, &long), []);
    let waiting = &translator.ranks[&0].waiting;
    assert!(waiting.len() <= MAX_UNSIZED, "{}", waiting.len());
    let pair = [engine.says(stored(Value::Null, &[block(2, 0..4), block(3, 4..8)]))];
    let told = read(&mut translator, &pair);
    let event = Told::Event(is_stored(&[2, 3], None, 0..8));
    assert!(told.contains(&(0, event)), "{told:?}");
    assert_eq!(translator.block_size(), Some(4));
}

#[test]
fn f24_a_hole_in_the_numbers_of_a_rank_is_a_loss_of_that_rank() {
    let event = |id: u64, rank: u32, hash: u64| {
        let data = stored(Value::Null, &[block(hash, 0..4), block(hash + 1, 4..8)]);
        json!({"event_id": id, "attention_dp_rank": rank, "data": data})
    };
    let is = |hash: u64| Told::Event(is_stored(&[hash, hash + 1], None, 0..8));
    let mut translator = Translator::default();
    // Whoever joins late has lost nothing.
    let told = read(&mut translator, &[event(7, 0, 10), event(0, 1, 20), event(8, 0, 30)]);
    assert_eq!(told, [(0, is(10)), (1, is(20)), (0, is(30))]);
    let told = read(&mut translator, &[event(12, 0, 40), event(1, 1, 50)]);
    assert_eq!(told, [(0, Told::Lost(3)), (0, is(40)), (1, is(50))]);
}

#[test]
fn f21_numbers_that_go_back_are_another_life() {
    let (mut translator, mut engine) = begun();
    engine.next = 1;
    // Its blocks are longer now.
    let answer = [engine.says(stored(Value::Null, &[block(1, 0..8), block(2, 8..16)]))];
    let told = read(&mut translator, &answer);
    let event = Told::Event(is_stored(&[1, 2], None, 0..16));
    assert_eq!(told, [(0, Told::Reborn), (0, event)]);
}

#[test]
fn f29_only_the_largest_window_tells_of_prefixes() {
    let mut id = 0;
    let mut of = |window: u64, data: Value| {
        id += 1;
        json!({"event_id": id, "window_size": window, "data": data})
    };
    let pair = |hash: u64| stored(Value::Null, &[block(hash, 0..4), block(hash + 1, 4..8)]);
    let mut translator = Translator::default();
    let answer = [
        of(512, created(&[10, 0])),
        of(4096, created(&[10, 0])),
        of(512, pair(1)),
        of(4096, pair(1)),
        of(512, removed(&[1])),
        of(4096, removed(&[2])),
    ];
    let expected = [is_stored(&[1, 2], None, 0..8), is_removed(&[2], Medium::Device)];
    assert_eq!(events(&mut translator, &answer), expected);
    // Whoever joined later learns of the largest one as it speaks, and forgets the others'.
    let mut translator = Translator::default();
    let answer = [of(512, pair(1)), of(4096, pair(3)), of(512, pair(5)), of(4096, removed(&[3]))];
    let expected = [
        is_stored(&[1, 2], None, 0..8),
        KvEvent::Cleared,
        is_stored(&[3, 4], None, 0..8),
        is_removed(&[3], Medium::Device),
    ];
    assert_eq!(events(&mut translator, &answer), expected);
}

#[test]
fn blocks_move_between_the_levels_of_the_cache() {
    let (mut translator, mut engine) = begun();
    let host = |event: KvEvent| match event {
        KvEvent::Stored(stored) => KvEvent::Stored(BlockStored { medium: Medium::Host, ..stored }),
        other => other,
    };
    let answer = [
        engine.says(moved(2, 0, 1)),
        engine.says(moved(2, 1, 0)),
        engine.says(moved(1, 0, 0)),
        engine.says(moved(2, 0, 1)),
        engine.says(removed(&[2, 1])),
    ];
    let expected = [
        is_removed(&[2], Medium::Device),
        host(is_stored(&[2], Some(1), 4..8)),
        is_removed(&[2], Medium::Host),
        is_stored(&[2], Some(1), 4..8),
        is_removed(&[2], Medium::Device),
        host(is_stored(&[2], Some(1), 4..8)),
        is_removed(&[1], Medium::Device),
        is_removed(&[2], Medium::Host),
    ];
    assert_eq!(events(&mut translator, &answer), expected);
    // One that nobody knows, and a partial one.
    let answer = [
        engine.says(moved(77, 0, 1)),
        engine.says(moved(77, 1, 0)),
        engine.says(stored(Value::Null, &[block(5, 0..3)])),
        engine.says(moved(5, 0, 1)),
    ];
    let expected = [is_removed(&[77], Medium::Device), is_removed(&[77], Medium::Host)];
    assert_eq!(events(&mut translator, &answer), expected);
}

#[test]
fn an_event_in_several_levels_becomes_several() {
    let (mut translator, mut engine) = begun();
    let mut middle = block(4, 4..8);
    middle["cache_level"] = json!(1);
    let data = stored(Value::Null, &[block(3, 0..4), middle, block(5, 8..12)]);
    let told = events(&mut translator, &[engine.says(data)]);
    let KvEvent::Stored(second) = &told[1] else { panic!("{told:?}") };
    assert_eq!((told.len(), second.medium, second.parent), (3, Medium::Host, Some(EngineHash(3))));
    assert_eq!(told[2], is_stored(&[5], Some(4), 8..12));
}

#[test]
fn what_is_more_than_its_tokens_is_opaque() {
    let (mut translator, mut engine) = begun();
    let mut image = block(4, 4..8);
    image["mm_keys"] = json!([{"type": "mm_key", "hash": "ab", "start_offset": 0}]);
    let mut prompt_table = block(7, 0..4);
    prompt_table["tokens"][1]["token_extra_id"] = json!(9);
    let answer = [
        engine.says(stored(Value::Null, &[block(3, 0..4), image, block(5, 8..12)])),
        engine.says(stored(Value::Null, &[prompt_table])),
    ];
    let told = events(&mut translator, &answer);
    let seen = |event: &KvEvent| match event {
        KvEvent::Stored(stored) => (stored.block_hashes.len(), stored.opaque),
        other => panic!("{other:?}"),
    };
    assert_eq!(told.iter().map(seen).collect::<Vec<_>>(), [(1, false), (2, true), (1, true)]);
}

#[test]
fn f31_adapter_and_salt_are_part_of_a_block() {
    let (mut translator, mut engine) = begun();
    let mut data = stored(Value::Null, &[block(3, 0..4)]);
    data["lora_name"] = json!("a");
    data["cache_salt"] = json!("s");
    let told = events(&mut translator, &[engine.says(data.clone())]);
    let KvEvent::Stored(stored) = &told[0] else { panic!("{told:?}") };
    assert_eq!((stored.lora_name.as_str(), stored.cache_salt.as_str()), ("a", "s"));
    data["lora_name"] = json!("a".repeat(MAX_TEXT + 1));
    let told = read(&mut translator, &[engine.says(data)]);
    assert!(matches!(told[..], [(0, Told::Senseless(_))]), "{told:?}");
}

#[test]
fn one_event_without_sense_is_no_hole_and_spoils_nobody() {
    let (mut translator, mut engine) = begun();
    let mut short = engine.says(stored(json!(2), &[block(5, 8..11), block(6, 11..15)]));
    short["unknown"] = json!([1]);
    let answer = [
        engine.says(json!({"type": "stored", "blocks": 7})),
        engine.says(json!({"no": "type"})),
        engine.says(stored(json!(2), &[block(3, 8..12)])),
    ];
    let told = read(&mut translator, &[short]);
    assert!(matches!(told[..], [(0, Told::Senseless(_)), (0, Told::Ignored)]), "{told:?}");
    let told = read(&mut translator, &answer);
    let event = Told::Event(is_stored(&[3], Some(2), 8..12));
    assert!(matches!(&told[..2], [(0, Told::Senseless(_)), (0, Told::Senseless(_))]), "{told:?}");
    assert_eq!(told[2..], [(0, event)]);
    for bad in ["", "{}", "[1", "<html>", "null"] {
        let error = translator.read(bad.as_bytes(), |_, _| ()).unwrap_err();
        assert!(
            error.to_string().starts_with("the answer of /kv_cache_events is no list"),
            "{error}"
        );
    }
}

#[test]
fn ranks_are_bounded() {
    let mut translator = Translator::default();
    let of = |rank: u32| json!({"event_id": 0, "attention_dp_rank": rank, "data": created(&[1])});
    let all: Vec<_> = (0..=MAX_RANKS as u32).map(of).collect();
    let told = read(&mut translator, &all);
    assert!(matches!(told.last(), Some((1024, Told::Senseless(_)))), "{:?}", told.last());
    assert_eq!(translator.ranks.len(), MAX_RANKS);
}

proptest! {
    #[test]
    fn no_answer_panics(text in "\\PC{0,80}", cut in 0usize..2000, byte: u8) {
        let mut translator = Translator::default();
        let _ = translator.read(text.as_bytes(), |_, _| ());
        let (_, mut engine) = begun();
        let answer = [
            engine.says(stored(Value::Null, &[block(1, 0..4), block(2, 4..8), block(3, 8..9)])),
            engine.says(moved(2, 0, 1)),
            engine.says(removed(&[3, 2, 1])),
        ];
        let mut body = serde_json::to_vec(&answer).unwrap();
        let at = cut % body.len();
        body[at] = byte;
        let _ = translator.read(&body, |_, _| ());
        body.truncate(at);
        let _ = translator.read(&body, |_, _| ());
    }
}
