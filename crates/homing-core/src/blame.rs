//! Why each prompt token was computed, or was not: every one of a request that was answered is counted in
//! exactly one of [`Reuse`]'s parts, so that a low hit rate has a name.
//!
//! The parts follow each other from the front of the prompt, since caches hold prefixes:
//!
//! ```text
//! |--- cached ---|--- misplaced ---|--- evicted ---|--- new ---|
//!  the engine's   somebody else     was here before  never seen, or less
//!  own word       holds it          and is gone      than a block
//! ```

use crate::ask::Usage;
use crate::trust::Forecast;
use std::ops::AddAssign;

/// Prompt tokens by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Reused: the engine says so.
    pub cached: u64,
    /// Computed for the first time, as far as is known here.
    pub new: u64,
    /// Computed again, for nobody held them any more.
    pub evicted: u64,
    /// Computed again, though another live target held them: that was our choice, a session's, or load's.
    pub misplaced: u64,
    /// The engine didn't say what it reused; or it did, and the rest was not tokenized here.
    pub unknown: u64,
}

impl Reuse {
    /// What became of a request's prompt. Where its engine said nothing its length is ours, which is a guess
    /// if the prompt was not tokenized here.
    pub(crate) fn of(forecast: &Forecast, usage: Option<&Usage>) -> Self {
        let tokens = usage.map_or(u64::from(forecast.tokens), |u| u.prompt_tokens);
        let Some(cached) = usage.and_then(|u| u.cached_tokens) else {
            return Self { unknown: tokens, ..Self::default() };
        };
        let cached = cached.min(tokens);
        if !forecast.exact {
            return Self { cached, unknown: tokens - cached, ..Self::default() };
        }
        // The engine's prompt may be shorter than ours.
        let [ours, best, seen] =
            [forecast.cached, forecast.best, forecast.seen].map(|n| u64::from(n).min(tokens));
        let misplaced = if best > ours { best.saturating_sub(cached.max(ours)) } else { 0 };
        let evicted = seen.max(ours).saturating_sub(cached).saturating_sub(misplaced);
        let new = tokens - cached - misplaced - evicted;
        Self { cached, new, evicted, misplaced, unknown: 0 }
    }

    /// Each part with its word, as metrics show it.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("cached", self.cached),
            ("new", self.new),
            ("evicted", self.evicted),
            ("misplaced", self.misplaced),
            ("unknown", self.unknown),
        ]
    }
}

impl AddAssign for Reuse {
    fn add_assign(&mut self, more: Self) {
        self.cached = self.cached.saturating_add(more.cached);
        self.new = self.new.saturating_add(more.new);
        self.evicted = self.evicted.saturating_add(more.evicted);
        self.misplaced = self.misplaced.saturating_add(more.misplaced);
        self.unknown = self.unknown.saturating_add(more.unknown);
    }
}

#[cfg(test)]
#[path = "blame_tests.rs"]
mod tests;
