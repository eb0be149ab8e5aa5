//! What an engine says about its KV cache, decoded: the input of [`super::ChainIndex`].
//!
//! `homing-wire` makes these from bytes; the fields are those that identity needs, under the names
//! that vLLM gives them.

use crate::hash::EngineHash;

/// Where a block lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// GPU memory; nil and "" on the wire mean this too.
    #[default]
    Device,
    /// Host memory.
    Host,
    /// A disk of this worker.
    Disk,
    /// A store that several workers share.
    Shared,
    /// A name that we don't know. Never counted as device memory.
    Unknown,
}

/// How near a block is to the engine's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// In GPU memory: reused as it is.
    Device,
    /// In host memory: copied first.
    Host,
    /// On a disk, or in a store that several share: read first.
    Disk,
}

impl Tier {
    /// All of them, the nearest first.
    pub const ALL: [Self; 3] = [Self::Device, Self::Host, Self::Disk];
}

impl Medium {
    /// Which tier it belongs to; `None` where we don't know.
    #[must_use]
    pub fn tier(self) -> Option<Tier> {
        match self {
            Self::Device => Some(Tier::Device),
            Self::Host => Some(Tier::Host),
            Self::Disk | Self::Shared => Some(Tier::Disk),
            Self::Unknown => None,
        }
    }
}

/// One event of a worker's KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are in the cache now.
    Stored(BlockStored),
    /// Blocks are gone.
    Removed(BlockRemoved),
    /// The whole cache of this rank is empty.
    Cleared,
}

impl KvEvent {
    /// How many blocks it names.
    #[must_use]
    pub fn blocks(&self) -> usize {
        match self {
            Self::Stored(stored) => stored.block_hashes.len(),
            Self::Removed(removed) => removed.block_hashes.len(),
            Self::Cleared => 0,
        }
    }
}

/// Consecutive blocks that an engine stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockStored {
    /// One per block, in the order of the sequence.
    pub block_hashes: Vec<EngineHash>,
    /// The block before the first one; `None`: the sequence starts here.
    pub parent: Option<EngineHash>,
    /// The tokens of all these blocks, `block_size` each. None at all where the event only names blocks that
    /// another one has described (vLLM's offloaded ones).
    pub token_ids: Vec<u32>,
    /// Tokens per block; 0 where it only names them.
    pub block_size: u32,
    /// The adapter ("" for the base model).
    pub lora_name: String,
    /// The cache namespace ("" for none).
    pub cache_salt: String,
    /// True where identity depends on more than tokens, adapter and salt (images, prompt embeddings,
    /// bigrams): such blocks are known to the index but can't be matched yet.
    pub opaque: bool,
    /// Where they are.
    pub medium: Medium,
    /// KV-cache group of a hybrid model.
    pub group: Option<u32>,
    /// False where the group is known not to be one of full attention (sliding window, mamba): its
    /// blocks say nothing about reuse of a prefix.
    pub full_attention: bool,
}

impl BlockStored {
    /// Whether it only names its blocks: another event tells what they are.
    #[must_use]
    pub fn names_only(&self) -> bool {
        self.token_ids.is_empty() && self.block_size == 0
    }
}

/// Blocks that an engine evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRemoved {
    /// Which ones.
    pub block_hashes: Vec<EngineHash>,
    /// From where.
    pub medium: Medium,
    /// KV-cache group of a hybrid model.
    pub group: Option<u32>,
}
