//! How long one step of the engine takes: a stated, linear model, and nothing measured behind it.
//!
//! ```text
//! step = base
//!      + new prompt tokens   x prefill_token      (the matrix products: compute-bound)
//!      + new tokens x context x prefill_pair      (their attention, which grows with the context)
//!      + decoding sequences  x decode_sequence    (sampling and bookkeeping per sequence)
//!      + context tokens read x kv_token           (decode attention: memory-bound)
//! ```
//!
//! The defaults are the arithmetic of an 8-billion-parameter dense model with grouped-query attention
//! (32 layers, 32 query heads, 8 KV heads of 128, 16-bit weights) on one data-centre GPU of about
//! 300 TFLOP/s and 2 TB/s: about 8 ms a decode step and 10 k prefill tokens a second. They are a
//! ballpark that gives routing the right proportions; they don't predict any product's latency.
//! Integers throughout, so that a run is the same on every machine.

use std::time::Duration;

/// The coefficients, in the units that their names end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Every step reads the weights once: 16 GB at 2 TB/s.
    pub base_ns: u64,
    /// 2 x 8 G operations a token at half of 300 TFLOP/s.
    pub prefill_token_ns: u64,
    /// 4 x 32 x 32 x 128 operations per (new token, token before it), at the same rate.
    pub prefill_pair_ps: u64,
    /// Sampling, detokenizing and scheduling one more sequence.
    pub decode_sequence_ns: u64,
    /// 128 KiB of keys and values per token of context, at 80 % of 2 TB/s.
    pub kv_token_ps: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            base_ns: 8_000_000,
            prefill_token_ns: 100_000,
            prefill_pair_ps: 3_500,
            decode_sequence_ns: 30_000,
            kv_token_ps: 80_000,
        }
    }
}

/// What one step does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Prompt tokens computed, over all sequences.
    pub prefill_tokens: u64,
    /// Pairs of (new prompt token, token before it).
    pub prefill_pairs: u64,
    /// Sequences that decode one token.
    pub decode_sequences: u64,
    /// Tokens of context that those sequences read.
    pub kv_tokens: u64,
}

impl Work {
    /// Adds the prefill of `new` tokens that follow `before` others.
    pub const fn prefill(&mut self, new: u64, before: u64) {
        self.prefill_tokens += new;
        // The i-th new token attends to `before + i` others.
        self.prefill_pairs += new * before + new * new.saturating_sub(1) / 2;
    }

    /// Adds one token decoded behind a context of `context` tokens.
    pub const fn decode(&mut self, context: u64) {
        self.decode_sequences += 1;
        self.kv_tokens += context;
    }

    /// New tokens in all.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.prefill_tokens + self.decode_sequences
    }
}

impl CostModel {
    /// How long a step with this work takes, rounded up to the microsecond (the grain of `Time`).
    #[must_use]
    pub const fn step(&self, work: &Work) -> Duration {
        let nanos = self
            .base_ns
            .saturating_add(work.prefill_tokens.saturating_mul(self.prefill_token_ns))
            .saturating_add(work.prefill_pairs.saturating_mul(self.prefill_pair_ps) / 1000)
            .saturating_add(work.decode_sequences.saturating_mul(self.decode_sequence_ns))
            .saturating_add(work.kv_tokens.saturating_mul(self.kv_token_ps) / 1000);
        let micros = nanos.div_ceil(1000);
        // A step of zero length would let a loop over steps run forever at one instant.
        Duration::from_micros(if micros == 0 { 1 } else { micros })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_the_stated_ballpark() {
        let cost = CostModel::default();
        let mut decode = Work::default();
        decode.decode(2_000);
        assert_eq!(cost.step(&decode), Duration::from_micros(8_190));
        let mut prefill = Work::default();
        prefill.prefill(8_192, 0);
        let rate = 8_192.0 / cost.step(&prefill).as_secs_f64();
        assert!((8_000.0..10_000.0).contains(&rate), "{rate} tokens/s");
    }

    #[test]
    fn a_chunked_prefill_pays_for_the_same_pairs_as_a_whole_one() {
        let mut whole = Work::default();
        whole.prefill(1000, 50);
        let mut parts = Work::default();
        parts.prefill(400, 50);
        parts.prefill(600, 450);
        assert_eq!(whole, parts);
    }

    #[test]
    fn a_step_never_takes_no_time() {
        let free = CostModel {
            base_ns: 0,
            prefill_token_ns: 0,
            prefill_pair_ps: 0,
            decode_sequence_ns: 0,
            kv_token_ps: 0,
        };
        assert_eq!(free.step(&Work::default()), Duration::from_micros(1));
    }
}
