//! The plain index, event by event: it is the oracle of the fast one, so each case is obvious.

use super::*;
use crate::index::event::Medium;
use proptest::prelude::*;
use std::collections::BTreeMap;

const W: WorkerId = WorkerId(1);
const R: DpRank = DpRank(0);

fn stored(parent: Option<u64>, blocks: &[(u64, [u32; 2])]) -> KvEvent {
    KvEvent::Stored(BlockStored {
        block_hashes: blocks.iter().map(|(h, _)| EngineHash(*h)).collect(),
        parent: parent.map(EngineHash),
        token_ids: blocks.iter().flat_map(|(_, t)| *t).collect(),
        block_size: 2,
        full_attention: true,
        ..Default::default()
    })
}

fn removed(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed(BlockRemoved {
        block_hashes: hashes.iter().map(|h| EngineHash(*h)).collect(),
        ..Default::default()
    })
}

fn matched(index: &NaiveIndex, tokens: &[u32]) -> u32 {
    let found = index.overlaps(&Prompt::from_tokens(tokens, 2, HashSpace::default()));
    found.iter().map(|o| o.blocks).max().unwrap_or(0)
}

#[test]
fn a_prefix_matches_as_far_as_it_is_stored_and_never_its_last_token() {
    let mut index = NaiveIndex::default();
    assert_eq!(index.apply(W, R, &stored(None, &[(1, [10, 11]), (2, [12, 13])])), Applied::Yes);
    index.check();
    assert_eq!(index.block_size(), Some(2));
    assert_eq!(matched(&index, &[10, 11, 12, 13, 14]), 2);
    assert_eq!(matched(&index, &[10, 11, 12, 13]), 1);
    assert_eq!(matched(&index, &[10, 11, 99, 13, 14]), 1);
    assert_eq!(matched(&index, &[9, 11, 12, 13, 14]), 0);
    index.forget(W);
    assert_eq!((index.blocks(W), index.block_size()), (0, None));
}

#[test]
fn an_orphan_gets_its_place_when_its_parent_appears() {
    let mut index = NaiveIndex::default();
    index.apply(W, R, &stored(Some(2), &[(3, [3, 3]), (4, [4, 4])]));
    index.check();
    assert_eq!(matched(&index, &[3, 3, 4, 4, 0]), 0, "no position is invented");
    index.apply(W, R, &stored(Some(1), &[(2, [2, 2])]));
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    index.check();
    assert_eq!(matched(&index, &[1, 1, 2, 2, 3, 3, 4, 4, 0]), 4);
    index.apply(W, R, &removed(&[2]));
    assert_eq!(matched(&index, &[1, 1, 2, 2, 3, 3, 4, 4, 0]), 1, "a hole ends the match");
    index.apply(W, R, &stored(Some(1), &[(2, [2, 2])]));
    assert_eq!(matched(&index, &[1, 1, 2, 2, 3, 3, 4, 4, 0]), 4, "and is mended");
}

#[test]
fn copies_are_counted() {
    let mut index = NaiveIndex::default();
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    index.apply(W, R, &removed(&[1]));
    assert_eq!(matched(&index, &[1, 1, 0]), 1);
    index.apply(W, R, &removed(&[1]));
    assert_eq!(matched(&index, &[1, 1, 0]), 0);
    index.apply(W, R, &removed(&[1]));
    index.check();
}

#[test]
fn a_salt_is_told_once_and_holds_for_the_whole_sequence() {
    let salted = |parent, salt: &str, blocks: &[(u64, [u32; 2])]| {
        let KvEvent::Stored(event) = stored(parent, blocks) else { unreachable!() };
        KvEvent::Stored(BlockStored { cache_salt: salt.into(), ..event })
    };
    let matched = |index: &NaiveIndex, salt: &str| {
        let space = HashSpace::new("", salt);
        let found = index.overlaps(&Prompt::from_tokens(&[1, 1, 2, 2, 3, 3, 0], 2, space));
        found.first().map_or(0, |o| o.blocks)
    };
    let (first, then) = ([(1, [1, 1])], [(2, [2, 2]), (3, [3, 3])]);
    let mut index = NaiveIndex::default();
    index.apply(W, R, &salted(None, "tenant", &first));
    index.apply(W, R, &stored(Some(1), &then));
    index.check();
    assert_eq!((matched(&index, "tenant"), matched(&index, "")), (3, 0));
    let mut late = NaiveIndex::default();
    late.apply(W, R, &stored(Some(1), &then));
    late.apply(W, R, &salted(None, "tenant", &first));
    late.check();
    assert_eq!((matched(&late, "tenant"), matched(&late, "")), (3, 0), "orphans inherit it too");
}

#[test]
fn f22_a_feed_of_orphans_fills_no_memory() {
    let mut index = NaiveIndex::default();
    for i in 0..MAX_WAITING as u64 {
        let orphan = stored(Some(1_000_000 + i), &[(i, [7, 7])]);
        assert_eq!(index.apply(W, R, &orphan), Applied::Yes);
    }
    let more = stored(Some(5), &[(999_999, [7, 7])]);
    assert_eq!(index.apply(W, R, &more), Applied::TooMany);
    assert_eq!(index.blocks(W), MAX_WAITING);
    assert_eq!(
        index.apply(W, R, &stored(None, &[(888_888, [1, 1])])),
        Applied::Yes,
        "others go on"
    );
    index.apply(W, R, &removed(&[3]));
    assert_eq!(index.apply(W, R, &more), Applied::Yes, "room was made");
    index.apply(W, R, &stored(Some(777), &[(777, [7, 7])]));
    index.check();
}

#[test]
fn f22_what_orphans_keep_and_what_groups_there_are_is_bounded() {
    let orphan = |i: u64, size: u32| {
        KvEvent::Stored(BlockStored {
            block_hashes: vec![EngineHash(i)],
            parent: Some(EngineHash(1_000_000 + i)),
            token_ids: vec![7; size as usize],
            block_size: size,
            full_attention: true,
            ..Default::default()
        })
    };
    let mut index = NaiveIndex::default();
    for size in [0, MAX_BLOCK_SIZE + 1] {
        assert_eq!(index.apply(W, R, &orphan(0, size)), Applied::CountMismatch);
        assert_eq!(index.block_size(), None, "and it teaches nothing");
    }
    let room = MAX_WAITING_TOKENS as u64 / u64::from(MAX_BLOCK_SIZE);
    for i in 0..room {
        assert_eq!(index.apply(W, R, &orphan(i, MAX_BLOCK_SIZE)), Applied::Yes);
    }
    assert_eq!(index.apply(W, R, &orphan(room, MAX_BLOCK_SIZE)), Applied::TooMany);
    index.check();
    index.apply(W, R, &removed(&[3]));
    assert_eq!(index.apply(W, R, &orphan(room, MAX_BLOCK_SIZE)), Applied::Yes, "room was made");
    // One of them gets its place, and needs its tokens no more.
    let KvEvent::Stored(parent) = orphan(1_000_005, MAX_BLOCK_SIZE) else { unreachable!() };
    let parent = KvEvent::Stored(BlockStored { parent: None, ..parent });
    assert_eq!(index.apply(W, R, &parent), Applied::Yes);
    assert_eq!(index.apply(W, R, &orphan(room + 1, MAX_BLOCK_SIZE)), Applied::Yes);
    assert_eq!(index.apply(W, R, &orphan(room + 2, MAX_BLOCK_SIZE)), Applied::TooMany);
    index.check();

    let group = |g| KvEvent::Stored(BlockStored { group: Some(g), ..BlockStored::default() });
    for g in 0..MAX_GROUPS as u32 {
        assert_eq!(index.apply(W, R, &group(g)), Applied::Ignored);
    }
    assert_eq!(index.apply(W, R, &group(MAX_GROUPS as u32)), Applied::TooMany);
    assert_eq!(index.apply(W, R, &group(5)), Applied::Ignored, "those known stay known");
}

#[test]
fn f23_cleared_means_cleared_and_only_this_rank() {
    let mut index = NaiveIndex::default();
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    index.apply(W, DpRank(1), &stored(None, &[(1, [1, 1])]));
    index.apply(W, R, &KvEvent::Cleared);
    let found = index.overlaps(&Prompt::from_tokens(&[1, 1, 0], 2, HashSpace::default()));
    assert_eq!(
        found.as_slice(),
        [Overlap { worker: W, rank: DpRank(1), blocks: 1, told: 1, host: 0, disk: 0 }]
    );
}

#[test]
fn f27_another_block_size_is_refused() {
    let mut index = NaiveIndex::default();
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    let other = KvEvent::Stored(BlockStored {
        block_hashes: vec![EngineHash(9)],
        token_ids: vec![1; 16],
        block_size: 16,
        full_attention: true,
        ..Default::default()
    });
    let refused = index.apply(WorkerId(2), R, &other);
    assert_eq!(refused, Applied::BlockSizeMismatch { known: 2, got: 16 });
    assert_eq!(index.blocks(WorkerId(2)), 0);
}

#[test]
fn f29_groups_without_full_attention_and_unknown_media_are_left_out() {
    let mut index = NaiveIndex::default();
    let KvEvent::Stored(full) = stored(None, &[(1, [1, 1])]) else { unreachable!() };
    let sliding = BlockStored {
        full_attention: false,
        group: Some(0),
        token_ids: vec![1; 8],
        ..full.clone()
    };
    assert_eq!(index.apply(W, R, &KvEvent::Stored(sliding)), Applied::Ignored);
    let main = BlockStored { group: Some(1), ..full.clone() };
    index.apply(W, R, &KvEvent::Stored(main));
    let other =
        BlockRemoved { block_hashes: vec![EngineHash(1)], group: Some(0), ..Default::default() };
    assert_eq!(index.apply(W, R, &KvEvent::Removed(other)), Applied::Ignored);
    assert_eq!(matched(&index, &[1, 1, 0]), 1, "removal in group 0 doesn't touch group 1");
    let medium = Medium::Unknown;
    let e = BlockStored { medium, block_hashes: vec![EngineHash(7)], ..full.clone() };
    assert_eq!(index.apply(W, R, &KvEvent::Stored(e)), Applied::Ignored);
    let short = BlockStored { token_ids: vec![1], ..full };
    assert_eq!(index.apply(W, R, &KvEvent::Stored(short)), Applied::CountMismatch);
}

/// vLLM 0.20 and 0.21 say no kinds; a short prompt fits the window, and both groups look alike.
#[test]
fn f29_a_group_that_turns_out_to_be_a_sliding_window_takes_back_what_it_stored() {
    let grouped = |group, short: bool, blocks: &[(u64, [u32; 2])]| {
        let KvEvent::Stored(event) = stored(None, blocks) else { unreachable!() };
        let block_hashes = event.block_hashes[usize::from(short)..].to_vec();
        let full_attention = !short;
        KvEvent::Stored(BlockStored { group: Some(group), block_hashes, full_attention, ..event })
    };
    let of = |group, hash| {
        let block_hashes = vec![EngineHash(hash)];
        KvEvent::Removed(BlockRemoved { block_hashes, group: Some(group), ..Default::default() })
    };
    let (first, second) = ([(1, [1, 1])], [(2, [2, 2]), (3, [3, 3])]);
    let mut index = NaiveIndex::default();
    index.apply(W, R, &grouped(0, false, &first));
    index.apply(W, R, &grouped(1, false, &first));
    assert_eq!(index.apply(W, R, &grouped(0, true, &second)), Applied::Ignored);
    index.check();
    assert_eq!(index.blocks(W), 0, "of two copies one was never there: none is believed");
    // From now on it is known, however much it names.
    index.apply(W, R, &grouped(1, false, &second));
    assert_eq!(index.apply(W, R, &grouped(0, false, &first)), Applied::Ignored);
    index.apply(W, R, &grouped(1, false, &first));
    assert_eq!(index.apply(W, R, &of(0, 3)), Applied::Ignored);
    assert_eq!(index.blocks(W), 3);
    for hash in [1, 2, 3] {
        assert_eq!(index.apply(W, R, &of(1, hash)), Applied::Yes);
    }
    assert_eq!(index.blocks(W), 0, "nothing is left behind");
    index.check();
}

fn in_medium(event: KvEvent, medium: Medium) -> KvEvent {
    match event {
        KvEvent::Stored(e) => KvEvent::Stored(BlockStored { medium, ..e }),
        KvEvent::Removed(e) => KvEvent::Removed(BlockRemoved { medium, ..e }),
        KvEvent::Cleared => KvEvent::Cleared,
    }
}

#[test]
fn lower_tiers_extend_a_match_and_are_told_apart() {
    let mut index = NaiveIndex::default();
    let blocks = [(1, [1, 1]), (2, [2, 2]), (3, [3, 3]), (4, [4, 4]), (5, [5, 5])];
    let prompt = Prompt::from_tokens(&[1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0], 2, HashSpace::default());
    let tiers = |index: &NaiveIndex| {
        let found = index.overlaps(&prompt);
        found.first().map_or((0, 0, 0), |o| (o.blocks, o.host, o.disk))
    };
    index.apply(W, R, &stored(None, &blocks));
    // Offloaded blocks are only named (vLLM): what they are, the device's events have told.
    let named = |medium, hashes: &[u64]| {
        let block_hashes = hashes.iter().copied().map(EngineHash).collect();
        let full_attention = true;
        KvEvent::Stored(BlockStored { block_hashes, medium, full_attention, ..Default::default() })
    };
    assert_eq!(index.apply(W, R, &named(Medium::Host, &[2, 3, 99])), Applied::Yes);
    assert_eq!(tiers(&index), (5, 0, 0), "what is near counts as near");
    index.apply(W, R, &removed(&[3, 4, 5]));
    assert_eq!(tiers(&index), (2, 1, 0), "the host has the third one still");
    // Others tell all of it.
    index.apply(W, R, &in_medium(stored(Some(3), &[(4, [4, 4])]), Medium::Disk));
    index.apply(W, R, &in_medium(stored(Some(4), &[(5, [5, 5])]), Medium::Host));
    assert_eq!(tiers(&index), (2, 1, 2), "and behind what is far, nothing is nearer");
    assert_eq!(index.held(W), [2, 3, 1]);
    index.apply(W, R, &in_medium(removed(&[3]), Medium::Disk));
    assert_eq!(tiers(&index), (2, 1, 2), "it was not there");
    index.apply(W, R, &in_medium(removed(&[3]), Medium::Host));
    assert_eq!(tiers(&index), (2, 0, 0), "a hole ends the match in every tier");
    index.check();
    index.apply(W, R, &KvEvent::Cleared);
    assert_eq!((tiers(&index), index.held(W)), ((0, 0, 0), [0; 3]));
}

#[test]
fn a_prediction_counts_until_its_time_and_no_longer() {
    let at = |s| Time::ZERO + std::time::Duration::from_secs(s);
    let mut index = NaiveIndex::default();
    let prompt = Prompt::from_tokens(&[1, 1, 2, 2, 3, 3, 0], 2, HashSpace::default());
    index.predict(W, R, &prompt, 0, at(5));
    assert!(index.overlaps(&prompt).is_empty(), "no event has told a block size");
    index.apply(W, R, &stored(None, &[(1, [1, 1])]));
    index.predict(W, R, &prompt, 1, at(5));
    assert_eq!(matched(&index, &[1, 1, 2, 2, 3, 3, 0]), 3);
    assert_eq!(index.blocks(W), 1, "and is no block that is held");
    index.expire(at(4));
    index.apply(W, R, &stored(Some(1), &[(2, [2, 2])]));
    index.predict(W, R, &prompt, 0, at(9));
    index.expire(at(5));
    assert_eq!(matched(&index, &[1, 1, 2, 2, 3, 3, 0]), 2, "what came true stays");
}

/// The model: per target a multiset of sequences (token vectors); an engine hash *is* its sequence.
#[derive(Default)]
struct Model(BTreeMap<(WorkerId, DpRank), BTreeMap<Vec<u32>, u32>>);

impl Model {
    fn matched(&self, who: (WorkerId, DpRank), tokens: &[u32]) -> u32 {
        let Some(held) = self.0.get(&who) else { return 0 };
        let most = tokens.len().saturating_sub(1) / 2;
        (1..=most).take_while(|n| held.contains_key(&tokens[..n * 2])).count() as u32
    }
}

/// An engine hash that determines the whole sequence, as real ones do.
fn name(seq: &[u32]) -> u64 {
    seq.iter().fold(17, |h, t| {
        let mixed = (h ^ u64::from(*t)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// Store blocks `from..` of a sequence.
    Store(u8, Vec<u8>, usize),
    /// Remove its last block.
    Remove(u8, Vec<u8>),
    Clear(u8),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let seq = || prop::collection::vec(0u8..2, 1..6);
    prop_oneof![
        6 => (0u8..3, seq(), 0usize..3).prop_map(|(w, s, f)| Step::Store(w, s, f)),
        5 => (0u8..3, seq()).prop_map(|(w, s)| Step::Remove(w, s)),
        1 => (0u8..3).prop_map(Step::Clear),
        1 => (0u8..3).prop_map(Step::Forget),
    ]
}

fn tokens(seq: &[u8]) -> Vec<u32> {
    seq.iter().flat_map(|b| [u32::from(*b), 7]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_index_equals_a_multiset_of_sequences(steps in prop::collection::vec(step(), 1..60)) {
        let (mut index, mut model) = (NaiveIndex::default(), Model::default());
        let who = |w: u8| (WorkerId(u32::from(w / 2)), DpRank(u16::from(w % 2)));
        for s in steps {
            match s {
                Step::Store(w, seq, from) => {
                    let t = tokens(&seq);
                    let from = from.min(seq.len() - 1);
                    let blocks: Vec<_> =
                        (from..seq.len()).map(|i| (name(&t[..i * 2 + 2]), [t[i * 2], t[i * 2 + 1]])).collect();
                    let parent = (from > 0).then(|| name(&t[..from * 2]));
                    index.apply(who(w).0, who(w).1, &stored(parent, &blocks));
                    for i in from..seq.len() {
                        *model.0.entry(who(w)).or_default().entry(t[..i * 2 + 2].to_vec()).or_default() += 1;
                    }
                }
                Step::Remove(w, seq) => {
                    let t = tokens(&seq);
                    index.apply(who(w).0, who(w).1, &removed(&[name(&t)]));
                    if let Some(held) = model.0.get_mut(&who(w))
                        && let Some(n) = held.get_mut(&t)
                    {
                        *n -= 1;
                        if *n == 0 {
                            held.remove(&t);
                        }
                    }
                }
                Step::Clear(w) => {
                    index.apply(who(w).0, who(w).1, &KvEvent::Cleared);
                    model.0.remove(&who(w));
                }
                Step::Forget(w) => {
                    index.forget(who(w).0);
                    model.0.retain(|k, _| k.0 != who(w).0);
                }
            }
            index.check();
            for depth in 1..6usize {
                for bits in 0..(1u32 << depth) {
                    let seq: Vec<u8> = (0..depth).map(|i| (bits >> i & 1) as u8).collect();
                    let mut probe = tokens(&seq);
                    probe.push(99);
                    let found = index.overlaps(&Prompt::from_tokens(&probe, 2, HashSpace::default()));
                    for w in 0..3u8 {
                        let (worker, rank) = who(w);
                        let got = found.iter().find(|o| o.worker == worker && o.rank == rank);
                        let want = if index.block_size().is_some() { model.matched(who(w), &probe) } else { 0 };
                        prop_assert_eq!(got.map_or(0, |o| o.blocks), want);
                    }
                }
            }
        }
    }
}
