//! What is kept of one request's decision: who could have served it and at what cost, who was picked, what
//! became of the session, how long each step took, and in the end what really happened. Numbers only: no
//! text of a prompt, and of a session no more than its key.

use crate::affinity::{Outcome, Steer};
use crate::ask::{Ask, Cause, Failure, Usage};
use crate::explain::Placement;
use crate::ids::{DpRank, NameId, SessionKey, Target, WorkerId};
use crate::queue::Line;
use crate::select::policy::{Parts, TERMS, Terms};
use crate::select::{Candidate, Fit};
use crate::settings::Mode;
use crate::time::Time;
use crate::trust::{Shape, Trust};
use std::sync::Arc;
use std::time::Duration;

/// Attempts of one request that are kept: the first ones. All are counted.
pub const ATTEMPTS: usize = 4;
/// Bytes of a request id, at most; a request with a longer one is kept without it.
pub const MAX_ID: usize = 256;

/// What a cost is made of, by name; "" where there is nothing more.
pub type Names = [&'static str; TERMS];

/// The names of these terms.
#[must_use]
pub(crate) fn names(terms: &Terms) -> Names {
    let mut names = [""; TERMS];
    names.iter_mut().zip(terms).for_each(|(name, (said, _))| *name = said);
    names
}

/// What the host knows of a request that no decision needs: for its record alone.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// Its id, at most [`MAX_ID`] bytes.
    pub id: Option<Arc<str>>,
    /// When its head had been read.
    pub came: Option<Time>,
    /// How long it took to make its prompt.
    pub prompt: Duration,
    /// How long it took to look up who holds it.
    pub look_up: Duration,
}

/// A target as it stood when the decision was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighed {
    /// The worker.
    pub worker: WorkerId,
    /// Leading blocks of the prompt that it held, in whichever tier,
    pub overlap: u32,
    /// those of them that were there already and not only on their way,
    pub told: u32,
    /// those in host memory,
    pub host: u32,
    /// and those farther away.
    pub disk: u32,
    /// Requests placed there and not ended.
    pub active_requests: u32,
    /// Prompt tokens that it had to compute before their first tokens.
    pub prefill_tokens: u32,
    /// Blocks that they occupied.
    pub blocks: u32,
    /// Sessions that lived at its worker.
    pub homes: u32,
    /// One of its ranks.
    pub rank: DpRank,
    /// What spoke against it.
    pub fit: Fit,
    /// How far the index was believed.
    pub trust: Trust,
    /// What it would have cost, part by part, in the order of the policy's names for them. A policy is not asked about
    /// what nobody could use (R21).
    pub parts: Parts,
}

impl Weighed {
    /// As it stands, and what it costs.
    #[must_use]
    pub fn of(c: &Candidate, parts: Parts) -> Self {
        let most = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            worker: c.worker,
            overlap: c.overlap,
            told: c.told,
            host: c.host,
            disk: c.disk,
            active_requests: c.load.active_requests,
            prefill_tokens: most(c.load.prefill_tokens),
            blocks: most(c.load.blocks),
            homes: c.homes,
            rank: c.rank,
            fit: c.fit,
            trust: c.trust,
            parts,
        }
    }

    /// As a target.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { worker: self.worker, rank: Some(self.rank) }
    }

    /// What it would have cost; `None`: nobody could use it.
    #[must_use]
    pub fn cost(&self) -> Option<f32> {
        (!self.fit.any(Fit::UNUSABLE)).then(|| self.parts.iter().sum())
    }
}

/// What a request waited for in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Anybody who is free.
    Anyone,
    /// The worker that it names.
    Named(WorkerId),
    /// Its session's home.
    Home(WorkerId),
}

impl From<Line> for Awaited {
    fn from(line: Line) -> Self {
        match line {
            Line::Any => Self::Anyone,
            Line::Named(worker) => Self::Named(worker),
            Line::Home(worker) => Self::Home(worker),
        }
    }
}

/// One dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Where it went.
    pub target: Target,
    /// When.
    pub at: Time,
    /// How it failed, before its worker had begun to answer.
    pub failure: Option<Failed>,
}

/// A [`Failure`], without what it brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The port refused.
    Refused,
    /// No connection.
    Unreachable,
    /// The connection broke.
    Broken,
    /// It answered 429 or 503.
    Overloaded,
}

impl Failed {
    /// As people read it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Overloaded => "overloaded",
        }
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused => Self::Refused,
            Failure::Unreachable => Self::Unreachable,
            Failure::Broken => Self::Broken,
            Failure::Overloaded(_) => Self::Overloaded,
        }
    }
}

/// How far a request has come, or how it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// In the queue.
    #[default]
    Waiting,
    /// It has a place, and was not sent yet.
    Placed,
    /// Sent; its worker has not begun to answer.
    Dispatched,
    /// Its worker has begun to answer.
    Running,
    /// Refused.
    Refused,
    /// Given up before anything was sent.
    GivenUp,
    /// Its client went away.
    ClientGone,
    /// Its worker answered with an error, or not in time.
    Failed,
    /// Answered to its end.
    Complete,
    /// The worker broke off in the middle of the answer.
    WorkerBroke,
    /// The answer took too long.
    TimedOut,
    /// Ended, and the host did not say how.
    Ended,
}

impl Stage {
    /// As people read it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Placed => "placed",
            Self::Dispatched => "dispatched",
            Self::Running => "running",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
            Self::ClientGone => "client_gone",
            Self::Failed => "failed",
            Self::Complete => "complete",
            Self::WorkerBroke => "worker_broke",
            Self::TimedOut => "timed_out",
            Self::Ended => "ended",
        }
    }

    /// Whether nothing more will happen to the request.
    #[must_use]
    pub const fn over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Placed | Self::Dispatched | Self::Running)
    }
}

/// What the host says of a request that has ended: for its record alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How it ended: [`Stage::Complete`] and the like; `None`: not said.
    pub stage: Option<Stage>,
    /// The engine's own count of the prompt, where it said one.
    pub usage: Option<Usage>,
    /// Tokens of the answer, by the engine's count.
    pub output_tokens: Option<u64>,
}

/// When each step was taken, as far as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The request's head had been read.
    pub came: Option<Time>,
    /// The core was asked first.
    pub asked: Time,
    /// It got the place that it has.
    pub granted: Option<Time>,
    /// It was sent there.
    pub dispatched: Option<Time>,
    /// The worker had begun to answer.
    pub begun: Option<Time>,
    /// The first bytes of the answer's content had come.
    pub first_token: Option<Time>,
    /// It was over.
    pub ended: Option<Time>,
    /// How long the host took to make its prompt,
    pub prompt: Duration,
    /// and to look up who holds it.
    pub look_up: Duration,
    /// How long it was in the queue.
    pub waited: Duration,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The request's id.
    pub id: Option<Arc<str>>,
    /// The served name that it used.
    pub name: NameId,
    /// In which form it came.
    pub shape: Shape,
    /// Its prompt was tokenized here; else its length and overlaps are guesses by its text.
    pub exact: bool,
    /// Tokens per block; 0: unknown.
    pub block_size: u32,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Its session.
    pub session: Option<SessionKey>,
    /// How binding that is.
    pub mode: Mode,
    /// What the session asked of selection.
    pub steer: Steer,
    /// What happened to the session; [`Outcome::Unbound`] until that is known.
    pub outcome: Outcome,
    /// It named its target.
    pub explicit: bool,
    /// It allowed only some workers.
    pub constrained: bool,
    /// Who was picked.
    pub pick: Option<Target>,
    /// Of how many, and what of its prompt was predicted to be cached.
    pub placement: Placement,
    /// What it waits for, or waited for last.
    pub awaited: Option<Awaited>,
    /// Since when it waits; `None`: it doesn't.
    pub waiting: Option<Time>,
    /// The times.
    pub times: Times,
    /// How often it was sent.
    pub attempts: u32,
    /// The first of these times.
    pub tries: [Option<Attempt>; ATTEMPTS],
    /// How far it has come.
    pub stage: Stage,
    /// Why it was refused,
    pub cause: Option<Cause>,
    /// and whether a Hard session's live home was the reason.
    pub bound: bool,
    /// What was said of it in the end.
    pub report: Report,
    /// Targets that are not kept, since there were too many.
    pub left_out: u32,
    /// Targets by what spoke against them, in the order of [`Fit::words`]'s words.
    pub against: [u32; Fit::COUNT],
}

impl Record {
    pub(crate) fn new(now: Time, ask: &Ask) -> Self {
        let note = &ask.note;
        Self {
            id: note.id.clone().filter(|id| id.len() <= MAX_ID),
            name: ask.name,
            shape: ask.shape,
            exact: ask.prompt.exact,
            block_size: ask.prompt.block_size,
            prompt_tokens: ask.prompt.tokens,
            session: ask.session.map(|s| s.key),
            mode: ask.session.map(|s| s.mode).unwrap_or_default(),
            steer: Steer::Free,
            outcome: if ask.session.is_some() { Outcome::Unbound } else { Outcome::None },
            explicit: ask.explicit.is_some(),
            constrained: ask.constraints.is_some(),
            pick: None,
            placement: Placement::default(),
            awaited: None,
            waiting: None,
            times: Times { came: note.came, asked: now, ..Times::default() },
            attempts: 0,
            tries: [None; ATTEMPTS],
            stage: Stage::default(),
            cause: None,
            bound: false,
            report: Report::default(),
            left_out: 0,
            against: [0; Fit::COUNT],
        }
    }

    /// Where its session lived.
    #[must_use]
    pub fn home(&self) -> Option<Target> {
        match self.steer {
            Steer::Pin(home) | Steer::Prefer(home) => Some(home),
            Steer::Free | Steer::Tentative(_) => None,
        }
    }

    /// The attempts that are kept, in order.
    pub fn attempts_kept(&self) -> impl Iterator<Item = &Attempt> {
        self.tries.iter().flatten()
    }

    /// From the place that it got to the first of its answer: what a policy can be blamed for.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        Some(self.times.first_token?.since(self.times.granted?))
    }

    /// Prompt tokens that were computed and need not have been: what the best of those who could have served it
    /// held by the index, less what the engine says that it reused. `None` where the engine didn't say.
    #[must_use]
    pub fn regret_tokens(&self) -> Option<u64> {
        let usage = self.report.usage?;
        let cached = usage.cached_tokens?;
        let best = u64::from(self.placement.best_overlap_blocks) * u64::from(self.block_size);
        // The last token is always computed.
        let mut best = best.min(u64::from(self.prompt_tokens.saturating_sub(1)));
        if !self.exact {
            // In the engine's tokens: the same part of the prompt.
            let guessed = u64::from(self.prompt_tokens.max(1));
            best = best.saturating_mul(usage.prompt_tokens) / guessed;
        }
        Some(best.saturating_sub(cached))
    }
}
