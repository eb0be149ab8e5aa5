//! What a client gets is what the worker sent: status, headers, body and framing, errors too.

use super::client::{chat, streamed};
use super::worker::{Act, LAST, Worker, begun, chunk, gate, ok, plain};
use super::world::{World, in_time};

/// An answer with these headers.
fn raw(head: &str, body: &[u8]) -> Vec<Act> {
    vec![Act::Send([head.as_bytes(), b"\r\n\r\n", body].concat())]
}

#[tokio::test]
async fn f53_a_workers_own_error_passes_unchanged_and_binds_nothing() {
    for last in [429, 503] {
        an_own_error_passes([400, 404, 500, last]).await;
    }
}

/// The last of them leaves the worker overloaded.
async fn an_own_error_passes(statuses: [u16; 4]) {
    let next = std::sync::Mutex::new(statuses.into_iter());
    let worker = Worker::start("w", move |_| {
        let status = next.lock().unwrap().next().unwrap();
        let body = format!("{{\"detail\": \"mine \\u00e9, {status}\" }}\n");
        raw(
            &format!(
                "HTTP/1.1 {status} Whatever\r\ncontent-type: application/problem+json\r\n\
                 retry-after: 7\r\nx-own: a\r\nx-own: b\r\ncontent-length: {}",
                body.len()
            ),
            body.as_bytes(),
        )
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    for (i, status) in statuses.into_iter().enumerate() {
        let request = chat(&[("x-homing-session-id", "s")]);
        let answer = world.ask(&request).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.text(), format!("{{\"detail\": \"mine \\u00e9, {status}\" }}\n"));
        assert!(answer.clean);
        assert_eq!(answer.header("content-type"), ["application/problem+json"]);
        assert_eq!(answer.header("retry-after"), ["7"]);
        assert!(answer.header("retry-after-ms").is_empty() && !answer.header("x-own").is_empty());
        assert_eq!(answer.header("x-own"), ["a", "b"]);
        assert_eq!(answer.affinity(), "unbound");
        assert_eq!(answer.worker(), "w");
        assert_eq!(worker.asked().await.len(), i + 1, "an error answer is not tried again");
    }
    assert_eq!(world.stats().bindings, 0, "R12: nothing is bound");
    assert!(world.state("w").is_some_and(|s| s == homing_core::fleet::State::Ready), "F33");
    world.end().await;
}

#[tokio::test]
async fn an_error_without_a_session_says_none() {
    let worker = Worker::start("w", |_| vec![Act::Send(plain(400, "{}"))]).await;
    let world = World::start(&[], &[&worker]).await;
    assert_eq!(world.ask(&chat(&[])).await.affinity(), "none");
    world.end().await;
}

#[tokio::test]
async fn f50_headers_and_framing_of_an_answer_are_kept() {
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let theirs = body.clone();
    let worker = Worker::start("w", move |_| {
        let head = format!(
            "HTTP/1.1 200 Fine\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n\
             content-length: {}\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nconnection: X-Hop\r\n\
             x-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\ntrailer: x\r\n\
             upgrade: h2c\r\nx-custom: kept\r\nserver: uvicorn\r\n\
             date: Thu, 01 Jan 1970 00:00:00 GMT\r\nx-homing-worker: forged\r\n\
             x-homing-affinity: forged\r\nx-request-id: the-workers",
            theirs.len()
        );
        raw(&head, &theirs)
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let answer = world.ask(&chat(&[("x-request-id", "mine")])).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == body && answer.clean);
    for (name, values) in [
        ("content-length", vec!["100000"]),
        ("content-encoding", vec!["gzip"]),
        ("set-cookie", vec!["a=1", "b=2"]),
        ("x-custom", vec!["kept"]),
        ("server", vec!["uvicorn"]),
        ("date", vec!["Thu, 01 Jan 1970 00:00:00 GMT"]),
        ("x-homing-worker", vec!["w"]),
        ("x-homing-affinity", vec!["none"]),
        ("x-request-id", vec!["mine"]),
        ("x-hop", vec![]),
        ("keep-alive", vec![]),
        ("proxy-authenticate", vec![]),
        ("trailer", vec!["x"]),
        ("upgrade", vec![]),
        ("transfer-encoding", vec![]),
    ] {
        assert_eq!(answer.header(name), values, "{name}");
    }
    assert_eq!(answer.header("x-homing-instance").len(), 1);
    assert!(answer.header("x-homing-cached-tokens").is_empty(), "nothing is predicted here");
    world.end().await;
}

#[tokio::test]
async fn every_framing_of_a_plain_answer_passes() {
    let framings = std::sync::Mutex::new(vec![
        raw("HTTP/1.1 204 Nothing\r\nx-a: 1", b""),
        raw("HTTP/1.1 200 OK\r\ncontent-length: 0", b""),
        vec![
            Act::Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()),
            Act::Send(chunk(b"in ")),
            Act::Send(chunk(b"pieces")),
            Act::Send(LAST.into()),
        ],
        vec![
            Act::Send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the ".to_vec()),
            Act::Send(b"end".to_vec()),
            Act::Close,
        ],
        vec![Act::Send(b"HTTP/1.0 200 OK\r\n\r\nold".to_vec()), Act::Close],
    ]);
    let worker = Worker::start("w", move |_| framings.lock().unwrap().pop().unwrap()).await;
    let world = World::start(&[], &[&worker]).await;
    for (status, body) in
        [(200, "old"), (200, "until the end"), (200, "in pieces"), (200, ""), (204, "")]
    {
        let answer = world.ask(&chat(&[("x-homing-session-id", "s")])).await;
        assert_eq!((answer.status, answer.text(), answer.clean), (status, body, true));
        world.quiet().await;
    }
    assert_eq!(world.stats().bindings, 1);
    world.end().await;
}

#[tokio::test]
async fn a_plain_answer_that_breaks_off_is_seen_to() {
    let acts = std::sync::Mutex::new(vec![
        raw("HTTP/1.1 200 OK\r\ncontent-length: 10", b"12345"),
        vec![
            Act::Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()),
            Act::Send(chunk(b"12345")),
        ],
    ]);
    let worker = Worker::start("w", move |_| {
        let mut acts = acts.lock().unwrap().pop().unwrap();
        acts.push(Act::Close);
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    for _ in 0..2 {
        let answer = world.ask(&chat(&[])).await;
        assert_eq!((answer.status, answer.clean), (200, false));
        assert_eq!(answer.text(), "12345");
    }
    world.end().await;
}

#[tokio::test]
async fn a_compressed_stream_passes_as_it_comes() {
    let more = gate();
    let held = more.clone();
    let worker = Worker::start("w", move |_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
        vec![
            Act::Send(head.into()),
            Act::Send(chunk(b"\x1f\x8b\x08 one")),
            Act::Hold(held.clone()),
            Act::Send(chunk(b"two\n\n\xff")),
            Act::Send(LAST.into()),
        ]
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[])).await;
    let mut answer = in_time("the head", client.head()).await;
    in_time("the first bytes", client.until(&mut answer, b"one")).await;
    more.add_permits(1);
    in_time("the rest", client.rest(&mut answer)).await;
    assert!(answer.clean);
    assert_eq!(answer.body, b"\x1f\x8b\x08 onetwo\n\n\xff");
    world.end().await;
}

#[tokio::test]
async fn f45_f47_f48_a_stream_is_the_same_bytes_wherever_it_is_cut() {
    let worker = Worker::start("w", |asked| {
        let cut: usize = {
            let cut = asked.header("x-cut")[0];
            std::str::from_utf8(cut).unwrap().parse().unwrap()
        };
        let (one, two) = RECORDED.as_bytes().split_at(cut);
        // Each piece is a chunk of its own, so the router sees the cut whatever TCP does.
        let mut acts = begun(&[]);
        acts.extend([one, two].iter().filter(|p| !p.is_empty()).map(|p| Act::Send(chunk(p))));
        acts.push(Act::Send(LAST.into()));
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    for cut in 0..=RECORDED.len() {
        let request = streamed(&[("x-cut", &cut.to_string()), ("x-homing-session-id", "s")]);
        let answer = in_time("a stream", client.ask(&request)).await;
        assert_eq!(answer.status, 200);
        assert!(answer.clean, "cut at {cut}: not ended cleanly");
        assert!(answer.body == RECORDED.as_bytes(), "cut at {cut}: {:?}", answer.text());
        assert_eq!(answer.header("content-type"), ["text/event-stream"]);
    }
    // The pooled connections were good to be used again and again.
    assert!(worker.asked().await.len() > RECORDED.len());
    assert!(worker.asked().await.last().unwrap().earlier > RECORDED.len() / 2);
    world.end().await;
}

/// As servers really write, and then some: comments, CRLF, CR, no space, ids, retries, several lines
/// of data, text that has `[DONE]` in it, characters of two to four bytes, a tail without blank line.
const RECORDED: &str = concat!(
    ": ping 2026-01-01\r\n\r\n",
    "id: 7\nretry: 100\nevent: message\ndata: {\"choices\":[{\"delta\":{\"content\":\"é€😀\"}}]}\n\n",
    "data:{\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"}}]}\r\n\r\n",
    "data: {\"a\":\ndata: 1}\n\n\n\n",
    "data\n\ndata: \n\n",
    "unknown: field\rdata: {\"cr\":true}\r\r",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
    ": bye\n",
    "data: [DONE]\n\n",
    "data: {\"after\":1}\n",
    "data: torn",
);

#[tokio::test]
async fn one_byte_at_a_time_is_the_same_stream() {
    let worker = Worker::start("w", |_| {
        let mut acts = begun(&[]);
        acts.extend(RECORDED.bytes().map(|b| Act::Send(chunk(&[b]))));
        acts.push(Act::Send(LAST.into()));
        acts
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert!(answer.clean && answer.body == RECORDED.as_bytes());
    world.end().await;
}

#[tokio::test]
async fn f59_a_kept_connection_serves_many_and_each_event_goes_out_when_it_comes() {
    let more = gate();
    let held = more.clone();
    let worker = Worker::start("w", move |asked| {
        if asked.header("x-plain").is_empty() {
            let mut acts = begun(&[b"data: 1\n\n"]);
            for event in ["data: 2\n\n", "data: 3\n\n"] {
                acts.push(Act::Hold(held.clone()));
                acts.push(Act::Send(chunk(event.as_bytes())));
            }
            acts.push(Act::Send(LAST.into()));
            acts
        } else {
            ok()
        }
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let mut client = world.client().await;
    for _ in 0..3 {
        let answer = in_time("an answer", client.ask(&chat(&[("x-plain", "1")]))).await;
        assert_eq!(answer.status, 200);
        client.send(&streamed(&[])).await;
        let mut answer = in_time("the head", client.head()).await;
        for event in [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"] {
            // The worker sends the next one only when this one has come.
            in_time("an event", client.until(&mut answer, event)).await;
            more.add_permits(usize::from(event != b"data: 3\n\n"));
        }
        in_time("the end", client.rest(&mut answer)).await;
        assert!(answer.clean);
    }
    world.end().await;
}

#[tokio::test]
async fn f46_trailers_end_an_answer_and_lose_nothing_of_it() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
                trailer: x-sum\r\n\r\n";
    let events = b"data: 1\n\ndata: 2\n";
    let answer = [head.as_bytes(), &chunk(events), b"0\r\nx-sum: 1\r\n\r\n"].concat();
    let worker = Worker::start("w", move |_| vec![Act::Send(answer.clone())]).await;
    let world = World::start(&[], &[&worker]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert!(answer.clean);
    assert_eq!(answer.body, events);
    // It passes; the trailers themselves go to whoever says that it takes them.
    assert_eq!(answer.header("trailer"), ["x-sum"]);
    world.end().await;
}

#[tokio::test]
async fn a_worker_of_http_1_0_makes_no_client_speak_it() {
    let head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let answer = [head.as_bytes(), b"data: 1\n\ndata: [DONE]\n\n"].concat();
    let worker = Worker::start("w", move |_| vec![Act::Send(answer.clone()), Act::Close]).await;
    let world = World::start(&[], &[&worker]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert!(answer.clean);
    assert_eq!(answer.header("transfer-encoding"), ["chunked"], "its end can be told from a cut");
    assert_eq!(answer.text(), "data: 1\n\ndata: [DONE]\n\n");
    world.end().await;
}

#[tokio::test]
async fn f10_what_a_worker_calls_ours_is_not_passed_on() {
    let worker = Worker::start("w", |_| {
        raw(
            "HTTP/1.1 200 OK\r\nx-homing-worker: evil\r\nx-homing-cached-tokens: 9\r\n\
             content-length: 2",
            b"{}",
        )
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let answer = world.ask(&chat(&[])).await;
    assert_eq!(answer.header("x-homing-worker"), ["w"]);
    assert!(answer.header("x-homing-cached-tokens").is_empty());
    world.end().await;
}
