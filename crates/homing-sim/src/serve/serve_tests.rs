//! The mock over real sockets: its answers, its refusals, its events, and clients that leave.

use super::*;
use crate::engine::{CacheConfig, EngineConfig};
use crate::plan::Plan;
use crate::text::{Codec as _, Words};
use crate::workload::{Params, Workload};
use homing_core::hash::EngineHash;
use homing_core::index::event::KvEvent;
use homing_wire::engine::metrics::Exposition;
use homing_wire::frames::{Reply, build_request, parse_frames, parse_reply};
use homing_wire::kv_events::decode_batch;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub(super) const BLOCK: usize = 16;

pub(super) fn config(blocks: u32) -> MockConfig {
    let cache = CacheConfig { block_size: BLOCK as u32, blocks, seed: 5 };
    MockConfig {
        engine: EngineConfig { cache, ..EngineConfig::default() },
        speedup: 1000.0,
        ..MockConfig::default()
    }
}

pub(super) fn start(config: MockConfig) -> MockHandle {
    Mock::start(config).expect("free loopback ports")
}

/// Sends a request; the answer's head is the caller's to read.
pub(super) fn send(
    mock: &MockHandle,
    method: &str,
    path: &str,
    body: &str,
) -> BufReader<TcpStream> {
    send_with(mock, method, path, "", body)
}

/// The same with more headers, each ended by CRLF.
fn send_with(
    mock: &MockHandle,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> BufReader<TcpStream> {
    let address = mock.url().strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: mock\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    BufReader::new(stream)
}

/// Reads a whole answer: status and body.
pub(super) fn receive(mut stream: BufReader<TcpStream>) -> (u16, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).expect("it answers") > 0, "cut off: {head}");
    }
    let mut body = String::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let mut size = String::new();
            stream.read_line(&mut size).expect("a chunk");
            let size = usize::from_str_radix(size.trim(), 16).expect("a size");
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).expect("a chunk");
            if size == 0 {
                break;
            }
            body.push_str(std::str::from_utf8(&chunk[..size]).expect("text"));
        }
    } else {
        stream.read_to_string(&mut body).expect("a body");
    }
    (head.split(' ').nth(1).expect("a status").parse().expect("a number"), body)
}

pub(super) fn call(mock: &MockHandle, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let (status, body) = receive(send(mock, method, path, &text));
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

pub(super) fn post(mock: &MockHandle, path: &str, body: &Value) -> Value {
    let (status, answer) = call(mock, "POST", path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// A POST to a data-parallel rank, or to a name that is none.
pub(super) fn post_to(mock: &MockHandle, rank: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = format!("x-data-parallel-rank: {rank}\r\n");
    let (status, body) = receive(send_with(mock, "POST", path, &headers, &body.to_string()));
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// The text of its `/metrics`.
pub(super) fn metrics(mock: &MockHandle) -> String {
    let (status, page) = call(mock, "GET", "/metrics", &Value::Null);
    assert_eq!(status, 200);
    page.as_str().expect("text").to_owned()
}

/// Waits until the engine's page says so.
pub(super) fn until(mock: &MockHandle, what: &str, check: impl Fn(&Exposition<'_>) -> bool) {
    for _ in 0..1000 {
        if check(&Exposition::parse(&metrics(mock))) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} never came");
}

pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn the_next_turn_reuses_prompt_and_answer() {
    let mock = start(config(1000));
    let mut messages = vec![user("Explain how the cache decides which block to evict first.")];
    let ask =
        json!({"model": "homing-mock", "messages": messages, "max_tokens": 70, "ignore_eos": true});
    let first = post(&mock, "/v1/chat/completions", &ask);
    assert_eq!(first["object"], "chat.completion");
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    assert_eq!(first["usage"]["completion_tokens"], 70);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(user("And then?"));
    let second = post(&mock, "/v1/chat/completions", &json!({"messages": messages}));
    let prompt = first["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    // The last of the 70 tokens was sampled and never computed.
    let expected = (prompt + 69) / BLOCK * BLOCK;
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], expected);
    assert_eq!(second["choices"][0]["finish_reason"], "stop");
    let text = metrics(&mock);
    let page = Exposition::parse(&text);
    assert_eq!(page.sum("vllm:prefix_cache_hits_total"), Some(expected as f64));
    let ttft = page.histogram("vllm:time_to_first_token_seconds").expect("is there");
    assert_eq!(ttft.count(), 2.0);
    mock.shutdown();
}

#[test]
fn a_stream_has_the_same_text_in_vllms_chunks() {
    let mock = start(config(1000));
    let mut ask =
        json!({"messages": [user("Name the parts of a router.")], "max_completion_tokens": 30});
    let whole = post(&mock, "/v1/chat/completions", &ask);
    ask["stream"] = json!(true);
    ask["stream_options"] = json!({"include_usage": true});
    let (status, body) = receive(send(&mock, "POST", "/v1/chat/completions", &ask.to_string()));
    assert_eq!(status, 200);
    let events: Vec<&str> = body
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("one data line an event"))
        .collect();
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(*done, "[DONE]");
    let chunks: Vec<Value> =
        chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("JSON")).collect();
    let (usage, chunks) = chunks.split_last().expect("a usage chunk");
    let tokens = whole["usage"]["completion_tokens"].as_u64().expect("a number") as usize;
    assert_eq!(chunks.len(), 1 + tokens, "the role, and one chunk a token");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().expect("text"))
        .collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);
    let reasons: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert!(reasons[..tokens].iter().all(|reason| reason.is_null()));
    assert_eq!(*reasons[tokens], whole["choices"][0]["finish_reason"]);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], tokens);
    let prompt = usage["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    let cached = usage["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached, (prompt - 1) / BLOCK * BLOCK, "all but the last token's block");
}

#[test]
fn completions_take_text_or_tokens() {
    let mock = start(config(1000));
    let text = post(&mock, "/v1/completions", &json!({"prompt": "Once upon"}));
    assert_eq!(text["object"], "text_completion");
    assert_eq!(text["usage"]["completion_tokens"], 16, "vLLM's default");
    let tokens = post(&mock, "/tokenize", &json!({"prompt": "Once upon"}));
    assert_eq!(tokens["count"], text["usage"]["prompt_tokens"]);
    let ask = json!({"prompt": tokens["tokens"], "max_tokens": 16, "echo": true});
    let again = post(&mock, "/v1/completions", &ask);
    let expected = format!("Once upon{}", text["choices"][0]["text"].as_str().expect("text"));
    assert_eq!(again["choices"][0]["text"], expected);
    let mut streamed = ask;
    streamed["stream"] = json!(true);
    let (_, body) = receive(send(&mock, "POST", "/v1/completions", &streamed.to_string()));
    let joined: String = body
        .split_terminator("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .filter_map(|chunk| Some(chunk["choices"][0]["text"].as_str()?.to_owned()))
        .collect();
    assert_eq!(joined, expected);
}

#[test]
fn a_chat_has_the_tokens_that_tokenize_says() {
    let mock = start(config(100));
    let ask = json!({"messages": [user("hello there")], "max_tokens": 1});
    let tokens = post(&mock, "/tokenize", &ask);
    assert_eq!(tokens["max_model_len"], 1600, "the cache bounds the context");
    let answer = post(&mock, "/v1/chat/completions", &ask);
    assert_eq!(answer["usage"]["prompt_tokens"], tokens["count"]);
}

#[test]
fn what_is_wrong_is_refused_as_vllm_refuses_it() {
    let mock = start(MockConfig { max_body: 20_000, ..config(20) });
    let chat = "/v1/chat/completions";
    let message = json!([user("hi")]);
    let refused = |path: &str, body: &Value| {
        let (status, answer) = call(&mock, "POST", path, body);
        let error = &answer["error"];
        assert_eq!(error["code"], status, "{answer}");
        assert!(error["message"].is_string());
        (status, error["type"].clone(), error["param"].clone())
    };
    let bad = |param: &str| (400, json!("BadRequestError"), json!(param));
    assert_eq!(
        refused(chat, &json!({"model": "nope", "messages": message})),
        (404, json!("NotFoundError"), json!("model"))
    );
    assert_eq!(refused(chat, &json!({})).0, 400, "no messages");
    assert_eq!(refused(chat, &json!([])).0, 400, "not an object");
    assert_eq!(refused(chat, &json!({"messages": []})).0, 400);
    assert_eq!(refused(chat, &json!({"messages": message, "max_tokens": 0})), bad("max_tokens"));
    assert_eq!(refused(chat, &json!({"messages": message, "max_tokens": 9999})), bad("max_tokens"));
    assert_eq!(refused(chat, &json!({"messages": message, "stream": 3})), bad("stream"));
    assert_eq!(refused(chat, &json!({"messages": message, "n": 2})), bad("n"));
    assert_eq!(refused(chat, &json!({"messages": message, "cache_salt": ""})), bad("cache_salt"));
    let long = json!({"messages": [user(&"word ".repeat(400))]});
    assert_eq!(refused(chat, &long), bad("input_tokens"));
    assert_eq!(refused("/v1/completions", &json!({})).0, 400, "no prompt");
    assert_eq!(refused("/v1/completions", &json!({"prompt": ["a", "b"]})).0, 400);
    let large = json!({"messages": [user(&"word ".repeat(5000))]});
    assert_eq!(refused(chat, &large).0, 413);
    let (status, answer) = receive(send(&mock, "POST", chat, "{\"messages\": ["));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(call(&mock, "GET", "/nothing", &Value::Null).0, 404);
    assert_eq!(call(&mock, "GET", chat, &Value::Null).0, 405);
    let text = metrics(&mock);
    let queries = Exposition::parse(&text).sum("vllm:prefix_cache_queries_total");
    assert_eq!(queries, Some(0.0), "nothing ran");
}

#[test]
fn an_engine_tells_about_itself() {
    let mock = start(config(100));
    let (_, models) = call(&mock, "GET", "/v1/models", &Value::Null);
    assert_eq!(models["data"][0]["id"], "homing-mock");
    assert_eq!(models["data"][0]["parent"], Value::Null);
    assert_eq!(call(&mock, "GET", "/health", &Value::Null), (200, json!("")));
    assert_eq!(call(&mock, "GET", "/version", &Value::Null).0, 200);
    let (_, sources) = call(&mock, "GET", "/kv_event_sources", &Value::Null);
    assert_eq!(sources["0"]["endpoint"], mock.kv_endpoint().expect("it publishes"));
    assert!(!sources["0"]["endpoint"].as_str().expect("text").ends_with(":0"), "{sources}");
    assert_eq!(sources["0"]["topic"], "kv-events");
    assert_eq!(sources["0"]["replay_endpoint"], mock.kv_replay().expect("it replays"));
    let mock = start(MockConfig { kv_replay: None, ..config(100) });
    let (_, sources) = call(&mock, "GET", "/kv_event_sources", &Value::Null);
    assert_eq!((&sources["0"]["replay_endpoint"], mock.kv_replay()), (&Value::Null, None));
}

#[test]
fn a_stock_engine_has_no_events_and_tells_no_cached_tokens() {
    let mock = start(MockConfig { stock: true, ..config(100) });
    assert_eq!(call(&mock, "GET", "/kv_event_sources", &Value::Null).0, 404);
    let answer = post(&mock, "/v1/chat/completions", &json!({"messages": [user("hi")]}));
    assert!(answer["usage"].get("prompt_tokens_details").expect("is there").is_null());
    assert!(mock.kv_endpoint().is_none());
}

#[test]
fn a_cache_salt_keeps_its_blocks_to_itself() {
    let mock = start(config(1000));
    let text = "Which worker holds my blocks? ".repeat(10);
    let cached = |salt: Value| {
        let ask = json!({"messages": [user(&text)], "cache_salt": salt});
        let answer = post(&mock, "/v1/chat/completions", &ask);
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached(Value::Null), 0);
    assert_eq!(cached(json!("tenant")), 0);
    assert!(cached(json!("tenant")) > 0);
    assert!(cached(Value::Null) > 0);
}

/// What unmodified OpenAI clients were recorded to send, tools, images and unknown fields included.
#[test]
fn recorded_requests_are_answered() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/client-requests");
    let mock = start(MockConfig { model: "test-model".into(), ..config(1000) });
    let mut answered = 0;
    for entry in std::fs::read_dir(folder).expect("the project carries them") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|kind| kind != "http") {
            continue;
        }
        let recorded = std::fs::read_to_string(&path).expect("text");
        let (head, body) = recorded.split_once("\r\n\r\n").expect("a head");
        let target = head.split(' ').nth(1).expect("a target");
        if !["/v1/chat/completions", "/v1/completions"].contains(&target) {
            continue;
        }
        let (status, answer) = receive(send(&mock, "POST", target, body));
        assert_eq!(status, 200, "{}: {answer}", path.display());
        answered += 1;
    }
    assert!(answered >= 8, "{answered}");
}

/// A long request that the test leaves.
pub(super) fn endless(stream: bool) -> Value {
    json!({"messages": [user("go on")], "stream": stream, "max_tokens": 20_000, "ignore_eos": true})
}

#[test]
fn a_client_that_leaves_frees_its_blocks() {
    for stream in [true, false] {
        // At real speed those 20,000 tokens take minutes.
        let mock = start(MockConfig { speedup: 1.0, ..config(2000) });
        let mut client = send(&mock, "POST", "/v1/chat/completions", &endless(stream).to_string());
        until(&mock, "the request", |page| page.sum("vllm:kv_cache_usage_perc") > Some(0.0));
        if stream {
            let mut line = String::new();
            client.read_line(&mut line).expect("it streams");
        }
        drop(client);
        until(&mock, "the abort", |page| {
            page.sum("vllm:num_requests_running") == Some(0.0)
                && page.sum("vllm:kv_cache_usage_perc") == Some(0.0)
                && page.sum("vllm:request_success_total") == Some(1.0)
        });
    }
}

#[test]
fn one_request_too_many_is_refused_until_another_leaves() {
    let mut config = MockConfig { speedup: 1.0, ..config(2000) };
    config.engine.batch.max_queued = 1;
    let mock = start(config);
    let client = send(&mock, "POST", "/v1/chat/completions", &endless(true).to_string());
    until(&mock, "the request", |page| page.sum("vllm:num_requests_running") == Some(1.0));
    let ask = json!({"messages": [user("hi")], "max_tokens": 1});
    let (status, answer) = call(&mock, "POST", "/v1/chat/completions", &ask);
    assert_eq!((status, &answer["error"]["type"]), (503, &json!("ServiceUnavailableError")));
    drop(client);
    until(&mock, "the abort", |page| page.sum("vllm:num_requests_running") == Some(0.0));
    post(&mock, "/v1/chat/completions", &ask);
}

#[test]
fn a_stream_in_flight_ends_before_a_stopped_mock_does() {
    let mock = start(MockConfig { speedup: 1.0, ..config(2000) });
    let ask =
        json!({"messages": [user("hi")], "stream": true, "max_tokens": 40, "ignore_eos": true});
    let client = send(&mock, "POST", "/v1/chat/completions", &ask.to_string());
    until(&mock, "the request", |page| page.sum("vllm:num_requests_running") == Some(1.0));
    mock.stop();
    assert!(receive(client).1.ends_with("data: [DONE]\n\n"));
    mock.shutdown();
}

#[test]
fn what_cannot_start_says_why() {
    let mock = start(config(10));
    let taken = mock.url().strip_prefix("http://").expect("a URL").parse().expect("an address");
    let refused = Mock::bind(MockConfig { listen: taken, ..config(10) }).err().expect("is taken");
    assert!(refused.to_string().starts_with("cannot listen on 127.0.0.1:"), "{refused}");
    let kv_endpoint = mock.kv_endpoint().expect("publishes").to_owned();
    let refused = Mock::bind(MockConfig { kv_endpoint, ..config(10) }).err().expect("is taken");
    assert!(refused.to_string().starts_with("cannot publish KV events at tcp://127"), "{refused}");
    assert!(Mock::bind(MockConfig { speedup: 0.0, ..config(10) }).is_err());
    let tokenizer = Some("/nowhere".into());
    assert!(Mock::bind(MockConfig { tokenizer, ..config(10) }).is_err());
}

/// What makes a live run and its twin in virtual time comparable: the same turns give the same tokens.
#[test]
fn a_plan_foresees_what_the_mock_answers() {
    let codec = PromptCodec::builtin();
    let words = Words::of(&codec).expect("plain words");
    let params = Params { sessions: 2, ..Params::default() };
    let workload = Workload::generate(&params, 21, &words);
    let plan = Plan::new(&workload, &words, &codec).expect("plain words");
    let longest = plan.turns().map(|turn| turn.prompt.len()).max();
    assert!(longest <= Some(params.longest_prompt), "{longest:?}");
    let mock = start(config(2000));
    let (mut queries, mut tokens) = (0, 0);
    for (session, planned) in workload.sessions.iter().zip(&plan.sessions) {
        let mut replies = vec![];
        for (turn, planned) in session.turns.iter().zip(&planned.turns).take(4) {
            let ask = json!({
                "messages": workload.messages(session, &replies), "ignore_eos": true,
                "max_tokens": turn.output_tokens,
            });
            let answer = post(&mock, "/v1/chat/completions", &ask);
            assert_eq!(answer["usage"]["prompt_tokens"], planned.prompt.len());
            let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
            assert_eq!(text, codec.decode(&planned.output).expect("decodes"));
            replies.push(text.to_owned());
            queries += planned.prompt.len();
            tokens += planned.output.len();
        }
    }
    let text = metrics(&mock);
    let page = Exposition::parse(&text);
    assert_eq!(page.sum("vllm:prefix_cache_queries_total"), Some(queries as f64));
    assert_eq!(page.sum("vllm:generation_tokens_total"), Some(tokens as f64));
}

/// A subscriber that rebuilds the cache from what is published; `None` if it came too late for the
/// first message (PUB loses what is sent before a subscription has arrived).
fn rebuilt(mock: &MockHandle) -> Option<BTreeMap<EngineHash, u32>> {
    let socket = zmq::Context::new().socket(zmq::SUB).expect("a socket");
    socket.connect(mock.kv_endpoint().expect("publishes")).expect("connects");
    socket.set_subscribe(b"kv-events").expect("subscribes");
    socket.set_rcvtimeo(10_000).expect("a timeout");
    std::thread::sleep(Duration::from_millis(200));
    // Fewer blocks than three conversations fill: some are evicted, and come back.
    for turn in 0..3 {
        for who in ["router", "cache", "queue", "index"] {
            let text = format!("Tell me about the {who}. {}", "More, please. ".repeat(turn * 20));
            let ask = json!({"messages": [user(&text)], "max_tokens": 50, "ignore_eos": true});
            post(mock, "/v1/chat/completions", &ask);
        }
    }
    let expected = mock.cached_blocks();
    let (mut copies, mut next) = (BTreeMap::new(), 0);
    loop {
        let frames = socket.recv_multipart(0).expect("a message in time");
        let message = parse_frames(&frames).expect("three frames");
        if message.seq != next {
            assert_eq!(next, 0, "a gap in the middle");
            return None;
        }
        next += 1;
        let batch = decode_batch(message.payload).expect("a batch");
        assert_eq!((batch.dp_rank, batch.skipped), (Some(0), 0));
        for event in batch.events {
            match event {
                KvEvent::Stored(stored) => {
                    assert_eq!(stored.token_ids.len(), stored.block_hashes.len() * BLOCK);
                    for hash in stored.block_hashes {
                        *copies.entry(hash).or_insert(0) += 1;
                    }
                }
                KvEvent::Removed(removed) => {
                    for hash in removed.block_hashes {
                        *copies.get_mut(&hash).expect("was stored") -= 1;
                    }
                }
                KvEvent::Cleared => copies.clear(),
            }
        }
        copies.retain(|_, n| *n > 0);
        let told: Vec<EngineHash> =
            copies.iter().flat_map(|(hash, n)| std::iter::repeat_n(*hash, *n as usize)).collect();
        if told == expected {
            assert!(next > 12, "{next} batches");
            return Some(copies);
        }
    }
}

#[test]
fn a_subscriber_can_rebuild_the_cache_from_the_events() {
    let found = (0..5).find_map(|_| rebuilt(&start(config(24))));
    let copies = found.expect("one of five subscriptions is in time");
    assert!(copies.len() > 12 && copies.values().sum::<u32>() <= 24);
}

/// What is repeated from a number on: numbers and payloads.
fn replayed(mock: &MockHandle, from: u64) -> Vec<(u64, Vec<u8>)> {
    let socket = zmq::Context::new().socket(zmq::DEALER).expect("a socket");
    socket.set_rcvtimeo(10_000).expect("a timeout");
    socket.connect(mock.kv_replay().expect("replays")).expect("connects");
    // Neither is a request, and neither is answered.
    socket.send_multipart([&b"x"[..]], 0).expect("sent");
    socket.send_multipart([&b""[..], b"5"], 0).expect("sent");
    socket.send_multipart(build_request(from), 0).expect("sent");
    let mut all = vec![];
    loop {
        let frames = socket.recv_multipart(0).expect("a reply in time");
        match parse_reply(&frames).expect("a reply") {
            Reply::End => return all,
            Reply::Message { seq, payload } => {
                assert_eq!(frames[1], b"kv-events");
                all.push((seq, payload.to_vec()));
            }
        }
    }
}

#[test]
fn an_engine_repeats_what_it_keeps_also_what_it_did_not_publish() {
    let mock = start(MockConfig { kv_buffer: 8, kv_drop_every: 3, ..config(1000) });
    assert_eq!(replayed(&mock, 0), [], "nothing was published yet");
    let socket = zmq::Context::new().socket(zmq::SUB).expect("a socket");
    socket.connect(mock.kv_endpoint().expect("publishes")).expect("connects");
    socket.set_subscribe(b"").expect("subscribes");
    socket.set_rcvtimeo(10_000).expect("a timeout");
    let ask = |n: usize| {
        let text = format!("Question {n}: what is a router, and why is there one?");
        let ask = json!({"messages": [user(&text)], "max_tokens": 40, "ignore_eos": true});
        post(&mock, "/v1/chat/completions", &ask);
    };
    // Until the subscription has arrived.
    let mut live = vec![];
    let mut n = 0;
    while live.len() < 6 {
        ask(n);
        n += 1;
        while let Ok(frames) = socket.recv_multipart(zmq::DONTWAIT) {
            let message = parse_frames(&frames).expect("three frames");
            live.push((message.seq, message.payload.to_vec()));
        }
    }
    let numbers: Vec<_> = live.iter().map(|(seq, _)| *seq).collect();
    assert!(numbers.iter().all(|seq| seq % 3 != 2), "every third is lost: {numbers:?}");
    let all = replayed(&mock, 0);
    let last = all.last().expect("some").0;
    let kept: Vec<_> = all.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(kept, (last - 7..=last).collect::<Vec<_>>(), "the last eight, without a hole");
    assert!(live.iter().filter(|(seq, _)| *seq + 7 >= last).all(|m| all.contains(m)));
    assert_eq!(replayed(&mock, last), all[7..]);
    assert_eq!(replayed(&mock, last + 1), []);
}
