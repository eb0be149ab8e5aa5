//! Workers that are up and not well (F61 to F67): bytes are life, green is not.

use super::client::{chat, streamed, turn};
use super::worker::{Act, Mood, Worker, begun, feels, gate, moody, ok, plain, stall, stream};
use super::world::{World, eventually, in_time};

const FIRST: &[u8] = b"data: {\"id\":\"1\"}\n\n";

#[tokio::test]
async fn f61_a_worker_that_answers_everything_with_500_attracts_nothing() {
    let good = Worker::start("good", |_| ok()).await;
    let bad = Worker::start("bad", |_| vec![Act::Send(plain(500, "{}"))]).await;
    let world = World::start(&[("routing.policy", "'least_loaded'")], &[&good, &bad]).await;
    let mut errors = 0;
    for _ in 0..60 {
        errors += u32::from(world.ask(&chat(&[])).await.status == 500);
    }
    assert!((5..=7).contains(&errors), "five, and a trial a second: {errors}");
    assert_eq!(world.told("bad").await, "failing");
    assert_eq!(world.metric("homing_worker_up{worker=\"bad\"}").await, 0.0);
    world.end().await;
}

#[tokio::test]
async fn f61_it_is_used_again_once_a_trial_goes_well() {
    let (good, _) = moody("good").await;
    let (bad, mood) = moody("bad").await;
    feels(&mood, Mood::Resets);
    let world = World::start(&[("routing.policy", "'round_robin'")], &[&good, &bad]).await;
    for _ in 0..20 {
        assert_eq!(world.ask(&chat(&[])).await.status, 200, "failover covers it");
    }
    assert_eq!(world.told("bad").await, "failing");
    feels(&mood, Mood::Fine);
    in_time("it is well", async {
        while world.told("bad").await != "ready" {
            assert_eq!(world.ask(&chat(&[])).await.status, 200);
        }
    })
    .await;
    world.end().await;
}

#[tokio::test]
async fn f33_load_and_mistakes_of_clients_are_no_faults() {
    let (only, mood) = moody("only").await;
    let bad = Worker::start("bad", |_| vec![Act::Send(plain(400, "{}"))]).await;
    let world = World::start(&[], &[&only, &bad]).await;
    for status in [429, 503] {
        feels(&mood, Mood::Full(status, 0));
        for _ in 0..8 {
            world.ask(&chat(&[("x-homing-worker", "only")])).await;
            world.ask(&chat(&[("x-homing-worker", "bad")])).await;
        }
    }
    assert_ne!(world.told("only").await, "failing");
    assert_eq!(world.told("bad").await, "ready");
    world.end().await;
}

#[tokio::test]
async fn f64_a_stream_that_is_mute_while_its_workers_port_refuses_ends_now() {
    let begun_here = Worker::start("a", |_| [begun(&[FIRST]), vec![stall()]].concat()).await;
    let world = World::start(&[], &[&begun_here]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[])).await;
    let mut answer = client.head().await;
    client.until(&mut answer, FIRST).await;
    // The process is there still, and so is the connection; its port is not.
    begun_here.refuse().await;
    in_time("the end", client.rest(&mut answer)).await;
    assert!(answer.text().contains("worker_error"), "{}", answer.text());
    assert!(!answer.clean, "the connection is closed, not ended");
    world.end().await;
}

#[tokio::test]
async fn f64_one_that_has_not_begun_moves() {
    let stuck = Worker::start("stuck", |_| vec![stall()]).await;
    let other = Worker::start("other", |_| stream(&[FIRST, b"data: [DONE]\n\n"])).await;
    let world = World::start(&[("routing.policy", "'round_robin'")], &[&stuck, &other]).await;
    let mut clients = Vec::new();
    while stuck.busy() == 0 {
        let mut client = world.client().await;
        client.send(&streamed(&[])).await;
        clients.push(client);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    stuck.refuse().await;
    for mut client in clients {
        let answer = in_time("an answer", client.answer()).await;
        assert_eq!((answer.status, answer.worker()), (200, "other"));
    }
    world.end().await;
}

#[tokio::test]
async fn f64_one_whose_bytes_come_goes_on() {
    let open = gate();
    let theirs = open.clone();
    let slow = Worker::start("a", move |_| {
        let pieces = (0..6)
            .flat_map(|_| [Act::Hold(theirs.clone()), Act::Send(super::worker::chunk(FIRST))]);
        let end = [Act::Hold(theirs.clone()), Act::Send(super::worker::LAST.into())];
        [begun(&[FIRST]), pieces.collect(), end.to_vec()].concat()
    })
    .await;
    let world = World::start(&[], &[&slow]).await;
    let mut client = world.client().await;
    client.send(&streamed(&[])).await;
    let mut answer = client.head().await;
    client.until(&mut answer, FIRST).await;
    slow.refuse().await;
    for _ in 0..7 {
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        open.add_permits(1);
    }
    in_time("the end", client.rest(&mut answer)).await;
    assert!(answer.clean, "{}", answer.text());
    assert_eq!(answer.body, FIRST.repeat(7));
    world.end().await;
}

#[tokio::test]
async fn f67_a_worker_that_wants_a_key_is_unauthorized_and_its_model_no_mistake_of_clients() {
    let locked = Worker::locked("locked", |_| ok()).await;
    let world = World::cold(&[], &[&locked]).await;
    in_time("it is known", async {
        while world.told("locked").await != "unauthorized" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let answer = world.ask(&turn("s")).await;
    answer.assert_refused(503, "starting", "rejected");
    eventually("nothing ran", || locked.asked_now() == 0).await;
    world.end().await;
}

/// An event of a chat.
fn said(id: &str, content: &str) -> Vec<u8> {
    format!("data: {{\"id\":\"{id}\",\"created\":1,\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":null}}]}}\n\n")
        .into_bytes()
}

const CHAT: &[u8] =
    br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"count"}]}"#;

/// Two workers: whichever is asked first says `one ` and `two `, and breaks off in the midst of its third event; who is
/// asked for the rest says the rest.
async fn breaking() -> (Worker, Worker) {
    let script = |name: &'static str| {
        move |asked: &super::worker::Asked| {
            let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
            if body["continue_final_message"] == true {
                let opening = format!(
                    "data: {{\"id\":\"{name}\",\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}}}}]}}\n\n"
                );
                let rest =
                    [opening.into_bytes(), said(name, "three"), b"data: [DONE]\n\n".to_vec()];
                let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
                return stream(&rest);
            }
            let (one, two) = (said(name, "one "), said(name, "two "));
            [begun(&[&one, &two, b"data: {\"id\""]), vec![Act::Reset]].concat()
        }
    };
    (Worker::start("a", script("a")).await, Worker::start("b", script("b")).await)
}

#[tokio::test]
async fn r22_a_stream_goes_on_at_another_worker_as_one_stream() {
    let (a, b) = breaking().await;
    let world = World::start(&[("retry.resume", "true")], &[&a, &b]).await;
    let request =
        super::client::post("/v1/chat/completions", &[("x-homing-session-id", "s")], CHAT);
    let answer = world.ask(&request).await;
    assert!(answer.clean, "{}", answer.text());
    let first = answer.worker().to_owned();
    let (name, other) = if first == "a" { ("a", &b) } else { ("b", &a) };
    let parts =
        [said(name, "one "), said(name, "two "), said(name, "three"), b"data: [DONE]\n\n".to_vec()];
    assert_eq!(
        answer.text(),
        String::from_utf8(parts.concat()).unwrap(),
        "same id, one opening, nothing torn"
    );
    let asked = other.only().await;
    let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["messages"][1]["content"], "one two ");
    assert_eq!(world.home("s").await.as_deref(), Some(other.name), "the session goes along");
    assert_eq!(world.metric("homing_retries_total{reason=\"broken\"}").await, 1.0);
    world.end().await;
}

#[tokio::test]
async fn f46_where_it_may_not_or_cannot_go_on_it_ends_with_its_error() {
    let (a, b) = breaking().await;
    for (resume, body) in [
        ("false", CHAT),
        ("true", br#"{"model":"m","stream":true,"logprobs":true,"messages":[{"role":"user","content":"count"}]}"#),
    ] {
        let world = World::start(&[("retry.resume", resume)], &[&a, &b]).await;
        let answer = world.ask(&super::client::post("/v1/chat/completions", &[], body)).await;
        assert!(!answer.clean && answer.text().contains("worker_error"), "{}", answer.text());
        assert!(!answer.text().contains("three"));
        world.end().await;
    }
    // Nobody else is there.
    let world = World::start(&[("retry.resume", "true")], &[&a]).await;
    let answer = world.ask(&super::client::post("/v1/chat/completions", &[], CHAT)).await;
    assert!(!answer.clean && answer.text().contains("worker_error"), "{}", answer.text());
    world.end().await;
}
