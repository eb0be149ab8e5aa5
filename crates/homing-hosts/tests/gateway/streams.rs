//! Streams whose worker dies: before it has begun to answer, so that another one answers; and after, so
//! that the client is told.

use super::client::{Answer, chat, post, streamed};
use super::worker::{Act, STREAM, Worker, begun, chunk, ok, stream};
use super::world::{World, in_time};
use homing_core::fleet::State;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const WHOLE: [&[u8]; 3] = [b"data: {\"n\":1}\n\n", b"data: {\"n\":2}\n\n", b"data: [DONE]\n\n"];

/// Two workers that count their requests together; what the `n`th gets is up to `script`.
async fn two(script: impl Fn(usize) -> Vec<Act> + Send + Sync + 'static) -> [Worker; 2] {
    let (count, script) = (Arc::new(AtomicUsize::new(0)), Arc::new(script));
    let next = || {
        let (count, script) = (count.clone(), script.clone());
        move |_: &super::worker::Asked| script(count.fetch_add(1, Ordering::SeqCst))
    };
    [Worker::start("w0", next()).await, Worker::start("w1", next()).await]
}

/// The ways to die before the first data line.
fn early_deaths() -> Vec<(&'static str, Vec<Act>)> {
    let head = || Act::Send(STREAM.into());
    vec![
        ("closed without a byte", vec![Act::Close]),
        ("reset without a byte", vec![Act::Reset]),
        ("closed within the head", vec![Act::Send(STREAM.as_bytes()[..20].to_vec()), Act::Close]),
        ("no HTTP at all", vec![Act::Send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()), Act::Close]),
        ("closed after the head", vec![head(), Act::Close]),
        ("reset after the head", vec![head(), Act::Reset]),
        (
            "closed after comments",
            vec![head(), Act::Send(chunk(b": ping\n\n: ping\n\n")), Act::Close],
        ),
        ("closed in the first event", vec![head(), Act::Send(chunk(b"id: 1\ndat")), Act::Close]),
        (
            "closed in the first line",
            vec![head(), Act::Send(chunk(b"data: {\"n\":9}")), Act::Close],
        ),
        ("closed within a chunk", vec![head(), Act::Send(b"40\r\ndata: {".to_vec()), Act::Close]),
    ]
}

#[tokio::test]
async fn f63_a_stream_that_dies_before_its_first_data_is_answered_by_another_worker() {
    for (how, death) in early_deaths() {
        let workers = two(move |n| if n == 0 { death.clone() } else { stream(&WHOLE) }).await;
        let world = World::start(&[], &[&workers[0], &workers[1]]).await;
        let answer = world.ask(&streamed(&[("x-homing-session-id", "s")])).await;
        assert_eq!((answer.status, answer.clean), (200, true), "{how}");
        assert_eq!(answer.body, WHOLE.concat(), "{how}: exactly one answer");
        assert_eq!(answer.affinity(), "new", "{how}: R22");
        for w in &workers {
            assert_eq!(w.asked().await.len(), 1, "{how}");
            assert_eq!(world.state(w.name), Some(State::Ready), "{how}: no probe has failed (F65)");
        }
        let retries = "homing_retries_total{reason=\"broken\"}";
        assert_eq!(world.metric(retries).await, 1.0, "{how}");
        // R03: bound where it ran, and that is where the next turn goes.
        let home = answer.worker().to_owned();
        let next = world.ask(&streamed(&[("x-homing-session-id", "s")])).await;
        assert_eq!((next.affinity(), next.worker()), ("hit", home.as_str()), "{how}");
        world.end().await;
    }
}

#[tokio::test]
async fn r22_a_bound_session_whose_worker_dies_in_prefill_moves_and_binds_there() {
    let death = || vec![Act::Send(STREAM.into()), Act::Reset];
    let workers = two(move |n| if n == 1 { death() } else { stream(&WHOLE) }).await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    let turn = || streamed(&[("x-homing-session-id", "s")]);
    let first = world.ask(&turn()).await;
    let second = world.ask(&turn()).await;
    assert_eq!((first.affinity(), second.affinity()), ("new", "rebound"));
    assert_ne!(first.worker(), second.worker());
    assert_eq!(second.body, WHOLE.concat());
    let third = world.ask(&turn()).await;
    assert_eq!((third.affinity(), third.worker()), ("hit", second.worker()));
    world.end().await;
}

#[tokio::test]
async fn r12_a_plain_request_that_no_worker_answers_is_502_and_binds_nothing() {
    let workers = two(|_| vec![Act::Close]).await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    for request in [chat, streamed] {
        let answer = world.ask(&request(&[("x-homing-session-id", "s")])).await;
        assert_eq!((answer.status, answer.code().as_str()), (502, "worker_error"));
        assert_eq!(answer.affinity(), "unbound");
        assert_eq!(answer.header("x-should-retry"), ["false"], "it may have run");
        assert!(answer.header("retry-after").is_empty());
    }
    assert_eq!(world.stats().bindings, 0);
    for w in &workers {
        assert_eq!(w.asked().await.len(), 2, "`retry.attempts` is 1: each request tried both");
    }
    assert_eq!(world.metric("homing_retries_total{reason=\"broken\"}").await, 2.0);
    world.end().await;
}

#[tokio::test]
async fn f37_without_attempts_nothing_is_tried_again() {
    let workers = two(|n| if n == 0 { vec![Act::Close] } else { ok() }).await;
    let world = World::start(&[("retry.attempts", "0")], &[&workers[0], &workers[1]]).await;
    assert_eq!(world.ask(&chat(&[])).await.status, 502);
    assert_eq!(workers[0].asked().await.len() + workers[1].asked().await.len(), 1);
    assert_eq!(world.metric("homing_retries_total{reason=\"broken\"}").await, 0.0);
    world.end().await;
}

/// Asserts that an answer is these bytes, one error event, and a cut.
fn assert_told(answer: &Answer, whole: &[u8], code: &str, how: &str) {
    assert_eq!((answer.status, answer.clean), (200, false), "{how}");
    let rest = answer.body.strip_prefix(whole);
    let rest = rest.unwrap_or_else(|| panic!("{how}: {:?}", answer.text()));
    let event = rest.strip_prefix(b"data: ").and_then(|r| r.strip_suffix(b"\n\n"));
    let event = event.unwrap_or_else(|| panic!("{how}: {:?}", answer.text()));
    let error: serde_json::Value = serde_json::from_slice(event).unwrap();
    assert_eq!(error["error"]["code"], code, "{how}");
    assert_eq!(error["error"]["type"], "server_error", "{how}");
    assert!(error["error"]["message"].is_string() && error["error"]["param"].is_null());
}

/// Where it dies, the pieces behind the two whole events, and what of them passes.
type Torn = (&'static str, &'static [&'static [u8]], &'static [u8]);

#[tokio::test]
async fn f46_a_stream_that_dies_after_its_first_data_ends_with_an_error_event_and_a_cut() {
    let torn: [Torn; 7] = [
        ("between two events", &[], b""),
        ("within a line", &[b"data: {\"n\":3"], b""),
        ("before the blank line", &[b"data: {\"n\":3}\n"], b""),
        ("within the blank line", &[b"data: {\"n\":3}\r\n\r"], b"data: {\"n\":3}\r\n\r"),
        ("within [DONE]", &[b"data: [DON"], b""),
        ("before [DONE]'s blank line", &[b"data: [DONE]\n"], b""),
        ("in pieces", &[b"event: x\nda", b"ta: 3\ndata:", b" 4\n"], b""),
    ];
    for (how, tail, passes) in torn {
        for end in [Act::Close, Act::Reset] {
            let pieces: Vec<&[u8]> = WHOLE[..2].iter().chain(tail).copied().collect();
            let mut acts = begun(&pieces);
            // What was sent before a reset may be lost with it; so it follows the client's look.
            let seen = super::worker::gate();
            acts.extend([Act::Hold(seen.clone()), end]);
            let workers = two(move |_| acts.clone()).await;
            let world = World::start(&[], &[&workers[0], &workers[1]]).await;
            let mut client = world.client().await;
            client.send(&streamed(&[("x-homing-session-id", "s")])).await;
            let mut answer = in_time("the head", client.head()).await;
            in_time("an event", client.until(&mut answer, WHOLE[1])).await;
            assert_eq!(answer.affinity(), "new");
            assert_eq!(world.stats().leases, 1);
            seen.add_permits(1);
            in_time("the end", client.rest(&mut answer)).await;
            let whole = [&WHOLE[..2].concat(), passes].concat();
            assert_told(&answer, &whole, "worker_error", how);
            assert!(!answer.text().contains("[DON"), "{how}");
            world.quiet().await;
            let asked = workers[0].asked().await.len() + workers[1].asked().await.len();
            assert_eq!(asked, 1, "{how}: what has begun is not begun again (F37)");
            assert_eq!(world.stats().bindings, 1, "{how}: it had begun to answer (R11)");
            world.end().await;
        }
    }
}

#[tokio::test]
async fn f46_a_torn_first_event_is_not_completed() {
    let workers = two(|_| {
        let mut acts = begun(&[b": hello\n\ndata: {\"n\":1}\ndata: {\"m\""]);
        acts.push(Act::Close);
        acts
    })
    .await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert_told(&answer, b": hello\n\n", "worker_error", "in the first event");
    world.end().await;
}

#[tokio::test]
async fn f46_an_event_too_long_to_be_held_is_cut_and_not_completed() {
    let long = [b"data: ".as_slice(), &vec![b'x'; 3 << 20]].concat();
    let theirs = long.clone();
    let workers = two(move |_| {
        let mut acts = begun(&[b"data: 1\n\n"]);
        acts.extend(theirs.chunks(60_000).map(|p| Act::Send(chunk(p))));
        acts.push(Act::Close);
        acts
    })
    .await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert!(!answer.clean);
    let rest = answer.body.strip_prefix(b"data: 1\n\n").unwrap();
    assert!(rest.len() >= 1 << 20, "beyond the bound it passes");
    assert!(long.starts_with(rest), "an error event would have completed it");
    world.end().await;
}

#[tokio::test]
async fn an_event_too_long_to_be_held_passes_whole() {
    let long = [b"data: ".as_slice(), &vec![b'x'; 3 << 20], b"\n\ndata: 2\n\n"].concat();
    let theirs = long.clone();
    let workers = two(move |_| {
        let pieces: Vec<&[u8]> = theirs.chunks(60_000).collect();
        stream(&pieces)
    })
    .await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert!(answer.clean && answer.body == long);
    world.end().await;
}

#[tokio::test]
async fn f46_a_stream_with_a_length_gets_no_event_that_would_fill_it_up() {
    let workers = two(|_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    content-length: 60\r\n\r\ndata: 1\n\n";
        vec![Act::Send(head.into()), Act::Close]
    })
    .await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    let answer = world.ask(&streamed(&[])).await;
    assert_eq!((answer.clean, answer.text()), (false, "data: 1\n\n"));
    world.end().await;
}

#[tokio::test]
async fn a_stream_may_end_without_data_and_a_plain_answer_may_follow_a_stream_request() {
    let workers = two(|n| match n {
        0 => stream(&[b": nothing to say\n\n"]),
        1 => stream(&[]),
        _ => ok(),
    })
    .await;
    let world = World::start(&[], &[&workers[0], &workers[1]]).await;
    for body in [": nothing to say\n\n", "", r#"{"id":"x","choices":[]}"#] {
        let body_sent = br#"{"model":"m","stream":true,"prompt":"x"}"#;
        let answer = world.ask(&post("/v1/completions", &[], body_sent)).await;
        assert_eq!((answer.status, answer.clean, answer.text()), (200, true, body));
    }
    world.end().await;
}
