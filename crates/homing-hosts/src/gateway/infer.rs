//! Sessions of clients that send no id (`affinity.infer`): a conversation is known by how it opens.
//!
//! Its later turns open alike, since chat clients send all of it each time and append. Two conversations
//! that open alike share a session, until they are too many at once (R27). What an opening is, is said in
//! `homing_wire::request::Opening`; here it is only hashed, while it is read.

use homing_core::ids::{KeySecret, OpeningHash};
use homing_wire::request::Opening;

/// The hash of how a chat opens; `None` where nothing has been asked yet.
///
/// Tenant, adapter and model are no part of it: they come into the key once they are known.
pub(super) fn hash(secret: &KeySecret, opening: Opening<'_>) -> Option<OpeningHash> {
    let mut hash = secret.opening();
    let opened = opening.read(|kind, piece| hash.add(kind as u8, piece.as_bytes()));
    opened.then_some(hash)
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;
