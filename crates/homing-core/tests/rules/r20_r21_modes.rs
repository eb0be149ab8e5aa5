//! R20: each request brings its own mode. R21: the rules are the same under every policy.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Failure};
use homing_core::select::policy::Policy;
use homing_core::select::{Candidate, Demand, Fit};
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

/// Likes whoever has the most to do, of the lowest id: as far from the built-in ones as can be.
#[derive(Clone, Debug)]
struct Contrary;

impl Policy for Contrary {
    fn cost(&self, _: &Demand, c: &Candidate) -> f64 {
        f64::from(c.worker.0) - f64::from(c.load.active_requests)
    }
}

#[test]
fn r21_a_custom_policy_obeys_too() {
    for mode in MODES {
        let mut w = World::choosing(settings(), Contrary, 4);
        // It would have all of them at w0; the session's home is w2.
        let (home, _) = w.turn(at(w.ask("s", mode), "w2", None));
        let (crowd, _, live) = w.start(w.plain());
        assert_eq!(w.name_of(crowd), "w0");
        for _ in 0..5 {
            assert_eq!(w.turn(w.ask("s", mode)), (home, Outcome::Hit));
        }
        let (a, b) = (w.grant(w.ask("t", mode)), w.grant(w.ask("t", mode)));
        assert_eq!((a.worker().id, b.worker().id), (crowd, crowd));
        for grant in [a, b] {
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        w.remove(home);
        assert_eq!(w.turn(w.ask("s", mode)), (crowd, Outcome::Rebound), "its choice again");
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r21_no_policy_is_asked_where_a_session_pins_or_a_request_excludes() {
    /// Says that it never saw what it must not see.
    #[derive(Clone, Debug)]
    struct Watchful;
    impl Policy for Watchful {
        fn cost(&self, _: &Demand, c: &Candidate) -> f64 {
            let unusable = Fit::NOT_READY.and(Fit::FORBIDDEN).and(Fit::FAILED).and(Fit::DRAINING);
            assert!(!c.fit.any(unusable), "{c:?}");
            0.0
        }
    }
    let mut w = World::choosing(CoreSettings { retry_attempts: 2, ..settings() }, Watchful, 5);
    let id = |w: &World, name| w.core.worker_named(name).unwrap();
    w.down(id(&w, "w0"));
    w.drain(id(&w, "w1"), None);
    for ask in [w.plain(), w.hard("s"), w.soft("t")] {
        let mut grant = w.grant(only(ask, &["w0", "w1", "w2", "w3"]));
        assert_eq!(grant.placement().considered, 2);
        grant = granted(w.retry(w.go(grant), Failure::Broken));
        assert_eq!(grant.placement().considered, 1);
        let (live, _) = w.commit(w.go(grant));
        w.finish(live);
    }
    let grant = w.grant(w.hard("s"));
    assert_eq!(grant.placement().considered, 1);
    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    w.quiesce();
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
