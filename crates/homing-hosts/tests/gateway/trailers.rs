//! Trailers, both ways.

use super::http2::over;
use super::worker::{Act, STREAM, Worker, chunk, find, more, ok};
use super::world::{World, in_time};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum, x-homing-worker\r\n\r\n";
const END: &str = "0\r\nx-sum: 42\r\nx-homing-worker: forged\r\n\r\n";

/// A plain answer, and a stream whose last event has no end.
async fn worker() -> Worker {
    Worker::start("w", |asked| {
        let (head, piece) = match find(&asked.body, b"\"stream\":true") {
            None => (HEAD.to_owned(), b"{}".as_slice()),
            Some(_) => (
                STREAM.replace("\r\n\r\n", "\r\ntrailer: x-sum\r\n\r\n"),
                b"data: 1\n\ndata: 2".as_slice(),
            ),
        };
        vec![Act::Send(head.into()), Act::Send(chunk(piece)), Act::Send(END.into())]
    })
    .await
}

#[tokio::test]
async fn a_workers_trailers_reach_who_takes_them() {
    let worker = worker().await;
    let world = World::start(&[], &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let (mut client, _connection) = over(TcpStream::connect(address).await.unwrap()).await;
    for (streams, body) in [(false, "{}"), (true, "data: 1\n\ndata: 2")] {
        let request = super::http2::chat(streams, &[]);
        let answer = in_time("a head", client.send_request(request)).await.unwrap();
        assert_eq!(answer.headers()["x-homing-worker"], "w");
        let all = in_time("the body", answer.into_body().collect()).await.unwrap();
        let mut expected = HeaderMap::new();
        expected.insert("x-sum", "42".parse().unwrap());
        assert_eq!(all.trailers(), Some(&expected));
        assert_eq!(all.to_bytes(), body);
    }
    // By HTTP/1.1 whoever says that it takes them.
    for (te, expected) in
        [("te: trailers\r\nconnection: te\r\n", "0\r\nx-sum: 42\r\n\r\n"), ("", "0\r\n\r\n")]
    {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let body = r#"{"model":"m","messages":[]}"#;
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{te}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut came = Vec::new();
        in_time("the end", async {
            while find(&came, b"\r\n0\r\n").is_none_or(|at| !came[at + 2..].ends_with(b"\r\n\r\n"))
            {
                more(&mut stream, &mut came).await.unwrap();
            }
        })
        .await;
        assert!(came.ends_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&came));
    }
    world.end().await;
}

#[tokio::test]
async fn a_clients_trailers_reach_the_worker() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let last = async || worker.asked().await.pop().unwrap();
    let body = r#"{"model":"m","messages":[]}"#;
    let (size, sums) = (body.len(), ["42", "43"]);
    // By HTTP/1.1, where they are announced; what is ours ends here.
    let mut client = world.client().await;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\
         trailer: x-sum, x-homing-worker\r\n\r\n\
         {size:x}\r\n{body}\r\n0\r\nx-sum: {}\r\nx-homing-worker: w\r\n\r\n",
        sums[0]
    );
    client.send(request.as_bytes()).await;
    assert_eq!(in_time("an answer", client.answer()).await.status, 200);
    let by_http1 = last().await;
    // By HTTP/2, where a length may be told besides.
    let address = world.server.gateway_address().unwrap();
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut sum = HeaderMap::new();
    sum.insert("x-sum", sums[1].parse().unwrap());
    let sent = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(sum))));
    let request = Request::post("http://x/v1/chat/completions").header("content-length", size);
    let request = request.body(sent).unwrap();
    let answer = in_time("an answer", sender.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), 200);
    for (asked, sum) in [by_http1, last().await].into_iter().zip(sums) {
        assert_eq!(asked.header("transfer-encoding"), [b"chunked"]);
        assert_eq!(
            (asked.header("trailer"), asked.header("content-length")),
            (vec![b"x-sum".as_slice()], vec![])
        );
        let expected = format!("{size:X}\r\n{body}\r\n0\r\nx-sum: {sum}\r\n\r\n");
        assert_eq!(String::from_utf8(asked.body).unwrap(), expected);
    }
    // Without any a body has the length that it had.
    assert_eq!(world.ask(&super::client::chat(&[])).await.status, 200);
    let plain = last().await;
    assert_eq!(
        (plain.header("content-length"), plain.header("trailer")),
        (vec![b"27".as_slice()], vec![])
    );
    world.end().await;
}
