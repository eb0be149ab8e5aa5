//! R06's last sentence: a Soft home is a preference, and what it is worth is for `affinity.soft` and the policy to say.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::dice::Dice;
use homing_core::ids::WorkerId;
use homing_core::select::policy::Policy;
use homing_core::select::{Among, Candidate, Costs, Demand};
use homing_core::settings::{CoreSettings, PolicyKind, Soft};
use std::sync::{Arc, Mutex};

fn weighing(policy: PolicyKind) -> CoreSettings {
    let mut it = CoreSettings { policy, ..settings() };
    it.affinity.soft = Soft::Weigh;
    it
}

/// Policies whose costs say something.
const COSTLY: [PolicyKind; 4] =
    [PolicyKind::Kv, PolicyKind::Latency, PolicyKind::LeastLoaded, PolicyKind::PowerOfTwo];

#[test]
fn r06_weighed_a_soft_session_leaves_a_home_that_has_much_to_do_and_stays_in_the_new_one() {
    for policy in COSTLY {
        let w = World::with(weighing(policy), 2);
        let (home, _) = w.turn(w.soft("s"));
        // As long as nobody is better off, it stays.
        for _ in 0..5 {
            assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit), "{policy:?}");
        }
        let busy: Vec<_> =
            (0..12).map(|_| w.start(at(w.plain(), &w.name_of(home), Some(0))).2).collect();
        let (moved, outcome) = w.turn(w.soft("s"));
        assert_eq!((moved != home, outcome), (true, Outcome::Rebound), "{policy:?}");
        assert_eq!(w.home("s"), Some(moved));
        busy.into_iter().for_each(|live| w.finish(live));
        // What made it move is over: that is no reason to move again.
        for _ in 0..5 {
            assert_eq!(w.turn(w.soft("s")), (moved, Outcome::Hit), "{policy:?}");
        }
        w.quiesce();
    }
}

#[test]
fn r06_weighed_or_not_a_hard_session_stays() {
    for policy in POLICIES {
        let w = World::with(weighing(policy), 2);
        let (home, _) = w.turn(w.hard("s"));
        let busy: Vec<_> =
            (0..12).map(|_| w.start(at(w.plain(), &w.name_of(home), Some(0))).2).collect();
        assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit), "{policy:?}");
        busy.into_iter().for_each(|live| w.finish(live));
        w.quiesce();
    }
}

#[test]
fn r06_kept_a_soft_session_stays_whatever_its_home_has_to_do() {
    for policy in POLICIES {
        let w = World::with(CoreSettings { policy, ..settings() }, 2);
        let (home, _) = w.turn(w.soft("s"));
        let busy: Vec<_> =
            (0..12).map(|_| w.start(at(w.plain(), &w.name_of(home), Some(0))).2).collect();
        assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit), "{policy:?}");
        busy.into_iter().for_each(|live| w.finish(live));
        w.quiesce();
    }
}

#[test]
fn r06_weighed_policies_that_don_t_weigh_keep_it() {
    for policy in [PolicyKind::Random, PolicyKind::RoundRobin] {
        let w = World::with(weighing(policy), 3);
        let (home, _) = w.turn(w.soft("s"));
        for _ in 0..20 {
            assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit), "{policy:?}");
        }
        w.quiesce();
    }
}

#[test]
fn r06_weighed_a_session_may_finish_where_its_worker_drains() {
    let mut w = World::with(weighing(PolicyKind::Kv), 2);
    let (home, _) = w.turn(w.soft("s"));
    w.drain(home, None);
    assert_eq!(w.turn(w.soft("s")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r06_weighed_a_preview_says_what_would_happen_and_takes_nobody_s_turn() {
    let w = World::with(weighing(PolicyKind::LeastLoaded), 2);
    let (home, _) = w.turn(w.soft("s"));
    let busy: Vec<_> =
        (0..12).map(|_| w.start(at(w.plain(), &w.name_of(home), Some(0))).2).collect();
    let preview = w.core.preview(w.now, &w.soft("s")).unwrap();
    assert_eq!(preview.outcome, Outcome::Rebound);
    assert!(preview.target.is_some_and(|t| t.worker != home));
    assert_eq!(w.home("s"), Some(home));
    busy.into_iter().for_each(|live| w.finish(live));
    w.quiesce();
}

/// Sends everything to one worker, and notes which homes it was shown.
#[derive(Clone, Debug, Default)]
struct Headstrong {
    to: Arc<Mutex<Option<WorkerId>>>,
    homes: Arc<Mutex<Vec<WorkerId>>>,
}

impl Policy for Headstrong {
    fn cost(&self, _: &Demand, c: &Candidate) -> f64 {
        f64::from(u8::from(*self.to.lock().unwrap() != Some(c.worker)))
    }

    fn pick(
        &self,
        d: &Demand,
        all: Among<'_>,
        _: &mut Costs,
        dice: &mut dyn Dice,
    ) -> Option<usize> {
        let homes = all.iter().filter(|c| c.home).map(|c| c.worker);
        self.homes.lock().unwrap().extend(homes);
        homing_core::select::cheapest(all, d, 0.0, dice, |c| self.cost(d, c))
    }

    fn weighs_homes(&self) -> bool {
        true
    }
}

#[test]
fn r06_a_policy_of_one_s_own_sees_a_soft_home_and_may_move_it_but_never_a_hard_one() {
    let policy = Headstrong::default();
    let w = World::choosing(settings(), policy.clone(), 3);
    let (home, _) = w.turn(w.hard("h"));
    let (soft_home, _) = w.turn(w.soft("s"));
    policy.homes.lock().unwrap().clear();
    let elsewhere = w.others(home).into_iter().find(|id| *id != soft_home).unwrap();
    *policy.to.lock().unwrap() = Some(elsewhere);
    assert_eq!(w.turn(w.hard("h")), (home, Outcome::Hit));
    assert_eq!(w.turn(w.soft("s")), (elsewhere, Outcome::Rebound));
    assert_eq!(*policy.homes.lock().unwrap(), [soft_home], "the Soft one, marked as such");
    assert_eq!(w.turn(w.soft("s")), (elsewhere, Outcome::Hit), "there it lives now");
    w.quiesce();
}
