//! What is read is what was written, and nothing else is ever believed.

use super::super::testing::{Folder, Held, header, held};
use super::super::{Keying, Origin, Secret, Writer};
use super::*;
use homing_core::ids::Role;
use proptest::prelude::*;
use std::io::Cursor;
use xxhash_rust::xxh3::xxh3_64;

/// The bytes of a file with [`Held::sample`] in it.
fn sample() -> Vec<u8> {
    let folder = Folder::new();
    Held::sample(1).write(&folder.snapshot());
    fs::read(folder.snapshot()).unwrap()
}

/// The whole of both passes over bytes in memory.
fn check(bytes: &[u8]) -> Result<Content, Fail> {
    let blocks = Blocks::begin(Cursor::new(bytes), bytes.len() as u64)?;
    verify(blocks).map(|(content, _)| content)
}

/// A file put together by hand: a good header, blocks with right checksums, and a right end.
fn by_hand(blocks: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    by_hand_with(blocks, |_| ())
}

/// The same with other totals.
fn by_hand_with(blocks: &[(u32, u32, Vec<u8>)], edit: fn(&mut Totals)) -> Vec<u8> {
    let mut file = format::header(&header()).to_vec();
    let mut totals = Totals::default();
    for (kind, count, payload) in blocks {
        if let Some(kind) = Kind::from_code(*kind) {
            totals.add(kind, *count as usize);
        }
        file.extend_from_slice(&block(*kind, *count, payload));
    }
    edit(&mut totals);
    let mut end = Vec::new();
    format::put_end(&mut end, totals, xxh3_64(&file));
    file.extend_from_slice(&block(4, 0, &end));
    file
}

fn block(kind: u32, count: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [kind, count, payload.len() as u32] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(payload);
    out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
    out
}

fn damage(bytes: &[u8]) -> Damage {
    match check(bytes) {
        Err(Fail::Damage(damage)) => damage,
        other => panic!("expected damage, got {other:?}"),
    }
}

fn impossible(bytes: &[u8]) -> &'static str {
    match damage(bytes) {
        Damage::Impossible(_, what) => what,
        other => panic!("expected something impossible, got {other:?}"),
    }
}

fn place() -> (u32, u32, Vec<u8>) {
    (2, 1, vec![0, 1, 0, b'm'])
}

fn binding(partition: u32) -> Vec<u8> {
    let mut out = Vec::new();
    format::put_binding(&mut out, &SavedBinding { partition, ..Held::sample(1).bindings[1] });
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn r25_what_was_written_is_read(held in held()) {
        let folder = Folder::new();
        held.write(&folder.snapshot());
        prop_assert_eq!(Held::read(&folder.snapshot()), held);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_snapshot(bytes: Vec<u8>) {
        prop_assert!(check(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_behind_a_good_header_are_no_snapshot(bytes: Vec<u8>) {
        let mut file = format::header(&header()).to_vec();
        file.extend_from_slice(&bytes);
        prop_assert!(check(&file).is_err());
    }

    #[test]
    fn arbitrary_blocks_with_right_checksums_never_panic(
        blocks in prop::collection::vec((0u32..6, 0u32..5, any::<Vec<u8>>()), 0..4)
    ) {
        // The records are as arbitrary as the rest; what passes by chance must have been counted.
        if let Ok(content) = check(&by_hand(&blocks)) {
            let names = content.places.len() + content.lives.len();
            let counts = blocks.iter().map(|(_, count, _)| *count as usize).sum::<usize>();
            prop_assert_eq!(names + content.bindings as usize, counts);
        }
    }
}

#[test]
fn ten_blocks_of_bindings_stream() {
    let folder = Folder::new();
    let mut held = Held::sample(1);
    let some = held.bindings[0];
    held.bindings =
        (0..40_961).map(|n| SavedBinding { key: n, partition: (n % 2) as u32, ..some }).collect();
    let mut writer = Writer::create(&folder.snapshot(), &header()).unwrap();
    for batch in held.bindings.chunks(1000) {
        writer.bindings(batch).unwrap();
    }
    writer.finish(&held.places, &held.lives).unwrap();
    assert_eq!(Held::read(&folder.snapshot()), held);
    let mut reader = Reader::open(&folder.snapshot()).unwrap();
    let mut sizes = Vec::new();
    while let Some(batch) = reader.batch().unwrap() {
        sizes.push(batch.len());
    }
    assert_eq!(sizes, [vec![4096; 10], vec![1]].concat());
}

#[test]
fn names_take_as_many_blocks_as_they_need() {
    let folder = Folder::new();
    let life = |id| Life { id, name: "n".repeat(4096), started: Some(0) };
    let place = |n| Place { pool: format!("{n}"), role: Role::Prefill };
    let held = Held {
        bindings: Vec::new(),
        places: (0..9000).map(place).collect(),
        lives: (0..200).map(life).collect(),
    };
    held.write(&folder.snapshot());
    assert_eq!(Held::read(&folder.snapshot()), held);
}

#[test]
fn blocks_may_come_in_any_order() {
    let mut life = Vec::new();
    assert!(format::put_life(&mut life, &Held::sample(1).lives[1]));
    let file = by_hand(&[(3, 1, life), (1, 1, binding(1)), place(), (1, 1, binding(0)), place()]);
    let content = check(&file).unwrap();
    assert_eq!((content.places.len(), content.lives.len(), content.bindings), (2, 1, 2));
}

#[test]
fn r25_every_truncation_is_noticed() {
    let whole = sample();
    check(&whole).unwrap();
    for length in 0..whole.len() {
        let cut = &whole[..length];
        assert_eq!(damage(cut), Damage::Truncated, "{length} bytes");
        // Also if the file shrinks behind our back, its size read before.
        let blocks = Blocks::begin(Cursor::new(cut), whole.len() as u64);
        assert!(matches!(blocks.and_then(verify).unwrap_err(), Fail::Damage(Damage::Truncated)));
    }
}

#[test]
fn r25_every_other_byte_anywhere_is_noticed() {
    let mut file = sample();
    for at in 0..file.len() {
        let right = file[at];
        for wrong in (0..=u8::MAX).filter(|wrong| *wrong != right) {
            file[at] = wrong;
            damage(&file);
        }
        file[at] = right;
    }
    check(&file).unwrap();
}

#[test]
fn blocks_that_are_gone_doubled_or_swapped_are_noticed() {
    let blocks = [(1, 1, binding(0)), (1, 1, binding(1)), place(), place()];
    let file = by_hand(&blocks);
    check(&file).unwrap();
    let size = HEAD + BINDING + SUM;
    let (first, second) = (HEADER, HEADER + size);
    let gone = [&file[..first], &file[second..]].concat();
    let doubled = [&file[..second], &file[first..]].concat();
    let mut swapped = file.clone();
    swapped[first..second + size].rotate_left(size);
    for other in [gone, doubled, swapped] {
        assert_eq!(damage(&other), Damage::Totals);
    }
}

#[test]
fn totals_that_do_not_fit_are_noticed() {
    let blocks = [(1, 1, binding(0)), place()];
    let edits: [fn(&mut Totals); 4] =
        [|it| it.bindings += 1, |it| it.places = 0, |it| it.lives = u64::MAX, |it| it.blocks -= 1];
    for edit in edits {
        assert_eq!(damage(&by_hand_with(&blocks, edit)), Damage::Totals);
    }
}

#[test]
fn what_follows_the_end_is_noticed() {
    let mut file = sample();
    file.push(0);
    assert_eq!(damage(&file), Damage::Trailing);
    assert_eq!(damage(&[sample(), sample()].concat()), Damage::Trailing);
}

#[test]
fn what_no_writer_writes_is_noticed_though_its_checksums_are_right() {
    let whole = |blocks: &[(u32, u32, Vec<u8>)]| impossible(&by_hand(blocks));
    let counts = "count and length do not fit";
    let record = "a record that no writer writes";
    assert_eq!(whole(&[(0, 1, vec![])]), "an unknown kind");
    assert_eq!(whole(&[(5, 1, vec![])]), "an unknown kind");
    assert_eq!(whole(&[place(), (1, 0, vec![])]), counts);
    assert_eq!(whole(&[place(), (1, 2, binding(0))]), counts);
    assert_eq!(whole(&[place(), (1, u32::MAX, binding(0))]), counts);
    assert_eq!(whole(&[(2, 4097, vec![0; 3 * 4097])]), counts);
    assert_eq!(whole(&[(4, 0, vec![])]), counts);
    assert_eq!(whole(&[(2, 1, vec![0; PAYLOAD_MAX + 1])]), "it is too long");
    assert_eq!(whole(&[(1, 1, binding(0))]), "a binding without a place");
    assert_eq!(whole(&[place(), (1, 1, binding(1))]), "a binding without a place");
    // A role that isn't, a name that is longer than its block, no UTF-8, a byte too many.
    for place in [vec![3, 0, 0], vec![0, 2, 0, b'm'], vec![0, 1, 0, 0xff], vec![0, 0, 0, 0]] {
        assert_eq!(whole(&[(2, 1, place)]), record);
    }
    // An unknown flag; a rank without its flag.
    for (at, byte) in [(46, 5), (46, 0)] {
        let mut odd = Vec::new();
        format::put_binding(&mut odd, &Held::sample(1).bindings[2]);
        odd[at] = byte;
        assert_eq!(whole(&[place(), place(), (1, 1, odd)]), record);
    }
    let life = [&[0; 4][..], &[1], &[0; 8], &[0, 0]].concat();
    assert_eq!(whole(&[(3, 2, [life.clone(), life.clone()].concat())]), "two lives with one id");
    let mut odd = life;
    odd[4] = 2;
    assert_eq!(whole(&[(3, 1, odd)]), record);
}

#[test]
fn a_claimed_length_is_not_allocated() {
    // The claim is larger than a block may be, or than what is there: refused before it is allocated.
    for (length, expected) in [
        (u32::MAX, Damage::Impossible(HEADER as u64, "it is too long")),
        (PAYLOAD_MAX as u32, Damage::Truncated),
    ] {
        let mut file = format::header(&header()).to_vec();
        for word in [1, u32::MAX, length] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        let size = file.len() as u64;
        let mut blocks = Blocks::begin(Cursor::new(&file), size).unwrap();
        assert!(matches!(blocks.next(), Err(Fail::Damage(damage)) if damage == expected));
        assert!(blocks.bytes.capacity() <= 2 * HEADER);
    }
    // The same for a header's length.
    for length in [0, 23, 4097, u32::MAX] {
        let mut file = format::header(&header());
        file[12..16].copy_from_slice(&u32::to_le_bytes(length));
        assert_eq!(damage(&file), Damage::Header);
    }
}

#[test]
fn a_newer_file_is_newer_and_not_damaged() {
    // A header of another length and content, as the format promises it: nothing else is known of it.
    let mut newer = vec![0x77; 200];
    newer[..8].copy_from_slice(&format::MAGIC);
    newer[8..12].copy_from_slice(&9u32.to_le_bytes());
    newer[12..16].copy_from_slice(&200u32.to_le_bytes());
    let sum = xxh3_64(&newer[..192]);
    newer[192..].copy_from_slice(&sum.to_le_bytes());
    newer.extend_from_slice(b"whatever it holds");
    assert!(matches!(check(&newer), Err(Fail::Newer(9))));
    let folder = Folder::new();
    fs::write(folder.snapshot(), &newer).unwrap();
    for problem in [
        Reader::open(&folder.snapshot()).unwrap_err(),
        read_header(&folder.snapshot()).unwrap_err(),
    ] {
        assert!(matches!(problem, Problem::Newer { found: 9, .. }));
        assert!(problem.to_string().ends_with("has format 9, this version reads up to 1"));
    }
    newer[100] ^= 1;
    assert_eq!(damage(&newer), Damage::Header);
}

#[test]
fn r25_the_kinds_of_problem_are_told_apart() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let problem = || Reader::open(&path).unwrap_err();
    assert!(matches!(problem(), Problem::Absent(_)));
    fs::write(&path, b"").unwrap();
    assert!(matches!(problem(), Problem::Damaged { damage: Damage::Truncated, .. }));
    fs::write(&path, b"[affinity]\n").unwrap();
    assert!(matches!(problem(), Problem::Damaged { damage: Damage::Foreign, .. }));
    assert_eq!(
        problem().to_string(),
        format!("the snapshot {} is damaged: it does not begin like a snapshot", path.display())
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(problem(), Problem::Io { doing: "open", .. }));
    assert!(problem().to_string().ends_with("state.snap: not a regular file"));
}

#[test]
fn a_file_that_changes_after_it_was_verified_is_noticed() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let mut held = Held::sample(1);
    held.bindings = vec![held.bindings[0]; 2 * 4096];
    held.write(&path);
    let mut reader = Reader::open(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = HEADER + HEAD + 4096 * BINDING + SUM + HEAD;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(reader.batch().unwrap().map(<[_]>::len), Some(4096));
    let problem = reader.batch().unwrap_err();
    assert!(matches!(problem, Problem::Damaged { damage: Damage::Checksum(_), .. }));
    // Or into another whole file, whose bindings name a place that this reader doesn't know.
    let many = |partition| (1, 4096, binding(partition).repeat(4096));
    fs::write(&path, by_hand(&[place(), many(0), many(0)])).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    fs::write(&path, by_hand(&[place(), many(0), many(1)])).unwrap();
    assert_eq!(reader.batch().unwrap().map(<[_]>::len), Some(4096));
    let problem = reader.batch().unwrap_err();
    assert!(matches!(problem, Problem::Damaged { damage: Damage::Impossible(_, NO_PLACE), .. }));
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_read_to_its_end() {
    let folder = Folder::new();
    let path = folder.snapshot();
    Held::sample(1).write(&path);
    let mut reader = Reader::open(&path).unwrap();
    Held::sample(2).write(&path);
    assert_eq!(reader.batch().unwrap(), Some(&Held::sample(1).bindings[..]));
    assert_eq!(reader.batch().unwrap(), None);
}

#[test]
fn the_header_says_whose_keys_they_are_and_shows_no_secret() {
    let folder = Folder::new();
    let path = folder.snapshot();
    let (ours, other) = (Secret::new([0x5a; 32]), Secret::new([0x5b; 32]));
    for (origin, kept) in [
        (Origin::Fresh, true),
        (Origin::Snapshot { exposed: false }, true),
        (Origin::KeyFile { exposed: false }, false),
    ] {
        let header = Header::new(42, &ours, origin);
        Writer::create(&path, &header).unwrap().finish(&[], &[]).unwrap();
        let read = read_header(&path).unwrap();
        assert_eq!(read.created, 42);
        assert_eq!(matches!(read.keying, Keying::Own(_)), kept);
        assert!(read.is_keyed_by(&ours) && !read.is_keyed_by(&other));
        let holds = fs::read(&path).unwrap().windows(32).any(|part| part == [0x5a; 32]);
        assert_eq!(holds, kept, "{origin:?}");
        let reader = Reader::open(&path).unwrap();
        let writer = Writer::create(&path, &header).unwrap();
        let shown = format!("{read:?} {reader:?} {origin:?} {writer:?}");
        assert!(shown.contains("(..)"));
        assert!(!shown.contains("90, 90") && !shown.contains("5a5a"), "{shown}");
    }
}
