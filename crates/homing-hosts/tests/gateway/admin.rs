//! The admin server keeps web pages out.

use super::client::get;
use super::worker::{Worker, ok};
use super::world::World;
use homing_core::fleet::State;

#[tokio::test]
async fn a_request_by_a_name_that_is_not_ours_reads_and_changes_nothing() {
    let worker = Worker::start("w", |_| ok()).await;
    let world = World::start(&[], &[&worker]).await;
    let calls = [
        "GET /health",
        "GET /ready",
        "GET /metrics",
        "GET /admin/workers",
        "GET /admin/sessions",
        "DELETE /admin/workers/w",
        "GET /nothing",
    ];
    for call in calls {
        let request = format!("{call} HTTP/1.1\r\nhost: evil.example:9464\r\n\r\n");
        let answer = world.admin(request.as_bytes()).await;
        assert_eq!(answer.status, 403, "{call}");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["code"], "host_not_allowed", "{call}");
    }
    assert_eq!(world.state("w"), Some(State::Ready), "nobody was removed");
    let whole = b"GET http://evil.example/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(world.admin(whole).await.status, 403);
    for host in ["localhost", "127.0.0.1", "[::1]:9464", "192.0.2.1:80"] {
        let request = format!("GET /admin/workers HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(world.admin(request.as_bytes()).await.status, 200, "{host}");
    }
    assert_eq!(world.admin(&get("/metrics")).await.status, 200);
    world.end().await;
}
