//! Where no usage says what was reused: what an engine's own counters say over a span of time, against
//! the sum of the predictions in it. Coarser than usage, and good enough for an index that always lies.

use super::{Forecast, Shape, Sign, Verdict};

/// What an engine counts: prompt tokens looked up in its prefix cache, and found there, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Found.
    pub hits: u64,
    /// Looked up.
    pub queries: u64,
}

/// From one look at the counters to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: Counters,
    /// Tokens of the prompts that began in it, and of these those predicted to be reused.
    tokens: u64,
    cached: u64,
    /// A block for each of them may be amiss.
    slack: u64,
    /// A prompt of unknown tokens was among them: all sums are estimates.
    blurred: bool,
    /// One of which nothing could be predicted.
    blind: bool,
    shapes: [bool; Shape::COUNT],
}

impl Span {
    pub(super) fn new(from: Counters) -> Self {
        let shapes = [false; Shape::COUNT];
        Self { from, tokens: 0, cached: 0, slack: 0, blurred: false, blind: false, shapes }
    }

    /// A request has begun.
    pub(super) fn add(&mut self, forecast: &Forecast) {
        self.blurred |= !forecast.exact;
        self.blind |= forecast.block_size == 0;
        self.tokens = self.tokens.saturating_add(u64::from(forecast.tokens));
        self.cached = self.cached.saturating_add(u64::from(forecast.told));
        self.slack = self.slack.saturating_add(u64::from(forecast.block_size));
        self.shapes[forecast.shape as usize] = true;
    }

    /// The shapes whose requests began in it.
    pub(super) fn shapes(&self) -> impl Iterator<Item = Shape> + use<> {
        let shapes = self.shapes;
        Shape::ALL.into_iter().filter(move |s| shapes[*s as usize])
    }

    /// What its end says. `None` where that can't be told: the engine counted the prompts of others too, or
    /// not yet all of ours, or it began anew.
    pub(super) fn verdict(&self, to: Counters, uncertain: bool) -> Option<Verdict> {
        let hits = to.hits.checked_sub(self.from.hits)?;
        let queries = to.queries.checked_sub(self.from.queries)?;
        let (least, most) = match self.blurred {
            false => (self.tokens - self.tokens / 10, self.tokens.saturating_add(self.tokens / 4)),
            // By four bytes a token, which is off by half at most.
            true => (self.tokens / 2, self.tokens.saturating_mul(2)),
        };
        if self.blind || !(least..=most).contains(&queries) || self.cached <= self.slack {
            return None;
        }
        // In the engine's tokens.
        let scale = |n: u64| match self.blurred {
            false => n,
            true => n.saturating_mul(queries) / self.tokens.max(1),
        };
        let (cached, slack) = (scale(self.cached).max(1), scale(self.slack));
        let short = cached.saturating_sub(hits);
        if short <= slack {
            return Some(Verdict { share: Some(1.0), error: Some(0.0), sign: Sign::Agrees });
        }
        let sign = if uncertain { Sign::Gap } else { Sign::Unknown };
        let error = (short as f64 / queries.max(1) as f64).min(1.0);
        let share = hits as f64 / cached as f64;
        Some(Verdict { share: Some(share), error: Some(error), sign })
    }
}
