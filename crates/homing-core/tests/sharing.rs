//! R23 between whole cores: two routers in front of the same workers, each with its own requests, telling
//! each other of their bindings over a wire that loses, doubles, delays and reorders.
//!
//! Everything follows from a seed. Each update that arrives is held against a register written down
//! plainly (`sharing/wire.rs`), and when the storm is over both know the same. `HOMING_SIM_SEED=n`
//! replays one seed and prints what happened; `HOMING_SIM_SEEDS=n` plays so many (128 if unset).

#![expect(clippy::unwrap_used, reason = "a test from end to end")]

mod sharing {
    pub(super) mod router;
    pub(super) mod storm;
    pub(super) mod wire;
}

use homing_core::affinity::Outcome;
use homing_core::affinity::merge::Merged;
use homing_core::core::{Publication, Received};
use homing_core::fleet::FleetChange;
use homing_core::ids::Role;
use homing_core::settings::CoreSettings;
use homing_core::time::Time;
use sharing::router::{ASIDE_FOR, MODEL, Router, SECOND, TTL, key, settings};
use sharing::storm::{Seen, Storm};
use std::time::Duration;

const STEPS: usize = 600;

fn play(seed: u64) -> (Seen, Vec<String>) {
    let mut storm = Storm::new(seed, number("HOMING_SIM_SEED").is_some());
    for _ in 0..STEPS {
        storm.step();
    }
    storm.calm()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap())
}

#[test]
fn r23_whatever_the_wire_does_routers_agree_once_updates_flow() {
    if let Some(seed) = number("HOMING_SIM_SEED") {
        play(seed);
        return;
    }
    let seeds = number("HOMING_SIM_SEEDS").unwrap_or(128);
    let mut seen = Seen::default();
    for seed in 0..seeds {
        seen.add(&play(seed).0);
    }
    println!("{seeds} seeds, {STEPS} steps each: {seen:?}");
    // A storm in which something never happens proves nothing about it.
    assert!(seeds < 64 || seen.least() > seeds / 4, "too quiet: {seen:?}");
}

#[test]
fn the_same_seed_is_the_same_storm() {
    for seed in 1000..1008 {
        let (a, b) = (play(seed), play(seed));
        assert!(a.1 == b.1, "seed {seed}");
    }
}

/// Two routers that know the workers `w0..w{n}`.
fn two(n: usize) -> [Router; 2] {
    let mut routers = [Router::new(settings(), 1), Router::new(settings(), 2)];
    for r in &mut routers {
        (0..n).for_each(|w| r.up(w));
    }
    routers
}

#[test]
fn r23_a_turn_at_one_router_is_a_hit_at_the_other() {
    let [mut a, mut b] = two(4);
    for k in 0..20 {
        assert_eq!(a.turn(k), Outcome::New);
        for p in a.told() {
            assert_eq!(p.pool.as_ref(), MODEL);
            b.hear(p);
        }
        assert_eq!(b.home(k), a.home(k));
        assert_eq!(b.turn(k), Outcome::Hit);
        let told = b.told();
        assert!(told.iter().all(|p| Some(p.version) == a.version(k)), "the same write, told on");
        for p in told {
            assert_eq!(a.hear(p), Received::Merged(Merged::Same));
        }
    }
    assert!(a.core.unbind(a.now, a.partition(), key(3)));
    a.told().into_iter().for_each(|p| _ = b.hear(p));
    assert_eq!(b.home(3), None);
    a.check_idle();
    b.check_idle();
}

#[test]
fn r23_what_a_departed_worker_had_is_told_to_nobody() {
    let [mut a, _] = two(1);
    a.turn(0);
    let id = a.core.worker_named("w0").unwrap();
    a.core.handle_fleet(a.now, FleetChange::Remove(id)).unwrap();
    assert_eq!(a.told(), []);
}

#[test]
fn nothing_is_told_where_nothing_is_shared() {
    let mut settings = settings();
    settings.affinity.shared = false;
    let mut a = Router::new(settings, 1);
    a.up(0);
    a.turn(0);
    assert_eq!(a.told(), []);
}

#[test]
fn r02_where_sessions_are_passive_what_others_bound_is_not_kept() {
    let [mut a, _] = two(1);
    a.turn(0);
    let mut off = CoreSettings::default();
    (off.affinity.ttl, off.affinity.shared) = (None, true);
    let mut b = Router::new(off, 2);
    b.up(0);
    for p in a.told() {
        assert_eq!(b.hear(p), Received::Passive);
    }
    assert_eq!(b.turn(0), Outcome::None);
}

// === workers that are not known yet ===

/// Told of a binding at `w1`, which the other doesn't know.
fn ahead_of_discovery() -> (Router, Router, Vec<Publication>) {
    let [mut a, b] = two(1);
    let id = a.core.worker_named("w0").unwrap();
    a.core.handle_fleet(a.now, FleetChange::Remove(id)).unwrap();
    a.up(1);
    a.turn(0);
    let told = a.told();
    assert!(!told.is_empty());
    (a, b, told)
}

#[test]
fn r23_what_is_bound_to_a_worker_that_is_not_known_yet_waits_for_it_for_a_minute() {
    let moment = Duration::from_micros(1);
    for (late, in_time) in [(Duration::ZERO, true), (ASIDE_FOR - moment, true), (ASIDE_FOR, false)]
    {
        let (a, mut b, told) = ahead_of_discovery();
        for p in told {
            assert_eq!(b.hear(p.clone()), Received::SetAside);
            assert_eq!(b.hear(p), Received::SetAside, "a copy");
        }
        assert_eq!(b.home(0), None);
        b.now = b.now + late;
        b.up(1);
        assert_eq!(b.home(0), a.home(0).filter(|_| in_time), "after {late:?}");
        if in_time {
            assert_eq!(b.turn(0), Outcome::Hit);
        }
        b.core.check();
    }
}

#[test]
fn r23_what_came_later_than_what_waits_stands() {
    let (mut a, mut b, told) = ahead_of_discovery();
    told.into_iter().for_each(|p| _ = b.hear(p));
    assert!(a.core.unbind(a.now, a.partition(), key(0)));
    for p in a.told() {
        assert_eq!(b.hear(p), Received::Merged(Merged::Applied));
    }
    b.up(1);
    assert_eq!(b.home(0), None, "its removal overtook it");
}

#[test]
fn r23_before_any_worker_is_known_everything_waits() {
    let [mut a, _] = two(2);
    (0..12).for_each(|k| _ = a.turn(k));
    assert!(a.core.unbind(a.now, a.partition(), key(2)));
    let told = a.told();
    // However long it takes until the first one comes, be it since their discovery is away; the others have a minute.
    for (first, second, all) in [(0, 0, true), (3000, 0, true), (3000, 59, true), (3000, 60, false)]
    {
        let mut settings = settings();
        settings.affinity.ttl = Some(Duration::from_secs(1 << 20));
        let mut b = Router::new(settings, 2);
        for p in told.clone() {
            assert_eq!(b.hear(p), Received::SetAside);
            b.now = b.now + Duration::from_secs(first);
        }
        b.up(0);
        b.now = b.now + Duration::from_secs(second);
        b.up(1);
        let homes = |r: &Router| (0..12).filter(|k| r.home(*k).is_some()).count();
        assert_eq!(homes(&b) == homes(&a), all);
        for k in 0..12 {
            assert!(b.home(k).is_none() || b.home(k) == a.home(k), "session {k}");
        }
    }
}

#[test]
fn f42_what_waits_for_workers_is_bounded_and_the_oldest_goes() {
    const MOST: u32 = 65_536;
    let (_, mut b, told) = ahead_of_discovery();
    let one = &told[0];
    for k in 0..MOST + 7 {
        let p = Publication { key: key(k), ..one.clone() };
        assert_eq!(b.hear(p), Received::SetAside);
    }
    b.up(1);
    let first = (0..MOST + 7).find(|k| b.home(*k).is_some());
    assert_eq!(first, Some(7));
    assert_eq!(b.stats().bindings, MOST as usize);
    b.core.check();
}

#[test]
fn r23_other_pools_and_roles_are_other_sessions() {
    let [mut a, mut b] = two(1);
    a.turn(0);
    let p = a.told().pop().unwrap();
    assert_eq!(b.hear(Publication { pool: "other".into(), ..p.clone() }), Received::SetAside);
    assert_eq!(b.hear(Publication { role: Role::Decode, ..p.clone() }), Received::SetAside);
    assert_eq!(b.home(0), None);
    assert_eq!(b.hear(p), Received::Merged(Merged::Applied));
}

#[test]
fn r23_a_lease_keeps_a_session_alive_at_all_routers() {
    let [mut a, mut b] = two(2);
    let live = a.begin(0);
    let end = a.now + TTL * 3;
    while a.now < end {
        let next = a.core.poll_timeout().unwrap();
        let step = next.since(a.now).max(SECOND);
        (a.now, b.now) = (a.now + step, b.now + step);
        a.core.handle_timeout(a.now);
        b.core.handle_timeout(b.now);
        a.told().into_iter().for_each(|p| _ = b.hear(p));
        assert!(b.home(0).is_some() && b.home(0) == a.home(0));
    }
    a.core.finish(a.now, live);
    a.told();
    (a.now, b.now) = (a.now + TTL, b.now + TTL);
    assert_eq!((a.home(0), b.home(0)), (None, None));
}

#[test]
fn f71_versions_rise_over_a_restart_by_a_clock_that_is_behind() {
    let [mut a, mut b] = two(2);
    (a.now, b.now) = (a.now + TTL, b.now + TTL);
    b.turn(0);
    let before = b.version(0).unwrap();
    b.told().into_iter().for_each(|p| _ = a.hear(p));
    // It comes back by a clock that is an hour behind, and hears of its own past from the other.
    let mut again = Router::new(settings(), 2);
    again.now = Time::from_micros(b.now.as_micros() - 10_000_000);
    (0..2).for_each(|w| again.up(w));
    a.turn(0);
    a.told().into_iter().for_each(|p| _ = again.hear(p));
    assert!(again.core.unbind(again.now, again.partition(), key(0)));
    let removal = again.told().pop().unwrap();
    assert!(removal.version > before);
    assert_eq!(a.hear(removal), Received::Merged(Merged::Applied));
    assert_eq!(a.home(0), None);
}
