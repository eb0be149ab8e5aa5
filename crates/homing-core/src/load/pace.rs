//! How fast a worker is, learned from what the router sees of it: when first tokens come, and how long the next
//! ones take. No knobs: it begins with what is usual, and comes near the truth after a dozen answers.
//!
//! Two linear models, of what engines do in fact (continuous batching with chunked prefill):
//!
//! ```text
//! first token = base + token x (prompt tokens computed there meanwhile) + pair x (their pairs with tokens before)
//! each token  = step + sequence x (decoding beside) + context x (tokens of context read) + stall x (prompt tokens
//!               computed meanwhile, a token)
//! ```
//!
//! Each observation moves the coefficients a part of the way towards what would have foretold it, each in the measure
//! of its share in the expectation, and by factors: so they stay positive, units don't matter, and a fleet that is
//! fifty times as fast as usual is known as soon as any (an exponentiated gradient: Kivinen and Warmuth, "Exponentiated
//! gradient versus gradient descent for linear predictors", 1997). What is farther off than usual counts only as far
//! as that, so that a stall, or a client that reads slowly, teaches little. A worker begins as its pool is, and a pool as
//! [`Pace::default`].

use super::Load;
use crate::time::Time;

/// A worker's speed, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// A first token, besides its prompt.
    pub base: f32,
    /// A prompt token that is computed,
    pub token: f32,
    /// and one of its pairs with a token before it.
    pub pair: f32,
    /// A step in which one sequence decodes,
    pub step: f32,
    /// what each more adds,
    pub sequence: f32,
    /// each token of their context,
    pub context: f32,
    /// and each prompt token that is computed between two of their tokens.
    pub stall: f32,
}

impl Default for Pace {
    /// The middle of the field: a model of some ten billion parameters on a data-centre GPU.
    fn default() -> Self {
        Self {
            base: 30.0,
            token: 0.06,
            pair: 2e-6,
            step: 12.0,
            sequence: 0.1,
            context: 1e-4,
            stall: 0.06,
        }
    }
}

impl Pace {
    /// How long so many new tokens take, of a prompt of `all`.
    #[must_use]
    pub fn prefill_ms(&self, new: u32, all: u32) -> f64 {
        let (new, all) = (f64::from(new.min(all)), f64::from(all));
        let pairs = new * (all - new) + new * new / 2.0;
        new * f64::from(self.token) + pairs * f64::from(self.pair)
    }

    /// How long what waits for its first token will still take. It is let go when that comes, though most of it
    /// may be done long before: what has passed since the first in line could begin counts for that one.
    #[must_use]
    pub fn queue_ms(&self, now: Time, load: &Load) -> f64 {
        let ms = |tokens: u64, pairs: u64| {
            tokens as f64 * f64::from(self.token) + pairs as f64 * f64::from(self.pair)
        };
        // No `Duration` between: this is asked of every candidate.
        let passed = now.as_micros().saturating_sub(load.since.as_micros()) as f64 / 1e3;
        ms(load.prefill_tokens, load.prefill_pairs)
            - passed.min(ms(load.first_prefill, load.first_pairs) * OVERDUE)
    }

    /// How long a token takes beside what is decoding there already.
    #[must_use]
    pub fn step_ms(&self, load: &Load, prompt: u32) -> f64 {
        let sequences = f64::from(load.decoding) + 1.0;
        let context = load.context as f64 + f64::from(prompt);
        f64::from(self.step)
            + sequences * f64::from(self.sequence)
            + context * f64::from(self.context)
    }
}

/// A first token has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prefilled {
    /// How long that took.
    pub(crate) ms: f64,
    /// Prompt tokens that its target has computed meanwhile,
    pub(crate) tokens: f64,
    /// and their pairs.
    pub(crate) pairs: f64,
}

/// A stream has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decoded {
    /// Its tokens behind the first.
    pub(crate) tokens: f64,
    /// How long one of them took, on average.
    pub(crate) ms: f64,
    /// Sequences that were decoding, itself among them, on average;
    pub(crate) sequences: f64,
    /// the tokens of context that they had;
    pub(crate) context: f64,
    /// and prompt tokens computed meanwhile, a token.
    pub(crate) prefilled: f64,
}

/// What was learned of a worker, or of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    first: Fit<3>,
    each: Fit<4>,
    pace: Pace,
}

impl Default for Learned {
    fn default() -> Self {
        Self::from(Pace::default())
    }
}

impl From<Pace> for Learned {
    fn from(p: Pace) -> Self {
        let first = Fit::new([p.base, p.token, p.pair].map(f64::from));
        let each = Fit::new([p.step, p.sequence, p.context, p.stall].map(f64::from));
        Self { first, each, pace: p }
    }
}

impl Learned {
    /// What is known by now.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Goes half of the way to another pace, by factors.
    pub(crate) fn fade_to(&mut self, to: &Pace) {
        self.first.fade_to([to.base, to.token, to.pair]);
        self.each.fade_to([to.step, to.sequence, to.context, to.stall]);
        self.show();
    }

    /// What is known is what others see from now on.
    fn show(&mut self) {
        let [base, token, pair] = self.first.is.map(|it| it as f32);
        let [step, sequence, context, stall] = self.each.is.map(|it| it as f32);
        self.pace = Pace { base, token, pair, step, sequence, context, stall };
    }

    /// Learns from a first token.
    pub(crate) fn prefilled(&mut self, seen: &Prefilled) {
        self.first.learn([1.0, seen.tokens, seen.pairs], seen.ms);
        self.show();
    }

    /// Learns from a stream.
    pub(crate) fn decoded(&mut self, seen: &Decoded) {
        self.each.learn([1.0, seen.sequences, seen.context, seen.prefilled], seen.ms);
        self.show();
    }
}

/// Of what should be done by now so much is taken to be done, at most: nobody has said so yet.
const OVERDUE: f64 = 0.85;
/// The part of the way that an observation moves what is known, once much is.
const GAIN: f64 = 0.06;
/// Observations that are off by more than so many times what is usual count as if they were off by that.
const FAR: f64 = 2.0;
/// How far it is off, in logarithms, before anything is known, and at least.
const OFF: std::ops::RangeInclusive<f64> = 0.05..=1.0;
/// Expectations of which a mean is taken.
const RECENT: f64 = 64.0;
/// Coefficients stay within these factors of where they began.
const FARTHEST: f64 = 1e4;

/// A linear model that is learned by the way, and believes nothing odd.
#[derive(Clone, Debug)]
struct Fit<const N: usize> {
    /// The coefficients,
    is: [f64; N],
    /// and where they began.
    was: [f64; N],
    /// How many observations there were, and what was expected of them on average, lately.
    seen: f64,
    mean: f64,
    /// How far the last of them were off, as logarithms of quotients.
    off: f64,
}

impl<const N: usize> Fit<N> {
    fn new(is: [f64; N]) -> Self {
        Self { is, was: is, seen: 0.0, mean: 0.0, off: *OFF.end() }
    }

    fn fade_to(&mut self, to: [f32; N]) {
        for (is, to) in self.is.iter_mut().zip(to) {
            // Both are positive, and bounded by how far coefficients may go.
            *is = (*is * f64::from(to)).sqrt();
        }
    }

    fn learn(&mut self, factors: [f64; N], observed: f64) {
        let sane = |f: f64| f.is_finite() && f >= 0.0;
        if !sane(observed) || observed == 0.0 || !factors.into_iter().all(sane) {
            return;
        }
        let parts: [f64; N] = std::array::from_fn(|i| self.is[i] * factors[i]);
        let expected: f64 = parts.iter().sum();
        if !(expected.is_finite() && expected > 0.0) {
            return;
        }
        let off = (observed / expected).ln();
        let most = FAR * self.off;
        self.off += (off.abs().min(2.0 * most) - self.off) / 16.0;
        self.off = self.off.max(*OFF.start());
        self.seen += 1.0;
        self.mean += (expected - self.mean) / self.seen.min(RECENT);
        // Long ones are few, and what they teach matters most.
        let weight = (expected / self.mean).clamp(0.25, 3.0);
        let gain = (GAIN * weight).max(1.0 / (self.seen + 1.0));
        let shares = parts.map(|part| part / expected);
        let step = gain * off.clamp(-most, most) / shares.iter().map(|s| s * s).sum::<f64>();
        for (i, share) in shares.into_iter().enumerate() {
            let (least, most) = (self.was[i] / FARTHEST, self.was[i] * FARTHEST);
            self.is[i] = (self.is[i] * (step * share).exp()).clamp(least, most);
        }
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
