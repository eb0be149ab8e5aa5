//! How each engine version spells its events, as data (`wire-formats.md` 3.1 has the history): which fields,
//! in which order, as array or as map. For the way out only; the reader takes all of them without asking.

/// One field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    CacheSalt,
    /// SGLang 0.5.18 and 0.5.19: a map behind the medium, there only where it says something.
    Metadata,
}

impl Column {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hashes => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::Tokens => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName => "lora_name",
            Self::ExtraKeys => "extra_keys",
            Self::Group => "group_idx",
            Self::Kind => "kv_cache_spec_kind",
            Self::Window => "kv_cache_spec_sliding_window",
            Self::CacheSalt => "cache_salt",
            Self::Metadata => "metadata",
        }
    }
}

/// What an event is in msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `[tag, field, field, ..]`.
    Array,
    /// `{"type": tag, name: field, ..}`.
    Map,
}

/// One spelling of events.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The engine, and the first version that spells them so; it holds until the next one of that engine.
    pub name: &'static str,
    pub(super) form: Form,
    pub(super) stored: &'static [Column],
    pub(super) removed: &'static [Column],
    /// Left out where there is nothing to say. Others are nil then.
    pub(super) optional: &'static [Column],
    /// The names of the media, in the order of [`homing_core::index::event::Medium`].
    pub(super) media: [&'static str; 5],
    /// Whether block hashes are signed numbers.
    pub(super) signed: bool,
    /// Whether block hashes may be digests in bytes.
    pub(super) digests: bool,
    /// Whether a reply of its replay socket repeats the topic.
    pub replay_topic: bool,
}

use Column::{
    BlockSize, CacheSalt, ExtraKeys, Group, Hashes, Kind, LoraId, LoraName, Medium, Metadata,
    Parent, Tokens, Window,
};

/// vLLM's events grew at their end; so a version has the first so many of these.
const VLLM: [Column; 11] =
    [Hashes, Parent, Tokens, BlockSize, LoraId, Medium, LoraName, ExtraKeys, Group, Kind, Window];
const REMOVED: [Column; 3] = [Hashes, Medium, Group];
const SGLANG: [Column; 7] = [Hashes, Parent, Tokens, BlockSize, LoraId, Medium, Metadata];

const fn vllm(name: &'static str, stored: usize, removed: usize) -> Layout {
    Layout {
        name,
        form: Form::Array,
        stored: VLLM.split_at(stored).0,
        removed: REMOVED.split_at(removed).0,
        optional: &[],
        media: ["GPU", "CPU", "STORAGE", "EXTERNAL", "UNKNOWN"],
        signed: false,
        digests: removed > 1,
        replay_topic: false,
    }
}

const fn vllm_maps(name: &'static str, replay_topic: bool) -> Layout {
    let optional = &[ExtraKeys, Group, Kind, Window];
    Layout { form: Form::Map, optional, replay_topic, ..vllm(name, 11, 3) }
}

const fn sglang(name: &'static str, stored: usize, removed: usize) -> Layout {
    Layout {
        stored: SGLANG.split_at(stored).0,
        optional: &[Metadata],
        media: ["GPU", "CPU_PINNED", "DISK", "EXTERNAL", "UNKNOWN"],
        signed: true,
        digests: false,
        ..vllm(name, stored, removed)
    }
}

const fn sglang_maps(name: &'static str, stored: &'static [Column], replay_topic: bool) -> Layout {
    let optional = &[CacheSalt, LoraName];
    Layout { form: Form::Map, stored, optional, replay_topic, ..sglang(name, 6, 2) }
}

/// Every layout in the field. vLLM's versions behind 0.26 added fields that only offloading and sessions fill.
pub static LAYOUTS: [Layout; 13] = [
    vllm("vllm-0.9", 5, 1),
    vllm("vllm-0.10.2", 6, 2),
    vllm("vllm-0.14", 7, 2),
    vllm("vllm-0.17", 8, 2),
    vllm("vllm-0.20", 9, 3),
    vllm("vllm-0.22", 11, 3),
    vllm_maps("vllm-0.24", false),
    vllm_maps("vllm-0.26", true),
    sglang("sglang-0.4.8", 5, 1),
    sglang("sglang-0.5.9", 6, 2),
    sglang("sglang-0.5.18", 7, 2),
    sglang_maps(
        "sglang-0.5.20",
        &[Hashes, Parent, Tokens, BlockSize, LoraId, Medium, CacheSalt],
        false,
    ),
    sglang_maps(
        "sglang-0.5.22",
        &[Hashes, Parent, Tokens, BlockSize, LoraId, Medium, CacheSalt, LoraName],
        true,
    ),
];

impl Layout {
    /// The layout of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.name == name)
    }

    /// vLLM's latest.
    #[must_use]
    pub fn latest() -> &'static Self {
        &LAYOUTS[LATEST]
    }

    /// Whether events tell which KV-cache group they are about.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.tells(Group)
    }

    pub(super) fn tells(&self, column: Column) -> bool {
        self.stored.contains(&column)
    }
}

/// vLLM's latest, in [`LAYOUTS`].
const LATEST: usize = 7;
