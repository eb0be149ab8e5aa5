//! How long sessions live and who shares them: subagents (R18), the last turn (R19), sessions without
//! an id (`infer`), and keys that are too hot (R27).

use super::client::{Answer, Client, chat, post, streamed, turn, turn_with};
use super::worker::{Act, Asked, Gate, Mood, Worker, begun, chunk, feels, gate, ok};
use super::world::{World, eventually, in_time};

const SESSION: &str = "x-homing-session-id";
const PARENT: &str = "x-homing-parent-session-id";
const LAST: &str = "x-homing-session-final";

async fn fleet() -> [Worker; 2] {
    [Worker::start("a", |_| ok()).await, Worker::start("b", |_| ok()).await]
}

/// Workers whose answers wait for the gate.
async fn gated() -> ([Worker; 2], Gate) {
    let open = gate();
    let script = |open: &Gate| {
        let open = open.clone();
        move |_: &Asked| [vec![Act::Hold(open.clone())], ok()].concat()
    };
    ([Worker::start("a", script(&open)).await, Worker::start("b", script(&open)).await], open)
}

#[tokio::test]
async fn r18_by_default_a_child_is_its_own_session_or_none() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    assert_eq!(world.ask(&chat(&[(PARENT, "p")])).await.affinity(), "none");
    for (child, affinity) in [("c1", "new"), ("c2", "new"), ("c1", "hit")] {
        let answer = world.ask(&chat(&[(PARENT, "p"), (SESSION, child)])).await;
        assert_eq!(answer.affinity(), affinity, "{child}");
    }
    assert_eq!(world.ask(&turn("c1")).await.affinity(), "hit", "whoever its parent is");
    assert_eq!(world.stats().bindings, 2);
    world.end().await;
}

#[tokio::test]
async fn r18_in_a_group_the_children_live_together_and_their_parent_apart() {
    let [a, b] = fleet().await;
    let world = World::start(&[("affinity.subagents", "'group'")], &[&a, &b]).await;
    assert_eq!(world.ask(&turn("p")).await.affinity(), "new", "the parent");
    let first = world.ask(&chat(&[(PARENT, "p"), (SESSION, "c1")])).await;
    assert_eq!(first.affinity(), "new");
    for headers in [
        &[(PARENT, "p"), (SESSION, "c2")][..],
        &[(PARENT, "p")],
        &[("x-dynamo-parent-session-id", "p"), ("x-dynamo-session-id", "c3")],
    ] {
        let answer = world.ask(&chat(headers)).await;
        assert_eq!((answer.affinity(), answer.worker()), ("hit", first.worker()), "{headers:?}");
    }
    let other = world.ask(&chat(&[(PARENT, "q"), (SESSION, "c1")])).await;
    assert_eq!(other.affinity(), "new", "another parent's");
    assert_eq!(world.stats().bindings, 3);
    // A child's last turn ends nothing; the parent's ends its own session and its group's.
    let child = world.ask(&chat(&[(PARENT, "p"), (SESSION, "c1"), (LAST, "true")])).await;
    assert_eq!((child.affinity(), world.stats().bindings), ("hit", 3));
    let parent = world.ask(&turn_with("p", LAST, "true")).await;
    assert_eq!(parent.affinity(), "hit");
    world.quiet().await;
    assert_eq!(world.stats().bindings, 1, "only the other parent's");
    assert_eq!(world.ask(&chat(&[(PARENT, "q")])).await.affinity(), "hit");
    assert_eq!(world.ask(&chat(&[(PARENT, "p")])).await.affinity(), "new");
    world.end().await;
}

#[tokio::test]
async fn r18_no_client_can_name_a_group() {
    let [a, b] = fleet().await;
    let world = World::start(&[("affinity.subagents", "'group'")], &[&a, &b]).await;
    assert_eq!(world.ask(&chat(&[(PARENT, "p")])).await.affinity(), "new");
    for (i, id) in ["p", "group:p", "group/p", "p/group"].into_iter().enumerate() {
        assert_eq!(world.ask(&turn(id)).await.affinity(), "new", "{id}");
        assert_eq!(world.stats().bindings, i + 2);
    }
    world.end().await;
}

#[tokio::test]
async fn r19_a_last_turn_ends_the_session_with_its_stream() {
    let [a, b] = fleet().await;
    let world = World::start(&[], &[&a, &b]).await;
    for name in [LAST, "x-dynamo-session-final"] {
        for first in [false, true] {
            if first {
                assert_eq!(world.ask(&turn("s")).await.affinity(), "new");
            }
            let last = world.ask(&turn_with("s", name, "true")).await;
            assert_eq!(last.affinity(), if first { "hit" } else { "new" });
            world.quiet().await;
            assert_eq!((world.stats().bindings, world.home("s").await), (0, None), "{name}");
        }
    }
    world.ask(&turn_with("s", LAST, "false")).await;
    world.quiet().await;
    assert_eq!(world.stats().bindings, 1);
    let unclear = world.ask(&turn_with("s", LAST, "maybe")).await;
    unclear.assert_refused(400, "invalid_request", "rejected");
    world.end().await;
}

#[tokio::test]
async fn r19_until_the_last_lease_ends_later_turns_hit_and_do_not_clear_the_mark() {
    let gates = [gate(), gate(), gate()];
    let theirs = gates.clone();
    let script = move |asked: &Asked| {
        let nth: usize = std::str::from_utf8(asked.header("x-nth")[0]).unwrap().parse().unwrap();
        let end = [chunk(b"data: 2\n\n"), b"0\r\n\r\n".to_vec()].concat();
        let rest = [Act::Hold(theirs[nth].clone()), Act::Send(end)];
        begun(&[b"data: 1\n\n"]).into_iter().chain(rest).collect()
    };
    let worker = Worker::start("w", script).await;
    let world = World::start(&[], &[&worker]).await;
    let mut streams = Vec::new();
    for (nth, last, affinity) in [("0", "true", "new"), ("1", "false", "hit"), ("2", "", "hit")] {
        // The first ends before the third has come.
        if nth == "2" {
            gates[0].add_permits(1);
            let (mut client, mut answer): (Client, Answer) = streams.remove(0);
            in_time("the first", client.rest(&mut answer)).await;
            assert!(answer.clean);
        }
        let mut client = world.client().await;
        client.send(&streamed(&[(SESSION, "s"), (LAST, last), ("x-nth", nth)])).await;
        let answer = in_time("a head", client.head()).await;
        assert_eq!(answer.affinity(), affinity);
        assert_eq!(world.stats().bindings, 1);
        streams.push((client, answer));
    }
    gates[1].add_permits(1);
    gates[2].add_permits(1);
    for (mut client, mut answer) in streams {
        in_time("the rest", client.rest(&mut answer)).await;
        assert!(answer.clean);
    }
    world.quiet().await;
    assert_eq!(world.stats().bindings, 0, "the mark was not cleared");
    world.end().await;
}

#[tokio::test]
async fn r19_a_last_turn_that_fails_or_is_refused_marks_nothing() {
    let two = super::overload::two(&[("affinity.on_overload", "'reject'")]).await;
    let last = turn_with("s", LAST, "true");
    feels(&two.homes, Mood::Full(500, 1));
    assert_eq!(two.world.ask(&last).await.affinity(), "unbound");
    feels(&two.homes, Mood::Full(429, 1));
    assert_eq!(two.world.ask(&last).await.affinity(), "unbound");
    assert_eq!(two.world.ask(&last).await.affinity(), "rejected");
    two.world.quiet().await;
    assert_eq!(two.world.home("s").await.unwrap(), two.home.name);
    two.world.end().await;
}

/// A conversation without an id.
fn talk(system: &str, first: &str, more: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},
           {{"role":"user","content":"{first}"}}{more}]}}"#
    );
    post("/v1/chat/completions", headers, body.as_bytes())
}

const MORE: &str = r#",{"role":"assistant","content":"x"},{"role":"user","content":"and?"}"#;

#[tokio::test]
async fn a_conversation_without_an_id_is_a_session_where_the_settings_say_so() {
    let [a, b] = fleet().await;
    for infer in [false, true] {
        let infers = [("affinity.infer", if infer { "true" } else { "false" })];
        let world = World::start(&infers, &[&a, &b]).await;
        let word = |word| if infer { word } else { "none" };
        let first = world.ask(&talk("s", "one", "", &[])).await;
        assert_eq!(first.affinity(), word("new"));
        for _ in 0..3 {
            let next = world.ask(&talk("s", "one", MORE, &[])).await;
            assert_eq!(next.affinity(), word("hit"));
            assert!(!infer || next.worker() == first.worker());
        }
        for (system, opener) in [("s", "two"), ("t", "one")] {
            assert_eq!(world.ask(&talk(system, opener, "", &[])).await.affinity(), word("new"));
        }
        // Nothing was asked yet, or nobody is to know.
        assert_eq!(world.ask(&chat(&[])).await.affinity(), "none");
        let off = [("x-homing-affinity", "off")];
        assert_eq!(world.ask(&talk("s", "one", MORE, &off)).await.affinity(), "none");
        // An id goes before.
        let named = [(SESSION, if infer { "id" } else { "" })];
        assert_eq!(world.ask(&talk("s", "one", MORE, &named)).await.affinity(), word("new"));
        assert_eq!(world.stats().bindings, if infer { 4 } else { 0 });
        // Its mode is that of ids in bodies.
        let away = if first.worker() == "a" { "b" } else { "a" };
        let moved = world.ask(&talk("s", "one", MORE, &[("x-homing-worker", away)])).await;
        assert_eq!((moved.worker(), moved.affinity()), (away, word("rebound")));
        world.end().await;
    }
}

#[tokio::test]
async fn r27_what_is_too_much_for_one_session_is_placed_as_without_one() {
    let ([a, b], open) = gated().await;
    let world = World::start(&[("affinity.max_parallel", "2")], &[&a, &b]).await;
    let mut clients = Vec::new();
    for n in 1..=8 {
        let mut client = world.client().await;
        client.send(&turn("s")).await;
        eventually("it is at work", || a.busy() + b.busy() == n).await;
        clients.push(client);
    }
    assert!(a.busy() >= 2 && b.busy() >= 2, "the rest is spread: {} {}", a.busy(), b.busy());
    open.add_permits(8);
    let mut told = Vec::new();
    for client in &mut clients {
        let answer = in_time("an answer", client.answer()).await;
        assert_eq!(answer.status, 200);
        told.push(answer.affinity().to_owned());
    }
    assert_eq!(told[2..], vec!["surplus"; 6]);
    told.sort();
    assert_eq!(told[..2], ["joined", "new"]);
    world.quiet().await;
    assert_eq!(world.stats().bindings, 1);
    assert_eq!(world.metric("homing_affinity_resolutions_total{outcome=\"surplus\"}").await, 6.0);
    open.add_permits(1);
    assert_eq!(world.ask(&turn("s")).await.affinity(), "hit", "when it is calm again");
    world.end().await;
}
