//! How far the index is believed, by worker and API shape: each prediction is held against what the engine
//! says of the same request, and an index that lies loses its weight by itself (F28).
//!
//! A request's *share* is what of its prediction came true, 0 to 1. Trust goes a quarter of the way to the
//! **median of the last five** each time: up to two outliers in a row move nothing, and who lies always has lost
//! nearly everything after some fifteen requests. It never falls below [`FLOOR`]: a little of what the index says still
//! counts, so that requests go there whose answers can heal it. Only evidence heals, time does not.
//!
//! What says nothing about trust: an engine that doesn't say what it reused, a prediction of at most one
//! block, and one that was too low, which is counted and is an error all the same: its cache was wasted.

use crate::ask::Usage;
use crate::ids::{DpRank, NameId, WorkerId};

mod book;
mod cause;
mod span;

pub(crate) use book::Book;
pub use book::{Checks, TrustView, Turn};
pub use cause::{LikelyCause, Sign, likely_cause};
pub use span::Counters;

/// What trust never falls below.
pub const FLOOR: f64 = 0.05;
/// What it begins with where the engine tokenizes otherwise than we do.
pub const SUSPECT: f64 = 0.25;
/// Below this it is lost, and said so.
pub const LOST: f64 = 0.5;
/// From here on it is back: above [`LOST`], so that what wavers around it is not news each time.
pub const BACK: f64 = 0.8;

/// The shares whose median counts.
const RECENT: usize = 5;
/// Part of the way to the median that trust goes at once.
const STEP: f64 = 0.25;
/// What is closer than this is there.
const NEAR: f64 = 0.01;
/// The same for the error, which is a mean.
const ERROR_STEP: f64 = 1.0 / 16.0;

/// In which form a request comes. Engines make a prompt of each in another way, so that one may be predicted
/// well and another not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// Messages, by the chat template.
    #[default]
    Chat,
    /// Text or token ids.
    Completions,
    /// Items of the Responses API, made into messages.
    Responses,
    /// Anthropic's messages and blocks, made into messages.
    Messages,
    /// Any of them, where its tokens are not known here and its text is compared.
    Text,
}

impl Shape {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Chat, Self::Completions, Self::Responses, Self::Messages, Self::Text];

    /// As people read it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Text => "text",
        }
    }
}

/// A trust factor, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trust(u16);

impl Trust {
    /// Nothing speaks against it.
    pub const FULL: Self = Self(1000);

    fn new(factor: f64) -> Self {
        Self((factor.clamp(0.0, 1.0) * 1000.0).round() as u16)
    }

    /// 0 to 1.
    #[must_use]
    pub fn factor(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// So many blocks count for that many.
    #[must_use]
    pub fn of(self, blocks: u32) -> u32 {
        if self == Self::FULL {
            return blocks;
        }
        let weighed = (u64::from(blocks) * u64::from(self.0) + 500) / 1000;
        u32::try_from(weighed).unwrap_or(blocks)
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self::FULL
    }
}

/// What was predicted of a request when it was placed. All counts are prompt tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    pub(crate) worker: WorkerId,
    pub(crate) rank: DpRank,
    pub(crate) name: NameId,
    pub(crate) shape: Shape,
    /// Its tokens were counted here; else all counts are guesses by the length of its text.
    pub(crate) exact: bool,
    pub(crate) block_size: u32,
    pub(crate) tokens: u32,
    /// Those that its target holds by the index, whatever that is trusted.
    pub(crate) cached: u32,
    /// Of these, those that it held already: what was only on its way there is no promise of the index.
    pub(crate) told: u32,
    /// Those, in front, that some live target holds.
    pub(crate) best: u32,
    /// Those, in front, that came here before or that somebody holds.
    pub(crate) seen: u32,
}

/// What one request says of its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Verdict {
    /// What of the prediction came true; `None` where that can't be said.
    share: Option<f64>,
    /// How far prediction and truth are apart, in parts of the prompt; `None`: unknown.
    error: Option<f64>,
    sign: Sign,
}

impl Forecast {
    /// Held against what the engine says. `uncertain`: the index was being learned anew.
    fn verdict(&self, usage: &Usage, uncertain: bool) -> Verdict {
        let [mut told, mut most, mut block] =
            [self.told, self.cached, self.block_size.max(1)].map(u64::from);
        let differs = self.exact && usage.prompt_tokens != u64::from(self.tokens);
        if !self.exact {
            // In the engine's tokens: the same part of the prompt, which may begin and end amid a chunk.
            let tokens = u64::from(self.tokens.max(1));
            let scale = |n: u64| n.saturating_mul(usage.prompt_tokens) / tokens;
            (told, most, block) = (scale(told), scale(most), scale(block * 2).max(1));
        }
        let Some(theirs) = usage.cached_tokens else {
            let sign = if differs { Sign::Template } else { Sign::Silent };
            return Verdict { share: None, error: None, sign };
        };
        let off = told.saturating_sub(theirs).max(theirs.saturating_sub(most));
        let agrees = off <= block;
        let short = theirs < told && !agrees;
        let share = match (told > block, short) {
            (false, _) => None,
            (true, true) => Some(theirs as f64 / told as f64),
            (true, false) => Some(1.0),
        };
        let length = usage.prompt_tokens.max(1) as f64;
        let error = if agrees { 0.0 } else { (off as f64 / length).min(1.0) };
        let sign = if differs {
            Sign::Template
        } else if agrees {
            Sign::Agrees
        } else if self.exact && !theirs.is_multiple_of(block) {
            Sign::BlockSize
        } else if uncertain {
            Sign::Gap
        } else if short && theirs > 0 {
            Sign::Eviction
        } else {
            Sign::Unknown
        };
        Verdict { share, error: Some(error), sign }
    }
}

/// One worker's predictions in one shape.
#[derive(Clone, Debug)]
struct Record {
    trust: f64,
    /// The latest shares, in a ring.
    recent: [f64; RECENT],
    shares: usize,
    /// The latest signs, in a ring.
    signs: [Sign; cause::SIGNS],
    seen: usize,
    /// Mean distance of prediction and truth, in parts of the prompt.
    error: f64,
    /// The engine has tokenized a probe otherwise than we did.
    differs: bool,
    lost: bool,
    checks: Checks,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            trust: 1.0,
            recent: [1.0; RECENT],
            shares: 0,
            signs: [Sign::Silent; cause::SIGNS],
            seen: 0,
            error: 0.0,
            differs: false,
            lost: false,
            checks: Checks::default(),
        }
    }
}

impl Record {
    /// Takes a verdict in. `Some`: trust is lost by it (true), or back (false).
    fn take(&mut self, verdict: Verdict) -> Option<bool> {
        if verdict.sign != Sign::Silent {
            self.signs[self.seen % self.signs.len()] = verdict.sign;
            self.seen += 1;
        }
        if let Some(error) = verdict.error {
            self.error += (error - self.error) * ERROR_STEP;
        }
        self.recent[self.shares % RECENT] = verdict.share?;
        self.shares += 1;
        let mut sorted = self.recent;
        sorted.sort_unstable_by(f64::total_cmp);
        let goal = sorted[RECENT / 2].max(FLOOR);
        self.trust += (goal - self.trust) * STEP;
        if (goal - self.trust).abs() < NEAR {
            self.trust = goal;
        }
        if !self.lost && self.trust < LOST {
            self.lost = true;
            return Some(true);
        }
        if self.trust >= BACK {
            self.differs = false;
            if std::mem::take(&mut self.lost) {
                return Some(false);
            }
        }
        None
    }

    /// The engine tokenizes otherwise than we do: little is believed until answers say better.
    fn suspect(&mut self) {
        self.differs = true;
        self.lost = true;
        self.trust = self.trust.min(SUSPECT);
        self.recent = [FLOOR; RECENT];
    }

    fn cause(&self) -> Option<LikelyCause> {
        if self.differs { Some(LikelyCause::Template) } else { likely_cause(&self.signs) }
    }
}

#[cfg(test)]
#[path = "trust/tests.rs"]
mod tests;
