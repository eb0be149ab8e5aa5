//! Settings that change while requests run: all of them or none, and no request is hurt.

use super::client::{chat, get, post, streamed};
use super::tenants::File;
use super::worker::{Act, Worker, begun, gate, ok};
use super::world::{World, eventually, in_time};
use homing_core::fleet::State;
use std::sync::{Arc, Mutex};

type Text = Arc<Mutex<String>>;

fn text(of: &str) -> Text {
    Arc::new(Mutex::new(of.to_owned()))
}

fn worker(w: &Worker) -> String {
    format!("[[workers]]\nid = '{}'\nurl = '{}'\n", w.name, w.url)
}

async fn ready(world: &World, name: &str) {
    eventually("it is ready", || world.state(name) == Some(State::Ready)).await;
}

async fn reload(world: &World) -> (u16, serde_json::Value) {
    world.api(b"POST /admin/reload HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").await
}

#[tokio::test]
async fn what_can_change_does_and_a_running_stream_goes_on() {
    let open = gate();
    let theirs = open.clone();
    let a = Worker::start("a", move |_| {
        let end = [Act::Hold(theirs.clone()), Act::Send(super::worker::LAST.into())];
        [begun(&[b"data: 1\n\n"]), end.to_vec()].concat()
    })
    .await;
    let b = Worker::start("b", |_| ok()).await;
    let settings = text(&worker(&a));
    let world = World::reloadable(settings.clone()).await;
    ready(&world, "a").await;
    let mut client = world.client().await;
    client.send(&streamed(&[])).await;
    let mut answer = client.head().await;
    client.until(&mut answer, b"data: 1").await;

    *settings.lock().unwrap() = format!("gateway.max_body = '2KiB'\n{}", worker(&b));
    let (status, said) = reload(&world).await;
    assert_eq!(status, 200, "{said}");
    let changed = said["changed"].to_string();
    assert!(
        changed.contains("gateway.max_body") && changed.contains("workers[0].url"),
        "{changed}"
    );
    ready(&world, "b").await;
    eventually("a has departed", || world.state("a").is_none()).await;
    assert_eq!(world.ask(&chat(&[])).await.worker(), "b");
    let large = post("/v1/chat/completions", &[], &[b' '; 3000]);
    world.ask(&large).await.assert_refused(413, "body_too_large", "none");
    open.add_permits(1);
    in_time("the end", client.rest(&mut answer)).await;
    assert!(answer.clean, "a departed worker's streams finish");
    let (_, config) = world.api(&get("/admin/config")).await;
    let one = config.as_array().unwrap().iter().find(|line| line["key"] == "gateway.max_body");
    let one = one.unwrap();
    assert_eq!(one["value"], "\"2KiB\"");
    assert!(one["origin"].as_str().unwrap().contains("test.toml"), "{one}");
    world.end().await;
}

#[tokio::test]
async fn what_cannot_change_is_refused_whole() {
    let a = Worker::start("a", |_| ok()).await;
    let settings = text(&worker(&a));
    let world = World::reloadable(settings.clone()).await;
    ready(&world, "a").await;
    for (bad, says) in [
        ("gateway.max_body = '2KiB'\naffinity.ttl = '1m'\n", "affinity.ttl can't change"),
        ("gateway.max_body = '2KiB'\nretry.atempts = 1\n", "retry.attempts"),
        ("gateway.max_body = '2KiB'\ngateway.api_keys_file = '/nowhere/keys'\n", "/nowhere/keys"),
        ("gateway.max_body = '2KiB'\nadmin.token_file = '/nowhere/tokens'\n", "/nowhere/tokens"),
        ("= nonsense", "not TOML"),
    ] {
        *settings.lock().unwrap() = format!("{bad}{}", worker(&a));
        let (status, said) = reload(&world).await;
        let message = said["error"]["message"].as_str().unwrap();
        assert_eq!(status, 409);
        assert!(message.contains(says), "{message}");
        let body = format!("{{\"model\":\"m\",\"messages\":[],\"x\":\"{}\"}}", "x".repeat(3000));
        let answer = world.ask(&post("/v1/chat/completions", &[], body.as_bytes())).await;
        assert_eq!(answer.status, 200, "nothing has changed: {bad}");
    }
    world.end().await;
}

#[tokio::test]
async fn keys_are_read_again_when_their_file_changes() {
    let a = Worker::start("a", |_| ok()).await;
    let file = File::new("t:the-first-key\n");
    let settings = text(&format!("gateway.api_keys_file = {}\n{}", file.quoted(), worker(&a)));
    let world = World::reloadable(settings.clone()).await;
    ready(&world, "a").await;
    let by = |key| chat(&[("x-api-key", key)]);
    assert_eq!(world.ask(&by("the-first-key")).await.status, 200);
    file.write("t:a-second-one\n");
    assert_eq!(reload(&world).await.0, 200, "though no setting has changed");
    assert_eq!(world.ask(&by("the-first-key")).await.status, 401);
    assert_eq!(world.ask(&by("a-second-one")).await.status, 200);
    file.write("spoiled");
    assert_eq!(reload(&world).await.0, 409);
    assert_eq!(world.ask(&by("a-second-one")).await.status, 200, "what it said before stands");
    file.write("t:the-third-key-by-itself\n");
    in_time("it is seen", async {
        while world.ask(&by("the-third-key-by-itself")).await.status != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    world.end().await;
}

#[tokio::test]
async fn operators_log_in_where_there_are_tokens() {
    let a = Worker::start("a", |_| ok()).await;
    let file = File::new("read:may-only-look\noperate:may-touch-too\n");
    let settings = text(&format!("admin.token_file = {}\n{}", file.quoted(), worker(&a)));
    let world = World::reloadable(settings.clone()).await;
    ready(&world, "a").await;
    let with = |method: &str, path: &str, token: &str| {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: any.name.example\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let world = &world;
        async move { world.admin(request.as_bytes()).await.status }
    };
    for path in
        ["/metrics", "/admin/workers", "/admin/config", "/admin/decisions", "/admin/sessions"]
    {
        assert_eq!(with("GET", path, "wrong-token").await, 401, "{path}");
        assert_eq!(world.admin(&get(path)).await.status, 401, "{path}");
        assert_eq!(with("GET", path, "may-only-look").await, 200, "{path}");
        assert_eq!(with("GET", path, "may-touch-too").await, 200, "{path}");
    }
    for path in ["/health", "/ready"] {
        assert_eq!(world.admin(&get(path)).await.status, 200);
    }
    assert_ne!(with("POST", "/admin/preview", "may-only-look").await, 403, "a question");
    for (method, path) in [
        ("POST", "/admin/workers/a/drain"),
        ("DELETE", "/admin/workers/a"),
        ("POST", "/admin/reload"),
    ] {
        assert_eq!(with(method, path, "may-only-look").await, 403, "{path}");
        assert_eq!(with(method, path, "nobodys").await, 401, "{path}");
    }
    assert_eq!(world.state("a"), Some(State::Ready), "nothing was touched");
    assert_eq!(with("POST", "/admin/workers/a/drain", "may-touch-too").await, 200);
    world.end().await;
}

#[tokio::test]
async fn a_web_page_changes_nothing_though_it_asks_by_address() {
    let a = Worker::start("a", |_| ok()).await;
    let world = World::start(&[], &[&a]).await;
    let drain = |more: &str| {
        let request = format!(
            "POST /admin/workers/a/drain HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}content-length: 0\r\n\r\n"
        );
        let world = &world;
        async move { world.admin(request.as_bytes()).await.status }
    };
    for page in
        ["origin: https://evil.example\r\n", "sec-fetch-site: cross-site\r\n", "origin: null\r\n"]
    {
        assert_eq!(drain(page).await, 403, "{page}");
    }
    assert_eq!(world.told("a").await, "ready");
    assert_eq!(drain("sec-fetch-site: none\r\n").await, 200, "somebody's own hands");
    world.end().await;
}
