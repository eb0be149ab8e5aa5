//! R07: a live home that the request's own constraints exclude. Nothing runs, nothing is dropped.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::affinity::saved::Kept;
use homing_core::affinity::version::Version;
use homing_core::ask::Constraints;
use homing_core::ask::{Ask, Cause};
use homing_core::fleet::{FleetChange, Ranks, WorkerSpec};
use homing_core::ids::{Target, WorkerId};
use homing_core::settings::{CoreSettings, OnDown, OnOverload};
use std::sync::Arc;
use std::time::Duration;

/// Two of a kind each.
fn fleet(settings: CoreSettings) -> World {
    let mut w = World::with(settings, 0);
    for (name, gpu) in [("a0", "a100"), ("a1", "a100"), ("h0", "h100"), ("h1", "h100")] {
        w.up_as(name, |spec| _ = spec.labels.insert("gpu".into(), gpu.into()));
    }
    w
}

type Constrain = fn(Ask) -> Ask;
/// Each excludes a0 and a1, and allows h0 and h1.
const CONSTRAINTS: [Constrain; 2] =
    [|ask| only(ask, &["h0", "h1", "nobody"]), |ask| labelled(ask, "gpu", "h100")];

#[test]
fn r07_live_excluded_is_rejected_before_dispatch() {
    for constrain in CONSTRAINTS {
        let mut w = fleet(settings());
        w.turn(only(w.hard("s"), &["a0"]));
        w.pass(SECOND);
        let before = w.session("s");
        let refusal = w.refused(constrain(w.hard("s")));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::Conflict, Outcome::Rejected));
        assert!(refusal.bound);
        assert_eq!((w.session("s"), w.stats().bookings, w.stats().leases), (before, 0, 0));
        assert!(w.core.workers().iter().all(|v| v.part.load.active_requests == 0), "nothing ran");
        w.quiesce();
    }
}

#[test]
fn r07_live_excluded_soft_selects_among_the_allowed_and_rebinds() {
    for constrain in CONSTRAINTS {
        let w = fleet(settings());
        w.turn(only(w.hard("s"), &["a0"]));
        let (worker, outcome) = w.turn(constrain(w.soft("s")));
        assert!(w.name_of(worker).starts_with('h'));
        assert_eq!(
            (outcome, w.home("s"), w.moves()),
            (Outcome::Rebound, Some(worker), [0, 0, 1, 0])
        );
        w.quiesce();
    }
}

#[test]
fn r07_excluded_soft_with_nobody_allowed_is_refused_and_the_binding_kept() {
    let w = fleet(settings());
    let (home, _) = w.turn(only(w.hard("s"), &["a0"]));
    for ask in [only(w.soft("s"), &["nobody"]), labelled(w.soft("s"), "gpu", "tpu")] {
        let refusal = w.refused(ask);
        assert_eq!((refusal.cause, refusal.bound), (Cause::NoWorker, false));
        assert_eq!(w.home("s"), Some(home));
    }
    w.quiesce();
}

#[test]
fn r07_the_request_s_own_fault_comes_before_the_target_s() {
    let mut s = settings();
    s.affinity.on_overload = OnOverload::Reject;
    s.affinity.on_down = OnDown::Reject;
    for constrain in CONSTRAINTS {
        let mut w = fleet(s.clone());
        let (home, _) = w.turn(only(w.hard("s"), &["a0"]));
        w.overload(home, None);
        assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetOverloaded);
        assert_eq!(w.refused(constrain(w.hard("s"))).cause, Cause::Conflict);
        w.down(home);
        assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
        assert_eq!(w.refused(constrain(w.hard("s"))).cause, Cause::Conflict);
        w.quiesce();
    }
}

#[test]
fn r07_an_excluded_home_that_has_departed_is_no_conflict() {
    for constrain in CONSTRAINTS {
        let mut w = fleet(settings());
        let (home, _) = w.turn(only(w.hard("s"), &["a0"]));
        w.down(home);
        let (worker, outcome) = w.turn(constrain(w.hard("s")));
        assert!(w.name_of(worker).starts_with('h'));
        assert_eq!(outcome, Outcome::Rebound);
        w.quiesce();
    }
}

#[test]
fn r07_constraints_that_allow_the_home_change_nothing() {
    for constrain in CONSTRAINTS {
        let w = fleet(settings());
        let (home, _) = w.turn(only(w.hard("s"), &["h1"]));
        for mode in MODES {
            assert_eq!(w.turn(constrain(w.ask("s", mode))), (home, Outcome::Hit));
        }
        w.quiesce();
    }
}

#[test]
fn r07_both_constraints_must_hold() {
    let w = fleet(settings());
    let both = |w: &World, names: &[&str], gpu: &str| {
        let names = names.iter().map(|n| (*n).to_owned()).collect();
        let labels = vec![("gpu".to_owned(), gpu.to_owned())];
        let mut ask = w.plain();
        ask.constraints = Some(Arc::new(Constraints::new(Some(names), labels)));
        ask
    };
    for _ in 0..5 {
        let (worker, _) = w.turn(both(&w, &["a0", "h0"], "h100"));
        assert_eq!(w.name_of(worker), "h0");
    }
    assert_eq!(w.refused(both(&w, &["a0"], "h100")).cause, Cause::NoWorker);
    w.quiesce();
}

#[test]
fn r07_a_re_list_with_other_labels_is_seen_at_the_next_turn() {
    let mut w = fleet(settings());
    let (home, _) = w.turn(only(w.hard("s"), &["a0"]));
    let mut spec: WorkerSpec = w.view(home).info.spec.clone();
    spec.labels.insert("gpu".into(), "h100".into());
    w.fleet(FleetChange::Register(spec));
    assert_eq!(w.turn(labelled(w.hard("s"), "gpu", "h100")), (home, Outcome::Hit));
    assert_eq!(w.refused(labelled(w.hard("s"), "gpu", "a100")).cause, Cause::Conflict);
    w.quiesce();
}

/// A binding of a worker and none of its ranks: by an earlier process or by another router.
fn bind_worker_only(w: &World, id: WorkerId) -> Target {
    let target = Target { worker: id, rank: None };
    let version = Version { sequence: 1, writer: 9 };
    let kept = Kept { key: key("s"), target, version, idle_since: w.now, last: false };
    assert_eq!(w.core.restore(w.now, w.partition(), &[kept]), 1);
    w.core.restored();
    w.core.check();
    target
}

#[test]
fn r07_a_worker_only_binding_under_an_allow_list_or_required_labels_is_kept() {
    for constrain in CONSTRAINTS {
        for mode in MODES {
            let mut w = fleet(settings());
            let home = w.up_as("h1", |spec| {
                spec.labels.insert("gpu".into(), "h100".into());
                spec.ranks = Ranks::new(4, 3);
            });
            let target = bind_worker_only(&w, home);
            let before = w.session("s").unwrap();
            assert_eq!(before.target, target);
            for _ in 0..6 {
                let grant = w.grant(constrain(w.ask("s", mode)));
                assert_eq!((grant.worker().id, grant.placement().considered), (home, 3));
                let (live, outcome) = w.commit(w.go(grant));
                assert_eq!((outcome, w.moves()), (Outcome::Hit, [0; 4]));
                let after = w.session("s").unwrap();
                assert_eq!((after.target, after.version), (target, before.version));
                w.finish(live);
            }
            w.quiesce();
        }
    }
}

#[test]
fn r07_a_worker_only_binding_that_is_excluded_is_kept_too() {
    for constrain in CONSTRAINTS {
        let w = fleet(settings());
        let target = bind_worker_only(&w, w.core.worker_named("a1").unwrap());
        let refusal = w.refused(constrain(w.hard("s")));
        assert_eq!((refusal.cause, refusal.bound), (Cause::Conflict, true));
        assert_eq!(w.session("s").unwrap().target, target);
        w.quiesce();
    }
}

#[test]
fn r07_an_excluded_turn_does_not_keep_an_idle_session_alive() {
    let mut w = fleet(settings());
    w.turn(only(w.hard("s"), &["a0"]));
    w.pass(TTL - SECOND);
    let _ = w.refused(only(w.hard("s"), &["h0"]));
    assert_eq!(w.session("s").unwrap().idle, TTL - SECOND);
    w.pass(Duration::from_secs(1));
    assert_eq!(w.home("s"), None);
    w.quiesce();
}
