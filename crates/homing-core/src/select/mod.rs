//! Choosing a target: filter, pin, score, pick.
//!
//! The filter and the pin rule are one for all policies (R21, `partition::decide`); a policy only says
//! what a candidate costs, and may rule one out. Near-ties are broken at random, so that routers don't
//! herd (F15).
//!
//! * [`policy`]: what a policy is;
//! * `kv`, `latency`, `least_loaded`, `power_of_two`, `round_robin`, `random`: the built-in ones.

mod kv;
mod latency;
mod least_loaded;
pub mod policy;
mod power_of_two;
mod random;
mod round_robin;

pub use kv::Kv;
pub use latency::Latency;
pub use least_loaded::LeastLoaded;
pub use policy::Costs;
pub use power_of_two::PowerOfTwo;
pub use random::Random;
pub use round_robin::RoundRobin;

use crate::dice::Dice;
use crate::ids::{DpRank, SessionKey, Target, WorkerId};
use crate::load::{Load, Pace};
use crate::time::Time;
use crate::trust::Trust;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

/// Why a candidate can't be used, or not by everybody; several reasons may hold at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit(u16);

impl Fit {
    /// Its worker is not up.
    pub const NOT_READY: Self = Self(1);
    /// The request's own constraints exclude it.
    pub const FORBIDDEN: Self = Self(2);
    /// It failed this very request.
    pub const FAILED: Self = Self(4);
    /// It is draining: only for sessions that live there.
    pub const DRAINING: Self = Self(8);
    /// It is overloaded.
    pub const SHED: Self = Self(16);
    /// It has as much to do as it may.
    pub const BUSY: Self = Self(32);
    /// Requests that name its worker wait for it.
    pub const AWAITED: Self = Self(64);
    /// The policy rules it out.
    pub const VETOED: Self = Self(128);
    /// Nothing good has come back from its worker of late, and another request is trying it.
    pub const UNWELL: Self = Self(256);

    /// What speaks against a candidate for everybody who doesn't live there: a policy is not asked what it costs.
    pub const UNUSABLE: Self = Self::NOT_READY
        .and(Self::UNWELL)
        .and(Self::FORBIDDEN)
        .and(Self::FAILED)
        .and(Self::DRAINING);

    /// What stays true of a target from one request to the next.
    pub(crate) const LASTING: Self = Self::NOT_READY.and(Self::DRAINING).and(Self::BUSY);

    /// How many reasons there are.
    pub const COUNT: usize = 9;

    /// The reasons, as people read them, in the order of their bits.
    pub const WORDS: [(Self, &'static str); Self::COUNT] = [
        (Self::NOT_READY, "not_ready"),
        (Self::FORBIDDEN, "forbidden"),
        (Self::FAILED, "failed"),
        (Self::DRAINING, "draining"),
        (Self::SHED, "overloaded"),
        (Self::BUSY, "busy"),
        (Self::AWAITED, "awaited"),
        (Self::VETOED, "vetoed"),
        (Self::UNWELL, "unwell"),
    ];

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of `reasons` holds.
    #[must_use]
    pub const fn any(self, reasons: Self) -> bool {
        self.0 & reasons.0 != 0
    }

    /// All reasons that hold of somebody.
    pub(crate) fn of_any(fits: &[Self]) -> Self {
        Self(fits.iter().fold(0, |all, fit| all | fit.0))
    }

    /// What does not hold any more.
    pub(crate) fn remove(&mut self, reason: Self, gone: bool) {
        self.0 &= if gone { !reason.0 } else { !0 };
    }

    pub(crate) fn add(&mut self, reason: Self, holds: bool) {
        self.0 |= if holds { reason.0 } else { 0 };
    }

    /// The reasons that hold, as people read them.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().filter(move |(reason, _)| self.any(*reason)).map(|(_, word)| word)
    }
}

impl std::ops::Not for Fit {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// One target that serves the request's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerId,
    /// One of its ranks.
    pub rank: DpRank,
    /// Its row in the partition.
    pub row: usize,
    /// What it has to do.
    pub load: Load,
    /// Leading blocks of the prompt that it holds, in whichever tier.
    pub overlap: u32,
    /// Those of them that are there already, and not only on their way.
    pub told: u32,
    /// Those of them that it must bring from host memory,
    pub host: u32,
    /// and from farther away.
    pub disk: u32,
    /// How far that is believed.
    pub trust: Trust,
    /// Sessions that live at its worker.
    pub homes: u32,
    /// The request's session lives there, and may move: of a Soft one that is weighed.
    pub home: bool,
    /// How fast its worker is, as far as that is known.
    pub pace: Pace,
    /// Its worker's name, hashed: the same at all routers.
    pub name: u64,
    /// What speaks against it.
    pub fit: Fit,
}

impl Candidate {
    /// As a target.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { worker: self.worker, rank: Some(self.rank) }
    }

    /// As a session sees it that lives there and may move.
    #[must_use]
    pub(crate) fn as_home(&self) -> Self {
        let mut c = *self;
        c.home = true;
        // It would live anywhere else just as well.
        c.homes = c.homes.saturating_sub(1);
        // Its sessions may finish where a worker drains.
        c.fit.remove(Fit::DRAINING, true);
        c
    }

    /// Leading blocks of the prompt that it counts as holding.
    #[must_use]
    pub fn believed(&self) -> u32 {
        self.trust.of(self.overlap)
    }

    /// After how many milliseconds the first token would come: behind those that wait there already, and with what
    /// is not cached computed.
    #[must_use]
    pub fn ttft_ms(&self, demand: &Demand) -> f64 {
        let uncached = demand.uncached(self.believed());
        f64::from(self.pace.base)
            + self.pace.queue_ms(demand.now, &self.load)
            + self.pace.prefill_ms(uncached, demand.tokens)
    }
}

/// Those of a partition's targets that a policy may choose among, in the order of ids. It looks like a list of
/// [`Candidate`]s, and copies none of them.
#[derive(Clone, Copy, Debug)]
pub struct Among<'a> {
    all: &'a [Candidate],
    /// By number; `None`: all.
    which: Option<&'a [u32]>,
}

impl<'a> Among<'a> {
    /// Those of `all` that have these numbers.
    pub(crate) fn some(all: &'a [Candidate], which: &'a [u32]) -> Self {
        Self { all, which: Some(which).filter(|which| which.len() < all.len()) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.which.map_or(self.all.len(), <[u32]>::len)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them, from 0 on.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<&'a Candidate> {
        match self.which {
            None => self.all.get(i),
            Some(which) => which.get(i).and_then(|i| self.all.get(*i as usize)),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a Candidate> + Clone + use<'a> {
        let it = *self;
        (0..it.len()).filter_map(move |i| it.get(i))
    }
}

impl<'a> From<&'a [Candidate]> for Among<'a> {
    fn from(all: &'a [Candidate]) -> Self {
        Self { all, which: None }
    }
}

/// What a request demands of its target.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Prompt tokens.
    pub tokens: u32,
    /// Tokens per block; 0 where unknown.
    pub block_size: u32,
    /// Tokens of what costs are counted in: the same, unless the prompt is only known by its text. 0: the usual.
    pub unit: u32,
    /// Now.
    pub now: Time,
    /// How many tokens its answer will have, going by others.
    pub answer: f32,
    /// Its session, where this is the first turn and routers that don't hear of each other should agree where it goes.
    pub newcomer: Option<SessionKey>,
}

impl Demand {
    /// Prompt tokens that a target with `overlap` leading blocks must compute.
    #[must_use]
    pub fn uncached(&self, overlap: u32) -> u32 {
        self.tokens.saturating_sub(overlap.saturating_mul(self.block_size))
    }
}

/// Costs this close are always equal: a difference below a block is noise.
const NEAR: f64 = 1e-9;

/// The candidate that costs least; among those that cost at most `near` more, any (F15), or, for a session's first
/// turn, the one that any router would take. `None` if there are none. Gives its place in `among`.
pub fn cheapest(
    among: Among<'_>,
    demand: &Demand,
    near: f64,
    dice: &mut dyn Dice,
    cost: impl Fn(&Candidate) -> f64,
) -> Option<usize> {
    let costs: SmallVec<[f64; 64]> = among.iter().map(cost).collect();
    cheapest_of(among, &costs, demand, near, dice)
}

/// The same where the costs are known, each candidate's in its place.
pub fn cheapest_of(
    among: Among<'_>,
    costs: &[f64],
    demand: &Demand,
    near: f64,
    dice: &mut dyn Dice,
) -> Option<usize> {
    let best = least(costs) + near.max(NEAR);
    let tied = || costs.iter().enumerate().filter(|(_, cost)| **cost <= best).map(|(i, _)| i);
    let n = costs.iter().filter(|cost| **cost <= best).count();
    match demand.newcomer {
        // Infinite, or no number: no cost of ours, but somebody's policy may say so.
        _ if n == 0 => (!among.is_empty()).then(|| dice.below(among.len())),
        _ if n == 1 => tied().next(),
        Some(key) => tied().max_by_key(|i| among.get(*i).map(|c| rendezvous(key, c))),
        None => tied().nth(dice.below(n)),
    }
}

/// The least of them, whatever is no number. Four at a time, since each step of a minimum waits for the one before.
fn least(costs: &[f64]) -> f64 {
    let (four, rest) = costs.as_chunks::<4>();
    let least = four.iter().fold([f64::INFINITY; 4], |least, costs| {
        std::array::from_fn(|i| if costs[i] < least[i] { costs[i] } else { least[i] })
    });
    least.iter().chain(rest).copied().fold(f64::INFINITY, f64::min)
}

/// How much a session likes a target, whoever asks: the highest wins (Thaler and Ravishankar, "A name-based mapping
/// scheme for rendezvous", 1996).
fn rendezvous(key: SessionKey, c: &Candidate) -> u64 {
    let mut bytes = [0u8; 26];
    bytes[..16].copy_from_slice(&key.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&c.name.to_le_bytes());
    bytes[24..].copy_from_slice(&c.rank.0.to_le_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
