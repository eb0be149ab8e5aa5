//! R03: an unknown or expired session may go anywhere, and lives where its first request ran.

use super::world::*;
use homing_core::affinity::{Outcome, Steer};
use homing_core::ask::Failure;
use homing_core::ids::{DpRank, Target};

#[test]
fn r03_an_unknown_session_sees_every_eligible_candidate() {
    let mut w = World::new(4);
    let down = w.core.worker_named("w3").unwrap();
    w.down(down);
    let grant = w.grant(w.hard("s"));
    assert_eq!((grant.placement().eligible, grant.placement().considered), (3, 3));
    let _ = w.core.abandon(w.now, grant, homing_core::ask::Abandon::NotDispatched);
    assert_eq!(w.stats().bindings, 0, "selection alone binds nothing");
    w.quiesce();
}

#[test]
fn r03_commit_binds_to_worker_and_rank() {
    let w = World::new(3);
    let (worker, outcome) = w.turn(w.hard("s"));
    assert_eq!(outcome, Outcome::New);
    let target = Target { worker, rank: Some(DpRank(0)) };
    assert_eq!(w.session("s").unwrap().target, target);
    assert_eq!(w.part(worker).bindings, 1);
    w.quiesce();
}

#[test]
fn r03_the_session_lives_where_it_ran_and_not_where_it_was_first_sent() {
    let w = World::new(2);
    let first = w.grant(w.hard("s"));
    let picked = first.worker().id;
    let second = granted(w.retry(w.go(first), Failure::Broken));
    let ran = second.worker().id;
    let (live, outcome) = w.commit(w.go(second));
    assert_ne!(ran, picked);
    assert_eq!((w.home("s"), outcome), (Some(ran), Outcome::New));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r03_an_expired_session_is_an_unknown_one() {
    let mut w = World::new(3);
    w.turn(w.hard("s"));
    w.pass(TTL);
    let preview = w.core.preview(w.now, &w.hard("s")).unwrap();
    assert!(matches!(preview.steer, None | Some(Steer::Free)));
    let grant = w.grant(w.hard("s"));
    assert_eq!(grant.placement().considered, 3);
    let (live, outcome) = w.commit(w.go(grant));
    assert_eq!(outcome, Outcome::New);
    w.finish(live);
    w.quiesce();
}

#[test]
fn f02_sessions_match_exactly() {
    let w = World::new(4);
    let homes: Vec<_> = ["s-1", "s-12", "s-", "S-1"].iter().map(|id| w.turn(w.hard(id))).collect();
    assert!(homes.iter().all(|h| h.1 == Outcome::New));
    assert_eq!(w.stats().bindings, 4);
    w.quiesce();
}

#[test]
fn f03_requests_without_a_key_spread() {
    for policy in POLICIES {
        let w = World::with(homing_core::settings::CoreSettings { policy, ..settings() }, 4);
        let lives: Vec<_> = (0..40).map(|_| w.start(w.plain())).collect();
        for view in w.core.workers() {
            assert!((1..30).contains(&view.part.load.active_requests), "{policy:?}: {view:?}");
        }
        lives.into_iter().for_each(|(_, _, live)| w.finish(live));
        w.quiesce();
    }
}
