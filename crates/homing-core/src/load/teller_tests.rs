//! Few messages, and nothing that others know less of for longer than a beat.

use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn loads(requests: u32, decoding: u32, context: u64) -> Loads {
    let load = PeerLoad { active_requests: requests, decoding, context, ..PeerLoad::default() };
    let loads = [(("w".into(), DpRank(0)), load)];
    loads.into_iter().filter(|(_, load)| *load != PeerLoad::default()).collect()
}

fn at(ms: u32) -> Time {
    Time::from_micros(1_000_000) + MS * ms
}

#[test]
fn a_booking_goes_at_once_and_at_most_every_so_often() {
    let mut teller = Teller::new(at(0), 2);
    assert_eq!(teller.look(at(1), loads(1, 0, 0), false), None);
    assert_eq!(teller.next_look(), at(20));
    assert_eq!(teller.look(at(19), loads(1, 0, 0), false), None);
    let word = teller.look(at(20), loads(1, 0, 0), false).unwrap();
    assert_eq!((word.whole, word.targets.len()), (false, 1));
    // The next goes along at once.
    assert!(teller.look(at(30), loads(2, 0, 0), true).is_some());
    assert_eq!(teller.look(at(31), loads(2, 0, 0), true), None, "there is nothing new");
    assert!(!teller.is_behind());
}

#[test]
fn what_else_changes_goes_while_messages_are_left_over_and_with_the_beat_at_the_latest() {
    let mut teller = Teller::new(at(0), 2);
    let say = |teller: &mut Teller, ms, loads| teller.look(at(ms), loads, false);
    say(&mut teller, 1, loads(1, 0, 0));
    assert!(say(&mut teller, 21, loads(1, 0, 0)).is_some());
    // Its first token: one message is left, which is for its end.
    for ms in 22..300 {
        assert_eq!(say(&mut teller, ms, loads(1, 1, ms.into())), None, "{ms}");
    }
    assert_eq!((teller.is_behind(), teller.next_look()), (true, at(1000)));
    // The next one's first token goes along with its booking.
    assert!(say(&mut teller, 300, loads(2, 1, 9)).is_some());
    assert!(say(&mut teller, 301, loads(1, 1, 9)).is_none());
    assert_eq!(teller.next_look(), at(341));
    assert!(say(&mut teller, 341, loads(1, 1, 9)).is_some());
    assert!(say(&mut teller, 350, Loads::new()).is_none());
    assert!(say(&mut teller, 390, Loads::new()).is_some(), "two turns have left as many");
    // Nothing is left.
    say(&mut teller, 400, loads(1, 0, 0));
    assert!(say(&mut teller, 420, loads(1, 0, 0)).is_some());
    assert!(say(&mut teller, 421, Loads::new()).is_none());
    assert!(say(&mut teller, 461, Loads::new()).is_some());
    assert!(!teller.is_behind());
}

#[test]
fn answers_that_grow_make_no_message_and_go_with_the_next() {
    let mut teller = Teller::new(at(0), 9);
    teller.look(at(1), loads(1, 1, 0), true).unwrap();
    for ms in 2..1000 {
        assert_eq!(teller.look(at(ms), loads(1, 1, ms.into()), false), None, "{ms}");
        assert_eq!((teller.is_behind(), teller.next_look()), (true, at(1000)));
    }
    let word = teller.look(at(1000), loads(1, 1, 1000), false).unwrap();
    assert_eq!((word.whole, word.targets[0].2.context), (true, 1000));
}

#[test]
fn what_is_over_is_named_with_nothing() {
    let mut teller = Teller::new(at(0), 2);
    teller.look(at(1), loads(1, 0, 0), true).unwrap();
    let word = teller.look(at(2), Loads::new(), true).unwrap();
    assert_eq!(word.targets, [("w".into(), DpRank(0), PeerLoad::default())]);
}

#[test]
fn a_message_that_goes_anyway_does_for_the_beat_and_a_call_brings_it_sooner() {
    let mut teller = Teller::new(at(0), 2);
    assert_eq!(teller.look(at(799), Loads::new(), true), None);
    assert!(teller.look(at(801), Loads::new(), true).unwrap().whole);
    assert_eq!(teller.next_look(), at(1801));
    teller.call();
    assert_eq!(teller.next_look(), at(851));
    assert_eq!(teller.look(at(850), Loads::new(), false), None);
    assert!(teller.look(at(851), Loads::new(), false).unwrap().whole);
    assert_eq!(teller.look(at(902), Loads::new(), false), None, "it was answered");
}

proptest! {
    /// Whatever happens, messages are two a turn and one a second at most, and what was told is what there was a second
    /// ago at the latest.
    #[test]
    fn messages_are_few_and_nothing_stays_untold(
        steps in prop::collection::vec((0..6u8, 1..400u32), 1..300),
        per_turn in 1..3u32,
    ) {
        let mut teller = Teller::new(at(0), per_turn);
        let (mut ms, mut requests, mut decoding, mut grown) = (0, 0u32, 0u32, 0u64);
        let (mut turns, mut sent) = (0u32, 0u32);
        let mut told = Loads::new();
        for (what, wait) in steps {
            let mut rides = false;
            match what {
                0 | 1 => {
                    (requests, turns) = (requests + 1, turns + 1);
                }
                // Where bindings go by messages, a turn makes one at most.
                2 if decoding < requests => {
                    rides = per_turn == 2;
                    decoding += 1;
                }
                3 if requests > 0 => {
                    requests -= 1;
                    decoding = decoding.min(requests);
                }
                4 => grown += 1,
                _ => {}
            }
            let mut until = ms + wait;
            loop {
                let all = loads(requests, decoding, if requests > 0 { grown } else { 0 });
                let word = teller.look(at(ms), all.clone(), rides);
                if rides || word.is_some() {
                    sent += 1;
                }
                rides = false;
                if let Some(word) = word {
                    if word.whole {
                        told.clear();
                    }
                    for (worker, rank, load) in word.targets {
                        told.insert((worker, rank), load);
                    }
                    told.retain(|_, load| *load != PeerLoad::default());
                    prop_assert_eq!(&told, &all);
                }
                prop_assert!(teller.is_behind() == (told != all));
                prop_assert!(teller.next_look() > at(ms));
                let next = teller.next_look().since(at(0)).as_millis() as u32;
                if next > until {
                    break;
                }
                ms = next;
                until = until.max(ms);
            }
            ms = until;
        }
        let beats = ms / 800 + 1;
        prop_assert!(sent <= per_turn * turns + beats + LEFT_MOST as u32, "{sent} of {turns}");
    }
}
