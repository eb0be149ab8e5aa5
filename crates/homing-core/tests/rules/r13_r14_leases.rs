//! R13, R14: a lease lives as long as its stream and belongs to its request; what idles is gone in time.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Step;
use homing_core::partition::EXPIRE_AT_ONCE;
use std::time::Duration;

const MICRO: Duration = Duration::from_micros(1);

#[test]
fn r13_a_live_stream_keeps_the_binding_and_its_end_starts_the_idle_time() {
    let mut w = World::new(2);
    let (home, _, live) = w.start(w.hard("s"));
    for _ in 0..5 {
        w.pass(TTL * 2);
        w.core.handle_timeout(w.now);
        w.core.progress(w.now, &live, Step::Output(10));
        assert_eq!(w.home("s"), Some(home));
        assert_eq!(w.session("s").unwrap().idle, Duration::ZERO);
    }
    w.finish(live);
    w.pass(TTL - MICRO);
    assert_eq!(w.home("s"), Some(home));
    w.pass(MICRO);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r13_the_idle_time_starts_with_the_last_lease() {
    let mut w = World::new(2);
    let (home, _, first) = w.start(w.hard("s"));
    let (_, _, second) = w.start(w.hard("s"));
    w.finish(second);
    w.pass(TTL * 2);
    assert_eq!(w.home("s"), Some(home), "one still runs");
    w.finish(first);
    assert_eq!(w.session("s").unwrap().idle, Duration::ZERO);
    w.pass(TTL - MICRO);
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r13_a_replaced_bindings_lease_stays_in_the_count_and_never_counts_for_the_successor() {
    let mut w = World::new(3);
    let (old, _, before) = w.start(w.hard("s"));
    w.remove(old);
    let (new, outcome, after) = w.start(w.hard("s"));
    assert_eq!(outcome, Outcome::Rebound);
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (2, 1));
    w.finish(after);
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (1, 0));
    // The old stream, which goes on, does not hold the new binding.
    w.pass(TTL - MICRO);
    assert_eq!(w.home("s"), Some(new));
    w.pass(MICRO);
    assert_eq!(w.home("s"), None);
    // Nor does it release or refresh the one after that.
    let (_, _, third) = w.start(w.hard("s"));
    w.finish(before);
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (1, 1));
    w.finish(third);
    w.quiesce();
}

#[test]
fn r13_a_late_lease_does_not_refresh_its_successor() {
    let mut w = World::new(3);
    let (_, _, old) = w.start(w.hard("s"));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    w.turn(w.hard("s"));
    w.pass(TTL - MICRO);
    w.finish(old);
    assert_eq!(w.session("s").unwrap().idle, TTL - MICRO);
    w.pass(MICRO);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r13_a_removed_bindings_lease_releases_into_nothing_even_where_its_slot_is_anothers() {
    let w = World::new(2);
    let (_, _, old) = w.start(w.hard("s"));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    assert_eq!((w.stats().bindings, w.stats().leases), (0, 1), "the stream is kept");
    let (_, _, other) = w.start(w.hard("another"));
    w.finish(old);
    assert_eq!((w.stats().leases, w.session("another").unwrap().leases), (1, 1));
    w.finish(other);
    w.quiesce();
}

#[test]
fn r13_a_rebinding_ends_no_stream_early_and_leaves_no_lease() {
    let mut w = World::new(4);
    let mut lives = Vec::new();
    for _ in 0..3 {
        let (home, _, live) = w.start(w.hard("s"));
        lives.push(live);
        w.remove(home);
    }
    let (_, _, last) = w.start(w.hard("s"));
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (4, 1));
    lives.into_iter().rev().for_each(|l| w.finish(l));
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (1, 1));
    w.finish(last);
    w.quiesce();
}

#[test]
fn r13_a_lease_released_before_its_initializer_commits_is_not_counted() {
    let w = World::new(3);
    let initializer = w.go(w.grant(w.hard("s")));
    let (_, outcome, joiner) = w.start(w.hard("s"));
    assert_eq!((outcome, w.session("s").unwrap().leases), (Outcome::New, 1));
    w.finish(joiner);
    assert_eq!((w.session("s").unwrap().leases, w.stats().leases), (0, 0));
    let (live, outcome) = w.commit(initializer);
    assert_eq!(outcome, Outcome::Joined);
    assert_eq!((w.session("s").unwrap().leases, w.stats().leases), (1, 1));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r14_gone_at_the_deadline_and_not_before() {
    let mut w = World::new(2);
    w.turn(w.hard("s"));
    let due = w.core.poll_timeout().unwrap();
    assert_eq!(due, w.now + TTL);
    w.pass(TTL - MICRO);
    w.core.handle_timeout(w.now);
    assert_eq!((w.stats().bindings, w.stats().table.expired), (1, 0));
    w.pass(MICRO);
    assert_eq!(w.home("s"), None, "for whoever looks, swept or not");
    w.core.handle_timeout(w.now);
    assert_eq!((w.stats().bindings, w.stats().table.expired), (0, 1));
    w.quiesce();
}

#[test]
fn r14_pinned_across_its_deadline_a_binding_is_due_when_nothing_refreshed_it() {
    let mut w = World::new(2);
    for swept in [false, true] {
        w.turn(w.hard("s"));
        w.pass(TTL - MICRO);
        let grant = w.grant(w.hard("s"));
        w.pass(TTL);
        if swept {
            w.core.handle_timeout(w.now);
        }
        assert!(w.home("s").is_some());
        let _ = w.core.abandon(w.now, grant, homing_core::ask::Abandon::NotDispatched);
        assert_eq!(w.home("s"), None);
    }
    w.core.handle_timeout(w.now);
    assert_eq!(w.stats().table.expired, 2);
    w.quiesce();
}

#[test]
fn r14_an_expiry_storm_is_swept_in_bounded_steps() {
    let mut w = World::new(2);
    let n: u64 = 2500;
    for i in 0..n {
        let core = &w.core;
        let grant = granted(core.admit(w.now, w.hard(&format!("s{i}"))));
        let homing_core::ask::Dispatch::Go(checked) = core.check_dispatch(w.now, grant) else {
            panic!("a first turn goes on");
        };
        let (live, _) = core.commit(w.now, checked);
        core.finish(w.now, live);
    }
    w.pass(TTL);
    let mut steps = 0;
    while w.core.poll_timeout().is_some_and(|due| due <= w.now) {
        let before = w.stats().bindings;
        w.core.handle_timeout(w.now);
        assert!((1..=EXPIRE_AT_ONCE).contains(&(before - w.stats().bindings)));
        steps += 1;
    }
    assert_eq!((steps, w.stats().table.expired), (n.div_ceil(EXPIRE_AT_ONCE as u64), n));
    assert!(w.core.sessions(w.now, 10).is_empty());
    w.quiesce();
}

#[test]
fn f14_a_long_request_is_never_forgotten() {
    let mut w = World::new(2);
    let (worker, _, live) = w.start(w.plain());
    w.pass(Duration::from_secs(86_400 * 30));
    w.core.handle_timeout(w.now);
    assert_eq!(w.part(worker).load.active_requests, 1);
    w.finish(live);
    w.quiesce();
}
