//! NATS behind the ports of replication, on the real server: Debian's `nats-server`.

#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used)] // helpers of tests are no tests to clippy

mod access;
mod bus;
#[path = "../contract/mod.rs"]
mod contract;
mod server;
mod store;
