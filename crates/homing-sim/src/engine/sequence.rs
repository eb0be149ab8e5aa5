//! A request's tokens, and the engine's names for its full blocks.
//!
//! An engine's block hashes are opaque to everybody else. These are the chain hashes of
//! `homing_core::hash` put through a mixer keyed by the engine's seed: equal prefixes get equal names
//! on one engine, and nothing that a router could compute, or compare across engines, by itself.

use homing_core::hash::{ChainHash, EngineHash, HashSpace};

/// Makes one engine's names of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Namer {
    /// Tokens per block.
    block_size: u32,
    /// What makes this engine's names differ from all others.
    seed: u64,
}

impl Namer {
    /// A namer for blocks of `block_size` tokens (at least 1).
    #[must_use]
    pub const fn new(block_size: u32, seed: u64) -> Self {
        Self { block_size: if block_size == 0 { 1 } else { block_size }, seed }
    }

    /// The engine's name for the prefix `chain`. A bijection (SplitMix64's finaliser over an xor), so
    /// distinct chains keep distinct names.
    #[must_use]
    pub const fn name(self, chain: ChainHash) -> EngineHash {
        let mut z = chain.0 ^ self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        EngineHash(z ^ (z >> 31))
    }
}

/// The adapter and cache namespace of a request: blocks are shared only within equal ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// LoRA adapter; "" for the base model.
    pub adapter: String,
    /// `cache_salt`; "" for none.
    pub salt: String,
}

/// Tokens that grow, with the names of their full blocks kept up to date.
#[derive(Clone, Debug)]
pub struct Sequence {
    namer: Namer,
    space: HashSpace,
    namespace: Namespace,
    tokens: Vec<u32>,
    names: Vec<EngineHash>,
    chain: Option<ChainHash>,
}

impl Sequence {
    /// A sequence of `tokens`.
    #[must_use]
    pub fn new(namer: Namer, namespace: Namespace, tokens: Vec<u32>) -> Self {
        let space = HashSpace::new(&namespace.adapter, &namespace.salt);
        let mut it = Self { namer, space, namespace, tokens, names: Vec::new(), chain: None };
        it.name_full_blocks();
        it
    }

    /// Appends a generated token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.name_full_blocks();
    }

    /// Length in tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// All tokens so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// One name per full block, first to last.
    #[must_use]
    pub fn names(&self) -> &[EngineHash] {
        &self.names
    }

    /// Adapter and salt.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn name_full_blocks(&mut self) {
        let size = self.namer.block_size as usize;
        while let Some(block) =
            self.tokens.get(self.names.len() * size..(self.names.len() + 1) * size)
        {
            let chain = ChainHash::after(self.chain, self.space.local(block));
            self.chain = Some(chain);
            self.names.push(self.namer.name(chain));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(seed: u64, salt: &str, tokens: &[u32]) -> Vec<EngineHash> {
        let namespace = Namespace { adapter: String::new(), salt: salt.into() };
        Sequence::new(Namer::new(4, seed), namespace, tokens.to_vec()).names().to_vec()
    }

    #[test]
    fn names_follow_the_prefix_the_engine_and_the_salt() {
        let tokens: Vec<u32> = (0..11).collect();
        let a = names(1, "", &tokens);
        assert_eq!(a.len(), 2, "only full blocks have names");
        assert_eq!(a[..1], names(1, "", &tokens[..7]));
        assert_ne!(a, names(2, "", &tokens));
        assert_ne!(a[0], names(1, "tenant", &tokens)[0]);
        let mut changed = tokens.clone();
        changed[0] = 99;
        assert_ne!(a[1], names(1, "", &changed)[1], "a block's name covers all before it");
    }

    #[test]
    fn pushing_tokens_one_by_one_gives_the_same_names() {
        let tokens: Vec<u32> = (0..23).map(|i| i * 7).collect();
        let mut grown = Sequence::new(Namer::new(4, 3), Namespace::default(), tokens[..5].to_vec());
        for t in &tokens[5..] {
            grown.push(*t);
        }
        assert_eq!(grown.names(), names(3, "", &tokens));
    }
}
