//! The approximate index against a plain list of what was used, and when.

use super::*;
use crate::hash::HashSpace;
use proptest::prelude::*;

/// A conversation, by what it consists of: each part is a chunk.
fn text(parts: &[u8]) -> Prompt {
    let chunk = |p: &u8| vec![*p; crate::hash::TEXT_CHUNK];
    let bytes: Vec<u8> = parts.iter().flat_map(chunk).chain([255]).collect();
    Prompt::from_text(&[&bytes], HashSpace::default())
}

fn who(n: u8) -> (WorkerId, DpRank) {
    (WorkerId(u32::from(n / 2)), DpRank(u16::from(n % 2)))
}

/// Prefixes that a rank holds, the one used longest ago first.
#[derive(Default)]
struct Plain(Vec<Vec<u8>>);

impl Plain {
    fn routed(&mut self, parts: &[u8], most: usize) {
        for n in (1..=parts.len()).rev() {
            self.0.retain(|held| *held != parts[..n]);
            self.0.push(parts[..n].to_vec());
        }
        while self.0.len() > most {
            self.0.remove(0);
        }
    }

    fn depth(&self, parts: &[u8]) -> u32 {
        (1..=parts.len()).take_while(|n| self.0.iter().any(|h| *h == parts[..*n])).count() as u32
    }
}

#[derive(Clone, Debug)]
enum Step {
    Routed(u8, Vec<u8>),
    Forget(u8),
}

proptest! {
    #[test]
    fn it_forgets_what_was_used_longest_ago(
        steps in prop::collection::vec(
            prop_oneof![
                12 => (0u8..4, prop::collection::vec(0u8..3, 0..6)).prop_map(|(w, p)| Step::Routed(w, p)),
                1 => (0u8..2).prop_map(Step::Forget),
            ],
            0..60,
        ),
        most in 1usize..12,
    ) {
        let mut index = RecencyIndex::default();
        let mut plain: BTreeMap<u8, Plain> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Routed(n, parts) => {
                    let (worker, rank) = who(n);
                    let capacity = Some(most as u64 * u64::from(TEXT_BLOCK));
                    index.set_cache(worker, Cache { capacity, ..Cache::default() });
                    index.routed(worker, rank, &text(&parts));
                    plain.entry(n).or_default().routed(&parts, most);
                }
                Step::Forget(w) => {
                    index.forget(WorkerId(u32::from(w)));
                    plain.retain(|n, _| n / 2 != w);
                }
            }
            index.check();
        }
        for n in 0..3u32.pow(5) {
            let parts: Vec<u8> = (0..5).map(|i| (n / 3u32.pow(i) % 3) as u8).collect();
            let found = index.overlaps(&text(&parts));
            for n in 0..4 {
                let ours = found.iter().find(|o| (o.worker, o.rank) == who(n)).map_or(0, |o| o.blocks);
                prop_assert_eq!(ours, plain.get(&n).map_or(0, |p| p.depth(&parts)), "{:?}", parts);
            }
        }
    }
}

#[test]
fn f22_room_is_made_where_most_is_held() {
    let mut index = RecencyIndex::default();
    let long: Vec<u8> = (0..200).collect();
    for worker in 0..4 {
        for n in 0..50 {
            let parts: Vec<u8> = [worker as u8, n].into_iter().chain(long.clone()).collect();
            index.routed(WorkerId(worker), DpRank(0), &text(&parts));
        }
    }
    index.routed(WorkerId(9), DpRank(0), &text(&[1, 2, 3]));
    let most = USUAL_CAPACITY / u64::from(TEXT_BLOCK);
    assert!(index.blocks(WorkerId(0)) as u64 <= most, "it is bounded by its cache");
    let budget = index.bytes() / 4;
    while index.make_room(budget) {}
    assert!(index.bytes() <= budget && index.dropped() > 0);
    let of = |worker, parts: &[u8]| {
        let found = index.overlaps(&text(parts));
        found.iter().find(|o| o.worker == WorkerId(worker)).map_or(0, |o| o.blocks)
    };
    assert_eq!(of(9, &[1, 2, 3]), 3, "who holds little loses nothing");
    let last: Vec<u8> = [0, 49].into_iter().chain(long).collect();
    assert!(of(0, &last) > 100, "what was used last stays");
    index.check();
    while index.make_room(0) {}
    assert_eq!(index.blocks(WorkerId(0)), 0);
    index.check();
}

#[test]
fn f21_what_a_worker_had_goes_with_it() {
    let mut index = RecencyIndex::default();
    index.routed(WorkerId(1), DpRank(0), &text(&[1, 2]));
    index.predict(WorkerId(1), DpRank(0), &text(&[1, 2, 3]), 0, Time::from_micros(5));
    assert_eq!(index.overlaps(&text(&[1, 2, 3]))[0].blocks, 3);
    index.forget(WorkerId(1));
    assert!(index.overlaps(&text(&[1, 2, 3])).is_empty());
    while index.sweep(1) {}
    while index.expire(Time::from_micros(5)) {}
    index.check();
    assert_eq!(index.blocks(WorkerId(1)), 0);
}
