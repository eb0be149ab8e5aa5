//! One event: its fields are gathered in any order, by position or by name, into a [`Draft`]; then the
//! draft is judged as a whole, since what a field means may depend on another (`wire-formats.md` 3.2).
//!
//! The trap that shapes the judging: a block's identity. Adapter and salt have fields of their own in
//! our events; whatever else an engine hashed into a block (images, prompt embeddings, bigrams, an
//! adapter known only by number) makes it *opaque*, because equal tokens would not mean equal blocks.

use crate::msgpack::{DecodeError, Item, Reader};
use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockRemoved, BlockStored, KvEvent, Medium};

/// What is wrong with an event.
#[derive(Debug)]
pub(super) enum Fault {
    /// The msgpack itself: the batch is lost.
    Broken(DecodeError),
    /// This event only.
    Senseless(&'static str),
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Broken(error)
    }
}

type Read<T> = Result<T, Fault>;

/// Reads the event at `reader`. After [`Fault::Senseless`] the reader is somewhere inside the event.
pub(super) fn read_event(reader: &mut Reader<'_>) -> Read<KvEvent> {
    let mut draft = Draft::default();
    match reader.item()? {
        Item::Map(pairs) => {
            for _ in 0..pairs {
                draft.pair(reader)?;
            }
        }
        Item::Array(n @ 1..) => draft.positions(reader, n)?,
        _ => return Err(Fault::Senseless("an event is neither a map nor a tagged array")),
    }
    match draft.tag {
        Tag::Stored => draft.stored().map(KvEvent::Stored),
        Tag::Removed => draft.removed().map(KvEvent::Removed),
        Tag::Cleared => Ok(KvEvent::Cleared),
        Tag::Unknown => Err(Fault::Senseless(super::UNKNOWN_KIND)),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Tag {
    Stored,
    Removed,
    Cleared,
    #[default]
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Tag,
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    /// vLLM's `lora_name` or, in SGLang 0.5.18-0.5.19, a map of metadata.
    LoraNameOrMetadata,
    CacheSalt,
    ExtraKeys,
    /// Anything whose mere presence makes the blocks opaque, if it is not empty.
    Peculiar,
    Group,
    SpecKind,
    Locality,
    /// Told by type, not by position: the tail of the array form moved between versions.
    Tail,
    Other,
}

const STORED: [Field; 8] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraNameOrMetadata,
    Field::ExtraKeys,
];
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

impl Field {
    fn named(name: &[u8]) -> Self {
        match name {
            b"type" => Self::Tag,
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"cache_salt" => Self::CacheSalt,
            b"extra_keys" => Self::ExtraKeys,
            b"block_mm_infos" | b"lookahead_token_ids" => Self::Peculiar,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::SpecKind,
            b"locality" => Self::Locality,
            _ => Self::Other,
        }
    }
}

/// What an event says, before it is judged.
#[derive(Debug, Default)]
struct Draft<'a> {
    tag: Tag,
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Option<Vec<u32>>,
    block_size: Option<u32>,
    lora_id: bool,
    lora_name: &'a str,
    salt: &'a str,
    medium: Medium,
    remote: bool,
    group: Option<u32>,
    spec_kind: Option<&'a str>,
    opaque: bool,
    /// Where the extra keys are; they can't be told apart before the adapter's name is known.
    extra_keys: Option<Reader<'a>>,
}

impl<'a> Draft<'a> {
    fn pair(&mut self, reader: &mut Reader<'a>) -> Read<()> {
        match reader.item()? {
            Item::Str(name) => self.field(Field::named(name), reader),
            key => {
                reader.rest_of(key)?;
                Ok(reader.skip()?)
            }
        }
    }

    fn positions(&mut self, reader: &mut Reader<'a>, count: u32) -> Read<()> {
        self.field(Field::Tag, reader)?;
        let (fields, rest): (&[Field], _) = match self.tag {
            Tag::Stored => (&STORED, Field::Tail),
            Tag::Removed => (&REMOVED, Field::Other),
            Tag::Cleared | Tag::Unknown => (&[], Field::Other),
        };
        for position in 0..count as usize - 1 {
            self.field(fields.get(position).copied().unwrap_or(rest), reader)?;
        }
        Ok(())
    }

    /// Reads one value as `field`.
    fn field(&mut self, field: Field, reader: &mut Reader<'a>) -> Read<()> {
        match field {
            Field::Tag => self.tag = tag(text(reader)?),
            Field::Hashes => self.hashes = Some(hashes(reader)?),
            Field::Parent => self.parent = parent(reader)?,
            Field::Tokens => self.read_tokens(reader)?,
            Field::BlockSize => self.block_size = Some(small(reader.item()?)?),
            Field::LoraId => self.lora_id = filled(reader)?,
            Field::Medium => self.medium = medium(text_or(reader, "?")?),
            Field::LoraName => self.lora_name = text(reader)?,
            Field::LoraNameOrMetadata => self.name_or_metadata(reader)?,
            Field::CacheSalt => self.salt = text(reader)?,
            Field::ExtraKeys => {
                self.extra_keys = Some(*reader);
                reader.skip()?;
            }
            Field::Peculiar => self.opaque |= filled(reader)?,
            Field::Group => self.group = optional_small(reader)?,
            Field::SpecKind => self.spec_kind = Some(text(reader)?).filter(|kind| !kind.is_empty()),
            Field::Locality => {
                self.remote = !matches!(text_or(reader, "?")?, "" | "LOCAL");
            }
            Field::Tail => self.tail(reader)?,
            Field::Other => reader.skip()?,
        }
        Ok(())
    }

    fn name_or_metadata(&mut self, reader: &mut Reader<'a>) -> Read<()> {
        let start = *reader;
        let Item::Map(pairs) = reader.item()? else {
            *reader = start;
            self.lora_name = text(reader)?;
            return Ok(());
        };
        for _ in 0..pairs {
            let field = match reader.item()? {
                Item::Str(name) => Field::named(name),
                _ => return Err(Fault::Senseless("metadata under something else than a name")),
            };
            match field {
                Field::CacheSalt | Field::LoraName => self.field(field, reader)?,
                _ => reader.skip()?,
            }
        }
        Ok(())
    }

    /// One of the last elements of the array form: group (a number), kind of cache (a text) and window
    /// (a number after the kind). Lists are what third parties append about images.
    fn tail(&mut self, reader: &mut Reader<'a>) -> Read<()> {
        let start = *reader;
        match reader.item()? {
            Item::UInt(n) if self.group.is_none() && self.spec_kind.is_none() => {
                self.group = u32::try_from(n).ok();
            }
            Item::Str(kind) if self.spec_kind.is_none() => self.spec_kind = Some(utf8(kind)?),
            Item::Array(_) => {
                *reader = start;
                self.opaque |= filled(reader)?;
            }
            item => reader.rest_of(item)?,
        }
        Ok(())
    }

    /// Plain ids, or SGLang's bigrams `[[t0, t1], [t1, t2], ..]`, of which the first of each is kept.
    fn read_tokens(&mut self, reader: &mut Reader<'a>) -> Read<()> {
        let Item::Array(count) = reader.item()? else {
            return Err(Fault::Senseless("token_ids is not a list"));
        };
        let mut tokens = Vec::with_capacity(count as usize);
        for _ in 0..count {
            match reader.item()? {
                Item::Array(inner @ 1..) => {
                    self.opaque = true;
                    tokens.push(small(reader.item()?)?);
                    for _ in 1..inner {
                        reader.skip()?;
                    }
                }
                item => tokens.push(small(item)?),
            }
        }
        self.tokens = Some(tokens);
        Ok(())
    }

    fn stored(mut self) -> Read<BlockStored> {
        self.read_extra_keys()?;
        let block_hashes = self.hashes.ok_or(Fault::Senseless("a store without block_hashes"))?;
        let token_ids = self.tokens.ok_or(Fault::Senseless("a store without token_ids"))?;
        let block_size = self.block_size.ok_or(Fault::Senseless("a store without block_size"))?;
        let mut full_attention = self.spec_kind.is_none_or(is_full_attention);
        // Offload tiers may announce blocks by name alone.
        let hash_only = token_ids.is_empty() && block_size == 0;
        let covered = block_hashes.len() as u64 * u64::from(block_size);
        if full_attention && !hash_only && covered != token_ids.len() as u64 {
            // Hybrid models before the kind of a group was published (vLLM 0.20, 0.21): a group that
            // names fewer blocks than its tokens fill is one that keeps only some of them.
            if self.spec_kind.is_none() && self.group.is_some() && covered < token_ids.len() as u64
            {
                full_attention = false;
            } else {
                return Err(Fault::Senseless("token_ids is not block_size tokens per block hash"));
            }
        }
        // An adapter that is known only by its number (vLLM before 0.14) has no name to match by.
        let nameless_adapter = self.lora_id && self.lora_name.is_empty();
        Ok(BlockStored {
            block_hashes,
            parent: self.parent,
            token_ids,
            block_size,
            lora_name: self.lora_name.to_owned(),
            cache_salt: self.salt.to_owned(),
            opaque: self.opaque || hash_only || nameless_adapter,
            medium: if self.remote { Medium::Unknown } else { self.medium },
            group: self.group,
            full_attention,
        })
    }

    fn removed(self) -> Read<BlockRemoved> {
        Ok(BlockRemoved {
            block_hashes: self.hashes.ok_or(Fault::Senseless("a removal without block_hashes"))?,
            medium: if self.remote { Medium::Unknown } else { self.medium },
            group: self.group,
        })
    }

    /// vLLM's extra keys: per block nil or a list of adapter name, `[image, offset]` pairs, salt (first
    /// block of a sequence only), digests of prompt embeddings; untagged.
    fn read_extra_keys(&mut self) -> Read<()> {
        let Some(mut reader) = self.extra_keys else { return Ok(()) };
        let blocks = match reader.item()? {
            Item::Array(n) => n,
            Item::Nil => return Ok(()),
            _ => return Err(Fault::Senseless("extra_keys is not a list")),
        };
        for block in 0..blocks {
            let keys = match reader.item()? {
                Item::Array(n) => n,
                Item::Nil => continue,
                // Third parties put maps of images here.
                item => {
                    self.opaque = true;
                    reader.rest_of(item)?;
                    continue;
                }
            };
            let mut name_due = !self.lora_name.is_empty();
            for _ in 0..keys {
                match reader.item()? {
                    Item::Str(key) if name_due && key == self.lora_name.as_bytes() => {
                        name_due = false;
                    }
                    Item::Str(key) if block == 0 && self.parent.is_none() => {
                        let key = utf8(key)?;
                        // A second, different text can't be a salt too.
                        self.opaque |= !self.salt.is_empty() && self.salt != key;
                        self.salt = if self.salt.is_empty() { key } else { self.salt };
                    }
                    item => {
                        self.opaque = true;
                        reader.rest_of(item)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn tag(name: &str) -> Tag {
    match name {
        "BlockStored" => Tag::Stored,
        "BlockRemoved" => Tag::Removed,
        "AllBlocksCleared" => Tag::Cleared,
        _ => Tag::Unknown,
    }
}

/// The names in the field, without regard to case; nil and "" mean the GPU.
fn medium(name: &str) -> Medium {
    let is = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    if is(&["", "GPU"]) {
        Medium::Device
    } else if is(&["CPU", "CPU_PINNED", "CPU_TIER1"]) {
        Medium::Host
    } else if is(&["DISK", "NVME", "CPU_TIER2", "STORAGE", "FS"]) {
        Medium::Disk
    } else if is(&["EXTERNAL", "NETWORK", "REMOTE", "SHARED", "OBJ"]) {
        Medium::Shared
    } else {
        Medium::Unknown
    }
}

fn is_full_attention(kind: &str) -> bool {
    matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention")
}

fn utf8(bytes: &[u8]) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Senseless("a text that is not UTF-8"))
}

/// A text, or "" for nil.
fn text<'a>(reader: &mut Reader<'a>) -> Read<&'a str> {
    match reader.item()? {
        Item::Str(bytes) => utf8(bytes),
        Item::Nil => Ok(""),
        _ => Err(Fault::Senseless("something else where a text or nil belongs")),
    }
}

/// A text, "" for nil, `other` for any other value.
fn text_or<'a>(reader: &mut Reader<'a>, other: &'a str) -> Read<&'a str> {
    match reader.item()? {
        Item::Str(bytes) => Ok(std::str::from_utf8(bytes).unwrap_or(other)),
        Item::Nil => Ok(""),
        item => {
            reader.rest_of(item)?;
            Ok(other)
        }
    }
}

fn small(item: Item<'_>) -> Read<u32> {
    match item {
        Item::UInt(n) => u32::try_from(n).map_err(|_| Fault::Senseless("a number beyond 32 bits")),
        _ => Err(Fault::Senseless("something else where a number from 0 belongs")),
    }
}

fn optional_small(reader: &mut Reader<'_>) -> Read<Option<u32>> {
    match reader.item()? {
        Item::Nil => Ok(None),
        item => small(item).map(Some),
    }
}

fn hash(item: Item<'_>) -> Read<EngineHash> {
    match item {
        Item::UInt(n) => Ok(EngineHash(n)),
        Item::Int(n) => Ok(EngineHash(n.cast_unsigned())),
        Item::Bin(digest) => EngineHash::from_digest(digest)
            .ok_or(Fault::Senseless("a block hash of less than 8 bytes")),
        _ => Err(Fault::Senseless("a block hash that is neither a number nor bytes")),
    }
}

fn hashes(reader: &mut Reader<'_>) -> Read<Vec<EngineHash>> {
    let Item::Array(count) = reader.item()? else {
        return Err(Fault::Senseless("block_hashes is not a list"));
    };
    (0..count).map(|_| hash(reader.item()?)).collect()
}

fn parent(reader: &mut Reader<'_>) -> Read<Option<EngineHash>> {
    match reader.item()? {
        Item::Nil => Ok(None),
        item => hash(item).map(Some),
    }
}

/// Passes over a value and says whether it holds anything: nil, and lists of nothing but nils or
/// empty lists, don't.
fn filled(reader: &mut Reader<'_>) -> Read<bool> {
    let mut owed: u64 = 1;
    let mut filled = false;
    while owed > 0 {
        owed -= 1;
        let item = reader.item()?;
        filled |= !matches!(item, Item::Nil | Item::Array(_));
        owed += item.inside();
    }
    Ok(filled)
}
