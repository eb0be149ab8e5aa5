//! Names of things, one type each, so that no two can be mixed up.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::hash::Hasher as _;

/// One *incarnation* of a worker: interned, never reused within a process.
///
/// A worker that restarts, or is registered anew at the same address, gets another id. So whatever
/// still names the old one (a binding, a booking, a block in the index) has departed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

/// A data-parallel rank of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DpRank(pub u16);

/// Where a request runs: a worker and, where known, one of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The worker's incarnation.
    pub worker: WorkerId,
    /// `None` admits any rank of the worker.
    pub rank: Option<DpRank>,
}

impl Target {
    /// Whether something bound to `self` is at home on `other`: the same worker, and the same rank
    /// where both name one.
    #[must_use]
    pub fn admits(self, other: Self) -> bool {
        self.worker == other.worker
            && match (self.rank, other.rank) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            }
    }
}

/// A partition of the core, interned: one (pool, role).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

/// A name under which a pool serves: its base model, an alias or an adapter; interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// What the workers of a partition do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Prefill and decode in one engine.
    #[default]
    Aggregated,
    /// Prefill only (refused by the settings until step 5's two-leg dispatch is built).
    Prefill,
    /// Decode only (likewise).
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// What names a session inside a partition: 128 keyed bits of (tenant, adapter, id).
///
/// No string is kept, nobody without the secret can aim at another tenant's key, and equal ids of
/// two tenants, or of two adapters, are different sessions (R01, F07).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u128);

impl fmt::Debug for SessionKey {
    /// Only a stub of the key: enough to tell two apart in a test's output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionKey({:08x}..)", self.0 >> 96)
    }
}

/// A short keyed digest of a session, the only form in which logs and the admin API show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionDigest(pub u64);

impl fmt::Display for SessionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// How a conversation opens, hashed with the secret while it is read ([`KeySecret::opening`]).
#[derive(Clone, Copy)]
pub struct OpeningHash(SipHasher13);

impl OpeningHash {
    /// Adds a piece: of what kind it is, and its bytes. Neither can be taken for a part of the other or of
    /// the next piece.
    pub fn add(&mut self, kind: u8, piece: &[u8]) {
        self.0.write(&[kind]);
        write_part(&mut self.0, piece);
    }
}

impl fmt::Debug for OpeningHash {
    /// Nothing of its state, which has the secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpeningHash(..)")
    }
}

/// Lengths before contents: no two different lists of parts feed the same bytes.
fn write_part(h: &mut SipHasher13, part: &[u8]) {
    h.write(&(part.len() as u64).to_le_bytes());
    h.write(part);
}

/// The secret that keys session keys (first half) and their digests (second half).
#[derive(Clone)]
pub struct KeySecret {
    keys: SipHasher13,
    digests: SipHasher13,
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

impl KeySecret {
    /// From 32 secret bytes.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        let (a, b) = secret.split_at(16);
        let half = |h: &[u8]| {
            let mut key = [0u8; 16];
            key.copy_from_slice(h);
            SipHasher13::new_with_key(&key)
        };
        Self { keys: half(a), digests: half(b) }
    }

    /// The key of session `id` of `tenant` under `adapter` (both "" where there is none).
    #[must_use]
    pub fn session(&self, tenant: &str, adapter: &str, id: &[u8]) -> SessionKey {
        self.key(b"session/1", &[tenant.as_bytes(), adapter.as_bytes(), id])
    }

    /// The key that the children of session `parent` share (R18): no session id has it, `parent`'s own
    /// included.
    #[must_use]
    pub fn group(&self, tenant: &str, adapter: &str, parent: &[u8]) -> SessionKey {
        self.key(b"group/1", &[tenant.as_bytes(), adapter.as_bytes(), parent])
    }

    /// The key of a session without an id, by how its conversation with `model` opens: no session id has
    /// it, and no group.
    #[must_use]
    pub fn inferred(
        &self,
        tenant: &str,
        adapter: &str,
        model: &str,
        opening: OpeningHash,
    ) -> SessionKey {
        let opening = opening.0.finish128().as_u128().to_le_bytes();
        let parts = [tenant.as_bytes(), adapter.as_bytes(), model.as_bytes(), &opening];
        self.key(b"inferred/1", &parts)
    }

    /// For [`Self::inferred`]: takes a conversation's opening piece by piece, and copies none of it.
    #[must_use]
    pub fn opening(&self) -> OpeningHash {
        let mut h = self.keys;
        h.write(b"opening/1");
        OpeningHash(h)
    }

    /// Of what kind the key is comes first, and no kind begins as another does.
    fn key(&self, kind: &[u8], parts: &[&[u8]]) -> SessionKey {
        let mut h = self.keys;
        h.write(kind);
        for part in parts {
            write_part(&mut h, part);
        }
        SessionKey(h.finish128().as_u128())
    }

    /// What logs may show of a session.
    #[must_use]
    pub fn digest(&self, key: SessionKey) -> SessionDigest {
        let mut h = self.digests;
        h.write(&key.0.to_le_bytes());
        SessionDigest(h.finish128().h1)
    }
}

/// A tenant as a number, for whoever takes turns ([`crate::ask::Ask::tenant`]); 0 for nobody's name.
#[must_use]
pub fn tenant_number(name: &str) -> u64 {
    if name.is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(name.as_bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r01_tenant_adapter_and_id_are_all_part_of_the_key() {
        let secret = KeySecret::new(&[7; 32]);
        let all = [
            secret.session("", "", b"ab"),
            secret.session("a", "", b"b"),
            secret.session("", "a", b"b"),
            secret.session("ab", "", b""),
            secret.session("", "", b"ab "),
            KeySecret::new(&[8; 32]).session("", "", b"ab"),
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(a, b);
            }
        }
        assert_eq!(all[0], secret.session("", "", b"ab"));
    }

    /// The very bytes that are hashed, so that a snapshot's keys are still the sessions' after an upgrade.
    #[test]
    fn r01_a_session_is_its_kind_and_its_parts_with_their_lengths() {
        let mut h = SipHasher13::new_with_key(&[7; 16]);
        h.write(b"session/1");
        for part in ["t", "lora", "id"] {
            h.write(&(part.len() as u64).to_le_bytes());
            h.write(part.as_bytes());
        }
        let key = SessionKey(h.finish128().as_u128());
        assert_eq!(KeySecret::new(&[7; 32]).session("t", "lora", b"id"), key);
    }

    #[test]
    fn r18_no_session_id_names_a_group_or_an_inferred_session() {
        let secret = KeySecret::new(&[7; 32]);
        let (tenant, adapter) = ("t", "lora");
        let group = secret.group(tenant, adapter, b"parent");
        let mut opening = secret.opening();
        opening.add(1, b"hello");
        let inferred = secret.inferred(tenant, adapter, "m", opening);
        assert_ne!(group, inferred);
        let length = |n: u64| n.to_le_bytes().to_vec();
        // What a client would send that knew how keys are made.
        let framed = [&length(1)[..], b"t", &length(4), b"lora", &length(6), b"parent"].concat();
        let ids = [
            b"parent".to_vec(),
            b"group/1".to_vec(),
            [b"group/1", &framed[..]].concat(),
            framed,
            b"group/1parent".to_vec(),
            b"inferred/1".to_vec(),
            b"opening/1".to_vec(),
            group.0.to_le_bytes().to_vec(),
            group.0.to_be_bytes().to_vec(),
            format!("{:032x}", group.0).into_bytes(),
            inferred.0.to_le_bytes().to_vec(),
            format!("{:032x}", inferred.0).into_bytes(),
        ];
        for (tenant, adapter) in [(tenant, adapter), ("", ""), ("group/1", ""), ("", "group/1")] {
            for id in &ids {
                let session = secret.session(tenant, adapter, id);
                assert!(session != group && session != inferred, "{tenant} {adapter} {id:?}");
                assert!(tenant == "t" || secret.group(tenant, adapter, b"parent") != group);
            }
        }
        assert_ne!(group, secret.group(tenant, adapter, b"parent2"), "a group per parent");
        assert_eq!(group, secret.group(tenant, adapter, b"parent"));
    }

    #[test]
    fn an_inferred_key_is_of_all_that_it_was_given() {
        let secret = KeySecret::new(&[7; 32]);
        let key = |secret: &KeySecret, names: [&str; 3], pieces: &[(u8, &str)]| {
            let mut opening = secret.opening();
            for (kind, piece) in pieces {
                opening.add(*kind, piece.as_bytes());
            }
            secret.inferred(names[0], names[1], names[2], opening)
        };
        let names = ["t", "a", "m"];
        let all = [
            key(&secret, names, &[(1, "ab"), (2, "c")]),
            key(&secret, names, &[(1, "a"), (2, "bc")]),
            key(&secret, names, &[(2, "ab"), (1, "c")]),
            key(&secret, names, &[(1, "ab")]),
            key(&secret, names, &[(1, "ab"), (2, "c"), (2, "")]),
            key(&secret, names, &[(1, "ab\u{2}\u{1}\0\0\0\0\0\0\0c")]),
            key(&secret, ["ta", "", "m"], &[(1, "ab"), (2, "c")]),
            key(&secret, ["t", "am", ""], &[(1, "ab"), (2, "c")]),
            key(&secret, ["t", "a", "n"], &[(1, "ab"), (2, "c")]),
            key(&KeySecret::new(&[8; 32]), names, &[(1, "ab"), (2, "c")]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(all[0], key(&secret, names, &[(1, "ab"), (2, "c")]));
    }

    #[test]
    fn a_digest_is_not_the_key_and_depends_on_the_other_half_of_the_secret() {
        let mut other = [7; 32];
        other[31] = 8;
        let (a, b) = (KeySecret::new(&[7; 32]), KeySecret::new(&other));
        let key = a.session("", "", b"x");
        assert_eq!(key, b.session("", "", b"x"));
        assert_ne!(a.digest(key), b.digest(key));
        assert_ne!(u128::from(a.digest(key).0), key.0 & u128::from(u64::MAX));
    }

    #[test]
    fn r06_a_binding_without_a_rank_admits_any_rank_of_its_worker() {
        let t = |w, r: Option<u16>| Target { worker: WorkerId(w), rank: r.map(DpRank) };
        assert!(t(1, None).admits(t(1, Some(3))));
        assert!(t(1, Some(3)).admits(t(1, Some(3))));
        assert!(!t(1, Some(3)).admits(t(1, Some(2))));
        assert!(!t(1, None).admits(t(2, None)));
    }
}
