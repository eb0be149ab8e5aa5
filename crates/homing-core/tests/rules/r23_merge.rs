//! R23, without its transport: what one router publishes, and what becomes of it at another.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::affinity::merge::Merged;
use homing_core::affinity::version::Version;
use homing_core::core::{Home, Publication, Received};
use homing_core::settings::CoreSettings;
use homing_core::time::Time;
use std::time::Duration;

fn shared() -> CoreSettings {
    let mut settings = settings();
    settings.affinity.shared = true;
    settings
}

/// Two routers over the same three workers, which they came to know in another order.
fn two() -> (World, World) {
    let a = World::router(shared(), 1, 3);
    let mut b = World::router(shared(), 2, 0);
    for name in ["w2", "w0", "w1"] {
        b.up(name, &[MODEL]);
    }
    (a, b)
}

/// What a router has to tell.
fn told(w: &World) -> Vec<Publication> {
    w.core.publications(Time::FAR, usize::MAX)
}

fn hears(w: &World, p: &Publication) -> Received {
    let received = w.core.handle_publication(w.now, p.clone());
    w.core.check();
    received
}

fn tell(from: &World, to: &World) {
    told(from).iter().for_each(|p| _ = hears(to, p));
}

fn home(w: &World, id: &str) -> Option<String> {
    w.home(id).map(|worker| w.name_of(worker))
}

fn go(w: &World, id: &str, worker: &str) -> Outcome {
    w.turn(at(w.soft(id), worker, None)).1
}

/// As if another router had written it.
fn written(w: &World, home: Option<(&str, Option<u16>)>, sequence: u64) -> Publication {
    Publication {
        pool: MODEL.into(),
        role: homing_core::ids::Role::Aggregated,
        key: key("s"),
        version: Version { sequence, writer: 99 },
        home: home.map(|(name, rank)| Home {
            worker: name.into(),
            rank: rank.map(homing_core::ids::DpRank),
            started: None,
        }),
        used: w.now,
    }
}

#[test]
fn r23_a_commit_is_heard_of_and_the_other_router_hits() {
    let (a, b) = two();
    assert_eq!(go(&a, "s", "w2"), Outcome::New);
    tell(&a, &b);
    assert_eq!(home(&b, "s").as_deref(), Some("w2"), "by name: ids are each process's own");
    assert_eq!(b.turn(b.hard("s")).1, Outcome::Hit);
    assert_eq!(a.session("s").unwrap().version, b.session("s").unwrap().version);
}

#[test]
fn r23_the_higher_version_wins_in_any_order_and_however_often() {
    let (a, _) = two();
    go(&a, "s", "w0");
    go(&a, "s", "w1");
    go(&a, "s", "w2");
    let all = told(&a);
    let want = a.session("s").unwrap().version;
    let n = all.len();
    assert!(n >= 3);
    for shift in 0..n {
        for reversed in [false, true] {
            let (_, b) = two();
            let mut order: Vec<_> = (0..2 * n).map(|i| (i + shift) % n).collect();
            if reversed {
                order.reverse();
            }
            order.iter().for_each(|i| _ = hears(&b, &all[*i]));
            assert_eq!(home(&b, "s").as_deref(), Some("w2"), "{order:?}");
            assert_eq!(b.session("s").unwrap().version, want);
        }
    }
}

#[test]
fn r23_two_that_bind_at_once_agree() {
    let (a, b) = two();
    go(&a, "s", "w0");
    go(&b, "s", "w1");
    assert_ne!(home(&a, "s"), home(&b, "s"));
    let (of_a, of_b) = (told(&a), told(&b));
    of_b.iter().for_each(|p| _ = hears(&a, p));
    of_a.iter().for_each(|p| _ = hears(&b, p));
    assert_eq!(home(&a, "s"), home(&b, "s"));
    assert_eq!(a.session("s").unwrap().version, b.session("s").unwrap().version);
}

#[test]
fn r23_what_was_lost_is_made_good_by_the_next_word() {
    let (a, b) = two();
    go(&a, "s", "w0");
    tell(&a, &b);
    go(&a, "s", "w1");
    let lost = told(&a);
    assert_eq!(b.turn(b.hard("s")).1, Outcome::Hit, "at the old place, and no failure");
    a.turn(a.hard("s"));
    tell(&a, &b);
    assert_eq!(home(&b, "s").as_deref(), Some("w1"));
    lost.iter().for_each(|p| _ = hears(&b, p));
    assert_eq!(home(&b, "s").as_deref(), Some("w1"), "late, and too late");
}

#[test]
fn r23_a_removal_is_a_version_too() {
    let (a, b) = two();
    go(&a, "s", "w0");
    let bound = told(&a);
    bound.iter().for_each(|p| _ = hears(&b, p));
    assert!(a.core.unbind(a.now, a.partition(), key("s")));
    tell(&a, &b);
    assert_eq!(home(&b, "s"), None);
    bound.iter().for_each(|p| assert_eq!(hears(&b, p), Received::Merged(Merged::Stale)));
    assert_eq!(home(&b, "s"), None, "a late one does not bring it back");
    assert_eq!(go(&b, "s", "w1"), Outcome::New, "a later write does");
    tell(&b, &a);
    assert_eq!(home(&a, "s").as_deref(), Some("w1"));
}

#[test]
fn r23_where_leases_live_a_removal_is_a_final_turn_s_mark() {
    let (a, b) = two();
    go(&a, "s", "w0");
    tell(&a, &b);
    let (_, outcome, live) = b.start(b.hard("s"));
    assert_eq!(outcome, Outcome::Hit);
    assert!(a.core.unbind(a.now, a.partition(), key("s")));
    tell(&a, &b);
    assert!(b.session("s").unwrap().last);
    assert_eq!(b.turn(b.hard("s")).1, Outcome::Hit, "until the last lease ends");
    b.finish(live);
    assert_eq!((home(&b, "s"), b.stats().leases), (None, 0));
}

#[test]
fn r23_a_final_turn_s_end_is_heard_of() {
    let (a, b) = two();
    go(&a, "s", "w0");
    tell(&a, &b);
    let (_, _, live) = a.start(last(a.hard("s")));
    tell(&a, &b);
    assert!(home(&b, "s").is_some());
    a.finish(live);
    tell(&a, &b);
    assert_eq!(home(&b, "s"), None);
}

#[test]
fn r23_use_elsewhere_refreshes_the_idle_time() {
    let (mut a, mut b) = two();
    go(&a, "s", "w0");
    tell(&a, &b);
    for _ in 0..3 {
        a.pass(TTL - SECOND);
        b.pass(TTL - SECOND);
        assert_eq!(a.turn(a.hard("s")).1, Outcome::Hit);
        tell(&a, &b);
    }
    assert_eq!(b.session("s").unwrap().idle, Duration::ZERO);
    b.pass(TTL);
    assert_eq!(home(&b, "s"), None);
}

#[test]
fn r23_live_leases_are_told_of_every_third_of_the_ttl() {
    let (mut a, mut b) = two();
    let (_, _, live) = a.start(a.hard("s"));
    tell(&a, &b);
    for _ in 0..12 {
        let due = a.core.poll_timeout().unwrap();
        assert!(due <= a.now + TTL / 3);
        a.pass(TTL / 3);
        b.pass(TTL / 3);
        a.tick();
        b.tick();
        tell(&a, &b);
        assert!(home(&b, "s").is_some(), "a stream of four times the TTL");
    }
    a.finish(live);
    tell(&a, &b);
    assert_eq!(b.session("s").unwrap().idle, Duration::ZERO, "the last release is told of too");
}

#[test]
fn r23_what_idled_out_on_its_way_binds_nothing() {
    let (a, mut b) = two();
    go(&a, "s", "w0");
    let late = told(&a);
    b.pass(TTL);
    late.iter().for_each(|p| assert_eq!(hears(&b, p), Received::Merged(Merged::Expired)));
    assert_eq!(home(&b, "s"), None);
}

#[test]
fn r23_an_update_for_a_worker_not_known_here_is_set_aside_for_a_minute() {
    for (passes, found) in [(59, true), (60, false)] {
        let mut w = World::router(shared(), 3, 1);
        let mut p = written(&w, Some(("w9", Some(0))), 5);
        p.used = w.now + SECOND * passes;
        assert_eq!(hears(&w, &p), Received::SetAside);
        assert_eq!(home(&w, "s"), None);
        w.pass(SECOND * passes);
        w.up("w9", &[MODEL]);
        assert_eq!(home(&w, "s").is_some(), found, "after {passes} s");
        assert_eq!(w.turn(w.hard("s")).1, if found { Outcome::Hit } else { Outcome::New });
    }
}

#[test]
fn r23_what_is_set_aside_is_bounded() {
    let mut w = World::router(shared(), 3, 1);
    for i in 0..70_000u32 {
        let mut p = written(&w, Some(("w9", Some(0))), u64::from(i) + 1);
        p.key = key(&format!("s{i}"));
        w.core.handle_publication(w.now, p);
    }
    w.up("w9", &[MODEL]);
    assert_eq!(w.stats().bindings, 65_536);
    assert!(w.home("s69999").is_some() && w.home("s0").is_none(), "the oldest went first");
}

#[test]
fn r23_a_full_table_takes_no_more_and_evicts_nobody() {
    for on_full in
        [homing_core::settings::OnFull::RouteUnbound, homing_core::settings::OnFull::EvictIdle]
    {
        let mut s = shared();
        s.affinity.max_sessions = 1;
        s.affinity.on_full = on_full;
        let w = World::router(s, 3, 2);
        w.turn(w.hard("mine"));
        let p = written(&w, Some(("w0", Some(0))), 1 << 33);
        assert_eq!(hears(&w, &p), Received::Merged(Merged::Full));
        assert!(w.home("mine").is_some() && w.home("s").is_none());
        assert_eq!(w.stats().table.evicted, 0);
    }
}

#[test]
fn r23_where_sessions_are_passive_nothing_is_kept_and_without_sharing_nothing_told() {
    let mut s = shared();
    s.affinity.ttl = None;
    let w = World::router(s, 3, 1);
    assert_eq!(hears(&w, &written(&w, Some(("w0", Some(0))), 5)), Received::Passive);
    let w = World::router(settings(), 3, 1);
    w.turn(w.hard("s"));
    assert_eq!(told(&w), []);
}

#[test]
fn r23_a_worker_only_binding_from_another_router_is_kept_under_constraints() {
    for mode in MODES {
        let mut w = World::router(shared(), 3, 0);
        let id = w.up_as("a", |spec| {
            spec.labels.insert("gpu".into(), "h100".into());
            spec.ranks = homing_core::fleet::Ranks::new(0, 3);
        });
        w.up("b", &[MODEL]);
        assert_eq!(
            hears(&w, &written(&w, Some(("a", None)), 5)),
            Received::Merged(Merged::Applied)
        );
        let before = w.session("s").unwrap();
        assert_eq!(before.target, homing_core::ids::Target { worker: id, rank: None });
        for ask in [only(w.ask("s", mode), &["a"]), labelled(w.ask("s", mode), "gpu", "h100")] {
            assert_eq!(w.turn(ask), (id, Outcome::Hit));
            let after = w.session("s").unwrap();
            assert_eq!((after.target, after.version), (before.target, before.version));
        }
        assert_eq!(w.moves(), [0; 4]);
    }
}

#[test]
fn r23_a_binding_that_comes_in_while_a_first_turn_is_under_way_is_looked_at() {
    // Before its dispatch it selects once more; after it, R11 decides.
    let w = World::router(shared(), 3, 2);
    let grant = w.grant(at(w.hard("s"), "w0", None));
    let mut free = w.grant(only(w.hard("s"), &["w0"]));
    let running = w.go(grant);
    assert_eq!(
        hears(&w, &written(&w, Some(("w1", Some(0))), 5)),
        Received::Merged(Merged::Applied)
    );
    let (live, outcome) = w.commit(running);
    assert_eq!((outcome, home(&w, "s").as_deref()), (Outcome::Conflict, Some("w1")));
    let mut ask = w.again(free);
    ask.constraints = None;
    free = w.grant(ask);
    assert_eq!(w.name_of(free.worker().id), "w1");
    let (other, outcome) = w.commit(w.go(free));
    assert_eq!(outcome, Outcome::Hit);
    w.finish(live);
    w.finish(other);
    assert_eq!((w.stats().leases, w.stats().bookings), (0, 0));
}

#[test]
fn r23_a_version_that_no_clock_can_have_reached_is_not_believed() {
    let w = World::router(shared(), 3, 2);
    let lie = written(&w, Some(("w0", Some(0))), u64::MAX);
    assert_eq!(hears(&w, &lie), Received::Merged(Merged::Untrue));
    assert_eq!(go(&w, "s", "w1"), Outcome::New);
    let first = w.session("s").unwrap().version;
    assert_eq!(go(&w, "s", "w0"), Outcome::Rebound);
    assert!(w.session("s").unwrap().version > first, "later ones still rise");
}

#[test]
fn r23_versions_never_start_again() {
    let (a, b) = two();
    let ahead = written(&b, Some(("w0", Some(0))), 1 << 33);
    assert_eq!(hears(&b, &ahead), Received::Merged(Merged::Applied));
    assert_eq!(go(&b, "s", "w1"), Outcome::Rebound);
    assert!(b.session("s").unwrap().version > ahead.version, "higher than any that was seen");
    tell(&b, &a);
    assert_eq!(home(&a, "s").as_deref(), Some("w1"));
}

#[test]
fn r23_an_update_for_a_pool_not_known_here_is_set_aside_until_its_worker_tells() {
    let mut w = World::router(shared(), 3, 0);
    let id = w.register("w9");
    let p = written(&w, Some(("w9", Some(0))), 5);
    assert_eq!(hears(&w, &p), Received::SetAside);
    w.serves(id, &[MODEL]);
    w.back(id);
    assert_eq!(w.turn(w.hard("s")), (id, Outcome::Hit));
}
