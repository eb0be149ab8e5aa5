//! NATS: messages among routers, and their bindings in a bucket of JetStream.
//!
//! * `dial`: a connection that makes itself anew, and what is known of it;
//! * [`link`]: messages; at most once, and nothing is kept for later;
//! * [`store`]: registers in a bucket that `nats kv` reads too; `bucket`: the stream that it is;
//! * `follow`: what changes in it.
//!
//! Servers from 2.9 on: nothing that came later is used.

mod bucket;
mod dial;
mod follow;
pub mod link;
pub mod store;

pub use link::{Link, connect};
pub use store::{Store, open};

use homing_runtime::replication::port::{PortError, Reach};

/// How errors call it.
const BACKEND: &str = "NATS";

/// Longest name of a group.
const GROUP_MAX: usize = 64;

/// Looks at a place of the settings without connecting: URLs and files.
///
/// # Errors
/// [`PortError::Setting`]: what is wrong, and where.
pub fn look_at(reach: &Reach, group: &str) -> Result<(), PortError> {
    check_group(group)?;
    dial::look_at(reach)
}

/// A group's name is a part of subjects and of a bucket's name.
fn check_group(group: &str) -> Result<(), PortError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if group.is_empty() || group.len() > GROUP_MAX || !group.bytes().all(fits) {
        return Err(PortError::Setting(format!(
            "the group `{}` can't be a part of a NATS subject: write 1 to {GROUP_MAX} of a-z, A-Z, 0-9, - and _",
            group.escape_debug()
        )));
    }
    Ok(())
}
