//! Bindings in JetStream: the contract of stores, and what only NATS can do to them.

use crate::contract::{self, Follower, done, eventually, set};
use crate::server::{JETSTREAM, Server};
use homing_backends::nats::open;
use homing_runtime::replication::port::{BindingStore, PortError, Set, Stay};
use std::sync::Arc;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(600);

async fn store(server: &Server, idle: Duration) -> Arc<dyn BindingStore> {
    Arc::new(open(server.reach(), "g", idle).await.unwrap())
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
    let server = Server::start(JETSTREAM);
    let stores = stores(&server, IDLE).await;
    assert!(!stores[0].leases());
    contract::one_creates(&stores, "once").await;
    contract::a_lost_one_is_told(&stores, "lost").await;
    contract::followers_see_all(&stores, "seen").await;
    contract::a_slow_follower_misses_nothing(&stores, "slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_end_when_they_have_been_idle() {
    let server = Server::start(JETSTREAM);
    let idle = Duration::from_secs(3);
    contract::idle_ends_a_key_in_silence(&stores(&server, idle).await, "idle", idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_loses_nothing() {
    let mut server = Server::start(JETSTREAM);
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    let first = done(&*store, "a", "1", None).await;
    done(&*store, "b", "1", None).await;
    follower.until("both", |f| f.there.len() == 2).await;
    server.kill();
    follower.until("the loss", |f| f.losses == 1).await;
    let begun = tokio::time::Instant::now();
    let error = store.compare_and_set("c", contract::bytes("1"), None, Stay::Idle).await;
    assert!(matches!(error, Err(PortError::Unreachable { .. })), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(matches!(store.probe().await, Err(PortError::Unreachable { .. })));
    server.run();
    assert!(matches!(eventually(&*store, "a", Some(first)).await, Set::Done(_)));
    follower.until("all anew", |f| f.in_step && f.value("a") == Some(b"v")).await;
    assert_eq!(follower.value("b"), Some(&b"1"[..]));
    assert_eq!((follower.there.len(), follower.losses), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_was_wiped_is_made_anew() {
    let mut server = Server::start(JETSTREAM);
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    for n in 0..20 {
        done(&*store, &format!("k{n}"), "1", None).await;
    }
    follower.until("all", |f| f.there.len() == 20).await;
    server.kill();
    server.wipe();
    server.run();
    follower.until("an empty bucket", |f| f.in_step && f.losses == 1).await;
    assert!(follower.there.is_empty());
    assert!(matches!(eventually(&*store, "k3", None).await, Set::Done(_)));
    follower.until("the new one", |f| f.value("k3") == Some(b"v")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_somebody_deletes_is_made_anew() {
    let server = Server::start(JETSTREAM);
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    done(&*store, "a", "1", None).await;
    follower.until("it", |f| f.there.len() == 1).await;
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port)).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.delete_stream("KV_homing_g_bindings").await.unwrap();
    done(&*store, "b", "2", None).await;
    follower.until("the new one", |f| f.losses == 1 && f.in_step && f.value("b").is_some()).await;
    assert!(follower.value("a").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_into_the_bucket_spoils_nothing() {
    let server = Server::start(JETSTREAM);
    let store = store(&server, IDLE).await;
    let mut follower = Follower::in_step(&*store).await;
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port)).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let long = "k".repeat(200);
    for subject in ["$KV.homing_g_bindings.two.tokens", &format!("$KV.homing_g_bindings.{long}")] {
        jetstream.publish(subject.to_owned(), "x".into()).await.unwrap().await.unwrap();
    }
    // As `nats kv purge` does.
    done(&*store, "p", "1", None).await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("KV-Operation", "PURGE");
    headers.insert("Nats-Rollup", "sub");
    let subject = "$KV.homing_g_bindings.p".to_owned();
    let purged = jetstream.publish_with_headers(subject, headers, "".into()).await.unwrap();
    purged.await.unwrap();
    done(&*store, "z", "1", None).await;
    follower.until("the last", |f| f.value("z").is_some()).await;
    assert_eq!(follower.there.keys().collect::<Vec<_>>(), ["z"]);
    done(&*store, "p", "2", None).await;
    assert_eq!(set(&*store, "p", "3", Some(1)).await, set(&*store, "p", "3", None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_another_age_is_changed() {
    let server = Server::start(JETSTREAM);
    let first = store(&server, IDLE).await;
    done(&*first, "a", "1", None).await;
    let _second = store(&server, Duration::from_secs(60)).await;
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port)).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let stream = jetstream.get_stream("KV_homing_g_bindings").await.unwrap();
    let config = &stream.cached_info().config;
    assert_eq!(config.max_age, Duration::from_secs(60));
    assert_eq!(config.max_messages_per_subject, 1);
    assert_eq!(stream.cached_info().state.messages, 1, "and what is in it stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_is_refused() {
    let server = Server::start(&[]);
    let error = open(server.reach(), "g", IDLE).await.unwrap_err();
    assert!(matches!(error, PortError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("-js"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_later_is_waited_for() {
    let mut server = Server::at_rest(JETSTREAM);
    let store = store(&server, IDLE).await;
    let mut follower = Follower::new(&*store);
    assert!(store.compare_and_remove("a", 1).await.is_err());
    server.run();
    follower.until("coming in step", |f| f.in_step).await;
    assert_eq!(follower.losses, 0, "nothing was said that could be lost");
    done(&*store, "a", "1", None).await;
    for key in ["", "A", "a b", "a*", ">", &"k".repeat(129)] {
        let error = store.compare_and_set(key, contract::bytes("1"), None, Stay::Idle).await;
        assert!(matches!(error, Err(PortError::Setting(_))), "{key}: {error:?}");
    }
    for key in [".", "..a..", "-_.", &"k.".repeat(64)] {
        done(&*store, key, "1", None).await;
        follower.until("it", |f| f.value(key).is_some()).await;
    }
}
