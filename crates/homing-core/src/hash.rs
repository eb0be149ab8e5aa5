//! From token ids to block identities. Three kinds of hash, three types, never mixed up.
//!
//! * [`LocalHash`]: one block's tokens alone. xxh3-64 over the ids as u32 LE, seeded by the space.
//! * [`ChainHash`]: a block *and all that precedes it*; equal chains mean equal prefixes.
//! * [`EngineHash`]: what an engine calls a block in its events; opaque.
//!
//! The formulas are the field's (`docs/kv-cache.md`), checked against golden vectors of the real package.

use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Hash of one block's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalHash(pub u64);

/// Hash of a whole prefix that ends with this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainHash(pub u64);

/// An engine's own name for a block. Ints are kept as their 64 bits (signed ones wrapped); a digest
/// in bytes by its last 8, big-endian, which is what vLLM itself does for its int form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

impl EngineHash {
    /// From a digest in bytes; `None` if it is shorter than 8 bytes.
    #[must_use]
    pub fn from_digest(bytes: &[u8]) -> Option<Self> {
        let tail: [u8; 8] = bytes.get(bytes.len().checked_sub(8)?..)?.try_into().ok()?;
        Some(Self(u64::from_be_bytes(tail)))
    }
}

const SEED: u64 = 1337;

/// The identity that blocks have besides their tokens: adapter and cache namespace (salt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashSpace(u64);

impl Default for HashSpace {
    fn default() -> Self {
        Self(SEED)
    }
}

impl HashSpace {
    /// The space of `adapter` and `salt`; "" counts as absent.
    #[must_use]
    pub fn new(adapter: &str, salt: &str) -> Self {
        let part = |text: &str, seed| {
            if text.is_empty() { 0 } else { xxh3_64_with_seed(text.as_bytes(), seed) }
        };
        Self(SEED.wrapping_add(part(adapter, 0)).wrapping_add(part(salt, 1)))
    }

    /// The hash of one block's tokens.
    #[must_use]
    pub fn local(self, tokens: &[u32]) -> LocalHash {
        // Blocks are short (16..256 tokens): the bytes fit a stack buffer, and longer ones are rare. To clear
        // one for 256 takes as long as to hash 16.
        match tokens.len() {
            0..=16 => self.on_stack::<64>(tokens),
            17..=256 => self.on_stack::<1024>(tokens),
            _ => {
                let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
                LocalHash(xxh3_64_with_seed(&bytes, self.0))
            }
        }
    }

    fn on_stack<const BYTES: usize>(self, tokens: &[u32]) -> LocalHash {
        let mut stack = [0u8; BYTES];
        for (chunk, t) in stack.chunks_exact_mut(4).zip(tokens) {
            chunk.copy_from_slice(&t.to_le_bytes());
        }
        LocalHash(xxh3_64_with_seed(&stack[..tokens.len() * 4], self.0))
    }

    /// The hashes of every *full* block of `tokens`, in order.
    pub fn locals(
        self,
        tokens: &[u32],
        block_size: u32,
    ) -> impl Iterator<Item = LocalHash> + use<'_> {
        tokens.chunks_exact(block_size.max(1) as usize).map(move |block| self.local(block))
    }
}

impl ChainHash {
    /// The chain of a first block.
    #[must_use]
    pub const fn root(local: LocalHash) -> Self {
        Self(local.0)
    }

    /// The chain of the block `local` that follows `self`.
    #[must_use]
    pub fn then(self, local: LocalHash) -> Self {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&local.0.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, SEED))
    }

    /// `parent`'s successor, or a first block where there is no parent.
    #[must_use]
    pub fn after(parent: Option<Self>, local: LocalHash) -> Self {
        parent.map_or(Self::root(local), |p| p.then(local))
    }
}

/// Bytes of text that are hashed together where there is no tokenizer.
pub const TEXT_CHUNK: usize = 512;
/// What such a chunk counts for, in tokens: 4 bytes each, which is near the truth for English prose and code
/// (and is only ever compared with itself).
pub const TEXT_BLOCK: u32 = (TEXT_CHUNK / 4) as u32;

/// A prompt as the core sees it: how long it is, and the chain of its full blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Length in tokens; an estimate unless it is `exact`.
    pub tokens: u32,
    /// It was tokenized. Otherwise its chain, if it has one, is of its text.
    pub exact: bool,
    /// Tokens per block of `chain`; 0 where it is unknown.
    pub block_size: u32,
    /// One hash per full block, first to last.
    pub chain: Arc<[ChainHash]>,
    /// The space that they are hashed in.
    pub space: HashSpace,
}

impl Prompt {
    /// Hashes `tokens` in blocks of `block_size` (0: no blocks).
    #[must_use]
    pub fn from_tokens(tokens: &[u32], block_size: u32, space: HashSpace) -> Self {
        let mut chain = Vec::with_capacity(tokens.len() / block_size.max(1) as usize);
        if block_size > 0 {
            for local in space.locals(tokens, block_size) {
                chain.push(ChainHash::after(chain.last().copied(), local));
            }
        }
        Self {
            tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            exact: true,
            block_size,
            chain: chain.into(),
            space,
        }
    }

    /// A prompt as its text, in chunks of [`TEXT_CHUNK`] bytes: `parts` behind each other, in the order in
    /// which the engine will read them. Its tokens are an estimate.
    #[must_use]
    pub fn from_text(parts: &[&[u8]], space: HashSpace) -> Self {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        let mut chain: Vec<ChainHash> = Vec::with_capacity(total / TEXT_CHUNK);
        // The space is where chains begin: without a seed, long inputs are hashed faster.
        let mut last = ChainHash(space.0);
        let mut add = |chunk: &[u8]| {
            last = last.then(LocalHash(xxh3_64(chunk)));
            chain.push(last);
        };
        // What a part leaves begins a chunk that the next one fills.
        let (mut open, mut filled) = ([0u8; TEXT_CHUNK], 0);
        for mut part in parts.iter().copied() {
            if filled > 0 {
                let (head, rest) = part.split_at(part.len().min(TEXT_CHUNK - filled));
                open[filled..filled + head.len()].copy_from_slice(head);
                (filled, part) = (filled + head.len(), rest);
                if filled < TEXT_CHUNK {
                    continue;
                }
                add(&open);
            }
            let chunks = part.chunks_exact(TEXT_CHUNK);
            let rest = chunks.remainder();
            chunks.for_each(&mut add);
            open[..rest.len()].copy_from_slice(rest);
            filled = rest.len();
        }
        let tokens =
            u32::try_from(total.div_ceil(TEXT_CHUNK / TEXT_BLOCK as usize)).unwrap_or(u32::MAX);
        Self { tokens, exact: false, block_size: TEXT_BLOCK, chain: chain.into(), space }
    }

    /// A prompt of about this many tokens that nobody could tokenize.
    #[must_use]
    pub fn of_length(tokens: u32) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// How many of its blocks an engine can reuse at most. The last token is always computed anew, so
    /// a fully cached prompt still loses the block that holds it: floor((n - 1) / block).
    #[must_use]
    pub fn reusable_blocks(&self) -> u32 {
        self.tokens.saturating_sub(1).checked_div(self.block_size).unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "hash_tests.rs"]
mod tests;
