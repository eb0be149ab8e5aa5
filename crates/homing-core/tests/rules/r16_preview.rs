//! R16: a preview says what would be decided, and leaves no trace.

use super::world::*;
use homing_core::affinity::Steer;
use homing_core::ask::{Abandon, Admission};
use homing_core::ids::{DpRank, Target};
use homing_core::index::Overlap;
use homing_core::select::Fit;
use homing_core::settings::{CoreSettings, OnDown};

#[test]
fn r16_preview_touches_nothing() {
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..settings() }, 4);
        w.turn(w.hard("bound"));
        w.turn(w.hard("moved"));
        w.pass(TTL / 2);
        w.turn(w.hard("gone"));
        w.remove(w.home("gone").unwrap());
        let tentative = w.grant(w.hard("tentative"));
        let state = |w: &World| {
            let workers = w.core.workers();
            let parts: Vec<_> = workers.iter().map(|v| (v.info.id, v.state, v.part)).collect();
            (w.stats(), w.core.sessions(w.now, 100), parts, w.core.poll_timeout())
        };
        for id in ["bound", "moved", "gone", "tentative", "unknown"] {
            for ask in [w.hard(id), w.soft(id), w.plain()] {
                let before = state(&w);
                let first = w.core.preview(w.now, &ask).unwrap();
                let again = w.core.preview(w.now, &ask).unwrap();
                assert_eq!(first, again, "the dice are not touched either");
                assert_eq!(state(&w), before);
            }
        }
        let _ = w.core.abandon(w.now, tentative, Abandon::NotDispatched);
        w.pass(TTL);
        let before = w.stats();
        let preview = w.core.preview(w.now, &w.hard("bound")).unwrap();
        assert_eq!((preview.steer, w.stats()), (None, before), "expired, and left to the sweep");
        w.quiesce();
    }
}

#[test]
fn r16_preview_foretells_the_decision() {
    for policy in POLICIES {
        let mut w = World::with(CoreSettings { policy, ..settings() }, 4);
        let (home, _) = w.turn(w.hard("down"));
        w.turn(w.hard("up"));
        let tentative = w.grant(w.hard("tentative"));
        w.down(home);
        for id in ["down", "up", "tentative", "unknown"] {
            for _ in 0..5 {
                for ask in [w.soft(id), w.hard(id), w.plain()] {
                    let preview = w.core.preview(w.now, &ask).unwrap();
                    let grant = w.grant(ask);
                    assert_eq!(preview.target, Some(grant.target()), "{policy:?} {id}");
                    let _ = w.core.abandon(w.now, grant, Abandon::NotDispatched);
                }
            }
        }
        let _ = w.core.abandon(w.now, tentative, Abandon::NotDispatched);
    }
}

#[test]
fn r16_preview_shows_what_the_session_asks_and_every_candidate() {
    let mut w = World::new(3);
    let (home, _) = w.turn(w.hard("s"));
    let target = Target { worker: home, rank: Some(DpRank(0)) };
    let hard = w.core.preview(w.now, &w.hard("s")).unwrap();
    assert_eq!((hard.steer, hard.candidates.len()), (Some(Steer::Pin(target)), 3));
    let soft = w.core.preview(w.now, &w.soft("s")).unwrap();
    assert_eq!((soft.steer, soft.target), (Some(Steer::Prefer(target)), Some(target)));
    w.down(home);
    let away = w.core.preview(w.now, &w.hard("s")).unwrap();
    assert_eq!((away.steer, away.candidates.len()), (None, 3), "with what speaks against it");
    let unready: Vec<_> =
        away.candidates.iter().filter(|(c, _)| c.fit.any(Fit::NOT_READY)).collect();
    assert!(matches!(unready[..], [(c, _)] if c.worker == home), "{unready:?}");
    assert_eq!(w.home("s"), Some(home), "and the binding stands");
}

#[test]
fn r16_overlaps_meet_their_workers_whatever_their_order() {
    let mut w = World::new(5);
    let ids: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    w.down(ids[1]);
    let overlap = |i: usize, rank| {
        let (worker, rank, blocks) = (ids[i], DpRank(rank), i as u32);
        Overlap { worker, rank, blocks, told: blocks, host: 0, disk: 0 }
    };
    // One who is down is shown all the same; a rank that nobody has; and two who hold nothing.
    let overlaps = [overlap(1, 0), overlap(2, 0), overlap(2, 3), overlap(4, 0)];
    let shown = |order: &[usize]| {
        let mut ask = w.plain();
        ask.overlaps = order.iter().map(|i| overlaps[*i]).collect();
        let preview = w.core.preview(w.now, &ask).unwrap();
        preview.candidates.iter().map(|(c, _)| (c.worker, c.overlap)).collect::<Vec<_>>()
    };
    let want = [(ids[0], 0), (ids[1], 1), (ids[2], 2), (ids[3], 0), (ids[4], 4)];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        assert_eq!(shown(&order), want, "{order:?}");
    }
}

#[test]
fn r16_a_request_that_would_be_refused_goes_nowhere() {
    let mut s = settings();
    s.affinity.on_down = OnDown::Reject;
    let mut w = World::with(s, 2);
    let (home, _) = w.turn(w.hard("s"));
    w.down(home);
    assert_eq!(w.core.preview(w.now, &w.hard("s")).unwrap().target, None);
    assert!(matches!(w.admit(w.hard("s")), Admission::Refused(_)));
    let soft = w.core.preview(w.now, &w.soft("s")).unwrap();
    assert!(soft.target.is_some_and(|t| t.worker != home));
    let others: Vec<_> = w.core.workers().iter().map(|v| v.info.id).collect();
    others.into_iter().for_each(|id| w.down(id));
    assert_eq!(w.core.preview(w.now, &w.plain()).unwrap().target, None);
    w.quiesce();
}
