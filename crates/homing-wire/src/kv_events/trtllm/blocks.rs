//! What is remembered of a rank's blocks: which ones are partial, and, where a cache has more levels than
//! the GPU's, what each one held: an event that brings one back from host memory names it and no more.
//!
//! Both are bounded, and cheap to be wrong about: a removal of a partial block that was forgotten removes
//! nothing, and a block that comes back unknown is known a little less than it could be.

use homing_core::hash::EngineHash;
use homing_core::index::event::{BlockStored, Medium};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Partial blocks that are remembered; beyond, all are forgotten. Each running request has one at most.
const MAX_PARTIAL: usize = 1 << 16;
/// Blocks whose content is remembered, and their tokens (32 MiB).
const MAX_KEPT: usize = 1 << 17;
const MAX_KEPT_TOKENS: usize = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Blocks {
    partial: HashSet<EngineHash>,
    kept: HashMap<EngineHash, Kept>,
    kept_tokens: usize,
    /// Whether there is anywhere to move to.
    may_move: bool,
    touched: bool,
}

#[derive(Debug)]
struct Kept {
    parent: Option<EngineHash>,
    tokens: Box<[u32]>,
    space: Space,
    medium: Medium,
}

/// Whose blocks they are, shared by those of an event.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub(super) lora_name: Arc<str>,
    pub(super) cache_salt: Arc<str>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            partial: HashSet::new(),
            kept: HashMap::new(),
            kept_tokens: 0,
            // Until the engine says how many levels it has.
            may_move: true,
            touched: false,
        }
    }
}

impl Blocks {
    /// Whether the cache has another level than the GPU's.
    pub(super) fn may_move(&mut self, may: bool) {
        self.may_move = may;
        if !may {
            self.forget_kept();
        }
    }

    /// Nothing is known of what was stored.
    pub(super) fn forget(&mut self) {
        self.partial.clear();
        self.forget_kept();
        self.touched = false;
    }

    /// Whether none was stored since.
    pub(super) const fn are_untouched(&self) -> bool {
        !self.touched
    }

    pub(super) fn add_partial(&mut self, hash: EngineHash) {
        if self.partial.len() >= MAX_PARTIAL {
            self.partial.clear();
        }
        self.partial.insert(hash);
    }

    pub(super) fn is_partial(&self, hash: EngineHash) -> bool {
        self.partial.contains(&hash)
    }

    /// True if it was one.
    pub(super) fn remove_partial(&mut self, hash: EngineHash) -> bool {
        self.partial.remove(&hash)
    }

    /// A whole block was stored.
    pub(super) fn add(
        &mut self,
        hash: EngineHash,
        parent: Option<EngineHash>,
        tokens: &[u32],
        space: &Space,
        medium: Medium,
    ) {
        self.touched = true;
        let fits = self.kept.len() < MAX_KEPT && self.kept_tokens + tokens.len() <= MAX_KEPT_TOKENS;
        if !self.may_move || !fits {
            return;
        }
        self.kept_tokens += tokens.len();
        let (tokens, space) = (tokens.into(), space.clone());
        if let Some(before) = self.kept.insert(hash, Kept { parent, tokens, space, medium }) {
            self.kept_tokens -= before.tokens.len();
        }
    }

    /// It is gone; says from where, if not from the GPU's memory.
    pub(super) fn remove(&mut self, hash: EngineHash) -> Medium {
        let Some(kept) = self.kept.remove(&hash) else { return Medium::Device };
        self.kept_tokens -= kept.tokens.len();
        kept.medium
    }

    /// It is somewhere else now; what it holds, if that is known.
    pub(super) fn moved(&mut self, hash: EngineHash, medium: Medium) -> Option<BlockStored> {
        let kept = self.kept.get_mut(&hash)?;
        kept.medium = medium;
        Some(BlockStored {
            block_hashes: vec![hash],
            parent: kept.parent,
            token_ids: kept.tokens.to_vec(),
            block_size: u32::try_from(kept.tokens.len()).unwrap_or(u32::MAX),
            lora_name: kept.space.lora_name.to_string(),
            cache_salt: kept.space.cache_salt.to_string(),
            medium,
            full_attention: true,
            ..BlockStored::default()
        })
    }

    fn forget_kept(&mut self) {
        self.kept.clear();
        self.kept_tokens = 0;
    }
}
