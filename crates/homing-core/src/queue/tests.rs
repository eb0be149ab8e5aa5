//! The queue against plain lists: nothing is lost, nothing served twice, and the order is kept.

use super::*;
use proptest::prelude::*;

#[test]
fn f42_the_bound_is_kept_and_the_item_comes_back() {
    let mut q = Queue::new(1, 0);
    let place = q.push("a", Time::ZERO, Claimant::default()).unwrap();
    // Whoever it is.
    let urgent = Claimant { priority: i32::MAX, tenant: 1 };
    assert_eq!(q.push("b", Time::ZERO, urgent).unwrap_err(), "b");
    assert_eq!(q.leave(place).item, "a");
    assert!(q.is_empty());
}

const fn of(priority: i32, tenant: u64) -> Claimant {
    Claimant { priority, tenant }
}

fn wake(q: &mut Queue<&'static str>) -> Option<WaitId> {
    let woken = q.wake_next();
    q.check();
    woken
}

#[test]
fn the_order_is_priority_then_turns_then_arrival() {
    let mut q = Queue::new(9, 0);
    let come = [
        ("a1", of(0, 1)),
        ("a2", of(0, 1)),
        ("b1", of(0, 2)),
        ("low", of(-1, 1)),
        ("a3", of(0, 1)),
        ("high", of(7, 1)),
        ("b2", of(0, 2)),
    ];
    for (item, who) in come {
        let _ = q.push(item, Time::ZERO, who).unwrap();
    }
    assert!(q.items().eq(&["high", "a1", "b1", "a2", "b2", "a3", "low"]));
}

#[test]
fn who_comes_late_and_stands_before_those_who_have_tried_tries_next() {
    let mut q = Queue::new(9, 0);
    let mut places: Vec<_> =
        ["a", "b", "c"].map(|i| q.push(i, Time::ZERO, of(0, 0)).unwrap()).into();
    // Two try in vain.
    for _ in 0..2 {
        let id = wake(&mut q).unwrap();
        assert_eq!(id, places[0].id());
        let left = q.leave(places.remove(0));
        let _ = q.resume(left.item, left.deadline, left.stood);
    }
    let other = q.push("other", Time::ZERO, of(0, 1)).unwrap();
    let high = q.push("high", Time::ZERO, of(1, 0)).unwrap();
    // Then these, in order; then who has not tried either.
    for place in [high, other, places.remove(0)] {
        assert_eq!(wake(&mut q), Some(place.id()));
        assert_eq!(wake(&mut q), None, "one at a time");
        let left = q.leave(place);
        let _ = q.resume(left.item, left.deadline, left.stood);
    }
    assert_eq!(wake(&mut q), None);
    assert!(q.all_tried());
    let low = q.push("low", Time::ZERO, of(-1, 0)).unwrap();
    assert_eq!(wake(&mut q), Some(low.id()));
    // Everybody again, from the front.
    q.freed();
    let _ = q.leave(low);
    wake(&mut q).unwrap();
    assert!(q.items().eq(&["high", "a", "other", "b", "c"]));
    assert!(q.waiting.values().next().unwrap().awake);
}

/// As many as some queue may hold, of as many tenants and priorities: where an operation walks the queue
/// this takes minutes.
#[test]
fn a_long_queue_costs_no_more_for_each_than_a_short_one() {
    const N: u64 = 50_000;
    for (priorities, tenants) in [(1, 1), (3, 5), (1, N), (N as i32, 1)] {
        let mut q = Queue::new(N as usize, 0);
        let mut places: BTreeMap<u64, Place> = (1..=N)
            .map(|i| {
                let who = of((i % priorities as u64) as i32, i % tenants);
                (i, q.push(i, Time::from_micros(1 + i * 7919 % N), who).unwrap())
            })
            .collect();
        let order: Vec<u64> = q.items().copied().collect();
        if (priorities, tenants) == (1, 1) {
            assert!(order.iter().copied().eq(1..=N));
        }
        let next = |q: &mut Queue<u64>, places: &mut BTreeMap<u64, Place>| {
            let WaitId(serial) = q.wake_next()?;
            assert_eq!(q.wake_next(), None, "one at a time");
            assert!(q.someone_awake());
            let left = q.leave(places.remove(&serial).unwrap());
            assert!(left.awake && left.item == serial);
            Some(left)
        };
        // Everybody tries in vain, in order, and once.
        for i in &order {
            let left = next(&mut q, &mut places).unwrap();
            assert_eq!(left.item, *i);
            places.insert(left.item, q.resume(left.item, left.deadline, left.stood));
            assert_eq!(q.next_deadline(), Some(Time::from_micros(1)));
        }
        assert_eq!(q.wake_next(), None);
        assert!(q.all_tried());
        // Capacity for one at a time: the first goes, the next two try in vain.
        let (gone, stay) = order.split_at(order.len() / 4);
        for (n, first) in gone.iter().enumerate() {
            q.freed();
            let left = next(&mut q, &mut places).unwrap();
            assert_eq!(left.item, *first);
            q.served(left.stood);
            for i in &order[n + 1..n + 3] {
                let left = next(&mut q, &mut places).unwrap();
                assert_eq!(left.item, *i);
                places.insert(left.item, q.resume(left.item, left.deadline, left.stood));
            }
        }
        // Some give up, from anywhere; the rest comes due.
        for i in stay.iter().step_by(3) {
            let _ = q.leave(places.remove(i).unwrap());
        }
        q.check();
        let mut before = Time::ZERO;
        while let Some(due) = q.next_deadline() {
            assert!(due >= before, "out of order");
            before = due;
            let WaitId(serial) = q.wake_overdue(due).unwrap();
            if serial % 2 == 0 {
                let _ = q.leave(places.remove(&serial).unwrap());
            }
        }
        assert_eq!(q.wake_overdue(Time::from_micros(u64::MAX)), None);
        assert_eq!(q.len(), places.len());
        q.check();
        for place in places.into_values() {
            assert!(q.leave(place).awake);
        }
        assert!(q.is_empty() && !q.someone_awake());
        q.check();
    }
}

/// Who is whose turn, as plainly as can be: for each priority what was served last, and each tenant's next.
#[derive(Default)]
struct PlainTurns {
    now: BTreeMap<i32, u64>,
    next: BTreeMap<(i32, u64), u64>,
}

impl PlainTurns {
    fn start(&mut self, who: Claimant) -> u64 {
        let now = *self.now.entry(who.priority).or_default();
        let next = self.next.entry((who.priority, who.tenant)).or_default();
        let start = now.max(*next);
        *next = start + 1;
        start
    }

    /// It has left; `others` of its priority wait.
    fn left(&mut self, who: Claimant, start: u64, others: bool) {
        let next = self.next.entry((who.priority, who.tenant)).or_default();
        if *next == start + 1 {
            *next = start;
        }
        if !others {
            self.now.remove(&who.priority);
            self.next.retain(|(priority, _), _| *priority != who.priority);
        }
    }

    fn back(&mut self, who: Claimant, start: u64) {
        self.now.entry(who.priority).or_insert(start);
        let next = self.next.entry((who.priority, who.tenant)).or_default();
        *next = (*next).max(start + 1);
    }

    fn served(&mut self, who: Claimant, start: u64) {
        if let Some(now) = self.now.get_mut(&who.priority) {
            *now = (*now).max(start);
            self.back(who, start);
        }
    }
}

#[derive(Clone, Copy)]
struct Plain {
    item: u64,
    who: Claimant,
    start: u64,
    serial: u64,
    deadline: u64,
}

impl Plain {
    fn order(&self) -> (Reverse<i32>, u64, u64) {
        (Reverse(self.who.priority), self.start, self.serial)
    }
}

proptest! {
    /// The model: a list. Nothing is lost, nothing served twice, order is kept.
    #[test]
    fn the_queue_equals_a_list(
        ops in prop::collection::vec((0u8..11, any::<usize>(), 0u64..50, 0i32..3, 0u64..3), 0..150),
    ) {
        let mut q = Queue::new(8, 0);
        let mut model: Vec<Plain> = Vec::new();
        let mut turns = PlainTurns::default();
        let mut places: Vec<Place> = Vec::new();
        let mut tried = BTreeSet::new();
        let mut awake = BTreeSet::new();
        for (item, (op, i, t, priority, tenant)) in ops.into_iter().enumerate() {
            let item = item as u64;
            match op {
                0..=2 => match q.push(item, Time::from_micros(t), of(priority, tenant)) {
                    Ok(p) => {
                        let (who, WaitId(serial)) = (of(priority, tenant), p.id());
                        let start = turns.start(who);
                        model.push(Plain { item, who, start, serial, deadline: t });
                        places.push(p);
                    }
                    Err(back) => { prop_assert_eq!(back, item); prop_assert_eq!(model.len(), 8); }
                },
                // One leaves, and that is all; is served; or comes back.
                3..=5 => if let Some(i) = i.checked_rem(places.len()) {
                    let p = places.swap_remove(i);
                    let WaitId(serial) = p.id();
                    let left = q.leave(p);
                    prop_assert_eq!(left.awake, awake.remove(&serial));
                    let at = model.iter().position(|m| m.serial == serial).unwrap();
                    let want = model.remove(at);
                    prop_assert_eq!((left.item, left.deadline.as_micros()), (want.item, want.deadline));
                    let others = model.iter().any(|m| m.who.priority == want.who.priority);
                    turns.left(want.who, want.start, others);
                    match op {
                        3 => {}
                        4 => { q.served(left.stood); turns.served(want.who, want.start); }
                        _ => {
                            places.push(q.resume(left.item, left.deadline, left.stood));
                            turns.back(want.who, want.start);
                            model.push(want);
                            tried.insert(serial);
                        }
                    }
                },
                6 => { q.freed(); tried.clear(); }
                7 => {
                    let now = Time::from_micros(t / 2);
                    let due = model.iter().filter(|m| m.deadline <= t / 2 && !awake.contains(&m.serial));
                    let want = due.min_by_key(|m| (m.deadline, m.order())).map(|m| m.serial);
                    let woken = q.wake_overdue(now).map(|w| w.0);
                    prop_assert_eq!(woken, want);
                    awake.extend(woken);
                }
                _ => {
                    let woken = q.wake_next().map(|w| w.0);
                    let untried = model.iter().filter(|m| !tried.contains(&m.serial));
                    let want = untried.min_by_key(|m| m.order()).map(|m| m.serial);
                    prop_assert_eq!(woken, want.filter(|_| awake.is_empty()));
                    awake.extend(woken);
                }
            }
            q.check();
            model.sort_by_key(Plain::order);
            prop_assert!(q.items().copied().eq(model.iter().map(|m| m.item)));
            prop_assert_eq!(q.someone_awake(), !awake.is_empty());
            let asleep = model.iter().filter(|m| !awake.contains(&m.serial)).map(|m| m.deadline);
            prop_assert_eq!(q.next_deadline(), asleep.min().map(Time::from_micros));
            prop_assert_eq!(q.all_tried(), model.iter().all(|m| tried.contains(&m.serial)));
        }
    }

    /// Of tenants who have something waiting all the time none is served two more often than another,
    /// whoever else comes and goes, and in whatever order requests come.
    #[test]
    fn tenants_that_always_wait_are_served_alike(
        mut come in prop::collection::vec(0u64..3, 60),
        visits in prop::collection::vec(prop::option::of(3u64..6), 30),
    ) {
        // Enough of each of the three for all that follows.
        come.extend((0..3).flat_map(|t| std::iter::repeat_n(t, 60)));
        let mut q = Queue::new(usize::MAX, 0);
        let push = |q: &mut Queue<u64>, tenant| {
            let _ = q.push(tenant, Time::ZERO, of(0, tenant)).unwrap();
        };
        come.iter().for_each(|t| push(&mut q, *t));
        let mut served = [0i32; 6];
        for visitor in visits {
            visitor.into_iter().for_each(|v| push(&mut q, v));
            q.freed();
            let first = q.wake_next().unwrap();
            let at = *q.waiting.first_key_value().unwrap().0;
            prop_assert_eq!(at.id(), first);
            let left = q.leave(Place { at });
            served[left.item as usize] += 1;
            q.served(left.stood);
            let [a, b, c, ..] = served;
            let most = a.max(b).max(c) - a.min(b).min(c);
            prop_assert!(most <= 1, "{served:?}");
        }
    }
}
