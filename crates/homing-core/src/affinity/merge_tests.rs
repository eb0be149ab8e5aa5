//! R23: bindings as registers. Whatever becomes of updates on their way, what was written last is what
//! all hold; and what is told of a table is enough for another to know it.

use super::*;
use crate::affinity::by_hand::{ByHand, SECOND, TTL, at, key, live, rules};
use crate::affinity::outbox::OUTBOX;
use crate::affinity::version::AHEAD;
use crate::affinity::{Check, Outcome, Plan, Resolved, Rules, Standing};
use crate::settings::{Mode, OnFull};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn sharing(max_sessions: usize) -> Rules {
    Rules { shared: true, ..rules(max_sessions) }
}

fn router(writer: u32) -> ByHand {
    ByHand::writing(sharing(100), writer)
}

fn version(sequence: u64, writer: u32) -> Version {
    Version { sequence, writer }
}

impl ByHand {
    fn outbox(&mut self) -> Vec<Update> {
        std::iter::from_fn(|| self.table.poll_update(Time::FAR)).collect()
    }

    fn merge(&mut self, update: Update) -> Merged {
        let merged = self.table.merge(self.now, update);
        self.table.check();
        merged
    }

    /// Another router's binding of session 0, used just now.
    fn hear(&mut self, sequence: u64, what: What) -> Merged {
        let used = self.now;
        self.merge(Update { key: key(0), version: version(sequence, 9), what, used })
    }
}

// === registers ===

const KEYS: u32 = 3;

/// What is written to a few sessions: each write has its own version.
fn writes() -> impl Strategy<Value = Vec<Update>> {
    let what =
        prop_oneof![3 => (0..4u32).prop_map(|w| What::Bound(at(w))), 1 => Just(What::Removed)];
    let write = (0..KEYS, 0..6u64, 0..3u32, what, 0..20u64);
    prop::collection::vec(write, 1..24).prop_map(|writes| {
        let mut all = BTreeMap::new();
        for (k, sequence, writer, what, ago) in writes {
            let used = Time::from_micros(1_000_000_000) - Duration::from_secs(ago);
            let version = version(sequence, writer);
            all.entry((k, version)).or_insert(Update { key: key(k), version, what, used });
        }
        all.into_values().collect()
    })
}

/// In what order they come, how often each, which never.
fn deliveries() -> impl Strategy<Value = (Vec<Update>, Vec<Update>)> {
    writes().prop_flat_map(|writes| {
        let copies = prop::collection::vec(0..4usize, writes.len());
        let twice = copies.prop_map(move |copies| {
            let copies = writes.iter().zip(copies);
            copies.flat_map(|(w, n)| std::iter::repeat_n(*w, n)).collect::<Vec<_>>()
        });
        twice.prop_flat_map(|all| (Just(all.clone()).prop_shuffle(), Just(all).prop_shuffle()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    /// Commutative, idempotent, and nothing but the last write of each session counts.
    #[test]
    fn r23_any_order_and_any_copies_end_in_what_was_written_last((one, other) in deliveries()) {
        let mut ends = Vec::new();
        for updates in [&one, &other] {
            let mut t = router(1);
            let mut last = BTreeMap::<u128, Update>::new();
            for u in updates {
                let known = last.get(&u.key.0).copied();
                let merged = t.merge(*u);
                match known {
                    Some(known) if known.version > u.version => {
                        prop_assert_eq!(merged, Merged::Stale);
                    }
                    Some(known) if known.version == u.version => {
                        prop_assert_eq!(merged, Merged::Same);
                    }
                    _ => {
                        prop_assert_eq!(merged, Merged::Applied);
                        last.insert(u.key.0, *u);
                    }
                }
                for k in 0..KEYS {
                    let held = t.view(k).map(|v| (What::Bound(v.target), v.version));
                    let want = last.get(&key(k).0).map(|u| (u.what, u.version));
                    prop_assert_eq!(held, want.filter(|(what, _)| *what != What::Removed));
                }
            }
            // A removal takes an entry, and no longer than a time-to-live.
            prop_assert_eq!(t.table.entries.len(), last.len());
            let bound = last.values().filter(|u| u.what != What::Removed).count();
            prop_assert_eq!(t.table.bindings(), bound);
            ends.push(last.into_values().map(|u| (u.key, u.version)).collect::<Vec<_>>());
            t.pass(TTL);
            t.table.expire(t.now, usize::MAX);
            t.table.check();
            prop_assert_eq!(t.table.entries.len(), 0);
        }
        prop_assert_eq!(&ends[0], &ends[1]);
    }

    /// With leases that live and time that passes: a removal marks, what is in use never expires, and
    /// all that a table says of itself stays true.
    #[test]
    fn r23_updates_amid_traffic_tear_nothing(
        ops in prop::collection::vec((0..8u8, 0..KEYS, 0..4u32, any::<u8>()), 1..80),
        max in 1..4usize,
        evicts: bool,
    ) {
        let on_full = if evicts { OnFull::EvictIdle } else { OnFull::RouteUnbound };
        let mut t = ByHand::writing(Rules { on_full, ..sharing(max) }, 1);
        let mut other = ByHand::writing(Rules { on_full, ..sharing(max) }, 2);
        let (mut holds, mut leases, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (op, k, w, n) in ops {
            other.now = t.now;
            match op {
                0 | 1 => if let Resolved::Hold(mut hold) = t.resolve(k) {
                    let plan = if n < 100 { Plan::Home } else { Plan::Spill };
                    t.table.selected(t.now, &mut hold, at(w), plan);
                    holds.push((hold, w));
                },
                2 => if let Some((hold, w)) = holds.pop() {
                    leases.extend(t.table.commit(t.now, hold, at(w), n < 60, live).lease);
                },
                3 => if let Some((hold, _)) = holds.pop() {
                    t.table.release(t.now, hold, n < 128);
                },
                4 => if !leases.is_empty() {
                    let lease = leases.swap_remove(n as usize % leases.len());
                    t.table.end(t.now, lease);
                },
                5 => {
                    if let Resolved::Hold(hold) = other.resolve(k)
                        && let Some(lease) =
                            other.table.commit(other.now, hold, at(w), n < 60, live).lease
                    {
                        other.table.end(other.now, lease);
                    }
                    late.extend(other.outbox());
                },
                6 => if !late.is_empty() {
                    let update = late[n as usize % late.len()];
                    let used = t.view(k).filter(|v| v.key == update.key);
                    let merged = t.table.merge(t.now, update);
                    if merged == Merged::Stale {
                        prop_assert!(used.is_none_or(|v| v.version > update.version));
                    }
                },
                _ => {
                    t.pass(Duration::from_secs(u64::from(n) / 2));
                    t.table.expire(t.now, 2);
                    t.table.tell(t.now);
                }
            }
            t.table.check();
            late.extend(t.outbox().into_iter().filter(|_| n < 20));
        }
        holds.into_iter().for_each(|(hold, _)| t.table.release(t.now, hold, false));
        leases.into_iter().for_each(|lease| t.table.end(t.now, lease));
        prop_assert_eq!(t.table.leases(), 0);
        t.table.check();
        t.pass(TTL);
        t.table.expire(t.now, usize::MAX);
        prop_assert_eq!((t.table.bindings(), t.table.entries.len()), (0, 0));
    }
}

#[test]
fn r23_the_higher_version_wins_and_the_writer_breaks_ties() {
    let mut t = router(1);
    let used = t.now;
    let mut merge = |sequence, writer, worker| {
        let version = version(sequence, writer);
        t.merge(Update { key: key(0), version, what: What::Bound(at(worker)), used })
    };
    assert_eq!(merge(5, 2, 0), Merged::Applied);
    assert_eq!(merge(5, 1, 1), Merged::Stale);
    assert_eq!(merge(4, 9, 1), Merged::Stale);
    assert_eq!(merge(5, 2, 0), Merged::Same);
    assert_eq!(merge(5, 3, 2), Merged::Applied);
    assert_eq!(merge(6, 0, 3), Merged::Applied);
    assert_eq!(t.home(0), Some(3));
    assert_eq!(t.table.bindings_of(at(0).worker), 0);
}

// === removals ===

/// The sweep that makes room takes what is due, and that may be the very register that is written.
#[test]
fn r23_a_removal_that_is_due_makes_room_for_its_own_session() {
    let mut t = ByHand::writing(sharing(1), 1);
    assert_eq!(t.hear(10, What::Removed), Merged::Applied);
    // Another session takes all the room there is.
    let Resolved::Hold(mut hold) = t.resolve(1) else { panic!("no room") };
    t.table.selected(t.now, &mut hold, at(0), Plan::Home);
    let lease = t.table.commit(t.now, hold, at(0), false, live).lease;
    t.pass(TTL);
    let used = t.now;
    let update = Update { key: key(0), version: version(20, 2), what: What::Bound(at(1)), used };
    assert_eq!(t.merge(update), Merged::Full);
    t.table.check();
    lease.into_iter().for_each(|lease| t.table.end(t.now, lease));
    t.table.check();
}

#[test]
fn r23_a_removal_is_kept_for_a_time_so_that_nothing_late_undoes_it() {
    let mut t = router(1);
    assert_eq!(t.hear(10, What::Bound(at(1))), Merged::Applied);
    assert_eq!(t.hear(11, What::Removed), Merged::Applied);
    assert_eq!((t.home(0), t.table.bindings()), (None, 0));
    assert_eq!(t.hear(10, What::Bound(at(1))), Merged::Stale, "a late copy");
    assert_eq!(t.hear(11, What::Removed), Merged::Same);
    t.pass(TTL - SECOND);
    t.table.expire(t.now, usize::MAX);
    assert_eq!(t.hear(10, What::Bound(at(1))), Merged::Stale, "a later copy");
    // A turn here binds it anew, by a higher version.
    t.outbox();
    t.turn(0, 2);
    let told = t.outbox();
    assert!(told.iter().all(|u| u.version > version(11, 9) && u.what == What::Bound(at(2))));
    assert_eq!(t.hear(11, What::Removed), Merged::Stale);
    assert_eq!(t.home(0), Some(2));
}

#[test]
fn r23_a_removal_of_what_is_not_known_is_kept_too_and_goes_after_a_time() {
    let mut t = router(1);
    assert_eq!(t.hear(11, What::Removed), Merged::Applied);
    assert_eq!(t.hear(10, What::Bound(at(1))), Merged::Stale);
    assert_eq!((t.table.bindings(), t.table.entries.len()), (0, 1));
    t.pass(TTL);
    assert_eq!((t.table.expire(t.now, 9), t.table.entries.len()), (0, 0), "no binding expired");
    assert_eq!(t.table.counters().expired, 0);
    assert_eq!(t.hear(10, What::Bound(at(1))), Merged::Applied);
}

#[test]
fn r23_removals_are_bounded_as_bindings_are() {
    let mut t = ByHand::writing(sharing(3), 1);
    let used = t.now;
    for k in 0..10 {
        let update = Update { key: key(k), version: version(1, 9), what: What::Removed, used };
        assert_eq!(t.merge(update), Merged::Applied);
    }
    assert_eq!(t.table.entries.len(), 3);
}

#[test]
fn r23_where_leases_live_a_removal_is_the_mark_of_the_last_turn() {
    let mut t = router(1);
    let first = t.begin(0, 1);
    let ours = t.view(0).unwrap().version;
    let later = ours.sequence + 5;
    assert_eq!(t.hear(later, What::Removed), Merged::Applied);
    assert!(t.view(0).unwrap().last);
    let hold = t.sent(0, 1, Plan::Home);
    let (second, outcome) = t.commit(hold, 1);
    assert_eq!(outcome, Outcome::Hit, "later turns hit");
    // Neither a copy of what was removed nor one of the removal clears the mark.
    let used = t.now;
    let copy = Update { key: key(0), version: ours, what: What::Bound(at(1)), used };
    assert_eq!(t.merge(copy), Merged::Stale);
    assert_eq!(t.hear(later, What::Removed), Merged::Same);
    assert_eq!(t.hear(later, What::Bound(at(1))), Merged::Same);
    t.end(first);
    t.outbox();
    assert!(t.view(0).unwrap().last);
    t.end(second.unwrap());
    assert_eq!(t.home(0), None);
    let told = t.outbox();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].what, What::Removed);
    assert!(told[0].version > version(later, 9), "its own removal is the last word");
    assert_eq!(t.hear(later, What::Removed), Merged::Stale);
}

#[test]
fn r23_what_had_ended_but_for_its_leases_stays_ended_though_its_worker_departs() {
    for ended_here in [true, false] {
        let mut t = router(1);
        let lease = if ended_here { t.begin_last(0, 1) } else { t.begin(0, 1) };
        let bound = t.outbox()[0];
        if !ended_here {
            assert_eq!(t.hear(bound.version.sequence + 1, What::Removed), Merged::Applied);
        }
        let gone = |_| Standing::Departed;
        let Resolved::Hold(mut hold) =
            t.table.resolve(t.now, key(0), Mode::Hard, false, None, gone)
        else {
            panic!("no hold");
        };
        t.table.selected(t.now, &mut hold, at(2), Plan::Home);
        assert!(hold.had_binding() && t.home(0).is_none());
        t.table.release(t.now, hold, false);
        assert_eq!(t.merge(bound), Merged::Stale, "a late copy");
        assert_eq!(t.outbox()[0].what, What::Removed);
        t.end(lease);
        assert_eq!((t.home(0), t.table.leases()), (None, 0));
    }
}

#[test]
fn r23_what_is_bound_again_elsewhere_after_its_removal_goes_on() {
    for (worker, leases) in [(1, 1), (2, 0)] {
        let mut t = router(1);
        let lease = t.begin_last(0, 1);
        let later = t.view(0).unwrap().version.sequence + 5;
        assert_eq!(t.hear(later, What::Bound(at(worker))), Merged::Applied);
        let view = t.view(0).unwrap();
        assert_eq!((view.last, view.leases, view.target), (false, leases, at(worker)));
        t.end(lease);
        assert_eq!((t.home(0), t.table.leases()), (Some(worker), 0));
    }
}

// === idle time, room ===

#[test]
fn r23_the_same_target_refreshes_the_idle_time_when_it_was_used_later() {
    let mut t = router(1);
    let began = t.now;
    let update =
        Update { key: key(0), version: version(7, 9), what: What::Bound(at(1)), used: began };
    assert_eq!(t.merge(update), Merged::Applied);
    t.pass(SECOND * 50);
    assert_eq!(t.merge(update), Merged::Same);
    assert_eq!(t.view(0).unwrap().idle, SECOND * 50, "a late copy tells of no later use");
    assert_eq!(t.merge(Update { used: began + SECOND * 40, ..update }), Merged::Same);
    assert_eq!(t.view(0).unwrap().idle, Duration::ZERO);
    t.pass(SECOND * 59);
    assert_eq!(t.home(0), Some(1));
    // It has idled out on its way: whoever comes late must not bring it back.
    t.pass(SECOND);
    assert_eq!(t.home(0), None);
    assert_eq!(t.merge(Update { used: t.now - TTL, ..update }), Merged::Expired);
    assert_eq!(t.home(0), None);
    let moment = Duration::from_micros(1);
    assert_eq!(t.merge(Update { used: t.now - TTL + moment, ..update }), Merged::Applied);
    // A sender whose clock is ahead gives no longer life than this clock does.
    assert_eq!(t.merge(Update { used: t.now + TTL * 9, ..update }), Merged::Same);
    t.pass(TTL);
    assert_eq!(t.home(0), None);
}

#[test]
fn r15_for_others_bindings_nothing_is_evicted_but_what_is_due_makes_room() {
    for on_full in [OnFull::RouteUnbound, OnFull::EvictIdle] {
        let mut t = ByHand::writing(Rules { on_full, ..sharing(1) }, 1);
        t.turn(5, 5);
        assert_eq!(t.hear(9, What::Bound(at(1))), Merged::Full);
        // A first turn under way has an entry, and no room either.
        if on_full == OnFull::EvictIdle {
            let hold = t.hold(0);
            assert_eq!(t.hear(9, What::Bound(at(1))), Merged::Full);
            t.table.release(t.now, hold, false);
        }
        assert_eq!(
            (t.home(5), t.table.counters().evicted, t.table.counters().full),
            (Some(5), 0, 0)
        );
        t.pass(TTL);
        assert_eq!(t.hear(9, What::Bound(at(1))), Merged::Applied);
        assert_eq!((t.home(0), t.home(5)), (Some(1), None));
    }
}

// === amid requests ===

#[test]
fn r10_r11_a_binding_that_comes_from_elsewhere_is_seen_before_dispatch_and_at_commit() {
    let mut t = router(1);
    let hard = t.sent(0, 1, Plan::Home);
    let there = t.sent(0, 2, Plan::Home);
    assert_eq!(t.hear(5, What::Bound(at(2))), Merged::Applied);
    assert_eq!(t.table.check_dispatch(t.now, &hard, at(1), live), Check::Again);
    assert_eq!(t.table.check_dispatch(t.now, &there, at(2), live), Check::Go);
    let (lease, outcome) = t.commit(there, 2);
    assert_eq!(outcome, Outcome::Joined);
    let (none, outcome) = t.commit(hard, 1);
    assert!(none.is_none());
    assert_eq!((outcome, t.home(0)), (Outcome::Conflict, Some(2)));
    t.end(lease.unwrap());
}

#[test]
fn r13_a_lease_of_a_binding_that_was_replaced_from_elsewhere_ends_into_nothing() {
    let mut t = router(1);
    let (lease, hold) = (t.begin(0, 1), t.hold(0));
    let later = t.view(0).unwrap().version.sequence + 1;
    assert_eq!(t.hear(later, What::Bound(at(2))), Merged::Applied);
    assert_eq!((t.view(0).unwrap().leases, t.table.leases()), (0, 2));
    t.outbox();
    t.end(lease);
    t.table.release(t.now, hold, true);
    assert_eq!((t.home(0), t.table.leases()), (Some(2), 0));
    assert_eq!(t.outbox(), [], "what is not ours any more is not ours to tell");
}

// === what is told ===

#[test]
fn r23_whoever_tells_what_is_past_hears_what_came_later() {
    let (mut a, mut b) = (router(1), router(2));
    b.turn(0, 1);
    b.outbox().into_iter().for_each(|u| _ = a.merge(u));
    a.pass(SECOND);
    b.now = a.now;
    // It moves there, and is removed thereafter, and nothing of that comes here.
    for what in [What::Bound(at(2)), What::Removed] {
        let (before, k) = (b.home(0), key(0));
        match what {
            What::Bound(target) => {
                let mut hold = b.hold(0);
                let moved = Plan::Move(crate::affinity::MoveReason::Failed);
                b.table.selected(b.now, &mut hold, target, moved);
                let lease = b.commit(hold, target.worker.0).0.unwrap();
                b.end(lease);
            }
            What::Removed => assert!(b.table.unbind(b.now, k)),
        }
        b.outbox();
        assert_eq!(a.home(0), before);
        a.turn(0, before.unwrap());
        let mut last = None;
        for told in a.outbox() {
            assert_eq!(b.merge(told), Merged::Stale);
            last = b.outbox().pop();
            assert_eq!(last.map(|u| (u.key, u.what)), Some((k, what)));
        }
        assert_eq!(a.merge(last.unwrap()), Merged::Applied);
        assert_eq!(a.view(0).map(|v| v.target), b.view(0).map(|v| v.target));
        assert_eq!(
            (a.outbox(), b.merge(last.unwrap()), b.outbox()),
            (vec![], Merged::Same, vec![])
        );
    }
}

#[test]
fn r23_commits_last_releases_and_removals_are_told_and_nothing_else_is() {
    let mut t = router(1);
    let what = |t: &mut ByHand| t.outbox().into_iter().map(|u| u.what).collect::<Vec<_>>();
    let hold = t.sent(0, 1, Plan::Home);
    assert_eq!(what(&mut t), [], "nothing is bound yet");
    let lease = t.commit(hold, 1).0.unwrap();
    let told = t.outbox();
    let update = Update {
        key: key(0),
        version: t.view(0).unwrap().version,
        what: What::Bound(at(1)),
        used: t.now,
    };
    assert_eq!(told, [update]);
    let second = t.begin(0, 1);
    assert_eq!(t.outbox(), [update], "a hit tells the same");
    t.end(lease);
    assert_eq!(what(&mut t), [], "another lease lives");
    t.pass(SECOND);
    t.end(second);
    assert_eq!(t.outbox(), [Update { used: t.now, ..update }], "the last release");
    // Refused before dispatch, it tells nothing.
    let hold = t.hold(0);
    t.table.release(t.now, hold, false);
    assert_eq!(what(&mut t), []);
    let hold = t.hold(0);
    t.table.release(t.now, hold, true);
    assert_eq!(what(&mut t), [What::Bound(at(1))], "its idle time began anew");
    assert!(t.table.unbind(t.now, key(0)));
    let removal = t.outbox();
    assert_eq!((removal.len(), removal[0].what), (1, What::Removed));
    assert!(removal[0].version > update.version);
    // With a final turn.
    let last = t.begin_last(0, 1);
    assert_eq!(what(&mut t), [What::Bound(at(1))]);
    t.end(last);
    assert_eq!(what(&mut t), [What::Removed]);
    t.turn(0, 2);
    t.outbox();
    t.table.end_group(t.now, key(0));
    assert_eq!(what(&mut t), [What::Removed]);
    // What idles out does so everywhere.
    t.turn(0, 2);
    t.outbox();
    t.pass(TTL);
    assert_eq!((t.table.expire(t.now, 9), what(&mut t)), (1, vec![]));
}

#[test]
fn r23_uses_wait_for_a_part_of_the_time_to_live_and_go_once() {
    let mut t = router(1);
    let due = |t: &mut ByHand| {
        let now = t.now;
        std::iter::from_fn(|| t.table.poll_update(now)).collect::<Vec<_>>()
    };
    t.turn(0, 1);
    assert!(t.table.take_news());
    let first = due(&mut t);
    assert_eq!(first.len(), 1, "that it lives there is told at once");
    let waits = t.table.next_update().unwrap();
    assert_eq!(waits, t.now + TTL / 16);
    // However often it is used, nobody's knowledge of that gets older.
    while t.now < waits {
        t.turn(0, 1);
        assert_eq!((due(&mut t), t.table.take_news()), (vec![], false));
        t.pass(SECOND / 2);
    }
    let told = due(&mut t);
    assert_eq!(told, [Update { used: t.now - SECOND / 2, ..first[0] }]);
    assert_eq!(t.table.next_update(), None);
    // What is over meanwhile isn't told to be there.
    t.turn(0, 1);
    assert!(t.table.take_news(), "whoever sleeps until something is due must know");
    t.table.unbind(t.now, key(0));
    assert_eq!(due(&mut t).len(), 1);
    t.pass(TTL / 16);
    assert_eq!(due(&mut t), []);
    // Of one in use it is told that it is.
    let lease = t.begin(0, 1);
    due(&mut t);
    let second = t.begin(0, 1);
    t.pass(TTL / 16);
    assert_eq!(due(&mut t).len(), 1);
    t.end(lease);
    t.end(second);
    assert_eq!((due(&mut t), t.outbox().len()), (vec![], 1), "all that waits can be had");
}

#[test]
fn r23_what_is_in_use_is_told_every_third_of_its_time() {
    let mut t = ByHand::writing(sharing(100_000), 1);
    const N: u32 = 6000;
    (0..N).for_each(|k| t.turn_unchecked(k, 0));
    assert_eq!(t.table.next_tell(), None, "nothing is in use");
    let leases: Vec<_> = (0..N).step_by(2).map(|k| t.begin_unchecked(k, 0)).collect();
    let marked = t.begin_last(1, 0);
    // A bound hold is no lease: its request may run elsewhere yet.
    let hold = t.hold(3);
    t.outbox();
    for round in 0..4 {
        assert!(t.table.next_tell().is_some_and(|due| due <= t.now), "round {round}");
        let mut told = Vec::new();
        let mut calls = 0;
        while t.table.next_tell().is_some_and(|due| due <= t.now) {
            t.table.tell(t.now);
            told.extend(t.outbox());
            calls += 1;
        }
        assert!(calls > 1, "a part of the table at a time");
        let mut keys: Vec<_> = told.iter().map(|u| u.key.0 as u32).collect();
        keys.sort_unstable();
        assert!(keys.iter().copied().eq((0..N).step_by(2)), "each in use once: {}", keys.len());
        assert!(told.iter().all(|u| u.used == t.now && u.what == What::Bound(at(0))));
        t.table.tell(t.now);
        assert_eq!(t.outbox(), [], "it has been told");
        assert_eq!(t.table.next_tell(), Some(t.now + TTL / 3));
        t.pass(TTL / 3);
    }
    // So it never idles out elsewhere, however long it takes.
    t.table.release(t.now, hold, false);
    t.end(marked);
    leases.into_iter().for_each(|lease| t.table.end(t.now, lease));
    assert_eq!(t.table.next_tell(), None);
    t.table.check();
}

#[test]
fn f42_what_waits_to_be_told_is_bounded_and_the_oldest_goes() {
    let mut t = ByHand::writing(sharing(1_000_000), 1);
    let many = 2 * OUTBOX as u32 + 5;
    (0..many).for_each(|k| t.turn_unchecked(k, 0));
    let lost = OUTBOX as u64 + 5 + 5;
    assert_eq!(t.table.counters().unpublished, lost, "each turn tells of a write and a use");
    // Those that were used wait, but not that many.
    let now = t.now;
    let told: Vec<_> = std::iter::from_fn(|| t.table.poll_update(now)).collect();
    assert_eq!((told.len(), told[0].key), (2 * OUTBOX, key(OUTBOX as u32 + 5)));
    assert_eq!(told[OUTBOX].key, key(5));
    assert_eq!(t.outbox().len(), OUTBOX);
    t.turn_unchecked(5, 0);
    assert_eq!(t.outbox().len(), 1, "whose place was taken is told of again");
}

#[test]
fn nothing_is_told_where_nothing_is_shared() {
    let mut t = ByHand::new(rules(100));
    t.turn(0, 1);
    let lease = t.begin(1, 1);
    t.table.unbind(t.now, key(0));
    t.table.tell(t.now);
    assert_eq!((t.outbox(), t.table.next_tell()), (vec![], None));
    assert_eq!(t.table.entries.len(), 1, "and no removal is kept");
    t.end(lease);
}

// === the clock ===

#[test]
fn r23_versions_surpass_all_that_were_seen_whatever_the_clock_does() {
    let mut t = router(1);
    let ahead = t.now.as_micros() + 3_600_000_000;
    assert_eq!(t.hear(ahead, What::Bound(at(1))), Merged::Applied);
    // Written here, by a clock that is an hour behind the other's and steps back besides.
    let mut before = version(ahead, 9);
    for k in 1..20 {
        t.now = t.now - Duration::from_millis(1);
        t.turn(k % 3 + 1, k);
        let bound = t.view(k % 3 + 1).unwrap().version;
        assert!(bound > before, "{bound} after {before}");
        t.outbox();
        t.table.unbind(t.now, key(k % 3 + 1));
        before = t.outbox()[0].version;
        assert!(before > bound, "{before} after {bound}");
    }
    // Even what was stale or idled out on its way counts: its writer had got so far.
    let used = t.now - TTL;
    let far = version(ahead * 2, 9);
    let update = Update { key: key(0), version: far, what: What::Bound(at(1)), used };
    assert_eq!(t.merge(update), Merged::Expired);
    t.turn(5, 1);
    assert!(t.view(5).unwrap().version > far);
}

#[test]
fn r23_a_sequence_that_no_clock_can_reach_is_not_believed() {
    let far = (router(1).now + AHEAD).as_micros() + 1;
    for absurd in [far, u64::MAX / 4, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
        let mut t = router(1);
        assert_eq!(t.hear(absurd, What::Bound(at(1))), Merged::Untrue);
        assert_eq!(t.hear(absurd, What::Removed), Merged::Untrue);
        // Not even one that has idled out moves our clock, which others would not believe then.
        let (version, used) = (version(absurd, 9), Time::ZERO);
        let idle = Update { key: key(0), version, what: What::Bound(at(1)), used };
        assert_eq!(t.merge(idle), Merged::Untrue);
        t.table.saw(t.now, version);
        assert!(t.table.next_version(t.now).is_credible(t.now - AHEAD));
        assert_eq!(t.table.entries.len(), 0);
        t.turn(0, 2);
        let first = t.view(0).unwrap().version;
        t.table.unbind(t.now, key(0));
        t.turn(0, 3);
        assert!(t.view(0).unwrap().version > first, "or no write could surpass another");
    }
}
