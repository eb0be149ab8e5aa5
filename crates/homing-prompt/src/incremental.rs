//! The prompt of a chat whose earlier turns were seen before, at the cost of what is new.
//!
//! The text is rendered whole, since a template may do anything with a conversation's beginning once
//! it goes on (drop old reasoning, say), then cut behind special tokens ([`crate::cut`]), and only
//! parts that the cache doesn't know are encoded. The ids are those of
//! [`ModelPrompt::encode_chat`], always.

use homing_core::hash::{ChainHash, HashSpace, Prompt};
use serde_json::Value;

use crate::chat::ChatInput;
use crate::encode::{Specials, completion, within_limit};
use crate::error::PromptError;
use crate::load::ModelPrompt;
use crate::{CacheStats, PromptCache};

impl ModelPrompt {
    /// Replaces the cache of [`Self::chat_prompt`], which is by default one of
    /// [`PromptCache::DEFAULT_BYTES`].
    #[must_use]
    pub fn with_cache(mut self, cache: PromptCache) -> Self {
        self.cache = cache;
        self
    }

    /// What the cache holds and has done.
    #[must_use]
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// A chat as the core sees it: the ids of [`Self::encode_chat`], hashed in blocks of
    /// `block_size` tokens (0: no blocks).
    ///
    /// # Errors
    /// As [`Self::encode_chat`], and [`PromptError::Unbroken`].
    pub fn chat_prompt(
        &self,
        input: &ChatInput<'_>,
        block_size: u32,
        space: HashSpace,
    ) -> Result<Prompt, PromptError> {
        self.chat_prompt_while(input, block_size, space, &|| true)
    }

    /// Likewise, for as long as it is `wanted`, which is asked from part to part.
    ///
    /// # Errors
    /// As [`Self::chat_prompt`], and [`PromptError::Unwanted`].
    pub fn chat_prompt_while(
        &self,
        input: &ChatInput<'_>,
        block_size: u32,
        space: HashSpace,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Prompt, PromptError> {
        let mut blocks = Blocks::new(block_size, space);
        let text = self.render_chat(input)?;
        self.for_each_part(&text, input.specials, wanted, |ids| blocks.extend(ids))?;
        Ok(blocks.prompt())
    }

    /// A completion as the core sees it: the ids of [`Self::encode_completion`]. Several prompts are as many
    /// generations on one worker: the first one's prefix decides, and the length is all of them.
    ///
    /// # Errors
    /// As [`Self::encode_completion`], [`PromptError::Unbroken`] and [`PromptError::Unwanted`].
    pub fn completion_prompt_while(
        &self,
        prompt: &Value,
        specials: Specials,
        block_size: u32,
        space: HashSpace,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Prompt, PromptError> {
        let encode = |text: &str| {
            let mut ids = Vec::with_capacity(text.len() / 3);
            self.for_each_part(text, specials, wanted, |part| ids.extend_from_slice(part))?;
            Ok(ids)
        };
        let prompts = completion(prompt, encode)?;
        let total: usize = prompts.iter().map(Vec::len).sum();
        let first = prompts.first().map(Vec::as_slice).unwrap_or_default();
        let mut prompt = Prompt::from_tokens(first, block_size, space);
        prompt.tokens = u32::try_from(total).unwrap_or(u32::MAX);
        Ok(prompt)
    }

    /// A text's token ids, as [`Self::encode_text`] gives them, with the parts that the cache knows
    /// taken from there.
    ///
    /// # Errors
    /// As [`Self::encode_text`], and [`PromptError::Unbroken`].
    pub fn encode_cached(&self, text: &str, specials: Specials) -> Result<Vec<u32>, PromptError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.for_each_part(text, specials, &|| true, |part| ids.extend_from_slice(part))?;
        Ok(ids)
    }

    /// Gives the ids of a text in pieces, in order.
    fn for_each_part(
        &self,
        text: &str,
        specials: Specials,
        wanted: &dyn Fn() -> bool,
        mut sink: impl FnMut(&[u32]),
    ) -> Result<(), PromptError> {
        within_limit(text.len())?;
        let (before, behind) = match (specials, &self.cuts.affixes) {
            (Specials::Omit, _) => (&[][..], &[][..]),
            (Specials::Add, Some((before, behind))) => (&before[..], &behind[..]),
            (Specials::Add, None) => {
                let limit = self.cuts.part_max;
                if text.len() > limit {
                    return Err(PromptError::Unbroken { limit });
                }
                sink(&self.encode_text(text, specials)?);
                return Ok(());
            }
        };
        self.cuts.are_short(text)?;
        sink(before);
        for (i, part) in self.cuts.parts(text).enumerate() {
            let key = PromptCache::key(part, i == 0);
            if let Some(known) = self.cache.get(key, part) {
                sink(known.ids());
            } else {
                if !wanted() {
                    return Err(PromptError::Unwanted);
                }
                let ids = self.encode_part(part, i == 0)?;
                sink(&ids);
                self.cache.insert(key, part, &ids);
            }
        }
        sink(behind);
        Ok(())
    }

    /// A part that isn't the first is encoded behind the anchor, as [`crate::cut`] explains.
    fn encode_part(&self, part: &str, first: bool) -> Result<Vec<u32>, PromptError> {
        match self.cuts.anchor() {
            Some(anchor) if !first => {
                let mut ids = self.encode_text(&format!("{anchor}{part}"), Specials::Omit)?;
                ids.drain(..1.min(ids.len()));
                Ok(ids)
            }
            _ => self.encode_text(part, Specials::Omit),
        }
    }
}

/// [`Prompt::from_tokens`] of ids that come in pieces: a long prompt is never in memory as a whole.
struct Blocks {
    block_size: usize,
    space: HashSpace,
    tokens: usize,
    chain: Vec<ChainHash>,
    /// Fewer than a block.
    rest: Vec<u32>,
}

impl Blocks {
    fn new(block_size: u32, space: HashSpace) -> Self {
        let block_size = block_size as usize;
        Self { block_size, space, tokens: 0, chain: Vec::new(), rest: Vec::new() }
    }

    fn extend(&mut self, mut ids: &[u32]) {
        self.tokens += ids.len();
        if self.block_size == 0 {
            return;
        }
        if !self.rest.is_empty() {
            let (fits, others) = ids.split_at(ids.len().min(self.block_size - self.rest.len()));
            self.rest.extend_from_slice(fits);
            ids = others;
            if self.rest.len() == self.block_size {
                self.chain.push(self.after(&self.rest));
                self.rest.clear();
            }
        }
        let whole = ids.chunks_exact(self.block_size);
        self.rest.extend_from_slice(whole.remainder());
        for block in whole {
            self.chain.push(self.after(block));
        }
    }

    fn after(&self, block: &[u32]) -> ChainHash {
        ChainHash::after(self.chain.last().copied(), self.space.local(block))
    }

    fn prompt(self) -> Prompt {
        Prompt {
            tokens: u32::try_from(self.tokens).unwrap_or(u32::MAX),
            exact: true,
            block_size: u32::try_from(self.block_size).unwrap_or(u32::MAX),
            chain: self.chain.into(),
            space: self.space,
        }
    }
}

#[cfg(test)]
#[path = "incremental_tests.rs"]
mod tests;
