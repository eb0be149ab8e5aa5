//! Targets that a request names, and workers that it allows (R09); data-parallel ranks on the wire.

use super::client::{Answer, chat, turn, turn_with};
use super::worker::{Worker, ok};
use super::world::{World, eventually};
use homing_core::fleet::State;

const WORKER: &str = "x-homing-worker";
const RANK: &str = "x-homing-dp-rank";
const ALLOWED: &str = "x-homing-allowed-workers";
const LABELS: &str = "x-homing-require-labels";
const SESSION: &str = "x-homing-session-id";
const MODE: &str = "x-homing-affinity";

/// `one` has one rank and zone a, `two` has two and zone b, `far` has one and zone b.
struct Fleet {
    one: Worker,
    two: Worker,
    far: Worker,
    world: World,
}

async fn fleet() -> Fleet {
    let one = Worker::start("one", |_| ok()).await;
    let two = Worker::start("two", |_| ok()).await;
    let far = Worker::start("far", |_| ok()).await;
    let own = [
        (&one, "labels = { zone = 'a', gpu = 'h200' }"),
        (&two, "dp_size = 2\nlabels = { zone = 'b' }"),
        (&far, "labels = { zone = 'b', gpu = 'h200' }"),
    ];
    let world = World::start_as(&[], &own).await;
    Fleet { world, one, two, far }
}

impl Fleet {
    async fn ask(&self, headers: &[(&str, &str)]) -> Answer {
        self.world.ask(&chat(headers)).await
    }

    /// Asks for what must reach nobody.
    async fn refused(&self, headers: &[(&str, &str)], status: u16, code: &str) -> Answer {
        let asked = || self.one.asked_now() + self.two.asked_now() + self.far.asked_now();
        let (before, bound) = (asked(), self.world.stats().bindings);
        let answer = self.ask(headers).await;
        let off = headers.contains(&(MODE, "off"));
        let session = headers.iter().any(|(name, _)| *name == SESSION) && !off;
        answer.assert_refused(status, code, if session { "rejected" } else { "none" });
        assert_eq!((asked(), self.world.stats().bindings), (before, bound), "{headers:?}");
        answer
    }
}

#[tokio::test]
async fn r09_a_request_runs_where_it_says() {
    let f = fleet().await;
    for _ in 0..12 {
        for name in [WORKER, "x-dynamo-worker-instance-id"] {
            let answer = f.ask(&[(name, "far")]).await;
            assert_eq!((answer.status, answer.worker(), answer.affinity()), (200, "far", "none"));
        }
    }
    for (worker, rank) in [("two", "0"), ("two", "1"), ("one", "0")] {
        for names in [[WORKER, RANK], ["x-dynamo-worker-instance-id", "x-dynamo-dp-rank"]] {
            let answer = f.ask(&[(names[0], worker), (names[1], rank)]).await;
            assert_eq!((answer.status, answer.worker()), (200, worker));
            let ranks = if worker == "two" { vec![rank] } else { vec![] };
            assert_eq!(answer.header(RANK), ranks, "only of a worker with several");
        }
    }
    // A new session lives where its request ran.
    for (id, worker) in [("s1", "one"), ("s2", "two"), ("s3", "far")] {
        let first = f.world.ask(&turn_with(id, WORKER, worker)).await;
        assert_eq!((first.affinity(), first.worker()), ("new", worker));
        let next = f.world.ask(&turn(id)).await;
        assert_eq!((next.affinity(), next.worker()), ("hit", worker));
        assert_eq!(next.header(RANK), first.header(RANK), "its rank, too");
        let named = f.world.ask(&turn_with(id, WORKER, worker)).await;
        assert_eq!((named.affinity(), named.header(RANK)), ("hit", first.header(RANK)));
    }
    f.world.end().await;
}

#[tokio::test]
async fn r09_each_refusal_of_a_target_has_its_code_and_reaches_nobody() {
    let f = fleet().await;
    for session in [&[][..], &[(SESSION, "s")]] {
        let with = |headers: &[(&'static str, &'static str)]| [session, headers].concat();
        f.refused(&with(&[(WORKER, "nobody")]), 400, "unknown_worker").await;
        f.refused(&with(&[(WORKER, "One")]), 400, "unknown_worker").await;
        f.refused(&with(&[(WORKER, "two"), (RANK, "2")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "one"), (RANK, "1")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "one"), (RANK, "65535")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "one"), (ALLOWED, "two, far")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "one"), (LABELS, "zone=b")]), 400, "invalid_request").await;
        // What can't be read.
        f.refused(&with(&[(RANK, "1")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "two"), (RANK, "-1")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "two"), (RANK, "one")]), 400, "invalid_request").await;
        f.refused(&with(&[(WORKER, "one"), (WORKER, "two")]), 400, "invalid_request").await;
        f.refused(&with(&[(LABELS, "zone")]), 400, "invalid_request").await;
        let twins = [(WORKER, "one"), ("x-dynamo-worker-instance-id", "two")];
        f.refused(&with(&twins), 400, "invalid_request").await;
    }
    let told = f.refused(&[(WORKER, "two")], 400, "rank_required").await;
    assert!(told.text().contains("rank"), "{}", told.text());
    f.refused(&[(WORKER, "two"), (SESSION, "s"), (MODE, "off")], 400, "rank_required").await;
    assert!(f.one.asked().await.is_empty() && f.two.asked().await.is_empty());
    f.world.end().await;
}

#[tokio::test]
async fn r09_a_target_must_agree_with_the_binding_unless_the_request_is_soft() {
    let f = fleet().await;
    let bind = [(SESSION, "s"), (WORKER, "two"), (RANK, "1")];
    assert_eq!(f.ask(&bind).await.affinity(), "new");
    assert_eq!(f.ask(&bind).await.affinity(), "hit");
    for wrong in [&[(WORKER, "one")][..], &[(WORKER, "two"), (RANK, "0")]] {
        f.refused(&[&[(SESSION, "s")], wrong].concat(), 400, "affinity_conflict").await;
    }
    // The request's own fault comes before its session's.
    let both = [(SESSION, "s"), (WORKER, "one"), (ALLOWED, "two")];
    f.refused(&both, 400, "invalid_request").await;
    let soft = [(SESSION, "s"), (MODE, "soft"), (WORKER, "two"), (RANK, "0")];
    let moved = f.ask(&soft).await;
    assert_eq!((moved.affinity(), moved.header(RANK)), ("rebound", vec!["0"]));
    assert_eq!(f.world.ask(&turn("s")).await.header(RANK), ["0"]);
    let moved = f.ask(&[(SESSION, "s"), (MODE, "soft"), (WORKER, "one")]).await;
    assert_eq!((moved.affinity(), moved.worker()), ("rebound", "one"));
    // Off, it is nobody's concern.
    let off = f.ask(&[(SESSION, "s"), (MODE, "off"), (WORKER, "far")]).await;
    assert_eq!((off.affinity(), off.worker()), ("none", "far"));
    assert_eq!(f.world.home("s").await.unwrap(), "one");
    f.world.end().await;
}

#[tokio::test]
async fn r09_a_target_that_is_down_is_not_replaced() {
    let f = fleet().await;
    assert_eq!(f.world.ask(&turn_with("s", WORKER, "one")).await.affinity(), "new");
    f.one.die().await;
    eventually("it is down", || f.world.state("one") == Some(State::Down)).await;
    f.refused(&[(WORKER, "one")], 503, "affinity_target_unavailable").await;
    f.refused(&[(SESSION, "t"), (WORKER, "one")], 503, "affinity_target_unavailable").await;
    let named = f.world.ask(&turn_with("s", WORKER, "one")).await;
    named.assert_refused(503, "affinity_target_unavailable", "rejected");
    assert_eq!((f.two.asked_now(), f.far.asked_now()), (0, 0));
    f.world.end().await;
}

#[tokio::test]
async fn r07_what_a_request_allows_is_never_widened() {
    let f = fleet().await;
    for (name, value, only) in [
        (ALLOWED, "one", &["one"][..]),
        (ALLOWED, " two ,far,, nobody", &["two", "far"]),
        (LABELS, "zone=b", &["two", "far"]),
        (LABELS, "zone=b, gpu=h200", &["far"]),
        (LABELS, "gpu=h200", &["one", "far"]),
    ] {
        for _ in 0..16 {
            let answer = f.ask(&[(name, value)]).await;
            assert!(answer.status == 200 && only.contains(&answer.worker()), "{value}");
        }
    }
    let both = f.ask(&[(ALLOWED, "one,two"), (LABELS, "zone=b")]).await;
    assert_eq!(both.worker(), "two");
    for nobody in [
        &[(ALLOWED, "nobody")][..],
        &[(ALLOWED, "")],
        &[(LABELS, "zone=c")],
        &[(LABELS, "Zone=a")],
        &[(ALLOWED, "one"), (LABELS, "zone=b")],
    ] {
        f.refused(nobody, 503, "no_worker").await;
        f.refused(&[nobody, &[(SESSION, "new")]].concat(), 503, "no_worker").await;
    }
    f.world.end().await;
}

#[tokio::test]
async fn r07_a_hard_session_that_lives_where_the_request_must_not_run_is_a_conflict() {
    let f = fleet().await;
    assert_eq!(f.world.ask(&turn_with("s", WORKER, "one")).await.affinity(), "new");
    f.refused(&[(SESSION, "s"), (ALLOWED, "two,far")], 400, "affinity_conflict").await;
    f.refused(&[(SESSION, "s"), (LABELS, "zone=b")], 400, "affinity_conflict").await;
    assert_eq!(f.world.home("s").await.unwrap(), "one", "the binding is kept");
    // A binding under a list that allows its worker is used.
    let fits = f.ask(&[(SESSION, "s"), (ALLOWED, "one,two"), (LABELS, "gpu=h200")]).await;
    assert_eq!((fits.affinity(), fits.worker()), ("hit", "one"));
    let soft = f.ask(&[(SESSION, "s"), (MODE, "soft"), (LABELS, "zone=b,gpu=h200")]).await;
    assert_eq!((soft.affinity(), soft.worker()), ("rebound", "far"));
    assert_eq!(f.world.ask(&turn("s")).await.worker(), "far");
    f.world.end().await;
}

#[tokio::test]
async fn f68_a_rank_goes_to_its_worker_in_the_header_of_engines_and_to_the_client_in_ours() {
    let f = fleet().await;
    const THEIRS: &str = "x-data-parallel-rank";
    // A client's own ends here, and is replaced where there are several.
    for i in 0..40 {
        f.world.ask(&turn_with(&format!("s{i}"), THEIRS, "7")).await;
    }
    for asked in f.one.asked().await.iter().chain(&f.far.asked().await) {
        assert!(asked.header(THEIRS).is_empty());
    }
    let ranks = |asked: &[super::worker::Asked]| {
        let ranks = asked.iter().map(|a| match a.header(THEIRS)[..] {
            [b"0"] => 0,
            [b"1"] => 1,
            ref other => panic!("{other:?}"),
        });
        ranks.collect::<Vec<usize>>()
    };
    let first = ranks(&f.two.asked().await);
    assert!(first.contains(&0) && first.contains(&1), "both are used: {first:?}");
    let mut there = 0;
    for i in 0..40 {
        let answer = f.world.ask(&turn(&format!("s{i}"))).await;
        assert_eq!(answer.affinity(), "hit");
        if answer.worker() == "two" {
            // The very rank on which it is bound.
            assert_eq!(answer.header(RANK), [first[there].to_string()]);
            there += 1;
        } else {
            assert!(answer.header(RANK).is_empty());
        }
    }
    assert_eq!(ranks(&f.two.asked().await), [first.clone(), first].concat());
    let mut plain = f.one.asked().await.into_iter().chain(f.far.asked().await);
    assert!(
        plain.all(|a| a.header(THEIRS).is_empty()),
        "none is made up for a worker with one rank"
    );
    f.world.end().await;
}
