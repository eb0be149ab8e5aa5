//! Paths besides those that generate: embeddings, those that an operator lets through, other names for models.

use super::client::{get, post};
use super::worker::{Worker, ok, plain};
use super::world::World;

const TWO: &str = r#"{"data":[{"id":"m"},{"id":"emb"}]}"#;

#[tokio::test]
async fn embeddings_go_by_load_and_touch_no_session() {
    let (a, b) = (Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await);
    let world = World::start(&[("routing.policy", "'round_robin'")], &[&a, &b]).await;
    let body = br#"{"model":"m","input":["one","two"]}"#;
    for _ in 0..4 {
        let answer =
            world.ask(&post("/v1/embeddings", &[("x-homing-session-id", "s")], body)).await;
        assert_eq!((answer.status, answer.affinity()), (200, "none"));
    }
    assert_eq!((a.asked().await.len(), b.asked().await.len()), (2, 2));
    assert_eq!(a.asked().await[0].body, body);
    assert_eq!(world.stats().bindings, 0);
    assert_eq!(world.ask(&get("/v1/embeddings")).await.status, 405);
    world.end().await;
}

#[tokio::test]
async fn only_listed_paths_pass() {
    let a = Worker::at("a", "", TWO, |_| ok()).await;
    let world =
        World::start(&[("gateway.pass_through", "['/v1/rerank', '/v1/audio/x']")], &[&a]).await;
    let body = br#"{"model":"emb","query":"q","documents":[]}"#;
    let answer = world.ask(&post("/v1/rerank?x=1", &[], body)).await;
    assert_eq!((answer.status, answer.worker()), (200, "a"));
    let asked = a.only().await;
    assert_eq!((asked.line.as_str(), &asked.body[..]), ("POST /v1/rerank?x=1 HTTP/1.1", &body[..]));
    for path in ["/v1/rerank/", "/v1/rerank2", "/sleep", "/v1/load_lora_adapter"] {
        world.ask(&post(path, &[], body)).await.assert_refused(404, "not_found", "none");
    }
    // What names no model in its body may name it in its path; else one must be the only one.
    let form = b"--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nemb\r\n--x--\r\n";
    let kind = [("content-type", "multipart/form-data; boundary=x")];
    let answer = world.ask(&post("/v1/audio/x?model=emb", &kind, form)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(a.asked().await[1].body, form);
    let answer = world.ask(&post("/v1/audio/x", &kind, form)).await;
    answer.assert_refused(400, "invalid_request", "none");
    assert!(answer.text().contains("?model="));
    let answer = world.ask(&post("/v1/audio/x?model=nobody", &kind, form)).await;
    answer.assert_refused(404, "model_not_found", "none");
    world.end().await;
}

#[tokio::test]
async fn a_path_that_is_read_passes_to_the_only_model_that_there_is() {
    let a = Worker::start("a", |_| ok()).await;
    let world = World::start(&[("gateway.pass_through", "['/v1/audio/x']")], &[&a]).await;
    let answer = world.ask(&post("/v1/audio/x", &[], b"\x00\xff no JSON")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(a.only().await.body, b"\x00\xff no JSON");
    world.end().await;
}

#[tokio::test]
async fn an_alias_is_replaced_and_nothing_else_is() {
    let a = Worker::start("a", |asked| {
        let echoed = String::from_utf8(asked.body.clone()).unwrap();
        vec![super::worker::Act::Send(plain(200, &echoed))]
    })
    .await;
    let models = "[[models]]\nname = 'm'\naliases = ['claude-x', 'gpt-y']\n";
    let world = World::start_with(&[], models, &[&a]).await;
    let body = "{\"messages\" : [ {\"role\":\"user\",\"content\":\"claude-x\\u00e9\"} ],\n \"model\":  \"claude-x\", \"z\": 1.50}";
    let want = body.replace("\"model\":  \"claude-x\"", "\"model\":  \"m\"");
    for path in ["/v1/chat/completions", "/v1/messages?beta=true", "/v1/embeddings"] {
        let answer = world.ask(&post(path, &[("x-homing-session-id", "s")], body.as_bytes())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.text(), want);
    }
    // The name and its aliases are one model: one session, one home.
    let direct = want.as_bytes();
    let answer =
        world.ask(&post("/v1/chat/completions", &[("x-homing-session-id", "s")], direct)).await;
    assert_eq!(answer.affinity(), "hit");
    assert_eq!(answer.text().as_bytes(), direct);
    let listed = world.ask(&get("/v1/models")).await;
    for name in ["\"m\"", "\"claude-x\"", "\"gpt-y\""] {
        assert!(listed.text().contains(name), "{}", listed.text());
    }
    world.end().await;
}

#[tokio::test]
async fn f38_what_is_only_read_does_not_go_to_the_first_worker() {
    let (first, second) =
        (Worker::start("first", |_| ok()).await, Worker::start("second", |_| ok()).await);
    let world = World::start(&[("gateway.pass_through", "['/v1/info']")], &[&first, &second]).await;
    first.die().await;
    for _ in 0..4 {
        let listed = world.ask(&get("/v1/models")).await;
        assert_eq!((listed.status, listed.text().contains("\"m\"")), (200, true));
        let answer = world.ask(&post("/v1/info?model=m", &[], b"")).await;
        assert_eq!((answer.status, answer.worker()), (200, "second"));
    }
    world.end().await;
}

#[tokio::test]
async fn a_model_that_came_up_since_it_was_asked_for_is_found() {
    let a = Worker::start("a", |_| ok()).await;
    // So seldom that it would not be seen in time.
    let world = World::start(&[("health.interval", "'1h'")], &[&a]).await;
    let ask = post("/v1/chat/completions", &[], br#"{"model":"new","messages":[]}"#);
    a.serves(r#"{"data":[{"id":"m"},{"id":"new","parent":"m"}]}"#).await;
    assert_eq!(world.ask(&ask).await.status, 200);
    let other = post("/v1/chat/completions", &[], br#"{"model":"nobodys","messages":[]}"#);
    world.ask(&other).await.assert_refused(404, "model_not_found", "none");
    world.end().await;
}
