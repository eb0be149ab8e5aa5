//! R05, R06: a bound session's turns go home, whatever that costs.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Abandon;
use homing_core::settings::CoreSettings;
use std::time::Duration;

#[test]
fn r05_later_turns_stay_on_one_worker() {
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..settings() }, 4);
        let (home, _) = w.turn(w.hard("s"));
        for _ in 0..20 {
            w.pass(Duration::from_secs(59));
            w.turn(w.plain());
            assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "{policy:?}");
        }
        w.quiesce();
    }
}

#[test]
fn r05_a_bound_hold_counts_as_a_lease_so_that_expiry_cannot_race_with_it() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    w.pass(TTL - Duration::from_micros(1));
    let grant = w.grant(w.hard("s"));
    assert_eq!((w.stats().leases, w.session("s").unwrap().leases), (1, 1));
    w.pass(TTL * 3);
    w.core.handle_timeout(w.now);
    assert_eq!(w.home("s"), Some(home));
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!((outcome, w.stats().leases), (Outcome::Hit, 1));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r06_hard_pin_beats_load() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 3);
        let (home, _) = w.turn(w.hard("s"));
        // All of it is at home, none elsewhere.
        let lives: Vec<_> = (0..30).map(|_| w.start(w.hard("s"))).collect();
        assert!(lives.iter().all(|l| l.0 == home), "{policy:?}");
        assert_eq!(w.part(home).load.active_requests, 30);
        let grant = w.grant(w.hard("s"));
        assert_eq!((grant.placement().eligible, grant.placement().considered), (3, 1));
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        lives.into_iter().for_each(|l| w.finish(l.2));
        w.quiesce();
    }
}

#[test]
fn r06_soft_keeps_while_eligible() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 3);
        let (home, _) = w.turn(w.soft("s"));
        let lives: Vec<_> = (0..30).map(|_| w.start(w.soft("s"))).collect();
        assert!(lives.iter().all(|l| (l.0, l.1) == (home, Outcome::Hit)), "{policy:?}");
        lives.into_iter().for_each(|l| w.finish(l.2));
        w.quiesce();
    }
}

#[test]
fn r06_the_mode_is_the_request_s_and_never_stored() {
    let mut w = World::new(2);
    let (home, _) = w.turn(w.soft("s"));
    // Bound by a soft request, a constraint to a hard one; and the other way round.
    assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
    w.down(home);
    let (moved, outcome) = w.turn(w.soft("s"));
    assert_eq!(outcome, Outcome::Rebound);
    w.back(home);
    assert_eq!(w.turn(w.hard("s")), (moved, Outcome::Hit));
    w.quiesce();
}
