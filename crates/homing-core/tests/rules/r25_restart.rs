//! R25, without its file: bindings are kept, brought back with what is left of their idle time, and each
//! is looked at when it is first used.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::affinity::saved::Kept;
use homing_core::ask::Cause;
use homing_core::core::Cursor;
use homing_core::fleet::{FleetChange, Life};
use homing_core::ids::{PartitionId, Role, WorkerId};
use homing_core::settings::CoreSettings;
use std::time::Duration;

/// What a file would hold.
struct Saved {
    bindings: Vec<(PartitionId, Kept)>,
    lives: Vec<Life>,
    pools: Vec<(String, Role)>,
}

fn save(w: &World) -> Saved {
    let (mut bindings, mut cursor) = (Vec::new(), Cursor::default());
    while let Some(part) = w.core.snapshot(w.now, &mut cursor) {
        bindings.extend(part);
    }
    let pools = w.core.partitions().iter().map(|p| (p.pool.to_string(), p.role)).collect();
    Saved { bindings, lives: w.core.lives(), pools }
}

/// Another process, to which nobody has registered yet, `down` later; how many came back.
fn restart(w: &World, settings: CoreSettings, down: Duration) -> (World, usize) {
    let saved = save(w);
    let mut new = World::router(settings, 8, 0);
    // Ids are each process's own.
    new.up("first", &["another model"]);
    new.now = w.now + down;
    let mut back = 0;
    for (partition, mut kept) in saved.bindings {
        let (pool, role) = &saved.pools[partition.0 as usize];
        let partition = new.core.promise_partition(pool, *role).unwrap();
        let life = saved.lives.iter().find(|l| l.id == kept.target.worker).unwrap();
        kept.target.worker = new.core.promise_worker(&life.name, life.started);
        back += new.core.restore(new.now, partition, &[kept]);
    }
    new.core.restored();
    new.core.check();
    (new, back)
}

fn started(w: &mut World, id: WorkerId, at: u64) {
    w.fleet(FleetChange::Started(id, at));
}

#[test]
fn r25_bindings_come_back_and_are_hits() {
    let mut old = World::new(3);
    for i in 0..20 {
        old.turn(old.hard(&format!("s{i}")));
    }
    let homes: Vec<_> = (0..20).map(|i| old.name_of(old.home(&format!("s{i}")).unwrap())).collect();
    let (mut w, back) = restart(&old, settings(), SECOND);
    assert_eq!((back, w.core.sessions(w.now, 99).len()), (20, 20));
    // In another order than before.
    for name in ["w2", "w0", "w1"] {
        w.up(name, &[MODEL]);
    }
    for (i, home) in homes.iter().enumerate() {
        let (worker, outcome) = w.turn(w.hard(&format!("s{i}")));
        assert_eq!((&w.name_of(worker), outcome), (home, Outcome::Hit));
    }
    old.pass(SECOND);
    w.quiesce();
}

#[test]
fn r25_with_what_is_left_of_their_idle_time() {
    let mut old = World::new(1);
    // Which came first doesn't matter, only which was used last.
    old.turn(old.hard("younger"));
    old.turn(old.hard("older"));
    old.pass(SECOND * 20);
    old.turn(old.hard("younger"));
    let (_, _, live) = old.start(old.hard("in use"));
    old.pass(SECOND * 10);
    let (mut w, back) = restart(&old, settings(), SECOND * 5);
    assert_eq!(back, 3);
    w.up("w0", &[MODEL]);
    let idle = |id| w.session(id).unwrap().idle;
    assert_eq!((idle("older"), idle("younger")), (SECOND * 35, SECOND * 15));
    assert_eq!(idle("in use"), SECOND * 5, "from when it was kept");
    assert_eq!((w.session("in use").unwrap().leases, w.stats().leases), (0, 0));
    assert_eq!(w.core.poll_timeout(), Some(w.now + SECOND * 25));
    for (passes, left) in [(25, 2), (20, 1), (10, 0)] {
        w.pass(SECOND * passes);
        w.tick();
        assert_eq!(w.stats().bindings, left);
    }
    old.finish(live);
    w.quiesce();
}

#[test]
fn r25_what_idled_out_meanwhile_or_has_ended_does_not_come_back() {
    let old = World::new(1);
    old.turn(old.hard("idle"));
    let (_, _, live) = old.start(last(old.hard("final")));
    let (w, back) = restart(&old, settings(), Duration::ZERO);
    assert_eq!((back, w.core.sessions(w.now, 9).len()), (1, 1), "its final turn was committed");
    let (w, back) = restart(&old, settings(), TTL);
    assert_eq!((back, w.core.sessions(w.now, 9).len()), (0, 0));
    old.finish(live);
}

#[test]
fn r25_versions_go_on() {
    let old = World::new(2);
    old.turn(old.hard("s"));
    let before = old.session("s").unwrap().version;
    let (mut w, _) = restart(&old, settings(), Duration::ZERO);
    w.up("w0", &[MODEL]);
    w.up("w1", &[MODEL]);
    assert_eq!(w.session("s").unwrap().version, before);
    // A clock that went back makes no lower version.
    w.now = homing_core::time::Time::from_micros(5);
    let home = w.home("s").unwrap();
    w.remove(home);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::Rebound);
    assert!(w.session("s").unwrap().version > before);
}

#[test]
fn r25_a_worker_that_is_back_and_has_not_told_what_it_serves_is_no_departure() {
    for mode in MODES {
        let old = World::new(1);
        old.turn(old.hard("s"));
        let (mut w, _) = restart(&old, settings(), SECOND);
        w.up("w5", &[MODEL]);
        let id = w.register("w0");
        let before = w.session("s").unwrap();
        assert_eq!(before.target.worker, id, "it is the life that was promised");
        let refusal = w.refused(w.hard("s"));
        assert_eq!((refusal.cause, refusal.outcome), (Cause::TargetUnavailable, Outcome::Rejected));
        assert_eq!((refusal.bound, w.session("s")), (true, Some(before)), "kept");
        if mode == homing_core::settings::Mode::Soft {
            let (worker, outcome) = w.turn(w.soft("s"));
            assert_eq!((w.name_of(worker).as_str(), outcome), ("w5", Outcome::Rebound));
        } else {
            w.serves(id, &[MODEL]);
            w.back(id);
            assert_eq!(w.turn(w.hard("s")), (id, Outcome::Hit));
        }
        w.quiesce();
    }
}

#[test]
fn r25_a_worker_that_was_there_before_its_pool_was_promised_is_known_too() {
    // The worker registers first, the file is read then.
    let old = World::new(1);
    old.turn(old.hard("s"));
    let saved = save(&old);
    let mut w = World::router(settings(), 8, 0);
    let id = w.register("w0");
    let partition = w.core.promise_partition(MODEL, Role::Aggregated).unwrap();
    let mut kept = saved.bindings[0].1;
    kept.target.worker = w.core.promise_worker("w0", None);
    assert_eq!(kept.target.worker, id);
    assert_eq!(w.core.restore(w.now, partition, &[kept]), 1);
    w.core.restored();
    w.up("w5", &[MODEL]);
    assert_eq!(w.refused(w.hard("s")).cause, Cause::TargetUnavailable);
    w.serves(id, &[MODEL]);
    w.back(id);
    assert_eq!(w.turn(w.hard("s")), (id, Outcome::Hit));
    w.quiesce();
}

#[test]
fn r25_a_worker_that_is_not_back_or_serves_something_else_has_departed() {
    type Fleet = fn(&mut World);
    let fleets: [Fleet; 2] = [|_| (), |w| _ = w.up("w0", &["another model"])];
    for fleet in fleets {
        let old = World::new(1);
        old.turn(old.hard("s"));
        let (mut w, _) = restart(&old, settings(), SECOND);
        fleet(&mut w);
        w.up("w5", &[MODEL]);
        let (worker, outcome) = w.turn(w.hard("s"));
        assert_eq!((w.name_of(worker).as_str(), outcome), ("w5", Outcome::Rebound));
        assert_eq!(w.moves(), [1, 0, 0, 0]);
        w.quiesce();
    }
}

#[test]
fn r25_another_start_time_is_another_life() {
    for (before, after, hit) in [
        (Some(100), Some(100), true),
        (Some(100), Some(200), false),
        (Some(100), None, true),
        (None, Some(200), true),
    ] {
        let mut old = World::new(1);
        let id = old.core.worker_named("w0").unwrap();
        before.into_iter().for_each(|t| started(&mut old, id, t));
        old.turn(old.hard("s"));
        let (mut w, _) = restart(&old, settings(), SECOND);
        let id = w.up("w0", &[MODEL]);
        after.into_iter().for_each(|t| started(&mut w, id, t));
        let outcome = w.turn(w.hard("s")).1;
        let want = if hit { Outcome::Hit } else { Outcome::Rebound };
        assert_eq!(outcome, want, "{before:?}, {after:?}");
        w.quiesce();
    }
}

#[test]
fn r25_another_start_time_of_one_that_registered_before_the_file_was_read() {
    let mut old = World::new(1);
    let id = old.core.worker_named("w0").unwrap();
    started(&mut old, id, 100);
    old.turn(old.hard("s"));
    for (now, hit) in [(100, true), (200, false)] {
        let mut w = World::router(settings(), 8, 1);
        let id = w.core.worker_named("w0").unwrap();
        started(&mut w, id, now);
        let mut kept = save(&old).bindings[0].1;
        kept.target.worker = w.core.promise_worker("w0", Some(100));
        assert_eq!(w.core.restore(w.now, w.partition(), &[kept]), 1);
        w.core.restored();
        let want = if hit { Outcome::Hit } else { Outcome::Rebound };
        assert_eq!(w.turn(w.hard("s")).1, want);
        w.quiesce();
    }
}

#[test]
fn r25_a_rank_that_is_gone_after_the_restart_has_departed() {
    let mut old = World::new(0);
    old.up_with_ranks("w0", 0, 4);
    old.turn(at(old.hard("s"), "w0", Some(3)));
    for (size, want) in [(4, Outcome::Hit), (2, Outcome::Rebound)] {
        let (mut w, _) = restart(&old, settings(), SECOND);
        w.up_with_ranks("w0", 0, size);
        assert_eq!(w.turn(w.hard("s")).1, want);
        w.quiesce();
    }
}

#[test]
fn r25_there_is_room_for_so_many_and_what_was_bound_anew_stays() {
    let old = World::new(1);
    ["a", "b", "c"].into_iter().for_each(|id| _ = old.turn(old.hard(id)));
    let mut s = settings();
    s.affinity.max_sessions = 2;
    let (w, back) = restart(&old, s, Duration::ZERO);
    assert_eq!((back, w.core.sessions(w.now, 9).len()), (2, 2));
    // A session that has been here already keeps what it has here.
    let mut w = World::router(settings(), 8, 2);
    let (home, _) = w.turn(w.hard("a"));
    let kept: Vec<_> = save(&old)
        .bindings
        .into_iter()
        .map(|(_, mut kept)| {
            kept.target.worker = w.core.promise_worker("elsewhere", None);
            kept
        })
        .collect();
    assert_eq!(w.core.restore(w.now, w.partition(), &kept), 2);
    w.core.restored();
    assert_eq!(w.home("a"), Some(home));
    assert_eq!(w.core.restore(w.now, w.partition(), &kept), 0, "a file that is read twice");
    w.core.restored();
    w.pass(SECOND);
    w.quiesce();
}

#[test]
fn r25_each_role_s_bindings_come_back_to_it() {
    let mut s = settings();
    s.affinity.prefill_ttl = Some(Some(TTL * 2));
    let mut old = World::with(s.clone(), 0);
    for (name, role) in [("a0", Role::Aggregated), ("p0", Role::Prefill)] {
        old.up_as(name, |spec| spec.role = role);
    }
    old.turn(old.hard("s"));
    old.turn(in_role(&old, old.hard("s"), Role::Prefill));
    let (mut w, back) = restart(&old, s, TTL);
    assert_eq!(back, 1, "by each role's own TTL");
    w.up_as("p0", |spec| spec.role = Role::Prefill);
    w.up_as("a0", |_| ());
    assert_eq!(w.turn(in_role(&w, w.hard("s"), Role::Prefill)).1, Outcome::Hit);
    assert_eq!(w.turn(w.hard("s")).1, Outcome::New);
}

#[test]
fn r25_a_walk_in_many_parts_keeps_each_once_while_requests_go_on() {
    let w = World::new(2);
    let n = 5000;
    let bind = |id: &str| {
        let grant = granted(w.core.admit(w.now, w.hard(id)));
        let homing_core::ask::Dispatch::Go(checked) = w.core.check_dispatch(w.now, grant) else {
            panic!("a first turn goes on");
        };
        let (live, _) = w.core.commit(w.now, checked);
        w.core.finish(w.now, live);
    };
    (0..n).for_each(|i| bind(&format!("s{i}")));
    let (mut keys, mut cursor, mut parts) = (Vec::new(), Cursor::default(), 0);
    while let Some(part) = w.core.snapshot(w.now, &mut cursor) {
        keys.extend(part.into_iter().map(|(_, kept)| kept.key));
        w.core.unbind(w.now, w.partition(), key(&format!("s{}", n - 1 - parts)));
        bind(&format!("new{parts}"));
        parts += 1;
    }
    let all = keys.len();
    let distinct: std::collections::BTreeSet<_> = keys.into_iter().collect();
    assert!(parts > 3, "{parts}: no call walks it all");
    assert_eq!(distinct.len(), all);
    assert!((0..n - parts).all(|i| distinct.contains(&key(&format!("s{i}")))));
}
