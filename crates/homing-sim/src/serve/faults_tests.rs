//! A mock that misbehaves does so as it says, and stays green.

use super::tests::{call, config, post, send, start};
use super::{Faults, MockConfig};
use serde_json::{Value, json};
use std::io::{BufRead, Read};
use std::time::Duration;

fn chat(stream: bool) -> Value {
    json!({"model": "homing-mock", "max_tokens": 4, "ignore_eos": true, "stream": stream,
           "messages": [{"role": "user", "content": "hello"}]})
}

fn with(faults: Faults) -> MockConfig {
    MockConfig { faults, ..config(1000) }
}

#[test]
fn f62_a_hung_one_is_green_and_says_nothing() {
    let mock = start(with(Faults { hang: true, ..Faults::default() }));
    let mut stream = send(&mock, "POST", "/v1/chat/completions", &chat(true).to_string());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0);
    }
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    stream.get_ref().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(stream.read(&mut [0]).is_err(), "a byte");
    assert_eq!(call(&mock, "GET", "/health", &Value::Null).0, 200);
    let (_, page) = call(&mock, "GET", "/metrics", &Value::Null);
    let running =
        page.as_str().unwrap().lines().find(|l| l.starts_with("vllm:num_requests_running"));
    assert!(running.unwrap().ends_with(" 0") || running.unwrap().ends_with(" 0.0"), "{running:?}");
}

#[test]
fn f61_of_so_many_one_fails_at_once() {
    let mock = start(with(Faults { fail_every: 3, ..Faults::default() }));
    let statuses: Vec<u16> =
        (0..6).map(|_| call(&mock, "POST", "/v1/chat/completions", &chat(false)).0).collect();
    assert_eq!(statuses, [200, 200, 500, 200, 200, 500]);
    assert_eq!(call(&mock, "GET", "/health", &Value::Null).0, 200);
}

#[test]
fn f67_a_key_is_asked_for_under_v1() {
    let mock = start(MockConfig { api_key: Some("secret".to_owned()), ..config(1000) });
    assert_eq!(call(&mock, "POST", "/v1/chat/completions", &chat(false)).0, 401);
    assert_eq!(call(&mock, "GET", "/v1/models", &Value::Null).0, 401);
    assert_eq!(call(&mock, "GET", "/health", &Value::Null).0, 200);
}

#[test]
fn f64_told_to_stop_it_stays_green_and_serves_nobody() {
    let mock = start(with(Faults { green_drain: true, ..Faults::default() }));
    post(&mock, "/v1/chat/completions", &chat(false));
    mock.stop();
    // It may take the next ones a moment before it has heard.
    let failed = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        call(&mock, "POST", "/v1/chat/completions", &chat(false)).0 == 500
    });
    assert!(failed);
    assert_eq!(call(&mock, "GET", "/health", &Value::Null).0, 200);
}

#[test]
fn f64_or_it_goes_mute_with_its_streams_open() {
    let faults = Faults { mute_on_term: true, ..Faults::default() };
    let mock = start(MockConfig { speedup: 1.0, ..with(faults) });
    let mut long = chat(true);
    long["max_tokens"] = 400.into();
    let mut stream = send(&mock, "POST", "/v1/chat/completions", &long.to_string());
    let mut line = String::new();
    while !line.contains("data:") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
    mock.stop();
    stream.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // What was on its way comes; then nothing does, and the connection is not closed.
    let mut left = [0; 4096];
    let silent = (0..1000).any(|_| match stream.read(&mut left) {
        Ok(0) => panic!("it was closed"),
        Ok(_) => false,
        Err(_) => true,
    });
    assert!(silent);
    let address = mock.url().strip_prefix("http://").unwrap().to_owned();
    assert!(std::net::TcpStream::connect(address).is_err(), "its port refuses");
}
