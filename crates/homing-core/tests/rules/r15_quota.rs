//! R15 for one tenant: `limits.max_sessions`, through the calls that hosts make.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::Ask;
use homing_core::settings::{CoreSettings, OnFull};

fn of(tenant: u64, most: u32, mut ask: Ask) -> Ask {
    (ask.tenant, ask.max_sessions) = (tenant, Some(most));
    ask
}

#[test]
fn r15_a_tenant_at_its_quota_is_served_without_a_binding_and_that_is_counted() {
    for policy in POLICIES {
        for on_full in [OnFull::RouteUnbound, OnFull::EvictIdle] {
            let mut settings = CoreSettings { policy, ..settings() };
            settings.affinity.on_full = on_full;
            let w = World::with(settings, 3);
            let (home, _) = w.turn(of(1, 1, w.hard("first")));
            let preview = w.core.preview(w.now, &of(1, 1, w.hard("second"))).unwrap();
            assert_eq!(preview.outcome, Outcome::UnboundFull);
            let (_, outcome) = w.turn(of(1, 1, w.hard("second")));
            assert_eq!((outcome, w.home("second")), (Outcome::UnboundFull, None));
            assert_eq!((w.stats().table.full, w.stats().leases), (1, 0));
            assert_eq!(w.turn(of(1, 1, w.hard("first"))), (home, Outcome::Hit));
            assert_eq!(w.turn(of(2, 1, w.hard("second"))).1, Outcome::New, "another tenant's");
            assert_eq!(w.turn(w.hard("third")).1, Outcome::New, "without a quota");
            w.quiesce();
        }
    }
}

#[test]
fn r15_a_quota_has_room_again_when_a_session_ends() {
    let mut w = World::new(3);
    w.turn(of(1, 1, w.hard("first")));
    assert_eq!(w.turn(last(of(1, 1, w.hard("first")))).1, Outcome::Hit);
    assert_eq!(w.turn(of(1, 1, w.hard("second"))).1, Outcome::New);
    w.pass(TTL);
    assert_eq!(w.turn(of(1, 1, w.hard("third"))).1, Outcome::New);
    w.quiesce();
}

#[test]
fn r15_a_session_that_moves_needs_no_further_room() {
    let mut w = World::new(3);
    w.turn(of(1, 1, w.hard("s")));
    w.remove(w.home("s").unwrap());
    assert_eq!(w.turn(of(1, 1, w.hard("s"))).1, Outcome::Rebound);
    assert_eq!(w.turn(of(1, 1, w.hard("t"))).1, Outcome::UnboundFull);
    w.quiesce();
}
