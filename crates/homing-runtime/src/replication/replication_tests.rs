//! Whole shells that share over a bus and a store in memory: what one does the others know, whatever is lost on the way.

use super::fake::{Shelf, Wire};
use super::*;
use crate::guard::{Live, Unsent};
use crate::testing::{ask, eventually, register, settings, stats};
use homing_core::affinity::Outcome;
use homing_core::ask::{Cause, Refusal};
use homing_core::fleet::{FleetChange, FleetEvent, State};
use homing_core::ids::KeySecret;
use std::sync::atomic::Ordering;

const WORKERS: [&str; 4] = ["w1", "w2", "w3", "w4"];

/// A router of a test, and what ends with it.
struct Router {
    shell: Arc<Shell>,
    life: Lifecycle,
    _shared: Arc<Replication>,
}

fn shell(n: u8, secret: u8, mode: &str) -> Arc<Shell> {
    let text = format!(
        "[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"nats\"\nurls = [\"nats://h\"]\nmode = \"{mode}\"\n"
    );
    let shell = Shell::keyed(&settings(&text), KeySecret::new(&[secret; 32]), &[n; 32]);
    for name in WORKERS {
        let id = register(&shell, name);
        shell.note_fleet(name, &[FleetEvent::State(id, State::Ready)]);
    }
    shell
}

impl Router {
    fn begin(shell: Arc<Shell>, ports: Ports, strict: bool) -> Self {
        let life = Lifecycle::default();
        let shared = Replication::start(&shell, ports, Rules { strict }, &life);
        Self { shell, life, _shared: shared }
    }

    fn on(wire: &Arc<Wire>, n: u8) -> Self {
        let shell = shell(n, 7, "advisory");
        let bus = Some(wire.join(shell.core().writer()));
        Self::begin(shell, Ports { bus, store: None }, false)
    }

    fn at(shelf: &Arc<Shelf>, n: u8, strict: bool) -> Self {
        let store: Arc<dyn BindingStore> = shelf.clone();
        Self::begin(shell(n, 7, "authoritative"), Ports { bus: None, store: Some(store) }, strict)
    }

    fn me(&self) -> u32 {
        self.shell.core().writer()
    }

    async fn turn(&self, session: &str) -> (Live, Outcome, String) {
        let mut next = ask(&self.shell, session);
        loop {
            match self.shell.admit(next).await.unwrap().check().await {
                Ok(checked) => {
                    let worker = checked.worker().spec.name.to_string();
                    let (live, outcome) = checked.begin();
                    return (live, outcome, worker);
                }
                Err(Unsent::Again(again)) => next = *again,
                Err(Unsent::Refused(refusal)) => panic!("{refusal:?}"),
            }
        }
    }

    /// A whole turn: where, and what became of its session.
    async fn whole(&self, session: &str) -> (String, Outcome) {
        let (live, outcome, worker) = self.turn(session).await;
        drop(live);
        (worker, outcome)
    }

    fn home(&self, session: &str) -> Option<String> {
        let ask = ask(&self.shell, session);
        let core = self.shell.core();
        let view = core.session(self.shell.now(), ask.partition, ask.session.unwrap().key)?;
        let workers = core.workers();
        let home = workers.iter().find(|w| w.info.id == view.target.worker)?;
        Some(home.info.spec.name.to_string())
    }

    /// Here and elsewhere.
    fn active(&self) -> u32 {
        let workers = self.shell.core().workers();
        let of = |w: &homing_core::core::WorkerView| {
            w.part.load.active_requests + w.part.peers.active_requests
        };
        workers.iter().map(of).sum()
    }

    async fn ready(&self) {
        eventually("it is ready", || self.shell.ready()).await;
    }

    async fn end(self) {
        assert!(self.life.finish(std::time::Duration::from_secs(10)).await, "a task has not ended");
    }
}

async fn agree(routers: &[&Router], session: &str) -> String {
    eventually("all know it", || {
        let homes: Vec<_> = routers.iter().map(|r| r.home(session)).collect();
        homes[0].is_some() && homes.iter().all(|home| *home == homes[0])
    })
    .await;
    routers[0].home(session).unwrap()
}

#[tokio::test]
async fn r23_a_turn_at_one_router_is_a_hit_at_the_others() {
    let wire = Arc::new(Wire::default());
    let [a, b, c] = [1, 2, 3].map(|n| Router::on(&wire, n));
    for router in [&a, &b, &c] {
        router.ready().await;
    }
    for k in 0..20 {
        let session = format!("s{k}");
        let (home, outcome) = a.whole(&session).await;
        assert_eq!(outcome, Outcome::New);
        assert_eq!(agree(&[&a, &b, &c], &session).await, home);
        assert_eq!(b.whole(&session).await, (home.clone(), Outcome::Hit));
        assert_eq!(c.whole(&session).await, (home, Outcome::Hit));
    }
    // A removal is heard of, too.
    let gone = ask(&a.shell, "s3");
    assert!(a.shell.core().unbind(a.shell.now(), gone.partition, gone.session.unwrap().key));
    eventually("it is removed", || b.home("s3").is_none() && c.home("s3").is_none()).await;
    for router in [a, b, c] {
        router.end().await;
    }
}

#[tokio::test]
async fn r23_who_is_new_has_all_before_it_is_ready() {
    let wire = Arc::new(Wire::default());
    let a = Router::on(&wire, 1);
    a.ready().await;
    let mut homes = Vec::new();
    for k in 0..3000 {
        homes.push(a.whole(&format!("s{k}")).await.0);
    }
    let b = Router::on(&wire, 2);
    assert!(!b.shell.ready(), "nothing is known yet");
    b.ready().await;
    for (k, home) in homes.iter().enumerate() {
        assert_eq!(b.home(&format!("s{k}")).as_ref(), Some(home));
    }
    assert_eq!(stats(&b.shell).bindings, 3000);
    // And who comes when the first one is gone has it from the second.
    a.end().await;
    let c = Router::on(&wire, 3);
    c.ready().await;
    assert_eq!(stats(&c.shell).bindings, 3000);
    b.end().await;
    c.end().await;
}

#[tokio::test]
async fn r23_what_is_lost_is_asked_for() {
    let wire = Arc::new(Wire::default());
    let [a, b] = [1, 2].map(|n| Router::on(&wire, n));
    a.ready().await;
    b.ready().await;
    wire.loses.store(3, Ordering::Relaxed);
    for k in 0..40 {
        let from = if k % 2 == 0 { &a } else { &b };
        let _ = from.whole(&format!("s{k}")).await;
        tokio::time::sleep(std::time::Duration::from_millis(12)).await;
    }
    for k in 0..40 {
        agree(&[&a, &b], &format!("s{k}")).await;
    }
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn r23_after_a_partition_both_sides_know_what_the_other_did() {
    let wire = Arc::new(Wire::default());
    let [a, b, c] = [1, 2, 3].map(|n| Router::on(&wire, n));
    for router in [&a, &b, &c] {
        router.ready().await;
    }
    let _ = a.whole("gone").await;
    agree(&[&a, &b, &c], "gone").await;
    wire.cut(a.me());
    for k in 0..50 {
        let _ = a.whole(&format!("a{k}")).await;
        let _ = b.whole(&format!("b{k}")).await;
    }
    let gone = ask(&b.shell, "gone");
    assert!(b.shell.core().unbind(b.shell.now(), gone.partition, gone.session.unwrap().key));
    // What happened must have been said, and lost.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!((b.home("a1"), a.home("b1")), (None, None));
    wire.mend(a.me());
    for k in 0..50 {
        agree(&[&a, &b, &c], &format!("a{k}")).await;
        agree(&[&a, &b, &c], &format!("b{k}")).await;
    }
    eventually("the removal is known", || a.home("gone").is_none()).await;
    for router in [a, b, c] {
        router.end().await;
    }
}

#[tokio::test]
async fn routers_see_each_others_load_and_it_goes() {
    let wire = Arc::new(Wire::default());
    let [a, b, c] = [1, 2, 3].map(|n| Router::on(&wire, n));
    for router in [&a, &b, &c] {
        router.ready().await;
    }
    let running = [a.turn("x").await, a.turn("").await, b.turn("y").await];
    eventually("all see three", || [&a, &b, &c].iter().all(|r| r.active() == 3)).await;
    drop(running);
    eventually("all see none", || [&a, &b, &c].iter().all(|r| r.active() == 0)).await;
    // Somebody who leaves takes what it had booked with it.
    let _running = c.turn("z").await;
    eventually("it is seen", || a.active() == 1).await;
    c.life.finish(std::time::Duration::from_secs(10)).await;
    eventually("it has left", || a.active() == 0 && b.active() == 0).await;
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn what_is_foreign_newer_or_forged_disturbs_nothing() {
    let wire = Arc::new(Wire::default());
    let [a, b] = [1, 2].map(|n| Router::on(&wire, n));
    let stranger = shell(9, 8, "advisory");
    let bus = Some(wire.join(stranger.core().writer()));
    let stranger = Router::begin(stranger, Ports { bus, store: None }, false);
    a.ready().await;
    b.ready().await;
    wire.say(b"HELLO");
    wire.say(&[0x92, 2, 1]);
    let forged = |home: &str, rank: u16, group| homing_wire::replica::Message {
        head: Head { writer: 77, boot: 1, sequence: 1, now: a.shell.now(), group },
        body: Some(homing_wire::replica::Body::Updates(vec![Publication {
            pool: "m".into(),
            role: homing_core::ids::Role::Aggregated,
            key: ask(&a.shell, "forged").session.unwrap().key,
            version: homing_core::affinity::version::Version { sequence: 5, writer: 77 },
            home: Some(homing_core::core::Home {
                worker: home.into(),
                rank: Some(homing_core::ids::DpRank(rank)),
                started: None,
            }),
            used: a.shell.now(),
        }])),
    };
    for (home, rank) in [("w1", 9), ("nobody", 0)] {
        wire.say(&homing_wire::replica::encode(&forged(home, rank, group(&a.shell))));
    }
    let _ = stranger.whole("s").await;
    let (home, _) = a.whole("s").await;
    assert_eq!(agree(&[&a, &b], "s").await, home);
    assert_eq!((a.home("forged"), b.home("forged")), (None, None));
    let text = a.shell.metrics().text().unwrap();
    for outcome in ["unreadable", "forged", "other_secret", "set_aside"] {
        let line = format!("direction=\"received\",outcome=\"{outcome}\"");
        assert!(text.contains(&line), "{outcome}: {text}");
    }
    for router in [a, b, stranger] {
        router.end().await;
    }
}

// === a shared store ===

#[tokio::test]
async fn r24_of_many_first_turns_at_once_all_go_to_one_worker() {
    let shelf = Shelf::with_leases();
    let routers: Vec<_> = (1..=3).map(|n| Router::at(&shelf, n, false)).collect();
    for router in &routers {
        router.ready().await;
    }
    for k in 0..50 {
        let session = format!("s{k}");
        let turns =
            [routers[0].turn(&session), routers[1].turn(&session), routers[2].turn(&session)];
        let [a, b, c] = turns;
        let (a, b, c) = tokio::join!(a, b, c);
        assert!(a.2 == b.2 && b.2 == c.2, "{} {} {}", a.2, b.2, c.2);
        drop((a.0, b.0, c.0));
        let refs: Vec<_> = routers.iter().collect();
        assert_eq!(agree(&refs, &session).await, a.2);
    }
    // A bound turn asks nobody before it goes.
    shelf.fail();
    assert_eq!(routers[1].whole("s7").await.1, Outcome::Hit);
    for router in routers {
        router.end().await;
    }
}

#[tokio::test]
async fn r24_what_comes_to_nothing_is_withdrawn() {
    let shelf = Shelf::with_leases();
    let [a, b] = [1, 2].map(|n| Router::at(&shelf, n, false));
    a.ready().await;
    b.ready().await;
    let checked = a.shell.admit(ask(&a.shell, "s")).await.unwrap().check().await.unwrap();
    assert_eq!(shelf.values().len(), 1);
    let _ = checked.answered_badly();
    eventually("it is taken back", || shelf.values().is_empty()).await;
    // Its client goes while the store is asked: dropped at whichever point, nothing is left.
    for polls in 0..6 {
        let mut going = Box::pin(a.turn("t"));
        for _ in 0..polls {
            if crate::testing::now(&mut going).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(going);
        eventually("nothing is held", || {
            let s = stats(&a.shell);
            s.leases + s.bookings == 0 && (shelf.values().is_empty() || a.home("t").is_some())
        })
        .await;
    }
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn r24_an_outage_is_answered_as_the_settings_say() {
    let shelf = Shelf::with_leases();
    let (local, strict) = (Router::at(&shelf, 1, false), Router::at(&shelf, 2, true));
    local.ready().await;
    strict.ready().await;
    let _ = strict.whole("before").await;
    agree(&[&local, &strict], "before").await;
    shelf.fail();
    let (home, outcome) = local.whole("s").await;
    assert_eq!(outcome, Outcome::New, "{home}");
    let granted = strict.shell.admit(ask(&strict.shell, "t")).await.unwrap();
    match granted.check().await {
        Err(Unsent::Refused(Refusal { cause: Cause::StoreUnreachable, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(strict.whole("before").await.1, Outcome::Hit, "what is bound goes on");
    assert_eq!(stats(&strict.shell).leases, 0);
    shelf.back();
    // What was bound meanwhile is written, and the others hear of it.
    assert_eq!(agree(&[&local, &strict], "s").await, home);
    let strict_again = strict.whole("t").await;
    assert_eq!(strict_again.1, Outcome::New);
    local.end().await;
    strict.end().await;
}

#[tokio::test]
async fn r24_who_is_new_has_what_the_store_holds() {
    let shelf = Arc::new(Shelf::default());
    let a = Router::at(&shelf, 1, false);
    a.ready().await;
    for k in 0..200 {
        let _ = a.whole(&format!("s{k}")).await;
    }
    // What has not been written yet is, before it ends.
    a.end().await;
    assert_eq!(shelf.values().len(), 200);
    let b = Router::at(&shelf, 2, false);
    b.ready().await;
    assert_eq!(stats(&b.shell).bindings, 200);
    let calls = shelf.calls.load(Ordering::Relaxed);
    assert_eq!(b.whole("s3").await.1, Outcome::Hit);
    eventually("its use is written", || shelf.calls.load(Ordering::Relaxed) > calls).await;
    b.end().await;
}

#[tokio::test]
async fn r24_a_departed_home_is_moved_by_one_router_for_all() {
    let shelf = Shelf::with_leases();
    let [a, b] = [1, 2].map(|n| Router::at(&shelf, n, false));
    a.ready().await;
    b.ready().await;
    let (home, _) = a.whole("s").await;
    agree(&[&a, &b], "s").await;
    for router in [&a, &b] {
        let id = router.shell.core().worker_named(&home).unwrap();
        crate::testing::fleet(&router.shell, FleetChange::Remove(id));
    }
    let (one, other) = tokio::join!(a.turn("s"), b.turn("s"));
    assert_eq!(one.2, other.2);
    assert_ne!(one.2, home);
    drop((one.0, other.0));
    agree(&[&a, &b], "s").await;
    a.end().await;
    b.end().await;
}
