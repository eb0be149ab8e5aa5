//! R27: more than so many holds and leases on one session are placed as without one.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Failure};
use homing_core::settings::{CoreSettings, PolicyKind};

fn at_most(max_parallel: u32) -> CoreSettings {
    let mut settings = settings();
    settings.affinity.max_parallel = max_parallel;
    settings
}

#[test]
fn r27_the_surplus_is_placed_as_without_a_session() {
    for policy in POLICIES {
        for mode in MODES {
            let w = World::with(CoreSettings { policy, ..at_most(3) }, 3);
            let (home, _) = w.turn(w.hard("s"));
            let lives: Vec<_> = (0..3).map(|_| w.start(w.ask("s", mode))).collect();
            assert!(lives.iter().all(|l| (l.0, l.1) == (home, Outcome::Hit)));
            let before = w.session("s").unwrap();
            let grant = w.grant(w.ask("s", mode));
            assert_eq!(grant.placement().considered, 3, "{policy:?}: not pinned");
            let (live, outcome) = w.commit(w.go(grant));
            assert_eq!((outcome, w.session("s")), (Outcome::Surplus, Some(before)));
            assert_eq!((w.stats().leases, w.stats().bookings, w.moves()), (3, 4, [0; 4]));
            // One less, and the next is a hit again.
            let mut lives: Vec<_> = lives.into_iter().map(|l| l.2).collect();
            w.finish(lives.pop().unwrap());
            assert_eq!(w.turn(w.ask("s", mode)), (home, Outcome::Hit));
            w.finish(live);
            lives.into_iter().for_each(|l| w.finish(l));
            w.quiesce();
        }
    }
}

#[test]
fn r27_one_shared_key_cannot_pin_everybody_to_one_worker() {
    let w = World::with(CoreSettings { policy: PolicyKind::LeastLoaded, ..at_most(4) }, 4);
    let lives: Vec<_> = (0..40).map(|_| w.start(w.hard("shared"))).collect();
    for view in w.core.workers() {
        assert_eq!(view.part.load.active_requests, 10);
    }
    assert_eq!(w.outcomes(Outcome::Surplus), 36);
    lives.into_iter().for_each(|l| w.finish(l.2));
    w.quiesce();
}

#[test]
fn r27_holds_count_like_leases_and_first_turns_too() {
    let w = World::with(at_most(3), 3);
    let held: Vec<_> = (0..3).map(|_| w.grant(w.hard("s"))).collect();
    let (_, outcome, surplus) = w.start(w.hard("s"));
    assert_eq!((outcome, w.home("s")), (Outcome::Surplus, None), "and binds nothing");
    for grant in held {
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    }
    assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
    let mixed = (w.grant(w.hard("s")), w.start(w.hard("s")).2, w.grant(w.hard("s")));
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Surplus);
    let _ = w.core.abandon(w.now, mixed.0, Abandon::NotDispatched);
    let _ = w.core.abandon(w.now, mixed.2, Abandon::NotDispatched);
    w.finish(mixed.1);
    w.finish(surplus);
    w.quiesce();
}

#[test]
fn r27_other_sessions_have_their_own_share() {
    let w = World::with(at_most(1), 3);
    let lives: Vec<_> = (0..5).map(|i| w.start(w.hard(&format!("s{i}")))).collect();
    assert!(lives.iter().all(|l| l.1 == Outcome::New));
    lives.into_iter().for_each(|l| w.finish(l.2));
    w.quiesce();
}

#[test]
fn r27_zero_is_no_bound_and_the_default_is_32() {
    for (settings, most) in [(at_most(0), 200), (settings(), 32)] {
        let w = World::with(settings, 2);
        w.turn(w.hard("s"));
        let lives: Vec<_> = (0..200).map(|_| w.start(w.hard("s"))).collect();
        let hits = lives.iter().filter(|l| l.1 == Outcome::Hit).count();
        assert_eq!(hits, most);
        assert_eq!(w.stats().leases, most);
        lives.into_iter().for_each(|l| w.finish(l.2));
        w.quiesce();
    }
}

#[test]
fn r27_a_moved_request_keeps_its_share_and_a_surplus_one_may_get_one() {
    let w = World::with(at_most(1), 3);
    w.turn(w.hard("s"));
    let checked = w.go(w.grant(w.hard("s")));
    let surplus = w.go(w.grant(w.hard("s")));
    let moved = granted(w.retry(checked, Failure::Broken));
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!(outcome, Outcome::Rebound, "it was there first");
    w.finish(live);
    let moved = granted(w.retry(surplus, Failure::Broken));
    let (live, outcome) = w.commit(w.go(moved));
    assert!(matches!(outcome, Outcome::Hit | Outcome::Rebound), "{outcome}: there is room now");
    w.finish(live);
    w.quiesce();
}

#[test]
fn r27_a_surplus_one_that_fails_or_leaves_touches_nothing() {
    let mut w = World::with(at_most(1), 3);
    let (_, _, live) = w.start(w.hard("s"));
    w.pass(SECOND);
    let before = w.session("s");
    for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
        let checked = w.go(w.grant(w.hard("s")));
        assert_eq!(w.core.abandon(w.now, checked, why), Outcome::Unbound);
        assert_eq!(w.session("s"), before);
    }
    let moved = granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken));
    let (other, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, w.session("s")), (Outcome::Surplus, before));
    w.finish(other);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r27_a_surplus_final_turn_ends_nothing() {
    let w = World::with(at_most(1), 3);
    let (home, _, live) = w.start(w.hard("s"));
    let (_, outcome) = w.turn(last(w.hard("s")));
    assert_eq!((outcome, w.session("s").unwrap().last), (Outcome::Surplus, false));
    w.finish(live);
    assert_eq!(w.home("s"), Some(home));
    w.quiesce();
}
