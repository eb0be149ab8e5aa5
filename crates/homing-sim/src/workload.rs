//! Multi-turn agent sessions from a seed, with the statistics of real ones.
//!
//! The pattern is 402 recorded Claude Code sessions (26,298 requests; WEKA's `kv-cache-tester`, Apache-2.0).
//! Per session and turn they have, measured from the files:
//!
//! | figure | p10 | p50 | p90 | as a log-normal: median, sigma |
//! |---|---|---|---|---|
//! | turns a session | 7 | 42 | 144 | - |
//! | tools and system prompt, tokens | 11,899 | 15,138 | 15,968 | - |
//! | new input a turn (beyond the last prompt and its reply), tokens | 27 | 358 | 3,237 | 336, 1.82 |
//! | output a turn, tokens | 106 | 215 | 859 | 260, 0.88 |
//! | think time (where above zero), s | 4 | 10 | 152 | 16.5, 1.53 |
//! | sessions an opener (distinct tools and system prompt) | 402 sessions on 245 openers, the top ones 16, 12, 8 | | | - |
//!
//! The defaults keep those shapes at a quarter of the lengths, so that sessions of 6 to 16 turns end
//! below 12,000 tokens, and cut think times at two minutes. What a mean hides matters here: growth has a
//! heavy tail, so a few sessions are several times larger than most.

use crate::text::{Message, Words};
use homing_core::dice::{Dice, SplitMix};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A log-normal distribution: heavy-tailed, as lengths and pauses of people and agents are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    /// Half of the values lie below it.
    pub median: f64,
    /// The standard deviation of the logarithm.
    pub sigma: f64,
}

impl LogNormal {
    /// A value (Box and Muller's transform of two uniform ones).
    pub fn draw(&self, dice: &mut impl Dice) -> f64 {
        let radius = (-2.0 * (1.0 - dice.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * dice.unit()).cos();
        self.median * (self.sigma * normal).exp()
    }
}

/// What to generate. Lengths are in tokens of the codec that the words were measured with.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Sessions in all.
    pub sessions: usize,
    /// Turns of a session, each number as likely.
    pub turns: RangeInclusive<usize>,
    /// Length of an opener (the system prompt), each as likely.
    pub opener: RangeInclusive<usize>,
    /// The probability that a session begins with the opener of an earlier one, picked evenly from all
    /// earlier sessions, so that popular openers get more popular.
    pub share: f64,
    /// What the user, or a tool on his behalf, adds in a turn.
    pub growth: LogNormal,
    /// What the model answers.
    pub output: LogNormal,
    /// Seconds between the end of a turn and the next one.
    pub think: LogNormal,
    /// Think times above it are cut to it: beyond, a person has gone to lunch.
    pub longest_think: Duration,
    /// Mean gap between the starts of sessions, which are a Poisson process.
    pub gap: Duration,
    /// The longest prompt, template included. A session that would exceed it has its turns scaled down.
    pub longest_prompt: usize,
}

impl Default for Params {
    /// The recorded sessions at a quarter of their lengths; see the module. The gap between sessions is
    /// an assumption (recordings tell nothing about it).
    fn default() -> Self {
        Self {
            sessions: 40,
            turns: 6..=16,
            opener: 2975..=3992,
            // 245 openers for 402 sessions.
            share: 0.39,
            growth: LogNormal { median: 84.0, sigma: 1.82 },
            output: LogNormal { median: 65.0, sigma: 0.88 },
            think: LogNormal { median: 16.5, sigma: 1.53 },
            longest_think: Duration::from_secs(120),
            gap: Duration::from_secs(5),
            longest_prompt: 12_000,
        }
    }
}

/// One turn of a session: the user speaks, the model answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What is new in its prompt.
    pub user_text: String,
    /// Pause before it, after the last token of the turn before; zero for the first.
    pub think: Duration,
    /// Length of the answer to ask for, in tokens; at least 1.
    pub output_tokens: u32,
}

/// A session: a conversation that grows turn by turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// A unique, readable name.
    pub id: String,
    /// Index of its opener.
    pub opener: usize,
    /// When its first turn is sent, from the start of the run.
    pub start: Duration,
    /// Its turns; at least one.
    pub turns: Vec<Turn>,
}

/// Sessions and what they begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// System prompts.
    pub openers: Vec<String>,
    /// Sessions in the order of their starts.
    pub sessions: Vec<Session>,
}

/// Tokens that a chat template puts around a message, generously: role, markers and line feeds.
const MARKUP: usize = 12;

/// The shortest text of a turn, in tokens.
const SHORTEST: usize = 4;

impl Workload {
    /// The workload of `seed`; the same one every time.
    #[must_use]
    pub fn generate(params: &Params, seed: u64, words: &Words) -> Self {
        let mut dice = SplitMix::new(seed);
        let mut it = Self { openers: Vec::new(), sessions: Vec::new() };
        let mut opener_lengths = Vec::new();
        let mut start = Duration::ZERO;
        for n in 0..params.sessions {
            let opener = if n > 0 && dice.unit() < params.share {
                it.sessions[dice.below(n)].opener
            } else {
                let length = within(&params.opener, &mut dice).min(params.longest_prompt / 2);
                it.openers.push(words.text(&mut dice, length));
                opener_lengths.push(length);
                it.openers.len() - 1
            };
            let room = params.longest_prompt.saturating_sub(opener_lengths[opener] + 2 * MARKUP);
            let turns = turns(params, room, words, &mut dice);
            it.sessions.push(Session { id: format!("session-{n:04}"), opener, start, turns });
            start += params.gap.mul_f64(-(1.0 - dice.unit()).ln());
        }
        it
    }

    /// All turns.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.sessions.iter().map(|session| session.turns.len()).sum()
    }

    /// The messages of the turn that follows these `replies` of the model (none: the first turn).
    #[must_use]
    pub fn messages(&self, session: &Session, replies: &[String]) -> Vec<Message> {
        let opener = self.openers.get(session.opener).cloned().unwrap_or_default();
        let mut messages = vec![Message { role: "system", content: opener }];
        for (i, turn) in session.turns.iter().take(replies.len() + 1).enumerate() {
            messages.push(Message { role: "user", content: turn.user_text.clone() });
            if let Some(reply) = replies.get(i) {
                messages.push(Message { role: "assistant", content: reply.clone() });
            }
        }
        messages
    }
}

fn turns(params: &Params, room: usize, words: &Words, dice: &mut SplitMix) -> Vec<Turn> {
    let count = within(&params.turns, dice).max(1);
    let lengths: Vec<(f64, f64)> =
        (0..count).map(|_| (params.growth.draw(dice), params.output.draw(dice))).collect();
    // The last prompt holds everything but the last answer; markup stands around both messages.
    let markup = count * 2 * MARKUP;
    let total: f64 = lengths.iter().map(|(user, output)| user + output).sum();
    let scale = (room.saturating_sub(markup) as f64 / total).min(1.0);
    lengths
        .into_iter()
        .enumerate()
        .map(|(i, (user, output))| Turn {
            user_text: words.text(dice, ((user * scale) as usize).max(SHORTEST)),
            think: if i == 0 {
                Duration::ZERO
            } else {
                Duration::from_secs_f64(params.think.draw(dice).min(1e6)).min(params.longest_think)
            },
            output_tokens: ((output * scale) as u32).max(1),
        })
        .collect()
}

fn within(range: &RangeInclusive<usize>, dice: &mut SplitMix) -> usize {
    range.start() + dice.below((range.end() + 1).saturating_sub(*range.start()).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Bytes, Codec as _};

    fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        values[(q * values.len() as f64) as usize]
    }

    fn many() -> Workload {
        let params = Params { sessions: 300, ..Params::default() };
        // Two bytes make a token here.
        Workload::generate(&params, 11, &Words::measured(|text| text.len().div_ceil(2)))
    }

    #[test]
    fn the_same_seed_gives_the_same_sessions() {
        assert_eq!(many(), many());
    }

    #[test]
    fn the_shapes_are_those_of_the_recorded_sessions() {
        let it = many();
        assert!(it.sessions.iter().all(|s| (6..=16).contains(&s.turns.len())));
        assert!(it.sessions.is_sorted_by_key(|s| s.start));
        let openers = it.openers.len() as f64 / 300.0;
        assert!((0.52..0.70).contains(&openers), "{openers} openers a session, recorded 0.61");
        let turns: Vec<&Turn> = it.sessions.iter().flat_map(|s| &s.turns).collect();
        let outputs: Vec<f64> = turns.iter().map(|t| f64::from(t.output_tokens)).collect();
        let median = quantile(outputs.clone(), 0.5);
        assert!((55.0..70.0).contains(&median), "output {median}, recorded 260 / 4");
        let tail = quantile(outputs.clone(), 0.9) / median;
        assert!((2.5..3.7).contains(&tail), "p90 over p50 of output {tail}, log-normal 3.1");
        let growth: Vec<f64> = turns.iter().map(|t| t.user_text.len() as f64).collect();
        let tail = quantile(growth.clone(), 0.9) / quantile(growth, 0.5);
        assert!((7.0..12.0).contains(&tail), "p90 over p50 of growth {tail}, recorded 9");
        let think: Vec<f64> =
            turns.iter().map(|t| t.think.as_secs_f64()).filter(|t| *t > 0.0).collect();
        let median = quantile(think, 0.5);
        assert!((14.0..19.0).contains(&median), "think time {median}, recorded 16.5");
        assert!(turns.iter().all(|t| t.think <= Duration::from_secs(120)));
    }

    #[test]
    fn prompts_grow_by_prefix_and_stay_below_the_longest() {
        let params = Params { sessions: 60, ..Params::default() };
        let words = Words::of(&Bytes).expect("cannot fail");
        let it = Workload::generate(&params, 5, &words);
        let mut longest = 0;
        for session in &it.sessions {
            let (mut replies, mut before) = (vec![], vec![]);
            for turn in &session.turns {
                let prompt = Bytes.chat(&it.messages(session, &replies)).expect("cannot fail");
                assert!(prompt.starts_with(&before), "{}", session.id);
                longest = longest.max(prompt.len());
                let reply =
                    words.reply(&Bytes, &prompt, turn.output_tokens as usize).expect("cannot fail");
                before = [prompt, reply.clone()].concat();
                replies.push(Bytes.decode(&reply).expect("cannot fail"));
            }
        }
        assert!((11_000..=12_000).contains(&longest), "{longest}");
    }
}
