//! What is seen of a cluster that is well: lists, pages and changes of each kind.

use crate::Router;
use crate::server::{Api, PODS, SLICES, pod, slice};
use homing_runtime::settings::{KubernetesFind as Find, KubernetesPort as Port};
use serde_json::json;

fn service() -> Find {
    Find::Service("vllm".to_owned())
}

#[tokio::test]
async fn endpoints_of_a_service_come_and_go() {
    let api = Api::start().await;
    api.put(&format!("{PODS}/a"), pod("a", "u1", "10.0.0.1"));
    api.put(&format!("{SLICES}/s1"), slice("s1", &[("a", "u1", "10.0.0.1")]));
    let mut router = Router::new(api.discovery(service()));
    router.until_there(&["a"]).await;
    let worker = &router.workers["a"];
    assert_eq!(worker.url.to_string(), "http://10.0.0.1:8000");
    assert_eq!(worker.labels["pod"], "a", "its labels are the pod's");
    assert_eq!(
        api.calls("endpointslices?limit=250&labelSelector=kubernetes.io%2Fservice-name%3Dvllm"),
        1
    );
    api.put(&format!("{PODS}/b"), pod("b", "u2", "10.0.0.2"));
    let both = [("a", "u1", "10.0.0.1"), ("b", "u2", "10.0.0.2")];
    api.put(&format!("{SLICES}/s1"), slice("s1", &both));
    router.until_there(&["a", "b"]).await;
    assert_eq!(router.workers["b"].labels["pod"], "b");
    // A pod of the same name, of another life.
    let before = router.workers["a"].generation;
    api.put(&format!("{PODS}/a"), pod("a", "u3", "10.0.0.3"));
    api.put(&format!("{SLICES}/s1"), slice("s1", &[("a", "u3", "10.0.0.3"), both[1]]));
    router.until("the next life", |r| r.workers["a"].url.to_string().contains("10.0.0.3")).await;
    assert_ne!(router.workers["a"].generation, before);
    let mut ending = slice("s1", &[("a", "u3", "10.0.0.3"), both[1]]);
    ending["endpoints"][1]["conditions"] =
        json!({"ready": false, "serving": true, "terminating": true});
    api.put(&format!("{SLICES}/s1"), ending);
    router.until_there(&["a"]).await;
    api.delete(&format!("{SLICES}/s1"));
    router.until_there(&[]).await;
    assert_eq!((router.resets, router.freezes), (1, 0), "all of it by one watch");
}

#[tokio::test]
async fn without_a_right_to_pods_workers_have_no_labels() {
    let api = Api::start().await;
    api.world().forbidden = Some("/pods/");
    api.put(
        &format!("{SLICES}/s1"),
        slice("s1", &[("a", "u1", "10.0.0.1"), ("b", "u2", "10.0.0.2")]),
    );
    let mut router = Router::new(api.discovery(service()));
    router.until_there(&["a", "b"]).await;
    assert!(router.workers["a"].labels.is_empty());
    api.put(&format!("{SLICES}/s1"), slice("s1", &[("c", "u3", "10.0.0.1")]));
    router.until_there(&["c"]).await;
    assert_eq!(api.calls("/pods/c"), 0, "it is not asked for over and over");
}

#[tokio::test]
async fn a_port_may_be_named_as_the_service_names_it() {
    let api = Api::start().await;
    let mut named = slice("s1", &[("a", "u1", "10.0.0.1")]);
    named["ports"] = json!([{"name": "metrics", "port": 1}, {"name": "openai", "port": 9000}]);
    api.put(&format!("{SLICES}/s1"), named);
    let wanted = |port: &str| {
        let mut wanted = api.discovery(service());
        wanted.port = Port::Name(port.to_owned());
        wanted
    };
    let mut router = Router::new(wanted("openai"));
    router.until_there(&["a"]).await;
    assert_eq!(router.workers["a"].url.to_string(), "http://10.0.0.1:9000");
    let mut router = Router::new(wanted("other"));
    router.until("a list", |r| r.resets == 1).await;
    assert!(router.workers.is_empty(), "nobody is guessed at");
}

#[tokio::test]
async fn pods_by_label_over_many_pages() {
    let api = Api::start().await;
    api.world().page = 3;
    for n in 0..20 {
        api.put(
            &format!("{PODS}/p{n:02}"),
            pod(&format!("p{n:02}"), &format!("u{n}"), &format!("10.0.0.{n}")),
        );
    }
    let mut router = Router::new(api.discovery(Find::Selector("app=vllm,tier!=test".to_owned())));
    router.until("all pages", |r| r.workers.len() == 20).await;
    assert_eq!(api.calls("continue="), 6);
    api.delete(&format!("{PODS}/p07"));
    api.put(&format!("{PODS}/q"), pod("q", "u", "10.0.1.1"));
    router.until("both changes", |r| r.workers.contains_key("q")).await;
    assert_eq!(
        api.calls("labelSelector=app%3Dvllm%2Ctier%21%3Dtest"),
        8,
        "seven pages, and the watch"
    );
    assert!(!router.workers.contains_key("p07"));
    assert_eq!(router.workers.len(), 20);
}

#[tokio::test]
async fn pods_of_an_inference_pool_of_today_and_of_before() {
    for (group, spec) in [
        (
            "inference.networking.k8s.io/v1",
            json!({"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8200}]}),
        ),
        (
            "inference.networking.x-k8s.io/v1alpha2",
            json!({"selector": {"app": "vllm"}, "targetPortNumber": 8200}),
        ),
    ] {
        let api = Api::start().await;
        let pool = json!({"metadata": {"name": "pool"}, "spec": spec});
        api.put(&format!("/apis/{group}/namespaces/llm/inferencepools/pool"), pool);
        api.put(&format!("{PODS}/a"), pod("a", "u1", "10.0.0.1"));
        let mut router = Router::new(api.discovery(Find::InferencePool("pool".to_owned())));
        router.until_there(&["a"]).await;
        assert_eq!(router.workers["a"].url.to_string(), "http://10.0.0.1:8200");
        assert!(api.calls("pods?limit=250&labelSelector=app%3Dvllm") == 1, "{group}");
    }
    let api = Api::start().await;
    let mut router = Router::new(api.discovery(Find::InferencePool("pool".to_owned())));
    router.until("a word on it", |r| r.frozen.is_some()).await;
    assert!(router.frozen.as_ref().unwrap().contains("inferencepools/pool"), "{:?}", router.frozen);
}
