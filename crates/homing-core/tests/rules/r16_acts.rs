//! R16: a preview of every kind of decision acquires nothing, and the next real decision is the same as
//! without it.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Admission, Ask, Cause};
use homing_core::explain::Preview;
use homing_core::select::{Candidate, Fit};
use homing_core::settings::{CoreSettings, OnDown, OnOverload, PolicyKind};

/// A world with something of everything, and the questions that it answers in each possible way.
fn everything(on_overload: OnOverload, policy: PolicyKind) -> (World, Vec<(&'static str, Ask)>) {
    let mut s = CoreSettings { policy, ..settings() };
    s.affinity.on_down = OnDown::Reject;
    s.affinity.on_overload = on_overload;
    s.affinity.max_parallel = 2;
    s.affinity.max_sessions = 7;
    let mut w = World::with(s, 5);
    for (id, name) in
        [("bound", "w0"), ("gone", "w1"), ("down", "w2"), ("shed", "w3"), ("hot", "w4")]
    {
        w.turn(at(w.hard(id), name, None));
        w.pass(SECOND);
    }
    let id = |w: &World, name| w.core.worker_named(name).unwrap();
    w.remove(id(&w, "w1"));
    w.down(id(&w, "w2"));
    w.overload(id(&w, "w3"), Some(SECOND * 30));
    let asks = vec![
        ("none", w.plain()),
        ("new", w.hard("new")),
        ("tentative", w.hard("tentative")),
        ("hit", w.hard("bound")),
        ("soft hit", w.soft("bound")),
        ("departed", w.hard("gone")),
        ("unavailable", w.hard("down")),
        ("soft of one that is down", w.soft("down")),
        ("overloaded", w.hard("shed")),
        ("soft of one that is overloaded", w.soft("shed")),
        ("surplus", w.hard("hot")),
        ("conflict", only(w.hard("bound"), &["w4"])),
        ("excluded", only(w.soft("bound"), &["w4"])),
        ("nobody", only(w.plain(), &["w9"])),
        ("explicit", at(w.plain(), "w3", None)),
        ("explicit elsewhere", at(w.hard("bound"), "w4", None)),
        ("explicit and soft", at(w.soft("bound"), "w4", None)),
        ("unknown", at(w.plain(), "w9", None)),
        ("bad rank", at(w.plain(), "w0", Some(7))),
    ];
    (w, asks)
}

#[test]
fn r16_a_preview_acquires_nothing_whatever_it_says() {
    use OnOverload::{Dispatch, Reject, Spill, Wait};
    for on_overload in [Spill, Reject, Wait, Dispatch] {
        for policy in POLICIES {
            let (w, asks) = everything(on_overload, policy);
            let held =
                [w.grant(w.hard("hot")), w.grant(w.hard("hot")), w.grant(w.hard("tentative"))];
            for (what, ask) in asks {
                let before = w.traces();
                let preview = w.core.preview(w.now, &ask).unwrap();
                assert_eq!(w.core.preview(w.now, &ask).unwrap(), preview);
                assert_eq!(w.traces(), before, "{what}, {on_overload:?}, {policy:?}");
                assert_eq!(w.core.poll_output(), None);
                w.core.check();
                // And it foretells what becomes of it.
                foretells(&w, what, &preview, ask);
            }
            for grant in held {
                let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
            }
            w.quiesce();
        }
    }
}

/// The decision is what the preview said. It is undone as far as that goes.
fn foretells(w: &World, what: &str, preview: &Preview, ask: Ask) {
    match w.admit(ask) {
        Admission::Granted(grant) => {
            assert_eq!(preview.target, Some(grant.target()), "{what}");
            assert!(!preview.waits && preview.refusal.is_none());
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        Admission::Waiting(ticket) => {
            assert!(preview.waits && preview.target.is_none(), "{what}");
            w.core.cancel(w.now, ticket);
        }
        Admission::Refused(refusal) => {
            let said = preview.refusal.unwrap();
            assert_eq!(
                (said.cause, said.bound, said.outcome),
                (refusal.cause, refusal.bound, refusal.outcome),
                "{what}"
            );
        }
    }
}

#[test]
fn r16_it_foretells_the_outcome_of_a_good_answer() {
    for (n, want) in [
        (0, Outcome::None),
        (1, Outcome::New),
        (2, Outcome::New),
        (3, Outcome::Hit),
        (4, Outcome::Hit),
        (5, Outcome::Rebound),
        (7, Outcome::Rebound),
        (8, Outcome::Spilled),
        (9, Outcome::Rebound),
        (10, Outcome::Surplus),
        (12, Outcome::Rebound),
        (14, Outcome::None),
        (16, Outcome::Rebound),
    ] {
        let (w, asks) = everything(OnOverload::Spill, PolicyKind::Kv);
        let held = [w.grant(w.hard("hot")), w.grant(w.hard("hot"))];
        let (what, ask) = asks.into_iter().nth(n).unwrap();
        let preview = w.core.preview(w.now, &ask).unwrap();
        assert_eq!((preview.outcome, w.turn(ask).1), (want, want), "{what}");
        for grant in held {
            let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
        }
        w.quiesce();
    }
}

#[test]
fn r16_of_a_full_table_and_of_a_joiner() {
    let mut s = settings();
    s.affinity.max_sessions = 1;
    let w = World::with(s, 2);
    let first = w.grant(w.hard("joined"));
    assert_eq!(w.core.preview(w.now, &w.hard("joined")).unwrap().outcome, Outcome::Joined);
    let _ = w.core.abandon(w.now, first, Abandon::NotDispatched);
    w.turn(w.hard("other"));
    let before = w.traces();
    assert_eq!(w.core.preview(w.now, &w.hard("new")).unwrap().outcome, Outcome::UnboundFull);
    assert_eq!(w.traces(), before, "it isn't counted either");
    w.quiesce();
}

#[test]
fn r16_of_a_request_that_would_wait() {
    let w = World::with(queueing(1), 1);
    let (_, _, busy) = w.start(w.plain());
    let before = w.traces();
    for ask in [w.plain(), w.hard("s"), at(w.plain(), "w0", None)] {
        let preview = w.core.preview(w.now, &ask).unwrap();
        assert!(preview.waits && preview.target.is_none() && preview.refusal.is_none());
        assert_eq!(w.traces(), before);
    }
    w.finish(busy);
    assert_eq!(w.refused(only(w.plain(), &["w9"])).cause, Cause::NoWorker);
    w.quiesce();
}

#[test]
fn r16_neither_dice_nor_turns_move() {
    for policy in POLICIES {
        let sequence = |previews: usize| -> Vec<_> {
            let w = World::with(CoreSettings { policy, ..settings() }, 5);
            let step = |i: usize| {
                let id = format!("s{}", i % 9);
                let ask = if i.is_multiple_of(3) { w.plain() } else { w.soft(&id) };
                for _ in 0..previews {
                    let _ = w.core.preview(w.now, &ask);
                    let _ = w.core.preview(w.now, &w.plain());
                    let _ = w.core.preview(w.now, &w.hard("never seen"));
                }
                w.turn(ask)
            };
            (0..60).map(step).collect()
        };
        let without = sequence(0);
        assert_eq!(sequence(1), without, "{policy:?}");
        assert_eq!(sequence(3), without, "{policy:?}");
        let workers: std::collections::BTreeSet<_> = without.iter().map(|t| t.0).collect();
        assert!(workers.len() > 1, "{policy:?}: a sequence of one says nothing");
    }
}

#[test]
fn r16_a_worker_whose_time_is_over_is_not_overloaded_whether_anybody_has_ticked_or_not() {
    for on_overload in
        [OnOverload::Spill, OnOverload::Reject, OnOverload::Wait, OnOverload::Dispatch]
    {
        let mut s = settings();
        s.affinity.on_overload = on_overload;
        let mut w = World::with(s, 2);
        let (home, _) = w.turn(w.hard("s"));
        w.overload(home, Some(SECOND * 5));
        let shed = |w: &World| {
            let preview = w.core.preview(w.now, &w.hard("s")).unwrap();
            let shed = |c: &Candidate| c.fit.any(Fit::SHED);
            let shed: Vec<_> = preview.candidates.iter().filter(|(c, _)| shed(c)).collect();
            (shed.len(), preview.outcome)
        };
        assert_eq!(shed(&w).0, 1);
        w.pass(SECOND * 5);
        assert_eq!(shed(&w), (0, Outcome::Hit), "{on_overload:?}");
        let before = w.core.preview(w.now, &w.hard("s")).unwrap();
        w.tick();
        assert_eq!(w.core.preview(w.now, &w.hard("s")).unwrap(), before);
        assert_eq!(w.turn(w.hard("s")), (home, Outcome::Hit));
        w.quiesce();
    }
}

#[test]
fn r16_of_the_third_turn_that_is_served_elsewhere() {
    let w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, Some(SECOND * 20));
    for want in [Outcome::Spilled, Outcome::Spilled, Outcome::Rebound, Outcome::Hit] {
        let preview = w.core.preview(w.now, &w.hard("s")).unwrap();
        let (worker, outcome) = w.turn(w.hard("s"));
        assert_eq!((preview.outcome, outcome), (want, want));
        assert_eq!(preview.target.unwrap().worker, worker);
    }
    w.quiesce();
}

#[test]
fn r16_leases_on_a_home_that_has_departed_are_no_claims_on_its_successor() {
    type Departure = fn(&mut World, homing_core::ids::WorkerId);
    let departures: [Departure; 3] =
        [|w, id| w.remove(id), |w, id| w.down(id), |w, id| w.drain(id, Some(w.now))];
    for depart in departures {
        let mut s = settings();
        s.affinity.max_parallel = 2;
        let mut w = World::with(s, 3);
        let (home, _, first) = w.start(w.hard("s"));
        let (_, _, second) = w.start(w.hard("s"));
        assert_eq!(w.core.preview(w.now, &w.hard("s")).unwrap().outcome, Outcome::Surplus);
        depart(&mut w, home);
        let preview = w.core.preview(w.now, &w.hard("s")).unwrap();
        let (worker, outcome) = w.turn(w.hard("s"));
        assert_eq!((preview.outcome, outcome), (Outcome::Rebound, Outcome::Rebound));
        assert_eq!(preview.target.unwrap().worker, worker);
        w.finish(first);
        w.finish(second);
        w.quiesce();
    }
}
