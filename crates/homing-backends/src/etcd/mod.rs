//! etcd, version 3: workers that register under leases, and bindings that change by compare-and-set.
//!
//! * [`Store`]: the registers that routers share; `lease`: how long each stays;
//! * [`discovery`]: the workers, as they come and go; `members`: who counts as one, through outages too;
//! * [`Registrar`]: a worker's side of that;
//! * `follow`: a list, and what changes from then on; `wire`, `place`: the connection;
//! * `generated`: etcd's messages, made of `proto/etcd.proto`.
//!
//! Keys: `/homing/GROUP/workers/ID` and `/homing/GROUP/bindings/KEY`. Routers and workers of one group see each other.

pub mod discovery;
mod follow;
#[rustfmt::skip] // as it is made
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::disallowed_methods,
    unused_qualifications
)]
mod generated;
mod lease;
mod members;
mod pages;
mod place;
mod registrar;
mod store;
mod wire;

pub use registrar::{Claim, RegisterError, Registrar};
pub use store::Store;

use homing_runtime::replication::port::{PortError, Reach};

/// Looks at settings without connecting: URLs, and the files that are named.
///
/// # Errors
/// [`PortError::Setting`]: what is wrong, and where.
pub fn look_at(reach: &Reach) -> Result<(), PortError> {
    wire::places(reach).map(|_| ())
}

/// What the keys of a kind begin with.
fn prefix(group: &str, kind: &str) -> String {
    format!("/homing/{group}/{kind}/")
}
