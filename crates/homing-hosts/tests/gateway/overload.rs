//! Workers that answer 429 or 503: who is served elsewhere, who waits, whose answer passes, and what
//! becomes of the session (R07's row of the overloaded).

use super::client::{chat, turn, turn_with};
use super::worker::{Mood, Moods, Worker, feels, moody};
use super::world::{World, eventually, in_time};

/// A router in front of two workers, and a session `s` that lives at one of them.
pub(super) struct Two {
    pub(super) world: World,
    pub(super) home: Worker,
    pub(super) homes: Moods,
    pub(super) other: Worker,
    pub(super) others: Moods,
}

pub(super) async fn two(extra: &[(&str, &str)]) -> Two {
    let ((a, mood_a), (b, mood_b)) = (moody("a").await, moody("b").await);
    let world = World::start(extra, &[&a, &b]).await;
    let first = world.ask(&turn("s")).await;
    assert_eq!((first.status, first.affinity()), (200, "new"));
    if first.worker() == "a" {
        Two { world, home: a, homes: mood_a, other: b, others: mood_b }
    } else {
        Two { world, home: b, homes: mood_b, other: a, others: mood_a }
    }
}

impl Two {
    /// How many requests each has had.
    pub(super) async fn asked(&self) -> (usize, usize) {
        (self.home.asked().await.len(), self.other.asked().await.len())
    }

    /// Until the home no longer counts as overloaded.
    async fn home_is_well(&self) {
        let core = self.world.server.shell().core();
        eventually("its Retry-After is over", || {
            let workers = core.workers();
            workers.iter().any(|w| *w.info.spec.name == *self.home.name && !w.part.shed)
        })
        .await;
    }
}

const FULL: Mood = Mood::Full(429, 7);

/// Asserts that it is the very answer of this worker.
fn assert_own(answer: &super::client::Answer, status: u16, worker: &str) {
    assert_eq!((answer.status, answer.worker()), (status, worker));
    assert_eq!(answer.text(), format!("{{\"detail\": \"{worker} is full\" }}\n"));
    assert_eq!(answer.header("content-type"), ["application/problem+json"]);
    assert_eq!(answer.header("retry-after"), ["7"]);
    assert_eq!(answer.header("x-own"), [worker]);
    assert!(answer.header("retry-after-ms").is_empty() && answer.clean);
}

#[tokio::test]
async fn r07_an_unbound_turn_is_tried_once_elsewhere_and_the_last_answer_passes() {
    for status in [429, 503] {
        let all = [moody("a").await, moody("b").await, moody("c").await];
        let world = World::start(&[("retry.attempts", "5")], &all.each_ref().map(|w| &w.0)).await;
        for (_, moods) in &all {
            feels(moods, Mood::Full(status, 7));
        }
        let asked = || all.iter().map(|w| w.0.asked_now()).sum::<usize>();
        let answer = world.ask(&chat(&[])).await;
        assert_own(&answer, status, answer.worker());
        assert_eq!((answer.affinity(), asked()), ("none", 2), "once, whatever the attempts");
        assert_eq!(world.metric("homing_retries_total{reason=\"overloaded\"}").await, 1.0);
        // The third has not been asked yet: the others are left alone.
        let third = world.ask(&turn("s")).await;
        assert_own(&third, status, third.worker());
        assert_eq!((third.affinity(), asked()), ("unbound", 3));
        assert!(all.iter().all(|w| w.0.asked_now() == 1), "each once");
        for (request, affinity) in [(chat(&[]), "none"), (turn("s"), "rejected")] {
            world.ask(&request).await.assert_refused(429, "overloaded", affinity);
        }
        assert_eq!((asked(), world.stats().bindings), (3, 0), "nobody was reached");
        for (worker, _) in &all {
            assert_eq!(world.told(worker.name).await, "overloaded");
        }
        world.end().await;
    }
}

#[tokio::test]
async fn r07_who_is_overloaded_is_left_alone_as_long_as_it_says() {
    let ((a, moods), (b, _)) = (moody("a").await, moody("b").await);
    let world = World::start(&[], &[&a, &b]).await;
    feels(&moods, FULL);
    let mut tries = 0;
    while a.asked_now() == 0 {
        let answer = world.ask(&chat(&[])).await;
        assert_eq!((answer.status, answer.worker()), (200, "b"));
        tries += 1;
        assert!(tries < 256, "chance leaves it out");
    }
    for i in 0..20 {
        assert_eq!(world.ask(&turn(&format!("s{i}"))).await.affinity(), "new");
    }
    assert_eq!((a.asked_now(), b.asked_now()), (1, tries + 20));
    world.end().await;
}

#[tokio::test]
async fn r07_with_no_attempts_an_overloaded_workers_answer_passes_at_once() {
    let two = two(&[("retry.attempts", "0")]).await;
    feels(&two.homes, FULL);
    let answer = two.world.ask(&turn("s")).await;
    assert_own(&answer, 429, two.home.name);
    assert_eq!((answer.affinity(), two.asked().await), ("unbound", (2, 0)));
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    two.world.end().await;
}

#[tokio::test]
async fn r07_a_soft_session_leaves_an_overloaded_home_for_good() {
    let two = two(&[]).await;
    feels(&two.homes, FULL);
    let soft = turn_with("s", "x-homing-affinity", "soft");
    for (affinity, asked) in [("rebound", (2, 1)), ("hit", (2, 2))] {
        let answer = two.world.ask(&soft).await;
        assert_eq!((answer.status, answer.affinity()), (200, affinity));
        assert_eq!((answer.worker(), two.asked().await), (two.other.name, asked));
    }
    assert_eq!(two.world.metric("homing_affinity_moves_total{reason=\"soft\"}").await, 1.0);
    two.world.end().await;
}

#[tokio::test]
async fn r07_a_hard_session_spills_twice_and_moves_with_the_third_turn() {
    for status in [429, 503] {
        let two = two(&[]).await;
        feels(&two.homes, Mood::Full(status, 30));
        for (affinity, lives, asked) in [
            ("spilled", two.home.name, (2, 1)),
            // It is known by now, and not asked again.
            ("spilled", two.home.name, (2, 2)),
            ("rebound", two.other.name, (2, 3)),
            ("hit", two.other.name, (2, 4)),
        ] {
            let answer = two.world.ask(&turn("s")).await;
            assert_eq!((answer.status, answer.affinity()), (200, affinity));
            assert_eq!((answer.worker(), two.asked().await), (two.other.name, asked));
            assert_eq!(two.world.home("s").await.unwrap(), lives, "{affinity}");
        }
        let moves = "homing_affinity_moves_total{reason=\"overloaded\"}";
        assert_eq!((two.world.metric(moves).await, two.world.stats().bindings), (1.0, 1));
        let spilled = "homing_affinity_resolutions_total{outcome=\"spilled\"}";
        assert_eq!(two.world.metric(spilled).await, 2.0);
        two.world.end().await;
    }
}

#[tokio::test]
async fn r07_a_hit_begins_the_count_of_three_anew() {
    let two = two(&[]).await;
    for _ in 0..2 {
        feels(&two.homes, Mood::Full(429, 1));
        assert_eq!(two.world.ask(&turn("s")).await.affinity(), "spilled");
        feels(&two.homes, Mood::Fine);
        two.home_is_well().await;
        assert_eq!(two.world.ask(&turn("s")).await.affinity(), "hit");
    }
    feels(&two.homes, Mood::Full(429, 30));
    for affinity in ["spilled", "spilled", "rebound"] {
        assert_eq!(two.world.ask(&turn("s")).await.affinity(), affinity);
    }
    two.world.end().await;
}

#[tokio::test]
async fn r07_where_everybody_is_overloaded_a_hard_sessions_last_answer_passes() {
    let two = two(&[]).await;
    feels(&two.homes, FULL);
    feels(&two.others, FULL);
    let answer = two.world.ask(&turn("s")).await;
    assert_own(&answer, 429, two.other.name);
    assert_eq!((answer.affinity(), two.asked().await), ("unbound", (2, 1)));
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name, "R12: the binding is kept");
    two.world.ask(&turn("s")).await.assert_refused(429, "overloaded", "rejected");
    assert_eq!(two.asked().await, (2, 1));
    two.world.end().await;
}

#[tokio::test]
async fn r09_an_explicit_target_is_never_left_for_another() {
    let two = two(&[]).await;
    feels(&two.homes, FULL);
    let named = [("x-homing-worker", two.home.name)];
    let bound = turn_with("s", named[0].0, named[0].1);
    for (i, (request, affinity)) in
        [(chat(&named), "none"), (bound.clone(), "unbound"), (bound, "unbound")].iter().enumerate()
    {
        // Its own verdict of the time before is none of an explicit turn's concern.
        let answer = two.world.ask(request).await;
        assert_own(&answer, 429, two.home.name);
        assert_eq!((answer.affinity(), two.asked().await), (*affinity, (i + 2, 0)));
    }
    feels(&two.homes, Mood::Fine);
    let answer = two.world.ask(&turn_with("s", named[0].0, named[0].1)).await;
    assert_eq!((answer.status, answer.affinity()), (200, "hit"), "still overloaded, still asked");
    two.world.end().await;
}

#[tokio::test]
async fn r07_reject_passes_the_workers_own_answer_and_then_answers_for_it() {
    for status in [429, 503] {
        let two = two(&[("affinity.on_overload", "'reject'")]).await;
        feels(&two.homes, Mood::Full(status, 7));
        let first = two.world.ask(&turn("s")).await;
        assert_own(&first, status, two.home.name);
        assert_eq!((first.affinity(), two.asked().await), ("unbound", (2, 0)));
        for _ in 0..2 {
            let next = two.world.ask(&turn("s")).await;
            next.assert_refused(429, "affinity_target_overloaded", "rejected");
            let seconds: u64 = next.header("retry-after")[0].parse().unwrap();
            assert!((1..=9).contains(&seconds), "7 less what has passed, with jitter: {seconds}");
            assert!(next.header("x-homing-worker").is_empty(), "nobody was chosen");
        }
        assert_eq!(two.asked().await, (2, 0), "no worker was reached");
        assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
        // Nobody else is held back by it.
        assert_eq!(two.world.ask(&turn("t")).await.worker(), two.other.name);
        let soft = two.world.ask(&turn_with("s", "x-homing-affinity", "soft")).await;
        assert_eq!((soft.worker(), soft.affinity()), (two.other.name, "rebound"));
        two.world.end().await;
    }
}

#[tokio::test]
async fn r07_dispatch_takes_no_notice_of_the_verdict() {
    let two = two(&[("affinity.on_overload", "'dispatch'")]).await;
    feels(&two.homes, FULL);
    for asked in [2, 3, 4] {
        let answer = two.world.ask(&turn("s")).await;
        assert_own(&answer, 429, two.home.name);
        assert_eq!((answer.affinity(), two.asked().await), ("unbound", (asked, 0)));
    }
    feels(&two.homes, Mood::Fine);
    assert_eq!(two.world.ask(&turn("s")).await.affinity(), "hit");
    assert_eq!(two.world.told(two.home.name).await, "overloaded", "for everybody else");
    two.world.end().await;
}

#[tokio::test]
async fn r07_r08_wait_queues_for_home_until_it_may_be_asked_again() {
    let two = two(&[("affinity.on_overload", "'wait'")]).await;
    feels(&two.homes, Mood::Full(503, 1));
    let (mut first, mut second) = (two.world.client().await, two.world.client().await);
    first.send(&turn("s")).await;
    eventually("it waits", || two.world.stats().waiting == 1).await;
    feels(&two.homes, Mood::Fine);
    second.send(&turn("s")).await;
    for client in [&mut first, &mut second] {
        let answer = in_time("an answer", client.answer()).await;
        assert_eq!((answer.status, answer.affinity()), (200, "hit"));
        assert_eq!(answer.worker(), two.home.name);
    }
    assert_eq!(two.asked().await, (4, 0), "nobody went elsewhere");
    two.world.end().await;
}

#[tokio::test]
async fn r07_who_waits_for_home_leaves_at_its_deadline_and_keeps_its_binding() {
    let short = [("affinity.on_overload", "'wait'"), ("gateway.request_timeout", "'1s'")];
    let two = two(&short).await;
    feels(&two.homes, Mood::Full(429, 60));
    for asked in [2, 2] {
        let late = two.world.ask(&turn("s")).await;
        late.assert_refused(504, "timeout", "rejected");
        assert_eq!(two.asked().await, (asked, 0));
        assert_eq!(two.world.stats().waiting, 0);
    }
    // And who goes away meanwhile leaves nothing.
    let mut gone = two.world.client().await;
    gone.send(&turn("s")).await;
    eventually("it waits", || two.world.stats().waiting == 1).await;
    drop(gone);
    eventually("it has left", || two.world.stats().waiting == 0).await;
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    two.world.end().await;
}
