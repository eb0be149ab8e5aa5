//! What is written is read, also by a neighbouring release; nothing that a peer sends does harm.

use super::*;
use homing_core::affinity::version::Version;
use homing_core::core::Home;
use homing_core::ids::{Role, SessionKey};
use proptest::prelude::*;
use rmp::encode::{write_array_len, write_nil, write_str, write_uint};

fn name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof!["[a-c]", "[a-z0-9:./-]{1,40}", "\\PC{1,20}"].prop_map(|s: String| s.as_str().into())
}

fn publication() -> impl Strategy<Value = Publication> {
    let home = (name(), any::<Option<u16>>(), any::<Option<u64>>())
        .prop_map(|(worker, rank, started)| Home { worker, rank: rank.map(DpRank), started });
    let role = prop_oneof![Just(Role::Aggregated), Just(Role::Prefill), Just(Role::Decode)];
    (name(), role, any::<u128>(), any::<(u64, u32, u64)>(), proptest::option::of(home)).prop_map(
        |(pool, role, key, (sequence, writer, used), home)| Publication {
            pool,
            role,
            key: SessionKey(key),
            version: Version { sequence, writer },
            home,
            used: Time::from_micros(used),
        },
    )
}

fn load() -> impl Strategy<Value = PeerLoad> {
    any::<(u32, u32, u64, u64, u64)>().prop_map(
        |(active_requests, decoding, prefill_tokens, blocks, context)| PeerLoad {
            active_requests,
            decoding,
            prefill_tokens,
            blocks,
            context,
        },
    )
}

fn loads() -> impl Strategy<Value = Loads> {
    let targets = proptest::collection::vec((name(), any::<u16>().prop_map(DpRank), load()), 0..20);
    (any::<bool>(), targets).prop_map(|(whole, targets)| Loads { whole, targets })
}

fn body() -> impl Strategy<Value = Body> {
    let updates = || proptest::collection::vec(publication(), 0..40);
    prop_oneof![
        (updates(), proptest::option::of(loads()))
            .prop_map(|(updates, loads)| Body::Updates { updates, loads }),
        loads().prop_map(Body::Loads),
        Just(Body::Hello),
        any::<(u64, u64)>()
            .prop_map(|(since, cursor)| Body::Fetch { since: Time::from_micros(since), cursor }),
        (any::<Option<u64>>(), updates()).prop_map(|(next, updates)| Body::Chunk { next, updates }),
        Just(Body::Bye),
    ]
}

fn head() -> impl Strategy<Value = Head> {
    (any::<(u32, u64, u64, u64, u64)>(), READS..9).prop_map(
        |((writer, boot, sequence, now, group), reads)| Head {
            writer,
            boot,
            sequence,
            now: Time::from_micros(now),
            group,
            reads,
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(head in head(), body in body()) {
        let message = Message { head, body: Some(body) };
        let bytes = encode(&message);
        prop_assert_eq!(decode(&bytes), Ok(message));
        for end in 0..bytes.len() {
            prop_assert!(decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn what_is_said_to_fit_fits(updates in proptest::collection::vec(publication(), 1..60), bytes in 200usize..3000) {
        let n = updates_that_fit(&updates, bytes);
        prop_assert!(n >= 1 && n <= updates.len());
        let head = Head { writer: u32::MAX, boot: u64::MAX, sequence: u64::MAX, now: Time::from_micros(u64::MAX), group: u64::MAX, reads: u64::MAX };
        let chunk = Body::Chunk { next: Some(u64::MAX), updates: updates[..n].to_vec() };
        let len = encode(&Message { head, body: Some(chunk) }).len();
        prop_assert!(n == 1 || len <= bytes, "{} of {}", len, bytes);
    }

    #[test]
    fn records_come_back(p in publication(), until in any::<Option<u64>>(), group in any::<Option<u64>>(), bound in any::<bool>()) {
        let kind = match (&p.home, bound) {
            (None, _) => RecordKind::Removed,
            (_, true) => RecordKind::Bound,
            (_, false) => RecordKind::Tentative,
        };
        let record = Record { kind, publication: p, until: until.map(Time::from_micros), group };
        let bytes = record.encode();
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
        for end in 0..bytes.len() {
            prop_assert!(Record::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn nothing_that_is_sent_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (decode(&bytes), Record::decode(&bytes));
    }

    /// A byte of a true message that is another one.
    #[test]
    fn what_is_spoiled_does_no_harm(head in head(), body in body(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(&Message { head, body: Some(body) });
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode(&bytes);
    }
}

fn numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|n| _ = write_uint(out, *n).unwrap());
}

/// What version 1 of a later release might say: more at the end of every list, and kinds that are new.
#[test]
fn a_neighbouring_release_is_understood() {
    let mut out = Vec::new();
    write_array_len(&mut out, 15).unwrap();
    numbers(&mut out, &[1, 7, 8, 9, 10, 11, 1]);
    write_array_len(&mut out, 1).unwrap();
    write_str(&mut out, "m").unwrap();
    write_array_len(&mut out, 1).unwrap();
    write_array_len(&mut out, 3).unwrap();
    write_str(&mut out, "w").unwrap();
    write_nil(&mut out).unwrap();
    write_str(&mut out, "new here").unwrap();
    write_array_len(&mut out, 1).unwrap();
    write_array_len(&mut out, 9).unwrap();
    numbers(&mut out, &[0, 0]);
    rmp::encode::write_bin(&mut out, &[3; 16]).unwrap();
    numbers(&mut out, &[20, 7, 0]);
    write_nil(&mut out).unwrap();
    numbers(&mut out, &[30]);
    write_array_len(&mut out, 1).unwrap();
    write_nil(&mut out).unwrap();
    // It reads more than we do, nothing is booked, and more follows.
    numbers(&mut out, &[5, 1]);
    write_array_len(&mut out, 0).unwrap();
    write_array_len(&mut out, 0).unwrap();
    write_str(&mut out, "and here").unwrap();
    let Message { head, body: Some(Body::Updates { updates, loads }) } = decode(&out).unwrap()
    else {
        panic!()
    };
    assert_eq!((head.writer, head.boot, head.sequence, head.group, head.reads), (7, 8, 9, 11, 5));
    assert_eq!(loads, Some(Loads { whole: true, targets: Vec::new() }));
    let [p] = &updates[..] else { panic!("{updates:?}") };
    let home = p.home.as_ref().unwrap();
    assert_eq!((&*p.pool, &*home.worker, home.rank, p.version.sequence), ("m", "w", None, 20));
    let mut out = Vec::new();
    write_array_len(&mut out, 8).unwrap();
    numbers(&mut out, &[1, 7, 8, 9, 10, 11, 99, 5]);
    assert_eq!(decode(&out).unwrap().body, None, "what it is about is not known here");
}

/// Before loads went along with updates messages ended with their bodies; and a router of then reads one of now up to
/// where its own would end.
#[test]
fn an_earlier_release_is_understood_and_understands() {
    let head = Head { writer: 7, boot: 8, sequence: 9, ..Head::default() };
    for (kind, body) in [(3, Body::Hello), (6, Body::Bye)] {
        let mut out = Vec::new();
        write_array_len(&mut out, 7).unwrap();
        numbers(&mut out, &[1, 7, 8, 9, 0, 0, kind]);
        assert_eq!(decode(&out), Ok(Message { head, body: Some(body) }));
    }
    let loads = Loads { whole: true, targets: vec![("w".into(), DpRank(0), PeerLoad::default())] };
    let of = |loads| {
        let body = Some(Body::Updates { updates: Vec::new(), loads });
        encode(&Message { head: Head { reads: READS, ..head }, body })
    };
    let (alone, along) = (of(None), of(Some(loads)));
    // Both are short lists, whose length is in their first byte, and the same from there up to what is read since.
    let same = alone[1..].iter().zip(&along[1..]).take_while(|(a, b)| a == b).count();
    assert_eq!(same + 1, alone.len());
    let mut then = alone[..alone.len() - 1].to_vec();
    then[0] -= 1;
    let body = Some(Body::Updates { updates: Vec::new(), loads: None });
    assert_eq!(decode(&then), Ok(Message { head, body }));
}

/// What a release says that comes before or after this one.
#[test]
fn a_record_may_end_earlier_or_later() {
    let record = |more: &[u64]| {
        let mut out = Vec::new();
        write_array_len(&mut out, 12 + more.len() as u32).unwrap();
        numbers(&mut out, &[1, 1]);
        write_str(&mut out, "m").unwrap();
        numbers(&mut out, &[0]);
        rmp::encode::write_bin(&mut out, &[3; 16]).unwrap();
        numbers(&mut out, &[20, 7]);
        write_str(&mut out, "w").unwrap();
        (0..2).for_each(|_| write_nil(&mut out).unwrap());
        numbers(&mut out, &[30]);
        write_nil(&mut out).unwrap();
        numbers(&mut out, more);
        Record::decode(&out).unwrap().group
    };
    assert_eq!(record(&[]), None);
    assert_eq!(record(&[9]), Some(9));
    assert_eq!(record(&[9, 10]), Some(9));
}

#[test]
fn another_language_is_refused_by_its_name() {
    let mut out = Vec::new();
    write_array_len(&mut out, 2).unwrap();
    numbers(&mut out, &[2, 7]);
    assert_eq!(decode(&out), Err(ReplicaError::Version(2)));
    assert_eq!(Record::decode(&out), Err(ReplicaError::Version(2)));
    assert!(matches!(decode(b"HELLO"), Err(ReplicaError::Foreign(_) | ReplicaError::Bytes(_))));
}

/// The very bytes: routers of different releases must agree on them.
#[test]
fn a_register_takes_so_many_bytes() {
    let p = Publication {
        pool: "qwen3-coder".into(),
        role: Role::Aggregated,
        key: SessionKey(u128::MAX),
        version: Version { sequence: 1_800_000_000_000_000, writer: u32::MAX },
        home: Some(Home {
            worker: "10.0.0.1:8000".into(),
            rank: Some(DpRank(3)),
            started: Some(1_800_000_000_000),
        }),
        used: Time::from_micros(1_800_000_000_000_000),
    };
    let head =
        Head { writer: 1, boot: 2, sequence: 3, now: Time::from_micros(4), group: 5, reads: READS };
    let of = |n: usize| {
        let body = Body::Updates { updates: vec![p.clone(); n], loads: None };
        encode(&Message { head, body: Some(body) }).len()
    };
    assert!(of(1) < 200, "{}", of(1));
    assert_eq!(of(2) - of(1), 46);
    let record =
        Record { kind: RecordKind::Bound, publication: p, until: None, group: Some(u64::MAX) };
    assert!(record.encode().len() < 200);
}
