//! The access log: one line a request with what became of it, and nothing of what was said (or by whom
//! in clear) in any line.

use super::client::{Client, chat, post, streamed};
use super::worker::{Act, Worker, begun, plain, stall, stream};
use super::world::{World, eventually, in_time};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type Line = BTreeMap<&'static str, String>;

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());
static SET: std::sync::Once = std::sync::Once::new();

/// Keeps every event that an operator sees, of all tests of this process.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::from([("target", event.metadata().target().to_owned())]);
        event.record(&mut Fields(&mut line));
        LINES.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields<'a>(&'a mut Line);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").unwrap();
        self.0.insert(field.name(), text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// The one access line of a request.
async fn line_of(request_id: &str) -> Line {
    let of = || -> Vec<Line> {
        let lines = LINES.lock().unwrap();
        let mine = |l: &&Line| l["target"] == "homing::access" && l["request_id"] == request_id;
        lines.iter().filter(mine).cloned().collect()
    };
    eventually("the request has its line", || !of().is_empty()).await;
    let mut lines = of();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

fn assert_line(line: &Line, expected: &[(&str, &str)]) {
    for (field, value) in expected {
        assert_eq!(line.get(field).map(String::as_str), Some(*value), "{field} of {line:?}");
    }
}

#[tokio::test]
async fn every_request_has_one_line_and_no_line_has_a_secret() {
    SET.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
    let n = AtomicUsize::new(0);
    let usage = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\
                  \"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n";
    let worker = Worker::start("w", move |_| match n.fetch_add(1, Ordering::SeqCst) {
        0 => stream(&[b"data: {\"n\":1}\n\n", usage, b"data: [DONE]\n\n"]),
        1 => vec![Act::Send(plain(200, r#"{"id":"x"}"#))],
        2 => vec![Act::Send(plain(200, ""))],
        3 => vec![Act::Send(plain(500, r#"{"id":"x"}"#))],
        4 => [begun(&[b"data: 1\n\n"]), vec![Act::Close]].concat(),
        5 => vec![Act::Close],
        6 => [begun(&[b"data: 1\n\n"]), vec![stall()]].concat(),
        _ => vec![stall()],
    })
    .await;
    let world = World::start(&[], &[&worker]).await;
    let with = |id: &str, make: fn(&[(&str, &str)]) -> Vec<u8>| {
        make(&[
            ("x-request-id", id),
            ("x-homing-session-id", "secret-session"),
            ("authorization", "Bearer sk-secret"),
        ])
    };

    world.ask(&with("log-stream", streamed)).await;
    let first = line_of("log-stream").await;
    assert_line(
        &first,
        &[
            ("endpoint", "chat_completions"),
            ("model", "m"),
            ("status", "200"),
            ("code", ""),
            ("worker", "w"),
            ("affinity", "new"),
            ("attempts", "1"),
            ("ended", "complete"),
            ("prompt_tokens", "9"),
            ("cached_tokens", "5"),
            ("completion_tokens", "4"),
        ],
    );
    assert!(first.contains_key("ms") && first.contains_key("ttft_ms"), "{first:?}");
    world.ask(&with("log-plain", chat)).await;
    let second = line_of("log-plain").await;
    assert_line(&second, &[("ended", "complete"), ("status", "200"), ("affinity", "hit")]);
    assert_eq!(second["session"], first["session"], "one digest for one session");
    world.ask(&with("log-empty", chat)).await;
    assert_line(&line_of("log-empty").await, &[("ended", "complete"), ("status", "200")]);
    world.ask(&with("log-500", chat)).await;
    let expected =
        [("ended", "complete"), ("status", "500"), ("code", ""), ("affinity", "unbound")];
    assert_line(&line_of("log-500").await, &expected);
    world.ask(&with("log-broke", streamed)).await;
    assert_line(&line_of("log-broke").await, &[("ended", "worker_broke"), ("status", "200")]);
    world.ask(&with("log-502", chat)).await;
    let expected = [("ended", "refused"), ("status", "502"), ("code", "worker_error")];
    assert_line(&line_of("log-502").await, &expected);

    let gone = |id: &'static str, make| {
        let request = with(id, make);
        async { (world.client().await, request) }
    };
    let (mut client, request): (Client, _) = gone("log-gone-mid", streamed).await;
    client.send(&request).await;
    let mut answer = in_time("the head", client.head()).await;
    in_time("an event", client.until(&mut answer, b"data: 1")).await;
    drop(client);
    assert_line(&line_of("log-gone-mid").await, &[("ended", "client_gone"), ("status", "200")]);
    let (mut client, request) = gone("log-gone", chat).await;
    client.send(&request).await;
    eventually("the worker is at work", || worker.busy() == 1).await;
    drop(client);
    let expected =
        [("ended", "client_gone"), ("status", "499"), ("worker", "w"), ("affinity", "unbound")];
    assert_line(&line_of("log-gone").await, &expected);

    let headers = [("x-request-id", "log-400"), ("x-homing-session-id", "secret-session")];
    let bad = br#"{"model":"m","messages":"secret-prompt"}"#;
    world.ask(&post("/v1/chat/completions", &headers, bad)).await;
    let expected = [("ended", "refused"), ("status", "400"), ("code", "invalid_request")];
    assert_line(&line_of("log-400").await, &expected);
    let headers = [("x-request-id", "log-404"), ("x-session-id", "secret-session")];
    let unknown = br#"{"model":"secret-model","messages":["secret-prompt"]}"#;
    world.ask(&post("/v1/chat/completions", &headers, unknown)).await;
    let expected = [("model", "other"), ("status", "404"), ("worker", "-"), ("attempts", "0")];
    assert_line(&line_of("log-404").await, &expected);
    world.end().await;
    let text = format!("{:?}", LINES.lock().unwrap());
    assert!(!text.contains("secret"), "a line has a secret in it");
}
