//! Which pods are workers, and when.

use super::*;
use serde_json::{Value, json};

fn upstream() -> Arc<Upstream> {
    Arc::new(Upstream {
        api_key_file: None,
        ca_file: None,
        cert_file: None,
        key_file: None,
        connect_timeout: std::time::Duration::from_secs(2),
        first_token_timeout: std::time::Duration::from_secs(600),
        idle_timeout: std::time::Duration::from_secs(300),
        pool_idle: std::time::Duration::from_secs(3),
        tcp_user_timeout: std::time::Duration::from_secs(20),
    })
}

fn slice(endpoints: Value) -> EndpointSlice {
    let slice = json!({
        "metadata": {"name": "s", "resourceVersion": "1"},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "metrics", "port": 9100}, {"name": "http", "port": 8123, "protocol": "TCP"}],
    });
    serde_json::from_value(slice).unwrap()
}

fn endpoint(pod: &str, uid: &str, address: &str, conditions: Value) -> Value {
    json!({
        "addresses": [address], "conditions": conditions, "zone": "z1", "nodeName": "n",
        "targetRef": {"kind": "Pod", "name": pod, "uid": uid},
    })
}

fn seats(endpoints: Value) -> Vec<Seat> {
    of_slice(slice(endpoints), &Port::Name("http".to_owned())).unwrap()
}

fn words(changes: &[Change]) -> Vec<String> {
    let word = |change: &Change| match change {
        Change::Upsert(worker) | Change::Replace(worker) => {
            format!("+{}@{}", worker.id, worker.url)
        }
        Change::Remove(id) => format!("-{id}"),
        other => panic!("{other:?}"),
    };
    changes.iter().map(word).collect()
}

const READY: &str = r#"{"ready": true, "serving": true, "terminating": false}"#;

fn ready() -> Value {
    serde_json::from_str(READY).unwrap()
}

#[test]
fn a_pod_counts_from_ready_until_it_terminates() {
    let mut members = Members::new(upstream());
    let mut turn = |conditions: Value| {
        members.put("s".to_owned(), seats(json!([endpoint("a", "u1", "10.0.0.1", conditions)])));
        words(&members.changes())
    };
    let loading = json!({"ready": false, "serving": false, "terminating": false});
    assert!(turn(loading.clone()).is_empty(), "its engine loads");
    assert_eq!(turn(ready()), ["+a@http://10.0.0.1:8123"]);
    assert!(turn(ready()).is_empty(), "nothing has changed");
    assert!(turn(loading).is_empty(), "a gap is no departure");
    assert!(turn(json!({})).is_empty(), "what isn't said counts as ready");
    let ending = json!({"ready": false, "serving": true, "terminating": true});
    assert_eq!(turn(ending), ["-a"], "though it serves still");
}

#[test]
fn a_pod_of_the_same_name_is_another_life() {
    let mut members = Members::new(upstream());
    members.put("s".to_owned(), seats(json!([endpoint("a", "u1", "10.0.0.1", ready())])));
    let first = members.all().remove(0);
    members.put("s".to_owned(), seats(json!([endpoint("a", "u2", "10.0.0.1", ready())])));
    let changes = members.changes();
    let [Change::Upsert(second)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((&first.id, &first.url), (&second.id, &second.url));
    assert!(first.generation != second.generation && first.generation != 0);
    let mut elsewhere = Members::new(upstream());
    elsewhere.put("t".to_owned(), seats(json!([endpoint("a", "u1", "10.0.0.1", ready())])));
    assert_eq!(elsewhere.all()[0].generation, first.generation, "every router says the same");
    // Its successor isn't ready yet: the one of before has departed all the same.
    let loading = json!({"ready": false});
    members.put("s".to_owned(), seats(json!([endpoint("a", "u3", "10.0.0.1", loading)])));
    assert_eq!(words(&members.changes()), ["-a"]);
}

#[test]
fn what_is_said_twice_counts_once() {
    let mut members = Members::new(upstream());
    let one = endpoint("a", "u1", "10.0.0.1", ready());
    members.put("s".to_owned(), seats(json!([one])));
    // Dual stack: the same pod by its other address; and a copy that lags behind.
    members.put("v6".to_owned(), seats(json!([endpoint("a", "u1", "fd00::1", ready())])));
    assert_eq!(words(&members.changes()), ["+a@http://10.0.0.1:8123"]);
    members.put("copy".to_owned(), seats(json!([one])));
    let ending = json!({"ready": false, "serving": false, "terminating": true});
    members.put("s".to_owned(), seats(json!([endpoint("a", "u1", "10.0.0.1", ending)])));
    assert_eq!(words(&members.changes()), ["-a"], "it ends in one of them");
    members.put("v6".to_owned(), Vec::new());
    members.put("copy".to_owned(), Vec::new());
    members.put("s".to_owned(), seats(json!([endpoint("b", "u9", "fd00::2", ready())])));
    assert_eq!(words(&members.changes()), ["+b@http://[fd00::2]:8123"]);
}

#[test]
fn endpoints_without_a_pod_are_their_address() {
    let mut members = Members::new(upstream());
    let bare =
        json!([{"addresses": ["192.168.0.9"]}, {"addresses": ["nonsense"]}, {"addresses": null}]);
    members.put("s".to_owned(), of_slice(slice(bare), &Port::Number(8000)).unwrap());
    let all = members.all();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].id.as_str(), all[0].generation), ("192.168.0.9", 0));
    assert_eq!(all[0].url.to_string(), "http://192.168.0.9:8000");
    let error =
        of_slice(slice(json!([{"addresses": ["10.0.0.1"]}])), &Port::Name("grpc".to_owned()));
    assert!(error.unwrap_err().contains("grpc"));
    assert!(of_slice(slice(Value::Null), &Port::Name("grpc".to_owned())).unwrap().is_empty());
}

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "labels": {"app": "vllm"}},
        "spec": {"containers": []},
        "status": {
            "phase": "Running", "podIP": "10.1.0.1",
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        },
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn pods_count_by_their_own_words() {
    let of = |pod: Pod| {
        let mut members = Members::new(upstream());
        members.put("p".to_owned(), of_pod(pod, &[8000]));
        members.all()
    };
    let workers = of(pod(|_| {}));
    assert_eq!(workers[0].labels, [("app".to_owned(), "vllm".to_owned())].into());
    assert_eq!(workers[0].url.to_string(), "http://10.1.0.1:8000");
    assert!(
        of(pod(|p| p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))).is_empty()
    );
    assert!(of(pod(|p| p["status"]["phase"] = json!("Failed"))).is_empty());
    assert!(of(pod(|p| p["status"]["conditions"][1]["status"] = json!("False"))).is_empty());
    assert!(of(pod(|p| p["status"]["podIP"] = Value::Null)).is_empty());
    assert!(of(pod(|p| p["status"] = json!({}))).is_empty());
    let two = of_pod(pod(|_| {}), &[8000, 8001]);
    let ids: Vec<_> = two.iter().map(|seat| seat.id.as_str()).collect();
    assert_eq!(ids, ["p:8000", "p:8001"], "an InferencePool may name a port for each rank");
    let long = "p".repeat(250);
    let seats = of_pod(pod(|p| p["metadata"]["name"] = json!(long)), &[8000]);
    assert_eq!(seats[0].id.len(), ID_MAX);
}

#[test]
fn labels_of_pods_come_later_and_hold_until_they_are_asked_for_anew() {
    let mut members = Members::new(upstream());
    members.put("s".to_owned(), seats(json!([endpoint("a", "u1", "10.0.0.1", ready())])));
    assert_eq!(members.unlabelled(), [("a".to_owned(), "u1".to_owned())]);
    let labels: BTreeMap<_, _> = [("gpu".to_owned(), "h200".to_owned())].into();
    members.label("u1".to_owned(), Arc::new(labels));
    assert!(members.unlabelled().is_empty());
    let of = |members: &mut Members| members.all()[0].labels.clone();
    let expected =
        [("gpu".to_owned(), "h200".to_owned()), (ZONE.to_owned(), "z1".to_owned())].into();
    assert_eq!(of(&mut members), expected);
    members.doubt_labels();
    assert_eq!(members.unlabelled().len(), 1);
    assert_eq!(of(&mut members), expected);
    members.put("s".to_owned(), Vec::new());
    assert!(
        members.all().is_empty() && members.labels.is_empty(),
        "nothing is kept of who has gone"
    );
}
