//! R18: subagents share their parent's group, apart from the parent. R19: a session's final turn.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Ask, Failure, Live, Session};
use homing_core::ids::{KeySecret, SessionKey};
use homing_core::settings::{CoreSettings, Mode, OnDown, PolicyKind};

fn group(parent: &str) -> SessionKey {
    KeySecret::new(&[1; 32]).group("", "", parent.as_bytes())
}

fn with(w: &World, key: SessionKey) -> Ask {
    let mut ask = w.plain();
    ask.session = Some(Session::new(key, Mode::Hard));
    ask
}

fn child(w: &World, parent: &str) -> Ask {
    with(w, group(parent))
}

/// The parent's own final turn, which ends its group too.
fn ends(mut ask: Ask, parent: &str) -> Ask {
    ask.session.as_mut().unwrap().ends_group = Some(group(parent));
    last(ask)
}

fn group_is_bound(w: &World, parent: &str) -> bool {
    w.core.session(w.now, w.partition(), group(parent)).is_some()
}

#[test]
fn r18_all_children_of_one_parent_share_a_binding_apart_from_the_parent_s() {
    let w = World::with(CoreSettings { policy: PolicyKind::RoundRobin, ..settings() }, 3);
    let (parent, _) = w.turn(w.hard("p"));
    let (home, outcome) = w.turn(child(&w, "p"));
    assert_eq!(outcome, Outcome::New);
    assert_ne!(home, parent, "it took its own turn");
    for _ in 0..5 {
        assert_eq!(w.turn(child(&w, "p")), (home, Outcome::Hit));
        assert_eq!(w.turn(w.hard("p")), (parent, Outcome::Hit));
    }
    assert_eq!(w.turn(child(&w, "another")).1, Outcome::New);
    assert_eq!(w.stats().bindings, 3);
    w.quiesce();
}

#[test]
fn r18_no_client_can_name_a_group_as_its_session() {
    let secret = KeySecret::new(&[1; 32]);
    let g = secret.group("t", "", b"p");
    for id in
        [&b"p"[..], b"group p", b"group:p", b"\0p", b"\x01p", b"g\0p", b"", &g.0.to_le_bytes()]
    {
        assert_ne!(secret.session("t", "", id), g, "{id:?}");
    }
    assert_ne!(secret.group("u", "", b"p"), g, "scoped like any other");
    assert_ne!(secret.group("t", "a", b"p"), g);
    assert_eq!(secret.group("t", "", b"p"), g);
}

#[test]
fn r18_concurrent_first_turns_of_children_join() {
    let w = World::new(3);
    let (a, b) = (w.grant(child(&w, "p")), w.grant(child(&w, "p")));
    assert_eq!(a.worker().id, b.worker().id);
    let ((a, first), (b, second)) = (w.commit(w.go(a)), w.commit(w.go(b)));
    assert_eq!((first, second), (Outcome::New, Outcome::Joined));
    w.finish(a);
    w.finish(b);
    w.quiesce();
}

#[test]
fn r19_a_final_turn_ends_its_binding_with_the_last_lease() {
    for mode in MODES {
        let w = World::new(2);
        let (home, _, first) = w.start(w.ask("s", mode));
        let (_, outcome, final_turn) = w.start(last(w.ask("s", mode)));
        assert_eq!((outcome, w.session("s").unwrap().last), (Outcome::Hit, true));
        // Later turns hit, and don't clear the mark.
        assert_eq!(w.turn(w.ask("s", mode)), (home, Outcome::Hit));
        assert!(w.session("s").unwrap().last);
        w.finish(final_turn);
        assert_eq!(w.home("s"), Some(home), "one still runs");
        w.finish(first);
        assert_eq!((w.home("s"), w.stats().bindings), (None, 0), "at once, and not after the TTL");
        assert_eq!(w.turn(w.ask("s", mode)).1, Outcome::New);
        w.quiesce();
    }
}

#[test]
fn r19_a_first_turn_that_is_the_last_lives_as_long_as_its_stream() {
    let w = World::new(2);
    let (home, outcome, live) = w.start(last(w.hard("s")));
    assert_eq!((outcome, w.home("s")), (Outcome::New, Some(home)));
    w.finish(live);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r19_a_hold_keeps_a_marked_binding_until_it_is_a_lease_or_gone() {
    let w = World::new(2);
    let (home, _, final_turn) = w.start(last(w.hard("s")));
    let hold = w.grant(w.hard("s"));
    w.finish(final_turn);
    assert_eq!(w.home("s"), Some(home));
    let (live, outcome) = w.commit(w.go(hold));
    assert_eq!(outcome, Outcome::Hit);
    w.finish(live);
    assert_eq!(w.home("s"), None);
    let (_, _, final_turn) = w.start(last(w.hard("s")));
    let hold = w.grant(w.hard("s"));
    w.finish(final_turn);
    let _ = w.core.abandon(w.now, hold, Abandon::NotDispatched);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r19_a_refused_or_failed_final_turn_marks_nothing() {
    let mut s = settings();
    s.affinity.on_down = OnDown::Reject;
    let mut w = World::with(s, 1);
    let (home, _) = w.turn(w.hard("p"));
    w.turn(child(&w, "p"));
    let final_turn = |w: &World| ends(w.hard("p"), "p");
    for why in [Abandon::NotDispatched, Abandon::Failed, Abandon::ClientGone] {
        let checked = w.go(w.grant(final_turn(&w)));
        let _ = w.core.abandon(w.now, checked, why);
    }
    let _ = refused(w.retry(w.go(w.grant(final_turn(&w))), Failure::Broken));
    w.down(home);
    let _ = w.refused(final_turn(&w));
    w.back(home);
    assert!(!w.session("p").unwrap().last && group_is_bound(&w, "p"));
    assert_eq!(w.turn(w.hard("p")), (home, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r19_a_moved_final_turn_marks_where_it_ran() {
    let w = World::new(3);
    w.turn(w.hard("s"));
    let moved = granted(w.retry(w.go(w.grant(last(w.hard("s")))), Failure::Broken));
    let (live, outcome) = w.commit(w.go(moved));
    assert_eq!((outcome, w.session("s").unwrap().last), (Outcome::Rebound, true));
    w.finish(live);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r19_a_final_turn_that_spilled_ends_the_binding_at_home() {
    let w = World::new(2);
    let (home, _) = w.turn(w.hard("s"));
    w.overload(home, None);
    let (_, outcome, live) = w.start(last(w.hard("s")));
    assert_eq!((outcome, w.home("s")), (Outcome::Spilled, Some(home)));
    w.finish(live);
    assert_eq!(w.home("s"), None);
    w.quiesce();
}

#[test]
fn r19_the_parent_s_final_turn_ends_its_group_too() {
    // In use, with its last lease; idle, at once.
    for in_use in [false, true] {
        let w = World::new(3);
        w.turn(w.hard("p"));
        let running = in_use.then(|| w.start(child(&w, "p")).2);
        if !in_use {
            w.turn(child(&w, "p"));
        }
        w.turn(child(&w, "q"));
        let checked = w.go(w.grant(ends(w.hard("p"), "p")));
        assert!(group_is_bound(&w, "p"), "not before the commit");
        let (live, _) = w.commit(checked);
        assert_eq!(group_is_bound(&w, "p"), in_use);
        if let Some(running) = running {
            assert_eq!(w.turn(child(&w, "p")).1, Outcome::Hit, "it hits until then");
            w.finish(running);
        }
        assert!(!group_is_bound(&w, "p") && w.home("p").is_some());
        w.finish(live);
        assert_eq!(w.home("p"), None);
        assert!(group_is_bound(&w, "q"), "another's is its own");
        w.quiesce();
    }
}

#[test]
fn r19_a_final_turn_without_a_group_of_children_ends_itself() {
    let w = World::new(2);
    w.turn(ends(w.hard("p"), "p"));
    assert_eq!((w.home("p"), w.stats().bindings), (None, 0));
    w.quiesce();
}

#[test]
fn r19_the_admin_removes_a_binding_at_once_and_streams_go_on() {
    let w = World::new(3);
    let (home, _, live) = w.start(w.hard("s"));
    assert!(w.core.unbind(w.now, w.partition(), key("s")));
    assert!(!w.core.unbind(w.now, w.partition(), key("s")));
    assert_eq!((w.home("s"), w.stats().bindings, w.stats().leases), (None, 0, 1));
    assert_eq!(w.part(home).load.active_requests, 1);
    let (_, outcome, next) = w.start(w.hard("s"));
    assert_eq!(outcome, Outcome::New);
    w.finish(live);
    assert_eq!(w.session("s").unwrap().leases, 1);
    w.finish(next);
    w.quiesce();
}

#[test]
fn r19_a_later_turn_that_moves_the_session_does_not_clear_the_mark() {
    type Moves = fn(&mut World, Ask) -> (Outcome, Live);
    let moves: [(Mode, Moves); 3] = [
        (Mode::Soft, |w, ask| {
            let other = w.others(w.home("s").unwrap())[0];
            let (_, outcome, live) = w.start(at(ask, &w.name_of(other), None));
            (outcome, live)
        }),
        (Mode::Hard, |w, ask| {
            let moved = granted(w.retry(w.go(w.grant(ask)), Failure::Broken));
            let (live, outcome) = w.commit(w.go(moved));
            (outcome, live)
        }),
        // Its home departs while it is under way elsewhere.
        (Mode::Hard, |w, ask| {
            let home = w.home("s").unwrap();
            let moved = w.go(granted(w.retry(w.go(w.grant(ask)), Failure::Broken)));
            w.remove(home);
            let (live, outcome) = w.commit(moved);
            (outcome, live)
        }),
    ];
    for (i, (mode, moves)) in moves.into_iter().enumerate() {
        let mut w = World::new(3);
        let (home, _, final_turn) = w.start(last(w.hard("s")));
        let ask = w.ask("s", mode);
        let (outcome, later) = moves(&mut w, ask);
        let view = w.session("s").unwrap();
        assert_eq!((outcome, view.last, view.leases), (Outcome::Rebound, true, 1), "{i}");
        assert_ne!(view.target.worker, home);
        w.finish(later);
        assert_eq!((w.home("s"), w.stats().bindings), (None, 0), "{i}: not after the TTL");
        w.finish(final_turn);
        assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
        w.quiesce();
    }
}

#[test]
fn r19_a_parent_s_final_turn_without_room_ends_its_group() {
    let mut s = settings();
    s.affinity.max_sessions = 1;
    let w = World::with(s, 2);
    w.turn(child(&w, "p"));
    let (_, outcome, live) = w.start(ends(w.hard("p"), "p"));
    assert_eq!((outcome, group_is_bound(&w, "p")), (Outcome::UnboundFull, false));
    w.finish(live);
    w.quiesce();
}

#[test]
fn r19_a_parent_s_surplus_final_turn_ends_nothing() {
    let mut s = settings();
    s.affinity.max_parallel = 1;
    let w = World::with(s, 2);
    w.turn(child(&w, "p"));
    let (_, _, live) = w.start(w.hard("p"));
    assert_eq!(w.turn(ends(w.hard("p"), "p")).1, Outcome::Surplus);
    assert!(group_is_bound(&w, "p") && !w.session("p").unwrap().last);
    w.finish(live);
    assert!(group_is_bound(&w, "p") && w.home("p").is_some());
    // With a share of its own it does.
    assert_eq!(w.turn(ends(w.hard("p"), "p")).1, Outcome::Hit);
    assert!(!group_is_bound(&w, "p") && w.home("p").is_none());
    w.quiesce();
}
