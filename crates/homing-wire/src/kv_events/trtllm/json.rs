//! The shape of the events on the wire. Read in two steps, type first, and never into a tree in between: an
//! answer names every token of every block as an object of three fields.

use homing_core::hash::EngineHash;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;

/// What every event has, whatever its type.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Number {
    pub(super) event_id: Option<u64>,
    pub(super) attention_dp_rank: Option<u32>,
    pub(super) window_size: Option<u64>,
}

/// What an event says.
#[derive(Debug)]
pub(super) enum Data {
    Created(Created),
    Stored(Stored),
    Removed(Removed),
    Updated(Updated),
    /// Of a type that this version doesn't know.
    Unknown,
}

/// The cache is there.
#[derive(Debug, Deserialize)]
pub(super) struct Created {
    /// The GPU's first, then host memory's.
    #[serde(default)]
    pub(super) num_blocks_per_cache_level: Vec<u64>,
}

/// Blocks that follow each other.
#[derive(Debug, Deserialize)]
pub(super) struct Stored {
    pub(super) parent_hash: Option<Hash>,
    pub(super) blocks: Vec<StoredBlock>,
    pub(super) lora_name: Option<String>,
    pub(super) cache_salt: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StoredBlock {
    pub(super) block_hash: Hash,
    pub(super) tokens: Vec<Token>,
    #[serde(default)]
    pub(super) cache_level: u32,
    mm_keys: Option<Vec<serde::de::IgnoredAny>>,
}

impl StoredBlock {
    /// Whether it is more than its tokens: images, or tokens of a prompt table.
    pub(super) fn is_opaque(&self) -> bool {
        self.mm_keys.as_ref().is_some_and(|keys| !keys.is_empty())
            || self.tokens.iter().any(|token| token.extra)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Removed {
    pub(super) block_hashes: Vec<Hash>,
}

/// A block has changed its level or its priority.
#[derive(Debug, Deserialize)]
pub(super) struct Updated {
    pub(super) block_hash: Hash,
    pub(super) cache_level: Option<Diff>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Diff {
    pub(super) new_value: u32,
    pub(super) old_value: u32,
}

/// Gives each item of a list, as it comes.
pub(super) fn each(list: &[u8], take: impl FnMut(&RawValue)) -> Result<(), serde_json::Error> {
    struct Items<F>(F);
    impl<'de, F: FnMut(&RawValue)> Visitor<'de> for Items<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of events")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(item) = list.next_element::<&'de RawValue>()? {
                (self.0)(item);
            }
            Ok(())
        }
    }
    let mut json = serde_json::Deserializer::from_slice(list);
    json.deserialize_seq(Items(take))?;
    json.end()
}

/// Reads what an event says.
pub(super) fn data(raw: &str) -> Result<Data, serde_json::Error> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        data: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Tag<'a> {
        #[serde(borrow)]
        r#type: std::borrow::Cow<'a, str>,
    }
    let raw = serde_json::from_str::<Event<'_>>(raw)?.data.get();
    Ok(match &*serde_json::from_str::<Tag<'_>>(raw)?.r#type {
        "created" => Data::Created(serde_json::from_str(raw)?),
        "stored" => Data::Stored(serde_json::from_str(raw)?),
        "removed" => Data::Removed(serde_json::from_str(raw)?),
        "updated" => Data::Updated(serde_json::from_str(raw)?),
        _ => Data::Unknown,
    })
}

/// A block's name: a number, signed or not, or a digest in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hash(pub(super) EngineHash);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Hash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the hash of a block")
            }

            fn visit_u64<E: Error>(self, hash: u64) -> Result<Hash, E> {
                Ok(Hash(EngineHash(hash)))
            }

            fn visit_i64<E: Error>(self, hash: i64) -> Result<Hash, E> {
                Ok(Hash(EngineHash(hash.cast_unsigned())))
            }

            fn visit_str<E: Error>(self, digest: &str) -> Result<Hash, E> {
                let tail = digest.len().checked_sub(16).and_then(|from| digest.get(from..));
                let hash = tail.and_then(|tail| u64::from_str_radix(tail, 16).ok());
                hash.map(|hash| Hash(EngineHash(hash)))
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(digest), &self))
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// A token; `extra`: it is told apart from others of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) extra: bool,
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            token_id: u32,
            token_extra_id: Option<u64>,
        }
        struct Unique;
        impl<'de> Visitor<'de> for Unique {
            type Value = Token;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Token, E> {
                let id = u32::try_from(id);
                let id = id.map_err(|_| E::custom("a token id beyond 32 bits"))?;
                Ok(Token { id, extra: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Token, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                let extra = fields.token_extra_id.is_some_and(|id| id != 0);
                Ok(Token { id: fields.token_id, extra })
            }
        }
        deserializer.deserialize_any(Unique)
    }
}
