//! R07's last row: a home that the policy itself rules out. The one refusal that drops a binding.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Cause;
use homing_core::ids::{DpRank, WorkerId};
use homing_core::select::policy::Policy;
use homing_core::select::{Candidate, Demand};
use homing_core::settings::Mode;
use std::sync::{Arc, Mutex};

/// A worker, or one of its ranks.
type Vetoed = (WorkerId, Option<DpRank>);

/// Likes all but these equally.
#[derive(Clone, Debug, Default)]
struct Vetoes(Arc<Mutex<Vec<Vetoed>>>);

impl Vetoes {
    fn set(&self, vetoed: &[Vetoed]) {
        *self.0.lock().unwrap() = vetoed.to_vec();
    }
}

impl Policy for Vetoes {
    fn admits(&self, _: &Demand, c: &Candidate) -> bool {
        let hits = |(w, r): &Vetoed| *w == c.worker && r.is_none_or(|rank| rank == c.rank);
        !self.0.lock().unwrap().iter().any(hits)
    }

    fn cost(&self, _: &Demand, _: &Candidate) -> f64 {
        0.0
    }
}

fn world(workers: usize) -> (World, Vetoes) {
    let policy = Vetoes::default();
    (World::choosing(settings(), policy.clone(), workers), policy)
}

#[test]
fn r07_filtered_out_by_the_policy_hard_is_refused_and_dropped() {
    let (w, policy) = world(3);
    let (home, _) = w.turn(w.hard("s"));
    policy.set(&[(home, None)]);
    let requests = w.requests();
    let refusal = w.refused(w.hard("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::NoWorker, Outcome::Rejected));
    assert!(!refusal.bound, "no live home is the reason: it is given up");
    assert_eq!((w.home("s"), w.stats().bindings, w.requests()), (None, 0, requests + 1));
    let (worker, outcome) = w.turn(w.hard("s"));
    assert!(worker != home && outcome == Outcome::New, "or every turn would fail alike");
    assert_eq!(w.moves(), [0; 4]);
    w.quiesce();
}

#[test]
fn r07_filtered_out_by_the_policy_what_runs_goes_on() {
    let (w, policy) = world(2);
    let (home, _, live) = w.start(w.hard("s"));
    policy.set(&[(home, None)]);
    let _ = w.refused(w.hard("s"));
    assert_eq!((w.stats().leases, w.part(home).load.active_requests), (1, 1));
    let (_, outcome, second) = w.start(w.hard("s"));
    assert_eq!((outcome, w.session("s").unwrap().leases), (Outcome::New, 1));
    w.finish(live);
    assert_eq!(w.session("s").unwrap().leases, 1, "the old one released into nothing");
    w.finish(second);
    w.quiesce();
}

#[test]
fn r07_filtered_out_by_the_policy_soft_goes_elsewhere_while_somebody_is_left() {
    let (w, policy) = world(3);
    let (home, _) = w.turn(w.hard("s"));
    policy.set(&[(home, None)]);
    let (worker, outcome) = w.turn(w.soft("s"));
    assert_ne!(worker, home);
    assert_eq!((outcome, w.home("s"), w.moves()), (Outcome::Rebound, Some(worker), [0, 0, 1, 0]));
    w.quiesce();
}

#[test]
fn r07_filtered_out_by_the_policy_soft_with_nothing_left_is_refused_and_kept() {
    let (w, policy) = world(2);
    let (home, _) = w.turn(w.hard("s"));
    let before = w.session("s");
    let all: Vec<_> = w.core.workers().iter().map(|v| (v.info.id, None)).collect();
    policy.set(&all);
    let refusal = w.refused(w.soft("s"));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::NoWorker, Outcome::Rejected));
    assert_eq!(w.session("s"), before);
    policy.set(&[]);
    assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r07_one_rank_filtered_out_is_not_the_others() {
    let policy = Vetoes::default();
    let mut w = World::choosing(settings(), policy.clone(), 0);
    let id = w.up_with_ranks("a", 0, 2);
    w.turn(at(w.hard("s"), "a", Some(1)));
    policy.set(&[(id, Some(DpRank(0)))]);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Hit);
    policy.set(&[(id, Some(DpRank(1)))]);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::NoWorker);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
    assert_eq!(w.session("s").unwrap().target, target(id, 0));
    w.quiesce();
}

#[test]
fn r07_a_policy_rules_out_first_turns_and_explicit_targets_without_touching_any_binding() {
    let (w, policy) = world(2);
    let (home, _) = w.turn(w.hard("bound"));
    let other = w.others(home)[0];
    policy.set(&[(other, None)]);
    let name = w.name_of(other);
    assert_eq!(w.turn(w.hard("new")).0, home);
    for ask in [w.plain(), w.hard("newer")] {
        assert_eq!(w.refused(at(ask, &name, None)).cause, Cause::NoWorker);
    }
    assert_eq!(w.refused(only(w.hard("newer"), &[&name])).cause, Cause::NoWorker);
    assert_eq!((w.home("bound"), w.home("newer")), (Some(home), None));
    w.quiesce();
}

#[test]
fn r07_a_joiner_whose_tentative_target_is_ruled_out_selects_normally() {
    let (w, policy) = world(2);
    let first = w.grant(w.hard("s"));
    policy.set(&[(first.worker().id, None)]);
    for mode in [Mode::Hard, Mode::Soft] {
        let second = w.grant(w.ask("s", mode));
        assert_ne!(second.worker().id, first.worker().id);
        let _ = w.core.abandon(w.now, second, homing_core::ask::Abandon::NotDispatched);
    }
    let _ = w.core.abandon(w.now, first, homing_core::ask::Abandon::NotDispatched);
    w.quiesce();
}

#[test]
fn r07_a_preview_of_it_drops_nothing() {
    let (w, policy) = world(2);
    let (home, _) = w.turn(w.hard("s"));
    policy.set(&[(home, None)]);
    let before = w.traces();
    let preview = w.core.preview(w.now, &w.hard("s")).unwrap();
    assert_eq!(preview.refusal.unwrap().cause, Cause::NoWorker);
    assert_eq!(w.traces(), before);
    assert_eq!(w.home("s"), Some(home));
    let _ = w.refused(w.hard("s"));
    w.quiesce();
}

#[test]
fn r07_filtered_out_by_the_policy_an_explicit_hard_turn_at_home_gives_the_binding_up() {
    for rank in [None, Some(1)] {
        let policy = Vetoes::default();
        let mut w = World::choosing(settings(), policy.clone(), 1);
        let id = w.up_with_ranks("a", 0, 2);
        w.turn(at(w.hard("s"), "a", Some(1)));
        let before = w.session("s");
        policy.set(&[(id, Some(DpRank(1)))]);
        // A Soft one may go elsewhere the next time, and what is not its own is no Hard one's to give up.
        assert_eq!(w.refused(at(w.soft("s"), "a", Some(1))).cause, Cause::NoWorker);
        assert_eq!(w.refused(at(w.hard("s"), "a", Some(0))).cause, Cause::Conflict);
        assert_eq!(w.session("s"), before);
        let refusal = w.refused(at(w.hard("s"), "a", rank));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::NoWorker, Outcome::Rejected));
        assert_eq!((refusal.bound, w.home("s"), w.stats().bindings), (false, None, 0));
        let (_, outcome) = w.turn(w.hard("s"));
        assert_eq!((outcome, w.moves()), (Outcome::New, [0; 4]), "or every turn would fail alike");
        w.quiesce();
    }
}
