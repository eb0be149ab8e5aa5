//! etcd behind the ports of discovery and replication, on the real server: Debian's `etcd-server`.

#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used)] // helpers of tests are no tests to clippy

mod access;
#[path = "../contract/mod.rs"]
mod contract;
mod discovery;
mod server;
mod store;
