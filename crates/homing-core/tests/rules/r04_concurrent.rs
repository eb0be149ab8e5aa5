//! R04: of concurrent first turns one initializes; the others follow what it has selected, and are not
//! harmed by what becomes of it.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Failure};
use homing_core::fleet::FleetChange;
use homing_core::ids::WorkerId;
use homing_core::settings::{CoreSettings, OnDown, OnOverload, PolicyKind};

#[test]
fn r04_concurrent_first_turns_join_the_tentative_target() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 4);
        let grants: Vec<_> = (0..6).map(|_| w.grant(w.hard("s"))).collect();
        let home = grants[0].worker().id;
        assert!(grants.iter().all(|g| g.worker().id == home), "{policy:?}: all at {home:?}");
        assert_eq!(w.home("s"), None, "nothing is bound before one of them runs");
        assert_eq!(w.stats().leases, 0);
        let checked: Vec<_> = grants.into_iter().map(|g| w.go(g)).collect();
        // Whoever comes first binds: here not the initializer.
        let (lives, outcomes): (Vec<_>, Vec<_>) =
            checked.into_iter().rev().map(|c| w.commit(c)).unzip();
        assert_eq!(outcomes[0], Outcome::New);
        assert!(outcomes[1..].iter().all(|o| *o == Outcome::Joined), "{outcomes:?}");
        assert_eq!((w.home("s"), w.session("s").unwrap().leases), (Some(home), 6));
        lives.into_iter().for_each(|l| w.finish(l));
        w.quiesce();
    }
}

#[test]
fn r04_joiners_wait_for_no_generation() {
    let w = World::new(3);
    let first = w.grant(w.hard("s"));
    // The initializer is still being dispatched; the other gets its place at once, and may be first.
    let (_, outcome, live) = w.start(w.hard("s"));
    assert_eq!(outcome, Outcome::New);
    let (first, outcome) = w.commit(w.go(first));
    assert_eq!(outcome, Outcome::Joined);
    w.finish(first);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r04_a_failed_initializer_does_not_harm_its_joiners() {
    for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
        let w = World::new(3);
        let initializer = w.go(w.grant(w.hard("s")));
        let joiner = w.grant(w.hard("s"));
        let target = joiner.worker().id;
        assert_eq!(w.core.abandon(w.now, initializer, why), Outcome::Unbound);
        let late = w.grant(w.hard("s"));
        assert_eq!(late.worker().id, target, "the tentative target stands while somebody holds it");
        let (a, first) = w.commit(w.go(joiner));
        let (b, second) = w.commit(w.go(late));
        assert_eq!((first, second, w.home("s")), (Outcome::New, Outcome::Joined, Some(target)));
        w.finish(a);
        w.finish(b);
        w.quiesce();
    }
}

#[test]
fn r04_the_last_to_leave_takes_the_tentative_target_along() {
    let w = World::with(CoreSettings { policy: PolicyKind::RoundRobin, ..settings() }, 3);
    let grant = w.grant(w.hard("s"));
    let target = grant.worker().id;
    let _ = w.core.abandon(w.now, grant, Abandon::Failed);
    let next = w.grant(w.hard("s"));
    assert_eq!(next.placement().considered, 3);
    assert_ne!(next.worker().id, target);
    let _ = w.core.abandon(w.now, next, Abandon::Failed);
    w.quiesce();
}

#[test]
fn r04_a_tentative_target_that_cannot_be_used_is_replaced_and_refuses_nobody() {
    let mut w = World::new(3);
    let initializer = w.grant(w.hard("s"));
    let gone = initializer.worker().id;
    w.remove(gone);
    let second = w.grant(w.hard("s"));
    let third = w.grant(w.hard("s"));
    assert_ne!(second.worker().id, gone);
    assert_eq!(third.worker().id, second.worker().id, "the replacement is joined");
    for grant in [initializer, second, third] {
        let _ = w.core.abandon(w.now, grant, Abandon::Failed);
    }
    w.quiesce();
}

#[test]
fn r04_a_joiner_that_failed_at_the_tentative_target_leads_the_later_ones() {
    let w = World::new(3);
    let initializer = w.grant(w.hard("s"));
    let joiner = w.go(w.grant(w.hard("s")));
    let moved = granted(w.retry(joiner, Failure::Broken));
    assert_ne!(moved.worker().id, initializer.worker().id);
    let later = w.grant(w.hard("s"));
    assert_eq!(later.worker().id, moved.worker().id);
    for grant in [initializer, moved, later] {
        let _ = w.core.abandon(w.now, grant, Abandon::Failed);
    }
    w.quiesce();
}

#[test]
fn r04_soft_first_turns_join_too() {
    let w = World::with(CoreSettings { policy: PolicyKind::RoundRobin, ..settings() }, 3);
    let (a, b) = (w.grant(w.hard("s")), w.grant(w.soft("s")));
    assert_eq!(a.worker().id, b.worker().id);
    for grant in [a, b] {
        let _ = w.core.abandon(w.now, grant, Abandon::Failed);
    }
    w.quiesce();
}

#[test]
fn r04_an_initializer_that_is_queued_does_not_hold_the_others() {
    let w = World::with(queueing(4), 1);
    let (_, _, other) = w.start(w.plain());
    let first = w.waiting(w.hard("s"));
    let second = w.waiting(w.hard("s"));
    let ids = [first.id(), second.id()];
    assert_eq!(w.stats().waiting, 2);
    w.core.cancel(w.now, first);
    w.finish(other);
    assert_eq!(w.core.poll_output(), Some(homing_core::ask::Output::Wake(ids[1])));
    let (live, outcome) = w.commit(w.go(granted(w.claim(second))));
    assert_eq!(outcome, Outcome::New);
    w.finish(live);
    w.quiesce();
}

#[test]
fn r04_a_joiner_is_never_refused_for_its_tentative_target() {
    type Trouble = fn(&mut World, WorkerId);
    let troubles: [Trouble; 5] = [
        |w, id| w.down(id),
        |w, id| _ = w.fleet(FleetChange::Unsure(id)),
        |w, id| w.overload(id, None),
        |w, id| w.drain(id, None),
        |w, id| w.serves(id, &["another"]),
    ];
    for (i, trouble) in troubles.into_iter().enumerate() {
        for mode in MODES {
            let mut s = settings();
            s.affinity.on_overload = OnOverload::Reject;
            s.affinity.on_down = OnDown::Reject;
            let mut w = World::with(s, 3);
            let first = w.grant(w.hard("s"));
            let tentative = first.worker().id;
            trouble(&mut w, tentative);
            let second = w.grant(w.ask("s", mode));
            assert_ne!(second.worker().id, tentative, "trouble {i}");
            // Nor for its own constraints.
            let elsewhere = w.others(second.worker().id).into_iter().find(|id| *id != tentative);
            let name = w.name_of(elsewhere.unwrap());
            let third = w.grant(only(w.ask("s", mode), &[&name]));
            assert_eq!(w.name_of(third.worker().id), name);
            for grant in [first, second, third] {
                let _ = w.core.abandon(w.now, grant, Abandon::Failed);
            }
            w.quiesce();
        }
    }
}

#[test]
fn r04_a_joiner_keeps_to_its_target_while_that_is_busy() {
    for mode in MODES {
        let w = World::with(queueing(4), 2);
        let first = w.grant(w.hard("s"));
        let second = w.grant(w.ask("s", mode));
        assert_eq!(second.worker().id, first.worker().id, "as a bound one would");
        for grant in [first, second] {
            let _ = w.core.abandon(w.now, grant, Abandon::Failed);
        }
        w.quiesce();
    }
}

#[test]
fn r04_first_turns_that_name_one_worker_join_on_one_of_its_ranks() {
    for policy in POLICIES {
        for mode in MODES {
            let mut w = World::with(CoreSettings { policy, ..settings() }, 1);
            w.up_with_ranks("many", 0, 4);
            let ask = || at(w.ask("s", mode), "many", None);
            let grants: Vec<_> = (0..5).map(|_| w.grant(ask())).collect();
            let target = grants[0].target();
            assert!(grants.iter().all(|g| g.target() == target), "{policy:?}");
            let checked: Vec<_> = grants.into_iter().map(|g| w.go(g)).collect();
            let (lives, outcomes): (Vec<_>, Vec<_>) =
                checked.into_iter().rev().map(|c| w.commit(c)).unzip();
            assert_eq!(outcomes[0], Outcome::New);
            assert!(outcomes[1..].iter().all(|o| *o == Outcome::Joined), "{outcomes:?}");
            assert_eq!(w.session("s").unwrap().target, target);
            lives.into_iter().for_each(|l| w.finish(l));
            w.quiesce();
        }
    }
}

#[test]
fn r04_a_first_turn_that_names_another_rank_goes_there() {
    let mut w = World::new(0);
    let id = w.up_with_ranks("many", 0, 4);
    let first = w.grant(at(w.hard("s"), "many", Some(2)));
    for (rank, want) in [(None, 2), (Some(3), 3)] {
        let grant = w.grant(at(w.hard("s"), "many", rank));
        assert_eq!(grant.target(), target(id, want));
        let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
    }
    let _ = w.core.abandon(w.now, first, Abandon::NotDispatched);
    w.quiesce();
}
