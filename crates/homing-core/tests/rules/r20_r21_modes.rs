//! R20: each request brings its own mode. R21: the rules are the same under every policy.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Failure};
use homing_core::settings::{CoreSettings, Mode, PolicyKind};
use std::time::Duration;

#[test]
fn r20_off_neither_reads_nor_touches_the_binding() {
    let mut w = World::with(CoreSettings { policy: PolicyKind::RoundRobin, ..settings() }, 3);
    let (home, _) = w.turn(w.hard("s"));
    w.pass(Duration::from_secs(5));
    let before = w.session("s");
    let turns: Vec<_> = (0..3).map(|_| w.turn(w.plain())).collect();
    assert!(turns.iter().any(|t| t.0 != home) && turns.iter().all(|t| t.1 == Outcome::None));
    assert_eq!(w.session("s"), before, "not even its idle time");
    w.quiesce();
}

#[test]
fn r20_modes_may_change_from_request_to_request() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.soft("s"));
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit));
    assert_eq!(w.turn(w.plain()).1, Outcome::None);
    w.down(home);
    let (moved, outcome) = w.turn(w.hard("s"));
    assert_eq!(outcome, Outcome::Rebound);
    w.back(home);
    assert_eq!(w.turn(w.soft("s")), (moved, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r21_every_policy_obeys() {
    for policy in POLICIES {
        for mode in [Mode::Hard, Mode::Soft] {
            let mut w = World::with(CoreSettings { policy, ..settings() }, 4);
            let ask = |w: &World| w.ask_for(MODEL, Some(("s", mode)));
            // A first turn, joined by a second.
            let (a, b) = (w.grant(ask(&w)), w.grant(ask(&w)));
            let home = a.worker().id;
            assert_eq!(home, b.worker().id);
            let (a, first) = w.commit(w.go(a));
            let (b, second) = w.commit(w.go(b));
            assert_eq!((first, second), (Outcome::New, Outcome::Joined), "{policy:?}");
            // Later ones, whatever else goes on.
            for _ in 0..10 {
                w.turn(w.plain());
                assert_eq!(w.turn(ask(&w)), (home, Outcome::Hit), "{policy:?}");
            }
            // A failure moves it, a departure too.
            let moved = granted(w.retry(w.go(w.grant(ask(&w))), Failure::Broken));
            let second_home = moved.worker().id;
            let (c, outcome) = w.commit(w.go(moved));
            assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(second_home)));
            w.remove(second_home);
            let (third_home, outcome) = w.turn(ask(&w));
            assert_eq!(outcome, Outcome::Rebound);
            // A failed turn leaves it there.
            let checked = w.go(w.grant(ask(&w)));
            let _ = w.core.abandon(w.now, checked, Abandon::Failed);
            assert_eq!(w.home("s"), Some(third_home));
            [a, b, c].into_iter().for_each(|l| w.finish(l));
            w.quiesce();
        }
    }
}

#[test]
fn f18_a_policy_without_its_input_degrades_and_does_not_refuse() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 2);
        // No tokens, no events, no overlap: every worker still gets its share.
        let lives: Vec<_> = (0..20).map(|_| w.start(w.plain())).collect();
        assert!(w.core.workers().iter().all(|v| v.part.load.active_requests > 0), "{policy:?}");
        lives.into_iter().for_each(|l| w.finish(l.2));
        w.quiesce();
    }
}

#[test]
fn f19_a_dead_worker_does_not_win() {
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..settings() }, 3);
        let dead = w.core.worker_named("w1").unwrap();
        w.down(dead);
        let starting = w.register("w9");
        w.serves(starting, &[MODEL]);
        for _ in 0..30 {
            let (worker, _) = w.turn(w.plain());
            assert!(worker != dead && worker != starting, "{policy:?}");
        }
        w.quiesce();
    }
}
