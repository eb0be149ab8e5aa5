//! HTTP/2 in the clear, by prior knowledge, on the port that HTTP/1.1 has too.

use super::client::streamed;
use super::worker::{Act, LAST, Worker, begun, chunk, gate, ok, stall, stream};
use super::world::{World, eventually, in_time};
use bytes::Bytes;
use homing_core::fleet::State;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A client's side of one connection.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Begins over a connection; the task ends with it.
pub(super) async fn over<I>(io: I) -> (Sender, JoinHandle<hyper::Result<()>>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    // One answer can be left alone while others are read.
    builder.initial_stream_window_size(64 << 10).initial_connection_window_size(64 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(io)).await.unwrap();
    (sender, tokio::spawn(connection))
}

async fn connect(address: SocketAddr) -> Sender {
    over(TcpStream::connect(address).await.unwrap()).await.0
}

impl World {
    pub(super) async fn http2(&self) -> Sender {
        connect(self.server.gateway_address().unwrap()).await
    }
}

/// A chat, with these headers.
pub(super) fn chat(streams: bool, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let body = format!(r#"{{"model":"m","stream":{streams},"messages":[]}}"#);
    let mut request = Request::post("http://router.example/v1/chat/completions?beta=true");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let body = in_time("the body", response.into_body().collect()).await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

#[tokio::test]
async fn a_request_by_http2_is_one_like_any_other_to_its_worker() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.http2().await;
    let request = chat(
        false,
        &[
            ("x-homing-session-id", "s"),
            ("cookie", "a=1"),
            ("cookie", "b=2; c=3"),
            ("te", "trailers"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=203.0.113.7"),
            ("x-twice", "1"),
            ("x-twice", "2"),
        ],
    );
    let answer = in_time("an answer", client.send_request(request)).await.unwrap();
    assert_eq!((answer.status(), answer.version()), (StatusCode::OK, Version::HTTP_2));
    let said = |name: &str, headers: &HeaderMap| headers[name].to_str().unwrap().to_owned();
    assert_eq!(said("x-homing-affinity", answer.headers()), "new");
    assert_eq!(text(answer).await, r#"{"id":"x","choices":[]}"#);
    let asked = worker.only().await;
    assert_eq!(asked.line, "POST /v1/chat/completions?beta=true HTTP/1.1");
    let host = worker.url.strip_prefix("http://").unwrap();
    assert_eq!(asked.header("host"), [host.as_bytes()]);
    assert_eq!(asked.header("cookie"), [b"a=1; b=2; c=3"]);
    assert_eq!(asked.header("te"), [b""; 0]);
    assert!(asked.headers.iter().all(|(name, _)| !name.starts_with(':')));
    assert_eq!(asked.header("x-forwarded-for"), [b"203.0.113.7"]);
    assert_eq!(asked.header("x-forwarded-proto"), [b"https"]);
    assert_eq!(asked.header("forwarded"), [b"for=203.0.113.7"]);
    assert_eq!(asked.header("x-twice"), [b"1", b"2"]);
    // HTTP/1.1 is on the same port, and the session is one.
    let other = world.ask(&super::client::turn("s")).await;
    assert_eq!((other.status, other.affinity()), (200, "hit"));
    world.end().await;
}

#[tokio::test]
async fn what_the_router_answers_itself_it_answers_by_http2_too() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.http2().await;
    let mut ask = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(format!("http://router{path}"));
        let request = request.body(Full::default()).unwrap();
        in_time("an answer", client.send_request(request)).await.unwrap()
    };
    let health = ask(Method::GET, "/health").await;
    assert_eq!((health.status(), text(health).await.as_str()), (StatusCode::OK, "ok"));
    let head = ask(Method::HEAD, "/health").await;
    assert_eq!(head.status(), StatusCode::OK);
    assert_eq!(head.headers()["content-length"], "2");
    assert_eq!(text(head).await, "");
    let models = ask(Method::GET, "/v1/models").await;
    assert!(text(models).await.contains("\"m\""));
    assert_eq!(ask(Method::GET, "/v1/chat/completions").await.status(), 405);
    assert_eq!(ask(Method::CONNECT, "").await.status(), 404);
    let late = ask(Method::POST, "/v1/messages").await;
    assert_eq!(late.status(), StatusCode::BAD_REQUEST);
    world.end().await;
}

#[tokio::test]
async fn many_streams_go_through_one_connection() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |asked| {
        let name = String::from_utf8(asked.header("x-name")[0].to_vec()).unwrap();
        let mut acts = begun(&[format!("data: {name}\n\n").as_bytes()]);
        acts.extend([Act::Hold(held.clone()), Act::Send(chunk(b"data: end\n\n"))]);
        acts.push(Act::Send(LAST.into()));
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let client = world.http2().await;
    let mut answers = Vec::new();
    for n in 0..100 {
        let mut client = client.clone();
        let request = chat(true, &[("x-name", &n.to_string())]);
        answers.push(tokio::spawn(async move { client.send_request(request).await.unwrap() }));
    }
    eventually("all are at work", || worker.busy() == 100).await;
    open.add_permits(100);
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = in_time("a head", answer).await.unwrap();
        assert_eq!(text(answer).await, format!("data: {n}\n\ndata: end\n\n"));
    }
    world.end().await;
}

#[tokio::test]
async fn f46_a_stream_that_breaks_is_told_and_ended_alone() {
    let worker = Worker::start("w", |asked| match asked.header("x-break").is_empty() {
        true => stream(&[b"data: 1\n\n"]),
        false => {
            let mut acts = begun(&[b"data: 1\n\ndata: {\"to"]);
            acts.push(Act::Close);
            acts
        }
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.http2().await;
    for _ in 0..20 {
        let broken = client.send_request(chat(true, &[("x-break", "1")]));
        let mut broken = in_time("a head", broken).await.unwrap().into_body();
        let mut seen = Vec::new();
        let error = loop {
            match in_time("a frame", broken.frame()).await {
                Some(Ok(frame)) => seen.extend_from_slice(frame.data_ref().unwrap()),
                Some(Err(error)) => break error,
                None => panic!("a clean end of {:?}", String::from_utf8_lossy(&seen)),
            }
        };
        assert!(error.to_string().contains("stream") || !error.is_closed(), "{error:?}");
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.starts_with("data: 1\n\ndata: {\"error\""), "{seen}");
        assert!(seen.ends_with("\n\n") && seen.contains("worker_error"), "{seen}");
        // The connection is as good as before.
        let whole = in_time("a head", client.send_request(chat(true, &[]))).await.unwrap();
        assert_eq!(text(whole).await, "data: 1\n\n");
    }
    world.end().await;
}

#[tokio::test]
async fn f40_a_stream_that_its_client_gives_up_frees_its_worker_and_no_other() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |asked| match asked.header("x-wait").is_empty() {
        true => vec![Act::Hold(held.clone())].into_iter().chain(ok()).collect(),
        false => vec![stall()],
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.http2().await;
    let mut other = client.clone();
    let stays = tokio::spawn(async move { other.send_request(chat(false, &[])).await });
    for (n, streams) in [false, true].into_iter().enumerate() {
        let given_up = tokio::spawn(client.send_request(chat(streams, &[("x-wait", "1")])));
        eventually("both are at work", || worker.busy() == 2).await;
        given_up.abort();
        eventually("one is left", || worker.left() == n + 1 && worker.busy() == 1).await;
    }
    open.add_permits(1);
    let answer = in_time("the other's answer", stays).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(world.state("w"), Some(State::Ready));
    // A connection that goes away takes all of its requests along.
    let address = world.server.gateway_address().unwrap();
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let socket = stream.try_clone().unwrap();
    let (mut gone, _connection) = over(TcpStream::from_std(stream).unwrap()).await;
    for _ in 0..3 {
        tokio::spawn(gone.send_request(chat(true, &[("x-wait", "1")])));
    }
    eventually("three are at work", || worker.busy() == 3).await;
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    eventually("none is", || worker.busy() == 0 && worker.left() == 5).await;
    world.end().await;
}

#[tokio::test]
async fn f49_a_client_that_takes_nothing_of_one_answer_holds_its_worker_for_its_time_alone() {
    let event = [b"data: ".as_slice(), &vec![b'x'; 64 << 10], b"\n\n"].concat();
    let piece = chunk(&event);
    let worker = Worker::start("w", move |asked| match asked.header("x-flood").is_empty() {
        true => ok(),
        false => {
            let mut acts = begun(&[b"data: 1\n\n"]);
            acts.extend([Act::Flood(piece.clone(), 1 << 10), Act::Send(LAST.into())]);
            acts
        }
    })
    .await;
    let world = World::start(&[("gateway.request_timeout", "'1s'")], &[&worker]).await;
    let mut client = world.http2().await;
    let flood = client.send_request(chat(true, &[("x-flood", "1")]));
    let untouched = in_time("a head", flood).await.unwrap();
    // The connection doesn't stand still: others' answers come.
    let answer = in_time("an answer", client.send_request(chat(false, &[]))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    eventually("the worker is free", || worker.busy() == 0 && worker.left() == 1).await;
    assert!(worker.flooded() < 48 << 20, "F49: {}", worker.flooded());
    world.quiet().await;
    let answer = in_time("an answer", client.send_request(chat(false, &[]))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    drop(untouched);
    world.end().await;
}

#[tokio::test]
async fn a_router_that_stops_lets_streams_finish_and_begins_no_more() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend([Act::Hold(held.clone()), Act::Send(chunk(b"data: 2\n\n"))]);
        acts.push(Act::Send(LAST.into()));
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let (mut client, connection) = over(TcpStream::connect(address).await.unwrap()).await;
    let idle = over(TcpStream::connect(address).await.unwrap()).await;
    let answer = in_time("a head", client.send_request(chat(true, &[]))).await.unwrap();
    let ended = tokio::spawn(world.server.shut_down());
    // Whoever was not accepted yet is reset with the port.
    let _ = in_time("the idle connection's end", idle.1).await.unwrap();
    assert!(!ended.is_finished());
    open.add_permits(1);
    assert_eq!(text(answer).await, "data: 1\n\ndata: 2\n\n");
    in_time("the connection's end", connection).await.unwrap().unwrap();
    assert!(in_time("the end", ended).await.unwrap(), "nothing was cut off");
}

#[tokio::test]
async fn what_begins_like_http2_and_is_none_gets_nowhere() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    for bytes in [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand no frame at all, but this".as_slice(),
        b"PRI * HTTP/2.0\r\n\r\n",
        b"PRI / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI",
        b"",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = Vec::new();
        let _ = in_time("the end", stream.read_to_end(&mut all)).await;
    }
    // A request in pieces of one byte is one of HTTP/1.1 all the same.
    let mut client = world.client().await;
    for byte in streamed(&[]) {
        client.send(&[byte]).await;
    }
    assert_eq!(in_time("an answer", client.answer()).await.status, 200);
    world.end().await;
}
