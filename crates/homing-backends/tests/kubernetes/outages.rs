//! What may go wrong between a router and its cluster; and that nothing is asked for in a hot loop.

use crate::Router;
use crate::server::{Api, PODS, pod};
use homing_runtime::settings::{DiscoveryKubernetes, KubernetesFind as Find};
use std::time::Duration;

fn pods(api: &Api) -> DiscoveryKubernetes {
    api.discovery(Find::Selector("app=vllm".to_owned()))
}

fn put(api: &Api, name: &str) {
    api.put(&format!("{PODS}/{name}"), pod(name, &format!("uid-{name}"), "10.0.0.1"));
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_where_it_was() {
    let api = Api::start().await;
    put(&api, "a");
    let mut router = Router::new(pods(&api));
    router.until_there(&["a"]).await;
    for (n, name) in ["b", "c"].into_iter().enumerate() {
        api.cut();
        put(&api, name);
        router.until("what came meanwhile", |r| r.workers.len() == n + 2).await;
    }
    assert_eq!((router.resets, router.freezes), (1, 0), "nothing was listed again");
    assert!(api.calls("watch=1") <= 5, "{}", api.calls("watch=1"));
}

#[tokio::test]
async fn bookmarks_are_where_it_goes_on() {
    let api = Api::start().await;
    put(&api, "a");
    let mut router = Router::new(pods(&api));
    router.until_there(&["a"]).await;
    api.bookmark();
    put(&api, "b");
    router.until_there(&["a", "b"]).await;
    api.bookmark();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let at = 100 + 2 + 2000;
    // All before the bookmark is forgotten: who goes on there has missed nothing.
    api.world().forgotten = at;
    api.cut();
    put(&api, "c");
    router.until_there(&["a", "b", "c"]).await;
    assert_eq!(router.resets, 1);
    assert_eq!(api.calls(&format!("resourceVersion={at}&")), 1);
}

#[tokio::test]
async fn a_version_that_is_forgotten_is_listed_anew() {
    let api = Api::start().await;
    put(&api, "a");
    put(&api, "b");
    let mut router = Router::new(pods(&api));
    router.until_there(&["a", "b"]).await;
    api.put_unseen(&format!("{PODS}/c"), pod("c", "u", "10.0.0.3"));
    api.world().forgotten = 103;
    api.cut();
    router.until_there(&["a", "b", "c"]).await;
    assert_eq!((router.resets, router.freezes), (2, 0));
}

#[tokio::test]
async fn an_outage_freezes_who_is_known() {
    let api = Api::start().await;
    put(&api, "a");
    put(&api, "b");
    let mut router = Router::new(pods(&api));
    router.until_there(&["a", "b"]).await;
    api.stop().await;
    router.until("a word on it", |r| r.frozen.is_some()).await;
    assert!(router.frozen.as_ref().unwrap().contains("can't be reached"), "{:?}", router.frozen);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(router.ids(), ["a", "b"], "nobody has departed");
    api.delete(&format!("{PODS}/a"));
    api.go_on().await;
    router.until("the end of it", |r| r.frozen.is_none()).await;
    assert_eq!(router.ids(), ["b"]);
    assert_eq!((router.resets, router.freezes), (2, 1));
}

#[tokio::test]
async fn a_wrong_token_is_said_and_a_new_one_is_taken() {
    let api = Api::start().await;
    put(&api, "a");
    std::fs::write(api.dir.join("token"), "wrong\n").unwrap();
    let mut router = Router::new(pods(&api));
    router.until("a word on it", |r| r.frozen.is_some()).await;
    let why = router.frozen.clone().unwrap();
    assert!(why.contains("401") && why.contains("token_file") && !why.contains("wrong"), "{why}");
    std::fs::write(api.dir.join("token"), "right\n").unwrap();
    router.until_there(&["a"]).await;
    assert_eq!(router.frozen, None);
    let mut without = pods(&api);
    without.token_file = Some(api.dir.join("nothing"));
    let mut router = Router::new(without);
    router.until("a word on it", |r| r.frozen.is_some()).await;
    assert!(
        router.frozen.as_ref().unwrap().contains("discovery.token_file"),
        "{:?}",
        router.frozen
    );
}

#[tokio::test]
async fn nothing_is_asked_for_in_a_hot_loop() {
    // Watches that end as soon as they begin.
    let api = Api::start().await;
    put(&api, "a");
    api.world().no_patience = true;
    let mut router = Router::new(pods(&api));
    router.until_there(&["a"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!((2..=9).contains(&api.calls("")), "{}", api.calls(""));
    // Versions that are forgotten as soon as they are said.
    let api = Api::start().await;
    put(&api, "a");
    api.world().forgotten = u64::MAX;
    let mut router = Router::new(pods(&api));
    router.until_there(&["a"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!((2..=9).contains(&api.calls("")), "{}", api.calls(""));
    // Nothing but errors.
    let api = Api::start().await;
    api.world().answer = Some((500, "etcd has no leader"));
    let mut router = Router::new(pods(&api));
    router.until("a word on it", |r| r.frozen.is_some()).await;
    assert!(router.frozen.as_ref().unwrap().contains("etcd has no leader"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!((1..=6).contains(&api.calls("")), "{}", api.calls(""));
}

#[tokio::test]
async fn it_ends_when_nobody_wants_to_know() {
    let api = Api::start().await;
    put(&api, "a");
    let begun = crate::begin(pods(&api));
    let task = tokio::spawn(begun.drive);
    drop(begun.changes);
    tokio::time::timeout(crate::server::PATIENCE, task).await.unwrap().unwrap();
}
