//! Who is there, and what was missed: order, gaps, silence, other lives.

use super::*;

fn at(seconds: u64) -> Time {
    Time::from_micros(1_000_000_000_000 + seconds * 1_000_000)
}

fn head(writer: u32, boot: u64, sequence: u64, clock: Time) -> Head {
    Head { writer, boot: at(boot).as_micros(), sequence, now: clock, ..Head::default() }
}

/// Two routers that are in step.
fn two() -> Peers {
    let mut peers = Peers::new(1);
    for writer in [2, 3] {
        assert_eq!(peers.hear(at(0), &head(writer, 0, 5, at(0))), Heard::InOrder);
    }
    while let Some(q) = peers.next_question(at(0)) {
        assert_eq!(peers.answered(at(0), q.whom, None), (true, None));
    }
    assert!(peers.in_step());
    peers
}

#[test]
fn who_counts_on_is_heard_and_who_passes_over_is_asked() {
    let mut peers = two();
    assert_eq!(peers.hear(at(20), &head(2, 0, 6, at(20))), Heard::InOrder);
    assert_eq!(peers.hear(at(20), &head(2, 0, 6, at(20))), Heard::Old);
    assert_eq!(peers.hear(at(21), &head(2, 0, 9, at(21))), Heard::AfterGap);
    assert_eq!(peers.hear(at(21), &head(2, 0, 8, at(21))), Heard::Old, "it came late");
    assert_eq!((peers.gaps, peers.in_step()), (1, false));
    let question = Question { whom: 2, since: at(20) - MARGIN, cursor: 0 };
    assert_eq!(peers.next_question(at(21)), Some(question));
    assert_eq!(peers.next_question(at(21)), None, "one at a time");
    // While it is asked more goes missing.
    assert_eq!(peers.hear(at(30), &head(2, 0, 12, at(30))), Heard::AfterGap);
    let more = Question { cursor: 7, ..question };
    assert_eq!(peers.answered(at(30), 2, Some(7)), (true, Some(more)));
    assert_eq!(peers.answered(at(30), 3, None), (false, None), "nobody asked it");
    assert_eq!(peers.answered(at(30), 2, Some(7)), (false, None), "it would go on for ever");
    assert_eq!(peers.answered(at(30), 2, None), (true, None));
    let again = Question { whom: 2, since: at(21) - MARGIN, cursor: 0 };
    assert_eq!(peers.next_question(at(30)), Some(again));
    assert_eq!(peers.answered(at(30), 2, None), (true, None));
    assert!(peers.in_step());
}

#[test]
fn who_counts_on_from_before_is_heard_again_whatever_was_said_in_its_name() {
    for far in [20, 1 << 63, u64::MAX - 1, u64::MAX] {
        let mut peers = two();
        assert_eq!(peers.hear(at(1), &head(2, 0, far, at(99_999))), Heard::AfterGap);
        let question = peers.next_question(at(1)).unwrap();
        assert_eq!(peers.answered(at(1), question.whom, None), (true, None));
        let mut old = 0;
        while peers.hear(at(2), &head(2, 0, 6 + old, at(2))) == Heard::Old {
            old += 1;
        }
        assert!((1..20).contains(&old), "{far}: {old} were passed over");
        // Its clock is where it says, so that what is missed later is asked for.
        assert_eq!(peers.hear(at(50), &head(2, 0, 7 + old, at(50))), Heard::InOrder);
        assert_eq!(peers.hear(at(60), &head(2, 0, 9 + old, at(60))), Heard::AfterGap);
        let _ = peers.answered(at(60), 2, None);
        let since = std::iter::from_fn(|| {
            let q = peers.next_question(at(60))?;
            let _ = peers.answered(at(60), q.whom, None);
            Some(q.since)
        });
        assert!(since.min().unwrap() <= at(50), "{far}");
    }
}

/// Found by a breaker: one message with a later start shut a router out until its own next one.
#[test]
fn who_counts_on_is_heard_again_whenever_it_is_said_to_have_begun() {
    let mut peers = two();
    assert_eq!(peers.hear(at(1), &head(2, 1, 1_000_000, at(1))), Heard::Anew);
    let mut old = 0;
    while peers.hear(at(2), &head(2, 0, 6 + old, at(2))) == Heard::Old {
        old += 1;
        // What is for one is no part of it.
        assert_eq!(peers.hear(at(2), &head(2, 0, 0, at(2))), Heard::Old);
    }
    assert_eq!(old, u64::from(BEHIND) - 1);
    let next = head(2, 0, 7 + old, at(2));
    assert_eq!(peers.hear(at(3), &next), Heard::InOrder);
    // Somebody else's once more changes as much.
    assert_eq!(peers.hear(at(3), &head(2, 9, 7, at(3))), Heard::Anew);
    assert_eq!(peers.hear(at(3), &head(2, 0, 8 + old, at(3))), Heard::Old);
    assert_eq!(peers.hear(at(3), &head(2, 0, 10 + old, at(3))), Heard::Old, "one by one");
}

/// A router that asks who is new speaks to it before it speaks to all.
#[test]
fn whose_first_word_is_for_one_has_missed_nothing() {
    let mut peers = Peers::new(1);
    assert_eq!(peers.hear(at(1), &head(2, 0, 0, at(1))), Heard::InOrder);
    assert_eq!(peers.hear(at(2), &head(2, 0, 17, at(2))), Heard::InOrder);
    assert_eq!(peers.gaps, 0);
    assert_eq!(peers.hear(at(3), &head(2, 0, 19, at(3))), Heard::AfterGap);
}

#[test]
fn what_is_for_one_is_no_part_of_the_order() {
    let mut peers = two();
    assert_eq!(peers.hear(at(1), &head(2, 0, 0, at(1))), Heard::InOrder);
    assert_eq!(peers.hear(at(1), &head(2, 0, 6, at(1))), Heard::InOrder);
    assert!(peers.in_step());
}

#[test]
fn an_answer_that_does_not_come_is_asked_for_again_and_then_left() {
    let mut peers = two();
    peers.hear(at(9), &head(2, 0, 7, at(9)));
    let question = peers.next_question(at(9)).unwrap();
    for n in 1..TRIES {
        assert_eq!(peers.next_question(at(9 + 2 * u64::from(n))), Some(question));
    }
    assert_eq!(peers.next_question(at(60)), None);
    assert_eq!(peers.present(), 1);
    // It is heard of again: the same is missing.
    peers.hear(at(61), &head(2, 0, 8, at(61)));
    assert_eq!(peers.next_question(at(61)).unwrap().since, question.since);
}

#[test]
fn the_silent_are_gone_and_may_come_back() {
    let mut peers = two();
    peers.hear(at(4), &head(3, 0, 6, at(4)));
    assert_eq!(peers.fell_silent(at(5)), [2]);
    assert!(peers.fell_silent(at(6)).is_empty(), "it is said once");
    assert_eq!(peers.present(), 1);
    assert_eq!(peers.hear(at(40), &head(2, 0, 30, at(40))), Heard::AfterGap);
    assert_eq!(peers.next_question(at(40)).unwrap().since, at(0) - MARGIN);
}

#[test]
fn another_life_begins_anew_and_the_old_one_is_not_believed() {
    let mut peers = two();
    assert_eq!(peers.hear(at(50), &head(2, 40, 1, at(50))), Heard::Anew);
    assert_eq!(peers.hear(at(50), &head(2, 0, 99, at(50))), Heard::Old);
    assert_eq!(peers.hear(at(50), &head(2, 40, 2, at(50))), Heard::InOrder);
    assert_eq!(peers.next_question(at(50)).unwrap().since, at(40) - MARGIN);
    assert_eq!(peers.hear(at(50), &head(1, 0, 1, at(50))), Heard::Ours, "that is us");
}

#[test]
fn who_has_nothing_asks_the_oldest_for_all() {
    let mut peers = Peers::new(1);
    assert!(!peers.ask_for_all() && peers.has_all());
    peers.hear(at(9), &head(2, 5, 1, at(9)));
    peers.hear(at(9), &head(3, 1, 1, at(9)));
    assert!(peers.ask_for_all() && !peers.has_all());
    let question = peers.next_question(at(9)).unwrap();
    assert_eq!((question.whom, question.since), (3, Time::ZERO));
    assert!(!peers.has_all());
    // It dies, and the other is asked.
    for n in 1..=TRIES {
        let question = peers.next_question(at(9 + 2 * u64::from(n))).unwrap();
        assert_eq!(question.whom, if n < TRIES { 3 } else { 2 });
    }
    assert_eq!(peers.answered(at(30), 2, None), (true, None));
    assert!(peers.has_all());
}

#[test]
fn after_our_own_outage_everybody_is_asked() {
    let mut peers = two();
    peers.hear(at(3), &head(2, 0, 7, at(3)));
    let _ = peers.next_question(at(3));
    peers.lost();
    let mut asked: Vec<_> = std::iter::from_fn(|| {
        let q = peers.next_question(at(9))?;
        peers.answered(at(9), q.whom, None);
        Some((q.whom, q.since))
    })
    .collect();
    asked.sort_unstable();
    assert_eq!(asked, [(2, at(0) - MARGIN), (3, at(0) - MARGIN)]);
    assert!(peers.in_step());
}

#[test]
fn one_router_too_many_is_not_listened_to_while_all_are_there() {
    let mut peers = Peers::new(0);
    for writer in 1..=PEERS_MAX as u32 {
        assert_eq!(peers.hear(at(0), &head(writer, 0, 1, at(0))), Heard::InOrder);
    }
    assert_eq!(peers.hear(at(0), &head(9_999, 0, 1, at(0))), Heard::TooMany);
    peers.leaves(1);
    assert_eq!(peers.hear(at(0), &head(9_999, 0, 1, at(0))), Heard::InOrder);
    assert_eq!(peers.hear(at(1), &head(1, 0, 2, at(1))), Heard::TooMany);
}

#[test]
fn routers_that_are_gone_give_way_however_many_there_were() {
    let mut peers = Peers::new(0);
    // Two stay; of the others each lives for a second, as in a crash loop.
    for second in 0..3 * PEERS_MAX as u64 {
        for writer in [1, 2] {
            peers.hear(at(second), &head(writer, 0, second + 1, at(second)));
        }
        let new = head(1000 + second as u32, second, 1, at(second));
        assert_eq!(peers.hear(at(second), &new), Heard::InOrder, "at {second}");
        let silent = peers.fell_silent(at(second));
        assert!(silent.iter().all(|writer| *writer > 2), "{silent:?}");
        assert!((2..12).contains(&peers.present()), "{}", peers.present());
    }
    // Who is not answered counts as gone, and is said to be silent all the same.
    let mut peers = two();
    peers.hear(at(3), &head(2, 0, 9, at(3)));
    for second in 3..10 {
        let _ = peers.next_question(at(second));
    }
    assert!(peers.fell_silent(at(10)).contains(&2));
}
