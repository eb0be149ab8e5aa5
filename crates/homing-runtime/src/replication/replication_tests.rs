//! Whole shells that share over a bus and a store in memory: what one does the others know, whatever is lost on the way.

use super::fake::{Shelf, Wire};
use super::port::Delivery;
use super::*;
use crate::guard::{Live, Unsent};
use crate::testing::{ask, eventually, register, settings, stats};
use homing_core::affinity::Outcome;
use homing_core::affinity::version::Version;
use homing_core::ask::{Cause, Refusal};
use homing_core::fleet::{FleetChange, FleetEvent, State};
use homing_core::ids::KeySecret;
use homing_core::time::Time;
use homing_wire::replica::{Body, Message};
use std::sync::atomic::Ordering;

#[path = "store_tests.rs"]
mod at_a_store;

/// Routers from this number on know no worker yet.
const LONELY: u8 = 100;
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
    if n < LONELY {
        workers(&shell);
    }
    shell
}

fn workers(shell: &Shell) {
    for name in WORKERS {
        let id = register(shell, name);
        shell.note_fleet(name, &[FleetEvent::State(id, State::Ready)]);
    }
}

impl Router {
    fn begin(shell: Arc<Shell>, ports: Ports, strict: bool) -> Self {
        let life = Lifecycle::default();
        let rules = Rules { strict, ttl: Duration::from_secs(1800) };
        let shared = Replication::start(&shell, ports, rules, &life);
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
        let mut next = Box::new(ask(&self.shell, session));
        loop {
            match self.shell.admit(next).await.unwrap().check().await {
                Ok(checked) => {
                    let worker = checked.worker().spec.name.to_string();
                    let (live, outcome) = checked.begin();
                    return (live, outcome, worker);
                }
                Err(Unsent::Again(again)) => next = again,
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
        assert!(self.life.finish(Duration::from_secs(10)).await, "a task has not ended");
    }
}

/// A session's register as another router would tell of it.
fn register_of(router: &Router, session: &str, home: &str) -> Publication {
    let (worker, rank) = (home.into(), None);
    Publication {
        pool: "m".into(),
        role: homing_core::ids::Role::Aggregated,
        key: ask(&router.shell, session).session.unwrap().key,
        version: Version { sequence: 5, writer: 77 },
        home: Some(homing_core::core::Home { worker, rank, started: None }),
        used: router.shell.now(),
    }
}

/// Of a router that began long ago in the group of this one.
fn head_of(router: &Router) -> Head {
    let (now, group) = (router.shell.now(), group(&router.shell));
    Head { writer: 77, boot: 1, sequence: 1, now, group, reads: 0 }
}

fn say(wire: &Wire, head: Head, body: Body) {
    wire.say(&homing_wire::replica::encode(&Message { head, body: Some(body) }));
}

fn metric(router: &Router, line: &str) -> bool {
    let text = router.shell.metrics().text().unwrap();
    text.lines().any(|l| !l.starts_with('#') && l.contains(line))
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
async fn who_is_new_takes_over_what_others_know_once_it_has_workers() {
    let (wire, shelf) = (Arc::new(Wire::default()), Shelf::with_leases());
    for over_store in [false, true] {
        let router =
            |n| if over_store { Router::at(&shelf, n, false) } else { Router::on(&wire, n) };
        let a = router(1);
        a.ready().await;
        for k in 0..100 {
            let _ = a.whole(&format!("s{k}")).await;
        }
        // What was said is over.
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Its discovery is away.
        let b = router(LONELY);
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(!b.shell.ready() && metric(&b, "homing_replication_in_step 0"));
        workers(&b.shell);
        b.ready().await;
        assert_eq!(stats(&b.shell).bindings, 100, "{over_store}");
        assert!(!metric(&b, "outcome=\"set_aside\""));
        a.end().await;
        b.end().await;
    }
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
        tokio::time::sleep(Duration::from_millis(12)).await;
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
    tokio::time::sleep(Duration::from_millis(50)).await;
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
    c.life.finish(Duration::from_secs(10)).await;
    eventually("it has left", || a.active() == 0 && b.active() == 0).await;
    a.end().await;
    b.end().await;
}

/// What router `of` says from now on, until `done`.
async fn until(heard: &mut Deliveries, of: u32, done: impl Fn(&[Body]) -> bool) -> Vec<Body> {
    let mut said = Vec::new();
    let patience = std::time::Instant::now() + Duration::from_secs(20);
    while !done(&said) {
        assert!(std::time::Instant::now() < patience, "{said:?}");
        let wait = tokio::time::timeout(Duration::from_secs(20), heard.recv());
        let Ok(Some(Delivery::Message(bytes))) = wait.await else { continue };
        let message = homing_wire::replica::decode(&bytes).unwrap();
        if message.head.writer == of {
            assert_eq!(message.head.reads, READS);
            said.extend(message.body);
        }
    }
    said
}

/// A rolling upgrade: bindings and load go in one message once all that are there read that, and apart before.
#[tokio::test]
async fn r23_bindings_and_load_go_apart_while_somebody_of_an_earlier_release_is_there() {
    let wire = Arc::new(Wire::default());
    let a = Router::on(&wire, 1);
    a.ready().await;
    let (_, mut heard) = wire.join(77);
    let loaded = |body: &Body| match body {
        Body::Loads(loads) => loads.targets.iter().any(|(.., load)| load.active_requests > 0),
        _ => false,
    };
    let tells = |body: &Body| matches!(body, Body::Updates { .. });
    let along = |body: &Body| matches!(body, Body::Updates { loads: Some(_), .. });
    for (life, reads) in [(1, 0), (2, READS)] {
        let head = Head { boot: life, reads, ..head_of(&a) };
        say(&wire, head, Body::Hello);
        eventually("it is there", || metric(&a, "homing_replication_peers 1")).await;
        // It is seen in its new life, and what it asks for is answered.
        until(&mut heard, a.me(), |said| said.iter().any(|b| matches!(b, Body::Loads(_)))).await;
        let running = a.turn(&format!("s{life}")).await;
        if reads == 0 {
            let done = |said: &[Body]| said.iter().any(tells) && said.iter().any(loaded);
            let said = until(&mut heard, a.me(), done).await;
            assert!(!said.iter().any(along), "{said:?}");
        } else {
            until(&mut heard, a.me(), |said| said.iter().any(along)).await;
        }
        drop(running);
        let over = || a.active() == 0;
        eventually("it is over", over).await;
    }
    a.end().await;
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
    for (home, rank) in [("w1", 9), ("nobody", 0)] {
        let mut register = register_of(&a, "forged", home);
        register.home.as_mut().unwrap().rank = Some(homing_core::ids::DpRank(rank));
        let head = Head { writer: 77, boot: 1, sequence: 1, ..head_of(&a) };
        say(&wire, head, Body::Updates { updates: vec![register], loads: None });
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

#[tokio::test]
async fn what_is_said_of_a_far_time_moves_nothing() {
    let wire = Arc::new(Wire::default());
    let [a, b] = [1, 2].map(|n| Router::on(&wire, n));
    a.ready().await;
    b.ready().await;
    let far = Time::from_micros(u64::MAX);
    for sequence in [u64::MAX / 4, u64::MAX] {
        for used in [a.shell.now(), Time::from_micros(1)] {
            let mut register = register_of(&a, "far", "w1");
            (register.version.sequence, register.used) = (sequence, used);
            say(&wire, head_of(&a), Body::Updates { updates: vec![register], loads: None });
        }
    }
    // In the name of one of them, of another life, of another time and far in its count.
    let of_b = Head { writer: b.me(), boot: b.shell.now().as_micros(), ..head_of(&a) };
    say(&wire, Head { boot: u64::MAX, ..of_b }, Body::Hello);
    say(&wire, Head { now: far, ..of_b }, Body::Hello);
    eventually("all is refused", || metric(&a, "outcome=\"untrue\"} 6")).await;
    for k in 0..20 {
        let session = format!("s{k}");
        let (home, _) = if k % 2 == 0 { &a } else { &b }.whole(&session).await;
        assert_eq!(agree(&[&a, &b], &session).await, home);
    }
    assert_eq!((a.home("far"), b.home("far")), (None, None));
    let _running = b.turn("x").await;
    eventually("its load is seen", || a.active() == 1).await;
    a.end().await;
    b.end().await;
}
