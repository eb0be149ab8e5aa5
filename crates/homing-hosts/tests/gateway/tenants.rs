//! Who may come in, and what they may do: API keys, tenants, their rights and their limits.

use super::client::{Answer, chat, get, post, streamed};
use super::worker::{Act, Asked, Worker, gate, ok, plain, stream};
use super::world::{World, eventually, in_time};
use std::path::PathBuf;

const KEY: &str = "x-api-key";
/// Keys of the tenants `a` and `b`.
const A: &str = "key-of-tenant-a";
const B: &str = "key-of-tenant-b";

/// A file that goes when this does.
pub(super) struct File(PathBuf);

impl File {
    pub(super) fn new(text: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("homing-gateway-{}-{n}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(super) fn quoted(&self) -> String {
        format!("'{}'", self.0.display())
    }

    pub(super) fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn keys() -> File {
    File::new(&format!("# two tenants\na:{A}\nb:{B}\n"))
}

async fn keyed(file: &File, extra: &[(&str, &str)], tenants: &str, workers: &[&Worker]) -> World {
    let quoted = file.quoted();
    let mut all = vec![("gateway.api_keys_file", quoted.as_str())];
    all.extend_from_slice(extra);
    World::start_with(&all, tenants, workers).await
}

fn by(key: &str) -> Vec<u8> {
    chat(&[(KEY, key)])
}

#[tokio::test]
async fn who_has_no_key_is_told_so_and_nothing_runs() {
    let (file, a) = (keys(), Worker::start("a", |_| ok()).await);
    let world = keyed(&file, &[], "", &[&a]).await;
    for wrong in
        [chat(&[]), chat(&[(KEY, "guess-of-a-key")]), chat(&[("authorization", "Bearer x")])]
    {
        let answer = world.ask(&wrong).await;
        answer.assert_refused(401, "invalid_api_key", "none");
        assert_eq!(answer.header("www-authenticate"), ["Bearer"]);
    }
    assert_eq!(world.ask(&get("/v1/models")).await.status, 401);
    assert_eq!(world.ask(&get("/readyz")).await.status, 200, "probes need none");
    assert!(a.asked().await.is_empty());
    let messages = post("/v1/messages", &[], br#"{"model":"m","messages":[],"max_tokens":1}"#);
    let answer = world.ask(&messages).await;
    assert_eq!(answer.status, 401);
    assert!(
        answer.text().contains("\"authentication_error\""),
        "in its own shape: {}",
        answer.text()
    );
    world.end().await;
}

#[tokio::test]
async fn f67_keys_of_clients_pass_unless_they_are_ours() {
    let a = Worker::start("a", |_| ok()).await;
    let both = [("authorization", "Bearer key-of-tenant-a"), (KEY, "key-of-tenant-a")];
    let world = World::start(&[], &[&a]).await;
    world.ask(&chat(&both)).await;
    let asked = a.only().await;
    assert_eq!(asked.header("authorization"), [b"Bearer key-of-tenant-a"]);
    assert_eq!(asked.header(KEY), [b"key-of-tenant-a"]);
    world.end().await;

    let (file, b) = (keys(), Worker::start("b", |_| ok()).await);
    let world = keyed(&file, &[], "", &[&b]).await;
    assert_eq!(world.ask(&chat(&both)).await.status, 200);
    let asked = b.only().await;
    assert!(asked.header("authorization").is_empty() && asked.header(KEY).is_empty());
    world.end().await;
}

#[tokio::test]
async fn tenants_with_the_same_session_id_have_two_sessions() {
    let (file, a) = (keys(), Worker::start("a", |_| ok()).await);
    let world = keyed(&file, &[("gateway.response_headers", "'full'")], "", &[&a]).await;
    let turn = |key| chat(&[(KEY, key), ("x-homing-session-id", "s")]);
    assert_eq!(world.ask(&turn(A)).await.affinity(), "new");
    assert_eq!(world.ask(&turn(B)).await.affinity(), "new", "not the other's");
    assert_eq!(world.ask(&turn(A)).await.affinity(), "hit");
    let session = |tenant: &str| format!("/admin/sessions/s?model=m&tenant={tenant}");
    assert_eq!(world.api(&get(&session("a"))).await.0, 200);
    assert_eq!(world.api(&get(&session("c"))).await.0, 404);
    world.end().await;
}

#[tokio::test]
async fn where_tenants_exist_answers_say_nothing_of_workers() {
    let reveals = |answer: &Answer| {
        ["x-homing-worker", "x-homing-cached-tokens"].map(|name| answer.header(name).len())
    };
    let (file, a) = (keys(), Worker::start("a", |_| ok()).await);
    for (key, setting, tells) in
        [(true, "auto", 0), (true, "full", 1), (false, "auto", 1), (false, "minimal", 0)]
    {
        let setting = format!("'{setting}'");
        let extra =
            [("gateway.response_headers", setting.as_str()), ("index.source", "'approximate'")];
        let world = match key {
            true => keyed(&file, &extra, "", &[&a]).await,
            false => World::start(&extra, &[&a]).await,
        };
        let answer = world.ask(&by(A)).await;
        assert_eq!(reveals(&answer), [tells; 2], "{key} {setting}: {:?}", answer.headers);
        assert_eq!(answer.header("x-request-id").len(), 1);
        world.end().await;
    }
}

#[tokio::test]
async fn steering_is_for_those_who_may() {
    let (file, a) = (keys(), Worker::start("a", |_| ok()).await);
    let tenants = "[[tenants]]\nname = 'a'\nsteer = true\n";
    let steering = [
        ("x-homing-worker", "a"),
        ("x-homing-allowed-workers", "a"),
        ("x-homing-require-labels", "zone=x"),
        ("x-homing-priority", "3"),
        ("x-dynamo-worker-instance-id", "a"),
    ];
    for (setting, a_may, b_may) in
        [("all", true, true), ("trusted", true, false), ("off", false, false)]
    {
        let setting = format!("'{setting}'");
        let world = keyed(&file, &[("gateway.steering", &setting)], tenants, &[&a]).await;
        for (name, value) in steering {
            for (key, may) in [(A, a_may), (B, b_may)] {
                let answer = world.ask(&chat(&[(KEY, key), (name, value)])).await;
                match may {
                    true => assert_ne!(answer.status, 403, "{setting} {name}"),
                    false => answer.assert_refused(403, "not_allowed", "none"),
                }
            }
        }
        // The request's own fault comes first, whoever sends it: a rank without its worker means nothing.
        let answer = world.ask(&chat(&[(KEY, B), ("x-homing-dp-rank", "1")])).await;
        answer.assert_refused(400, "invalid_request", "none");
        let plain = [(KEY, B), ("x-homing-session-id", "s"), ("x-homing-affinity", "soft")];
        assert_eq!(world.ask(&chat(&plain)).await.status, 200, "sessions are everybody's");
        world.end().await;
    }
}

#[tokio::test]
async fn models_that_a_tenant_may_not_use_are_none_of_its_business() {
    let models = r#"{"data":[{"id":"m"},{"id":"other"}]}"#;
    let (file, a) = (keys(), Worker::at("a", "", models, |_| ok()).await);
    let tenants = "[[tenants]]\nname = 'a'\nmodels = ['m*']\n[[models]]\nname = 'other'\naliases = ['mine']\n";
    let world = keyed(&file, &[], tenants, &[&a]).await;
    let ask = |key, model: &str| {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        post("/v1/chat/completions", &[(KEY, key)], body.as_bytes())
    };
    assert_eq!(world.ask(&ask(A, "m")).await.status, 200);
    for model in ["other", "nobody-has-it"] {
        world.ask(&ask(A, model)).await.assert_refused(403, "not_allowed", "none");
    }
    assert_eq!(world.ask(&ask(A, "mine")).await.status, 200, "by the name in the request");
    assert_eq!(world.ask(&ask(B, "other")).await.status, 200);
    assert_eq!(world.ask(&ask(B, "nobody-has-it")).await.status, 404);
    let listed = |key| {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{KEY}: {key}\r\n\r\n");
        let world = &world;
        async move {
            let answer = world.ask(request.as_bytes()).await;
            let all: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            let all = all["data"].as_array().unwrap().iter();
            let mut all: Vec<_> = all.map(|m| m["id"].as_str().unwrap().to_owned()).collect();
            all.sort();
            all
        }
    };
    assert_eq!(listed(A).await, ["m", "mine"]);
    assert_eq!(listed(B).await, ["m", "mine", "other"]);
    world.end().await;
}

#[tokio::test]
async fn a_tenant_has_so_many_requests_at_a_time_and_gets_its_places_back() {
    let (file, open) = (keys(), gate());
    let theirs = open.clone();
    let script = move |_: &Asked| [vec![Act::Hold(theirs.clone())], ok()].concat();
    let a = Worker::start("a", script).await;
    let world = keyed(&file, &[("limits.concurrency", "2")], "", &[&a]).await;
    let mut held = Vec::new();
    for n in 1..=2 {
        let mut client = world.client().await;
        client.send(&by(A)).await;
        held.push(client);
        eventually("it runs", || a.busy() == n).await;
    }
    let refused = world.ask(&by(A)).await;
    refused.assert_refused(429, "rate_limited", "none");
    assert!(refused.text().contains("concurrency"));
    // A client that goes away gives its place back, too (F41).
    held.pop().unwrap().reset();
    eventually("the worker is told", || a.left() == 1).await;
    open.add_permits(2);
    assert_eq!(world.ask(&by(A)).await.status, 200);
    assert_eq!(in_time("the other", held[0].answer()).await.status, 200);
    world.end().await;
}

#[tokio::test]
async fn a_tenant_has_so_many_requests_and_tokens_a_minute() {
    let file = keys();
    let used = r#"{"id":"x","choices":[],"usage":{"prompt_tokens":500,"completion_tokens":200}}"#;
    let event = format!("data: {used}\n\n");
    let a = Worker::start("a", move |asked| match asked.body.windows(6).any(|w| w == b"stream") {
        true => stream(&[event.as_bytes(), b"data: [DONE]\n\n"]),
        false => vec![Act::Send(plain(200, used))],
    })
    .await;
    let tenants = "[[tenants]]\nname = 'b'\ntokens_per_minute = 600\n";
    let world = keyed(&file, &[("limits.requests_per_minute", "3")], tenants, &[&a]).await;
    for _ in 0..3 {
        assert_eq!(world.ask(&by(A)).await.status, 200);
    }
    let refused = world.ask(&by(A)).await;
    refused.assert_refused(429, "rate_limited", "none");
    assert!(refused.text().contains("requests_per_minute"));
    assert_eq!(world.ask(&streamed(&[(KEY, B)])).await.status, 200);
    eventually("it is paid", || world.stats().bookings == 0).await;
    let refused = world.ask(&by(B)).await;
    refused.assert_refused(429, "rate_limited", "none");
    assert!(refused.text().contains("tokens_per_minute"), "{}", refused.text());
    world.end().await;
}

#[tokio::test]
async fn a_body_that_is_read_otherwise_elsewhere_opens_no_model() {
    let models = r#"{"data":[{"id":"m"},{"id":"other"}]}"#;
    let (file, a) = (keys(), Worker::at("a", "", models, |_| ok()).await);
    let tenants = "[[tenants]]\nname = 'a'\nmodels = ['m']\n";
    let world = keyed(&file, &[("gateway.pass_through", "['/v1/rerank']")], tenants, &[&a]).await;
    for body in [
        r#"{"model":"other","x":NaN}"#,
        "\u{feff}{\"model\":\"other\"}",
        r#"[{"model":"other"}]"#,
        "--x\r\nmodel=other\r\n--x--",
        r#"{"model":"other","model":"m"}"#,
        r#"{"model":"m","m\u006fdel":"other"}"#,
    ] {
        for path in ["/v1/rerank?model=m", "/v1/chat/completions"] {
            let answer = world.ask(&post(path, &[(KEY, A)], body.as_bytes())).await;
            answer.assert_refused(403, "not_allowed", "none");
        }
        let answer = world.ask(&post("/v1/rerank?model=m", &[(KEY, B)], body.as_bytes())).await;
        assert_eq!(answer.status, 200, "who may use all of them may send anything: {body}");
    }
    assert_eq!(world.ask(&post("/v1/rerank?model=m", &[(KEY, A)], b"")).await.status, 200);
    world.end().await;
}
