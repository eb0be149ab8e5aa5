//! After the stop signal: what was taken before it is served to its end, by the same rules.

use super::client::chat;
use super::worker::{Act, Worker, find, gate, ok};
use super::world::{World, eventually, in_time};

#[tokio::test]
async fn r08_who_waits_in_the_queue_while_the_router_stops_is_504_at_max_wait() {
    let open = gate();
    let held = open.clone();
    let worker = Worker::start("w", move |_| [vec![Act::Hold(held.clone())], ok()].concat()).await;
    let narrow = [
        ("queue.max_requests", "1"),
        ("queue.busy_active_requests", "1"),
        ("queue.max_wait", "'50ms'"),
    ];
    let world = World::start(&narrow, &[&worker]).await;
    let address = world.server.gateway_address().unwrap();
    let shell = world.server.shell().clone();
    let mut running = world.client().await;
    running.send(&chat(&[])).await;
    eventually("one runs", || worker.busy() == 1).await;
    // Its head is in, and so its connection stays open; it comes to the queue when its body does.
    let mut late = world.client().await;
    let request = chat(&[("expect", "100-continue"), ("x-homing-session-id", "s")]);
    let (head, body) = request.split_at(find(&request, b"\r\n\r\n").unwrap() + 4);
    late.send(head).await;
    assert_eq!(in_time("a word to go on", late.head()).await.status, 100);

    let ended = tokio::spawn(world.server.shut_down());
    eventually("the port is closed", || std::net::TcpStream::connect(address).is_err()).await;
    late.send(body).await;
    let refused = in_time("the refusal", late.answer()).await;
    assert_eq!((refused.status, refused.code().as_str()), (504, "timeout"));
    assert!(!ended.is_finished(), "one runs on");
    open.add_permits(1);
    assert_eq!(in_time("the first", running.answer()).await.status, 200);
    assert!(in_time("the end", ended).await.unwrap(), "nothing was cut off");
    let stats = shell.core().partitions()[0].stats;
    assert_eq!((stats.leases, stats.bookings, stats.waiting), (0, 0, 0));
    shell.core().check();
}
