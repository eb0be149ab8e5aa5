//! How workers are reached: TLS, keys, sockets in the file system, names, and times of their own.

use super::client::{chat, streamed};
use super::fronts::{by_socket, by_tls, quoted, server, temporary};
use super::worker::{Act, STREAM, Worker, ok, stall, stream};
use super::world::{World, eventually, in_time};
use bytes::Bytes;
use homing_core::fleet::State;
use homing_hosts::StartError;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn f67_workers_by_tls_with_a_private_ca_and_a_base_path() {
    let script = |_: &super::worker::Asked| stream(&[b"data: 1\n\n"]);
    let mut worker = Worker::at("w", "/base", r#"{"data":[{"id":"m"}]}"#, script).await;
    by_tls(&mut worker, server("server", false, &["http/1.1"])).await;
    let ca = quoted("ca.pem");
    let world = World::start(&[("upstream.ca_file", &ca)], &[&worker]).await;
    for _ in 0..3 {
        let answer = world.ask(&streamed(&[])).await;
        assert_eq!((answer.status, answer.text(), answer.clean), (200, "data: 1\n\n", true));
    }
    let asked = worker.asked().await.remove(0);
    assert_eq!(asked.line, "POST /base/v1/chat/completions HTTP/1.1");
    let host = worker.url.strip_prefix("https://").unwrap().strip_suffix("/base").unwrap();
    assert_eq!(asked.header("host"), [host.as_bytes()]);
    world.end().await;
}

#[tokio::test]
async fn a_worker_whose_certificate_nobody_vouches_for_gets_nothing() {
    let mut good = Worker::start("good", |_| ok()).await;
    by_tls(&mut good, server("server", false, &[])).await;
    let mut bad = Worker::start("bad", |_| ok()).await;
    by_tls(&mut bad, server("stranger", false, &[])).await;
    let own = format!("ca_file = {}", quoted("ca.pem"));
    let world = World::cold_as(&[], &[(&good, &own), (&bad, &own)]).await;
    eventually("the good one is ready", || world.state("good") == Some(State::Ready)).await;
    eventually("the bad one is not", || world.state("bad") == Some(State::Down)).await;
    for _ in 0..4 {
        let answer = world.ask(&chat(&[])).await;
        assert_eq!((answer.status, answer.worker()), (200, "good"));
    }
    assert_eq!((bad.asked().await.len(), bad.looks().await.len()), (0, 0));
    world.end().await;
}

#[tokio::test]
async fn a_worker_that_asks_for_a_certificate_is_shown_one() {
    let mut worker = Worker::start("w", |_| ok()).await;
    by_tls(&mut worker, server("server", true, &[])).await;
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(quoted);
    let own = format!("ca_file = {ca}\ncert_file = {cert}\nkey_file = {key}");
    let world = World::start_as(&[], &[(&worker, &own)]).await;
    assert_eq!(world.ask(&chat(&[])).await.status, 200);
    world.end().await;
}

/// What a worker that speaks HTTP/2 has seen.
#[derive(Default)]
struct Seen {
    /// Connections that have carried a chat.
    connections: AtomicUsize,
    chats: AtomicUsize,
}

/// One connection of them.
struct Connection {
    seen: Arc<Seen>,
    chats: AtomicUsize,
}

async fn answer(
    by: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!((request.version(), request.headers().get("host")), (Version::HTTP_2, None));
    let said = match request.uri().path() {
        "/health" => String::new(),
        "/v1/models" => r#"{"data":[{"id":"m"}]}"#.to_owned(),
        "/v1/chat/completions" => {
            by.seen.chats.fetch_add(1, Ordering::SeqCst);
            if by.chats.fetch_add(1, Ordering::SeqCst) == 0 {
                by.seen.connections.fetch_add(1, Ordering::SeqCst);
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            format!("{{\"bytes\":{}}}", body.len())
        }
        _ => return Ok(Response::builder().status(404).body(Full::default()).unwrap()),
    };
    Ok(Response::new(Full::new(said.into())))
}

#[tokio::test]
async fn a_worker_that_prefers_http2_gets_it() {
    let mut worker = Worker::start("w", |_| ok()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    worker.url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let acceptor = TlsAcceptor::from(server("server", false, &["h2", "http/1.1"]));
    let seen = Arc::new(Seen::default());
    let theirs = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, seen) = (acceptor.clone(), theirs.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let by = Arc::new(Connection { seen, chats: AtomicUsize::new(0) });
                let service = service_fn(move |request| answer(by.clone(), request));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let ca = quoted("ca.pem");
    let world = World::start(&[("upstream.ca_file", &ca)], &[&worker]).await;
    // One client: one thread of the router, and its pool.
    let mut client = world.client().await;
    for _ in 0..10 {
        let answer = in_time("an answer", client.ask(&chat(&[]))).await;
        assert_eq!((answer.status, answer.text()), (200, "{\"bytes\":27}"));
    }
    assert_eq!(seen.chats.load(Ordering::SeqCst), 10);
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
    world.end().await;
}

#[tokio::test]
async fn f67_our_key_replaces_the_clients_everywhere() {
    let [a, b] = [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await];
    let plain = Worker::start("plain", |_| ok()).await;
    let (common, own) = (temporary("common.key"), temporary("own.key"));
    std::fs::write(&common, "sk-common\n").unwrap();
    std::fs::write(&own, "sk-own").unwrap();
    let all = format!("'{}'", common.display());
    let theirs = format!("api_key_file = '{}'", own.display());
    let settings = [("upstream.api_key_file", all.as_str())];
    let world = World::start_as(&settings, &[(&a, ""), (&b, &theirs)]).await;
    let clients = [("authorization", "Bearer sk-client"), ("x-api-key", "sk-client")];
    for (worker, key) in [(&a, "Bearer sk-common"), (&b, "Bearer sk-own")] {
        let target = ("x-homing-worker", worker.name);
        let request = chat(&[target, clients[0], clients[1]]);
        assert_eq!(world.ask(&request).await.status, 200);
        let asked = worker.only().await;
        assert_eq!(asked.header("authorization"), [key.as_bytes()]);
        assert_eq!(asked.header("x-api-key"), [b""; 0]);
        let looks = worker.looks().await;
        for path in ["/health", "/v1/models", "/metrics"] {
            let line = format!("GET {path} HTTP/1.1");
            let look = looks.iter().find(|look| look.line == line).expect(path);
            assert_eq!(look.header("authorization"), [key.as_bytes()], "{path}");
        }
    }
    let (_, shown) = world.api(&super::client::get("/admin/workers")).await;
    assert!(!shown.to_string().contains("sk-"), "{shown}");
    world.end().await;
    // Without one of ours the client's pass.
    let world = World::start(&[], &[&plain]).await;
    assert_eq!(world.ask(&chat(&clients)).await.status, 200);
    let asked = plain.only().await;
    assert_eq!(asked.header("authorization"), [b"Bearer sk-client"]);
    assert_eq!(asked.header("x-api-key"), [b"sk-client"]);
    world.end().await;
    // A key that can't be one is no router, and is not repeated.
    for (text, why) in
        [("two words", "holds no key"), ("", "holds no key"), ("k\u{e9}y", "holds no key")]
    {
        std::fs::write(&own, text).unwrap();
        let failed = World::fails_as(&[], &[(&plain, &theirs)]).await;
        assert!(matches!(failed, StartError::Upstream(_)), "{failed}");
        let said = failed.to_string();
        assert!(said.contains("worker `plain`: `api_key_file`") && said.contains(why), "{said}");
        assert!(text.is_empty() || !said.contains(text), "{said}");
    }
    std::fs::remove_file(&own).unwrap();
    let failed = World::fails_as(&[], &[(&plain, &theirs)]).await.to_string();
    assert!(failed.contains("can't be read"), "{failed}");
    std::fs::remove_file(&common).unwrap();
}

#[tokio::test]
async fn a_worker_on_a_socket_in_the_file_system() {
    let mut worker = Worker::start("w", |_| ok()).await;
    let path = by_socket(&mut worker);
    let world = World::start(&[], &[&worker]).await;
    for _ in 0..3 {
        assert_eq!(world.ask(&chat(&[])).await.status, 200);
    }
    assert_eq!(worker.asked().await[0].header("host"), [b"localhost"]);
    // Nobody is there without it, which is as good as a refused connection.
    std::fs::remove_file(&path).unwrap();
    eventually("the worker is down", || world.state("w") == Some(State::Down)).await;
    assert_eq!(world.ask(&chat(&[])).await.status, 503);
    world.end().await;
}

#[tokio::test]
async fn every_address_of_a_name_is_a_worker() {
    let mut worker = Worker::start("pool", |_| ok()).await;
    let port = worker.url.rsplit_once(':').unwrap().1.to_owned();
    worker.url = format!("dns://localhost:{port}");
    let world = World::cold(&[], &[&worker]).await;
    let id = format!("pool-127.0.0.1:{port}");
    eventually("it is ready", || world.state(&id) == Some(State::Ready)).await;
    let answer = world.ask(&chat(&[])).await;
    assert_eq!((answer.status, answer.worker()), (200, id.as_str()));
    world.end().await;
}

#[tokio::test]
async fn a_worker_has_times_of_its_own() {
    let silent = Worker::start("silent", |_| vec![Act::Send(STREAM.into()), stall()]).await;
    let stuck = Worker::start("stuck", |_| {
        let mut acts = super::worker::begun(&[b"data: 1\n\n"]);
        acts.push(stall());
        acts
    })
    .await;
    let own = [(&silent, "first_token_timeout = '1s'"), (&stuck, "idle_timeout = '1s'")];
    let world = World::start_as(&[], &own).await;
    let late = world.ask(&streamed(&[("x-homing-worker", "silent")])).await;
    assert_eq!((late.status, late.code().as_str()), (504, "timeout"));
    let cut = world.ask(&streamed(&[("x-homing-worker", "stuck")])).await;
    assert!(!cut.clean && cut.text().contains("timeout"), "{}", cut.text());
    world.end().await;
}
