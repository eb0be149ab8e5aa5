//! etcd behind the ports of discovery and replication, on the real server: Debian's `etcd-server`.

#![cfg(feature = "etcd")]

mod access;
#[path = "../contract/mod.rs"]
mod contract;
mod discovery;
mod server;
mod store;
