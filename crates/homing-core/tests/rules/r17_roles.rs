//! R17, as far as partitions go: each role has its own table, on or off by itself, with its own TTL.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Ask, Cause};
use homing_core::ids::{Role, WorkerId};
use homing_core::settings::{CoreSettings, Mode};
use std::time::Duration;

const ROLES: [Role; 3] = [Role::Aggregated, Role::Prefill, Role::Decode];

/// Two workers of each role.
fn fleet(settings: CoreSettings) -> World {
    let mut w = World::with(settings, 0);
    for (role, kind) in ROLES.into_iter().zip(["a", "p", "d"]) {
        for i in 0..2 {
            w.up_as(&format!("{kind}{i}"), |spec| spec.role = role);
        }
    }
    w
}

fn prefill(ttl: Option<Option<Duration>>) -> CoreSettings {
    let mut settings = settings();
    settings.affinity.prefill_ttl = ttl;
    settings
}

fn ask(w: &World, role: Role) -> Ask {
    in_role(w, w.hard("s"), role)
}

fn home(w: &World, role: Role) -> Option<WorkerId> {
    let partition = w.core.route_as(MODEL, role).unwrap().partition;
    w.core.session(w.now, partition, key("s")).map(|v| v.target.worker)
}

#[test]
fn r17_each_role_binds_to_its_own_workers() {
    let w = fleet(settings());
    let mut homes = Vec::new();
    for (role, kind) in ROLES.into_iter().zip(["a", "p", "d"]) {
        let (worker, outcome) = w.turn(ask(&w, role));
        assert!(w.name_of(worker).starts_with(kind), "{role:?}");
        assert_eq!((outcome, home(&w, role)), (Outcome::New, Some(worker)));
        homes.push(worker);
    }
    for (role, worker) in ROLES.into_iter().zip(homes) {
        assert_eq!(w.turn(ask(&w, role)), (worker, Outcome::Hit));
        let partition = w.core.route_as(MODEL, role).unwrap().partition;
        assert_eq!(w.stats_of(partition).bindings, 1);
    }
    let listed: Vec<_> = w.core.sessions(w.now, 9).into_iter().map(|(_, role, _)| role).collect();
    assert_eq!(listed.len(), 3);
    assert!(ROLES.iter().all(|role| listed.contains(role)));
}

#[test]
fn r17_removing_a_binding_in_one_role_leaves_the_others() {
    let mut w = fleet(settings());
    ROLES.into_iter().for_each(|role| _ = w.turn(ask(&w, role)));
    let decode = w.core.route_as(MODEL, Role::Decode).unwrap().partition;
    assert!(w.core.unbind(w.now, decode, key("s")));
    let gone = home(&w, Role::Prefill).unwrap();
    w.remove(gone);
    assert_eq!(w.turn(ask(&w, Role::Prefill)).1, Outcome::Rebound);
    assert_eq!(w.turn(ask(&w, Role::Decode)).1, Outcome::New);
    assert_eq!(w.turn(ask(&w, Role::Aggregated)).1, Outcome::Hit);
}

#[test]
fn r17_prefill_off_while_the_others_are_on() {
    let w = fleet(prefill(Some(None)));
    for want in [Outcome::New, Outcome::Hit] {
        assert_eq!(w.turn(ask(&w, Role::Aggregated)).1, want);
        assert_eq!(w.turn(ask(&w, Role::Decode)).1, want);
        assert_eq!(w.turn(ask(&w, Role::Prefill)).1, Outcome::None, "passive (R02)");
    }
    assert_eq!(home(&w, Role::Prefill), None);
    // What counts as no session there counts as none for R09 too.
    let mut w = fleet(prefill(Some(None)));
    w.up_as("wide", |spec| {
        spec.role = Role::Prefill;
        spec.ranks = homing_core::fleet::Ranks::new(0, 2);
    });
    let refusal = w.refused(at(ask(&w, Role::Prefill), "wide", None));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::RankRequired, Outcome::None));
}

#[test]
fn r17_prefill_on_while_the_others_are_off() {
    let mut s = prefill(Some(Some(TTL)));
    s.affinity.ttl = None;
    let w = fleet(s);
    for want in [Outcome::New, Outcome::Hit] {
        assert_eq!(w.turn(ask(&w, Role::Prefill)).1, want);
        assert_eq!(w.turn(ask(&w, Role::Aggregated)).1, Outcome::None);
        assert_eq!(w.turn(ask(&w, Role::Decode)).1, Outcome::None);
    }
}

#[test]
fn r17_ttls_that_differ() {
    let own = Duration::from_secs(10);
    let mut w = fleet(prefill(Some(Some(own))));
    ROLES.into_iter().for_each(|role| _ = w.turn(ask(&w, role)));
    assert_eq!(w.core.poll_timeout(), Some(w.now + own));
    w.pass(own);
    w.tick();
    assert_eq!(home(&w, Role::Prefill), None);
    assert!(home(&w, Role::Aggregated).is_some() && home(&w, Role::Decode).is_some());
    w.pass(TTL - own - Duration::from_micros(1));
    assert!(home(&w, Role::Aggregated).is_some() && home(&w, Role::Decode).is_some());
    w.pass(Duration::from_micros(1));
    assert!(home(&w, Role::Aggregated).is_none() && home(&w, Role::Decode).is_none());
}

#[test]
fn r17_without_its_own_prefill_s_ttl_is_everybody_s() {
    let mut w = fleet(prefill(None));
    w.turn(ask(&w, Role::Prefill));
    w.pass(TTL - Duration::from_micros(1));
    assert!(home(&w, Role::Prefill).is_some());
    w.pass(Duration::from_micros(1));
    assert_eq!(home(&w, Role::Prefill), None);
}

#[test]
fn r17_each_leg_commits_on_its_own() {
    let w = fleet(settings());
    let legs = [Role::Prefill, Role::Decode].map(|role| w.go(w.grant(ask(&w, role))));
    let [prefill, decode] = legs;
    let (live, outcome) = w.commit(prefill);
    assert_eq!((outcome, home(&w, Role::Decode)), (Outcome::New, None));
    let _ = w.core.abandon(w.now, decode, homing_core::ask::Abandon::Failed);
    assert!(home(&w, Role::Prefill).is_some() && home(&w, Role::Decode).is_none());
    w.finish(live);
}

#[test]
fn r17_a_worker_of_another_role_is_no_explicit_target() {
    let w = fleet(settings());
    let asked = at(in_role(&w, w.ask("s", Mode::Hard), Role::Decode), "p0", None);
    assert_eq!(w.refused(asked).cause, Cause::UnknownWorker);
}
