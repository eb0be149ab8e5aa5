//! What a Hard session does whose worker fails it, dies, or is away (R07, R12, R22), and how such
//! refusals are told (`reject_as`).

use super::client::{chat, turn, turn_with};
use super::overload::{Two, two};
use super::worker::{Mood, feels};
use super::world::eventually;
use homing_core::fleet::State;

const STRICT: [(&str, &str); 4] = [
    ("affinity.on_overload", "'reject'"),
    ("affinity.on_failure", "'reject'"),
    ("affinity.on_down", "'reject'"),
    ("affinity.reject_as", "'invalid_argument'"),
];

async fn home_is_down(two: &Two) {
    two.home.die().await;
    eventually("it is down", || two.world.state(two.home.name) == Some(State::Down)).await;
}

#[tokio::test]
async fn r07_r22_by_default_a_session_moves_away_from_a_worker_that_fails_it() {
    let two = two(&[]).await;
    feels(&two.homes, Mood::Resets);
    let answer = two.world.ask(&turn("s")).await;
    assert_eq!(
        (answer.status, answer.affinity(), answer.worker()),
        (200, "rebound", two.other.name)
    );
    assert_eq!(two.world.home("s").await.unwrap(), two.other.name);
    assert_eq!(two.world.metric("homing_affinity_moves_total{reason=\"failed\"}").await, 1.0);
    two.world.end().await;
}

#[tokio::test]
async fn r07_on_failure_reject_keeps_the_session_where_it_failed() {
    // By turns, so that requests without a session come by home, too.
    let two =
        two(&[("affinity.on_failure", "'reject'"), ("routing.policy", "'round_robin'")]).await;
    feels(&two.homes, Mood::Resets);
    let refused = two.world.ask(&turn("s")).await;
    refused.assert_refused(503, "affinity_target_unavailable", "rejected");
    assert_eq!(two.asked().await, (2, 0), "no other worker was reached");
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    // It is a rule of Hard sessions: without one, or softly, a request moves on.
    let soft = turn_with("s", "x-homing-affinity", "soft");
    for _ in 0..4 {
        let answer = two.world.ask(&chat(&[])).await;
        assert_eq!((answer.status, answer.worker()), (200, two.other.name));
    }
    assert!(two.asked().await.0 > 2, "home was tried");
    feels(&two.homes, Mood::Fine);
    assert_eq!(two.world.ask(&turn("s")).await.affinity(), "hit", "it was never anywhere else");
    feels(&two.homes, Mood::Resets);
    let moved = two.world.ask(&soft).await;
    assert_eq!((moved.affinity(), moved.worker()), ("rebound", two.other.name));
    two.world.end().await;
}

#[tokio::test]
async fn r07_on_down_rebind_is_as_if_the_worker_had_departed() {
    let two = two(&[]).await;
    home_is_down(&two).await;
    let answer = two.world.ask(&turn("s")).await;
    assert_eq!((answer.affinity(), answer.worker()), ("rebound", two.other.name));
    assert_eq!(two.world.metric("homing_affinity_moves_total{reason=\"departed\"}").await, 1.0);
    two.world.end().await;
}

#[tokio::test]
async fn r07_on_down_reject_waits_for_discovery_to_drop_the_worker() {
    let two = two(&[("affinity.on_down", "'reject'")]).await;
    home_is_down(&two).await;
    for _ in 0..2 {
        let refused = two.world.ask(&turn("s")).await;
        refused.assert_refused(503, "affinity_target_unavailable", "rejected");
    }
    assert_eq!(two.other.asked_now(), 0);
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    let gone = format!("DELETE /admin/workers/{} HTTP/1.1\r\nhost: [::1]\r\n\r\n", two.home.name);
    assert_eq!(two.world.admin(gone.as_bytes()).await.status, 204);
    let answer = two.world.ask(&turn("s")).await;
    assert_eq!((answer.affinity(), answer.worker()), ("rebound", two.other.name));
    two.world.end().await;
}

#[tokio::test]
async fn r07_reject_as_invalid_argument_names_the_cause_in_the_message_alone() {
    // Overloaded.
    let full = two(&STRICT).await;
    feels(&full.homes, Mood::Full(429, 30));
    let own = full.world.ask(&turn("s")).await;
    assert_eq!((own.status, own.affinity()), (429, "unbound"), "a worker's own answer passes");
    let refused = full.world.ask(&turn("s")).await;
    refused.assert_refused(400, "affinity_conflict", "rejected");
    assert!(refused.text().contains("overloaded"), "{}", refused.text());
    // What is no live home's doing is told as ever.
    feels(&full.others, Mood::Full(429, 30));
    full.world.ask(&turn("t")).await;
    full.world.ask(&turn("t")).await.assert_refused(429, "overloaded", "rejected");
    full.world.end().await;
    // Failing.
    let failing = two(&STRICT).await;
    feels(&failing.homes, Mood::Resets);
    let refused = failing.world.ask(&turn("s")).await;
    refused.assert_refused(400, "affinity_conflict", "rejected");
    assert_eq!(failing.asked().await, (2, 0));
    failing.world.end().await;
}

#[tokio::test]
async fn r07_the_strict_set_never_lets_a_hard_session_run_away_from_home() {
    let two = two(&STRICT).await;
    for mood in [Mood::Resets, Mood::Full(503, 1), Mood::Full(429, 1)] {
        feels(&two.homes, mood);
        for _ in 0..3 {
            let answer = two.world.ask(&turn("s")).await;
            assert!(matches!(answer.status, 400 | 429 | 503), "{mood:?}: {}", answer.status);
        }
    }
    home_is_down(&two).await;
    for _ in 0..3 {
        two.world.ask(&turn("s")).await.assert_refused(400, "affinity_conflict", "rejected");
    }
    assert_eq!(two.other.asked_now(), 0, "no other worker was ever reached");
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    // A Soft turn is free to go, and takes the session along.
    let soft = two.world.ask(&turn_with("s", "x-homing-affinity", "soft")).await;
    assert_eq!((soft.affinity(), soft.worker()), ("rebound", two.other.name));
    two.world.end().await;
}

#[tokio::test]
async fn r26_a_request_that_cannot_be_read_says_what_became_of_its_session() {
    let two = two(&[]).await;
    let broken = |headers: &[(&str, &str)]| {
        super::client::post("/v1/chat/completions", headers, b"{\"model\":")
    };
    let session = ("x-homing-session-id", "s");
    for (headers, affinity) in [
        (&[session][..], "rejected"),
        (&[], "none"),
        (&[("x-homing-session-id", "")], "none"),
        (&[session, ("x-homing-affinity", "off")], "none"),
        (&[session, ("x-homing-affinity", "on")], "rejected"),
        (&[session, ("x-homing-priority", "high")], "rejected"),
        // Alone, a child without an id of its own has no session (R18).
        (&[("x-homing-parent-session-id", "s")], "none"),
    ] {
        let answer = two.world.ask(&broken(headers)).await;
        answer.assert_refused(400, "invalid_request", affinity);
    }
    let wrong = two.world.ask(&turn(&"x".repeat(257))).await;
    wrong.assert_refused(400, "invalid_session_id", "rejected");
    let unknown = super::client::post(
        "/v1/chat/completions",
        &[session],
        b"{\"model\":\"x\",\"messages\":[]}",
    );
    two.world.ask(&unknown).await.assert_refused(404, "model_not_found", "rejected");
    assert_eq!(two.asked().await, (1, 0));
    two.world.end().await;
}
