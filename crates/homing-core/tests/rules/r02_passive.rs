//! R02: without a TTL a session id changes nothing, and is counted as nothing.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Abandon, Cause, Failure};
use homing_core::settings::{CoreSettings, PolicyKind};
use std::time::Duration;

fn off(mut settings: CoreSettings) -> CoreSettings {
    settings.affinity.ttl = None;
    settings
}

#[test]
fn r02_identity_alone_is_passive() {
    let w = World::with(CoreSettings { policy: PolicyKind::RoundRobin, ..off(settings()) }, 3);
    let turns: Vec<_> = (0..3).map(|_| w.turn(w.hard("s"))).collect();
    assert!(turns.iter().all(|t| t.1 == Outcome::None));
    assert!(turns[0].0 != turns[1].0 && turns[1].0 != turns[2].0, "it takes its turn like any");
    assert_eq!(w.session("s"), None);
    assert!(!w.core.unbind(w.now, w.partition(), key("s")));
    w.quiesce();
}

#[test]
fn r02_refused_failed_and_cancelled_requests_have_no_session_either() {
    let mut w = World::with(off(queueing(2)), 1);
    let grant = w.grant(w.hard("s"));
    let (leaves, late) = (w.waiting(w.hard("s")), w.waiting(w.hard("s")));
    assert_eq!(w.refused(w.hard("s")).outcome, Outcome::None, "the queue is full");
    w.core.cancel(w.now, leaves);
    w.pass(Duration::from_secs(30));
    let timeout = refused(w.claim(late));
    assert_eq!((timeout.cause, timeout.outcome), (Cause::Timeout, Outcome::None));
    assert_eq!(w.core.abandon(w.now, grant, Abandon::Failed), Outcome::None);

    let failed = w.go(w.grant(w.hard("s")));
    let refusal = refused(w.retry(failed, Failure::Broken));
    assert_eq!((refusal.cause, refusal.outcome), (Cause::WorkerFailed, Outcome::None));
    let twice = w.with_attempts(0);
    assert_eq!(twice.outcome, Outcome::None, "no attempt left");
    assert_eq!(w.outcomes(Outcome::None), w.stats().outcomes.iter().sum());
    w.quiesce();
}

impl World {
    /// What a session's request gets whose only attempt broke, in a world like this without sessions.
    fn with_attempts(&self, retry_attempts: u32) -> homing_core::ask::Refusal {
        let w = Self::with(CoreSettings { retry_attempts, ..off(settings()) }, 2);
        let checked = w.go(w.grant(w.hard("s")));
        refused(w.retry(checked, Failure::Broken))
    }
}
