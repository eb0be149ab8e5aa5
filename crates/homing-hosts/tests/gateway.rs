//! The gateway from outside: the whole router in this process, raw sockets on both sides of it. Workers
//! are scripts (`gateway/worker.rs`) that send the very bytes, pieces and resets that a test wants, and
//! the client (`gateway/client.rs`) reads what really came, down to whether it ended cleanly.
//!
//! A test carries the number of the rule or of the field failure that it checks. Nothing waits for a
//! time to pass: what must come about is looked for until it has, or the deadline of
//! `gateway/world.rs` is over.

#![expect(clippy::unwrap_used, reason = "tests, and the helpers that only tests use")]

mod gateway {
    mod admin;
    mod answers;
    mod apis;
    mod client;
    mod draining;
    mod ends;
    mod failing;
    mod fronts;
    mod http2;
    mod limits;
    mod lives;
    mod log;
    mod overload;
    mod paths;
    mod previews;
    mod queueing;
    mod reloading;
    mod requests;
    mod serving;
    mod sessions;
    mod slow;
    mod streams;
    mod targets;
    mod tenants;
    mod tls;
    mod trailers;
    mod unwell;
    mod upstreams;
    mod worker;
    mod world;
}
