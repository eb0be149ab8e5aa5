//! A log that nobody reads, or whose reader has gone, costs lines and never a request.

#![expect(clippy::unwrap_used, reason = "a test says so by panicking")]

use homing_e2e::{Serve, binary, call};
use serde_json::json;
use std::process::Stdio;

/// More access lines than a pipe and the log's buffer hold.
const REQUESTS: usize = 600;

fn ask(router: &Serve, times: usize) {
    for _ in 0..times {
        // Answered by the router itself, with an access line.
        let body = json!({"model": 5});
        let (status, answer) =
            call(&router.gateway, "POST", "/v1/chat/completions", Some(&body)).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_request")));
    }
}

#[test]
fn a_stalled_or_closed_log_stops_no_request() {
    let Some(binary) = binary() else { return };
    let nobody = ["--worker", "http://127.0.0.1:9"];
    let mut router = Serve::start_with(&binary, &nobody, "info", Stdio::piped()).unwrap();
    let log = router.take_log().unwrap();
    ask(&router, REQUESTS);
    drop(log);
    ask(&router, REQUESTS);
}
