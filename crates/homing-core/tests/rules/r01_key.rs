//! R01, as far as keys go: what is told apart is a session of its own, by every byte.

use super::world::*;
use homing_core::affinity::Outcome;
use homing_core::ask::{Ask, Session};
use homing_core::ids::{KeySecret, SessionKey};
use homing_core::settings::Mode;
use std::collections::BTreeSet;

fn secret() -> KeySecret {
    KeySecret::new(&[1; 32])
}

fn with(w: &World, key: SessionKey) -> Ask {
    let mut ask = w.plain();
    ask.session = Some(Session::new(key, Mode::Hard));
    ask
}

#[test]
fn r01_tenants_and_adapters_never_share_a_binding() {
    let w = World::new(3);
    let s = secret();
    let keys = [
        s.session("", "", b"id"),
        s.session("tenant", "", b"id"),
        s.session("", "tenant", b"id"),
        s.session("", "", b"tenantid"),
        s.session("tenan", "t", b"id"),
        s.session("tenant", "adapter", b"id"),
        s.session("adapter", "tenant", b"id"),
    ];
    for key in keys {
        assert_eq!(w.turn(with(&w, key)).1, Outcome::New);
    }
    for key in keys {
        assert_eq!(w.turn(with(&w, key)).1, Outcome::Hit);
    }
    assert_eq!(w.stats().bindings, keys.len());
    w.quiesce();
}

#[test]
fn r01_keys_match_exactly() {
    let s = secret();
    let long = [b'x'; 4096];
    let ids: [&[u8]; 12] = [
        b"id",
        b"ID",
        b"Id",
        b"id ",
        b" id",
        b"id\0",
        b"i",
        b"",
        b"i\xcc\x87d",
        b"\xff\xfe",
        &long,
        &long[1..],
    ];
    let keys: BTreeSet<_> = ids.iter().map(|id| s.session("t", "", id)).collect();
    assert_eq!(keys.len(), ids.len());
    assert_eq!(
        s.session("t", "", b"id"),
        secret().session("t", "", b"id"),
        "and are the same anew"
    );
    let foreign = KeySecret::new(&[2; 32]);
    assert_ne!(s.session("t", "", b"id"), foreign.session("t", "", b"id"), "nobody can aim");
}

#[test]
fn r01_a_digest_tells_sessions_apart_and_is_not_the_key() {
    let s = secret();
    let digests: BTreeSet<_> = (0..100)
        .map(|i| s.digest(s.session("t", "", format!("{i}").as_bytes())).to_string())
        .collect();
    assert_eq!(digests.len(), 100);
    let key = s.session("t", "", b"id");
    assert_ne!(s.digest(key).to_string(), KeySecret::new(&[2; 32]).digest(key).to_string());
}
