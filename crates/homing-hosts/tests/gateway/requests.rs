//! What a worker gets is what the client sent: the body byte for byte, the path with its query, the
//! headers but for those that end here.

use super::client::{chat, post};
use super::worker::{Worker, find, ok};
use super::world::{World, in_time};

/// Bodies that a parser and a writer in between would change.
const ODD: [&str; 8] = [
    r#"{"model":"m","messages":[]}"#,
    "  {\t\"model\" :\r\n\"m\" , \"messages\":[ ] ,\"unknown\":{\"deep\":[1.0,1e5,-0,1E-7]}}\n ",
    r#"{"model":"\u006d","messages":[{"role":"user","content":"\u00e9\ud83d\ude00\/é😀"}]}"#,
    r#"{"messages":[1],"model":"x","messages":[],"model":"m"}"#,
    r#"{"model":"m","messages":[],"max_tokens":123456789012345678901234567890}"#,
    r#"{"model":"m","messages":[],"temperature":0.10000000000000000000001,"z":null,"a":null}"#,
    r#"{"model":"m","messages":[],"":{"":""},"stop":["\n","data: [DONE]\n\n"]}"#,
    "{\"model\":\"m\",\"messages\":[],\"metadata\":{\"user_id\":\"{\\\"session_id\\\":7}\"}}",
];

/// A body of this length.
fn long(length: usize) -> Vec<u8> {
    let (head, tail) = (br#"{"model":"m","messages":[{"content":""#, br#""}]}"#);
    let filling = (0u8..=255).filter(|b| b.is_ascii_alphanumeric()).cycle();
    let filling = filling.take(length - head.len() - tail.len());
    head.iter().copied().chain(filling).chain(tail.iter().copied()).collect()
}

/// The same request with its body in chunks of `size`.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\n\
                        transfer-encoding: chunked\r\n\r\n"
        .to_vec();
    for (i, piece) in body.chunks(size).enumerate() {
        let extension = if i == 0 { ";ext=\"1\"" } else { "" };
        request.extend(format!("{:X}{extension}\r\n", piece.len()).into_bytes());
        request.extend(piece);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\nx-trailer: ignored\r\n\r\n");
    request
}

#[tokio::test]
async fn f60_a_body_reaches_the_worker_byte_for_byte() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let mut bodies: Vec<Vec<u8>> = ODD.iter().map(|b| b.as_bytes().to_vec()).collect();
    bodies.extend([1 << 10, 4095, 4096, 4097, 65_535, 300_000, 1 << 20, 2 << 20].map(long));
    let mut client = world.client().await;
    for body in &bodies {
        for chunk in [0, 1, 7, 8192, 1 << 20] {
            if chunk > 0 && body.len() / chunk > 100_000 {
                continue;
            }
            let request = match chunk {
                0 => post("/v1/chat/completions", &[], body),
                n => chunked(body, n),
            };
            let answer = in_time("an answer", client.ask(&request)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            let asked = worker.asked().await.pop().unwrap();
            assert_eq!(asked.body.len(), body.len());
            assert!(asked.body == *body, "a body of {} bytes was changed", body.len());
            assert_eq!(asked.header("content-length"), [body.len().to_string().as_bytes()]);
            assert!(asked.header("transfer-encoding").is_empty());
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_body_may_come_in_pieces_and_after_100_continue() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let body = long(5000);
    let request = post("/v1/chat/completions", &[("expect", "100-continue")], &body);
    let mut client = world.client().await;
    let head = find(&request, b"\r\n\r\n").unwrap() + 4;
    client.send(&request[..head]).await;
    assert_eq!(in_time("the go-ahead", client.head()).await.status, 100);
    for piece in request[head..].chunks(1000) {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(in_time("an answer", client.answer()).await.status, 200);
    let asked = worker.only().await;
    assert!(asked.body == body);
    assert!(asked.header("expect").is_empty(), "the expectation is met here");
    world.end().await;
}

#[tokio::test]
async fn f51_method_path_and_query_are_kept() {
    let worker = Worker::at("w", "/base/path", r#"{"data":[{"id":"m"}]}"#, |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let chats = br#"{"model":"m","messages":[]}"#.as_slice();
    let completes = br#"{"model":"m","prompt":[1,2]}"#.as_slice();
    for (path, body) in [
        ("/v1/chat/completions", chats),
        ("/v1/chat/completions?x=1", chats),
        ("/v1/chat/completions?beta=true&q=%20%C3%A9%2F&q=2&empty=", chats),
        ("/v1/chat/completions?", chats),
        ("/v1/completions?api-version=2024-10-21", completes),
    ] {
        let answer = world.ask(&post(path, &[], body)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let line = worker.asked().await.pop().unwrap().line;
        assert_eq!(line, format!("POST /base/path{path} HTTP/1.1"));
    }
    // As a proxy would be asked.
    world.ask(&post("http://elsewhere/v1/chat/completions?x", &[], chats)).await;
    let asked = worker.asked().await.pop().unwrap();
    assert_eq!(asked.line, "POST /base/path/v1/chat/completions?x HTTP/1.1");
    let host = worker.url.strip_prefix("http://").unwrap().strip_suffix("/base/path").unwrap();
    assert_eq!(asked.header("host"), [host.as_bytes()]);
    world.end().await;
}

#[tokio::test]
async fn f50_headers_pass_but_for_those_that_end_here() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let request = chat(&[
        ("x-tag", "one"),
        ("authorization", "Bearer sk-1"),
        ("X-Tag", "two"),
        ("x-tag", ""),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("accept-encoding", "gzip, br"),
        ("te", "trailers"),
        ("connection", "keep-alive, X-Secret"),
        ("connection", "x-second"),
        ("x-secret", "s"),
        ("x-second", "s"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic eA=="),
        ("trailer", "x-trailer"),
        ("x-homing-session-id", "s1"),
        ("x-homing-affinity", "soft"),
        ("x-homing-priority", "1"),
        ("x-dynamo-session-id", "d1"),
        ("x-claude-code-session-id", "c1"),
        ("session_id", "u1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "OpenAI/Python"),
        ("x-latin", "caf\u{e9}"),
    ]);
    assert_eq!(world.ask(&request).await.status, 200);
    let asked = worker.only().await;
    assert_eq!(asked.header("x-tag"), [b"one".as_slice(), b"two", b""]);
    assert_eq!(asked.header("cookie"), [b"a=1", b"b=2"]);
    for (name, value) in [
        ("authorization", "Bearer sk-1"),
        ("accept-encoding", "gzip, br"),
        ("x-dynamo-session-id", "d1"),
        ("x-claude-code-session-id", "c1"),
        ("session_id", "u1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "OpenAI/Python"),
        ("x-latin", "caf\u{e9}"),
    ] {
        assert_eq!(asked.header(name), [value.as_bytes()], "{name}");
    }
    for name in [
        "te",
        "connection",
        "x-secret",
        "x-second",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "trailer",
        "x-homing-session-id",
        "x-homing-affinity",
        "x-homing-anything",
    ] {
        assert!(asked.header(name).is_empty(), "{name} went on");
    }
    let known = ["host", "content-length", "x-request-id", "x-tag", "cookie", "authorization"];
    let more = ["accept-encoding", "x-dynamo-session-id", "x-claude-code-session-id", "session_id"];
    let rest = ["traceparent", "user-agent", "x-latin"];
    for (name, _) in &asked.headers {
        let name = name.as_str();
        assert!([&known[..], &more, &rest].concat().contains(&name), "{name} was added");
    }
    world.end().await;
}

#[tokio::test]
async fn f04_a_request_id_is_kept_or_made_and_all_three_see_the_same() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let given = world.ask(&chat(&[("x-request-id", "from-the-client")])).await;
    assert_eq!(given.header("x-request-id"), ["from-the-client"]);
    let asked = worker.asked().await.pop().unwrap();
    assert_eq!(asked.header("x-request-id"), [b"from-the-client"]);
    let mut made = std::collections::BTreeSet::new();
    let too_long = "x".repeat(129);
    for headers in [&[][..], &[], &[("x-request-id", "")], &[("x-request-id", &too_long)]] {
        let answer = world.ask(&chat(headers)).await;
        let id = answer.header("x-request-id")[0].to_owned();
        assert!(!id.is_empty() && id.len() <= 128, "{id}");
        let asked = worker.asked().await.pop().unwrap();
        assert_eq!(asked.header("x-request-id"), [id.as_bytes()]);
        assert!(made.insert(id), "twice the same");
    }
    // A refusal has one too.
    let refused = world.ask(&post("/v1/chat/completions", &[("x-request-id", "r")], b"no")).await;
    assert_eq!((refused.status, refused.header("x-request-id")), (400, vec!["r"]));
    world.end().await;
}

#[tokio::test]
async fn two_framings_of_one_body_smuggle_nothing() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let body = r#"{"model":"m","messages":[]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: 3\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let answer = world.ask(request.as_bytes()).await;
    // Refusing it is right as well; a worker that reads 3 bytes, and a second request behind, is not.
    if answer.status == 200 {
        let asked = worker.only().await;
        assert_eq!(asked.header("content-length"), [body.len().to_string().as_bytes()]);
        assert!(asked.header("transfer-encoding").is_empty());
        assert_eq!(asked.body, body.as_bytes());
    } else {
        assert_eq!(answer.status, 400);
        assert!(worker.asked().await.is_empty());
    }
    world.end().await;
}
