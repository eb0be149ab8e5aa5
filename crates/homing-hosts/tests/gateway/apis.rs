//! The Responses API and Anthropic's Messages: the same way of a request as a chat's, with their own errors and ends
//! of streams.

use super::client::{get, post};
use super::worker::{Act, Asked, Worker, begun, gate, plain, stream};
use super::world::{World, in_time};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages?beta=true";
const COUNT: &str = "/v1/messages/count_tokens?beta=true";

/// A whole body of each API; spaces and unknown fields are to stay.
const BODIES: [(&str, &str); 3] = [
    (RESPONSES, r#"{ "model":"m", "input" : "Hi", "unknown": 1e3 }"#),
    (MESSAGES, r#"{ "model":"m", "messages" : [{"role":"user","content":"Hi"}], "unknown": 1e3 }"#),
    (COUNT, r#"{ "model":"m", "messages" : [{"role":"user","content":"Hi"}], "unknown": 1e3 }"#),
];

/// The events of a stream, as each API ends it: without `[DONE]`.
const EVENTS: [(&str, [&[u8]; 2]); 2] = [
    (
        RESPONSES,
        [
            b"event: response.created\ndata: {\"type\":\"response.created\"}\n\n",
            b"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":9,\
              \"output_tokens\":1,\"input_tokens_details\":{\"cached_tokens\":8}}}}\n\n",
        ],
    ),
    (
        MESSAGES,
        [
            b"event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":9}}}\n\n",
            b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ],
    ),
];

fn streamed(path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let body = match path {
        RESPONSES => r#"{"model":"m","stream":true,"input":"Hi"}"#,
        _ => r#"{"model":"m","stream":true,"messages":[]}"#,
    };
    post(path, headers, body.as_bytes())
}

fn echo(asked: &Asked) -> Vec<Act> {
    vec![Act::Send(plain(200, std::str::from_utf8(&asked.body).unwrap()))]
}

#[tokio::test]
async fn each_api_passes_byte_for_byte_and_its_sessions_stay_at_home() {
    let (a, b) = (Worker::start("a", echo).await, Worker::start("b", echo).await);
    // What is injected into chats is not asked of these.
    let extra = [("index.source", "'auto'"), ("index.verify", "'inject_usage'")];
    let world = World::start(&extra, &[&a, &b]).await;
    for (path, body) in BODIES {
        let session = [("x-claude-code-session-id", path)];
        let first = world.ask(&post(path, &session, body.as_bytes())).await;
        assert_eq!((first.status, first.text()), (200, body), "{path}");
        let generates = path != COUNT;
        assert_eq!(first.affinity(), if generates { "new" } else { "none" }, "{path}");
        let home = first.worker().to_owned();
        for _ in 0..4 {
            let next = world.ask(&post(path, &session, body.as_bytes())).await;
            assert!(!generates || (next.affinity(), next.worker()) == ("hit", &*home), "{path}");
        }
        let worker = if home == "a" { &a } else { &b };
        let asked = worker.asked().await.last().unwrap().clone();
        let line = format!("POST {path} HTTP/1.1");
        assert_eq!((asked.line, asked.body), (line, body.as_bytes().to_vec()));
    }
    assert_eq!(world.stats().bindings, 2, "who only counts tokens is no turn");
    for endpoint in ["responses", "messages", "count_tokens"] {
        let series = format!(
            "homing_requests_total{{model=\"m\",endpoint=\"{endpoint}\",status=\"200\",code=\"\"}}"
        );
        assert_eq!(world.metric(&series).await, 5.0, "{endpoint}");
    }
    world.end().await;
}

#[tokio::test]
async fn r11_a_stream_is_a_lease_from_its_first_data_to_its_end() {
    for (path, events) in EVENTS {
        let open = gate();
        let held = open.clone();
        let worker = Worker::start("a", move |_| {
            let mut acts = begun(&[events[0]]);
            acts.push(Act::Hold(held.clone()));
            acts.extend(stream(&[events[1]]).split_off(1));
            acts
        })
        .await;
        let world = World::start(&[], &[&worker]).await;
        let mut client = world.client().await;
        client.send(&streamed(path, &[("x-homing-session-id", "s")])).await;
        let mut answer = in_time("the head", client.head()).await;
        in_time("the first event", client.until(&mut answer, events[0])).await;
        assert_eq!((answer.affinity(), world.stats().leases), ("new", 1), "{path}");
        open.add_permits(1);
        in_time("the end", client.rest(&mut answer)).await;
        assert!(answer.clean, "{path}");
        assert_eq!(answer.body, events.concat(), "{path}");
        world.end().await;
    }
}

#[tokio::test]
async fn f46_a_stream_that_breaks_off_ends_with_an_error_event_of_its_api() {
    for (path, events) in EVENTS {
        let seen = gate();
        let theirs = seen.clone();
        let worker = Worker::start("a", move |_| {
            let mut acts = begun(&[events[0], b"event: more\ndata: {\"to"]);
            acts.extend([Act::Hold(theirs.clone()), Act::Reset]);
            acts
        })
        .await;
        let world = World::start(&[], &[&worker]).await;
        let mut client = world.client().await;
        client.send(&streamed(path, &[])).await;
        let mut answer = in_time("the head", client.head()).await;
        in_time("the first event", client.until(&mut answer, events[0])).await;
        seen.add_permits(1);
        in_time("the end", client.rest(&mut answer)).await;
        assert!(!answer.clean, "{path}");
        let rest = answer.body.strip_prefix(events[0]).unwrap();
        let data = rest.strip_prefix(b"event: error\ndata: ").unwrap().strip_suffix(b"\n\n");
        let mut said: Value = serde_json::from_slice(data.unwrap()).unwrap();
        let expected = match path {
            RESPONSES => {
                assert!(said.as_object_mut().unwrap().remove("message").is_some());
                json!({"type": "error", "code": "worker_error", "param": null, "sequence_number": 1})
            }
            _ => {
                assert!(said["error"].as_object_mut().unwrap().remove("message").is_some());
                json!({"type": "error", "error": {"type": "api_error"}})
            }
        };
        assert_eq!(said, expected, "{path}");
        world.end().await;
    }
}

#[tokio::test]
async fn refusals_have_the_shape_of_the_api() {
    let worker = Worker::start("a", echo).await;
    let world = World::start(&[], &[&worker]).await;
    let class = |answer: &super::client::Answer| {
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["type"], "error", "{}", answer.text());
        (answer.status, body["error"]["type"].as_str().unwrap().to_owned())
    };
    let unknown = br#"{"model":"x","messages":[],"input":"Hi"}"#;
    for path in [MESSAGES, COUNT] {
        let wants = |status, kind: &str| (status, kind.to_owned());
        assert_eq!(
            class(&world.ask(&post(path, &[], unknown)).await),
            wants(404, "not_found_error")
        );
        let no_messages = br#"{"model":"m"}"#;
        let answer = world.ask(&post(path, &[], no_messages)).await;
        assert_eq!(class(&answer), wants(400, "invalid_request_error"));
        assert!(answer.text().contains("`messages`"), "{}", answer.text());
        assert_eq!(class(&world.ask(&get(path)).await), wants(405, "invalid_request_error"));
        let away = [("x-homing-allowed-workers", "nobody")];
        let answer = world.ask(&post(path, &away, br#"{"model":"m","messages":[]}"#)).await;
        assert_eq!(class(&answer), wants(503, "overloaded_error"));
        assert_eq!(answer.header("retry-after").len(), 1);
    }
    let batches = world.ask(&post("/v1/messages/batches", &[], b"{}")).await;
    assert_eq!(class(&batches), (404, "not_found_error".to_owned()));
    world.ask(&post(RESPONSES, &[], unknown)).await.assert_refused(404, "model_not_found", "none");
    let answer = world.ask(&post(RESPONSES, &[], br#"{"model":"m"}"#)).await;
    answer.assert_refused(400, "invalid_request", "none");
    assert!(worker.asked().await.is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_prompt_is_known_by_its_text_whatever_its_marks() {
    let worker = Worker::start("a", |_| vec![Act::Send(plain(200, "{}"))]).await;
    let world = World::start(&[("index.source", "'approximate'")], &[&worker]).await;
    let long = "word ".repeat(2000);
    let turn = |bill: &str, marked: bool, more: bool| {
        let mut said = json!([{"role": "user", "content": [{"type": "text", "text": long}]}]);
        if marked {
            said[0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        }
        if more {
            said.as_array_mut().unwrap().push(json!({"role": "user", "content": "Go on."}));
        }
        let system =
            json!([{"type": "text", "text": format!("x-anthropic-billing-header: {bill}")}]);
        json!({"model": "m", "system": system, "messages": said}).to_string().into_bytes()
    };
    let cached = async |path: &str, body: Vec<u8>| {
        let answer = world.ask(&post(path, &[], &body)).await;
        assert_eq!(answer.status, 200);
        answer.header("x-homing-cached-tokens").first().map(|n| n.parse::<u32>().unwrap())
    };
    assert_eq!(cached(COUNT, turn("1", true, false)).await, None);
    assert_eq!(cached(MESSAGES, turn("1", true, false)).await, Some(0), "counting left nothing");
    assert!(cached(MESSAGES, turn("2", false, true)).await > Some(2000));
    // What only the worker has stored is nobody else's beginning.
    let input = |id: &str| {
        let body = json!({"model": "m", "input": long, "previous_response_id": id});
        body.to_string().into_bytes()
    };
    assert_eq!(cached(RESPONSES, input("r1")).await, Some(0));
    assert_eq!(cached(RESPONSES, input("r2")).await, Some(0));
    assert!(cached(RESPONSES, input("r1")).await > Some(2000));
    world.end().await;
}
