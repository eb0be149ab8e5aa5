//! Bindings in etcd: the contract of stores, and what only etcd can do to them.

use crate::contract::{self, Follower, bytes, done, eventually, soon};
use crate::server::Server;
use homing_backends::etcd::Store;
use homing_runtime::replication::port::{BindingStore, MESSAGE_MAX, PortError, Set, Stay};
use std::sync::Arc;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(600);

async fn store(server: &Server, idle: Duration) -> Arc<dyn BindingStore> {
    Arc::new(Store::open(server.reach(), "g", idle).await.unwrap())
}

async fn stores(server: &Server, idle: Duration) -> Vec<Arc<dyn BindingStore>> {
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(store(server, idle).await);
    }
    stores
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_of_stores() {
    let server = Server::start();
    let stores = stores(&server, IDLE).await;
    assert!(stores[0].leases());
    contract::one_creates(&stores, "once").await;
    contract::a_lost_one_is_told(&stores, "lost").await;
    contract::followers_see_all(&stores, "seen").await;
    contract::a_slow_follower_misses_nothing(&stores, "slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_end_when_they_have_been_idle() {
    let server = Server::start();
    let idle = Duration::from_secs(3);
    contract::idle_ends_a_key(&stores(&server, idle).await, "idle", idle).await;
    // A lease a part of the time, not a lease a write.
    let leases = server.ctl(&["lease", "list"]).lines().count();
    assert!(leases < 40, "{leases}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_loses_nothing() {
    let mut server = Server::start();
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    let first = done(&*store, "a", "1", None).await;
    done(&*store, "b", "1", None).await;
    follower.until("both", |f| f.there.len() == 2).await;
    server.kill();
    let begun = tokio::time::Instant::now();
    let error = store.compare_and_set("c", bytes("1"), None, Stay::Idle).await;
    assert!(matches!(error, Err(PortError::Unreachable { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    follower.until("the loss", |f| f.losses == 1).await;
    server.run();
    assert!(matches!(eventually(&*store, "a", Some(first)).await, Set::Done(_)));
    follower.until("all anew", |f| f.in_step && f.value("a") == Some(b"v")).await;
    assert_eq!(follower.value("b"), Some(&b"1"[..]));
    assert_eq!((follower.there.len(), follower.losses), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_no_server() {
    let server = Server::start();
    let store = store(&server, IDLE).await;
    let first = done(&*store, "a", "1", None).await;
    server.freeze();
    let begun = tokio::time::Instant::now();
    let error = store.compare_and_remove("a", first + 7).await;
    assert!(matches!(error, Err(PortError::Unreachable { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    server.thaw();
    assert!(matches!(eventually(&*store, "a", Some(first)).await, Set::Done(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_that_is_dropped_meanwhile_is_read_anew() {
    let mut server = Server::start();
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    let gone = done(&*store, "gone", "1", None).await;
    done(&*store, "stays", "1", None).await;
    follower.until("both", |f| f.there.len() == 2).await;
    server.kill();
    follower.until("the loss", |f| f.losses == 1).await;
    server.run();
    // As fast as it can be: whichever comes first, the follower ends with what there is.
    server.ctl(&["del", "/homing/g/bindings/gone"]);
    server.ctl(&["put", "/homing/g/bindings/new", "2"]);
    server.compact();
    follower.until("all anew", |f| f.in_step && f.value("new") == Some(b"2")).await;
    follower.until("the end of one", |f| f.value("gone").is_none()).await;
    assert!(!store.compare_and_remove("gone", gone).await.unwrap());
    assert_eq!(follower.value("stays"), Some(&b"1"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_was_wiped_is_another() {
    let mut server = Server::start();
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    for n in 0..20 {
        done(&*store, &format!("k{n}"), "1", None).await;
    }
    follower.until("all", |f| f.there.len() == 20).await;
    server.kill();
    server.wipe();
    server.run();
    follower.until("nothing", |f| f.in_step && f.losses == 1).await;
    assert!(follower.there.is_empty(), "{:?}", follower.there.keys());
    // Its leases are gone, too.
    assert!(matches!(eventually(&*store, "k3", None).await, Set::Done(_)));
    follower.until("the new one", |f| f.value("k3") == Some(b"v")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stays_with_us_ends_with_us() {
    let server = Server::start();
    let (ours, theirs) =
        (Store::open(server.reach(), "g", IDLE).await.unwrap(), store(&server, IDLE).await);
    let mut follower = Follower::in_step(&*theirs).await;
    let set = ours.compare_and_set("mine", bytes("1"), None, Stay::WithUs).await.unwrap();
    assert!(matches!(set, Set::Done(_)));
    done(&ours, "idle", "1", None).await;
    follower.until("both", |f| f.there.len() == 2).await;
    // It is kept alive, for longer than the lease would be there by itself.
    let later = tokio::time::sleep(Duration::from_secs(18));
    tokio::select! {
        () = follower.until("an end", |f| f.value("mine").is_none()) => panic!("it ended while we lived"),
        () = later => {}
    }
    // A lease that is lost is taken anew.
    for line in server.ctl(&["lease", "list"]).lines().skip(1) {
        server.ctl(&["lease", "revoke", line]);
    }
    follower.until("the end of all", |f| f.there.is_empty()).await;
    soon("a new lease", async {
        // Whoever writes before the loss is noticed is told what is there.
        while !matches!(
            ours.compare_and_set("mine", bytes("2"), None, Stay::WithUs).await,
            Ok(Set::Done(_))
        ) {}
    })
    .await;
    follower.until("it is back", |f| f.value("mine") == Some(b"2")).await;
    ours.close().await;
    follower.until("it ends with us", |f| f.value("mine").is_none()).await;
    let set = ours.compare_and_set("mine", bytes("3"), None, Stay::WithUs).await.unwrap();
    assert!(matches!(set, Set::Done(_)));
    follower.until("it is there", |f| f.value("mine") == Some(b"3")).await;
    // Nobody says goodbye.
    drop(ours);
    follower.until("its end", |f| f.value("mine").is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_later_is_waited_for() {
    let mut server = Server::at_rest();
    let store = store(&server, IDLE).await;
    let mut follower = Follower::new(&*store);
    assert!(store.compare_and_remove("a", 1).await.is_err());
    server.run();
    follower.until("coming in step", |f| f.in_step).await;
    assert_eq!(follower.losses, 0, "nothing was said that could be lost");
    done(&*store, "a", "1", None).await;
    for key in ["", "A", "a b", "a/b", &"k".repeat(129)] {
        let error = store.compare_and_set(key, bytes("1"), None, Stay::Idle).await;
        assert!(matches!(error, Err(PortError::Setting(_))), "{key}: {error:?}");
    }
    let large = vec![0; MESSAGE_MAX + 1].into();
    let error = store.compare_and_set("large", large, None, Stay::Idle).await;
    assert_eq!(error, Err(PortError::TooLarge(MESSAGE_MAX + 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_come_in_small_pages() {
    let server = Server::start();
    let store = store(&server, IDLE).await;
    for n in 0..48 {
        let value = vec![n; MESSAGE_MAX].into();
        let set = store.compare_and_set(&format!("k{n}"), value, None, Stay::Idle).await.unwrap();
        assert!(matches!(set, Set::Done(_)));
    }
    let follower = Follower::in_step(&*store).await;
    assert_eq!(follower.there.len(), 48);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_places_is_enough() {
    let (server, mut other) = (Server::start(), Server::at_rest());
    let mut reach = other.reach();
    reach.urls.extend(server.reach().urls);
    let store = Store::open(reach, "g", IDLE).await.unwrap();
    let first = done(&store, "a", "1", None).await;
    assert!(store.compare_and_remove("a", first).await.unwrap());
    other.kill();
}
