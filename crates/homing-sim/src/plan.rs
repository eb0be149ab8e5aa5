//! A workload turned into tokens: what a fleet in virtual time runs.
//!
//! It plays every session once, with the replies that the mock engine would give, and keeps each turn's
//! prompt and output as tokens. So a live run over HTTP and a virtual one see the same prompts.

use crate::text::{Codec, Words};
use crate::workload::Workload;
use homing_core::hash::{ChainHash, HashSpace, Prompt};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Sessions in tokens.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the order of their starts.
    pub sessions: Vec<PlannedSession>,
}

/// One session.
#[derive(Clone, Debug)]
pub struct PlannedSession {
    /// Its name.
    pub id: String,
    /// When its first turn is sent, from the start of the run.
    pub start: Duration,
    /// Its turns.
    pub turns: Vec<PlannedTurn>,
}

/// One turn.
#[derive(Clone, Debug)]
pub struct PlannedTurn {
    /// Pause after the last token of the turn before.
    pub think: Duration,
    /// The whole prompt.
    pub prompt: Arc<[u32]>,
    /// What the model answers.
    pub output: Vec<u32>,
}

impl Plan {
    /// Plays `workload` through `codec`, with replies of `words`.
    ///
    /// # Errors
    /// Where the codec fails.
    pub fn new<C: Codec>(workload: &Workload, words: &Words, codec: &C) -> Result<Self, C::Error> {
        let mut sessions = Vec::with_capacity(workload.sessions.len());
        for session in &workload.sessions {
            let (mut turns, mut replies) = (Vec::with_capacity(session.turns.len()), Vec::new());
            for turn in &session.turns {
                let prompt = codec.chat(&workload.messages(session, &replies))?;
                let output = words.reply(codec, &prompt, turn.output_tokens as usize)?;
                replies.push(codec.decode(&output)?);
                turns.push(PlannedTurn { think: turn.think, prompt: prompt.into(), output });
            }
            sessions.push(PlannedSession { id: session.id.clone(), start: session.start, turns });
        }
        Ok(Self { sessions })
    }

    /// All turns, session by session.
    pub fn turns(&self) -> impl Iterator<Item = &PlannedTurn> {
        self.sessions.iter().flat_map(|session| &session.turns)
    }

    /// The hit rate of one infinite cache that serves all turns, session by session: what no routing can
    /// exceed. In tokens, counted as engines count: whole blocks, and never the last token of a prompt.
    #[must_use]
    pub fn best_hit_rate(&self, block_size: u32) -> f64 {
        let (mut hits, mut queries) = (0u64, 0u64);
        let mut cached: HashSet<ChainHash> = HashSet::new();
        for turn in self.turns() {
            let prompt = Prompt::from_tokens(&turn.prompt, block_size, HashSpace::default());
            let most = prompt.reusable_blocks() as usize;
            let hit = prompt.chain.iter().take(most).take_while(|b| cached.contains(*b)).count();
            hits += hit as u64 * u64::from(block_size);
            queries += u64::from(prompt.tokens);
            cached.extend(left_behind(turn, block_size).iter());
        }
        if queries == 0 { 0.0 } else { hits as f64 / queries as f64 }
    }

    /// How many different blocks the turns fill in all: the size of a cache that never evicts.
    #[must_use]
    pub fn distinct_blocks(&self, block_size: u32) -> usize {
        let mut cached: HashSet<ChainHash> = HashSet::new();
        for turn in self.turns() {
            cached.extend(left_behind(turn, block_size).iter());
        }
        cached.len()
    }
}

/// The blocks that are in the cache after a turn: those of the prompt and of the output, whose last token
/// was sampled but never computed.
fn left_behind(turn: &PlannedTurn, block_size: u32) -> Arc<[ChainHash]> {
    let computed = turn.output.len().saturating_sub(1);
    let tokens = [&turn.prompt[..], &turn.output[..computed]].concat();
    Prompt::from_tokens(&tokens, block_size, HashSpace::default()).chain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(prompt: std::ops::Range<u32>, output: std::ops::Range<u32>) -> PlannedTurn {
        let prompt: Vec<u32> = prompt.collect();
        PlannedTurn { think: Duration::ZERO, prompt: prompt.into(), output: output.collect() }
    }

    #[test]
    fn the_best_rate_counts_whole_blocks_without_the_last_token() {
        let turns = vec![turn(0..8, 8..13), turn(0..16, 99..100), turn(0..16, 99..100)];
        let session = PlannedSession { id: "s".into(), start: Duration::ZERO, turns };
        let plan = Plan { sessions: vec![session] };
        // First: 0 of 8. Then 12 computed tokens are there: 12 of 16. Then floor(15 / 4) blocks: 12 of 16.
        assert!((plan.best_hit_rate(4) - 24.0 / 40.0).abs() < 1e-12);
        assert_eq!(plan.distinct_blocks(4), 4);
        assert!(Plan::default().best_hit_rate(4).abs() < 1e-12);
    }
}
