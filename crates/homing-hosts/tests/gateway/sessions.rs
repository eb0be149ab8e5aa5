//! What names a session (R01), how firmly it is bound (R20), and what it is scoped by.

use super::client::{Answer, chat, post};
use super::worker::{Act, Worker, gate, ok};
use super::world::World;

/// In the order of precedence.
const HEADERS: [&str; 16] = [
    "x-homing-session-id",
    "x-dynamo-session-affinity-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-smg-routing-key",
    "x-sgl-routing-key",
    "x-litellm-session-id",
    "x-bf-session-id",
    "x-aibrix-session-key",
    "x-cache-affinity-key",
    "x-multi-turn-session-id",
    "x-grok-conv-id",
];
/// Refused where they are wrong; of the others a wrong one counts as absent.
const OWN: usize = 3;

async fn fleet() -> [Worker; 2] {
    [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await]
}

fn body(fields: &str) -> Vec<u8> {
    let body = format!("{{\"model\":\"m\",{fields}\"messages\":[]}}");
    post("/v1/chat/completions", &[], body.as_bytes())
}

fn refused(answer: &Answer) -> (u16, String) {
    (answer.status, answer.code())
}

#[tokio::test]
async fn r01_each_header_names_a_session_in_the_order_of_precedence() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    for (i, header) in HEADERS.into_iter().enumerate() {
        let id = format!("id-of-{header}");
        assert_eq!(world.ask(&chat(&[(header, &id)])).await.affinity(), "new", "{header}");
        assert_eq!(world.ask(&chat(&[(header, &id)])).await.affinity(), "hit", "{header}");
        assert_eq!(world.stats().bindings, i + 1);
        // It wins over all later ones, whichever comes first on the wire.
        let mut all: Vec<(&str, &str)> = HEADERS[i..].iter().map(|h| (*h, "other")).collect();
        all[0].1 = &id;
        all.reverse();
        assert_eq!(world.ask(&chat(&all)).await.affinity(), "hit", "{header}");
        assert_eq!(world.stats().bindings, i + 1, "{header}: the others name nothing");
    }
    // The same id is the same session, whoever names it.
    let id = "id-of-x-session-id";
    assert_eq!(world.ask(&chat(&[("x-grok-conv-id", id)])).await.affinity(), "hit");
    // And what names requests or users names no session (F04).
    for header in ["x-request-id", "traceparent", "x-user-id", "cookie"] {
        assert_eq!(world.ask(&chat(&[(header, id)])).await.affinity(), "none", "{header}");
    }
    world.end().await;
}

#[tokio::test]
async fn f02_keys_match_exactly() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    for (i, id) in ["s-1", "s-12", "S-1", "s-1 x", "s", "1-s", "\"s-1\""].into_iter().enumerate() {
        assert_eq!(
            world.ask(&chat(&[("x-homing-session-id", id)])).await.affinity(),
            "new",
            "{id}"
        );
        assert_eq!(world.stats().bindings, i + 1);
    }
    world.end().await;
}

#[tokio::test]
async fn r01_an_empty_value_counts_as_absent() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    assert_eq!(world.ask(&chat(&[("x-session-id", "s")])).await.affinity(), "new");
    let empty = [("x-homing-session-id", ""), ("x-dynamo-session-id", "  "), ("x-session-id", "s")];
    assert_eq!(world.ask(&chat(&empty)).await.affinity(), "hit");
    let twice = [("x-homing-session-id", ""), ("x-homing-session-id", "s")];
    assert_eq!(world.ask(&chat(&twice)).await.affinity(), "hit");
    assert_eq!(world.ask(&chat(&[("x-homing-session-id", "")])).await.affinity(), "none");
    assert_eq!(world.ask(&body(r#""prompt_cache_key":"","#)).await.affinity(), "none");
    world.end().await;
}

#[tokio::test]
async fn r01_f06_our_own_headers_are_refused_where_they_are_wrong() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    let (fits, too_long) = ("x".repeat(256), "x".repeat(257));
    for header in &HEADERS[..OWN] {
        assert_eq!(world.ask(&chat(&[(header, &fits)])).await.status, 200, "{header}");
        for wrong in [
            &[(*header, too_long.as_str())][..],
            &[(*header, "a\tb")],
            &[(*header, "one"), (*header, "two")],
            &[(*header, "one"), (*header, ""), (*header, "two")],
        ] {
            let answer = world.ask(&chat(wrong)).await;
            assert_eq!(refused(&answer), (400, "invalid_session_id".into()), "{header}");
            assert!(answer.text().contains(header));
            assert!(!answer.text().contains("xxxx"), "an id is not echoed");
        }
        let same = [(*header, "one"), (*header, "one")];
        assert_eq!(world.ask(&chat(&same)).await.status, 200, "{header}: twice the same is one");
    }
    assert_eq!(a.asked().await.len() + b.asked().await.len(), 2 * OWN, "the workers saw the good");
    assert_eq!(world.metric("homing_affinity_ignored_keys_total").await, 0.0);
    world.end().await;
}

#[tokio::test]
async fn r01_f06_other_tools_ids_are_taken_up_to_4_kib_and_beyond_that_counted() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    let (fits, too_long) = ("x".repeat(4096), "x".repeat(4097));
    assert_eq!(world.ask(&chat(&[("x-session-id", &fits)])).await.affinity(), "new");
    assert_eq!(world.ask(&chat(&[("x-session-id", &fits)])).await.affinity(), "hit");
    assert_eq!(world.metric("homing_affinity_ignored_keys_total").await, 0.0);
    let next = [("x-session-id", too_long.as_str()), ("session-id", &fits)];
    assert_eq!(world.ask(&chat(&next)).await.affinity(), "hit", "the next source is tried");
    assert_eq!(world.ask(&chat(&[("x-session-id", &too_long)])).await.affinity(), "none");
    assert_eq!(world.metric("homing_affinity_ignored_keys_total").await, 2.0);
    let long_field = body(&format!("\"prompt_cache_key\":\"{too_long}\","));
    assert_eq!(world.ask(&long_field).await.affinity(), "none");
    assert_eq!(world.metric("homing_affinity_ignored_keys_total").await, 3.0);
    assert_eq!(world.stats().bindings, 1);
    world.end().await;
}

#[tokio::test]
async fn r01_an_id_is_bytes() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    for (header, n) in [("x-homing-session-id", 1), ("session_id", 2)] {
        let mut request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\n".to_vec();
        request.extend(format!("content-length: 27\r\n{header}: ").as_bytes());
        request.extend([0xff, 0xfe, b'a', b'0' + n, 0x80]);
        request.extend(b"\r\n\r\n{\"model\":\"m\",\"messages\":[]}");
        assert_eq!(world.ask(&request).await.affinity(), "new", "{header}");
        assert_eq!(world.ask(&request).await.affinity(), "hit", "{header}");
    }
    world.end().await;
}

#[tokio::test]
async fn r01_body_fields_come_after_headers_and_f05_are_parsed_not_searched_for() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    assert_eq!(world.ask(&body(r#""prompt_cache_key":"k","#)).await.affinity(), "new");
    for same in [
        r#""prompt_cache_key":"\u006b","#,
        r#""prompt_cache_key":"x","prompt_cache_key":"k","#,
        r#""metadata":{"user_id":"{\"session_id\":\"k\"}"},"#,
        r#""prompt_cache_key":null,"metadata":{"user_id":"{\"session_id\":\"k\"}"},"#,
        r#""prompt_cache_key":"k","metadata":{"user_id":"{\"session_id\":\"x\"}"},"#,
    ] {
        assert_eq!(world.ask(&body(same)).await.affinity(), "hit", "{same}");
    }
    for none in [
        r#""tools":[{"prompt_cache_key":"k"}],"#,
        r#""x":"\"prompt_cache_key\":\"k\"","#,
        r#""metadata":{"user_id":"k"},"#,
        r#""user":"k","#,
        r#""prompt_cache_key":["k"],"#,
    ] {
        assert_eq!(world.ask(&body(none)).await.affinity(), "none", "{none}");
    }
    let text = br#"{"model":"m","messages":[],"prompt_cache_key":"k"}"#;
    let both = post("/v1/chat/completions", &[("x-session-id", "h")], text);
    assert_eq!(world.ask(&both).await.affinity(), "new", "the header wins");
    assert_eq!(world.stats().bindings, 2);
    world.end().await;
}

#[tokio::test]
async fn r01_what_a_body_names_binds_softly_and_r20_the_request_may_say_otherwise() {
    let [a, b] = fleet().await;
    // A worker that is down but known is a Hard session's to wait for, and a Soft one's to leave.
    let strict = [("affinity.on_down", "'reject'")];
    let world = World::start(&strict, &[&a, &b]).await;
    let ask = |id: &str, mode: Option<&str>, in_body: bool| {
        let mut headers: Vec<(&str, &str)> =
            mode.map(|m| ("x-homing-affinity", m)).into_iter().collect();
        let mut field = String::new();
        if in_body {
            field = format!("\"prompt_cache_key\":\"{id}\",");
        } else {
            headers.push(("x-homing-session-id", id));
        }
        let text = format!("{{\"model\":\"m\",{field}\"messages\":[]}}");
        post("/v1/chat/completions", &headers, text.as_bytes())
    };
    // All of them live with the same worker, which dies.
    let kinds = [
        ("header", None, false, "rejected"),
        ("body", None, true, "rebound"),
        ("header-soft", Some("soft"), false, "rebound"),
        ("body-hard", Some("hard"), true, "rejected"),
        ("header-off", Some("off"), false, "none"),
    ];
    let mut tries = 0..;
    let mut ids = Vec::new();
    for (_, _, in_body, _) in kinds {
        loop {
            let id = format!("s{}", tries.next().unwrap());
            if world.ask(&ask(&id, None, in_body)).await.worker() == "a" {
                ids.push(id);
                break;
            }
        }
    }
    a.die().await;
    super::world::eventually("it is noticed", || {
        world.state("a") == Some(homing_core::fleet::State::Down)
    })
    .await;
    for ((kind, mode, in_body, outcome), id) in kinds.into_iter().zip(&ids) {
        let answer = world.ask(&ask(id, mode, in_body)).await;
        assert_eq!(answer.affinity(), outcome, "{kind}");
        match outcome {
            "rejected" => {
                assert_eq!(refused(&answer), (503, "affinity_target_unavailable".into()), "{kind}");
                assert!(!answer.header("retry-after").is_empty());
            }
            _ => assert_eq!((answer.status, answer.worker()), (200, "b"), "{kind}"),
        }
    }
    world.end().await;
}

#[tokio::test]
async fn r20_an_unknown_mode_is_400_and_off_touches_nothing() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    for mode in ["HARD", "", "none", "hard, soft"] {
        let headers = [("x-homing-affinity", mode), ("x-homing-session-id", "s")];
        let answer = world.ask(&chat(&headers)).await;
        assert_eq!(refused(&answer), (400, "invalid_request".into()), "{mode:?}");
    }
    let off = [("x-homing-affinity", "off"), ("x-homing-session-id", "s")];
    assert_eq!(world.ask(&chat(&off)).await.affinity(), "none");
    assert_eq!(world.stats().bindings, 0);
    assert!(a.asked().await.len() + b.asked().await.len() == 1);
    world.end().await;
}

#[tokio::test]
async fn r02_with_ttl_off_a_session_is_passive() {
    let [a, b] = fleet().await;
    let world = World::start(&[("affinity.ttl", "'off'")], &[&a, &b]).await;
    for _ in 0..3 {
        assert_eq!(world.ask(&chat(&[("x-homing-session-id", "s")])).await.affinity(), "none");
    }
    assert_eq!(world.stats().bindings, 0);
    world.end().await;
}

#[tokio::test]
async fn r01_f07_f69_names_of_a_pool_share_sessions_and_adapters_have_their_own() {
    let models = r#"{"data":[{"id":"base","root":"/m"},{"id":"alias","root":"/m"},
        {"id":"lora","parent":"base"},{"id":"lora-2","parent":"base"}]}"#;
    let a = Worker::at("a", "", models, |_| ok()).await;
    let b = Worker::at("b", "", models, |_| ok()).await;
    let other = Worker::at("c", "", r#"{"data":[{"id":"elsewhere"}]}"#, |_| ok()).await;
    let world = World::start(&[], &[&a, &b, &other]).await;
    let of = |model: &str| {
        let body = format!("{{\"model\":\"{model}\",\"messages\":[]}}");
        post("/v1/chat/completions", &[("x-homing-session-id", "s")], body.as_bytes())
    };
    let first = world.ask(&of("base")).await;
    assert_eq!(first.affinity(), "new");
    let alias = world.ask(&of("alias")).await;
    assert_eq!((alias.affinity(), alias.worker()), ("hit", first.worker()));
    for model in ["lora", "lora-2", "elsewhere"] {
        assert_eq!(world.ask(&of(model)).await.affinity(), "new", "{model}");
        assert_eq!(world.ask(&of(model)).await.affinity(), "hit", "{model}");
    }
    assert_eq!(world.ask(&of("base")).await.affinity(), "hit", "nobody evicted it");
    assert_eq!(world.stats().bindings, 4);
    world.end().await;
}

#[tokio::test]
async fn f03_requests_without_a_session_spread() {
    let [a, b] = fleet().await;
    for policy in ["'kv'", "'least_loaded'", "'round_robin'", "'random'"] {
        let (before_a, before_b) = (a.asked().await.len(), b.asked().await.len());
        let world = World::start(&[("routing.policy", policy)], &[&a, &b]).await;
        for _ in 0..64 {
            assert_eq!(world.ask(&chat(&[])).await.affinity(), "none");
        }
        for (w, before) in [(&a, before_a), (&b, before_b)] {
            assert!(w.asked().await.len() - before >= 8, "{policy}: {} is left out", w.name);
        }
        world.end().await;
    }
}

#[tokio::test]
async fn r04_concurrent_first_turns_go_together() {
    let open = gate();
    let held = [open.clone(), open.clone()];
    let [a, b] =
        held.map(|g| move |_: &super::worker::Asked| [vec![Act::Hold(g.clone())], ok()].concat());
    let (a, b) = (Worker::start("a", a).await, Worker::start("b", b).await);
    let world = World::start(&[], &[&a, &b]).await;
    let mut clients = Vec::new();
    for n in 1..=6 {
        let mut client = world.client().await;
        client.send(&chat(&[("x-homing-session-id", "s")])).await;
        // None waits for another's answer: all are at work before the first has begun to answer.
        super::world::eventually("it is at work", || a.busy() + b.busy() == n).await;
        clients.push(client);
    }
    assert_eq!(a.busy() * b.busy(), 0, "all at one worker");
    open.add_permits(6);
    let mut told = Vec::new();
    for client in &mut clients {
        let answer = super::world::in_time("an answer", client.answer()).await;
        told.push(answer.affinity().to_owned());
    }
    told.sort();
    assert_eq!(told.iter().filter(|o| *o == "new").count(), 1, "{told:?}");
    assert!(told.iter().all(|o| o == "new" || o == "joined"), "{told:?}");
    assert_eq!(world.stats().bindings, 1);
    world.end().await;
}
