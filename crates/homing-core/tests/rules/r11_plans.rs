//! R10, R11: what selection decided about a binding is carried out at commit, if the binding is still
//! the one that it saw; and a plan that comes to nothing leaves nothing.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Ask, Checked, Failure};
use homing_core::ids::WorkerId;
use homing_core::settings::Mode;

/// Each leaves a live home on purpose: the request, and the outcome and moves of an unchanged commit.
struct Away {
    name: &'static str,
    start: fn(&mut World, WorkerId) -> Checked,
    outcome: Outcome,
    moves: [u64; 4],
}

const AWAY: [Away; 5] = [
    Away {
        name: "spilled",
        start: |w, home| {
            w.overload(home, Some(SECOND * 20));
            w.go(w.grant(w.hard("s")))
        },
        outcome: Outcome::Spilled,
        moves: [0; 4],
    },
    Away {
        name: "failed",
        start: |w, _| w.go(granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Broken))),
        outcome: Outcome::Rebound,
        moves: [0, 1, 0, 0],
    },
    Away {
        name: "answered",
        start: |w, _| w.go(granted(w.retry(w.go(w.grant(w.hard("s"))), Failure::Overloaded(None)))),
        outcome: Outcome::Spilled,
        moves: [0; 4],
    },
    Away {
        name: "soft, excluded",
        start: |w, home| {
            let other = w.name_of(w.others(home)[0]);
            w.go(w.grant(only(w.soft("s"), &[&other])))
        },
        outcome: Outcome::Rebound,
        moves: [0, 0, 1, 0],
    },
    Away {
        name: "soft, explicit",
        start: |w, home| {
            let other = w.name_of(w.others(home)[0]);
            w.go(w.grant(at(w.soft("s"), &other, None)))
        },
        outcome: Outcome::Rebound,
        moves: [0, 0, 1, 0],
    },
];

fn away(case: &Away, workers: usize) -> (World, WorkerId, Checked) {
    let mut w = World::new(workers);
    let (home, _) = w.turn(w.hard("s"));
    let checked = (case.start)(&mut w, home);
    assert_ne!(checked.grant().worker().id, home, "{}", case.name);
    (w, home, checked)
}

#[test]
fn r11_unchanged_the_plan_is_carried_out() {
    for case in AWAY {
        let (w, home, checked) = away(&case, 3);
        let ran = checked.grant().worker().id;
        assert_eq!((w.home("s"), w.moves()), (Some(home), [0; 4]), "{}: not before", case.name);
        let (live, outcome) = w.commit(checked);
        assert_eq!((outcome, w.moves()), (case.outcome, case.moves), "{}", case.name);
        let want = if outcome == Outcome::Spilled { home } else { ran };
        assert_eq!((w.home("s"), w.session("s").unwrap().leases), (Some(want), 1));
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r11_an_aborted_plan_leaves_nothing() {
    for case in AWAY {
        for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
            let (mut w, home, checked) = away(&case, 3);
            let before = w.session("s").map(|v| (v.target, v.version, v.last));
            assert_eq!(w.core.abandon(w.now, checked, why), Outcome::Unbound);
            let after = w.session("s").map(|v| (v.target, v.version, v.last));
            assert_eq!((after, w.moves()), (before, [0; 4]), "{}", case.name);
            assert_eq!((w.stats().bookings, w.stats().leases), (0, 0));
            // The next turn knows nothing of it.
            w.pass(SECOND * 20);
            assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
            w.quiesce();
        }
    }
}

#[test]
fn r11_a_plan_for_a_binding_that_has_departed_meanwhile_is_a_departure() {
    for case in AWAY {
        let (mut w, home, checked) = away(&case, 3);
        let ran = checked.grant().worker().id;
        w.remove(home);
        let (live, outcome) = w.commit(checked);
        assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(ran)), "{}", case.name);
        assert_eq!(w.moves(), [1, 0, 0, 0]);
        w.finish(live);
        w.quiesce();
    }
}

/// Another turn moves the session to `to`, whatever its home is like.
fn moves_to(w: &World, to: WorkerId) {
    let ask: Ask = at(w.soft("s"), &w.name_of(to), None);
    assert_eq!(w.turn(ask), (to, Outcome::Rebound));
}

#[test]
fn r11_changed_live_and_elsewhere_is_a_conflict_for_hard_and_a_move_for_soft() {
    for case in AWAY {
        let (w, home, checked) = away(&case, 4);
        let ran = checked.grant().worker().id;
        let third = w.others(home).into_iter().find(|id| *id != ran).unwrap();
        moves_to(&w, third);
        let (before, moves) = (w.session("s").unwrap().version, w.moves());
        let mode = if case.name.starts_with("soft") { Mode::Soft } else { Mode::Hard };
        let (live, outcome) = w.commit(checked);
        match mode {
            Mode::Hard => {
                assert_eq!(
                    (outcome, w.home("s")),
                    (Outcome::Conflict, Some(third)),
                    "{}",
                    case.name
                );
                let after = w.session("s").unwrap();
                assert_eq!((after.version, after.leases, w.moves()), (before, 0, moves));
            }
            Mode::Soft => {
                assert_eq!((outcome, w.home("s")), (Outcome::Rebound, Some(ran)), "{}", case.name);
            }
        }
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r11_changed_to_where_it_ran_is_a_lease_whatever_the_plan() {
    for case in AWAY {
        let (w, _, checked) = away(&case, 3);
        let ran = checked.grant().worker().id;
        moves_to(&w, ran);
        let (before, moves) = (w.session("s").unwrap().version, w.moves());
        let (live, outcome) = w.commit(checked);
        assert_eq!((outcome, w.home("s")), (Outcome::Hit, Some(ran)), "{}", case.name);
        let after = w.session("s").unwrap();
        assert_eq!((after.version, after.leases, w.moves()), (before, 1, moves), "no second move");
        w.finish(live);
        w.quiesce();
    }
}

#[test]
fn r11_a_plan_for_a_binding_that_was_removed_binds_where_it_ran() {
    for case in AWAY {
        let (w, _, checked) = away(&case, 3);
        let ran = checked.grant().worker().id;
        assert!(w.core.unbind(w.now, w.partition(), key("s")));
        let (live, outcome) = w.commit(checked);
        assert_eq!(w.home("s"), Some(ran), "{}", case.name);
        assert!(matches!(outcome, Outcome::New | Outcome::Rebound));
        w.finish(live);
        w.quiesce();
    }
}
