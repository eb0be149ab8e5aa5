//! The runtime's ports, on what others run: each backend is a feature, and none knows of another.
//!
//! * `etcd`: workers under leases, and bindings that change by compare-and-set;
//! * `nats`: messages among routers, and the same bindings in JetStream's key-value buckets;
//! * `kubernetes`: workers as the cluster lists them.
//!
//! Nothing here decides anything: bytes and names go in and out ([`homing_runtime::replication::port`],
//! [`homing_runtime::fleet::discovery`]).

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "nats")]
pub mod nats;
